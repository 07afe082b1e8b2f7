"""Whatever does not end by itself ends at its deadline, as an outcome of its own, and the next prompt runs."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from support import FAST, kiseki, read_rows, write_dataset

from kiseki import AIAgent
from kiseki.agent import rollout
from kiseki.models.mock_server import MockServer
from kiseki.sandboxes import bubblewrap, factory, owners, processes

TOOLS = '''
import asyncio
import threading
from kiseki import tool
from kiseki.tools import running

running.GRACE_SECONDS = 0.2  # so that the test need not wait for it

async def never_mind():
    while True:
        try:
            await asyncio.sleep(3600)
        except BaseException:
            pass

@tool(toolset="mine", timeout=0.2)
async def stubborn() -> None:
    """Swallows its cancellation, and whatever else comes."""
    await never_mind()

@tool(toolset="mine", timeout=0.2)
async def nested() -> None:
    """Has a task of its own that does."""
    await asyncio.wait_for(never_mind(), 3600)

@tool(toolset="mine", timeout=0.2)
def blocked() -> None:
    """Never returns."""
    threading.Event().wait()

@tool(toolset="mine")
async def endless() -> None:
    """Swallows its cancellation and has no limit to speak of."""
    await never_mind()

@tool(toolset="mine")
async def quick() -> str:
    """Returns."""
    return "here"
'''
OK = {"content": "ok", "reasoning": "r"}


def calling(*names: str, **more: Any) -> dict[str, Any]:
    """A turn of the model that calls these tools."""
    return {"reasoning": "r", "tool_calls": [{"name": name, "arguments": {}} for name in names]} | more


def run(folder: Path, script: list[dict[str, Any]], *flags: str, status: int = 0, **more: str) -> tuple[dict[str, Any], str]:
    """A run of one prompt per rule of `script`, one after the other. Its statistics, and what it printed."""
    write_dataset(folder / "p.jsonl", [{"prompt": rule["match"]} for rule in script])
    (folder / "mine.py").write_text(TOOLS)
    (folder / "mine.yaml").write_text("mine: 100\n")
    base = (
        "batch",
        "--dataset_file=p.jsonl",
        "--run_name=r",
        "--batch_size=9",
        "--model=m",
        "--concurrency=1",
        "--max_attempts=1",
    )
    with MockServer(script=script) as server:
        own = ("--tools=mine.py", "--distribution=mine.yaml", f"--base_url={server.base_url}")
        done = kiseki(*base, *own, *flags, cwd=folder, status=status, **more)
    assert "Task was destroyed" not in done.stderr and "Traceback" not in done.stderr, done.stderr
    return json.loads((folder / "data/r/statistics.json").read_text()), done.stdout


@pytest.mark.parametrize("engine", ["inprocess", "processes"])
def test_a_tool_that_ignores_its_limit(tmp_path: Path, engine: str) -> None:
    # a worker process is killed in the end when a task in it does not end; this process cannot be
    ignoring = ("stubborn", "blocked", "quick", *(["nested"] if engine == "inprocess" else []))
    script = [{"match": "first", "turns": [calling(*ignoring), OK]}, {"match": "second", "turns": [calling("quick"), OK]}]
    statistics, printed = run(tmp_path, script, f"--engine={engine}")
    assert statistics["outcomes"]["completed"] == 2
    first, second = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert first["conversations"][3]["value"].count("did not finish within 0.2 seconds") == len(ignoring) - 1
    assert "here" in first["conversations"][3]["value"] and "here" in second["conversations"][3]["value"]
    cut = statistics["timeouts"]["cut"]
    assert list(cut) == ["tool"]
    assert (cut["tool"]["count"], cut["tool"]["turns"]["max"]) == (len(ignoring) - 1, 2)
    assert statistics["timeouts"]["not_cut"]["count"] == 1
    assert "Cut by a deadline" in printed and "more time: the tool's own timeout" in printed


def test_the_rollouts_deadline_and_the_lengths_of_what_it_cut(tmp_path: Path) -> None:
    used = {"prompt_tokens": 5, "completion_tokens": 100}
    script: list[dict[str, Any]] = [
        {"match": "a tool", "turns": [calling("endless", usage=used)]},
        {"match": "a call", "turns": [*[calling("quick", usage=used)] * 4, OK | {"fault": {"kind": "stall"}}]},
        {"match": "no reply", "turns": [OK | {"fault": {"kind": "stall"}}]},
        {"match": "in time", "turns": [calling("quick", usage=used), OK | {"usage": used}]},
    ]
    statistics, printed = run(tmp_path, script, *FAST, "--prompt_timeout=1", status=3)
    assert statistics["outcomes"] == {"completed": 1, "partial": 2, "discarded": 0, "failed": 1, "pending": 0}
    assert statistics["failed"] == {"RolloutTimeout": 1}
    rows = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert [row["metadata"]["stop_reason"] for row in rows] == ["timeout", "timeout", "answered"]
    assert "the time for this task was over" in rows[0]["conversations"][-1]["value"]
    cut, not_cut = statistics["timeouts"]["cut"], statistics["timeouts"]["not_cut"]
    assert {name: each["count"] for name, each in cut.items()} == {"timeout": 2, "RolloutTimeout": 1}
    assert cut["timeout"]["turns"] == {"p50": 1, "p90": 4, "p99": 4, "max": 4}
    assert cut["timeout"]["completion_tokens"] == {"p50": 100, "p90": 400, "p99": 400, "max": 400}
    assert cut["timeout"]["seconds"]["p50"] >= 1
    assert cut["RolloutTimeout"]["turns"]["max"] == 0
    assert (not_cut["count"], not_cut["turns"]["max"], not_cut["completion_tokens"]["max"]) == (1, 2, 200)
    assert "Cut by a deadline" in printed and "more time: --prompt_timeout" in printed


def test_nothing_cut_is_no_table(tmp_path: Path) -> None:
    statistics, printed = run(tmp_path, [{"match": "x", "turns": [OK]}], *FAST)
    assert statistics["timeouts"]["cut"] == {}
    assert statistics["timeouts"]["not_cut"]["turns"] == {"p50": 1, "p90": 1, "p99": 1, "max": 1}
    assert "Cut by a deadline" not in printed


NEEDS_SANDBOX = """
from kiseki import tool
from kiseki.tools.context import ToolContext

@tool(toolset="mine")
async def quick(context: ToolContext) -> str:
    "Asks the sandbox."
    return (await context.sandbox.exec("echo here", timeout=60)).output
"""


@pytest.mark.skipif(not bubblewrap.working_program()[0], reason=bubblewrap.working_program()[1] or "-")
def test_a_sandbox_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first bwrap, which the run tries out, works; the second hangs, the third works again."""
    bwrap = tmp_path / "bin/bwrap"
    bwrap.parent.mkdir()
    seconds = f"36{os.getpid()}"
    bwrap.write_text(
        f"#!/bin/sh\necho >>{tmp_path}/opened\n"
        f'[ "$(wc -l <{tmp_path}/opened)" -eq 2 ] && exec sleep {seconds}\nexec {bubblewrap.working_program()[0]} "$@"\n'
    )
    bwrap.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setitem(globals(), "TOOLS", NEEDS_SANDBOX)
    script = [{"match": name, "turns": [calling("quick"), OK]} for name in ("first", "second")]
    found = {"PATH": f"{bwrap.parent}:{os.environ['PATH']}", "TMPDIR": str(tmp_path / "tmp")}
    statistics, printed = run(tmp_path, script, *FAST, "--sandbox=bubblewrap", "--sandbox_timeout=3", status=3, **found)
    assert statistics["failed"] == {"SandboxTimeout": 1}
    assert statistics["outcomes"]["completed"] == 1
    assert statistics["timeouts"]["cut"]["SandboxTimeout"]["count"] == 1
    assert "more time: --sandbox_timeout" in printed
    (row,) = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert row["prompt"] == "second" and "here" in row["conversations"][3]["value"]
    commands = [Path(f"/proc/{pid}/cmdline") for pid in processes.every_pid()]
    assert not [path for path in commands if path.exists() and seconds.encode() in path.read_bytes()]
    assert [path for path in (tmp_path / "tmp").rglob("*") if path.name not in (f"kiseki-{os.getuid()}", owners.FOLDER)] == []


def test_a_sandbox_that_does_not_close(monkeypatch: pytest.MonkeyPatch) -> None:
    real = factory.Sandboxes.open
    boxes: list[Any] = []

    async def opened(self: factory.Sandboxes, **more: Any) -> Any:
        box = await real(self, **more)
        boxes.append(box.close)

        async def never() -> None:
            while True:
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    continue

        monkeypatch.setattr(box, "close", never)
        return box

    monkeypatch.setattr(factory.Sandboxes, "open", opened)
    monkeypatch.setattr(rollout, "CLOSE_SECONDS", 0.1)
    turns = [{"tool_calls": [{"name": "terminal", "arguments": {"command": "echo here"}}]}, OK]

    async def converse(agent: AIAgent) -> bool:
        completed = (await agent.arun("go")).completed
        await boxes[0]()
        return completed

    with MockServer(script=[{"turns": turns}]) as server:
        agent = AIAgent("m", base_url=server.base_url, enabled_toolsets=["terminal"], sandbox="local")
        assert asyncio.run(converse(agent))
