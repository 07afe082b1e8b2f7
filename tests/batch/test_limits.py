"""Rate limits, outages, refusals and budgets of whole runs, with worker processes: the endpoint's limits are one for all."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from support import FAST, kiseki, light_tools, read_rows, start_kiseki, write_dataset

from kiseki.models.mock_server import MockServer

WORKERS = ("--num_workers=2", "--concurrency=12")


def flags(folder: Path, server: MockServer, *more: str) -> tuple[str, ...]:
    base = ("batch", "--dataset_file=p.jsonl", "--run_name=r", "--batch_size=10", f"--base_url={server.base_url}", "--model=mock")
    return (*base, *light_tools(folder), *more)


def prompts(folder: Path, count: int) -> None:
    write_dataset(folder / "p.jsonl", [{"prompt": f"question {number}"} for number in range(count)])


def decisions(folder: Path) -> list[tuple[str, str]]:
    with sqlite3.connect(folder / "data/r/run.db") as db:
        return db.execute("SELECT kind, detail FROM decisions ORDER BY id").fetchall()


def statistics(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "data/r/statistics.json").read_text())
    return found


def test_an_endpoint_that_takes_few_at_once_delays_and_fails_nothing(tmp_path: Path) -> None:
    """Four at once, twelve wanted by two workers: they learn it together. And being held up is not being slow."""
    prompts(tmp_path, 80)
    with MockServer(turns=1, max_in_flight=4, retry_after=0.8, latency=0.1) as server:
        # the pauses alone are longer than a rollout may take, which is long enough for a machine that does much else
        kiseki(*flags(tmp_path, server, *WORKERS, "--prompt_timeout=3.2", "--max_attempts=1"), cwd=tmp_path)
        stats = server.stats()
    assert statistics(tmp_path)["outcomes"]["completed"] == 80
    assert stats["by_status"]["200"] == 160
    learnt = [re.search(r"→ (\d+) requests at once.*HTTP 429", detail) for kind, detail in decisions(tmp_path) if kind == "limit"]
    assert min(int(each[1]) for each in learnt if each) < 12, "which the two workers wanted together"
    assert "HTTP 429" in kiseki("log", "data/r", cwd=tmp_path, COLUMNS="400").stdout
    waited = [row for row in read_rows(tmp_path / "data/r/trajectories.jsonl") if row["completed"]]
    assert len(waited) == 80


def test_no_credit_stops_the_run_at_once_and_keeps_what_was_done(tmp_path: Path) -> None:
    prompts(tmp_path, 40)
    with MockServer(turns=0, latency=0.05, fail_after=16, fail_kind="no_credit") as server:
        stopped = kiseki(*flags(tmp_path, server, *WORKERS), cwd=tmp_path, status=1)
        calls = server.stats()["calls"]
    assert len(stopped.stderr.splitlines()) == 1
    assert "HTTP 402: Insufficient credits" in stopped.stderr
    assert "--resume" in stopped.stderr
    assert calls <= 15 + 12, "no call beyond those that were under way"
    assert len(read_rows(tmp_path / "data/r/trajectories.jsonl")) == 15
    assert [kind for kind, _ in decisions(tmp_path)] == ["stop"]
    kiseki("verify", "data/r", cwd=tmp_path, status=3)
    with MockServer(turns=0) as server:
        kiseki(*flags(tmp_path, server, *WORKERS, "--resume"), cwd=tmp_path)
        assert server.stats()["calls"] == 25
    kiseki("verify", "data/r", cwd=tmp_path)


def test_a_model_that_is_not_there_stops_the_run(tmp_path: Path) -> None:
    prompts(tmp_path, 200)
    with MockServer(turns=0, faults={"bad_request": 1.0}) as server:
        stopped = kiseki(*flags(tmp_path, server, *WORKERS), cwd=tmp_path, status=1)
        assert server.stats()["calls"] < 60
    assert "the endpoint has refused the last 20 calls" in stopped.stderr


@pytest.mark.parametrize(("at_once", "lasts", "count"), [(12, 14, 30), (4, 4, 4)])
def test_an_outage_costs_time_and_no_rollout(tmp_path: Path, at_once: int, lasts: int, count: int) -> None:
    prompts(tmp_path, count)
    with MockServer(turns=1, latency=0.3, fail_after=1, fail_kind="error_500", fail_for=lasts) as server:
        # in one process, so that all have asked before the first is answered
        more = (f"--concurrency={at_once}", "--engine=inprocess", "--max_attempts=1")
        done = kiseki(*flags(tmp_path, server, *more), cwd=tmp_path)
        stats = server.stats()
    assert statistics(tmp_path)["outcomes"]["completed"] == count
    assert statistics(tmp_path)["attempts"] == count, "no attempt was spent on it"
    assert stats["by_status"] == {"200": 2 * count, "500": lasts}
    assert [kind for kind, _ in decisions(tmp_path)] == ["fault", "hold", "resume"]
    assert "hold: " in done.stdout


@pytest.mark.parametrize("kind", ["error_500", "rate_limit"])
def test_patience_has_an_end_and_what_waits_stays_open(tmp_path: Path, kind: str) -> None:
    prompts(tmp_path, 30)
    with MockServer(turns=0, latency=0.05, retry_after=0.2, fail_after=7, fail_kind=kind) as server:
        stopped = kiseki(*flags(tmp_path, server, *WORKERS, "--provider_patience=1.5"), cwd=tmp_path, status=1)
    assert "no model call has succeeded for" in stopped.stderr
    outcomes = statistics(tmp_path)["outcomes"]
    assert outcomes["completed"] == 6
    assert outcomes["pending"] + outcomes["failed"] == 24
    if kind == "rate_limit":
        assert outcomes["failed"] == 0, "being turned away is nobody's failure"


def test_a_prompt_that_is_turned_away_again_and_again_fails_by_itself(tmp_path: Path) -> None:
    """Such as one that is larger than a minute's tokens, while others get through."""
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "too large"}, *({"prompt": f"p{number}"} for number in range(40))])
    script = [
        {"match": "too large", "turns": [{"content": "x", "fault": {"kind": "rate_limit", "retry_after": 0.05}}]},
        {"turns": [{"content": "ok", "reasoning": "r", "latency": 0.4}]},
    ]
    with MockServer(script=script) as server:
        patience = ("--provider_patience=3", "--max_attempts=1", "--concurrency=4")
        kiseki(*flags(tmp_path, server, *WORKERS, *patience), cwd=tmp_path, status=3)
    assert statistics(tmp_path)["failed"] == {"RateLimited": 1}
    assert statistics(tmp_path)["outcomes"]["completed"] == 40


# ---- budgets ------------------------------------------------------------------------------------------------------------

PRICED: dict[str, Any] = {"price": (3.0, 15.0), "latency": 0.05}


@pytest.mark.parametrize("engine", ["processes", "inprocess"])
def test_max_cost_is_hard_over_all_sessions(tmp_path: Path, engine: str) -> None:
    prompts(tmp_path, 60)
    spent = 0.0
    with MockServer(turns=1, list_prices=True, **PRICED) as server:
        for session, limit in enumerate((0.01, 0.01, 0.02)):
            more = (f"--max_cost={limit}", "--max_tokens=40", f"--engine={engine}", *(("--resume",) if session else ()))
            done = kiseki(*flags(tmp_path, server, *WORKERS, *more), cwd=tmp_path, status=3)
            assert "the budget is spent" in done.stdout
            spent_before, spent = spent, server.stats()["cost"]
            assert spent <= limit
            assert (spent > spent_before) == (session != 1), "the second has nothing left to spend"
        assert spent > 0.017, "and what there is gets used"
        outcomes = statistics(tmp_path)["outcomes"]
        assert outcomes["failed"] == 0, "no rollout failed for want of money"
        kiseki(*flags(tmp_path, server, *WORKERS, "--resume", "--max_tokens=40"), cwd=tmp_path)
    assert [row["prompt_index"] for row in read_rows(tmp_path / "data/r/trajectories.jsonl")] == list(range(60))
    stops = statistics(tmp_path)["stop_reasons"]
    assert set(stops) <= {"answered", "budget"}
    assert ("budget", "budget") in {(kind, kind) for kind, _ in decisions(tmp_path)}
    kiseki("verify", "data/r", cwd=tmp_path)


def test_what_a_killed_session_spent_counts(tmp_path: Path) -> None:
    """The rollouts of the killed session left no line, but their calls were paid for."""
    prompts(tmp_path, 12)
    limit = 0.03
    more = (f"--max_cost={limit}", "--max_tokens=40", "--max_turns=900", "--engine=inprocess", "--concurrency=4")
    with MockServer(turns=900, list_prices=True, price=(3.0, 15.0), latency=0.2) as server:
        process = start_kiseki(*flags(tmp_path, server, *more), cwd=tmp_path)
        while (noted := noted_cost(tmp_path)) < 0.01:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        paid = server.stats()["cost"]
        with sqlite3.connect(tmp_path / "data/r/run.db") as db:
            assert db.execute("SELECT count(*) FROM attempts").fetchone() == (0,)
        kiseki(*flags(tmp_path, server, *more, "--resume"), cwd=tmp_path, status=3)
        # beyond the limit only what the kill hid: calls under way, and what had ended since the last commit
        assert paid < server.stats()["cost"] <= limit + (paid - noted)


def noted_cost(folder: Path) -> float:
    """What the ledger says that the sessions have spent; 0.0 where there is none yet."""
    try:
        with sqlite3.connect(f"file:{folder / 'data/r/run.db'}?mode=ro", uri=True) as db:
            return float(db.execute("SELECT coalesce(sum(cost), 0.0) FROM sessions").fetchone()[0])
    except sqlite3.OperationalError:
        return 0.0


def test_max_total_tokens(tmp_path: Path) -> None:
    prompts(tmp_path, 60)
    with MockServer(turns=1, latency=0.05, report_cost=False) as server:
        kiseki(*flags(tmp_path, server, *WORKERS, "--max_total_tokens=6000", "--max_tokens=40"), cwd=tmp_path, status=3)
        stats = server.stats()
    assert 4500 < stats["prompt_tokens"] + stats["completion_tokens"] <= 6000


def test_a_price_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    prompts(tmp_path, 3)
    with MockServer(turns=0, report_cost=False) as server:
        for budget in ("--max_cost=1", "--max_cost_per_prompt=1"):
            refused = kiseki(*flags(tmp_path, server, budget), cwd=tmp_path, status=2)
            assert "the price of mock is not known" in refused.stderr
            assert "--prices=" in refused.stderr
        assert not (tmp_path / "data").exists()
        (tmp_path / "prices.yaml").write_text("mock: {input: 3, output: 15}\n")
        kiseki(*flags(tmp_path, server, "--max_cost=1", "--prices=prices.yaml"), cwd=tmp_path)
        stats = server.stats()
    # where the endpoint reports no cost, the price says what it was
    expected = (3 * stats["prompt_tokens"] + 15 * stats["completion_tokens"]) / 1e6
    assert statistics(tmp_path)["cost"] == pytest.approx(expected, abs=1e-6)


def test_max_cost_per_prompt(tmp_path: Path) -> None:
    prompts(tmp_path, 6)
    with MockServer(turns=30, list_prices=True, **PRICED) as server:
        more = ("--max_cost_per_prompt=0.005", "--max_tokens=40", "--max_turns=40")
        kiseki(*flags(tmp_path, server, *WORKERS, *more), cwd=tmp_path)
    rows = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert [row["metadata"]["stop_reason"] for row in rows] == ["prompt_budget"] * 6
    assert all(0.003 < row["metadata"]["cost"] <= 0.005 for row in rows)


def test_tries_without_an_answer_count_for_the_prompt_s_budget(tmp_path: Path) -> None:
    """In later turns too: two requests of a dollar have been made, and nobody knows whether the first is to be paid."""
    prompts(tmp_path, 1)
    (tmp_path / "prices.yaml").write_text("mock: {input: 0, output: 0, request: 1}\n")
    call = {"reasoning": "r", "tool_calls": [{"name": "shout", "arguments": {"text": "hi"}}]}
    turns = [{**call, "fault": {"kind": "torn", "times": 1}}, {"content": "ok"}]
    with MockServer(script=[{"turns": turns}], report_cost=False) as server:
        kiseki(*flags(tmp_path, server, *FAST, "--max_cost_per_prompt=2.5", "--prices=prices.yaml"), cwd=tmp_path)
        assert server.stats()["calls"] == 2
    (row,) = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert (row["metadata"]["stop_reason"], row["metadata"]["cost"]) == ("prompt_budget", 1.0)


def test_attempts_that_failed_count_for_the_prompt_s_budget(tmp_path: Path) -> None:
    prompts(tmp_path, 1)
    turns = [
        {"reasoning": "r", "tool_calls": [{"name": "shout", "arguments": {"text": "hi"}}]},
        {"content": "x", "fault": {"kind": "bad_request"}},
    ]
    with MockServer(script=[{"turns": turns}], list_prices=True, price=(300.0, 1500.0)) as server:
        more = ("--max_cost_per_prompt=0.2", "--max_tokens=40")
        failed = 0
        while kiseki(*flags(tmp_path, server, *more, *(("--resume",) if failed else ())), cwd=tmp_path, status=None).returncode:
            assert statistics(tmp_path)["failed"] == {"BadRequest": 1}
            failed += 1
        assert server.stats()["cost"] <= 0.2
    assert failed >= 2
    (row,) = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert row["metadata"]["stop_reason"] == "prompt_budget", "one call was within what was left, the second was not"
