"""What is said to a shell that reads from a stream: a question, or a job, whose output ends at a marker with its status."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any

from kiseki.sandboxes.pipes import MarkerSearch
from kiseki.sandboxes.streams.machine import Stream

ANSWER_LIMIT = 500
"""Characters of what a shell said in the place of an answer."""


class NoAnswerError(Exception):
    """A shell that didn't start, or is none; with its words."""


async def ask(stream: Stream, line: str, timeout: float, given_up: asyncio.Future[None]) -> str:
    """Send a line whose `@nonce@` makes the shell answer with a note.

    Raises NoAnswerError with what it said instead, when it ends, within `timeout` seconds or when `given_up` is done.
    """
    nonce = secrets.token_hex(8)
    search, before = MarkerSearch(b"\x1e" + nonce.encode()), bytearray()
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(data: bytes) -> None:
        before.extend(search.feed(data)[: ANSWER_LIMIT - len(before)])
        if search.note is not None and not over.done():
            stream.unfollow()
            over.set_result(None)

    stream.follow(take)
    stream.write(line.replace("@nonce@", nonce).encode() + b"\n")
    ends: list[asyncio.Future[Any]] = [over, stream.exited, given_up]
    try:
        await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stream.unfollow()
    if search.note is None:
        words = " ".join((bytes(before) + search.held()).decode(errors="replace").split())
        raise NoAnswerError(words[:ANSWER_LIMIT] or "it ended at once or does not answer")
    return search.note.decode(errors="surrogateescape")


class Job:
    """One script in a runner: its text, its output up to the marker, its status."""

    def __init__(self, script: str, max_output: int) -> None:
        nonce = secrets.token_hex(8)
        self.script = script
        self.mark = f"printf '\\036{nonce}%s\\000' \"$?\""
        self.status: int | None = None
        self.output = bytearray()
        self.begun = False
        """Its shell has read it. Of a job by `text`."""
        self.full = False
        """There was more than `max_output`: it is not waited for."""
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._max_output = max_output
        self._search = MarkerSearch(b"\x1e" + nonce.encode())
        self._begin: MarkerSearch | None = None
        self._stream: Stream | None = None

    def text(self, stdin: bytes) -> bytes:
        """The script, with its input."""
        source, target = (f"{printing(stdin)} | ", "") if stdin else ("", " </dev/null")
        nonce = secrets.token_hex(8)
        self._begin = MarkerSearch(b"\x1e" + nonce.encode())
        return f"printf '\\036{nonce}\\000'\n{source}{{\n{self.script}\n}}{target}\n{self.mark}\n".encode(
            errors="surrogateescape"
        )

    def follow(self, stream: Stream) -> None:
        self._stream = stream
        stream.exited.add_done_callback(self._end)
        stream.follow(self._take)

    def unfollow(self) -> None:
        if self._stream:
            self._stream.unfollow()
            self._stream.exited.remove_done_callback(self._end)
            self._stream = None

    def _take(self, data: bytes) -> None:
        if self._begin and not self.begun:
            data = self._begin.feed(data) + self._begin.rest
            self.begun = self._begin.note is not None
        room = self._max_output - len(self.output)
        data = self._search.feed(data)
        self.output += data[:room]
        self.full = self.full or len(data) > room
        if self._search.note is not None:
            self.status = int(self._search.note) if self._search.note.isdigit() else 0
        if self.full or self.status is not None:
            self.unfollow()
            self._end()

    def _end(self, _: object = None) -> None:
        if not self.over.done():
            self.over.set_result(None)


def printing(data: bytes) -> str:
    """A shell command that writes these bytes. Every `printf` knows octal escapes."""
    safe = b'abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 \t\n!"#$&()*+,-./:;<=>?@[]^_`{|}~'
    text = "".join(chr(byte) if byte in safe else f"\\{byte:03o}" for byte in data)
    return f"printf '{text}'" if not text.startswith("-") else f"printf '\\055{text[1:]}'"
