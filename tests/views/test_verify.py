"""`kiseki verify`: a run that is whole passes, and whatever is done to its ledger or its files is found and named."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import FAST, kiseki, light_tools, start_kiseki, write_dataset

from kiseki.commands.main import main
from kiseki.ledger.opening import open_ledger
from kiseki.models.mock_server import MockServer

SCRIPT = [
    {"match": "down", "turns": [{"content": "x", "fault": {"kind": "bad_request"}}]},
    {"match": "silent", "turns": [{"content": "no thoughts"}]},
    {"turns": [{"content": "ok {{prompt}}", "reasoning": "r"}]},
]
PROMPTS = ["same", "one", "same", "silent", "silent", "silent", "two", "down", "three"]
"""Three batches: whole, all discarded, with a failure."""


def flags(server: MockServer, *more: str) -> tuple[str, ...]:
    base = ("batch", "--dataset_file=p.jsonl", "--run_name=r", "--batch_size=3", f"--base_url={server.base_url}", "--model=mock")
    return (*base, *FAST, "--num_samples=2", *more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, with rows that its dataset no longer has."""
    folder = tmp_path_factory.mktemp("whole")
    light = light_tools(folder)
    with MockServer(script=SCRIPT) as server:
        write_dataset(folder / "p.jsonl", [{"prompt": each} for each in ("gone", "gone")])
        kiseki(*flags(server, *light), cwd=folder)
        write_dataset(folder / "p.jsonl", [{"prompt": each} for each in PROMPTS])
        kiseki(*flags(server, *light, "--resume"), cwd=folder, status=3)
    return folder / "data" / "r"


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    return shutil.copytree(whole, tmp_path / "run")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "run.lock"}


def test_a_whole_run_passes_and_is_left_as_it_was(run: Path) -> None:
    before = contents(run)
    done = kiseki("verify", "run", cwd=run.parent)
    assert contents(run) == before
    assert "run: the ledger is whole, and every file says what it says" in done.stdout
    assert "failed: 2 rollouts" in done.stdout
    table = [re.findall(r"[\w:]+", line) for line in done.stdout.splitlines() if line.startswith("│")]
    assert table == [["completed", "14", "14"], ["discarded:no_reasoning", "6", "6"], ["failed:BadRequest", "2", "2"]]


def test_the_list_has_every_row_and_sample_in_dataset_order(run: Path) -> None:
    done = kiseki("verify", "run", "--list", cwd=run.parent)
    assert "every file says what it says" in done.stderr
    expected = []
    for index, prompt in enumerate(PROMPTS):
        outcome = {"silent": "discarded:no_reasoning", "down": "failed:BadRequest"}.get(prompt, "completed")
        expected += [[str(index), str(sample), outcome, "1", str(1 + index // 3)] for sample in (0, 1)]
    expected += [["-1", str(sample), "completed", "1", "0"] for _ in range(2) for sample in (0, 1)]
    assert [line.split("\t")[:5] for line in done.stdout.splitlines()] == expected


# ---- the files ----------------------------------------------------------------------------------------------------------

Edit = Callable[[Path], object]


def lines_of(name: str, change: Callable[[list[bytes]], list[bytes]]) -> Edit:
    def edit(run: Path) -> None:
        path = run / name
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return edit


def field_of(name: str, field: str) -> Edit:
    def edit(run: Path) -> None:
        content = json.loads((run / name).read_text())
        (run / name).write_text(json.dumps(content | {field: "other"}))

    return edit


def test_time_stamps_may_differ(run: Path) -> None:
    field_of("checkpoint.json", "last_updated")(run)
    field_of("statistics.json", "completed_at")(run)
    kiseki("verify", "run", cwd=run.parent)


MERGED = "trajectories.jsonl"
DAMAGED_FILES: dict[str, tuple[Edit, str]] = {
    "deleted row": (lines_of(MERGED, lambda rows: rows[:3] + rows[4:]), f"{MERGED}: rows missing: 1 (1/1)"),
    "deleted row of no dataset": (lines_of(MERGED, lambda rows: rows[:-1]), f"{MERGED}: rows missing: 1 (-1/1 'gone')"),
    "doubled row": (lines_of(MERGED, lambda rows: [*rows, rows[2]]), f"{MERGED}: rows doubled: 1 (1/0)"),
    "swapped rows": (
        lines_of(MERGED, lambda rows: [rows[1], rows[0], *rows[2:]]),
        f"{MERGED}: rows out of order: 1 (0/0 after 0/1)",
    ),
    "moved row": (lines_of(MERGED, lambda rows: [*rows[1:], rows[0]]), f"{MERGED}: rows out of order: 1 (0/0 after -1/1 'gone')"),
    "edited byte": (
        lines_of(MERGED, lambda rows: [*rows[:6], rows[6].replace(b"ok two", b"ok twp"), *rows[7:]]),
        f"{MERGED}: rows with other content: 1 (6/0)",
    ),
    "foreign row": (
        lines_of(MERGED, lambda rows: [*rows, rows[0].replace(b'"prompt_index":0', b'"prompt_index":70')]),
        f"{MERGED}: rows unexpected: 1 (70/0)",
    ),
    "torn end": (
        lines_of("batch_3.jsonl", lambda rows: [*rows, b'{"prompt_in']),
        "batch_3.jsonl: lines that are no row: 1 (line 5)",
    ),
    "no line end": (lines_of("batch_3.jsonl", lambda rows: [*rows[:-1], rows[-1][:-1]]), "rows with other content: 1 (8/1)"),
    "every row": (lines_of(MERGED, lambda rows: []), "rows missing: 14 (0/0, 0/1, 1/0, 1/1, 2/0, 2/1, 6/0, 6/1, 8/0, 8/1, …)"),
    "no file": (lambda run: (run / MERGED).unlink(), f"{MERGED}: it is not there"),
    "batch deleted": (lambda run: (run / "batch_1.jsonl").unlink(), "batch files that are not there: 1 (batch_1.jsonl)"),
    "batch edited": (lines_of("batch_3.jsonl", lambda rows: rows[1:]), "batch_3.jsonl: rows missing: 1 (6/0)"),
    "batch without rows": (
        lambda run: shutil.copy(run / "batch_1.jsonl", run / "batch_2.jsonl"),
        "batch files of a batch without a kept row: 1 (batch_2.jsonl)",
    ),
    "checkpoint": (field_of("checkpoint.json", "completed_prompts"), "checkpoint.json: fields that say something else: 1"),
    "statistics": (field_of("statistics.json", "cost"), "statistics.json: fields that say something else: 1 (cost)"),
    "unknown field": (field_of("statistics.json", "new"), "statistics.json: fields that say something else: 1 (new)"),
    "no statistics": (lambda run: (run / "statistics.json").unlink(), "statistics.json: it is not there"),
    "no JSON": (lambda run: (run / "checkpoint.json").write_text("{"), "checkpoint.json: it is no JSON object"),
}


@pytest.mark.parametrize("damage", DAMAGED_FILES)
def test_a_damaged_file_is_named_and_a_merge_mends_it(damage: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit, says = DAMAGED_FILES[damage]
    edit(run)
    assert main(["verify", str(run)]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "; kiseki merge" in line]
    assert says in line
    assert main(["merge", str(run)]) == 0
    assert main(["verify", str(run)]) == 0


def test_a_batch_file_from_elsewhere(run: Path) -> None:
    for name in ("batch_77.jsonl", "batch_01.jsonl", "batch_notes.jsonl"):
        shutil.copy(run / "batch_1.jsonl", run / name)
    done = kiseki("verify", "run", cwd=run.parent, status=1)
    assert "batch files that are no part of the run: 2 (batch_01.jsonl, batch_77.jsonl); move them away" in done.stdout


def test_any_change_of_rows_is_found(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    choose = random.Random(11)
    for _ in range(15):
        names = choose.sample(sorted(path.name for path in run.glob("*.jsonl")), 2)
        kept = {name: (run / name).read_bytes() for name in names}
        for name in names:
            rows = kept[name].splitlines(keepends=True)
            change = choose.choice(("byte", "drop", "double", "shuffle"))
            at = choose.randrange(len(rows))
            if change == "byte":
                byte = choose.randrange(len(rows[at]))
                rows[at] = rows[at][:byte] + bytes([rows[at][byte] ^ choose.randint(1, 255)]) + rows[at][byte + 1 :]
            elif change == "drop":
                del rows[at]
            elif change == "double":
                rows.insert(choose.randrange(len(rows)), rows[at])
            else:
                rows.append(rows.pop(choose.randrange(len(rows) - 1)))
            (run / name).write_bytes(b"".join(rows))
        changed = [name for name in names if (run / name).read_bytes() != kept[name]]
        assert main(["verify", str(run)]) == bool(changed)
        said = capsys.readouterr().out
        assert all(f"{name}: " in said for name in changed)
        for name in names:
            (run / name).write_bytes(kept[name])


# ---- the ledger ---------------------------------------------------------------------------------------------------------

PROMPT = "(SELECT id FROM prompts WHERE position = 1)"
ROLLOUT = f"(SELECT id FROM rollouts WHERE prompt_id = {PROMPT} AND sample_index = 1)"
ATTEMPT = f"(SELECT id FROM attempts WHERE rollout_id = {ROLLOUT})"
OTHER = "(SELECT max(id) FROM attempts WHERE outcome = 'completed')"
NO_ATTEMPT = "rollouts whose outcome is that of no attempt of theirs: 1 (1/1); put a copy"
NOT_COUNTED = "rollouts whose attempts are not as many as counted, numbered from 1: 1 (1/1)"
PARTIAL = f"UPDATE rollouts SET outcome = 'partial' WHERE id = {ROLLOUT};"
UNREADABLE = "run.db: it cannot be read"
DAMAGED_LINES = {
    "rollout deleted": (
        f"DELETE FROM rollouts WHERE id = {ROLLOUT}",
        "rows of the dataset without a rollout: 1 (1/1); the same batch command with --resume",
    ),
    "attempts without rollout": (
        f"DELETE FROM rollouts WHERE id = {ROLLOUT}",
        "lines of attempts that belong to no line of rollouts",
    ),
    "shared place": (
        "UPDATE prompts SET position = 1 WHERE position = 2",
        "places in the dataset that several prompts have: 1 (1); the same batch command with --resume",
    ),
    "no prompt": (f"DELETE FROM payloads WHERE prompt_id = {PROMPT}", "rows without their prompt: 1 (1)"),
    "torn prompt": (f"UPDATE payloads SET payload = x'00' WHERE prompt_id = {PROMPT}", "prompts that cannot be read: 1 (1)"),
    "count": (f"UPDATE rollouts SET attempts = 2 WHERE id = {ROLLOUT}", NOT_COUNTED),
    "number": (f"UPDATE attempts SET attempt = 2 WHERE id = {ATTEMPT}", NOT_COUNTED),
    "outcome without attempt": (f"UPDATE rollouts SET attempt_id = NULL WHERE id = {ROLLOUT}", NO_ATTEMPT),
    "attempt of another": (f"UPDATE rollouts SET attempt_id = {OTHER} WHERE id = {ROLLOUT}", NO_ATTEMPT),
    "other outcome": (PARTIAL, NO_ATTEMPT),
    "pending": (
        f"UPDATE rollouts SET outcome = 'pending', attempt_id = NULL WHERE id = {ROLLOUT}",
        "rollouts that are open although an attempt of theirs counts: 1 (1/1)",
    ),
    "paid twice": (f"UPDATE attempts SET rollout_id = {ROLLOUT} WHERE id = {OTHER}", "rollouts paid for twice: 1 (1/1)"),
    "torn record": (f"UPDATE attempts SET record = x'00' WHERE id = {ATTEMPT}", "records that cannot be read: 1 (1/1)"),
    "record of another": (
        f"UPDATE attempts SET record = (SELECT record FROM attempts WHERE id = {OTHER}) WHERE id = {ATTEMPT}",
        "records of another rollout: 1 (1/1)",
    ),
    "outcome of record": (
        f"{PARTIAL} UPDATE attempts SET outcome = 'partial' WHERE id = {ATTEMPT}",
        "records with another outcome than the ledger: 1 (1/1)",
    ),
    "config": (f"UPDATE attempts SET config = 'x' WHERE id = {ATTEMPT}", "attempts whose configuration is not there: 1 (1/1)"),
    "tools": ("DELETE FROM tool_schemas", "records whose tool schemas are not there: 22 ("),
    "run": ("UPDATE meta SET value = '{' WHERE key = 'run'", UNREADABLE),
    "counts": ("UPDATE attempts SET tool_counts = '{' WHERE outcome = 'completed'", UNREADABLE),
    "no text": ("UPDATE meta SET value = CAST(x'ff' AS TEXT) WHERE key = 'run'", UNREADABLE),
}


@pytest.mark.parametrize("damage", DAMAGED_LINES)
def test_a_damaged_ledger_is_named(damage: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    statement, says = DAMAGED_LINES[damage]
    db = sqlite3.connect(run / "run.db", isolation_level=None)  # which checks no foreign keys
    db.executescript(statement)
    db.close()
    assert main(["verify", str(run)]) == 1
    said = capsys.readouterr().out
    assert says in said
    assert "; kiseki merge" not in said, "the files may be what is left of it"


def test_overwritten_bytes_are_reported_whatever_they_hit(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = (run / "run.db").read_bytes()
    middle = len(whole) // 2
    damaged = [whole[: middle - 4096] + b"\xa5" * 8192 + whole[middle + 4096 :], b"\xa5" * 4096 + whole[4096:], whole[:middle]]
    for bytes_now in damaged:
        (run / "run.db").write_bytes(bytes_now)
        assert main(["verify", str(run), "--list"]) == 1
        said = capsys.readouterr()
        assert "run.db" in said.err
        assert "put a copy of run.db back" in said.err
        assert said.out == ""
    choose = random.Random(3)
    for _ in range(25):  # which may hit a place that means nothing
        at = choose.randrange(len(whole) - 100)
        (run / "run.db").write_bytes(whole[:at] + choose.randbytes(100) + whole[at + 100 :])
        assert main(["verify", str(run)]) in (0, 1, 2)
        assert len(capsys.readouterr().err.splitlines()) <= 1


# ---- what is no finished run --------------------------------------------------------------------------------------------


def test_a_folder_that_is_no_run_or_in_use(tmp_path: Path, run: Path) -> None:
    assert "has no run.db" in kiseki("verify", ".", cwd=tmp_path, status=2).stderr
    (tmp_path / "empty").mkdir()
    with_nothing = open_ledger(tmp_path / "empty", create=True)
    assert "in use by process" in kiseki("verify", "empty", cwd=tmp_path, status=2).stderr
    with_nothing.close()
    assert "never started" in kiseki("verify", "empty", cwd=tmp_path, status=2).stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_not_finished(tmp_path: Path, number: signal.Signals) -> None:
    light = light_tools(tmp_path)
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"p{number}"} for number in range(40)])
    with MockServer(turns=0, latency=0.05) as server:
        process = start_kiseki(*flags(server, *light, "--concurrency=4"), cwd=tmp_path)
        while process.poll() is None and server.stats()["calls"] < 20:
            time.sleep(0.01)
        os.kill(process.pid, number)
        process.communicate()
        if number == signal.SIGKILL:  # no file was written any more
            done = kiseki("verify", "data/r", cwd=tmp_path, status=3)
            assert "the last session was ended before it made its files; --resume does, or kiseki merge data/r" in done.stdout
            kiseki("merge", "data/r", cwd=tmp_path)
            (tmp_path / "data/r/trajectories.jsonl").unlink()
            done = kiseki("verify", "data/r", cwd=tmp_path, status=1)
            assert "trajectories.jsonl: it is not there; kiseki merge data/r makes it again" in done.stdout
            kiseki("merge", "data/r", cwd=tmp_path)
        done = kiseki("verify", "data/r", cwd=tmp_path, status=3)
        assert "every file says what it says" in done.stdout
        assert "the run is not finished" in done.stdout
        kiseki(*flags(server, *light, "--resume"), cwd=tmp_path)
    assert "pending" not in kiseki("verify", "data/r", cwd=tmp_path).stdout
