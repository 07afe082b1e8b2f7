"""The task list of one rollout."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from kiseki.tools.context import ToolContext
from kiseki.tools.toolbox import Toolbox
from kiseki.tools.toolsets import load_tools
from kiseki.trajectory.types import ToolCall

BOX = Toolbox(load_tools(["todo"]))


def fresh() -> ToolContext:
    return ToolContext(None)  # the list needs no sandbox


def call(context: ToolContext, arguments: dict[str, Any]) -> dict[str, Any]:
    request = ToolCall("c", "todo", msgspec.json.encode(arguments).decode())
    message, _ = asyncio.run(BOX.call(context, request))
    answer = msgspec.json.decode(message.content)
    assert isinstance(answer, dict)
    return answer


def test_replacing_merging_and_reading() -> None:
    context = fresh()
    assert call(context, {})["todos"] == []
    call(context, {"todos": [{"id": "1", "content": "read"}, {"id": "2", "content": "write", "status": "in_progress"}]})
    merged = call(context, {"todos": [{"id": "2", "status": "completed"}, {"id": "3", "content": "test"}], "merge": True})
    assert merged["todos"] == [
        {"id": "1", "content": "read", "status": "pending"},
        {"id": "2", "content": "write", "status": "completed"},
        {"id": "3", "content": "test", "status": "pending"},
    ]
    assert merged["counts"] == {"total": 3, "pending": 2, "in_progress": 0, "completed": 1, "cancelled": 0}
    assert call(context, {}) == merged
    replaced = call(context, {"todos": [{"id": "9", "content": "rest", "status": "cancelled"}]})
    assert [each["id"] for each in replaced["todos"]] == ["9"]
    assert call(context, {"todos": []})["counts"]["total"] == 0
    assert call(fresh(), {})["todos"] == []  # another rollout has its own


@pytest.mark.parametrize(
    ("todos", "message"),
    [
        ([{"id": "1"}], "the task '1' has no content"),
        ([{"id": "1", "content": "a"}, {"id": "1", "content": "b"}], "the id '1' is there twice"),
        ([{"id": " ", "content": "a"}], "every task needs an id"),
        ([{"id": "1", "content": "a", "status": "done"}], "Invalid enum value 'done'"),
        ([{"id": "1", "content": "a", "state": "x"}], "unknown field `state`"),
    ],
)
def test_a_wrong_item_changes_nothing(todos: list[dict[str, str]], message: str) -> None:
    context = fresh()
    before = call(context, {"todos": [{"id": "0", "content": "stay"}]})
    assert message in call(context, {"todos": todos})["error"]
    assert call(context, {}) == before
