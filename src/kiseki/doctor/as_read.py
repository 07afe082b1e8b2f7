"""The messages and tools that a consumer gives to its chat template, from a row: roles mapped as it maps them, and no better.
Pure functions."""

from __future__ import annotations

from typing import Any

from kiseki.doctor.turns import Conversation
from kiseki.formats.reading import CALL_ROLES, ROLES
from kiseki.trajectory.json_rows import decode_row

AXOLOTL_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
}
"""What it maps by itself; other names stay as they are."""

View = tuple[list[dict[str, Any]], "list[dict[str, Any]] | None", dict[str, Any]]


def as_read(row: dict[str, Any], conversation: Conversation, target: str) -> View:
    """(messages, tools, other variables of the template)."""
    turns = [turn.raw for turn in conversation.turns]
    tools = tools_of(row)
    if target == "trl":
        renamed = [_renamed(turn) for turn in turns]
        kwargs = row.get("chat_template_kwargs")
        return renamed, tools, kwargs if isinstance(kwargs, dict) else {}
    if target == "axolotl":
        mapped = [_without_nulls(_renamed(turn)) for turn in turns]
        for message in mapped:
            message["role"] = AXOLOTL_ROLES.get(message.get("role", ""), message.get("role", ""))
            message["tool_calls"] = [_decoded(call) for call in message.get("tool_calls") or []]
            if not message["tool_calls"]:
                del message["tool_calls"]
        return mapped, tools, {}
    messages = [_renamed(turn) | {"role": ROLES.get(str(turn.get("from", turn.get("role"))), "")} for turn in turns]
    for turn, message in zip(turns, messages, strict=True):
        if str(turn.get("from", turn.get("role"))) in CALL_ROLES and isinstance(message.get("content"), str):
            message["content"] = f"<tool_call>\n{message['content']}\n</tool_call>"
    kwargs = row.get("chat_template_kwargs")
    return messages, tools, kwargs if isinstance(kwargs, dict) else {}


def with_texts_decoded(row: dict[str, Any]) -> dict[str, Any]:
    """As `TrajectoryDataset` gives a row of our export for verl to its template: tools and arguments decoded, empty keys left
    out."""
    messages = [
        {name: value for name, value in message.items() if name == "content" or value}
        for message in row.get("messages") or []
        if isinstance(message, dict)
    ]
    for message in messages:
        if "tool_calls" in message:
            message["tool_calls"] = [_decoded(call) for call in message["tool_calls"]]
    return row | {"messages": messages, "tools": tools_of(row) or None}


def tools_of(row: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The column `tools`, decoded where it is text."""
    tools = row.get("tools")
    if isinstance(tools, str):
        try:
            tools = decode_row(tools.encode()) if tools.strip() else None
        except ValueError:
            return None
    return tools if isinstance(tools, list) else None


def _renamed(turn: dict[str, Any]) -> dict[str, Any]:
    names = {"from": "role", "value": "content"}
    return {names.get(name, name): value for name, value in turn.items()}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value if each is not None] if isinstance(value, list) else value


def _decoded(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = decode_row(function["arguments"].encode())
    except ValueError:
        return call
    return call | {"function": function | {"arguments": arguments}}
