"""Searches the web, or the user's corpus: one provider per run, asked once for equal queries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

import aiohttp
import msgspec

from kiseki.errors import ToolError
from kiseki.models.base import NOT_HELD
from kiseki.tools.services import Services
from kiseki.tools.web.corpus import Corpus
from kiseki.tools.web.needs import PROVIDER_KEYS, choose_provider
from kiseki.tools.web.providers.base import Hit
from kiseki.tools.web.store import Made, Store
from kiseki.trajectory.text import clean_text, printable

AT_ONCE = {"ddgs": 2}
"""Searches of a worker process."""
AT_ONCE_OTHERS = 8
TITLE_CHARS = 200
SNIPPET_CHARS = 500
MAX_URL = 2_000
"""Characters; a hit with a longer one is left out."""
MAX_BYTES = 60_000
"""Of all hits: a hundred usual ones have 40,000."""


class _Outcome(msgspec.Struct, frozen=True):
    """As it is kept."""

    hits: list[Hit] = []
    error: str = ""


class Searcher:
    """A worker's."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._store = services.get(Store)
        self._provider = choose_provider(services.settings, services.environ)
        self._slots = asyncio.Semaphore(AT_ONCE.get(self._provider, AT_ONCE_OTHERS))
        self._session: aiohttp.ClientSession | None = None

    async def search(self, query: str, limit: int, on_hold: AbstractContextManager[Any] = NOT_HELD) -> list[Hit]:
        """Up to `limit` hits, the best first. Raises `ToolError` where the provider gives none, `SandboxError` where a
        recording fails."""
        if self._provider == "corpus" and self._store.mode == "live":
            return _clean(await self._ask(query, limit), limit)
        # without the provider: a replay needs no key, and so may not know which it was
        request = msgspec.json.encode({"query": query, "limit": limit}, order="sorted").decode()

        async def make(begun: Callable[[], None]) -> Made:
            async with self._slots:
                begun()
                try:
                    outcome = _Outcome(_clean(await self._ask(query, limit), limit))
                except ToolError as error:
                    outcome = _Outcome(error=str(error))
            return Made(msgspec.msgpack.encode(outcome), failed=bool(outcome.error))

        kept = await self._store.once("search", request, make, on_hold, what=f"the search for {query[:100]!r}")
        outcome = msgspec.msgpack.decode(kept, type=_Outcome)
        if outcome.error:
            raise ToolError(outcome.error)
        return outcome.hits

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _ask(self, query: str, limit: int) -> list[Hit]:
        if self._provider == "corpus":
            return [Hit(*each) for each in await self._services.get(Corpus).search(query, limit)]
        key = self._services.environ.get(PROVIDER_KEYS.get(self._provider, ""), "").strip()
        if self._session is None:
            self._session = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())
        provider = import_module(f"kiseki.tools.web.providers.{self._provider}")
        found: list[Hit] = await provider.search(self._session, key, query, limit)
        return found


def _clean(found: list[Hit], limit: int) -> list[Hit]:
    """Each page once, within the bounds of a result."""
    by_url: dict[str, Hit] = {}
    size = 0
    for each in found:
        url = clean_text(each.url.strip())
        if not url or len(url) > MAX_URL or url in by_url:
            continue
        hit = Hit(_line(each.title, TITLE_CHARS), url, _line(each.snippet, SNIPPET_CHARS))
        size += sum(len(part.encode()) for part in hit)
        if len(by_url) >= limit or size > MAX_BYTES:
            break
        by_url[url] = hit
    return list(by_url.values())


def _line(text: str, limit: int) -> str:
    return printable(" ".join(clean_text(text[: 4 * limit]).split()), limit)
