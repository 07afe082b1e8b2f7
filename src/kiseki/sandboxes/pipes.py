"""Bytes through pipes on the event loop: writing all of it, reading with bounded memory, finding an end marker and noise.

Plain descriptors with `add_reader`, since a sandbox has several and asyncio's streams and child watchers cost more than the
commands that run. Whoever makes one of these objects closes the descriptor.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import re
import termios

READ_SIZE = 65_536
"""A pipe's default capacity: one read empties it."""


class Writer:
    """Writes to a non-blocking descriptor in the background, in order. A reader that is gone swallows the rest."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.sent = asyncio.Event()
        """Set while nothing of what was written waits for room."""
        self.sent.set()
        self._left = memoryview(b"")
        self._close_after = False
        self._loop = asyncio.get_running_loop()

    def write(self, data: bytes) -> None:
        if self._left:
            self._left = memoryview(bytes(self._left) + data)
            return
        self._left = memoryview(data)
        self._push()
        if self._left:
            self.sent.clear()
            self._loop.add_writer(self.descriptor, self._continue)

    def finish(self) -> None:
        """Close the descriptor once everything is written."""
        self._close_after = True
        if not self._left:
            self.close()

    def close(self) -> None:
        if self.descriptor >= 0:
            self._stop_waiting()
            os.close(self.descriptor)
            self.descriptor = -1

    def _push(self) -> None:
        try:
            while self._left:
                self._left = self._left[os.write(self.descriptor, self._left) :]
        except BlockingIOError:
            pass
        except OSError:  # EPIPE: that the reader is gone is told elsewhere.
            self._left = memoryview(b"")

    def _continue(self) -> None:
        self._push()
        if not self._left:
            self._stop_waiting()
            if self._close_after:
                self.close()

    def _stop_waiting(self) -> None:
        if not self._loop.is_closed():
            self._loop.remove_writer(self.descriptor)
        self._left = memoryview(b"")
        self.sent.set()


def read_some(descriptor: int) -> bytes | None:
    """What is there now: None when nothing is, empty at the end."""
    try:
        return os.read(descriptor, READ_SIZE)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def waiting_bytes(descriptor: int) -> int:
    """How many bytes lie in the pipe."""
    count = array.array("i", [0])
    try:
        fcntl.ioctl(descriptor, termios.FIONREAD, count)
    except OSError:
        return 0
    return count[0]


class Kept:
    """Output in bounded memory: all of it up to `limit`, else its first and last half."""

    def __init__(self, limit: int) -> None:
        self.limit = max(limit, 2)
        self.total = 0
        self._half = self.limit // 2
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        self.total += len(data)
        room = self.limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data[-self._half :]
            if len(self._tail) > 2 * self._half + READ_SIZE:
                del self._tail[: -self._half]

    def data(self) -> bytes:
        if self.total <= self.limit:
            return bytes(self._head)
        tail = (self._head[self._half :] + self._tail)[-self._half :]
        return bytes(self._head[: self._half] + tail)


class LineDrop:
    """Takes lines out of a stream, however the reads cut them: those from `start` on that match `pattern`, line break and all."""

    def __init__(self, start: bytes, pattern: re.Pattern[bytes], longest: int) -> None:
        """`longest`: most bytes of such a line. The first byte of `start` occurs in it only once."""
        self._start = start
        self._pattern = pattern
        self._longest = longest
        self._carry = b""

    def feed(self, data: bytes) -> bytes:
        """What surely stays."""
        data = self._carry + data
        if self._start in data:
            data = self._pattern.sub(b"", data)
        at = data.rfind(self._start, max(0, len(data) - self._longest))
        whole = at >= 0 and b"\n" in data[at:]
        hold = len(data) - at if at >= 0 and not whole else _torn(data, self._start)
        self._carry = data[len(data) - hold :]
        return data[: len(data) - hold]

    def held(self) -> bytes:
        """What was held back as a possible start of such a line, when no more will come."""
        held, self._carry = self._carry, b""
        return held


class MarkerSearch:
    """Splits a stream at the first `marker`, however the reads cut it, and takes what follows up to a NUL as its note."""

    NOTE_LIMIT = 20_000
    """More than status and folder can be: the writer limits the folder to 4,096 characters of at most 4 bytes."""

    def __init__(self, marker: bytes) -> None:
        self.marker = marker
        self.note: bytes | None = None
        """Set once the whole note is there."""
        self.rest = b""
        """What came after it."""
        self._carry = b""
        self._found = False

    def feed(self, data: bytes) -> bytes:
        """The part of the stream that surely lies before the marker."""
        data = self._carry + data
        before = b""
        if not self._found:
            at = data.find(self.marker)
            if at < 0:
                hold = _torn(data, self.marker)
                self._carry = data[len(data) - hold :]
                return data[: len(data) - hold]
            self._found = True
            before, data = data[:at], data[at + len(self.marker) :]
        end = data.find(b"\0")
        if end >= 0 or len(data) > self.NOTE_LIMIT:
            end = end if end >= 0 else self.NOTE_LIMIT
            self.note, self.rest, self._carry = data[:end], data[end + 1 :], b""
        else:
            self._carry = data
        return before

    def held(self) -> bytes:
        """What was held back as a possible start of the marker, when no more will come."""
        return b"" if self._found else self._carry


def _torn(data: bytes, marker: bytes) -> int:
    """Length of the end of `data` that begins `marker`, whose first byte occurs in it only once."""
    at = data.rfind(marker[:1], max(0, len(data) - len(marker) + 1))
    return len(data) - at if at >= 0 and marker.startswith(data[at:]) else 0
