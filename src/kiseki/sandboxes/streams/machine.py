"""What a backend gives whose sandboxes are reached by streams of bytes alone: containers, remote hosts, cloud instances.

A machine runs programs and hands their stdin and stdout through; `remote.py` makes a sandbox of it with no more than `sh` inside.
Nothing here or there touches the host's process table or files, so the machine may be anywhere.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from kiseki.sandboxes.base import TORN as TORN


class Stream(ABC):
    """One program in a machine: bytes in, bytes out. A backend subclasses it, calls `received` and `ended`, and gives the hooks.

    Output is stdout; what the program itself writes to stderr is the backend's to drop (our shells join the two). Data is handed
    on in order, to one follower at a time. While nobody follows, the backend holds the program back (`pause`), or where it
    cannot, what comes is kept here.
    """

    def __init__(self) -> None:
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The exit status, once everything that the program wrote has been handed on."""
        self.sent = asyncio.Event()
        """Set while nothing of what was written waits for room; the backend's to clear and to set."""
        self.sent.set()
        self._take: Callable[[bytes], None] | None = None
        self._held = bytearray()

    # For the follower

    def follow(self, take: Callable[[bytes], None]) -> None:
        """Give `take` what comes from here on, and what was held."""
        self._take = take
        held, self._held = bytes(self._held), bytearray()
        if held:
            take(held)
        if self._take is take:  # else it had enough, and is held back
            self.resume()

    def unfollow(self) -> None:
        self._take = None
        self.pause()

    # For the backend

    def received(self, data: bytes) -> None:
        if self._take:
            self._take(data)
        else:
            self._held += data

    def ended(self, status: int) -> None:
        """The program has ended with this status, or the stream with `TORN`; called after the last `received`."""
        if not self.exited.done():
            self.exited.set_result(status)

    # Hooks: of the backend

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Send to its stdin, in order, without waiting. What a program that is gone would have got is dropped."""

    @abstractmethod
    def pause(self) -> None:
        """Stop reading, so that a program that goes on writing waits."""

    @abstractmethod
    def resume(self) -> None:
        """Read (again)."""

    @abstractmethod
    def close(self) -> None:
        """Let go of our side, at once and for good: nothing is received any more. The program may go on."""


class Machine(Protocol):
    """One sandbox's machine, running. Made by its backend; `remote.py` is its only user."""

    environment: dict[str, str]
    """Exported in every shell that is started in it, on top of what the machine itself sets (an image's ENV, HOME)."""
    folder: str
    """Absolute path of the folder that the first session starts in (an image's working folder); "" for $HOME."""
    mark: str
    """Where processes of others can be seen from inside (a remote host): "NAME=VALUE" of `environment` that only this sandbox's
    processes have. Empty where everything that can be seen is this sandbox's own (a container)."""

    async def open(self, argv: list[str]) -> Stream:
        """Start a program, in any folder. Its output waits until it is followed.

        Raises SandboxError with the backend's own words when it can't be started. A program that isn't there may also be a stream
        that says so and ends.
        """
        ...

    async def why_dead(self) -> str:
        """Why no program can be started any more (out of memory, removed, connection lost); "" while it runs."""
        ...

    async def restart(self) -> bool:
        """End every process and run on with the same files, without starting a process inside: for when none can be had.

        False where the backend has no such thing, or it failed.
        """
        ...

    async def remove(self) -> None:
        """End every process and remove everything of it, waiting until that is done. May raise; may be called twice."""
        ...
