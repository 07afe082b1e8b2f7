"""What the web tools of a run have asked for and got: each request is made once, and kept as the settings say."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from kiseki.errors import SandboxError, ToolError
from kiseki.models.base import NOT_HELD
from kiseki.tools.services import Services
from kiseki.tools.web.recording import MAX_CACHE, MAX_IN_MEMORY, Recording, open_to_read, open_to_write

POLL_SECONDS = 0.1
"""How often is looked whether another process has got what it went for."""
_GO: tuple[bytes | None, bool] = (None, True)
"""Nothing there, and nobody else on its way."""

T = TypeVar("T")
Mode = Literal["live", "record", "replay"]


class Made(msgspec.Struct, frozen=True):
    """What a request led to."""

    response: bytes
    failed: bool = False
    """May be otherwise the next time: only a recording keeps it, so that a replay gives what the run got."""


Make = Callable[[Callable[[], None]], Awaitable[Made]]
"""Makes a request. It calls what it is given as soon as its turn has come: until then its callers are on hold."""


class _Job:
    """A request that is under way."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.task: asyncio.Task[bytes] | None = None


class Store:
    """A worker's part of it. `live`: kept for the run; `record`: kept in a file for good; `replay`: read from such a file."""

    def __init__(self, services: Services) -> None:
        settings = services.settings
        self.mode: Mode = "replay" if settings.web_replay else "record" if settings.web_record else "live"
        self._file = settings.web_replay or settings.web_record or settings.web_cache
        self._recording: Recording | None = None
        self._thread = ThreadPoolExecutor(1, "kiseki-web-store")
        self._jobs: dict[tuple[str, str], _Job] = {}

    async def get(self, kind: str, request: str) -> bytes | None:
        """What is kept for it. Raises `SandboxError` where a recording cannot be read."""
        return await self._do(lambda recording: recording.get(kind, request), None)

    async def put(self, kind: str, request: str, response: bytes) -> None:
        """Keep it, unless something is; in a replay nothing is written. Raises `SandboxError` where a recording cannot be."""
        if self.mode != "replay":
            await self._do(lambda recording: recording.put(kind, request, response), None)

    async def once(
        self, kind: str, request: str, make: Make, on_hold: AbstractContextManager[Any] = NOT_HELD, *, what: str = ""
    ) -> bytes:
        """The response that is kept for `request`, or else what `make` gives: for all that ask for it meanwhile, in this process
        and in others. It goes on when its callers are cancelled. `what`: the request in words.

        Raises what `make` does, `ToolError` for what is not in a replayed recording, and `SandboxError`.
        """
        key = kind, request
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _Job()
            job.task = asyncio.create_task(self._answer(key, make, job.begun.set, what or request))
            job.task.add_done_callback(lambda task: self._end(key, task))
        assert job.task is not None
        if not job.begun.is_set():
            with on_hold:
                await job.begun.wait()
        return await asyncio.shield(job.task)

    async def close(self) -> None:
        for job in list(self._jobs.values()):
            if job.task is not None:
                job.task.cancel()
        if self._jobs:
            await asyncio.wait([job.task for job in self._jobs.values() if job.task is not None])
        if self._recording is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._recording.close)
        self._thread.shutdown(wait=False)

    def _end(self, key: tuple[str, str], task: asyncio.Task[bytes]) -> None:
        job = self._jobs.pop(key)
        job.begun.set()
        if not task.cancelled():
            task.exception()  # is known to whoever waits; to nobody else it's news

    async def _answer(self, key: tuple[str, str], make: Make, begun: Callable[[], None], what: str) -> bytes:
        kept = await self.get(*key)
        if kept is not None:
            return kept
        if self.mode == "replay":
            raise ToolError(f"{what} is not in the recording {Path(self._file).name}")
        while True:
            kept, ours = await self._do(lambda recording: recording.claim(*key), _GO)
            if kept is not None:
                return kept
            if ours:
                break
            await asyncio.sleep(POLL_SECONDS)
        try:
            made = await make(begun)
            if self.mode == "record" or not made.failed:
                await self.put(*key, made.response)
        finally:
            await self._do(lambda recording: recording.release(*key), None)
        return made.response

    async def _do(self, use: Callable[[Recording], T], otherwise: T) -> T:
        """Use the file, in its thread. A cache that is broken or full costs requests, no rollout: then `otherwise`."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._in_thread, use)
        except sqlite3.Error as error:
            if self.mode == "live":
                return otherwise
            raise SandboxError(f"the recording {self._file}: {error}") from error

    def _in_thread(self, use: Callable[[Recording], T]) -> T:
        if self._recording is None:
            if self.mode == "replay":
                self._recording = open_to_read(self._file)
            else:
                limit = None if self.mode == "record" else MAX_CACHE if self._file else MAX_IN_MEMORY
                self._recording = open_to_write(self._file, max_bytes=limit)
        return use(self._recording)
