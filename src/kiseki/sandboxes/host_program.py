"""A program in a sandbox of this machine, as `supervisor.py` starts it: our ends of two FIFOs, and how it ended."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from kiseki.sandboxes.base import KILLED
from kiseki.sandboxes.pipes import Writer, read_some, waiting_bytes
from kiseki.sandboxes.programs import Program

EOF_GRACE = 0.2
"""Seconds between the end of a program's output and word of its exit, after which its reporter must have been killed."""


class HostProgram:
    """One program in the sandbox: our ends of its stdin and stdout, and its exit status when it comes."""

    def __init__(self, number: int, stdin: int | None, stdout: int, cookie: str) -> None:
        self.number = number
        self.stdin = None if stdin is None else Writer(stdin)
        self.stdout = stdout
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.cookie = cookie
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the program's side of stdin is open: closing ours earlier would lose what was written."""
        self.inner_pid = 0
        """Of its reporter, inside the sandbox; 0 until the supervisor has told it."""
        self.host_pid = 0
        """Of its reporter, outside; looked up when it is needed."""
        self.shell_pid = 0
        """Of the program that the reporter waits for, outside; looked up for a session shell only."""
        self.killed = False
        self.ending: set[int] = set()
        """What was killed with it, outside; some may not be gone yet."""
        self._take: Callable[[bytes], None] | None = None

    @property
    def sent(self) -> asyncio.Event:
        assert self.stdin
        return self.stdin.sent

    def write(self, data: bytes) -> None:
        assert self.stdin
        self.stdin.write(data)

    def follow(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        if self.exited.done():
            self._drain()
            self._take = None
        else:
            self.exited.get_loop().add_reader(self.stdout, self._on_output)

    def unfollow(self) -> None:
        if self._take:
            self._take = None
            if self.stdout >= 0:  # Not closed with its sandbox.
                self.exited.get_loop().remove_reader(self.stdout)

    def give_input(self, data: bytes) -> None:
        """All of its stdin."""
        writer = self.stdin
        assert writer
        writer.write(data)
        self.opened.add_done_callback(lambda _: writer.finish())

    def end(self, status: int) -> None:
        if not self.exited.done():
            self._drain()
            self.exited.set_result(status)

    def _drain(self) -> None:
        """Hand on what the program left in the pipe, but not what its background processes still add."""
        left = waiting_bytes(self.stdout) if self._take and self.stdout >= 0 else 0
        while left > 0 and self._take and (data := read_some(self.stdout)):
            left -= len(data)
            self._take(data)

    def _on_output(self) -> None:
        data = read_some(self.stdout)
        if data:
            assert self._take
            self._take(data)
        elif data is not None:
            self.unfollow()
            self.exited.get_loop().call_later(EOF_GRACE, self.end, KILLED)

    def release(self) -> None:
        """Close our side."""
        self._take = None
        if self.stdin:
            self.stdin.close()
        if self.stdout >= 0:
            loop = self.exited.get_loop()
            if not loop.is_closed():  # Whoever still follows it must not find another file under this number.
                loop.remove_reader(self.stdout)
            os.close(self.stdout)
            self.stdout = -1


def own(program: Program) -> HostProgram:
    """A program of a `HostSupervisor`."""
    assert isinstance(program, HostProgram)
    return program
