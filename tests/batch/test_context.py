"""Whole runs whose conversations fill the context window: rows, statistics, resume, and the exact token ids of what was sent."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from support import FAST, kiseki, read_rows, write_dataset

from kiseki.ledger.opening import open_reader
from kiseki.models.mock_server import MockServer
from kiseki.models.mock_tokens import START
from kiseki.trajectory.record import decode_record
from kiseki.trajectory.types import Record

TOOL = '''
from kiseki import tool

@tool(toolset="mine")
def dump(size: int) -> str:
    """Give so many characters."""
    return f"{size}:" + "y" * size
'''
TRUNCATE = "--on_context_full=truncate_tool_outputs"


def calls(size: int, **more: Any) -> dict[str, Any]:
    return {"reasoning": "r", "tool_calls": [{"name": "dump", "arguments": {"size": size}}], **more}


ANSWER = {"content": "done", "reasoning": "r"}
SCRIPT = [
    {"match": "short", "turns": [calls(5), ANSWER]},
    {"match": "refused", "turns": [{**ANSWER, "fault": {"kind": "context_length"}}]},
    {"turns": [calls(9000), calls(9000), calls(5), ANSWER]},
]


def flags(folder: Path, server: MockServer, *more: str) -> tuple[str, ...]:
    (folder / "mine.py").write_text(TOOL)
    (folder / "mine.yaml").write_text("mine: 100\n")
    write_dataset(folder / "p.jsonl", [{"prompt": each} for each in ("short", "long", "refused")])
    base = ("batch", "--dataset_file=p.jsonl", "--run_name=r", "--batch_size=10", f"--base_url={server.base_url}", "--model=mock")
    return (*base, "--tools=mine.py", "--distribution=mine.yaml", "--max_tokens=200", "--max_attempts=1", *FAST, *more)


def statistics(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "data/r/statistics.json").read_text())
    return found


def records(folder: Path) -> dict[str, Record]:
    """Those that count, by prompt."""
    with open_reader(folder / "data/r") as ledger:
        found = [decode_record(each.record) for each in ledger.done_rollouts()]
    return {each.messages[0].content: each for each in found}


def test_a_full_context_ends_a_rollout_that_is_done_then(tmp_path: Path) -> None:
    with MockServer(script=SCRIPT) as server:
        base = flags(tmp_path, server, "--context_length=4500")
        ended = kiseki(*base, cwd=tmp_path, status=3)
        assert "the context window was full: ended 1 of the rollouts" in ended.stdout
        asked = server.stats()["calls"]
        assert asked == 2 + 2 + 1, "the third call of the long one was not made"
        kiseki(*base, "--resume", cwd=tmp_path, status=3)
        assert server.stats()["calls"] == asked + 1, "only the prompt that is too long by itself"
    short, long = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert (short["completed"], short["metadata"]["context_cuts"]) == (True, 0)
    assert (long["partial"], long["metadata"]["stop_reason"]) == (True, "context_full")
    assert [turn["from"] for turn in long["conversations"]] == ["system", "human", "gpt", "tool", "gpt", "tool"]
    assert long["conversations"][-1]["value"].count("y" * 9000) == 1
    assert long["tool_stats"]["dump"] == {"count": 2, "success": 2, "failure": 0}
    found = statistics(tmp_path)
    assert found["stop_reasons"] == {"answered": 1, "context_full": 1}
    assert found["failed"] == {"ContextLengthExceeded": 1}
    assert found["context_cuts"] == 0


def test_with_tool_outputs_truncated_it_goes_on_and_says_so(tmp_path: Path) -> None:
    with MockServer(script=SCRIPT, record=20) as server:
        base = flags(tmp_path, server, "--context_length=5000")
        ended = kiseki(*base, TRUNCATE, cwd=tmp_path, status=3)
        assert "the context window was full: went on with tool results cut in 1 of the rollouts" in ended.stdout
        sent = [entry["body"]["messages"] for entry in server.stats(log=True)["log"]]
        other = kiseki(*base, "--resume", cwd=tmp_path, status=2)
        assert "on_context_full: 'truncate_tool_outputs' → 'stop'" in other.stderr, "another kind of rows"
    last = max((each for each in sent if each[0]["content"] == "long"), key=len)
    results = [each["content"] for each in last if each["role"] == "tool"]
    assert "8,005 of 9,005 characters left out" in results[0]
    assert [len(each) for each in results[1:]] == [9005, 7]
    short, long = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert long["completed"]
    assert (short["metadata"]["context_cuts"], long["metadata"]["context_cuts"]) == (0, 1)
    assert sum(turn["value"].count("y" * 9000) for turn in long["conversations"]) == 2, "the row has it whole"
    assert statistics(tmp_path)["context_cuts"] == 1
    (cut,) = records(tmp_path)["long"].context_cuts
    assert (cut.call, cut.message, cut.kept, cut.characters) == (2, 2, 1000, 9005)
    assert kiseki("verify", "data/r", cwd=tmp_path).returncode == 0


def test_the_window_of_a_run_is_what_its_endpoint_lists(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 131_000, "completion_tokens": 10}
    script = [{"turns": [calls(5, usage=usage), ANSWER]}]
    with MockServer(script=script, list_prices=True) as server:
        kiseki(*flags(tmp_path, server, "--max_samples=1"), cwd=tmp_path)
    (row,) = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert row["metadata"]["stop_reason"] == "context_full"
    with sqlite3.connect(tmp_path / "data/r/run.db") as db:
        (settings,) = db.execute("SELECT settings FROM sessions").fetchone()
    assert json.loads(settings)["model"]["context_length"] == 131_072, "kept with the session"


@pytest.mark.parametrize("policy", ["stop", "truncate_tool_outputs"])
def test_an_endpoint_that_refuses_what_was_not_foreseen(tmp_path: Path, policy: str) -> None:
    with MockServer(script=SCRIPT, fail_after=3, fail_for=1, fail_kind="context_length") as server:
        base = flags(tmp_path, server, "--max_samples=2", "--concurrency=1", f"--on_context_full={policy}")
        write_dataset(tmp_path / "p.jsonl", [{"prompt": "long"}, {"prompt": "short"}])
        kiseki(*base, cwd=tmp_path)
        assert server.stats()["by_status"]["400"] == 1
    long, short = read_rows(tmp_path / "data/r/trajectories.jsonl")
    expected = ("context_full", 0) if policy == "stop" else ("answered", 1)
    assert (long["metadata"]["stop_reason"], long["metadata"]["context_cuts"]) == expected
    assert short["completed"]


def test_one_conversation_by_the_command(tmp_path: Path) -> None:
    with MockServer(script=SCRIPT) as server:
        flags(tmp_path, server)
        base = ("agent", "--query=long", f"--base_url={server.base_url}", "--model=mock", "--enabled_toolsets=mine")
        window = (*base, "--tools=mine.py", "--max_tokens=200", "--context_length=5000")
        assert "context_full, 2 model calls" in kiseki(*window, cwd=tmp_path).stdout
        assert "was sent 1 of the tool results without their middle" in kiseki(*window, TRUNCATE, cwd=tmp_path).stdout


def test_a_policy_that_is_none(tmp_path: Path) -> None:
    with MockServer() as server:
        refused = kiseki(*flags(tmp_path, server, "--on_context_full=shrink"), cwd=tmp_path, status=2)
    assert "stop, truncate_tool_outputs" in refused.stderr


def exported(folder: Path, to: str) -> list[dict[str, Any]]:
    """The rows of the long one."""
    kiseki("export", "data/r", f"--to={to}", f"--out={to}", cwd=folder)
    rows = [row for path in sorted((folder / to).glob("*.jsonl")) for row in read_rows(path)]
    return [row for row in rows if row.get("prompt_index") == 1]


def text(ids: list[int]) -> str:
    """The mock server has a token for each byte, and two for where a message begins and ends."""
    return bytes(each for each in ids if each < START).decode()


def test_token_ids_stay_those_of_what_was_sent(tmp_path: Path) -> None:
    """A cut is no continuation of the sequence before: another segment begins, in which the result is short."""
    with MockServer(script=SCRIPT) as server:
        base = flags(tmp_path, server, "--context_length=5000", "--capture_tokens", TRUNCATE, "--max_samples=2")
        kiseki(*base, cwd=tmp_path)
    long = records(tmp_path)["long"]
    assert [each.call for each in long.context_cuts] == [2]
    rows = exported(tmp_path, "rl")
    assert [(row["segment"], row["segments"]) for row in rows] == [(0, 2), (1, 2)]
    before, after = (text([*row["prompt_ids"], *row["response_ids"]]) for row in rows)
    assert before.count("y" * 9000) == 1
    assert "left out" not in before
    assert after.count("y" * 9000) == 1, "the second result"
    assert "8,005 of 9,005 characters left out" in after
    sampled = sum(sum(row["response_mask"]) for row in rows)
    assert sampled == sum(len(call.tokens.completion) for call in long.calls if call.tokens)
    (atropos,) = exported(tmp_path, "atropos")
    assert atropos["tokens"] == [[*row["prompt_ids"], *row["response_ids"]] for row in rows]
