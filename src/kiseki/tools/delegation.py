"""The `delegation` toolset: parts of a task given to sub-agents, each a conversation of its own in the same sandbox."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from kiseki.errors import ToolError
from kiseki.tools.context import SubTask, ToolContext
from kiseki.tools.registry import tool
from kiseki.trajectory.text import cut_middle
from kiseki.trajectory.types import Record

MAX_TASKS = 3
"""In one call, all at once."""
MAX_ANSWER_BYTES = 20_000
"""Of each: three fit into one tool result with room to spare, and an agent that needs more can have it written to a file."""
GOAL_CHARS = 200
"""Of a goal, to tell the results apart."""
SECONDS = 86_400.0
"""Only a net: what bounds sub-agents is the rollout's own time, which stands still while they wait for the endpoint."""


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one sub-agent is to do."""

    goal: str
    context: str = ""
    toolsets: list[str] = []


@tool(toolset="delegation", timeout=SECONDS, needs_sandbox=False)
async def delegate_task(
    caller: ToolContext,
    goal: str = "",
    context: str = "",
    toolsets: list[str] | None = None,
    tasks: list[Task] | None = None,
) -> dict[str, Any]:
    """Have sub-agents do a part of your work, and get their answers: one for goal, or up to 3 side by side for tasks. Each
    begins with an empty conversation, so goal and context have to say all that it needs to know. They share your sandbox: its
    files, and the shell session with its current folder, so use absolute paths. They cannot delegate themselves.

    Args:
        goal: What the sub-agent is to do and to answer.
        context: What it needs to know for that: paths, findings, limits.
        toolsets: Names of those of your toolsets that it gets; all of them unless given.
        tasks: Instead of goal: several tasks, each with goal, context and toolsets.
    """
    if caller.delegate is None:
        raise ToolError("there are no sub-agents here")
    wanted = _wanted(goal, context, toolsets, tasks)
    results: list[dict[str, Any]] = [{} for _ in wanted]

    async def one(number: int) -> None:
        results[number] = await _result(caller, wanted[number])

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(len(wanted)):
                group.create_task(one(number))
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None  # the first says why; the rest were cancelled because of it
    errors = dict.fromkeys(each["error"] for each in results if "error" in each)
    failed = all("error" in each for each in results)
    return {"error": "; ".join(errors), "results": results} if failed else {"results": results}


def _wanted(goal: str, context: str, toolsets: list[str] | None, tasks: list[Task] | None) -> list[SubTask]:
    if tasks and (goal.strip() or context.strip() or toolsets):
        raise ToolError("give either goal (with context and toolsets) or tasks, not both")
    if tasks is not None and not 1 <= len(tasks) <= MAX_TASKS and not goal.strip():
        raise ToolError(f"tasks has {len(tasks)} entries; one call takes 1 to {MAX_TASKS}")
    wanted = tasks or [Task(goal, context, toolsets or [])]
    if not all(each.goal.strip() for each in wanted):
        raise ToolError("goal is empty" if not tasks else "every task needs a goal")
    return [SubTask(each.goal.strip(), each.context, tuple(each.toolsets)) for each in wanted]


async def _result(caller: ToolContext, task: SubTask) -> dict[str, Any]:
    shown = task.goal if len(task.goal) <= GOAL_CHARS else f"{task.goal[:GOAL_CHARS]}…"
    assert caller.delegate is not None
    try:
        record = await caller.delegate(caller, task)
    except ToolError as error:  # the others' work is not lost because of it
        return {"goal": shown, "error": str(error)}
    return {"goal": shown, **_answer(record)}


def _answer(record: Record) -> dict[str, Any]:
    said = [each for each in record.messages[record.prompt_messages :] if each.role == "assistant"]
    text = said[-1].content.encode() if said else b""
    answer: dict[str, Any] = {
        "outcome": record.outcome,
        "answer": cut_middle(text, MAX_ANSWER_BYTES).decode("utf-8", "replace"),
        "turns": len(said),
        "tool_calls": len(record.tool_runs),
    }
    if record.outcome == "partial":
        answer["stopped_by"] = record.reason
    if record.outcome == "failed":  # only what the endpoint refuses gets here; its words are in the record
        answer["error"] = f"the sub-agent was broken off: the model's endpoint refused to go on ({record.reason})"
    return answer
