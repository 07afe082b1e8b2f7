"""The client of a model's endpoint: one `ChatRequest` in, one `ChatReply` or one `ProviderError` out, in any dialect.

Owns the connections; owns no bytes of any API (`dialects/`), no retries and no admission (`asking.py`), no prices, no
conversation. `send` is on the hot path: beyond what aiohttp costs it copies as little as it can.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from kiseki.errors import BadResponse, ProviderError, ProviderTimeout, ProviderUnreachable, StreamStalled
from kiseki.models.base import ChatReply, ChatRequest, RateInfo
from kiseki.models.dialects.base import EXCERPT_CHARS, MAX_ANSWER, TOO_LARGE, Dialect, StreamedReply
from kiseki.models.endpoints import ModelSettings
from kiseki.models.failures import error_of_status
from kiseki.models.hosts import LOCAL, OLLAMA, host_of
from kiseki.models.rate_headers import parse_rate

if TYPE_CHECKING:
    import aiohttp

CONNECT_SECONDS = 30.0
"""For a TCP and TLS handshake; an endpoint that takes longer is not there."""
KEEPALIVE_SECONDS = 60.0
"""Long enough that a connection outlives a usual tool call between two turns."""
DNS_SECONDS = 300
DRAIN_SECONDS = 1.0
"""For what follows `[DONE]` (nothing but the end of the body), so that the connection can be used again."""
LARGE_BODY = 2**20
"""Bytes; aiohttp writes more than that at once only under protest, since it would hold the loop up."""
ERROR_BYTES = 100_000
"""Read of an answer that is an error; its message stands at the beginning."""


class HttpClient:
    """A `ChatClient`. Safe for any number of concurrent calls on one event loop; `close` it there."""

    def __init__(self, settings: ModelSettings, dialect: Dialect) -> None:
        import aiohttp  # noqa: F401  (takes 0.3 s: here, before any rollout runs, and not on the event loop later)

        self.settings = settings
        self._dialect = dialect
        self._session: aiohttp.ClientSession | None = None
        self._proxy: str | None = None

    async def close(self) -> None:
        """Close every connection; a later call opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def encode(self, request: ChatRequest) -> tuple[bytes, int]:
        """The body, and its length, in which an image counts as `IMAGE_SIZE`."""
        return self._dialect.encode(request)

    async def send(self, encoded: bytes) -> tuple[ChatReply, RateInfo | None]:
        """One request. Raises `ProviderError`."""
        try:
            return await self._request(encoded)
        except ProviderError as error:
            error.args = (self._shown(str(error)),)
            raise

    async def _request(self, body: bytes) -> tuple[ChatReply, RateInfo | None]:
        import aiohttp

        session, dialect = self._session or self._open(), self._dialect
        url = dialect.url
        started, clock = time.time(), time.perf_counter()
        try:
            data = body if len(body) <= LARGE_BODY else io.BytesIO(body)
            # the key with each request and not the session's: aiohttp would give it to a proxy too
            post = session.post(url, data=data, headers=dialect.headers, proxy=self._proxy, allow_redirects=False)
            async with post as response:
                if response.status != 200:
                    raise error_of_status(response.status, response.headers, await read_body(response, ERROR_BYTES), time.time())
                rate = parse_rate(response.headers, started)
                if response.content_type == "text/event-stream":  # also unasked: some proxies always stream
                    answer = dialect.stream()
                    try:
                        await _read_stream(response, self.settings, answer)
                        return answer.reply(started, time.perf_counter() - clock), rate
                    except ProviderError as error:
                        error.begun = answer.begun
                        raise
                body = await read_body(response, MAX_ANSWER, more=BadResponse(TOO_LARGE))
                return dialect.reply(body, started, time.perf_counter() - clock), rate
        except RecursionError as error:
            raise BadResponse(f"The answer of {url} is nested deeper than any that a model gives.") from error
        except aiohttp.ConnectionTimeoutError as error:
            raise ProviderUnreachable(f"No connection to {url} within {CONNECT_SECONDS:g} s.", sent=False) from error
        except TimeoutError as error:
            raise ProviderTimeout(f"No whole answer from {url} within {self.settings.call_timeout:g} s.") from error
        except (aiohttp.ClientPayloadError, aiohttp.ClientResponseError) as error:
            raise BadResponse(f"The answer of {url} was cut short or is no HTTP: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            sent = not isinstance(error, aiohttp.ClientConnectorError)
            raise ProviderUnreachable(f"No connection to {url}: {_reason(error)}", sent=sent) from error

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        settings = self.settings
        headers = {"Content-Type": "application/json", "User-Agent": "kiseki"}
        # Once per session and not through aiohttp's `trust_env`, which looks at the environment and ~/.netrc on every request.
        self._proxy = proxy_for(self._dialect.url)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS, ttl_dns_cache=DNS_SECONDS),
            timeout=aiohttp.ClientTimeout(total=settings.call_timeout, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
        )
        return self._session

    def _shown(self, message: str) -> str:
        """`message` without the key, then cut: in this order, so that no part of a key is left at the cut."""
        if self.settings.api_key:
            message = message.replace(self.settings.api_key, "***")
        return message[:EXCERPT_CHARS]


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for it; None where there is none, and for one's own hosts."""
    parts = urlsplit(url)
    if host_of(url) in (LOCAL, OLLAMA) or proxy_bypass(parts.hostname or ""):
        return None
    return getproxies().get(parts.scheme)


async def read_body(response: aiohttp.ClientResponse, most: int, more: ProviderError | None = None) -> bytes:
    """The body. Of a longer one its first `most` bytes, or `more` is raised where it is given; the rest is not read."""
    parts: list[bytes] = []
    size = 0
    while data := await response.content.readany():
        parts.append(data)
        size += len(data)
        if size > most:
            if more is not None:
                raise more
            break
    return parts[0] if len(parts) == 1 else b"".join(parts)[:most]


async def _read_stream(response: aiohttp.ClientResponse, settings: ModelSettings, reply: StreamedReply) -> None:
    """All of a streamed answer, put into `reply`.

    Raises `StreamStalled` where it began and then nothing came any more, `TimeoutError` where it was only too slow.
    """
    heard = time.perf_counter()
    while True:
        try:
            async with asyncio.timeout(settings.stream_timeout if reply.begun else None):
                data = await response.content.readany()
        except TimeoutError as error:
            if reply.begun and time.perf_counter() - heard >= min(settings.stream_timeout, settings.call_timeout / 2):
                raise StreamStalled(f"{response.url} began an answer and stopped in the middle of it.") from error
            raise
        if not data:
            break
        heard = time.perf_counter()
        reply.feed(data)
        if reply.ended:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await response.read()
            break


def _reason(error: Exception) -> str:
    """Why there is no connection, in the system's words where it is the system that says so."""
    cause = getattr(error, "os_error", error)
    number = getattr(cause, "errno", None) or 0
    return os.strerror(number) if number > 0 else getattr(cause, "strerror", None) or str(error) or type(error).__name__
