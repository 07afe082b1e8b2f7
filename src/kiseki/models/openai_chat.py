"""The client of OpenAI-compatible chat endpoints: one `ChatRequest` in, one `ChatReply` or one `ProviderError` out.

Owns the connections; owns no retries and no admission (`asking.py`), no prices, no conversation. `encode` and `send` are the hot
path: beyond what aiohttp costs they encode, decode and copy as little as they can.
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
from kiseki.models.base import ChatReply, ChatRequest, RateInfo, ToolSchema
from kiseki.models.endpoints import LOCAL, OLLAMA, ModelSettings, check_settings, host_of, request_extras
from kiseki.models.failures import error_inside, error_of_status
from kiseki.models.rate_headers import parse_rate
from kiseki.models.stream import StreamedReply
from kiseki.models.wire import (
    EXCERPT_CHARS,
    IMAGE_SIZE,
    MAX_ANSWER,
    TOO_LARGE,
    WireCompletion,
    decode_completion,
    encode,
    encode_tools,
    reply_of,
    wire_message,
    wire_with_images,
)

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
TOOLSETS_KEPT = 64
"""Encoded tool lists kept; a run has a handful of toolset combinations."""


class OpenAIChat:
    """A `ChatClient`. Safe for any number of concurrent calls on one event loop; `close` it there."""

    def __init__(self, settings: ModelSettings) -> None:
        """Raises UsageError for settings that cannot be used."""
        import aiohttp  # noqa: F401  (takes 0.3 s: here, before any rollout runs, and not on the event loop later)

        check_settings(settings)
        self.settings = settings
        self._host = host_of(settings.base_url)
        self._url = settings.base_url.rstrip("/") + "/chat/completions"
        self._head = encode({"model": settings.model, **request_extras(settings)})[:-1] + b',"messages":'
        self._tools: dict[int, tuple[tuple[ToolSchema, ...], bytes]] = {}
        # with each request and not the session's: aiohttp would give it to a proxy too
        self._key = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
        self._session: aiohttp.ClientSession | None = None
        self._proxy: str | None = None

    async def close(self) -> None:
        """Close every connection; a later call opens new ones."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def encode(self, request: ChatRequest) -> tuple[bytes, int]:
        """The body, and its length, in which an image counts as `IMAGE_SIZE`."""
        host, encoded, images = self._host, request.encoded, request.images
        messages = request.messages[:-1] if images else request.messages
        for message in messages[len(encoded) // 2 :]:  # each with what stands before it
            encoded += (b"," if encoded else b"[", encode(wire_message(message, host)))
        if images:  # asked once: nothing grows on it, and nothing of it is kept
            encoded = [*encoded, b"," if encoded else b"[", encode(wire_with_images(request.messages[-1], host, images))]
        parts = [self._head, *encoded, b"]"]
        if request.tools:
            parts += (b',"tools":', self._encoded_tools(request.tools))
        if request.seed is not None and host.seed:
            parts.append(f',"{host.seed}":{request.seed}'.encode())
        parts.append(b"}")
        body = b"".join(parts)
        return body, len(body) - sum(map(len, images)) + IMAGE_SIZE * len(images)

    def _encoded_tools(self, tools: tuple[ToolSchema, ...]) -> bytes:
        """By identity: the same tuple is sent on every turn of many rollouts. The entry keeps it alive, so ids stay unique."""
        known = self._tools.get(id(tools))
        if known is None:
            if len(self._tools) >= TOOLSETS_KEPT:
                self._tools.clear()
            known = self._tools[id(tools)] = (tools, encode_tools(tools))
        return known[1]

    async def send(self, encoded: bytes) -> tuple[ChatReply, RateInfo | None]:
        """One request. Raises `ProviderError`."""
        try:
            return await self._request(encoded)
        except ProviderError as error:
            error.args = (self._shown(str(error)),)
            raise

    async def _request(self, body: bytes) -> tuple[ChatReply, RateInfo | None]:
        import aiohttp

        session = self._session or self._open()
        started, clock = time.time(), time.perf_counter()
        try:
            data = body if len(body) <= LARGE_BODY else io.BytesIO(body)
            post = session.post(self._url, data=data, headers=self._key, proxy=self._proxy, allow_redirects=False)
            async with post as response:
                if response.status != 200:
                    raise error_of_status(response.status, response.headers, await read_body(response, ERROR_BYTES), time.time())
                rate = parse_rate(response.headers, started)
                if response.content_type == "text/event-stream":  # also unasked: some proxies always stream
                    answer = await _read_stream(response, self.settings)
                else:
                    answer = decode_completion(await read_body(response, MAX_ANSWER, more=BadResponse(TOO_LARGE)))
        except aiohttp.ConnectionTimeoutError as error:
            raise ProviderUnreachable(f"No connection to {self._url} within {CONNECT_SECONDS:g} s.", sent=False) from error
        except TimeoutError as error:
            raise ProviderTimeout(f"No whole answer from {self._url} within {self.settings.call_timeout:g} s.") from error
        except (aiohttp.ClientPayloadError, aiohttp.ClientResponseError) as error:
            raise BadResponse(f"The answer of {self._url} was cut short or is no HTTP: {error}") from error
        except (aiohttp.ClientError, OSError) as error:
            sent = not isinstance(error, aiohttp.ClientConnectorError)
            raise ProviderUnreachable(f"No connection to {self._url}: {_reason(error)}", sent=sent) from error
        if (inside := error_inside(answer)) is not None:
            raise inside
        seconds = time.perf_counter() - clock
        return reply_of(answer, started=started, seconds=seconds, capture_tokens=self.settings.capture_tokens), rate

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        settings = self.settings
        headers = {"Content-Type": "application/json", "User-Agent": "kiseki"}
        # Once per session and not through aiohttp's `trust_env`, which looks at the environment and ~/.netrc on every request.
        self._proxy = proxy_for(self._url)
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


async def _read_stream(response: aiohttp.ClientResponse, settings: ModelSettings) -> WireCompletion:
    """The whole answer of a streamed one, or the chunk that says what went wrong.

    Raises `StreamStalled` where it began and then nothing came any more, `TimeoutError` where it was only too slow.
    """
    reply = StreamedReply()
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
    return reply.result()


def _reason(error: Exception) -> str:
    """Why there is no connection, in the system's words where it is the system that says so."""
    cause = getattr(error, "os_error", error)
    number = getattr(cause, "errno", None) or 0
    return os.strerror(number) if number > 0 else getattr(cause, "strerror", None) or str(error) or type(error).__name__
