"""The driver's promise under a slow disk: whatever has ended is committed, also when the run is stopped at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from kiseki.batch.driver import Driver, Tally
from kiseki.batch.engines import Give
from kiseki.batch.plan import make_plan, read_into_ledger
from kiseki.ledger.ledger import Ledger, open_ledger
from kiseki.ledger.types import Attempt, SessionState
from kiseki.models.admission import Admission
from kiseki.models.breaker import Breaker
from kiseki.models.budget import Budget
from kiseki.models.rate_limit import RateLimit
from kiseki.trajectory.record import encode_record, summarize
from kiseki.trajectory.types import Message, Prompt, Record, RolloutSpec
from kiseki.views.build import Views, ViewSettings

PROMPTS = 2000


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
    return Attempt(spec.key, summarize(record), encode_record(record), "h", "[]")


class Instant:
    """An engine whose rollouts end as soon as they begin. Counts what it has given back."""

    def __init__(self) -> None:
        self.given = 0

    async def run(self, specs: AsyncIterator[RolloutSpec], give: Give) -> None:
        async for spec in specs:
            give(attempt(spec))
            self.given += 1
            await asyncio.sleep(0)

    def kill(self) -> None:
        pass

    async def close(self) -> None:
        pass


def test_what_has_ended_is_committed_when_it_is_stopped_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = open_ledger(tmp_path, create=True)
    ledger.start_session("{}")
    rows = [Prompt(index=n, messages=(Message(role="user", content=f"p{n}"),)) for n in range(PROMPTS)]
    read_into_ledger(ledger, rows, num_samples=1, bad_row=lambda row: None, planned=lambda rows: None)
    plan = make_plan(ledger, num_samples=1, batch_size=PROMPTS, first_batch=0)
    commit = Ledger.commit

    def slowly(self: Ledger, attempts: Sequence[tuple[int, Attempt]], session: SessionState) -> None:
        time.sleep(0.3)
        commit(self, attempts, session)

    monkeypatch.setattr(Ledger, "commit", slowly)
    engine = Instant()
    driver = Driver(
        ledger,
        engine,
        Admission(RateLimit(10), Breaker(300), Budget()),
        Views(ledger, ViewSettings(False, ("shout",))),
        batches=plan.batches,
        tally=Tally(total=PROMPTS),
        draw=lambda key: ("mine",),
        run_seed=0,
        num_samples=1,
        max_attempts=1,
        reasoning_filter=False,
        preview_chars=10,
        log=lambda line: None,
        detail=lambda line: None,
    )

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
