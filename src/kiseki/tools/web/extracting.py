"""Pages as text: from the user's corpus, or fetched and read; the same page is fetched and read once in a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

from kiseki.errors import ToolError
from kiseki.models.base import NOT_HELD
from kiseki.tools.services import Services
from kiseki.tools.web.corpus import Corpus
from kiseki.tools.web.fetching import Fetcher, may_pass, read_url
from kiseki.tools.web.page_text import Page, status_words
from kiseki.tools.web.reader import Reader
from kiseki.tools.web.store import Made, Store

MAX_BYTES = 10_000_000
"""Of a page or a PDF."""
CORPUS_SCHEME = "corpus://"


class _Outcome(msgspec.Struct, frozen=True):
    """As it is kept."""

    page: Page | None = None
    error: str = ""


async def extract(services: Services, url: str, on_hold: AbstractContextManager[Any] = NOT_HELD) -> Page:
    """What the page at `url` says. Raises `ToolError`, and `SandboxError` where a recording fails."""
    store = services.get(Store)
    url = url.strip()
    if store.mode == "live" and (page := await _from_corpus(services, url)) is not None:
        return page
    if not url.startswith(CORPUS_SCHEME):
        url = str(read_url(url))

    async def make(begun: Callable[[], None]) -> Made:
        try:
            if store.mode != "live" and (page := await _from_corpus(services, url)) is not None:
                return _kept(_Outcome(page))
            fetched = await services.get(Fetcher).fetch(url, max_bytes=MAX_BYTES, on_hold=_then(begun))
            begun()
            if not 200 <= fetched.status < 300:
                return _kept(_Outcome(error=status_words(fetched.status)), failed=may_pass(fetched.status))
            return _kept(_Outcome(await services.get(Reader).read(fetched.body, fetched.content_type, fetched.url)))
        except ToolError as error:
            return _kept(_Outcome(error=str(error)), failed=True)

    outcome = msgspec.msgpack.decode(await store.once("extract", url, make, on_hold, what=url), type=_Outcome)
    if outcome.page is None:
        raise ToolError(outcome.error)
    return outcome.page


async def _from_corpus(services: Services, url: str) -> Page | None:
    if not services.settings.corpus:
        return None
    found = await services.get(Corpus).document(url)
    if found is None and url.startswith(CORPUS_SCHEME):
        raise ToolError(f"the corpus has no document {url}")
    return Page(found.title, found.text) if found else None


def _kept(outcome: _Outcome, *, failed: bool = False) -> Made:
    return Made(msgspec.msgpack.encode(outcome), failed)


@contextmanager
def _then(call: Callable[[], None]) -> Iterator[None]:
    """Makes `call` when left."""
    yield
    call()
