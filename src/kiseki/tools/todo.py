"""The `todo` toolset: the model's own plan, kept for one rollout."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from kiseki.errors import ToolError
from kiseki.tools.context import ToolContext
from kiseki.tools.registry import tool

Status = Literal["pending", "in_progress", "completed", "cancelled"]
STATUSES: tuple[Status, ...] = ("pending", "in_progress", "completed", "cancelled")


class Item(msgspec.Struct, forbid_unknown_fields=True):
    """One task. When merging, what is left out of a task that is there already stays as it is."""

    id: str
    content: str | UnsetType = UNSET
    status: Status | UnsetType = UNSET


@tool(toolset="todo", needs_sandbox=False)
async def todo(context: ToolContext, todos: list[Item] | None = None, merge: bool = False) -> dict[str, Any]:
    """Keep a task list for work of several steps. Without todos it returns the list. Mark a task in_progress when you begin
    it and completed as soon as it is done.

    Args:
        todos: The tasks in order. A new task needs id and content; status is pending unless given.
        merge: true changes the tasks with these ids and adds new ones; false replaces the whole list.
    """
    known: dict[str, dict[str, str]] = context.state.setdefault("todo", {})
    if todos is not None:
        known = _changed(known if merge else {}, todos)
        context.state["todo"] = known
    counts = {status: sum(each["status"] == status for each in known.values()) for status in STATUSES}
    return {"todos": list(known.values()), "counts": {"total": len(known), **counts}}


def _changed(known: dict[str, dict[str, str]], items: list[Item]) -> dict[str, dict[str, str]]:
    """The new list, so that a wrong item leaves the old one as it was."""
    result = dict(known)
    seen: set[str] = set()
    for item in items:
        if not item.id.strip():
            raise ToolError("every task needs an id")
        if item.id in seen:
            raise ToolError(f"the id {item.id!r} is there twice")
        seen.add(item.id)
        old = result.get(item.id)
        content = item.content if item.content is not UNSET else (old or {}).get("content", "")
        if not content.strip():
            raise ToolError(f"the task {item.id!r} has no content")
        status = item.status if item.status is not UNSET else (old or {}).get("status", "pending")
        result[item.id] = {"id": item.id, "content": content, "status": status}
    return result
