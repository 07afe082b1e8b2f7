"""The driver of a run: hands out what is open, commits what comes back, ends batches, tries failures again.

An outcome counts when its commit is done, and only then does anything else happen because of it. Commits run in one thread
beside the event loop, in groups: while one group is written, the next collects.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import TypeVar

import msgspec

from kiseki.batch.engines import Engine, Lost, Result
from kiseki.batch.plan import draw_seed, rollout_key
from kiseki.batch.schedule import Flight, Schedule
from kiseki.errors import NO_OUTCOME, WorkerDied
from kiseki.ledger.ledger import PAGE, Ledger
from kiseki.ledger.schema import POISON
from kiseki.ledger.types import Attempt, Decision, OpenRollout, SessionState
from kiseki.models.admission import Admission
from kiseki.models.calls import Change
from kiseki.trajectory.record import encode_record, summarize
from kiseki.trajectory.types import Record, RolloutSpec
from kiseki.views.build import Views
from kiseki.views.filters import discard_reason

LINGER = 0.02
"""Seconds that the first outcome of a group waits for others: one sync of the disk then serves them all."""
MAX_UNCOMMITTED, MAX_UNCOMMITTED_BYTES = 500, 100_000_000
"""Outcomes waiting for the disk, and their records' size, before no more rollouts are started."""
STOP_GRACE = 5.0
"""Seconds that running rollouts get to finish after the first Ctrl-C."""
COMMIT_SECONDS = 1.0
"""Between two commits at most while anything is spent: how far back a kill sets what the next session knows of it."""
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


class Driver:
    """One session of a run. Make it, `run()` it, and `stop()` it from a signal handler."""

    def __init__(
        self,
        ledger: Ledger,
        engine: Engine,
        admission: Admission,
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
        ended: Callable[[int], None] = lambda count: None,
    ) -> None:
        """`batches`: rollouts to run per batch, counted down from here on. `log` gets what went wrong, `detail` a line per
        rollout, with a preview of its prompt of `preview_chars`; `ended`, after each commit, how many of the run have ended."""
        self.tally = tally
        self._ledger = ledger
        self._engine = engine
        self._admission = admission
        self._spent_before = self._committed_worst = admission.budget.at_worst
        self._views = views
        self._schedule = Schedule(batches, max_attempts)
        self._draw = draw
        self._run_seed = run_seed
        self._num_samples = num_samples
        self._reasoning_filter = reasoning_filter
        self._preview_chars = preview_chars
        self._log = log
        self._detail = detail
        self._all_ended = ended
        self._disk = ThreadPoolExecutor(1, "ledger")  # the ledger belongs to this thread while the run goes
        self._ended: list[tuple[Flight, Attempt]] = []  # not committed yet
        self._ended_bytes = 0  # of their records
        self._decisions: list[Decision] = []  # neither
        self._suspects: list[tuple[int, int]] = []  # nor these
        self._arrived = asyncio.Event()  # something is to be committed
        self._changed = asyncio.Event()  # something was committed or lost, so the next spec may be due
        self._committed = asyncio.Event()  # a group is on the disk
        self._closing = False
        self._killed = False
        self._rollouts: asyncio.Task[None] | None = None
        self._checkpoint_due = 0.0
        self._began = time.monotonic()

    async def run(self) -> None:
        """Until everything has ended, the budget is spent, or `stop` was called (by the admission too, see `stopped`).

        Whatever ended is committed when it returns or raises.
        """
        self._admission.changed = self._decided
        committer = asyncio.create_task(self._commit_groups())
        self._rollouts = asyncio.create_task(self._engine.run(self._specs(), self._land))
        try:
            await self._rollouts
        except asyncio.CancelledError:
            if not self._schedule.stopping:
                raise
        finally:
            try:
                await self._engine.close()
            finally:
                self._admission.close()
                await self._commit_the_rest(committer)

    def stop(self) -> None:
        """Admit nothing more; what runs gets `STOP_GRACE` seconds, then it is cancelled (and leaves no trace)."""
        self._schedule.stopping = True
        self._changed.set()
        asyncio.get_running_loop().call_later(STOP_GRACE, self._cancel)

    def stop_now(self) -> None:
        """Cancel what runs; what has ended is still committed."""
        self._schedule.stopping = self._killed = True
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
        while not (self._schedule.stopping or self._admission.budget_spent):
            if self._disk_is_behind():
                self._committed.clear()
                await self._committed.wait()
            elif flight := self._schedule.due(time.monotonic()):
                yield self._depart(flight)
            elif more:
                rollout = next(page, None)
                if rollout is None:
                    lines = await self._on_disk(lambda: list(islice(opened, PAGE)))
                    page, more = iter(lines), bool(lines)
                else:
                    yield self._depart(self._schedule.first(rollout))
            elif self._schedule.flying or self._ended or self._schedule.next_due():
                self._changed.clear()
                due = self._schedule.next_due()
                with suppress(TimeoutError):  # not wait_for, which may swallow a cancellation (CPython 3.11)
                    async with asyncio.timeout(None if due is None else due - time.monotonic()):
                        await self._changed.wait()
            else:
                return
        while self._schedule.flying:  # stopping: what flies either lands or is cancelled with the rest
            self._changed.clear()
            await self._changed.wait()

    def _depart(self, flight: Flight) -> RolloutSpec:
        spec = self._spec(flight)
        self._schedule.depart(spec.key, flight)
        self.tally.running = self._schedule.flying
        return spec

    def _spec(self, flight: Flight) -> RolloutSpec:
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
            spent=rollout.spent,
        )

    # ---- in: results and decisions --------------------------------------------------------------------------------

    def _land(self, result: Result) -> None:
        flight = self._schedule.land(result.key)
        self.tally.running = self._schedule.flying
        if isinstance(result, Lost):
            self._lost(flight, result)
        elif result.summary.error_class in NO_OUTCOME:
            self._changed.set()
        else:
            self._end(flight, result)

    def _end(self, flight: Flight, attempt: Attempt) -> None:
        self._ended.append((flight, attempt))
        self._ended_bytes += len(attempt.record)
        self._arrived.set()

    def _disk_is_behind(self) -> bool:
        too_much = len(self._ended) > MAX_UNCOMMITTED or self._ended_bytes > MAX_UNCOMMITTED_BYTES
        return too_much or bool(self._ended and self._ledger.held)

    def _lost(self, flight: Flight, lost: Lost) -> None:
        """A rollout whose worker died. Once may be a neighbour's doing: it is tried again alone. Alone it was its own."""
        self._changed.set()
        if self._killed:  # its worker was ended by us
            return
        self._log(f"a worker {lost.why} with prompt {flight.rollout.prompt.index} in it")
        if not lost.began:
            self._schedule.again(time.monotonic(), flight)
        elif flight.alone:
            self._suspects.append((flight.rollout.rollout_id, POISON))
            self._end(flight, _lost_attempt(self._spec(flight), lost.why))
        else:
            self._suspects.append((flight.rollout.rollout_id, 1))
            self._schedule.again(time.monotonic(), msgspec.structs.replace(flight, alone=True))
            self._arrived.set()

    def _decided(self, change: Change) -> None:
        """The admission let something be known. A stop ends the run."""
        self._decisions.append(Decision(time.time(), change.kind, change.detail))
        self._arrived.set()
        if change.kind == "stop":  # said at the end, once more than that would be twice
            self.stop()
            return
        self._log(f"{change.kind}: {change.detail}")
        if change.kind == "budget":
            self._changed.set()

    # ---- down: the ledger -----------------------------------------------------------------------------------------

    async def _commit_groups(self) -> None:
        """Commit as long as the run goes; an error of the disk ends the run."""
        try:
            while self._ended or not self._closing:
                with suppress(TimeoutError):
                    async with asyncio.timeout(COMMIT_SECONDS):
                        await self._arrived.wait()
                self._arrived.clear()
                if not self._closing:
                    await asyncio.sleep(LINGER)
                if self._ended or self._decisions or self._suspects or self._admission.budget.at_worst != self._committed_worst:
                    await self._commit()
        except Exception:
            self._schedule.stopping = True
            self._cancel()
            raise

    async def _commit_the_rest(self, committer: asyncio.Task[None]) -> None:
        self._closing = True
        self._arrived.set()
        try:
            await committer
        finally:
            # once more, also after an error: it may have been a view's, or the room or the lock is there by now
            try:
                await self._write([(flight.rollout.rollout_id, attempt) for flight, attempt in self._ended])
            finally:
                self._disk.shutdown()

    async def _commit(self) -> None:
        group = self._ended[:]
        await self._write([(flight.rollout.rollout_id, attempt) for flight, attempt in group])
        del self._ended[: len(group)]
        self._ended_bytes -= sum(len(attempt.record) for _, attempt in group)
        self._committed.set()
        ended_batches = [batch for flight, attempt in group if (batch := self._account(flight, attempt)) is not None]
        self._changed.set()
        for batch in ended_batches:
            await self._on_disk(lambda batch=batch: self._views.write_batch(batch))  # type: ignore[misc]
        if ended_batches and time.monotonic() >= self._checkpoint_due:
            began = time.monotonic()
            await self._on_disk(self._views.write_checkpoint)
            self._checkpoint_due = time.monotonic() + (time.monotonic() - began) / CHECKPOINT_SHARE
        self._all_ended(self.tally.done + self.tally.failed)

    async def _write(self, lines: list[tuple[int, Attempt]]) -> None:
        """One transaction: these attempts, and everything else that there is to say by now."""
        spent, before = self._admission.budget.at_worst, self._spent_before
        session = SessionState(
            seconds=time.monotonic() - self._began,
            cost=spent.cost - before.cost,
            tokens=spent.tokens - before.tokens,
            decisions=tuple(self._decisions),
            suspects=tuple(self._suspects),
        )
        await self._on_disk(lambda: self._ledger.commit(lines, session))
        self._committed_worst = spent
        del self._decisions[: len(session.decisions)]
        del self._suspects[: len(session.suspects)]

    def _account(self, flight: Flight, attempt: Attempt) -> int | None:
        """Count a committed attempt. Returns its batch if that has ended with it."""
        summary, tally = attempt.summary, self.tally
        tally.prompt_tokens += summary.usage.prompt_tokens
        tally.completion_tokens += summary.usage.completion_tokens
        tally.cost += summary.usage.cost
        prompt = flight.rollout.prompt
        preview = prompt.text[: self._preview_chars].replace("\n", " ")
        took = f"{summary.api_calls} calls, {summary.seconds:.1f} s"
        self._detail(f"prompt {prompt.index}: {summary.outcome}, {summary.reason}, {took}: {preview}")
        failed = summary.outcome == "failed"
        if failed:
            self._log(f"prompt {prompt.index}: {summary.error_class}: {summary.error}")
        retry = failed and summary.retryable
        again, batch = self._schedule.ended(time.monotonic(), flight, retry=retry, cost=summary.usage.cost)
        if again:
            return None
        tally.failed += failed
        tally.done += not failed
        tally.discarded += not failed and bool(
            discard_reason(
                assistant_turns=summary.assistant_turns,
                reasoning_turns=summary.reasoning_turns,
                has_unknown_tools=bool(summary.unknown_tools),
                reasoning_filter=self._reasoning_filter,
            )
        )
        return batch

    async def _on_disk(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)


def _lost_attempt(spec: RolloutSpec, why: str) -> Attempt:
    error = WorkerDied(f"its worker process died twice with this prompt in it, the second time with no other (it {why})")
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
    return Attempt(key=spec.key, summary=summarize(record), record=encode_record(record))
