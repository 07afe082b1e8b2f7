"""The driver of a run: hands out what is open, commits what comes back, ends batches, tries failures again.

An outcome counts when its commit is done, and only then does anything else happen because of it. Commits run in one thread
beside the event loop, in groups: while one group is written, the next collects.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import TypeVar

import msgspec

from kiseki.batch.engines import Engine, Lost, Result
from kiseki.batch.plan import draw_seed, rollout_key
from kiseki.errors import WorkerDied
from kiseki.ledger.ledger import PAGE, Ledger
from kiseki.ledger.types import Attempt, OpenRollout, SessionState
from kiseki.trajectory.record import encode_record, summarize
from kiseki.trajectory.types import Record, RolloutSpec
from kiseki.views.build import Views
from kiseki.views.filters import discard_reason

LINGER = 0.02
"""Seconds that the first outcome of a group waits for others: one sync of the disk then serves them all."""
MAX_UNCOMMITTED = 500
"""Outcomes waiting for the disk before no more rollouts are started."""
RETRY_SECONDS = (2.0, 10.0, 30.0)
"""Pause before the 2nd, 3rd, … attempt: what failed for a passing reason should find it gone."""
STOP_GRACE = 5.0
"""Seconds that running rollouts get to finish after the first Ctrl-C."""
CHECKPOINT_SHARE = 0.02
"""Of the run's time that writing checkpoints may take: their cost grows with the run, so their number must not."""

T = TypeVar("T")


class Tally(msgspec.Struct):
    """What the progress display shows. Counts rollouts."""

    total: int
    done: int = 0
    """Completed, partial and discarded ones, those of earlier sessions included."""
    discarded: int = 0
    failed: int = 0
    running: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0


class _Flight(msgspec.Struct):
    rollout: OpenRollout
    tries: int
    """Attempts in this session, this one included."""
    alone: bool = False
    """Its worker died; the next attempt shows whether because of it."""


class Driver:
    """One session of a run. Make it, `run()` it, and `stop()` it from a signal handler."""

    def __init__(
        self,
        ledger: Ledger,
        engine: Engine,
        views: Views,
        *,
        batches: dict[int, int],
        tally: Tally,
        draw: Callable[[str], tuple[str, ...]],
        run_seed: int,
        num_samples: int,
        max_attempts: int,
        reasoning_filter: bool,
        preview_chars: int,
        log: Callable[[str], None],
        detail: Callable[[str], None],
    ) -> None:
        """`batches`: rollouts to run per batch, counted down from here on. `log` gets what went wrong, `detail` a line per
        rollout, with a preview of its prompt of `preview_chars`."""
        self.tally = tally
        self._ledger = ledger
        self._engine = engine
        self._views = views
        self._left_in_batch = batches
        self._draw = draw
        self._run_seed = run_seed
        self._num_samples = num_samples
        self._max_attempts = max_attempts
        self._reasoning_filter = reasoning_filter
        self._preview_chars = preview_chars
        self._log = log
        self._detail = detail
        self._disk = ThreadPoolExecutor(1, "ledger")  # the ledger belongs to this thread while the run goes
        self._flying: dict[str, _Flight] = {}
        self._again: list[tuple[float, int, _Flight]] = []  # heap: (due, order, flight)
        self._order = 0
        self._ended: list[tuple[_Flight, Attempt]] = []  # not committed yet
        self._arrived = asyncio.Event()  # something has ended
        self._changed = asyncio.Event()  # something was committed or lost, so the next spec may be due
        self._committed = asyncio.Event()  # a group is on the disk
        self._stopping = False
        self._closing = False
        self._rollouts: asyncio.Task[None] | None = None
        self._checkpoint_due = 0.0
        self._began = time.monotonic()

    async def run(self) -> None:
        """Until everything has ended or `stop` was called; whatever ended is committed when it returns or raises."""
        committer = asyncio.create_task(self._commit_groups())
        self._rollouts = asyncio.create_task(self._engine.run(self._specs(), self._land))
        try:
            await self._rollouts
        except asyncio.CancelledError:
            if not self._stopping:
                raise
        finally:
            await self._engine.close()
            self._closing = True
            self._arrived.set()
            try:
                await committer
                await self._on_disk(lambda: self._ledger.commit((), SessionState(time.monotonic() - self._began)))
            finally:
                self._disk.shutdown()

    def stop(self) -> None:
        """Admit nothing more; what runs gets `STOP_GRACE` seconds, then it is cancelled (and leaves no trace)."""
        self._stopping = True
        self._changed.set()
        asyncio.get_running_loop().call_later(STOP_GRACE, self._cancel)

    def stop_now(self) -> None:
        """Cancel what runs; what has ended is still committed."""
        self._stopping = True
        self._engine.kill()
        self._cancel()

    def _cancel(self) -> None:
        if self._rollouts:
            self._rollouts.cancel()

    # ---- out: specs -----------------------------------------------------------------------------------------------

    async def _specs(self) -> AsyncIterator[RolloutSpec]:
        opened = self._ledger.open_rollouts(self._num_samples)
        page: Iterator[OpenRollout] = iter(())
        more = True
        while not self._stopping:
            if len(self._ended) > MAX_UNCOMMITTED:
                self._committed.clear()
                await self._committed.wait()
            elif self._again and self._again[0][0] <= time.monotonic():
                yield self._depart(heapq.heappop(self._again)[2])
            elif more:
                rollout = next(page, None)
                if rollout is None:
                    lines = await self._on_disk(lambda: list(islice(opened, PAGE)))
                    page, more = iter(lines), bool(lines)
                else:
                    yield self._depart(_Flight(rollout, 1))
            elif self._flying or self._ended or self._again:
                self._changed.clear()
                due = self._again[0][0] - time.monotonic() if self._again else None
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), due)
            else:
                return
        while self._flying:  # stopping: what flies either lands or is cancelled with the rest
            self._changed.clear()
            await self._changed.wait()

    def _depart(self, flight: _Flight) -> RolloutSpec:
        spec = self._spec(flight)
        self._flying[spec.key] = flight
        self.tally.running = len(self._flying)
        return spec

    def _spec(self, flight: _Flight) -> RolloutSpec:
        rollout = flight.rollout
        key = rollout_key(rollout.prompt_key, rollout.sample_index)
        return RolloutSpec(
            key=key,
            prompt=rollout.prompt,
            sample_index=rollout.sample_index,
            batch_num=rollout.batch_num,
            attempt=rollout.attempts + flight.tries,
            seed=draw_seed(self._run_seed, key),
            toolsets=self._draw(key),
            alone=flight.alone,
        )

    # ---- in: results ----------------------------------------------------------------------------------------------

    def _land(self, result: Result) -> None:
        flight = self._flying.pop(result.key)
        self.tally.running = len(self._flying)
        if isinstance(result, Lost):
            self._lost(flight)
        else:
            self._end(flight, result)

    def _end(self, flight: _Flight, attempt: Attempt) -> None:
        self._ended.append((flight, attempt))
        self._arrived.set()

    def _lost(self, flight: _Flight) -> None:
        """A rollout whose worker died. Once may be a neighbour's doing: it is tried again alone. Alone it was its own."""
        self._changed.set()
        if self._stopping:  # its worker was ended by us
            return
        self._log(f"a worker died with prompt {flight.rollout.prompt.index} in it")
        if flight.alone:
            self._end(flight, _lost_attempt(self._spec(flight)))
        else:  # what left no attempt counts as none
            self._try_again(msgspec.structs.replace(flight, alone=True))

    def _try_again(self, flight: _Flight) -> None:
        pause = RETRY_SECONDS[min(flight.tries, len(RETRY_SECONDS)) - 1]
        self._order += 1
        heapq.heappush(self._again, (time.monotonic() + pause, self._order, flight))

    # ---- down: the ledger -----------------------------------------------------------------------------------------

    async def _commit_groups(self) -> None:
        """Commit as long as the run goes; an error of the disk ends the run."""
        try:
            while self._ended or not self._closing:
                await self._arrived.wait()
                self._arrived.clear()
                if not self._closing:
                    await asyncio.sleep(LINGER)
                if self._ended:
                    await self._commit()
        except Exception:
            self._stopping = True
            self._cancel()
            raise

    async def _commit(self) -> None:
        group = self._ended[:]
        lines = [(flight.rollout.rollout_id, attempt) for flight, attempt in group]
        await self._on_disk(lambda: self._ledger.commit(lines, SessionState(time.monotonic() - self._began)))
        del self._ended[: len(group)]
        self._committed.set()
        ended_batches = [batch for flight, attempt in group if (batch := self._account(flight, attempt)) is not None]
        self._changed.set()
        for batch in ended_batches:
            await self._on_disk(lambda batch=batch: self._views.write_batch(batch))  # type: ignore[misc]
        if ended_batches and time.monotonic() >= self._checkpoint_due:
            began = time.monotonic()
            await self._on_disk(self._views.write_checkpoint)
            self._checkpoint_due = time.monotonic() + (time.monotonic() - began) / CHECKPOINT_SHARE

    def _account(self, flight: _Flight, attempt: Attempt) -> int | None:
        """Count a committed attempt. Returns its batch if that has ended with it."""
        summary, tally = attempt.summary, self.tally
        tally.prompt_tokens += summary.usage.prompt_tokens
        tally.completion_tokens += summary.usage.completion_tokens
        tally.cost += summary.usage.cost
        prompt = flight.rollout.prompt
        preview = prompt.text[: self._preview_chars].replace("\n", " ")
        took = f"{summary.api_calls} calls, {summary.seconds:.1f} s"
        self._detail(f"prompt {prompt.index}: {summary.outcome}, {summary.reason}, {took}: {preview}")
        if summary.outcome == "failed":
            self._log(f"prompt {prompt.index}: {summary.error_class}: {summary.error}")
            if summary.retryable and flight.tries < self._max_attempts and not self._stopping:
                self._try_again(msgspec.structs.replace(flight, tries=flight.tries + 1))
                return None
            tally.failed += 1
        else:
            tally.done += 1
            tally.discarded += bool(
                discard_reason(
                    assistant_turns=summary.assistant_turns,
                    reasoning_turns=summary.reasoning_turns,
                    has_unknown_tools=bool(summary.unknown_tools),
                    reasoning_filter=self._reasoning_filter,
                )
            )
        batch = flight.rollout.batch_num
        self._left_in_batch[batch] -= 1
        return batch if self._left_in_batch[batch] == 0 else None

    async def _on_disk(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)


def _lost_attempt(spec: RolloutSpec) -> Attempt:
    error = WorkerDied("the worker process died twice with this prompt in it, the second time with no other")
    record = Record(
        key=spec.key,
        sample_index=spec.sample_index,
        attempt=spec.attempt,
        seed=spec.seed,
        messages=spec.prompt.messages,
        prompt_messages=len(spec.prompt.messages),
        outcome="failed",
        reason=type(error).__name__,
        model="",
        toolsets=spec.toolsets,
        tools_hash="",
        error_class=type(error).__name__,
        error=str(error),
        started=time.time(),
    )
    return Attempt(key=spec.key, summary=summarize(record), record=encode_record(record), tools_hash="")
