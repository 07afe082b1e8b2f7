"""A `Channel` (see base.py) to a program that a supervisor has started: bounded buffers in both directions."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from kiseki.errors import SandboxError
from kiseki.sandboxes.base import KILLED, TORN
from kiseki.sandboxes.programs import Program, Supervisor

HELD_BYTES = 1 << 20
"""Read ahead of whoever reads; then the program is held back."""


class ProgramChannel:
    """One reader at a time; writers may be many."""

    def __init__(self, program: Program, supervisor: Supervisor) -> None:
        self._program = program
        self._supervisor = supervisor
        self._held = bytearray()
        self._news = asyncio.Event()
        self._closing: asyncio.Future[None] | None = None
        self._closed = asyncio.Event()
        program.exited.add_done_callback(self._ended)
        program.follow(self._take)

    async def write(self, data: bytes) -> None:
        program = self._program
        self._check()
        if self._closing or program.exited.done():
            return
        program.write(data)
        if not program.sent.is_set():
            events = [asyncio.ensure_future(event.wait()) for event in (program.sent, self._closed)]
            ends: list[asyncio.Future[Any]] = [*events, program.exited]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in events:
                    each.cancel()
            self._check()

    async def read(self) -> bytes:
        while not self._held:
            if self._closing:
                self._check()
                return b""
            if self._program.exited.done():
                self._program.follow(self._take)  # what it left behind while it was held back
                self._program.unfollow()
                if not self._held:
                    await self._explain(self._program.exited.result())
                    return b""
                break
            self._news.clear()
            await self._news.wait()
        data = bytes(self._held)
        self._held.clear()
        if len(data) >= HELD_BYTES and not self._closing and not self._program.exited.done():
            self._program.follow(self._take)
        return data

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self._closed.set()
        self._news.set()
        self._program.exited.remove_done_callback(self._ended)
        with contextlib.suppress(Exception):  # what is left of it ends with its sandbox
            await self._supervisor.end_program(self._program)

    def _take(self, data: bytes) -> None:
        self._held += data
        self._news.set()
        if len(self._held) >= HELD_BYTES:
            self._program.unfollow()

    def _ended(self, _: object) -> None:
        self._news.set()

    def _check(self) -> None:
        if self._supervisor.dead:
            raise SandboxError(self._supervisor.dead)

    async def _explain(self, status: int) -> None:
        """Raise SandboxError where it was not the program alone that ended."""
        if status in (KILLED, TORN):
            await self._supervisor.check()
        if status == TORN:
            raise SandboxError("the connection to the sandbox broke off in the middle of a program")
