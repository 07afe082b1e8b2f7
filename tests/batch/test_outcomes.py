"""A batch run from the outside: every row ends in exactly one outcome, and the files say so."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from support import FAST, environment, kiseki, light_tools, read_rows, write_dataset

from kiseki.models.mock_server import MockServer

SHOUT = {"tool_calls": [{"name": "shout", "arguments": {"text": "hi"}}]}
ROW_KEYS = [
    *("prompt_index", "prompt", "sample_index", "conversations", "metadata", "completed", "partial", "api_calls"),
    *("toolsets_used", "tool_stats", "tool_error_counts"),
]


def run(folder: Path, server: MockServer, *flags: str, status: int = 0) -> Path:
    """A run of `p.jsonl` in `folder` against the mock server. Returns the run's folder."""
    light = light_tools(folder)
    base = ("batch", "--dataset_file=p.jsonl", "--run_name=r", f"--base_url={server.base_url}", "--model=mock", *FAST, *light)
    kiseki(*base, *(flags or ("--batch_size=2",)), cwd=folder, status=status)
    return folder / "data" / "r"


def test_every_outcome_and_what_the_files_say(tmp_path: Path) -> None:
    rows = [
        {"prompt": "fine one", "answer": 42, "tags": ["a"]},
        '"just a string"',
        {"prompt": "turns and turns"},
        {"prompt": "no thoughts"},
        {"prompt": "down"},
        "",
        {"prompt": "hallucinates"},
        {"prompt": None},
        {"prompt": "fine two"},
    ]
    write_dataset(tmp_path / "p.jsonl", rows)
    script = [
        {"match": "fine", "turns": [{"reasoning": "hm", **SHOUT}, {"content": "ok {{last_tool_result}}", "reasoning": "so"}]},
        {"match": "turns", "turns": [{"reasoning": "again", **SHOUT}]},
        {"match": "no thoughts", "turns": [{"content": "ok"}]},
        {"match": "down", "turns": [{"content": "ok", "fault": {"kind": "bad_request"}}]},
        {
            "match": "halluc",
            "turns": [{"reasoning": "hm", "tool_calls": [{"name": "fly", "arguments": {}}]}, {"content": "ok", "reasoning": "x"}],
        },
    ]
    with MockServer(script=script) as server:
        folder = run(tmp_path, server, "--batch_size=2", "--max_turns=3", status=3)
        asked = server.stats()["calls"]
    merged = read_rows(folder / "trajectories.jsonl")
    assert [row["prompt_index"] for row in merged] == [0, 2, 7]
    assert [(row["completed"], row["partial"]) for row in merged] == [(True, False), (False, True), (True, False)]
    assert all(list(row) == ROW_KEYS for row in merged)
    assert json.loads(merged[0]["metadata"]["source"]) == {"answer": 42, "tags": ["a"]}
    assert merged[1]["metadata"]["stop_reason"] == "max_turns"
    assert merged[0]["tool_stats"] == {"shout": {"count": 1, "success": 1, "failure": 0}}
    assert merged[0]["tool_error_counts"] == {"shout": 0}
    assert merged[0]["toolsets_used"] == ["mine"]
    assert merged[0]["api_calls"] == 2
    statistics = json.loads((folder / "statistics.json").read_text())
    assert statistics["outcomes"] == {"completed": 2, "partial": 1, "discarded": 2, "failed": 1, "pending": 0}
    assert statistics["discarded"] == {"no_reasoning": 1, "unknown_tool": 1}
    assert statistics["failed"] == {"BadRequest": 1}
    assert statistics["total_prompts"] == 6
    assert statistics["tool_statistics"]["shout"] == {
        "count": 5,
        "success": 5,
        "failure": 0,
        "success_rate": 100.0,
        "failure_rate": 0.0,
    }
    assert statistics["reasoning_statistics"] == {
        "total_assistant_turns": 10,
        "turns_with_reasoning": 9,
        "turns_without_reasoning": 1,
    }
    checkpoint = json.loads((folder / "checkpoint.json").read_text())
    assert checkpoint["run_name"] == "r"
    assert checkpoint["completed_prompts"] == [[0, 0], [2, 3], [5, 5], [7, 7]]
    stats = {key: value for key, value in checkpoint["batch_stats"]["1"].items() if value}
    assert stats == {"skipped": 2, "failed": 1, "discarded_no_reasoning": 1}
    skipped = read_rows(folder / "skipped_rows.jsonl")
    assert [row["line"] for row in skipped] == [2, 8]
    assert [row["prompt_index"] for row in read_rows(folder / "batch_0.jsonl")] == [0, 2]
    assert not (folder / "batch_1.jsonl").exists(), "a batch without a kept row has no file"
    assert asked == 2 + 3 + 1 + 1 + 2 + 2


def test_a_failure_is_tried_again_on_resume_and_its_attempts_are_kept(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "too long"}])
    turns = [{"content": "ok", "reasoning": "r", "fault": {"kind": "context_length", "times": 1}}]
    with MockServer(script=[{"turns": turns}]) as server:
        folder = run(tmp_path, server, "--batch_size=1", status=3)
        assert json.loads((folder / "statistics.json").read_text())["failed"] == {"ContextLengthExceeded": 1}
        assert (folder / "trajectories.jsonl").read_text() == ""
        run(tmp_path, server, "--batch_size=1", "--resume")
    (row,) = read_rows(folder / "trajectories.jsonl")
    assert row["metadata"]["attempt"] == 2
    assert row["metadata"]["batch_num"] == 1, "numbers go on after the highest there is"
    statistics = json.loads((folder / "statistics.json").read_text())
    assert statistics["attempts"] == 2
    assert statistics["outcomes"]["completed"] == 1


@pytest.mark.parametrize(("times", "status", "attempts"), [(1, 0, 2), (9, 3, 2)])
def test_a_passing_failure_is_tried_again_in_the_run(tmp_path: Path, times: int, status: int, attempts: int) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "slow"}])
    stall = {"content": "ok", "reasoning": "r", "fault": {"kind": "stall", "times": times}}
    with MockServer(script=[{"turns": [stall]}]) as server:
        folder = run(tmp_path, server, "--batch_size=1", "--prompt_timeout=0.5", "--max_attempts=2", status=status)
    statistics = json.loads((folder / "statistics.json").read_text())
    assert statistics["attempts"] == attempts
    assert statistics["failed"] == ({"RolloutTimeout": 1} if status else {})
    rows = read_rows(folder / "trajectories.jsonl")
    assert [row["metadata"]["attempt"] for row in rows] == ([] if status else [2])


@pytest.mark.parametrize("engine", ["inprocess", "processes"])
def test_no_more_at_once_than_concurrency_allows(tmp_path: Path, engine: str) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"p{n}"} for n in range(30)])
    with MockServer(turns=1, latency=0.1) as server:
        run(tmp_path, server, "--batch_size=9", "--concurrency=5", "--num_workers=4", f"--engine={engine}")
        assert server.stats()["peak_in_flight"] == 5


ODD = """
from kiseki import tool

@tool(toolset="mine")
def shout(text: str) -> object:
    "Results that no store can hold as they are."
    return {"true": {"exit_code": True}, "huge": {"exit_code": 10**30}, "text": {"exit_code": "x"}}[text]
"""


def test_odd_results_of_own_tools_make_no_file_unbuildable(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": text} for text in ("true", "huge", "text")])
    call = {"tool_calls": [{"name": "shout", "arguments": {"text": "{{prompt}}"}}], "reasoning": "r"}
    with MockServer(script=[{"turns": [call, {"content": "ok"}]}]) as server:
        light = light_tools(tmp_path)
        (tmp_path / "mine.py").write_text(ODD)
        base = ("batch", "--dataset_file=p.jsonl", "--run_name=r", f"--base_url={server.base_url}", "--model=m", *FAST, *light)
        kiseki(*base, "--batch_size=2", cwd=tmp_path)
    assert len(read_rows(tmp_path / "data/r/trajectories.jsonl")) == 3


def test_samples_of_a_prompt(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "one"}, {"prompt": "two"}])
    with MockServer(turns=1) as server:
        folder = run(tmp_path, server, "--batch_size=1", "--num_samples=3", "--seed=5")
    rows = read_rows(folder / "trajectories.jsonl")
    assert [(row["prompt_index"], row["sample_index"]) for row in rows] == [(i, k) for i in (0, 1) for k in (0, 1, 2)]
    assert len({row["metadata"]["seed"] for row in rows}) == 6
    assert len(read_rows(folder / "batch_1.jsonl")) == 3


def test_chat_prompts_keep_their_history(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "Own system."},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "reply"},
        {"role": "user", "content": [{"type": "text", "text": "second"}]},
    ]
    write_dataset(tmp_path / "p.jsonl", [{"prompt": messages}])
    with MockServer(script=[{"turns": [{"content": "ok", "reasoning": "r"}]}], record=1) as server:
        folder = run(tmp_path, server, "--batch_size=1", "--ephemeral_system_prompt=EPHEMERAL")
        (request,) = server.stats(log=True)["log"]
    sent = request["body"]["messages"]
    assert (sent[0]["role"], sent[0]["content"]) == ("system", "EPHEMERAL\n\nOwn system.")
    assert [each["role"] for each in sent] == ["system", "user", "assistant", "user"]
    (row,) = read_rows(folder / "trajectories.jsonl")
    assert row["prompt"] == "second"
    assert [turn["from"] for turn in row["conversations"]] == ["system", "human", "gpt", "human", "gpt"]
    assert "Own system." in row["conversations"][0]["value"]
    assert "EPHEMERAL" not in json.dumps(row)


def test_progress_is_one_live_line_on_a_terminal(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"p{number}"} for number in range(30)])
    master, terminal = pty.openpty()
    with MockServer(turns=1, latency=0.3) as server:
        light = light_tools(tmp_path)
        base = ("batch", "--dataset_file=p.jsonl", "--run_name=r", f"--base_url={server.base_url}", "--model=m", *light)
        command = [sys.executable, "-m", "kiseki", *base, "--batch_size=9", "--concurrency=4", "--num_workers=1"]
        process = subprocess.Popen(command, cwd=tmp_path, env=environment(TERM="xterm"), stdout=terminal, stderr=terminal)
        os.close(terminal)
        shown = b""
        with suppress(OSError):  # how Linux says that the other end is closed
            while chunk := os.read(master, 65536):
                shown += chunk
        assert process.wait() == 0
    os.close(master)
    drawn = [int(ended) for ended in re.findall(r"(\d+)/30 \(\d+ %\)", shown.decode())]
    assert drawn[-1] == 30
    assert len(set(drawn)) > 2, "it moves while the run goes"
    assert b"\x1b[2K" in shown, "drawn over, not scrolled"


def test_progress_is_plain_lines_where_stdout_is_no_terminal(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "one"}])
    with MockServer(turns=1) as server:
        light = light_tools(tmp_path)
        base = ("batch", "--dataset_file=p.jsonl", "--run_name=r", f"--base_url={server.base_url}", "--model=m", *FAST, *light)
        done = kiseki(*base, "--batch_size=1", cwd=tmp_path)
    assert "1/1 (100 %) · done 1 · running 0 · failed 0 · discarded 0" in done.stdout
    assert "\x1b" not in done.stdout
    assert str(Path("data/r/trajectories.jsonl")) in done.stdout
    for table in ("Outcomes", "Tool use", "Reasoning coverage", "Time and cost"):
        assert table in done.stdout
