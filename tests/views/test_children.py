"""Sub-agents of a batch run: their rows, their money, and neither lost nor bought twice when the run is killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import datasets
import pytest
from support import FAST, children, kiseki, light_tools, read_rows, start_kiseki, write_dataset

from kiseki.commands.main import main
from kiseki.models.mock_server import MockServer
from kiseki.trajectory.record import decode_record, with_children

CALL_COST = 0.0012
USAGE = {"prompt_tokens": 1000, "completion_tokens": 100, "cost": CALL_COST}
"""Of each call."""


def turn(*calls: dict[str, Any], content: str = "", reasoning: str = "r") -> dict[str, Any]:
    return {"content": content, "reasoning": reasoning, "tool_calls": list(calls), "usage": USAGE}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


SHOUT = call("shout", text="{{prompt}}")
TWO = call("delegate_task", tasks=[{"goal": "part a of {{prompt}}"}, {"goal": "part b of {{prompt}}"}])
SCRIPT = [
    {"match": "^part a", "turns": [turn(SHOUT), turn(content="a is {{last_tool_result}}")]},
    {"match": "^part b", "turns": [turn(content="b")]},
    {"match": "^silent part", "turns": [turn(content="b", reasoning="")]},
    {"match": "^wild part", "turns": [turn(call("nothing")), turn(content="b")]},
    {"match": "^endless part", "turns": [turn(SHOUT)]},
    {"match": "^two", "turns": [turn(TWO), turn(content="ok")]},
    {"match": "^again", "turns": [turn(TWO), turn(call("delegate_task", goal="part b")), turn(content="ok")]},
    {"match": "^silent", "turns": [turn(TWO, reasoning=""), turn(content="ok", reasoning="")]},
    {
        "match": "^odd",
        "turns": [
            turn(call("delegate_task", tasks=[{"goal": "silent part"}, {"goal": "wild part"}, {"goal": "part b"}])),
            turn(content="ok"),
        ],
    },
    {"match": "^endless", "turns": [turn(call("delegate_task", tasks=[{"goal": "endless part"}] * 2)), turn(content="ok")]},
    {"turns": [turn(content="alone")]},
]
PROMPTS = ["two 0", "alone", "silent", "again", "odd"]
CALLS = {"two": 5, "alone": 1, "silent": 5, "again": 7, "odd": 6}


def flags(folder: Path, server: MockServer, *more: str) -> tuple[str, ...]:
    light = light_tools(folder)
    (folder / "mine.yaml").write_text("mine: 100\ndelegation: 100\n")
    base = ("batch", "--dataset_file=p.jsonl", "--run_name=r", "--batch_size=2", f"--base_url={server.base_url}", "--model=mock")
    return (*base, *light, *more)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    write_dataset(folder / "p.jsonl", [{"prompt": each, "n": number} for number, each in enumerate(PROMPTS)])
    with MockServer(script=SCRIPT) as server:
        kiseki(*flags(folder, server, *FAST), cwd=folder)
        assert server.stats()["calls"] == sum(CALLS.values())
    return folder / "data" / "r"


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


def test_their_rows_are_linked_and_have_the_keys_of_every_row(whole: Path) -> None:
    rows, of_children = read_rows(whole / "trajectories.jsonl"), read_rows(whole / "children.jsonl")
    assert [row["prompt"] for row in rows] == ["two 0", "alone", "again", "odd"], "the silent one is discarded"
    assert [row["metadata"]["children"] for row in rows] == [2, 0, 3, 3]
    assert {row["metadata"]["inner_tool_calls"] for row in rows} == {0}
    assert [(row["parent"]["prompt_index"], row["parent"]["number"], row["prompt"]) for row in of_children] == [
        (0, 1, "part a of two 0"),
        (0, 2, "part b of two 0"),
        (3, 1, "part a of again"),
        (3, 2, "part b of again"),
        (3, 3, "part b"),
        (4, 3, "part b"),  # the others have no reasoning, or call what is no tool
    ]
    assert [len(row["prompt"]) > 0 and row["conversations"][1]["value"] == row["prompt"] for row in of_children] == [True] * 6
    for row in of_children:
        assert list(row) == [*rows[0], "parent"]
        assert list(row["metadata"]) == list(rows[0]["metadata"])
        assert list(row["tool_stats"]) == list(rows[0]["tool_stats"]) == ["delegate_task", "shout"]
        assert row["parent"].keys() == {"prompt_index", "sample_index", "call_id", "number", "depth"}
        assert row["parent"]["depth"] == 1
        parent = next(each for each in rows if each["prompt_index"] == row["prompt_index"])
        assert row["metadata"]["source"] == parent["metadata"]["source"]
        assert any(row["parent"]["call_id"] in turn["value"] for turn in parent["conversations"])
        assert "delegate_task" not in row["conversations"][0]["value"], "its own tools, not its parent's"
    first = of_children[0]
    assert first["tool_stats"]["shout"] == {"count": 1, "success": 1, "failure": 0}
    assert rows[0]["tool_stats"]["shout"]["count"] == 0, "only its own calls"
    assert (first["api_calls"], rows[0]["api_calls"]) == (2, 2)
    assert first["completed"] and not first["partial"]
    assert first["conversations"][-1]["value"].endswith("a is PART A OF TWO 0")


def test_their_file_loads(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    loaded = datasets.load_dataset("json", data_files=str(whole / "children.jsonl"), split="train", cache_dir=str(tmp_path))
    assert loaded["parent"][5]["number"] == 3


def test_what_they_take_is_counted_once_and_everywhere(whole: Path) -> None:
    for row in read_rows(whole / "trajectories.jsonl"):
        calls = CALLS[row["prompt"].split()[0]]
        assert row["metadata"]["cost"] == pytest.approx(calls * CALL_COST)
        assert (row["metadata"]["prompt_tokens"], row["metadata"]["completion_tokens"]) == (1000 * calls, 100 * calls)
    of_children = read_rows(whole / "children.jsonl")
    assert [round(row["metadata"]["cost"] / CALL_COST) for row in of_children] == [2, 1, 2, 1, 1, 1]
    total = sum(CALLS.values())
    statistics = json.loads((whole / "statistics.json").read_text())
    assert statistics["cost"] == pytest.approx(total * CALL_COST)
    assert statistics["tokens"]["prompt"] == 1000 * total
    with sqlite3.connect(whole / "run.db") as db:
        (spent,) = db.execute("SELECT sum(cost) FROM sessions").fetchone()
        assert spent == pytest.approx(total * CALL_COST), "as admitted, call by call"


def test_a_whole_run_passes_and_what_is_wrong_with_their_file_is_named(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "children.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)

    def verified() -> str:
        status = main(["verify", str(run)])
        said = capsys.readouterr().out
        assert (status == 0) is ("every file says what it says" in said)
        return said

    assert "every file says" in verified()
    for damaged, says in {
        b"".join(lines[1:]): "children.jsonl: rows missing: 1 (0/0/1)",
        whole + lines[3]: "children.jsonl: rows doubled: 1 (3/0/2)",
        b"".join([lines[1], lines[0], *lines[2:]]): "children.jsonl: rows out of order: 1 (0/0/1 after 0/0/2)",
        whole.replace(b"a is PART", b"a is PORT"): "children.jsonl: rows with other content: 2 (0/0/1, 3/0/1)",
    }.items():
        path.write_bytes(damaged)
        assert says in verified()
    path.unlink()
    assert "children.jsonl: it is not there; kiseki merge" in verified()
    assert main(["merge", str(run)]) == 0
    assert path.read_bytes() == whole
    with sqlite3.connect(run / "run.db") as db:  # those of the sub-agents alone
        db.execute("DELETE FROM tool_schemas WHERE schemas NOT LIKE '%delegate_task%'")
    assert "records whose tool schemas are not there: 4 (" in verified()


def test_discarded_ones_leave_theirs_out(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the file goes when there is nothing for it."""
    path = run / "children.jsonl"
    assert main(["merge", str(run), "--reasoning_filter=off"]) == 0
    assert [(row["prompt_index"], row["parent"]["number"]) for row in read_rows(path)] == [
        *((0, 1), (0, 2), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3), (4, 1), (4, 3))
    ]
    assert main(["verify", str(run)]) == 0
    kept = path.read_bytes()
    with sqlite3.connect(run / "run.db") as db:
        db.execute("""UPDATE attempts SET unknown_tools = '["x"]' WHERE children""")
    assert main(["merge", str(run)]) == 0
    assert not path.exists()
    assert main(["verify", str(run)]) == 0
    path.write_bytes(kept)
    assert main(["verify", str(run)]) == 1
    assert "children.jsonl: no sub-agent of the run has a row; kiseki merge" in capsys.readouterr().out


LIMIT = 0.0105


@pytest.mark.parametrize("engine", ["inprocess", "processes"])
@pytest.mark.parametrize(("limit", "reason"), [("--max_cost_per_prompt", "prompt_budget"), ("--max_cost", "budget")])
def test_a_budget_is_for_all_of_a_rollout(tmp_path: Path, engine: str, limit: str, reason: str) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "endless"}])
    more = ("--max_tokens=100", "--max_turns=30", f"--engine={engine}")
    with MockServer(script=SCRIPT, price=(1.0, 2.0), list_prices=True) as server:
        done = kiseki(*flags(tmp_path, server, *more, f"{limit}={LIMIT}"), cwd=tmp_path, status=None)
        calls = server.stats()["calls"]
    (row,) = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert (row["partial"], row["metadata"]["stop_reason"]) == (True, reason), done.stdout
    of_children = read_rows(tmp_path / "data/r/children.jsonl")
    assert [row["metadata"]["stop_reason"] for row in of_children] == [reason] * 2
    answered = row["api_calls"] + sum(each["api_calls"] for each in of_children)
    assert calls - 1 <= answered <= calls, "one may have been broken off when the other was turned down"
    assert row["metadata"]["cost"] == pytest.approx(answered * CALL_COST)
    assert 5 * CALL_COST < row["metadata"]["cost"] < LIMIT + CALL_COST, "side by side, neither knows what the other just asks"
    words = {"budget": "the budget was spent", "prompt_budget": "the budget for this task was spent"}[reason]
    assert row["conversations"][-1]["from"] == "tool"
    assert f"not finished: {words}" in row["conversations"][-1]["value"]
    assert "every file says what it says" in kiseki("verify", "data/r", cwd=tmp_path).stdout


COUNTS_FOR_ITSELF = '''
from kiseki import tool
from kiseki.tools.context import ToolContext
from kiseki.trajectory.types import InnerCall, ToolCall, Usage

@tool(toolset="mine", needs_sandbox=False)
async def twice(context: ToolContext) -> str:
    """Have something shouted, and pay for it."""
    notes = context.note()
    call = ToolCall(f"{context.call_id}/1", "shout", '{"text": "x"}')
    message, run = await context.call_tool(context.for_call(call.id), call)
    notes.inner.append(InnerCall(call, message.content, run))
    context.pay(Usage(prompt_tokens=7, cost=0.5))
    return message.content
'''


def test_what_a_tool_calls_and_pays_for_itself(tmp_path: Path) -> None:
    (tmp_path / "paid.py").write_text(COUNTS_FOR_ITSELF)
    write_dataset(tmp_path / "p.jsonl", [{"prompt": each} for each in ("tool", "delegate")])
    work = [turn(call("twice")), turn(content="{{last_tool_result}}")]
    script = [
        {"match": "tool|part", "turns": work},
        {"turns": [turn(call("delegate_task", goal="part")), turn(content="ok")]},
    ]
    with MockServer(script=script, price=(1.0, 2.0), list_prices=True) as server:
        base = flags(tmp_path, server, *FAST, "--max_tokens=100", "--tools=mine.py,paid.py", "--distribution=mine.yaml")
        kiseki(*base, cwd=tmp_path)
        kiseki(*base, "--run_name=limited", "--max_cost_per_prompt=0.4", cwd=tmp_path)
    alone, parent = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert alone["conversations"][-1]["value"].endswith("X")
    assert (alone["metadata"]["inner_tool_calls"], alone["tool_stats"]["shout"]["count"]) == (1, 0)
    assert (parent["metadata"]["inner_tool_calls"], parent["metadata"]["children"]) == (0, 1)
    assert (alone["metadata"]["prompt_tokens"], parent["metadata"]["prompt_tokens"]) == (2007, 4007)
    assert alone["metadata"]["cost"] == pytest.approx(0.5 + 2 * CALL_COST)
    assert parent["metadata"]["cost"] == pytest.approx(0.5 + 4 * CALL_COST)
    (child,) = read_rows(tmp_path / "data/r/children.jsonl")
    assert child["metadata"]["inner_tool_calls"] == 1
    limited = read_rows(tmp_path / "data/limited/trajectories.jsonl")
    assert [row["metadata"]["stop_reason"] for row in limited] == ["prompt_budget"] * 2, "it is the rollout's money"


KILLS = 3
CONCURRENCY = 4


def test_killed_and_resumed_nothing_committed_is_lost_or_bought_again(tmp_path: Path) -> None:
    choose = random.Random(5)
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"two {number}"} for number in range(20)])
    ledger = tmp_path / "data/r/run.db"
    most = 0
    with MockServer(script=SCRIPT, latency=0.02, jitter=0.05) as server:
        command = flags(tmp_path, server, "--num_workers=2", f"--concurrency={CONCURRENCY}", "--resume")
        for _ in range(KILLS):
            process = start_kiseki(*command, cwd=tmp_path)
            goal = server.stats()["calls"] + choose.randint(5, 25)
            while server.stats()["calls"] < goal:
                assert process.poll() is None, process.communicate()[0]
                time.sleep(0.005)
            before = calls_in(ledger)
            for pid in (process.pid, *children(process.pid)):
                with suppress(ProcessLookupError):  # without its driver it has just ended
                    os.kill(pid, signal.SIGKILL)
            process.communicate()
            assert calls_in(ledger) >= before, "what was committed is there"
            most += 2 * CONCURRENCY * CALLS["two"]
        lost = server.stats()["calls"] - calls_in(ledger)
        assert 0 < lost <= most
        kiseki(*command, cwd=tmp_path)
        assert server.stats()["calls"] - calls_in(ledger) == lost, "undisturbed, nothing is bought twice"
        assert calls_in(ledger) == 20 * CALLS["two"]
    kiseki("verify", "data/r", cwd=tmp_path)
    rows = read_rows(tmp_path / "data/r/children.jsonl")
    assert [(row["prompt_index"], row["parent"]["number"]) for row in rows] == [(n, part) for n in range(20) for part in (1, 2)]


def calls_in(path: Path) -> int:
    with sqlite3.connect(path) as db:
        records = [decode_record(packed) for (packed,) in db.execute("SELECT record FROM attempts")]
    return sum(len(each.calls) for record in records for each in with_children(record))
