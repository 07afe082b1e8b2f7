"""Engines run specs and give attempts back: in this process, or in worker processes.

Both take specs from an async iterator only as fast as they can run them, so memory does not depend on the dataset, and give
each spec back exactly once: as an `Attempt`, or as `Lost` when the worker that ran it is gone. The iterator ends only when
the caller has everything back that it wanted, so an engine ends with it.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from kiseki.agent.rollout import RolloutSettings
from kiseki.batch import frames
from kiseki.batch.worker import Worker
from kiseki.errors import KisekiError
from kiseki.ledger.types import Attempt
from kiseki.sandboxes.factory import reap
from kiseki.trajectory.types import RolloutSpec

MAX_RESTARTS = 5
"""Workers that may die in a row, none of them having finished anything, before the run gives up."""
STOP_SECONDS = 10.0
"""What a worker gets to close its sandboxes before it is killed."""


class Lost(msgspec.Struct, frozen=True):
    """The worker died with this rollout in it."""

    key: str


Result = Attempt | Lost


class Engine(Protocol):
    def run(self, specs: AsyncIterator[RolloutSpec]) -> AsyncIterator[Result]:
        """Results as they come, until `specs` is at its end."""
        ...

    def kill(self) -> None:
        """Make `close` quick: no worker gets time for anything."""
        ...

    async def close(self) -> None:
        """End whatever runs; what was not given back yet never will be."""
        ...


class InProcess:
    """Rollouts as tasks of this process."""

    def __init__(self, settings: RolloutSettings, concurrency: int) -> None:
        self._worker = Worker(settings)
        self._concurrency = concurrency
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, specs: AsyncIterator[RolloutSpec]) -> AsyncIterator[Result]:
        results: asyncio.Queue[Result | Exception | None] = asyncio.Queue(self._concurrency)
        free = asyncio.Semaphore(self._concurrency)

        async def one(spec: RolloutSpec) -> None:
            try:
                await results.put(await self._worker.run(spec))
            except Exception as error:
                await results.put(error)
            finally:
                free.release()

        async def feed() -> None:
            try:
                await free.acquire()
                async for spec in specs:
                    self._start(one(spec))
                    await free.acquire()
                await results.put(None)
            except Exception as error:
                await results.put(error)

        self._start(feed())
        while (result := await results.get()) is not None:
            if isinstance(result, Exception):
                raise result
            yield result

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def kill(self) -> None:
        """Nothing to do: tasks of this process are cancelled as quickly either way."""

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._worker.close()


class _Process:
    """One worker process and what it has been given."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, label: str
    ) -> None:
        self.process = process
        self.label = label
        """Names its sandboxes on this machine."""
        self.reader = reader
        self.writer = writer
        self.given: set[str] = set()
        self.finished = 0


class Processes:
    """Rollouts in worker processes of this machine, each taking its share; a dead one is replaced."""

    def __init__(self, settings: RolloutSettings, concurrency: int, num_workers: int) -> None:
        self._settings = settings
        self._num_workers = min(num_workers, concurrency)
        self._share = -(-concurrency // self._num_workers)
        self._workers: set[_Process] = set()  # those that get rollouts by turns
        self._alive: set[_Process] = set()  # every process that must not outlive us
        self._tasks: set[asyncio.Task[None]] = set()
        self._quarantine = asyncio.Semaphore(self._num_workers)
        self._barren = 0
        self._started = 0

    async def run(self, specs: AsyncIterator[RolloutSpec]) -> AsyncIterator[Result]:
        results: asyncio.Queue[Result | Exception | None] = asyncio.Queue(self._num_workers * self._share)
        room = asyncio.Event()

        async def read(worker: _Process) -> None:
            try:
                while (attempt := await frames.receive(worker.reader, Attempt)) is not None:
                    worker.given.discard(attempt.key)
                    worker.finished += 1
                    room.set()
                    await results.put(attempt)
                await self._bury(worker, results)
            except Exception as error:
                await results.put(error)
            room.set()

        async def start() -> None:
            worker = await self._start()
            self._workers.add(worker)
            self._spawn(read(worker))

        async def roomy() -> _Process:
            while (worker := self._idlest()) is None:
                if len(self._workers) < self._num_workers:
                    await start()
                else:
                    room.clear()
                    await room.wait()
            return worker

        async def alone(spec: RolloutSpec) -> None:
            try:
                async with self._quarantine:
                    await results.put(await self._run_alone(spec))
            except Exception as error:
                await results.put(error)

        async def feed() -> None:
            try:
                worker = await roomy()  # first room, then a spec: none is taken that has to wait
                async for spec in specs:
                    if spec.alone:
                        self._spawn(alone(spec))
                        continue
                    if worker not in self._workers:
                        worker = await roomy()
                    worker.given.add(spec.key)
                    # a dead worker's reader sees its end too, and reports what it had been given
                    with suppress(ConnectionError):
                        frames.send(worker.writer, spec)
                        await worker.writer.drain()
                    worker = await roomy()
                await results.put(None)
            except Exception as error:
                await results.put(error)

        self._spawn(feed())
        while (result := await results.get()) is not None:
            if isinstance(result, Exception):
                raise result
            yield result

    def _idlest(self) -> _Process | None:
        """The worker with the most room, None while all are full or another could still be started."""
        if len(self._workers) < self._num_workers and all(worker.given for worker in self._workers):
            return None
        worker = min(self._workers, key=lambda each: len(each.given), default=None)
        return worker if worker and len(worker.given) < self._share else None

    async def _start(self) -> _Process:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(  # noqa: ASYNC220  (asyncio's own would start a watcher thread; starting takes 1 ms)
                [sys.executable, "-m", "kiseki.batch.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        reader, writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
        self._started += 1
        label = f"{self._settings.sandbox.label}.{self._started}"
        sandbox = msgspec.structs.replace(self._settings.sandbox, label=label)
        frames.send(writer, msgspec.structs.replace(self._settings, sandbox=sandbox))
        worker = _Process(process, reader, writer, label)
        self._alive.add(worker)
        return worker

    async def _run_alone(self, spec: RolloutSpec) -> Result:
        """One rollout in a process that has no other, so that whatever happens to it is this one's doing."""
        worker = await self._start()
        frames.send(worker.writer, spec)
        attempt = await frames.receive(worker.reader, Attempt)
        await self._end(worker)
        return attempt or Lost(spec.key)

    async def _end(self, worker: _Process) -> int:
        """Let a worker end, or see that it has. Returns its exit status."""
        worker.writer.close()  # which is how a worker is told to end
        try:
            status = await asyncio.to_thread(worker.process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            status = await asyncio.to_thread(worker.process.wait)
        if status:  # it did not get to close its sandboxes
            await asyncio.to_thread(reap, worker.label)
        self._alive.discard(worker)
        return status

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bury(self, worker: _Process, results: asyncio.Queue[Result | Exception | None]) -> None:
        """A worker has ended: say which rollouts went with it."""
        self._workers.discard(worker)
        status = await self._end(worker)
        self._barren = 0 if worker.finished else self._barren + 1
        if self._barren > MAX_RESTARTS:
            raise KisekiError(f"{self._barren} workers in a row died before finishing anything (last exit status {status})")
        for key in worker.given:
            await results.put(Lost(key))
        worker.given.clear()

    def kill(self) -> None:
        for worker in self._alive:
            worker.process.kill()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(self._end(worker) for worker in list(self._alive)))
