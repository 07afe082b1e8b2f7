"""The browser's only way out: a forward proxy on loopback that looks at every host before it connects.

Chromium resolves no name and opens no connection itself; here each name is resolved, its addresses are checked, and the very
address that was checked is connected to, so that neither redirects nor a name server that changes its mind lead around it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from kiseki.errors import ToolError

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Host and port → the addresses that may be connected to. Raises `ToolError`."""

REFUSED = "x-kiseki-proxy"
"""Header of the answers that are the proxy's own."""
HEAD_BYTES = 64 * 1024
"""Of a request or response head; servers allow 8 to 32 kB."""
HEAD_SECONDS = 30.0
CONNECT_SECONDS = 10.0
MAX_BYTES = 200_000_000
"""Of one connection in each direction. More than any page needs; it bounds what a download can fill the disk with."""
CHALLENGE = 'Proxy-Authenticate: Basic realm="kiseki"'
MAX_FAILURES = 1_000
"""Hosts of which the last failure is kept."""
_CHUNK = 64 * 1024
_OWN_HEADERS = {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization"}
"""Headers that are meant for one connection."""


class Proxy:
    """Made by `await Proxy.start(resolve)`; belongs to its event loop."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve = resolve
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""
        self.username = "kiseki"
        self.password = secrets.token_urlsafe(24)
        """Other processes of the machine can reach the port, and not use it."""
        self.failures: dict[str, str] = {}
        """host:port → why the last try to connect there came to nothing."""

    @classmethod
    async def start(cls, resolve: Resolve) -> Proxy:
        proxy = cls(resolve)
        proxy._server = await asyncio.start_server(proxy._accept, "127.0.0.1", 0, limit=HEAD_BYTES)
        proxy.url = f"http://127.0.0.1:{proxy._server.sockets[0].getsockname()[1]}"
        return proxy

    def why(self, url: str) -> str:
        """Why the last try to connect to the host of this address came to nothing; "" where nothing is known."""
        parts = urlsplit(url)
        return self.failures.get(f"{parts.hostname}:{parts.port or (443 if parts.scheme in ('https', 'wss') else 80)}", "")

    async def close(self) -> None:
        if self._server:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, EOFError, TimeoutError, ValueError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # whatever is wrong with one connection ends it
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_SECONDS):
            line, headers = await _read_head(reader)
        if not self._is_ours(headers):
            return await _answer(writer, "407 Proxy Authentication Required", "this proxy is not for you", CHALLENGE)
        method, _, rest = line.decode("latin-1").partition(" ")
        target, _, version = rest.rpartition(" ")
        tunnel = method == "CONNECT"
        address = urlsplit(f"//{target}" if tunnel else target)
        if not address.hostname or not version.startswith("HTTP/1.") or not (tunnel or address.scheme == "http"):
            return await _answer(writer, "400 Bad Request", "this is no proxy request")
        host, port = address.hostname, address.port or 80
        try:
            upstream = await self._connect(host, port)
        except ToolError as error:
            return await _answer(writer, "403 Forbidden", self._failed(host, port, str(error)))
        except (OSError, TimeoutError) as error:
            why = getattr(error, "strerror", None) or "it does not answer"
            return await _answer(writer, "502 Bad Gateway", self._failed(host, port, f"cannot connect to {host}:{port}: {why}"))
        self.failures.pop(f"{host}:{port}", None)
        try:
            if tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                to_client = _copy(upstream[0], writer)
            else:
                path = (address.path or "/") + (f"?{address.query}" if address.query else "")
                upstream[1].write(_head(f"{method} {path} HTTP/1.1".encode("latin-1"), headers))
                to_client = _copy_response(upstream[0], writer)
            await _both(_copy(reader, upstream[1]), to_client)
        finally:
            upstream[1].close()

    def _is_ours(self, headers: list[tuple[bytes, bytes]]) -> bool:
        wanted = b"Basic " + base64.b64encode(f"{self.username}:{self.password}".encode())
        given = next((value for name, value in headers if name.lower() == b"proxy-authorization"), b"")
        return hmac.compare_digest(given, wanted)

    async def _connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        problem: OSError | TimeoutError = TimeoutError()
        async with asyncio.timeout(CONNECT_SECONDS):
            for address in await self._resolve(host, port):
                try:
                    return await asyncio.open_connection(address, port, limit=HEAD_BYTES)
                except OSError as error:
                    problem = error
        raise problem

    def _failed(self, host: str, port: int, why: str) -> str:
        self.failures.pop(f"{host}:{port}", None)
        self.failures[f"{host}:{port}"] = why
        if len(self.failures) > MAX_FAILURES:
            del self.failures[next(iter(self.failures))]
        return why


async def _read_head(reader: asyncio.StreamReader) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """First line and headers, in order."""
    head = await reader.readuntil(b"\r\n\r\n")
    line, *rest = head[:-4].split(b"\r\n")
    pairs = (each.partition(b":") for each in rest)
    return line, [(name, value.strip()) for name, _, value in pairs]


def _head(line: bytes, headers: list[tuple[bytes, bytes]]) -> bytes:
    """A head after which the connection ends: the next request on it might be for another host."""
    kept = [name + b": " + value for name, value in headers if name.lower() not in _OWN_HEADERS]
    return b"\r\n".join([line, *kept, b"Connection: close", b"", b""])


async def _answer(writer: asyncio.StreamWriter, status: str, text: str, *headers: str) -> None:
    body = text.encode()
    size = f"Content-Length: {len(body)}"
    head = (f"HTTP/1.1 {status}", f"{REFUSED}: 1", "Content-Type: text/plain; charset=utf-8", size, *headers, "Connection: close")
    writer.write("\r\n".join((*head, "", "")).encode("latin-1") + body)
    await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    left = MAX_BYTES
    while left > 0 and (data := await reader.read(_CHUNK)):
        left -= len(data)
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        if left > 0 and writer.can_write_eof():
            writer.write_eof()


async def _copy_response(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        line, headers = await _read_head(reader)
        if not line.startswith(b"HTTP/1."):
            return
        writer.write(_head(line, headers))
        if line[9:10] != b"1":  # after an interim response comes another
            await _copy(reader, writer)
            return


async def _both(sends: Awaitable[None], receives: Awaitable[None]) -> None:
    """Until the other side has said all; a client that has said all still listens."""
    sending, receiving = asyncio.ensure_future(sends), asyncio.ensure_future(receives)
    try:
        await receiving
    finally:
        for each in (sending, receiving):
            each.cancel()
        await asyncio.gather(sending, receiving, return_exceptions=True)
