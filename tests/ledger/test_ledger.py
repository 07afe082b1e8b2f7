"""The ledger: an outcome is whole or not there, one process at a time, and bad files are named."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kiseki.batch.plan import make_plan, read_into_ledger
from kiseki.batch.prompts import BadRow
from kiseki.errors import DatasetError, LedgerError
from kiseki.ledger.ledger import Ledger, open_ledger
from kiseki.ledger.types import Attempt
from kiseki.trajectory.record import decode_record, encode_record, summarize
from kiseki.trajectory.types import Message, Outcome, Prompt, Record


def prompt(index: int, text: str) -> Prompt:
    return Prompt(index=index, messages=(Message(role="user", content=text),))


def read(ledger: Ledger, rows: Sequence[Prompt | BadRow], num_samples: int = 1) -> None:
    read_into_ledger(ledger, rows, num_samples=num_samples, bad_row=lambda row: None, planned=lambda rows: None)


def plan(ledger: Ledger, texts: list[str], *, num_samples: int = 1, batch_size: int = 2) -> dict[int, int]:
    read(ledger, [prompt(index, text) for index, text in enumerate(texts)], num_samples)
    return make_plan(ledger, num_samples=num_samples, batch_size=batch_size, first_batch=0).batches


def attempt(key: str, outcome: Outcome) -> Attempt:
    record = Record(
        key=key,
        sample_index=0,
        attempt=1,
        seed=0,
        messages=(Message(role="user", content="x"), Message(role="assistant", content=outcome)),
        prompt_messages=1,
        outcome=outcome,
        reason="answered",
        model="m",
        toolsets=("mine",),
        tools_hash="h",
    )
    return Attempt(key, summarize(record), encode_record(record), "h", tools_json="[]")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    opened = open_ledger(tmp_path, create=True)
    opened.start_session("{}")
    return opened


def test_done_is_never_replaced_and_failed_is_run_again(ledger: Ledger) -> None:
    assert plan(ledger, ["a", "b", "c"]) == {0: 2, 1: 1}
    a, b, _c = [each.rollout_id for each in ledger.open_rollouts(9)]
    ledger.commit([(a, attempt("a", "completed")), (b, attempt("b", "failed"))])
    assert plan(ledger, ["a", "b", "c"]) == {1: 2}, "what is left is batched anew, after the batches there are"
    assert [each.attempts for each in ledger.open_rollouts(9)] == [1, 0]
    ledger.commit([(a, attempt("a", "failed")), (b, attempt("b", "partial"))])
    done = list(ledger.done_rollouts())
    assert [(each.position, each.outcome) for each in done] == [(0, "completed"), (1, "partial")]
    assert [attempts for (attempts,) in ledger.db.execute("SELECT attempts FROM rollouts")] == [2, 2, 0]
    assert decode_record(done[0].record).messages[1].content == "completed"
    assert [each.position for each in ledger.done_in_batch(1)] == [1]


def test_a_group_is_committed_whole_or_not_at_all(ledger: Ledger) -> None:
    plan(ledger, ["a", "b"])
    a, b = [each.rollout_id for each in ledger.open_rollouts(9)]
    with pytest.raises(TypeError):  # no such rollout: nothing of the group may stay
        ledger.commit([(a, attempt("a", "completed")), (999, attempt("x", "completed")), (b, attempt("b", "completed"))])
    assert ledger.db.execute("SELECT count(*) FROM attempts").fetchone() == (0,)
    assert len(list(ledger.open_rollouts(9))) == 2


def test_equal_rows_and_samples_are_separate(ledger: Ledger) -> None:
    assert plan(ledger, ["same", "other", "same"], num_samples=2) == {0: 4, 1: 2}
    keys = {(each.prompt_key, each.sample_index) for each in ledger.open_rollouts(9)}
    assert len(keys) == 6
    plan(ledger, ["same", "same", "other", "same"], num_samples=1)
    again = {(each.prompt_key, each.sample_index) for each in ledger.open_rollouts(9)}
    assert len(again) == 4
    assert {each for each in keys if each[1] == 0} < again


def test_other_columns_are_not_part_of_the_key(ledger: Ledger) -> None:
    for source in ('{"a":1}', '{"a":2}'):
        rows = [Prompt(index=0, messages=(Message(role="user", content="a"),), source=source)]
        read(ledger, rows)
        (one,) = ledger.open_rollouts(9)
        assert one.prompt.source == source
    for change in ({"image": "i"}, {"cwd": "/w"}):
        rows = [Prompt(index=0, messages=(Message(role="user", content="a"),), **change)]
        read(ledger, rows)
        (other,) = ledger.open_rollouts(9)
        assert other.prompt_key != one.prompt_key


def test_a_dataset_without_a_usable_row(ledger: Ledger) -> None:
    bad = [BadRow(3, "it is null"), BadRow(4, "it is a number")]
    with pytest.raises(DatasetError, match=r"no usable row \(2 unusable; line 3: it is null\)"):
        read(ledger, bad)


def test_the_walk_covers_every_page_in_order(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiseki.ledger.ledger.PAGE", 3)
    plan(ledger, [f"p{number}" for number in range(10)], num_samples=2)
    opened = list(ledger.open_rollouts(9))
    assert [(each.prompt.index, each.sample_index) for each in opened] == [(i, k) for i in range(10) for k in (0, 1)]
    ledger.commit([(each.rollout_id, attempt(str(each.rollout_id), "completed")) for each in reversed(opened)])
    assert [(each.position, each.sample_index) for each in ledger.done_rollouts()] == [(i, k) for i in range(10) for k in (0, 1)]
    plan(ledger, ["p7", "p2"], num_samples=2)
    order = [(each.position, each.sample_index) for each in ledger.done_rollouts()]
    assert order == [(0, 0), (0, 1), (1, 0), (1, 1)] + [(-1, k) for _ in range(8) for k in (0, 1)]


def test_a_lock_goes_with_its_process(tmp_path: Path) -> None:
    code = "import os, sys; from pathlib import Path; from kiseki.ledger.ledger import open_ledger\n"
    code += "open_ledger(Path(sys.argv[1]), create=True); os._exit(9)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    first = open_ledger(tmp_path, create=True)
    with pytest.raises(LedgerError, match="in use by process"):
        open_ledger(tmp_path, create=True)
    first.close()
    open_ledger(tmp_path, create=False).close()


def test_files_that_are_no_ledger_are_named(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"has no run\.db"):
        open_ledger(tmp_path, create=False)
    (tmp_path / "run.db").write_bytes(b"this is not a database, whatever its name says" * 100)
    with pytest.raises(LedgerError, match="not a database"):
        open_ledger(tmp_path, create=False)
    (tmp_path / "run.db").unlink()
    with sqlite3.connect(tmp_path / "run.db") as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(LedgerError, match="format 99"):
        open_ledger(tmp_path, create=False)
    with pytest.raises(ValueError, match="cannot be read"):
        decode_record(b"damaged")
