"""`statistics.json` from a ledger whose every number is known."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kiseki.batch.plan import make_plan, read_into_ledger
from kiseki.ledger.ledger import Ledger
from kiseki.ledger.opening import open_ledger
from kiseki.ledger.types import Attempt, RunInfo
from kiseki.trajectory.record import encode_record, summarize
from kiseki.trajectory.types import Message, ModelCall, Outcome, Prompt, Record, ToolRun, Usage
from kiseki.views.build import ViewSettings
from kiseki.views.statistics import make_statistics

SETTINGS = ViewSettings(reasoning_filter=False, tools=("one", "two"))


def attempt(number: int, outcome: Outcome, seconds: float, error_class: str = "") -> Attempt:
    record = Record(
        key=str(number),
        sample_index=0,
        attempt=1,
        seed=0,
        messages=(Message(role="user", content="x"), Message(role="assistant", content="y")),
        prompt_messages=1,
        outcome=outcome,
        reason=error_class or "answered",
        error_class=error_class,
        model="m",
        toolsets=("mine",),
        tools_hash="h",
        calls=(ModelCall(started=0.0, seconds=seconds / 2, usage=Usage(prompt_tokens=3, cost=0.5)),),
        tool_runs=(ToolRun(call_id="c", name="one", ok=number % 2 == 0, seconds=seconds / 4),),
        seconds=seconds,
    )
    return Attempt(record.key, summarize(record), encode_record(record), {"h": "[]"})


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    opened = open_ledger(tmp_path, create=True)
    opened.start_session("{}")
    run = RunInfo(
        run_name="r",
        model="m",
        distribution="d",
        distribution_toolsets={},
        batch_size=50,
        num_samples=1,
        max_turns=10,
        max_tokens=None,
        temperature=None,
        top_p=None,
        seed=0,
        reasoning="",
        reasoning_filter="off",
        ephemeral_system_prompt="",
        prefill="",
        tools="",
    )
    opened.set_meta("run", msgspec.json.encode(run).decode())
    rows = [Prompt(index=number, messages=(Message(role="user", content=str(number)),)) for number in range(210)]
    read_into_ledger(opened, rows, num_samples=1, bad_row=print, planned=lambda rows: None)
    make_plan(opened, num_samples=1, batch_size=50, first_batch=0)
    return opened


def test_totals_and_percentiles(ledger: Ledger) -> None:
    numbered = list(enumerate(each.rollout_id for each in ledger.open_rollouts(9)))
    ends: list[tuple[int, Attempt]] = []
    for number, rollout in numbered[:200]:
        seconds = 4.0 * ((number * 77) % 200 + 1)  # 4 … 800, each once, in no order
        ends.append((rollout, attempt(number, "partial" if number < 20 else "completed", seconds)))
    for number, rollout in numbered[200:206]:
        ends.append((rollout, attempt(number, "failed", 9999.0, "RateLimited" if number < 204 else "AuthError")))
    ledger.commit(ends)
    walks: list[str] = []
    ledger.db.set_trace_callback(lambda statement: walks.append(statement) if "JOIN attempts" in statement else None)
    found = make_statistics(ledger, SETTINGS)
    assert len(walks) == 2, "one over what is done, one over what is open"
    assert found.latency == {
        "rollout": {"p50": 400.0, "p90": 720.0, "p99": 792.0},
        "model": {"p50": 200.0, "p90": 360.0, "p99": 396.0},
        "tools": {"p50": 100.0, "p90": 180.0, "p99": 198.0},
    }
    assert found.outcomes == {"completed": 180, "partial": 20, "discarded": 0, "failed": 6, "pending": 4}
    assert list(found.failed.items()) == [("RateLimited", 4), ("AuthError", 2)]
    assert (found.total_prompts, found.total_rollouts, found.total_batches, found.attempts) == (210, 210, 5, 206)
    assert (found.tokens["prompt"], found.cost) == (618, 103.0)
    assert (found.tool_statistics["one"].success, found.tool_statistics["two"].count) == (100, 0)


def test_a_run_without_an_outcome(ledger: Ledger) -> None:
    found = make_statistics(ledger, SETTINGS)
    assert found.latency == {"rollout": {}, "model": {}, "tools": {}}
    assert (found.outcomes["pending"], found.failed, found.attempts) == (210, {}, 0)


@pytest.mark.parametrize(("count", "expected"), [(1, (1, 1, 1)), (2, (1, 2, 2)), (10, (5, 9, 10)), (100, (50, 90, 99))])
def test_percentiles_are_the_nearest_rank(ledger: Ledger, count: int, expected: tuple[int, ...]) -> None:
    rollouts = [each.rollout_id for each in ledger.open_rollouts(9)][:count]
    ledger.commit([(rollout, attempt(rank, "completed", rank)) for rank, rollout in enumerate(rollouts, 1)])
    assert tuple(make_statistics(ledger, SETTINGS).latency["rollout"].values()) == expected
