"""The library's door: `AIAgent`, sync and async, and the files that it appends to."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from kiseki import AIAgent, tool
from kiseki.errors import UsageError

PRACTICE = "builtin/practice"


def test_one_conversation_with_real_tools(tmp_path: Path) -> None:
    agent = AIAgent(model=PRACTICE, save_trajectories=True, output_dir=tmp_path)
    result = agent.run_conversation("What is 12 * 12?")
    assert result.completed
    assert "144" in result.final_response
    assert {run.name for run in result.record.tool_runs} & {"terminal", "write_file"}
    (line,) = (tmp_path / "trajectory_samples.jsonl").read_text().splitlines()
    saved = json.loads(line)
    assert list(saved) == ["conversations", "timestamp", "model", "completed"]
    assert saved["model"] == PRACTICE
    assert saved["conversations"][-1]["value"].endswith(result.final_response)


def test_inside_a_running_loop_and_many_at_once() -> None:
    agent = AIAgent(model=PRACTICE, enabled_toolsets=["terminal"])

    async def notebook() -> list[str]:
        first = agent.run_conversation("What is 3 * 5?")  # sync, although a loop runs here
        several = await asyncio.gather(*(agent.arun(f"What is {number} * 7?") for number in range(2, 6)))
        return [first.final_response, *(each.final_response for each in several)]

    answers = asyncio.run(notebook())
    for expected, answer in zip((15, 14, 21, 28, 35), answers, strict=True):
        assert str(expected) in answer


def test_toolsets_are_chosen() -> None:
    every = AIAgent(model=PRACTICE)
    assert set(every.toolsets) == {"terminal", "file", "todo"}
    names = {each.name for each in AIAgent(model=PRACTICE, disabled_toolsets=["file", "todo"]).tools.toolbox.schemas}
    assert names == {"terminal", "process"}

    @tool(toolset="mine")
    def lookup(word: str) -> str:
        """Look a word up."""
        return word

    assert AIAgent(model=PRACTICE, enabled_toolsets=[], tools=[lookup]).toolsets == ("mine",)
    assert AIAgent(model=PRACTICE, enabled_toolsets=["file"], tools=[lookup]).toolsets == ("file", "mine")


def test_settings_that_cannot_work_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENROUTER_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="OPENROUTER_API_KEY"):
        AIAgent(model="some/model")
    with pytest.raises(UsageError, match="not available"):
        AIAgent(model=PRACTICE, enabled_toolsets=["browser"])
    with pytest.raises(UsageError, match="no built-in model"):
        AIAgent(model="builtin/nothing")
    with pytest.raises(UsageError, match="is no tool"):
        AIAgent(model=PRACTICE, tools=[print])
    with pytest.raises(UsageError, match="prefill_messages must be"):
        AIAgent(model=PRACTICE, prefill_messages=[{"role": "narrator", "content": "x"}])
    with pytest.raises(UsageError, match="empty"):
        AIAgent(model=PRACTICE).run_conversation("  ")


APPEND = """
import sys
from pathlib import Path
from kiseki.trajectory.appending import append_line
for number in range(50):
    append_line(Path(sys.argv[1]), {"who": int(sys.argv[2]), "number": number, "text": "x" * 20_000})
"""


def test_several_processes_append_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text('{"torn": ')  # what a crash may have left
    processes = [subprocess.Popen([sys.executable, "-c", APPEND, str(path), str(who)]) for who in range(4)]
    assert [process.wait() for process in processes] == [0, 0, 0, 0]
    torn, *lines = path.read_text().splitlines()
    assert torn == '{"torn": '
    rows = [json.loads(line) for line in lines]
    assert sorted((row["who"], row["number"]) for row in rows) == [(who, number) for who in range(4) for number in range(50)]
