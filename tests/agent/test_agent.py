"""The library's door: `AIAgent`, sync and async, and the files that it appends to."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kiseki import AIAgent, tool
from kiseki.agent.prefill import prefill_messages, read_prefill
from kiseki.errors import UsageError
from kiseki.models.mock_server import MockServer
from kiseki.tools.toolsets import TOOLSETS
from kiseki.trajectory.types import Message

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


CELL = """
import asyncio, signal, sys, threading
from kiseki import AIAgent

async def cell():
    agent = AIAgent(model="m", base_url=sys.argv[1], enabled_toolsets=["todo"], save_trajectories=True)
    try:
        agent.run_conversation("hello")
    finally:
        print("threads:", threading.active_count())

signal.signal(signal.SIGINT, signal.default_int_handler)  # which asyncio.run would replace, and a notebook does not
asyncio.new_event_loop().run_until_complete(cell())
"""


def test_an_interrupt_ends_the_conversation_of_a_notebook(tmp_path: Path) -> None:
    with MockServer(latency=600) as server:
        process = subprocess.Popen(
            [sys.executable, "-c", CELL, server.base_url], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            while server.stats()["in_flight"] < 1:
                assert process.poll() is None, process.communicate()
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
        assert process.returncode in (-signal.SIGINT, 130), errors
        assert errors.splitlines()[-1] == "KeyboardInterrupt"
        assert output == "threads: 1\n", "the conversation's thread has ended before the caller goes on"
        assert server.stats()["calls"] == 1
    assert not list(tmp_path.iterdir())


def test_errors_inside_a_running_loop_are_the_callers() -> None:
    async def notebook() -> None:
        with pytest.raises(UsageError, match="empty"):
            AIAgent(model=PRACTICE).run_conversation(" ")

    asyncio.run(notebook())


def test_toolsets_are_chosen() -> None:
    every = AIAgent(model=PRACTICE).toolsets
    # what needs nothing more is always there; whether there is a browser, say, hangs on the machine
    assert {"terminal", "file", "todo", "memory", "code_execution", "delegation"} <= set(every) <= set(TOOLSETS) - {"skills"}
    rest = [each for each in every if each != "terminal"]
    names = {each.name for each in AIAgent(model=PRACTICE, disabled_toolsets=rest).tools.toolbox.schemas}
    assert names == {"terminal", "process"}

    @tool(toolset="mine")
    def lookup(word: str) -> str:
        """Look a word up."""
        return word

    assert AIAgent(model=PRACTICE, enabled_toolsets=[], tools=[lookup]).toolsets == ("mine",)
    assert AIAgent(model=PRACTICE, enabled_toolsets=["file"], tools=[lookup]).toolsets == ("file", "mine")
    none = AIAgent(model=PRACTICE, enabled_toolsets=["file"], disabled_toolsets=["mine", "web", "mcp-x", "file"], tools=[lookup])
    assert none.toolsets == ()


def test_settings_that_cannot_work_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENROUTER_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="OPENROUTER_API_KEY"):
        AIAgent(model="some/model")
    with pytest.raises(UsageError, match="not available"):
        AIAgent(model=PRACTICE, enabled_toolsets=["skills"])
    with pytest.raises(UsageError, match=r"'termnal' cannot be disabled: .*did you mean terminal\?"):
        AIAgent(model=PRACTICE, disabled_toolsets=["termnal"])
    with pytest.raises(UsageError, match="reasoning_config has no exclude, max_tokens; its keys are enabled and effort"):
        AIAgent(model=PRACTICE, reasoning_config={"max_tokens": 5, "effort": "low", "exclude": True})
    with pytest.raises(UsageError, match="enabled must be True or False, not 'no'"):
        AIAgent(model=PRACTICE, reasoning_config={"enabled": "no"})
    with pytest.raises(UsageError, match="no built-in model"):
        AIAgent(model="builtin/nothing")
    with pytest.raises(UsageError, match="is no tool"):
        AIAgent(model=PRACTICE, tools=[print])
    with pytest.raises(UsageError, match="prefill_messages must be"):
        AIAgent(model=PRACTICE, prefill_messages=[{"role": "narrator", "content": "x"}])
    with pytest.raises(UsageError, match="empty"):
        AIAgent(model=PRACTICE).run_conversation("  ")


def test_a_conversation_without_the_image_that_it_needs_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "apptainer").write_text("#!/bin/sh\necho apptainer version 1.3.4\n")
    (tmp_path / "apptainer").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with MockServer() as server:
        agent = AIAgent(model="m", base_url=server.base_url, sandbox="apptainer")
        with pytest.raises(UsageError, match=r"'apptainer' needs an image: sandbox_image \(--sandbox_image\) names one"):
            agent.run_conversation("hello")
        with pytest.raises(UsageError, match="'local' has no images, so 'debian' cannot be used"):
            asyncio.run(AIAgent(model="m", base_url=server.base_url, sandbox="local").arun("hello", image="debian"))
        assert server.stats()["calls"] == 0

        @tool(toolset="mine")
        def lookup(word: str) -> str:
            """Look a word up."""
            return word

        alone = AIAgent(model="m", base_url=server.base_url, sandbox="apptainer", enabled_toolsets=[], tools=[lookup])
        alone.run_conversation("hello")  # no tool of it needs a sandbox
        assert server.stats()["calls"] >= 1


@pytest.mark.parametrize(
    ("config", "effort", "disabled"),
    [
        (None, "", False),
        ({"enabled": True}, "", False),
        ({"effort": "high"}, "high", False),
        ({"enabled": False}, "", True),
        ({"effort": "none"}, "none", True),
    ],
)
def test_reasoning_config(config: dict[str, Any] | None, effort: str, disabled: bool) -> None:
    model = AIAgent(model=PRACTICE, reasoning_config=config).model
    assert (model.reasoning_effort, model.reasoning_disabled) == (effort, disabled)


def test_prefill_is_read_alike_from_the_library_and_from_a_file(tmp_path: Path) -> None:
    listed = [
        {"role": "system", "content": "s"},
        {"from": "human", "value": "h \ud83d"},
        {"role": "gpt", "content": [{"type": "text", "text": "g"}]},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "a"},
    ]
    expected = (
        Message("system", "s"),
        Message("user", "h \ufffd"),
        Message("assistant", "g"),
        Message("user"),
        Message("assistant", "a"),
    )
    assert prefill_messages(listed, "here") == expected
    assert prefill_messages(expected, "here") == expected
    path = tmp_path / "prefill.json"
    path.write_text(json.dumps(listed).replace("\\ud83d", "\\ufffd"))
    assert read_prefill(str(path)) == expected
    assert read_prefill("") == ()
    for wrong, says in (
        ({"role": "user"}, "it is an object"),
        ("text", "it is a string"),
        (["text"], "message 0 is a string"),
        ([*listed, {"role": "narrator", "content": "x"}], "message 5 has the role 'narrator'"),
        ([{"from": "tool", "value": "x"}], "message 0 has the role 'tool'"),
        ([{"role": "user"}], "message 0 has no text content"),
    ):
        with pytest.raises(UsageError, match=rf"^here must be a list of {{role, content}}: {says}"):
            prefill_messages(wrong, "here")
    path.write_text("[{")
    with pytest.raises(UsageError, match=r"prefill\.json must be a list of .*not valid JSON"):
        read_prefill(str(path))
    with pytest.raises(UsageError, match=r"cannot read --prefill_messages_file .*No such file"):
        read_prefill(str(tmp_path / "none.json"))


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
