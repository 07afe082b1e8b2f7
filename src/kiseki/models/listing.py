"""What an endpoint says of its models: `GET …/models`, the price and the context window of one of them.

Asked once for a run and endpoint, and never in the way: an endpoint that lists nothing, or does not answer in time, leaves both
unknown. The window has another name at each server (`WINDOWS`): vLLM and SGLang `max_model_len`; OpenRouter, Together and those
that copy them `context_length`; Groq `context_window`; Mistral `max_context_length`; llama.cpp `meta.n_ctx`; LM Studio
`loaded_context_length` (in its own list, `/api/v0/models`); Anthropic `max_input_tokens`. llama.cpp before it had `n_ctx` in its
list says it in `/props`. OpenAI, DeepSeek and Ollama list none.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from kiseki.models.dialects.opening import open_dialect
from kiseki.models.endpoints import ModelSettings, api_mode_of
from kiseki.models.factory import is_builtin
from kiseki.models.hosts import LOCAL, host_of
from kiseki.models.prices import Price, price_of

PRICE_SECONDS = 20.0
"""For the list where a limit in dollars hangs on it."""
WINDOW_SECONDS = 5.0
"""For the list where nobody needs it: what it may hold up the start of a run."""
MAX_BYTES = 32_000_000
"""Of an answer; OpenRouter's list has a megabyte."""
WINDOWS = (
    ("loaded_context_length",),
    ("max_model_len",),
    ("context_length",),
    ("context_window",),
    ("max_context_length",),
    ("max_input_tokens",),
    ("meta", "n_ctx"),
    ("default_generation_settings", "n_ctx"),  # of llama.cpp's /props
)
"""Where the window of a model stands; the first that is there."""
TRAINED = ("meta", "n_ctx_train")
"""llama.cpp: what the model could have. The server often gives it less, so this counts only where nothing else is said."""
MOST = 2**31
"""A larger window is no window."""
ROUTING_SUFFIXES = (":nitro", ":floor", ":exacto")
"""Of OpenRouter's model ids: another way to choose a provider, not another model in its list."""
_API_PATHS = ("/chat/completions", "/responses", "/messages")


class Listing(msgspec.Struct, frozen=True):
    """What is known of one model; None where its endpoint does not say."""

    price: Price | None = None
    context_length: int | None = None
    """Tokens of prompt and reply together."""


class Listings:
    """The answers of the endpoints of one run, each asked once."""

    def __init__(self, seconds: float = PRICE_SECONDS) -> None:
        """`seconds`: what all questions to one endpoint may take."""
        self._seconds = seconds
        self._answers: dict[tuple[str, str], list[bytes]] = {}

    def of(self, settings: ModelSettings) -> Listing:
        """Blocks; may be called on an event loop, which it holds up. Nothing is known of a model that is built in."""
        if is_builtin(settings.model):
            return Listing()
        urls, headers = _questions(settings)
        key = (urls[0], settings.api_key)
        if key not in self._answers:
            self._answers[key] = _ask(urls, headers, settings.model, self._seconds)
        return read_answers(self._answers[key], settings)


def read_answers(answers: list[bytes], settings: ModelSettings) -> Listing:
    """The model in the list, and what the same server says elsewhere."""
    alone = host_of(settings.base_url) is LOCAL
    found = [in_list(each, settings.model, alone=alone) for each in answers]
    windows = [window_of(each) for each in found]
    trained = [_window(each, TRAINED) for each in found]
    return Listing(
        price=price_of(found[0].get("pricing")) if found else None,
        context_length=next((each for each in (*windows, *trained) if each), None),
    )


def in_list(body: bytes, model: str, *, alone: bool = False) -> dict[str, Any]:
    """What an answer says of `model`: its entry in `{"data": [{"id": …}, …]}` or in such a list by itself, or the whole object
    where it is no list. Empty where it says nothing. `alone`: a model that is the only one there is meant by any name."""
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return {}
    listed = content.get("data", content) if isinstance(content, dict) else content
    if isinstance(listed, dict):
        return listed
    entries = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    if alone and len(entries) == 1:
        return entries[0]
    for name in dict.fromkeys((model, *map(model.removesuffix, ROUTING_SUFFIXES))):
        for each in entries:
            aliases = each.get("aliases")
            if each.get("id") == name or (isinstance(aliases, list) and name in aliases):
                return each
    return {}


def window_of(entry: dict[str, Any]) -> int | None:
    """The context window that an entry of a list names, whatever the server calls it."""
    return next((found for path in WINDOWS if (found := _window(entry, path))), None)


def _window(entry: Any, path: tuple[str, ...]) -> int | None:
    for name in path:
        entry = entry.get(name) if isinstance(entry, dict) else None
    return int(entry) if isinstance(entry, int | float) and not isinstance(entry, bool) and 0 < entry < MOST else None


def _questions(settings: ModelSettings) -> tuple[list[str], dict[str, str]]:
    """The URLs that may tell, the list first, and the headers that the API wants."""
    dialect = open_dialect(settings)
    base = dialect.url
    for path in _API_PATHS:
        base = base.removesuffix(path)
    urls = [f"{base}/models"]
    if api_mode_of(settings) == "anthropic":  # its list has pages, and not the names that stand for the newest of a kind
        urls.insert(0, f"{base}/models/{quote(settings.model, safe='')}")
    if host_of(settings.base_url) is LOCAL:
        parts = urlsplit(settings.base_url)
        urls += [f"{parts.scheme}://{parts.netloc}{path}" for path in ("/props", "/api/v0/models")]
    elif len(urls) > 1:
        urls.pop()
    return urls, dialect.headers


def _ask(urls: list[str], headers: dict[str, str], model: str, seconds: float) -> list[bytes]:
    """The answers, up to the first that tells the window; those that came in time."""
    answers: list[bytes] = []
    # a thread, since there may be an event loop already, and one that nobody waits for: looking up a name cannot be broken off
    thread = threading.Thread(target=lambda: asyncio.run(_fetch(urls, headers, model, seconds, answers)), daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[:]


async def _fetch(urls: list[str], headers: dict[str, str], model: str, seconds: float, answers: list[bytes]) -> None:
    import aiohttp

    from kiseki.models.client import proxy_for, read_body

    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError):
        async with asyncio.timeout(seconds), aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
            for url in urls:
                get = session.get(url, headers=headers, proxy=proxy_for(url), allow_redirects=False)
                async with get as response:
                    answers.append(await read_body(response, MAX_BYTES) if response.status == 200 else b"")
                if window_of(in_list(answers[-1], model, alone=len(urls) > 1)):
                    return
