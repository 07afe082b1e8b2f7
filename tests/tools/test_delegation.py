"""What `delegate_task` takes and gives. What a sub-agent is, is for tests/agent/test_delegation.py."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from kiseki.errors import BudgetSpent, ToolError
from kiseki.tools.context import SubTask, ToolContext
from kiseki.tools.delegation import GOAL_CHARS, MAX_ANSWER_BYTES
from kiseki.tools.results import MAX_RESULT_BYTES
from kiseki.tools.toolbox import Toolbox
from kiseki.tools.toolsets import load_tools
from kiseki.trajectory.types import Message, Outcome, Record, ToolCall

BOX = Toolbox(load_tools(["delegation"]))


def record(goal: str) -> Record:
    """How a sub-agent with this goal ends: the goal's first word is the outcome, its second the reason."""
    outcomes: dict[str, Outcome] = {"stop": "partial", "fail": "failed"}
    first, _, rest = goal.partition(" ")
    said = Message(role="assistant", content="long " * 10_000 if first == "long" else f"did {goal}")
    return Record(
        key="k/1",
        sample_index=0,
        attempt=1,
        seed=0,
        messages=(Message(role="system", content="s"), Message(role="user", content=goal), said),
        prompt_messages=2,
        outcome=outcomes.get(first, "completed"),
        reason=rest,
        model="m",
        toolsets=(),
        tools_hash="",
    )


def delegate(**arguments: Any) -> tuple[dict[str, Any], list[SubTask]]:
    """What the tool says, and what was delegated."""
    tasks: list[SubTask] = []

    async def one(context: ToolContext, task: SubTask) -> Record:
        tasks.append(task)
        if task.goal.startswith("refuse"):
            raise ToolError(f"no {task.goal}")
        if task.goal.startswith("broke"):
            raise BudgetSpent("nothing left")
        return record(task.goal)

    async def main() -> str:
        context = ToolContext(None)
        context.delegate = one
        message, run = await BOX.call(context, ToolCall("c", "delegate_task", json.dumps(arguments)))
        assert run.ok is ("error" not in json.loads(message.content))
        return message.content

    content = asyncio.run(main())
    answer = json.loads(content)
    assert isinstance(answer, dict)
    assert len(content.encode()) < MAX_RESULT_BYTES
    return answer, tasks


def test_one_goal() -> None:
    answer, tasks = delegate(goal=" look ", context="at it", toolsets=["file"])
    assert tasks == [SubTask("look", "at it", ("file",))]
    assert answer == {"results": [{"goal": "look", "outcome": "completed", "answer": "did look", "turns": 1, "tool_calls": 0}]}


def test_several_tasks_come_back_in_order_and_one_that_cannot_be_spoils_no_other() -> None:
    answer, tasks = delegate(tasks=[{"goal": "a"}, {"goal": "refuse b", "toolsets": ["x"]}, {"goal": "stop max_turns"}])
    assert [each.goal for each in tasks] == ["a", "refuse b", "stop max_turns"]
    first, second, third = answer["results"]
    assert first["outcome"] == "completed"
    assert second == {"goal": "refuse b", "error": "no refuse b"}
    assert (third["outcome"], third["stopped_by"]) == ("partial", "max_turns")


def test_it_fails_where_all_of_them_do() -> None:
    answer, _ = delegate(tasks=[{"goal": "refuse a"}, {"goal": "fail ContextLengthExceeded"}])
    assert "no refuse a; the sub-agent was broken off" in answer["error"]
    assert answer["results"][1]["error"].endswith("(ContextLengthExceeded)")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "goal is empty"),
        ({"goal": " "}, "goal is empty"),
        ({"tasks": []}, "tasks has 0 entries; one call takes 1 to 3"),
        ({"tasks": [{"goal": "a"}] * 4}, "tasks has 4 entries; one call takes 1 to 3"),
        ({"tasks": [{"goal": "a"}, {"goal": ""}]}, "every task needs a goal"),
        ({"goal": "a", "tasks": [{"goal": "b"}]}, "not both"),
        ({"context": "a", "tasks": [{"goal": "b"}]}, "not both"),
        ({"tasks": [{"task": "b"}]}, "have wrong values"),
    ],
)
def test_what_the_model_gets_wrong(arguments: dict[str, Any], says: str) -> None:
    answer, tasks = delegate(**arguments)
    assert says in answer["error"]
    assert not tasks, "nothing was started"


def test_long_answers_and_goals_are_cut() -> None:
    answer, tasks = delegate(tasks=[{"goal": f"long {'x' * 500}"}] * 3)
    assert len(tasks[0].goal) > GOAL_CHARS
    for each in answer["results"]:
        assert len(each["goal"]) == GOAL_CHARS + 1
        assert len(each["answer"].encode()) < MAX_ANSWER_BYTES + 200
        assert "bytes left out here" in each["answer"]


def test_what_ends_the_rollout_goes_through() -> None:
    with pytest.raises(BudgetSpent):
        delegate(tasks=[{"goal": "a"}, {"goal": "broke"}])


def test_without_a_rollout_there_are_no_sub_agents() -> None:
    message, run = asyncio.run(BOX.call(ToolContext(None), ToolCall("c", "delegate_task", '{"goal": "a"}')))
    assert "there are no sub-agents here" in message.content
    assert not run.ok
