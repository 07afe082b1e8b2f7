"""A program in a container as a `Stream` (see machine.py): one hijacked connection of the engine's API, on the event loop.

The engine sends stdout and stderr as frames of an eight-byte header (stream, three zeros, length in big-endian) and data, and
takes stdin as it is. TLS needs no threads either: what OpenSSL holds decrypted is taken at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from kiseki.sandboxes.pipes import READ_SIZE
from kiseki.sandboxes.streams.machine import TORN, Stream

HELD_LIMIT = 65_536
"""Bytes read ahead while nobody follows, so that the end of a quiet program is noticed; as much as a pipe holds."""
KEEPALIVE_SECONDS = 60
"""Of silence before a connection is probed: routers forget idle ones after five minutes and more."""
_HEADER = 8
_STDOUT = 1
_LAST_STREAM = 3  # Newer engines have one for their own errors.


class BrokenFrames(Exception):
    """What came is not the engine's framing."""


class Frames:
    """Takes the frames apart, however the reads cut them; keeps stdout."""

    def __init__(self) -> None:
        self._header = b""
        self._kind = 0
        self._left = 0

    def feed(self, data: bytes) -> bytes:
        """What of it is stdout. Raises BrokenFrames."""
        kept: list[bytes] = []
        at, end = 0, len(data)
        while at < end:
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._left -= len(piece)
                if self._kind == _STDOUT:
                    kept.append(piece)
                continue
            piece = data[at : at + _HEADER - len(self._header)]
            at += len(piece)
            self._header += piece
            if len(self._header) == _HEADER:
                self._kind, zeros, self._left = struct.unpack(">B3sL", self._header)
                if self._kind > _LAST_STREAM or any(zeros):
                    raise BrokenFrames
                self._header = b""
        return kept[0] if len(kept) == 1 else b"".join(kept)


class Connection:
    """A hijacked connection, taken out of docker-py's hands."""

    def __init__(self, wrapper: Any) -> None:
        """`wrapper`: what `exec_start(socket=True)` gave."""
        self._kept = wrapper  # With the response that hangs on it: the socket is closed when that is collected.
        self.socket: socket.socket = getattr(wrapper, "_sock", wrapper)
        self.socket.setblocking(False)
        if self.socket.family != socket.AF_UNIX:  # What is idle while a model thinks must not be forgotten on the way.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
        self.early = b""
        """What the HTTP client read past the headers."""
        with contextlib.suppress(ssl.SSLWantReadError):  # Non-blocking, this reads no more than what is there.
            self.early = wrapper._response.raw._fp.fp.peek()

    def close(self) -> None:
        self._kept._response.close()
        self.socket.close()


class EngineStream(Stream):
    def __init__(self, connection: Connection, ask_status: Callable[[], Awaitable[int]]) -> None:
        """`ask_status`: the exit status, once the output has ended."""
        super().__init__()
        self._connection = connection
        self._socket = connection.socket
        self._frames = Frames()
        self._ask_status = ask_status
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()
        self._reading = False
        self._open = True
        self._asking: asyncio.Task[None] | None = None
        if connection.early:
            self._arrived(connection.early)
        self.resume()

    def write(self, data: bytes) -> None:
        if not self._open or self._asking:
            return
        waiting = bool(self._unsent)
        self._unsent += data
        if not waiting:
            self._send()
            if self._unsent:
                self.sent.clear()
                self._loop.add_writer(self._socket, self._continue)

    def pause(self) -> None:
        if len(self._held) >= HELD_LIMIT:
            self._stop_reading()

    def resume(self) -> None:
        if self._open and not self._reading and not self._asking:
            self._reading = True
            self._loop.add_reader(self._socket, self._read)

    def close(self) -> None:
        if self._open:
            self._open = False
            if not self._loop.is_closed():
                self._stop_reading()
                self._loop.remove_writer(self._socket)
            self._unsent.clear()
            self.sent.set()
            self._connection.close()
            self.ended(TORN)

    def _read(self) -> None:
        try:
            data = self._socket.recv(READ_SIZE)
            if isinstance(self._socket, ssl.SSLSocket):
                while pending := self._socket.pending():
                    data += self._socket.recv(pending)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            data = b""
        if data:
            self._arrived(data)
        else:
            self._finish(torn=False)

    def _arrived(self, data: bytes) -> None:
        try:
            output = self._frames.feed(data)
        except BrokenFrames:
            self._finish(torn=True)
            return
        if output:
            self.received(output)
            if not self._take:
                self.pause()

    def _finish(self, *, torn: bool) -> None:
        """No more output will come."""
        self._stop_reading()
        if torn:
            self.ended(TORN)
        elif not self._asking:
            self._asking = self._loop.create_task(self._end())

    async def _end(self) -> None:
        try:
            self.ended(await self._ask_status())
        finally:
            self.ended(TORN)

    def _send(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError:  # That the program is gone is told elsewhere.
            self._unsent.clear()

    def _continue(self) -> None:
        self._send()
        if not self._unsent:
            self.sent.set()
            self._loop.remove_writer(self._socket)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._socket)
