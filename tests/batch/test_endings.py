"""How a session ends, and what the next one knows of it: budgets, kills, refusals, workers that do not start."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support import FAST, IN_PROCESS_TOOL, kiseki, light_tools, read_rows, start_kiseki, write_dataset

from kiseki.models.mock_server import MockServer

USAGE = {"prompt_tokens": 1000, "completion_tokens": 900, "total_tokens": 1900}
CALL = {"reasoning": "r", "tool_calls": [{"name": "shout", "arguments": {"text": "hi"}}], "usage": USAGE}
ANSWER = {"content": "ok", "reasoning": "r"}


def flags(folder: Path, server: MockServer, *more: str) -> tuple[str, ...]:
    base = ("batch", "--dataset_file=p.jsonl", "--run_name=r", "--batch_size=10", f"--base_url={server.base_url}", "--model=m")
    return (*base, *light_tools(folder), *more)


def prompts(folder: Path, *texts: str) -> None:
    write_dataset(folder / "p.jsonl", [{"prompt": text} for text in texts])


def ledger(folder: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "data/r/run.db")) as db:
        return db.execute(query).fetchall()


def outcomes(folder: Path) -> list[tuple[Any, ...]]:
    return ledger(folder, "SELECT outcome, suspect, count(*) FROM rollouts GROUP BY 1, 2 ORDER BY 1")


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)


# ---- budgets ------------------------------------------------------------------------------------------------------------


def test_the_rows_that_a_budget_cut_short_have_their_schemas(tmp_path: Path) -> None:
    """Also when the first rollouts of the worker that ended were those that it let nothing begin."""
    prompts(tmp_path, *(f"p{number}" for number in range(12)))
    budget = ("--concurrency=12", "--max_tokens=1000", "--max_total_tokens=4000")
    with MockServer([{"turns": [CALL, ANSWER]}], latency=0.2) as server:
        kiseki(*flags(tmp_path, server, *FAST, *budget), cwd=tmp_path, status=3)
    rows = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert {row["metadata"]["stop_reason"] for row in rows} == {"budget"}
    assert outcomes(tmp_path) == [("partial", 0, len(rows)), ("pending", 0, 12 - len(rows))]
    kiseki("verify", "data/r", cwd=tmp_path, status=3)


def test_a_budget_that_nothing_was_left_by(tmp_path: Path) -> None:
    prompts(tmp_path, "p")
    with MockServer([{"turns": [CALL, ANSWER]}]) as server:
        done = kiseki(*flags(tmp_path, server, *FAST, "--max_tokens=1000", "--max_total_tokens=2000"), cwd=tmp_path)
    assert "rollouts that it cut short, kept as partial: 1" in done.stdout
    assert "--resume" not in done.stdout, "there is nothing to go on with"


def test_a_call_that_does_not_fit_leaves_the_budget_to_others(tmp_path: Path) -> None:
    prompts(tmp_path, "x" * 300_000, *(f"p{number}" for number in range(20)))
    budget = ("--concurrency=1", "--max_tokens=1000", "--max_total_tokens=90000")
    with MockServer(turns=0) as server:
        done = kiseki(*flags(tmp_path, server, *FAST, *budget), cwd=tmp_path, status=3)
        assert server.stats()["calls"] == 20
    assert outcomes(tmp_path) == [("completed", 0, 20), ("pending", 0, 1)]
    assert "1 rollouts were left by the budget; a higher one with --resume runs them" in done.stdout


# ---- kills --------------------------------------------------------------------------------------------------------------

AT_ONCE, WORST = 8, 1000
"""Calls under way, and what each may cost at least: its reply."""
UNDER_WAY = ("--num_workers=2", f"--concurrency={AT_ONCE}", f"--max_tokens={WORST}")


def tokens(folder: Path) -> int:
    return sum(tokens for (tokens,) in ledger(folder, "SELECT tokens FROM sessions"))


@pytest.mark.parametrize("engine", ["inprocess", "processes"])
def test_what_was_under_way_at_ctrl_c_counts_as_spent(tmp_path: Path, engine: str) -> None:
    prompts(tmp_path, *(f"p{number}" for number in range(AT_ONCE)))
    with MockServer(turns=0, latency=60) as server:
        process = start_kiseki(*flags(tmp_path, server, *UNDER_WAY, f"--engine={engine}"), cwd=tmp_path)
        wait_until(lambda: server.stats()["calls"] == AT_ONCE, process)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        process.communicate()
    assert tokens(tmp_path) > AT_ONCE * WORST


def test_what_was_under_way_at_a_kill_counts_as_spent(tmp_path: Path) -> None:
    """So that sessions that are killed again and again do not each spend the whole budget."""
    prompts(tmp_path, *(f"p{number}" for number in range(2 * AT_ONCE)))
    with MockServer(turns=0, latency=5) as server:
        command = flags(tmp_path, server, *UNDER_WAY, "--engine=inprocess")
        process = start_kiseki(*command, cwd=tmp_path)
        wait_until(lambda: server.stats()["calls"] == AT_ONCE and tokens(tmp_path) > AT_ONCE * WORST, process)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        done = kiseki(*command, "--resume", f"--max_total_tokens={tokens(tmp_path)}", cwd=tmp_path, status=3)
        assert server.stats()["calls"] == AT_ONCE
    assert "the budget is spent" in done.stdout
    assert outcomes(tmp_path) == [("pending", 0, 2 * AT_ONCE)]


# ---- the endpoint and the workers ---------------------------------------------------------------------------------------


def test_prompts_that_are_refused_each_by_itself_do_not_stop_a_resume(tmp_path: Path) -> None:
    """They are all that is left: more of them in a row than show, in a new run, that its set-up is wrong."""
    prompts(tmp_path, "good", *(f"bad {number}" for number in range(24)))
    refused = {"match": "bad", "turns": [{"content": "x", "fault": {"kind": "bad_request"}}]}
    with MockServer([refused, {"turns": [ANSWER]}]) as server:
        for more in ((), ("--resume",)):
            done = kiseki(*flags(tmp_path, server, *FAST, "--concurrency=1", *more), cwd=tmp_path, status=3)
            assert "24 rollouts failed" in done.stdout
        assert server.stats()["calls"] == 1 + 2 * 24


def test_workers_that_die_while_they_start_are_nobody_s_doing(tmp_path: Path) -> None:
    """Neither the first time nor alone, where a prompt that its worker dies with is given up."""
    prompts(tmp_path, *(f"p{number}" for number in range(16)))
    with MockServer(turns=0) as server:
        command = flags(tmp_path, server, "--num_workers=2", "--concurrency=2", "--engine=processes")
        (tmp_path / "mine.py").write_text("import os, sys\nif 'batch' not in sys.argv:\n    os._exit(9)\n" + IN_PROCESS_TOOL)
        for suspect, more in ((0, ()), (1, ("--resume",))):
            failed = kiseki(*command, *more, cwd=tmp_path, status=1)
            assert "workers in a row died while they started (last exit status 9)" in failed.stderr
            assert len(failed.stderr.splitlines()) == 1
            assert outcomes(tmp_path) == [("pending", suspect, 16)]
            with closing(sqlite3.connect(tmp_path / "data/r/run.db")) as db, db:
                db.execute("UPDATE rollouts SET suspect = 1")
        assert server.stats()["calls"] == 0
