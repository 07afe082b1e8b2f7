"""Workers that die, Ctrl-C, and what a rollout can see."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest
from support import children, kiseki, light_tools, read_rows, start_kiseki, write_dataset

from kiseki.models.mock_server import MockServer


def base(folder: Path, server: MockServer, *more: str) -> tuple[str, ...]:
    light = light_tools(folder)
    flags = ("batch", "--dataset_file=p.jsonl", "--run_name=r", "--batch_size=4", f"--base_url={server.base_url}", "--model=m")
    return (*flags, *light, *more)


def wait_until(condition: object, process: subprocess.Popen[str]) -> None:
    assert callable(condition)
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)


def test_a_killed_worker_costs_only_its_own_rollouts(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"p{number}"} for number in range(12)])
    with MockServer(turns=1, latency=0.2) as server:
        process = start_kiseki(*base(tmp_path, server, "--num_workers=2", "--concurrency=4"), cwd=tmp_path)
        wait_until(lambda: server.stats()["calls"] >= 6, process)
        os.kill(children(process.pid)[0], signal.SIGKILL)
        output, _ = process.communicate(timeout=60)
        calls = server.stats()["calls"]
    assert process.returncode == 0, output
    assert "a worker died with prompt" in output
    rows = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert [row["prompt_index"] for row in rows] == list(range(12))
    assert 24 <= calls <= 24 + 2 * 2, "two rollouts were in the worker, two calls each at most"


def test_a_prompt_that_kills_its_worker_is_failed_and_the_rest_goes_on(tmp_path: Path) -> None:
    poison = 'import os\nfrom kiseki import tool\n@tool(toolset="mine")\ndef shout(text: str) -> str:\n'
    poison += '    """Say."""\n    if "poison" in text:\n        os._exit(9)\n    return text\n'
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "poison"}, {"prompt": "good"}])
    turns = [{"reasoning": "r", "tool_calls": [{"name": "shout", "arguments": {"text": "{{prompt}}"}}]}, {"content": "ok"}]
    with MockServer(script=[{"turns": turns}]) as server:
        flags = base(tmp_path, server, "--num_workers=1", "--engine=processes", "--max_attempts=2")
        (tmp_path / "mine.py").write_text(poison)
        kiseki(*flags, cwd=tmp_path, status=3)
    statistics = json.loads((tmp_path / "data/r/statistics.json").read_text())
    assert statistics["outcomes"] == {"completed": 1, "partial": 0, "discarded": 0, "failed": 1, "pending": 0}
    assert statistics["failed"] == {"WorkerDied": 1}


@pytest.mark.parametrize(
    ("engine", "times", "number"),
    [
        ("processes", 1, signal.SIGINT),
        ("processes", 2, signal.SIGINT),
        ("processes", 1, signal.SIGTERM),
        ("inprocess", 1, signal.SIGINT),
        ("inprocess", 2, signal.SIGINT),
    ],
)
def test_interrupts(tmp_path: Path, engine: str, times: int, number: signal.Signals) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"p{number}"} for number in range(80)])
    with MockServer(turns=1, latency=0.05) as server:
        flags = base(tmp_path, server, f"--engine={engine}", "--concurrency=4", "--num_workers=2")
        process = start_kiseki(*flags, cwd=tmp_path)
        wait_until(lambda: server.stats()["calls"] >= 20, process)
        workers = children(process.pid)
        # to every process, as a terminal, `timeout` or a service manager does
        for pid in (process.pid, *workers):
            os.kill(pid, number)
        if times == 2:
            time.sleep(0.1)
            os.kill(process.pid, number)
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 130, output
        assert "died" not in output, "workers end when they are told to, and nothing is lost with them"
        for worker in workers:
            with pytest.raises(ProcessLookupError):
                os.kill(worker, 0)
        with sqlite3.connect(tmp_path / "data/r/run.db") as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            ((done,),) = db.execute("SELECT count(*) FROM rollouts WHERE outcome = 'completed'").fetchall()
        assert 0 < done < 80
        if times == 1:
            assert len(read_rows(tmp_path / "data/r/trajectories.jsonl")) == done, "merged before it ends"
            assert "--resume goes on" in output
        before = server.stats()["calls"]
        kiseki(*flags, "--resume", cwd=tmp_path)
        assert server.stats()["calls"] == before + 2 * (80 - done)
    assert [row["prompt_index"] for row in read_rows(tmp_path / "data/r/trajectories.jsonl")] == list(range(80))


@pytest.mark.parametrize("sandbox", ["local", "bubblewrap"])
def test_commands_can_be_stopped_in_workers_too(tmp_path: Path, sandbox: str) -> None:
    """What a worker does with signals is not what the model's commands do with them."""
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "go"}])
    commands = ["sleep 4322 & kill $!; wait $!; echo status $?", "timeout 0.1 sleep 60; echo after $?", "trap"]
    calls = [{"name": "terminal", "arguments": {"command": command, "timeout": 20}} for command in commands]
    script = [{"turns": [{"reasoning": "r", "tool_calls": calls}, {"content": "done"}]}]
    with MockServer(script=script) as server:
        flags = (
            "batch",
            "--dataset_file=p.jsonl",
            "--run_name=r",
            "--batch_size=4",
            f"--base_url={server.base_url}",
            "--model=m",
        )
        more = ("--distribution=terminal_only", "--engine=processes", "--num_workers=1", f"--sandbox={sandbox}")
        kiseki(*flags, *more, cwd=tmp_path)
    (row,) = read_rows(tmp_path / "data/r/trajectories.jsonl")
    (seen,) = [turn["value"] for turn in row["conversations"] if turn["from"] == "tool"]
    assert "status 143" in seen
    assert "after 124" in seen
    assert "SIGTERM" not in seen
    assert (row["metadata"]["sandbox"], row["metadata"]["image"], row["metadata"]["cwd"]) == (sandbox, "", "")


LOOK = "cat /tmp/x ~/x 2>&1; pgrep -f 'sleep 4321' && echo found a process; env; echo $HOME"
LEAVE = "echo secret > /tmp/x; echo secret > ~/x; (sleep 4321 &) ; nohup setsid sleep 4321 >/dev/null 2>&1 & echo left"


def test_one_prompt_sees_nothing_of_another(tmp_path: Path) -> None:
    """The first leaves files and processes behind, the second looks for them, and for keys."""
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "leave"}, {"prompt": "look"}])

    def call(command: str) -> dict[str, object]:
        return {"reasoning": "r", "tool_calls": [{"name": "terminal", "arguments": {"command": command}}]}

    script = [
        {"match": "leave", "turns": [call(LEAVE), {"content": "done"}]},
        {"match": "look", "turns": [call("sleep 0.5; " + LOOK), call(LOOK), {"content": "done"}]},
    ]
    with MockServer(script=script) as server:
        flags = ("batch", "--dataset_file=p.jsonl", "--run_name=r", "--batch_size=4", f"--base_url={server.base_url}")
        more = ("--model=m", "--distribution=terminal_only", "--engine=inprocess", "--concurrency=2", "--sandbox=bubblewrap")
        kiseki(*flags, *more, cwd=tmp_path, OPENAI_API_KEY="sk-planted-key", PLANTED="planted")
    leave, look = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert "left" in leave["conversations"][3]["value"]
    seen = "".join(turn["value"] for turn in look["conversations"] if turn["from"] == "tool")
    assert "HOME=" in seen, "env was printed"
    for trace in ("secret", "found a process", "planted"):
        assert trace not in seen
    everything = b"".join(path.read_bytes() for path in (tmp_path / "data/r").iterdir())
    assert b"sk-planted-key" not in everything
    assert subprocess.run(["pgrep", "-f", "sleep 4321"], capture_output=True).returncode == 1, "nothing survives its rollout"
