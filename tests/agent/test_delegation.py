"""Sub-agents through the library's door: conversations of their own in the rollout's sandbox, on its time, kept whatever ends
them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kiseki import AgentResult, AIAgent, Image, tool
from kiseki.formats.reading import read_row
from kiseki.models.mock_server import MockServer
from kiseki.tools import running
from kiseki.tools.context import RolloutInfo
from kiseki.tools.settings import ToolSettings
from kiseki.trajectory.record import usage_of
from kiseki.trajectory.sharegpt import to_sharegpt
from kiseki.trajectory.types import Record, Usage


@tool(toolset="mine")
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


@tool(toolset="mine")
async def meet() -> str:
    """Wait until three of these run at once."""
    Room.count += 1
    if Room.count == 3:
        Room.full.set()
    await Room.full.wait()
    return "met"


@tool(toolset="mine")
async def follow() -> str:
    """Wait until somebody waits for others."""
    while not Room.count:
        await asyncio.sleep(0.01)
    return "followed"


@tool(toolset="mine")
async def ignore() -> str:
    """Never end, whatever is said."""
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            Room.count += 1


@tool(toolset="mine")
def who(rollout: RolloutInfo) -> str:
    """Say whose it is."""
    return f"{rollout.key}: {rollout.prompt}"


@tool(toolset="pictures")
def draw() -> Image:
    """Draw."""
    return Image(b"\x89PNG\r\n\x1a\n\xff")


class Room:
    count: int
    full: asyncio.Event


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def rule(match: str, *turns: dict[str, Any] | str) -> dict[str, Any]:
    """Who is asked something that matches calls these tools, one a turn, then answers."""
    said = [{"content": each} if isinstance(each, str) else each if "fault" in each else {"tool_calls": [each]} for each in turns]
    return {"match": match, "turns": [{"reasoning": "r", **each} for each in said]}


def converse(*rules: dict[str, Any], toolsets: tuple[str, ...] = (), prompt: str = "go", **settings: Any) -> AgentResult:
    Room.count, Room.full = 0, asyncio.Event()
    tools = [shout, meet, follow, ignore, who, *([draw] if "terminal" in toolsets else [])]
    with MockServer(script=list(rules)) as server:
        agent = AIAgent(
            "m", base_url=server.base_url, enabled_toolsets=["delegation", *toolsets], tools=tools, sandbox="local", **settings
        )
        result = agent.run_conversation(prompt)
        if not result.error:
            records = (result.record, *children(result))
            refused = sum(each.outcome == "failed" for each in records)
            assert server.stats()["calls"] == sum(len(each.calls) for each in records) + refused
        for each in children(result):
            assert each.tools_hash in agent.tools.schemas
    return result


def children(result: AgentResult) -> list[Record]:
    return [child for run in result.record.tool_runs for child in run.children]


def is_sum(whole: Usage, *parts: Usage) -> None:
    total = sum(parts, Usage())
    assert (whole.prompt_tokens, whole.completion_tokens) == (total.prompt_tokens, total.completion_tokens)
    assert whole.cost == pytest.approx(total.cost)
    assert whole.cost > 0


def said(result: AgentResult) -> list[dict[str, Any]]:
    """What `delegate_task` answered, call by call."""
    return [json.loads(each.content) for each in result.messages if each.name == "delegate_task"]


def test_a_sub_agent_has_a_conversation_and_tools_of_its_own() -> None:
    result = converse(
        rule("^look", call("shout", text="hi"), "it says {{last_tool_result}}"),
        rule("go", call("delegate_task", goal="look", context="closely", toolsets=["mine"]), "I know"),
        toolsets=("todo",),
        ephemeral_system_prompt="Be brief.",
        prefill_messages=[{"role": "user", "content": "before"}, {"role": "assistant", "content": "ok"}],
    )
    assert result.completed
    assert result.final_response == "I know"
    (answer,) = said(result)[0]["results"]
    assert answer == {"goal": "look", "outcome": "completed", "answer": "it says HI", "turns": 2, "tool_calls": 1}
    (child,) = children(result)
    assert child.key == f"{result.record.key}/1"
    assert [each.role for each in child.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert "You are a sub-agent" in child.messages[0].content
    assert "Be brief" not in child.messages[0].content, "it is not saved"
    assert child.messages[1].content == "look\n\nclosely"
    assert child.toolsets == ("mine",)
    assert (child.outcome, child.reason, child.prompt_messages) == ("completed", "answered", 2)
    assert child.tools_hash != result.record.tools_hash
    assert result.api_calls == 2, "its own"
    is_sum(result.usage, *(each.usage for each in result.record.calls), usage_of(child))
    assert 0 < usage_of(child).prompt_tokens < result.usage.prompt_tokens


def test_three_at_once_each_with_its_number() -> None:
    tasks = [{"goal": f"part {number}"} for number in range(3)]
    result = converse(
        rule("part", call("meet"), "done {{prompt}}"), rule("go", call("delegate_task", tasks=tasks), "ok"), prompt_timeout=60
    )
    assert result.completed, result.reason  # one after the other they would wait for ever
    assert [each["answer"] for each in said(result)[0]["results"]] == ["done part 0", "done part 1", "done part 2"]
    assert {each.messages[1].content: each.key[-2:] for each in children(result)} == {
        "part 0": "/1",
        "part 1": "/2",
        "part 2": "/3",
    }


def test_they_share_the_sandbox_and_nothing_else() -> None:
    """Files yes, the plan no; and no file of one takes the place of another's."""
    plan = call("todo", todos=[{"id": "1", "content": "of the child"}])
    result = converse(
        rule("^work", call("terminal", command="echo hello > note; cd /tmp"), plan, call("draw"), call("who"), "done"),
        rule(
            "go",
            *(call("draw"), call("todo", todos=[{"id": "1", "content": "mine"}])),
            *(call("delegate_task", goal="work"), call("todo"), call("terminal", command="cat ~/note; pwd"), call("draw"), "ok"),
        ),
        toolsets=("terminal", "todo"),
    )
    assert result.completed
    (child,) = children(result)
    assert child.sandbox == result.record.sandbox != {}
    told = [each.content for each in child.messages if each.role == "tool"]
    assert "image-2.png" in told[2]
    assert told[3] == f"{result.record.key}: go", "it is the rollout's"
    own = [each.content for each in result.messages if each.role == "tool"]
    assert [each["content"] for each in json.loads(own[3])["todos"]] == ["mine"]
    assert json.loads(own[4])["output"] == "hello\n/tmp\n", "the shell session is one"
    assert "image-1.png" in own[0]
    assert "image-3.png" in own[5]


def test_what_was_prepared_for_the_rollout_is_not_prepared_again(tmp_path: Path) -> None:
    """A memory that the host's folder was copied into once, written to by all."""
    (tmp_path / "MEMORY.md").write_text("from the host")
    tasks = [{"goal": f"part {number}"} for number in range(3)]
    result = converse(
        rule("^part", call("meet"), call("memory", action="add", content="{{prompt}}"), "done"),
        rule(
            "go",
            *(call("memory", action="replace", old_text="host", content="of the parent"), call("delegate_task", tasks=tasks)),
            *(call("memory", action="read"), "ok"),
        ),
        toolsets=("memory",),
        tool_settings=ToolSettings(memory_dir=str(tmp_path)),
    )
    read = json.loads([each.content for each in result.messages if each.role == "tool"][2])
    assert read["entries"][0] == "of the parent"
    assert sorted(read["entries"][1:]) == ["part 0", "part 1", "part 2"], "nobody wrote over another's"


@pytest.mark.parametrize("name", ["nothing", "delegation"])
def test_toolsets_that_a_sub_agent_cannot_have(name: str) -> None:
    result = converse(rule("go", call("delegate_task", goal="x", toolsets=["mine", name]), "ok"), toolsets=("todo",))
    assert said(result)[0]["error"] == f"a sub-agent cannot have {name}; the toolsets are: todo, mine"
    assert not children(result)


def test_a_sub_agent_has_none_itself() -> None:
    result = converse(
        rule("^part", call("delegate_task", goal="part"), "ok"), rule("go", call("delegate_task", goal="part"), "ok")
    )
    (child,) = children(result)
    assert child.toolsets == ("mine",)
    assert "there is no tool named 'delegate_task'" in child.messages[3].content
    assert child.unknown_tools == ()


def test_there_are_so_many_and_no_more() -> None:
    three = call("delegate_task", tasks=[{"goal": "part"}] * 3)
    result = converse(rule("part", "done"), rule("go", three, three, three, three, three, "ok"))
    assert result.completed
    assert len(children(result)) == 10
    assert [["error" in each for each in one["results"]] for one in said(result)[2:]] == [
        [False, False, False],
        [False, True, True],
        [True, True, True],
    ]
    assert "has had its 10 sub-agents" in said(result)[4]["error"]


def test_max_turns_holds_for_each() -> None:
    result = converse(rule("^part", call("shout", text="a")), rule("go", call("delegate_task", goal="part"), "ok"), max_turns=3)
    assert result.completed
    (answer,) = said(result)[0]["results"]
    assert (answer["outcome"], answer["stopped_by"], answer["turns"]) == ("partial", "max_turns", 3)


@pytest.mark.parametrize("how", ["waits", "takes no notice"])
def test_the_deadline_is_the_rollouts_and_what_they_did_is_kept(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "GRACE_SECONDS", 0.1)
    last = call("ignore") if how == "takes no notice" else call("meet")
    tasks = [{"goal": "quick"}, {"goal": "part"}]
    result = converse(
        *(rule("quick", "done"), rule("^part", call("shout", text="a"), last)),
        rule("go", call("delegate_task", tasks=tasks)),
        prompt_timeout=2.0,
    )
    assert (result.partial, result.reason) == (True, "timeout")
    assert said(result) == [{"error": "not finished: the time for this task was over"}]
    quick, cut = children(result)
    assert (quick.outcome, quick.key[-2:]) == ("completed", "/1")
    assert (cut.outcome, cut.reason, cut.key[-2:]) == ("partial", "timeout", "/2")
    assert [each.content for each in cut.messages if each.role == "tool"] == [
        "A",
        '{"error":"not finished: the time for this task was over"}',
    ]
    assert len(cut.tool_runs) == 2
    row = {"conversations": msgspec.to_builtins(to_sharegpt(cut.messages, "[]"))}
    assert read_row(row).messages[1:], "a row that can be read"
    is_sum(result.usage, *(each.usage for each in result.record.calls), usage_of(quick), usage_of(cut))


def test_a_conversation_that_the_endpoint_refuses_is_the_sub_agents_end_only() -> None:
    too_long = {"content": "", "fault": {"kind": "context_length"}}
    result = converse(rule("^part", too_long), rule("go", call("delegate_task", goal="part"), "ok then"))
    assert result.completed
    assert "refused to go on (ContextLengthExceeded)" in said(result)[0]["error"]
    (child,) = children(result)
    assert (child.outcome, child.error_class) == ("failed", "ContextLengthExceeded")
    assert child.error
    assert not child.calls


def test_an_endpoint_that_fails_fails_the_rollout_and_nothing_paid_for_is_forgotten() -> None:
    down = {"content": "", "fault": {"kind": "auth"}}
    result = converse(
        rule("other", call("meet")),
        rule("^part", call("follow"), down),
        rule("go", call("delegate_task", tasks=[{"goal": "part"}, {"goal": "other"}]), "ok"),
    )
    assert not result.completed
    assert not result.partial
    assert result.record.error_class == "AuthError"
    part, other = sorted(children(result), key=lambda each: each.key)
    assert (part.outcome, part.error_class, len(part.calls)) == ("failed", "AuthError", 1)
    assert (other.outcome, len(other.calls)) == ("partial", 1)
    is_sum(result.usage, result.record.calls[0].usage, usage_of(part), usage_of(other))
