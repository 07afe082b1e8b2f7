"""Engines run specs and give attempts back: in this process, or in worker processes.

Both take specs from an async iterator only as fast as they can run them, so memory does not depend on the dataset, and give
each spec back exactly once: as an `Attempt`, or as `Lost` when the worker that ran it is gone. Results are given by a call
that never waits, so that none can be on its way when a run is stopped. The iterator ends only when the caller has everything
back that it wanted, so an engine ends with it.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Protocol

import msgspec

from kiseki.agent.settings import RolloutSettings
from kiseki.batch import frames
from kiseki.batch.worker import Worker
from kiseki.errors import NotAdmitted, SandboxError, WorkersFailed
from kiseki.ledger.types import Attempt
from kiseki.models.admission import Admission, Admitted, LocalDoor
from kiseki.sandboxes.reaper import reap
from kiseki.trajectory.types import RolloutSpec

MAX_RESTARTS = 5
"""Workers that may die in a row while they start before the run gives up."""
STARTING = 5
"""Times as long may a worker take to start: it imports what a user's tools import."""
STOP_SECONDS = 10.0
"""What a worker gets to close its sandboxes before it is killed."""


SILENT_SECONDS = 60.0
"""A worker that shows no sign of life for so long hangs (a tool of the user's that blocks its event loop, a stopped process),
and is ended: thirty missed beats are no busy machine."""


class Lost(msgspec.Struct, frozen=True):
    """The worker died with this rollout in it."""

    key: str
    why: str = "died"
    began: bool = True
    """Whether the worker had come so far as to run it: if not, its death is no prompt's doing."""


Result = Attempt | Lost
Give = Callable[[Result], None]


class Engine(Protocol):
    async def run(self, specs: AsyncIterator[RolloutSpec], give: Give) -> None:
        """Run every spec, giving each result as it comes, until `specs` is at its end. Raises `WorkersFailed`."""
        ...

    def kill(self) -> None:
        """Make `close` quick: no worker gets time for anything."""
        ...

    async def close(self) -> None:
        """End whatever runs; what was not given back yet never will be."""
        ...


class InProcess:
    """Rollouts as tasks of this process."""

    def __init__(self, settings: RolloutSettings, admission: Admission, concurrency: int) -> None:
        self._worker = Worker(settings, LocalDoor(admission))
        self._concurrency = concurrency

    async def run(self, specs: AsyncIterator[RolloutSpec], give: Give) -> None:
        free = asyncio.Semaphore(self._concurrency)

        async def one(spec: RolloutSpec) -> None:
            try:
                give(await self._worker.run(spec))
            finally:
                free.release()

        with _unwrapped():
            async with asyncio.TaskGroup() as rollouts:
                await free.acquire()  # first room, then a spec: none is taken that has to wait
                async for spec in specs:
                    rollouts.create_task(one(spec))
                    await free.acquire()

    def kill(self) -> None:
        """Nothing to do: tasks of this process are cancelled as quickly either way."""

    async def close(self) -> None:
        await self._worker.close()


class _Process:
    """One worker process and what it has been given."""

    def __init__(self, process: subprocess.Popen[bytes], link: frames.Link[frames.FromWorker], label: str) -> None:
        self.process = process
        self.label = label
        """Names its sandboxes on this machine."""
        self.link = link
        self.given: set[str] = set()
        self.calls: set[int] = set()
        """Of its model calls, those that wait to be let in or have been."""
        self.ready = False
        """It has shown a sign of life: whatever is imported is imported, and rollouts run."""
        self.heard = time.monotonic()
        self.why = "died"
        """What happened to it, should it end too early."""


class Processes:
    """Rollouts in worker processes of this machine, each taking its share; a dead one is replaced."""

    def __init__(
        self,
        settings: RolloutSettings,
        admission: Admission,
        concurrency: int,
        num_workers: int,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self._settings = settings
        self._admission = admission
        self._silent_seconds = silent_seconds
        self._concurrency = concurrency
        self._num_workers = min(num_workers, concurrency)
        self._share = -(-concurrency // self._num_workers)
        self._workers: set[_Process] = set()  # those that get rollouts by turns
        self._alive: set[_Process] = set()  # every process that must not outlive us
        self._alone = 0  # rollouts that run in a worker of their own
        self._room = asyncio.Event()  # a rollout has ended, or a worker
        self._barren = 0
        self._started = 0

    async def run(self, specs: AsyncIterator[RolloutSpec], give: Give) -> None:
        with _unwrapped():
            async with asyncio.TaskGroup() as tasks:
                readers = [tasks.create_task(self._watch())]
                worker = await self._roomy(tasks, readers, give)  # first room, then a spec: none is taken that has to wait
                async for spec in specs:
                    if spec.alone:
                        while self._alone >= self._num_workers or self._running >= self._concurrency:
                            await self._more_room()
                        self._alone += 1
                        tasks.create_task(self._run_alone(spec, give))
                        worker = await self._roomy(tasks, readers, give)
                        continue
                    if worker not in self._workers:
                        worker = await self._roomy(tasks, readers, give)
                    worker.given.add(spec.key)
                    # a dead worker's reader sees its end too, and reports what it had been given
                    with suppress(ConnectionError):
                        worker.link.send(spec)
                        await worker.link.drain()
                    worker = await self._roomy(tasks, readers, give)
                for reader in readers:
                    reader.cancel()

    @property
    def _running(self) -> int:
        return sum(len(worker.given) for worker in self._workers) + self._alone

    async def _more_room(self) -> None:
        """Until a rollout has ended, or a worker."""
        self._room.clear()
        await self._room.wait()

    async def _roomy(self, tasks: asyncio.TaskGroup, readers: list[asyncio.Task[None]], give: Give) -> _Process:
        """A worker that can take one more, waiting for it where there is none."""
        while True:
            if self._running < self._concurrency:
                idlest = min(self._workers, key=lambda each: len(each.given), default=None)
                if len(self._workers) < self._num_workers and (idlest is None or idlest.given):
                    worker = await self._start()
                    self._workers.add(worker)
                    readers.append(tasks.create_task(self._read(worker, give)))
                    return worker
                if idlest and len(idlest.given) < self._share:
                    return idlest
            await self._more_room()

    async def _read(self, worker: _Process, give: Give) -> None:
        """Give what a worker sends until it ends; then say which rollouts went with it."""
        while (attempt := await self._next_attempt(worker)) is not None:
            worker.given.discard(attempt.key)
            self._room.set()
            give(attempt)
        self._workers.discard(worker)
        for key in worker.given:
            give(Lost(key, worker.why, worker.ready))
        self._room.set()
        await self._gone(worker)

    async def _gone(self, worker: _Process) -> None:
        """See a worker's end. Raises `WorkersFailed` when too many in a row did not even come to life."""
        status = await self._end(worker)
        self._barren = 0 if worker.ready else self._barren + 1
        if self._barren > MAX_RESTARTS:
            raise WorkersFailed(f"{self._barren} workers in a row died while they started (last exit status {status})")

    async def _next_attempt(self, worker: _Process) -> Attempt | None:
        """What a worker has to give next, serving its model calls meanwhile; None when it has ended."""
        while (message := await worker.link.receive()) is not None:
            worker.ready, worker.heard = True, time.monotonic()
            if isinstance(message, Attempt):
                return message
            if isinstance(message, frames.Asks):
                worker.calls.add(message.key)
                self._admission.ask((worker.label, message.key), message.ask, partial(_answer, worker, message.key))
            elif isinstance(message, frames.Leaves):
                worker.calls.discard(message.key)
                self._admission.leave((worker.label, message.key), message.end)
        self._admission.leave_all((worker.label, key) for key in worker.calls)
        return None

    async def _watch(self) -> None:
        """End workers that hang."""
        looked = time.monotonic()
        while True:
            await asyncio.sleep(self._silent_seconds / 4)
            now = time.monotonic()
            if now - looked > self._silent_seconds / 2:  # it was us who did not run (a suspended machine, Ctrl-Z)
                for worker in self._alive:
                    worker.heard = now
            looked = now
            for worker in self._alive:
                patience = self._silent_seconds * (1 if worker.ready else STARTING)
                if now - worker.heard > patience:
                    worker.why = f"showed no sign of life for {patience:g} s and was ended"
                    worker.process.kill()

    async def _run_alone(self, spec: RolloutSpec, give: Give) -> None:
        """One rollout in a process that has no other, so that whatever happens to it is this one's doing."""
        try:
            worker = await self._start()
            worker.link.send(spec)
            give(await self._next_attempt(worker) or Lost(spec.key, worker.why, worker.ready))
        finally:
            self._alone -= 1
            self._room.set()
        await self._gone(worker)

    async def _start(self) -> _Process:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(  # noqa: ASYNC220  (asyncio's own would start a watcher thread; starting takes 1 ms)
                [sys.executable, "-m", "kiseki.batch.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C and `timeout` signal the driver's group: what that means is the driver's to say
            )
        reader, writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
        self._started += 1
        label = f"{self._settings.sandbox.label}.{self._started}"
        sandbox = msgspec.structs.replace(self._settings.sandbox, label=label)
        link = frames.Link(reader, writer, frames.FROM_WORKER)
        link.send(msgspec.structs.replace(self._settings, sandbox=sandbox))
        worker = _Process(process, link, label)
        self._alive.add(worker)
        return worker

    async def _end(self, worker: _Process) -> int:
        """Let a worker end, or see that it has. Returns its exit status."""
        worker.link.close()  # which is how a worker is told to end
        try:
            status = await asyncio.to_thread(worker.process.wait, STOP_SECONDS)
        except subprocess.TimeoutExpired:
            worker.process.kill()
            status = await asyncio.to_thread(worker.process.wait)
        if status:  # it did not get to close its sandboxes
            with suppress(SandboxError):  # the end of the session tries again, and says so
                await asyncio.to_thread(reap, msgspec.structs.replace(self._settings.sandbox, label=worker.label))
        self._alive.discard(worker)
        return status

    def kill(self) -> None:
        for worker in self._alive:
            worker.process.kill()

    async def close(self) -> None:
        await asyncio.gather(*(self._end(worker) for worker in list(self._alive)))


@contextmanager
def _unwrapped() -> Iterator[None]:
    """The first error of a task group instead of the group: the others were cancelled because of it."""
    try:
        yield
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None


def _answer(worker: _Process, key: int, answer: Admitted | NotAdmitted) -> None:
    """Tell a worker that its call may be made, or that it will not be. One that is gone is told nothing."""
    if isinstance(answer, Admitted):
        message = frames.Answered(key, answer)
    else:
        message = frames.Answered(key, None, type(answer).__name__, str(answer))
    worker.link.send(message)
