"""The ledger: an outcome is whole or not there, one process at a time, and bad files are named."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from support import FAST, kiseki, light_tools, read_rows, write_dataset

from kiseki.batch.plan import make_plan, read_into_ledger
from kiseki.batch.prompts import BadRow
from kiseki.errors import DatasetError, LedgerError
from kiseki.ledger.ledger import Ledger
from kiseki.ledger.opening import open_ledger
from kiseki.ledger.types import Attempt, SessionState
from kiseki.models.mock_server import MockServer
from kiseki.trajectory.record import decode_record, encode_record, summarize
from kiseki.trajectory.types import Message, Outcome, Prompt, Record, Usage


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
    return Attempt(key, summarize(record), encode_record(record), {"h": "[]"})


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


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.ENOLCK])
def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(LedgerError, match=r"gives no locks .*--output_dir"):
        open_ledger(tmp_path, create=True)
    assert not (tmp_path / "run.db").exists()


def test_what_sqlite_says_leaves_a_ledger_in_words(tmp_path: Path) -> None:
    with (
        pytest.raises(LedgerError, match=r"is damaged or no ledger \(no such table"),
        open_ledger(tmp_path, create=True) as ledger,
    ):
        ledger.db.execute("SELECT * FROM nowhere")
    with pytest.raises(sqlite3.ProgrammingError), open_ledger(tmp_path, create=False) as ledger:
        ledger.db.execute("SELECT ?", ())  # a mistake of ours is no damage
    open_ledger(tmp_path, create=False).close()


TO_VERSION_3 = """
ALTER TABLE attempts DROP COLUMN context_cuts;
ALTER TABLE attempts DROP COLUMN cache_write_tokens;
ALTER TABLE attempts DROP COLUMN fallback_calls;
PRAGMA user_version = 3;
"""
TO_VERSION_2 = f"""
{TO_VERSION_3}
ALTER TABLE attempts DROP COLUMN children;
PRAGMA user_version = 2;
"""
TO_VERSION_1 = f"""
{TO_VERSION_2}
ALTER TABLE rollouts DROP COLUMN suspect;
ALTER TABLE attempts DROP COLUMN tool_timeouts;
ALTER TABLE attempts DROP COLUMN redacted;
ALTER TABLE attempts DROP COLUMN config;
ALTER TABLE sessions DROP COLUMN cost;
ALTER TABLE sessions DROP COLUMN tokens;
DROP TABLE configs;
DROP TABLE decisions;
PRAGMA user_version = 1;
"""
"""What later versions added, taken away again: the rest is in them as it was."""


def columns(path: Path) -> dict[str, set[tuple[object, ...]]]:
    """Table → name, type, whether it may be NULL, default and key of its columns."""
    with closing(sqlite3.connect(path)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: {line[1:] for line in db.execute(f"PRAGMA table_info({name})")} for name in tables}


@pytest.mark.parametrize("back", [TO_VERSION_1, TO_VERSION_2, TO_VERSION_3])
def test_a_ledger_of_an_older_version_is_brought_to_this_one(tmp_path: Path, back: str) -> None:
    """With what is in it: a run goes on, and nothing that was done is done again."""
    write_dataset(tmp_path / "p.jsonl", [{"prompt": each} for each in "abc"])
    path = tmp_path / "data/r/run.db"
    with MockServer(turns=0) as server:
        base = ("batch", "--dataset_file=p.jsonl", "--run_name=r", "--batch_size=3", f"--base_url={server.base_url}")
        flags = (*base, "--model=m", *FAST, *light_tools(tmp_path))
        kiseki(*flags, "--max_samples=2", cwd=tmp_path)
        new, before = columns(path), read_rows(tmp_path / "data/r/trajectories.jsonl")
        with closing(sqlite3.connect(path)) as db:
            db.executescript(back)
        assert columns(path) != new
        for file in (tmp_path / "data/r").glob("batch_*.jsonl"):  # as that version wrote them: rows had less
            write_dataset(file, [{**row, "metadata": {"model": "m"}} for row in read_rows(file)])
        kiseki(*flags, "--resume", cwd=tmp_path)
        assert server.stats()["calls"] == 3
    kiseki("verify", "data/r", cwd=tmp_path)
    assert columns(path) == new
    after = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert (after[:2], [row["prompt"] for row in after]) == (before, ["a", "b", "c"])
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT suspect FROM rollouts").fetchall() == [(0,)] * 3
        names = ("tool_timeouts", "redacted", "children", "context_cuts", "cache_write_tokens", "fallback_calls")
        assert db.execute(f"SELECT {', '.join(names)} FROM attempts LIMIT 1").fetchone() == (0,) * len(names)
        (config,) = db.execute("SELECT config FROM attempts LIMIT 1").fetchone()
        assert (config == "") is (back == TO_VERSION_1)


def test_what_was_spent_is_counted_session_by_session(ledger: Ledger) -> None:
    """One of version 1 says nothing itself, so there it is what its attempts took; a later one has calls beside those."""
    plan(ledger, ["a", "b"])
    a, b = [each.rollout_id for each in ledger.open_rollouts(9)]
    for rollout_id, took, session in ((a, 10.0, SessionState()), (b, 5.0, SessionState(cost=7.0, tokens=70))):
        ended = attempt(str(rollout_id), "completed")
        usage = Usage(prompt_tokens=int(took), completion_tokens=int(took) * 9, cost=took)
        ledger.commit([(rollout_id, replace(ended, summary=replace(ended.summary, usage=usage)))], session)
        ledger.start_session("{}")
    assert ledger.spent() == (17.0, 170)


def test_a_migration_that_fails_leaves_version_1(tmp_path: Path) -> None:
    open_ledger(tmp_path, create=True).close()
    with closing(sqlite3.connect(tmp_path / "run.db")) as db:
        db.executescript(TO_VERSION_1)
        db.execute("CREATE TABLE decisions (in_the_way TEXT)")
        before = columns(tmp_path / "run.db")
    with pytest.raises(LedgerError, match="decisions already exists"):
        open_ledger(tmp_path, create=False)
    assert columns(tmp_path / "run.db") == before
