"""The driver's promises, whatever disk, engine and user do: what has ended is committed, and deaths are remembered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec
import pytest

from kiseki.batch.driver import MAX_UNCOMMITTED_BYTES, Driver, Tally
from kiseki.batch.engines import Engine, Give, Lost
from kiseki.batch.plan import make_plan, read_into_ledger
from kiseki.ledger.ledger import Ledger
from kiseki.ledger.opening import open_ledger
from kiseki.ledger.types import Attempt, SessionState
from kiseki.models.admission import Admission
from kiseki.models.breaker import Breaker
from kiseki.models.budget import Budget
from kiseki.models.rate_limit import RateLimit
from kiseki.trajectory.record import encode_record, summarize
from kiseki.trajectory.types import Message, Prompt, Record, RolloutSpec
from kiseki.views.build import Views, ViewSettings

PROMPTS = 2000


def driver_of(folder: Path, engine: Engine, prompts: int) -> tuple[Driver, Ledger]:
    ledger = open_ledger(folder, create=True)
    ledger.start_session("{}")
    rows = [Prompt(index=n, messages=(Message(role="user", content=f"p{n}"),)) for n in range(prompts)]
    read_into_ledger(ledger, rows, num_samples=1, bad_row=lambda row: None, planned=lambda rows: None)
    plan = make_plan(ledger, num_samples=1, batch_size=prompts, first_batch=0)
    driver = Driver(
        ledger,
        engine,
        Admission(RateLimit(10), Breaker(300), Budget()),
        Views(ledger, ViewSettings(False, ("shout",))),
        batches=plan.batches,
        tally=Tally(total=prompts),
        draw=lambda key: ("mine",),
        run_seed=0,
        num_samples=1,
        max_attempts=1,
        reasoning_filter=False,
        preview_chars=10,
        log=lambda line: None,
        detail=lambda line: None,
    )
    return driver, ledger


def attempt(spec: RolloutSpec) -> Attempt:
    record = Record(
        key=spec.key,
        sample_index=0,
        attempt=1,
        seed=0,
        messages=(*spec.prompt.messages, Message(role="assistant", content="ok", reasoning="r")),
        prompt_messages=1,
        outcome="completed",
        reason="answered",
        model="m",
        toolsets=("mine",),
        tools_hash="h",
    )
    return Attempt(spec.key, summarize(record), encode_record(record), {"h": "[]"})


class Instant:
    """An engine whose rollouts end as soon as they begin, with `record` where that is given. Counts what it has given back."""

    def __init__(self, record: bytes = b"") -> None:
        self.given = 0
        self._record = record

    async def run(self, specs: AsyncIterator[RolloutSpec], give: Give) -> None:
        async for spec in specs:
            ended = attempt(spec)
            give(msgspec.structs.replace(ended, record=self._record) if self._record else ended)
            self.given += 1
            await asyncio.sleep(0)

    def kill(self) -> None:
        pass

    async def close(self) -> None:
        pass


def test_what_has_ended_is_committed_when_it_is_stopped_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Ledger.commit

    def slowly(self: Ledger, attempts: Sequence[tuple[int, Attempt]], session: SessionState) -> None:
        time.sleep(0.3)
        commit(self, attempts, session)

    monkeypatch.setattr(Ledger, "commit", slowly)
    engine = Instant()
    driver, ledger = driver_of(tmp_path, engine, PROMPTS)

    async def stopped() -> None:
        running = asyncio.create_task(driver.run())
        while engine.given < 100:
            await asyncio.sleep(0)
        driver.stop_now()
        await running

    asyncio.run(stopped())
    (committed,) = ledger.db.execute("SELECT count(*) FROM attempts").fetchone()
    assert committed == engine.given
    assert committed < PROMPTS


class Unclosable(Instant):
    """Ends before the disk has anything of what it gave, and cannot clear up."""

    async def run(self, specs: AsyncIterator[RolloutSpec], give: Give) -> None:
        async for spec in specs:
            ended = attempt(spec)
            give(msgspec.structs.replace(ended, record=self._record) if self._record else ended)
            self.given += 1
            if self.given == 8:
                await asyncio.sleep(0)  # so that they are taken notice of
                return

    async def close(self) -> None:
        raise PermissionError(13, "Permission denied")


def test_what_has_ended_is_committed_when_the_engine_cannot_be_closed(tmp_path: Path) -> None:
    driver, ledger = driver_of(tmp_path, Unclosable(), 9)
    with pytest.raises(PermissionError):
        asyncio.run(driver.run())
    assert ledger.db.execute("SELECT count(*) FROM rollouts WHERE outcome = 'completed'").fetchone() == (8,)


class Dying(Instant):
    """Its worker dies while the run stops: with everything that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.stop: Callable[[], None] = lambda: None

    async def run(self, specs: AsyncIterator[RolloutSpec], give: Give) -> None:
        async for spec in specs:
            self.stop()
            give(Lost(spec.key))


@pytest.mark.parametrize("ours", [False, True])
def test_a_worker_that_dies_while_the_run_stops(tmp_path: Path, ours: bool) -> None:
    """By itself, as any other time; but not when workers were just told to die."""
    engine = Dying()
    driver, ledger = driver_of(tmp_path, engine, 3)
    engine.stop = driver.stop_now if ours else driver.stop
    asyncio.run(driver.run())
    suspects = ledger.db.execute("SELECT suspect, outcome FROM rollouts ORDER BY id").fetchall()
    assert suspects == [(0 if ours else 1, "pending"), (0, "pending"), (0, "pending")]


def test_few_large_records_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count, record = 40, bytes(20_000_000)
    engine, groups = Instant(record), list[int]()

    def commit(self: Ledger, attempts: Sequence[tuple[int, Attempt]], session: SessionState) -> None:
        groups.append(len(attempts))

    monkeypatch.setattr(Ledger, "commit", commit)
    monkeypatch.setattr(Views, "write_batch", lambda self, batch: None)
    monkeypatch.setattr(Views, "write_checkpoint", lambda self: None)
    driver, ledger = driver_of(tmp_path, engine, count)
    asyncio.run(driver.run())
    ledger.close()
    assert sum(groups) == engine.given == count
    assert max(groups) <= MAX_UNCOMMITTED_BYTES // len(record) + 1
