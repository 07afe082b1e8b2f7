"""`kiseki log`: what each session was and spent, and why a run slowed down, paused or stopped."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

from support import FAST, kiseki, light_tools, write_dataset

from kiseki.ledger.opening import open_ledger
from kiseki.ledger.types import Decision, SessionState
from kiseki.models.mock_server import MockServer

DECISIONS = (
    Decision(1_770_000_000.0, "limit", "from 64 to 32 at once: 429 [slow down] from the endpoint"),
    Decision(1_770_003_661.9, "pause", "for 30 s: Retry-After"),
)


def cells(text: str) -> list[list[str]]:
    """The lines of the tables."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line.startswith("│")]


def test_sessions_configurations_and_an_empty_log(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": each} for each in ("good", "down", "fine")])
    light = light_tools(tmp_path)
    script = [{"match": "down", "turns": [{"content": "x", "fault": {"kind": "bad_request"}}]}, {"turns": [{"reasoning": "r"}]}]
    with MockServer(script=script) as server:
        base = (
            "batch",
            "--dataset_file=p.jsonl",
            "--run_name=r",
            "--batch_size=3",
            f"--base_url={server.base_url}",
            "--model=mock",
        )
        kiseki(*base, *FAST, *light, cwd=tmp_path, status=None)
        assert "max_turns: 10" in kiseki("log", "data/r", cwd=tmp_path).stdout
        kiseki(*base, *FAST, *light, "--resume", "--max_turns=9", "--force_config", cwd=tmp_path, status=None)
        host = server.base_url.split("/")[2]
    said = kiseki("log", "data/r", cwd=tmp_path).stdout
    configurations = [line for line in cells(said) if len(line) == 2]
    assert sorted(settings for _, settings in configurations) == ["max_turns: 10", "max_turns: 9"]
    listed = kiseki("verify", "data/r", "--list", cwd=tmp_path).stdout
    assert {line.split("\t")[5] for line in listed.splitlines()} == {name for name, _ in configurations}
    lines = [line for line in cells(said) if len(line) == 6]
    assert [line[0] for line in lines if line[0]] == ["1", "2"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", lines[0][1])
    assert (lines[0][2], lines[1][2]) == ("mock", host)
    with sqlite3.connect(tmp_path / "data/r/run.db") as db:
        attempts = db.execute("SELECT session_id, outcome, count(*) FROM attempts GROUP BY 1, 2").fetchall()
    assert [line[5] for line in lines if line[5]] == [f"{outcome} {count}" for _, outcome, count in attempts]
    assert "nothing slowed it down, paused or stopped it" in said


def test_decisions_are_shown_also_while_the_run_goes(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, create=True)
    ledger.start_session('{"model": {"model": "a/b", "base_url": "https://user.example:81/v1"}}')
    ledger.commit((), SessionState(3725.5, 1.25, 12_345, DECISIONS))
    said = kiseki("log", ".", cwd=tmp_path).stdout
    ledger.close()
    sessions, decisions = cells(said)[:2], cells(said)[2:]
    assert [line[2:] for line in sessions] == [
        ["a/b", "3,725.5", "$1.2500", "none"],
        ["user.example:81", "", "12,345", ""],
    ]
    assert decisions == [
        ["2026-02-02 02:40:00", "1", "limit", "from 64 to 32 at once: 429 [slow down] from the endpoint"],
        ["2026-02-02 03:41:01", "1", "pause", "for 30 s: Retry-After"],
    ]


def test_what_is_no_run(tmp_path: Path) -> None:
    assert "has no run.db" in kiseki("log", ".", cwd=tmp_path, status=2).stderr
    (tmp_path / "run.db").write_bytes(b"no database" * 100)
    done = kiseki("log", ".", cwd=tmp_path, status=2)
    assert "is damaged or no ledger (file is not a database)" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    (tmp_path / "run.db").unlink()
    with sqlite3.connect(tmp_path / "run.db") as db:
        db.execute("PRAGMA user_version = 1")
    assert "a database of something else" in kiseki("log", ".", cwd=tmp_path, status=2).stderr
