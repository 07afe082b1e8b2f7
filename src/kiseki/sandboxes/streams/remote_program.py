"""A program that is spoken to, on a stream of its own, in a machine (see machine.py)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from kiseki.sandboxes.base import KILLED, TORN
from kiseki.sandboxes.pipes import MarkerSearch
from kiseki.sandboxes.streams.hunt import RUN_COOKIE
from kiseki.sandboxes.streams.machine import Stream


class RemoteProgram:
    """A `Program` (see programs.py). A marker in the output tells its end, as of a job: the stream's own may come late, where
    something in the background holds it open, or too early for the last of the output (see `script`)."""

    stream: Stream
    """Set once there is one."""

    def __init__(self, script: str) -> None:
        nonce = secrets.token_hex(8)
        self.token = f"{RUN_COOKIE}={secrets.token_hex(8)}"
        """In the environment of all that it starts."""
        # It waits for a line: what came right behind the shell's greeting would be lost. It reads on: Podman drops the last
        # of the output when a program ends before its input.
        program = f"( export {self.token}\n{script}\n)"
        self.script = f"read -r kiseki || exit\n{program}\nprintf '\\036{nonce}\\000'\nexec cat >/dev/null"
        """What the stream's shell runs, once it has a line."""
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._search = MarkerSearch(b"\x1e" + nonce.encode())
        self._take: Callable[[bytes], None] | None = None

    @property
    def sent(self) -> asyncio.Event:
        return self.stream.sent

    def write(self, data: bytes) -> None:
        self.stream.write(data)

    def follow(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self.stream.exited.add_done_callback(self._stream_ended)
        self.stream.follow(self._received)

    def unfollow(self) -> None:
        self._take = None
        self.stream.exited.remove_done_callback(self._stream_ended)
        self.stream.unfollow()

    def end(self, status: int) -> None:
        if not self.exited.done():
            self.exited.set_result(status)

    def _received(self, data: bytes) -> None:
        take = self._take
        data = self._search.feed(data)
        if data and take:
            take(data)
        if self._search.note is not None:
            self.end(0)  # Whatever its own status, its sandbox lives.

    def _stream_ended(self, stream: asyncio.Future[int]) -> None:
        self.end(TORN if stream.result() == TORN else KILLED)
