"""A run whose model is gone, or refuses: the rows and the ledger say which model answered."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from support import kiseki, light_tools, read_rows, write_dataset

from kiseki.models.mock_server import MockServer
from kiseki.trajectory.record import decode_record

GONE: list[dict[str, Any]] = [{"turns": [{"fault": {"kind": "no_model"}}]}]
CALL = {"name": "shout", "arguments": {"text": "x"}}
WORKS: list[dict[str, Any]] = [{"turns": [{"reasoning": "I look.", "tool_calls": [CALL]}, {"content": "done"}]}]


def flags(folder: Path, server: MockServer, *more: str) -> tuple[str, ...]:
    write_dataset(folder / "p.jsonl", [{"prompt": f"question {number}"} for number in range(6)])
    base = ("batch", "--dataset_file=p.jsonl", "--run_name=r", "--batch_size=10", f"--base_url={server.base_url}", "--model=own")
    return (*base, *light_tools(folder), "--num_workers=2", *more)


@pytest.mark.parametrize("engine", ["inprocess", "processes"])
def test_rows_say_which_model_answered(tmp_path: Path, engine: str) -> None:
    with MockServer(GONE) as own, MockServer(WORKS, models=("spare",)) as other:
        more = ("--fallback_model=spare", f"--fallback_base_url={other.base_url}", f"--engine={engine}")
        done = kiseki(*flags(tmp_path, own, *more), cwd=tmp_path)
        told = " ".join(kiseki("log", "data/r", cwd=tmp_path, COLUMNS="400").stdout.split())
        asked = own.stats()["calls"]
    rows = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert [row["metadata"]["answered_by"] for row in rows] == ["spare,spare"] * 6
    assert {row["metadata"]["model"] for row in rows} == {"own"}
    assert json.loads((tmp_path / "data/r/statistics.json").read_text())["fallback_calls"] == {"rollouts": 6, "calls": 12}
    assert "a fallback model answered 12 calls in 6 of the rollouts" in " ".join(done.stdout.split())
    assert "a fallback model is asked where the run's own fails, first: HTTP 404" in told
    assert 1 <= asked <= 6  # until the answer that says it is there, once for each rollout under way
    with sqlite3.connect(tmp_path / "data/r/run.db") as db:
        records = [decode_record(data) for (data,) in db.execute("SELECT record FROM attempts")]
    assert [[call.fallback for call in record.calls] for record in records] == [["spare", "spare"]] * 6


def test_without_one_the_run_fails(tmp_path: Path) -> None:
    with MockServer(GONE) as own:
        kiseki(*flags(tmp_path, own), cwd=tmp_path, status=3)
    assert read_rows(tmp_path / "data/r/trajectories.jsonl") == []


def test_what_cannot_be_used_is_said_before_anything_is_made(tmp_path: Path) -> None:
    def refused(*more: str) -> str:
        return kiseki(*flags(tmp_path, own, *more), cwd=tmp_path, status=2).stderr

    with MockServer(GONE) as own:
        alone = refused("--fallback_base_url=http://127.0.0.1:1/v1")
        keyless = refused("--fallback_model=m", "--fallback_base_url=https://api.openai.com/v1")
        dollars = refused("--fallback_model=dear", "--max_cost=1")
    assert "--fallback_base_url needs --fallback_model" in alone
    assert "No API key for api.openai.com" in keyless
    assert "the price of dear is not known" in dollars
    assert not (tmp_path / "data").exists()


def test_a_budget_is_one_for_all_models(tmp_path: Path) -> None:
    listed: dict[str, Any] = {"list_prices": True, "models": ("own", "spare")}
    with MockServer(GONE, price=(1.0, 1.0), **listed) as own, MockServer(WORKS, price=(1000.0, 1000.0), **listed) as other:
        more = ("--fallback_model=spare", f"--fallback_base_url={other.base_url}", "--max_cost=1", "--max_tokens=100")
        kiseki(*flags(tmp_path, own, *more), cwd=tmp_path, status=None)  # by chance some are cut short, or left
        spent = other.stats()["cost"]
    assert 0 < spent <= 1
