"""A worker: runs rollouts on one event loop. The same code in the driver's process, in a worker process and on other machines.

`python -m kiseki.batch.worker FD` is a worker process: it speaks frames (`batch/frames.py`) over the socket FD. When its driver
is gone it cancels everything, closes the sandboxes and ends.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import sys
import traceback

import msgspec

from kiseki.agent.rollout import run_rollout
from kiseki.agent.settings import RolloutSettings, ToolsOfRollout
from kiseki.batch import frames
from kiseki.errors import NO_OUTCOME, BudgetSpent, RunStopped
from kiseki.ledger.types import Attempt
from kiseki.models.admission import Admitted, Ask, Door, settle
from kiseki.models.base import ChatModel
from kiseki.models.calls import CallEnd
from kiseki.models.factory import open_model
from kiseki.sandboxes.factory import Sandboxes
from kiseki.tools.gather import extra_tools
from kiseki.tools.running import end_others
from kiseki.tools.services import Services
from kiseki.trajectory.record import compress, pack, summarize, with_children
from kiseki.trajectory.types import Record, RolloutSpec

LARGE_RECORD = 1_000_000
"""Bytes from which compressing a record (up to 6 ms per MB) is not done on the event loop."""


class Worker:
    """Model, tools and settings, ready to run any number of rollouts side by side."""

    def __init__(self, settings: RolloutSettings, door: Door) -> None:
        self._settings = settings
        self._model: ChatModel = open_model(settings.model, door)
        self._sandboxes = Sandboxes(settings.sandbox)
        self._services = Services(settings.tools, self._model, settings.model, door, os.environ)
        self._extra = extra_tools(settings.tool_files, settings.tools)
        self._combinations: dict[tuple[str, ...], ToolsOfRollout] = {}
        self._sent_tools: set[str] = set()
        _make_room()

    async def run(self, spec: RolloutSpec) -> Attempt:
        """One rollout, ready for the ledger. Raises nothing but `CancelledError`."""
        tools = self._tools(spec.toolsets)
        record = await run_rollout(spec, self._settings, self._model, tools, self._sandboxes, self._services)
        try:
            packed = pack(record)
        except Exception as error:  # something in it that the format cannot hold
            record = _without_what_happened(record, error)
            packed = pack(record)
        compressed = compress(packed) if len(packed) < LARGE_RECORD else await asyncio.to_thread(compress, packed)
        new = {each.tools_hash for each in with_children(record)} - self._sent_tools
        if record.error_class not in NO_OUTCOME:  # such a one is not kept, and its schemas would not be either
            self._sent_tools |= new
        return Attempt(spec.key, summarize(record), compressed, {each: tools.schemas[each] for each in new})

    def _tools(self, toolsets: tuple[str, ...]) -> ToolsOfRollout:
        if toolsets not in self._combinations:
            self._combinations[toolsets] = ToolsOfRollout(toolsets, self._extra, self._settings)
        return self._combinations[toolsets]

    async def close(self) -> None:
        await self._services.close()
        await self._sandboxes.close()
        await self._model.close()


def _without_what_happened(record: Record, error: Exception) -> Record:
    """A failed record in the place of one that cannot be kept."""
    return msgspec.structs.replace(
        record,
        messages=record.messages[: record.prompt_messages],
        calls=(),
        tool_runs=(),
        unknown_tools=(),
        outcome="failed",
        reason=type(error).__name__,
        error_class=type(error).__name__,
        error=f"the rollout's record cannot be written: {error}",
        retryable=False,
    )


def _make_room() -> None:
    """Fit this process for thousands of live rollouts."""
    # four descriptors per sandbox and one per connection: the usual soft limit of 1,024 is reached by 200 rollouts
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # what is loaded by now stays; rollouts make few cycles, and walking all live ones again and again cost a fifth of the CPU
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


class RemoteDoor:
    """A `Door` to the admission in the driver's process."""

    def __init__(self, link: frames.Link[frames.ToWorker]) -> None:
        self._link = link
        self._keys = 0
        self._waiting: dict[int, asyncio.Future[Admitted]] = {}

    def ask(self, ask: Ask) -> tuple[int, asyncio.Future[Admitted]]:
        self._keys += 1
        admitted = self._waiting[self._keys] = asyncio.get_running_loop().create_future()
        self._link.send(frames.Asks(self._keys, ask))
        return self._keys, admitted

    def leave(self, key: int, end: CallEnd) -> None:
        self._waiting.pop(key, None)
        self._link.send(frames.Leaves(key, end))

    def answered(self, message: frames.Answered) -> None:
        if (future := self._waiting.get(message.key)) is None:  # cancelled meanwhile
            return
        if message.admitted is not None:
            settle(future, message.admitted)
        else:
            refusal = BudgetSpent if message.refusal == BudgetSpent.__name__ else RunStopped
            settle(future, refusal(message.words))


async def _serve(connection: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=connection, limit=frames.CHUNK)
    link = frames.Link(reader, writer, frames.TO_WORKER)
    settings = await link.receive()
    if not isinstance(settings, RolloutSettings):  # gone before it began
        return
    door = RemoteDoor(link)
    worker = Worker(settings, door)
    running: set[asyncio.Task[None]] = set()

    async def one(spec: RolloutSpec) -> None:
        try:
            link.send(await worker.run(spec))
            await link.drain()
        except ConnectionError:  # the driver is gone; the reader below has seen it too, and ends everything in order
            return
        except Exception:  # a bug of ours: with this process gone the driver knows that the rollout is, too
            traceback.print_exc()
            os._exit(1)

    async def beat() -> None:
        while True:
            link.send(frames.Beat())
            await asyncio.sleep(frames.BEAT_SECONDS)

    beating = asyncio.create_task(beat())
    try:
        while (message := await link.receive()) is not None:
            if isinstance(message, frames.Answered):
                door.answered(message)
            elif isinstance(message, RolloutSpec):
                task = asyncio.create_task(one(message))
                running.add(task)
                task.add_done_callback(running.discard)
    finally:  # the driver said so, or is gone: nobody waits for what still runs
        beating.cancel()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await worker.close()
        await end_others()


def main() -> None:
    # what a signal to all processes of a run means is the driver's to say; it tells us by closing the socket. A handler, since
    # what is ignored stays so in every program below: the model's commands, too
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    try:
        asyncio.run(_serve(socket.socket(fileno=int(sys.argv[1]))))
    except BaseException:
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    main()
