"""Rows for the doctor's tests: a clean one of each layout, and the examination of a few rows."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support import write_dataset

from kiseki.doctor.as_read import as_read
from kiseki.doctor.conversations import check_conversation
from kiseki.doctor.examine import Order, examine
from kiseki.doctor.findings import Group, Problem
from kiseki.doctor.rendering import check_rendering
from kiseki.doctor.rules import RULES
from kiseki.doctor.templates import Template, compile_template, find_template
from kiseki.doctor.turns import read_conversation

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "now",
            "description": "time",
            "parameters": {"type": "object", "properties": {"tz": {"type": "string"}}},
        },
    }
]


def messages(number: int = 0, arguments: Any = None, **more: Any) -> dict[str, Any]:
    """A row of chat messages: one call, its result, an answer; reasoning in both turns."""
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": arguments or {"tz": "UTC"}}}
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"What time is it? {number}"},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "I need the clock.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "name": "now", "content": "12:00"},
        {"role": "assistant", "content": "It is noon.", "reasoning_content": "That is noon."},
    ]
    return {"messages": turns, "tools": json.dumps(TOOLS), **more}


def sharegpt(number: int = 0) -> dict[str, Any]:
    """The same as ShareGPT turns with Hermes tags."""
    return {
        "conversations": [
            {"from": "system", "value": f"You have tools.\n<tools>\n{json.dumps(TOOLS)}\n</tools>"},
            {"from": "human", "value": f"What time is it? {number}"},
            {
                "from": "gpt",
                "value": "<think>\nI need the clock.\n</think>\n"
                '<tool_call>\n{"name": "now", "arguments": {"tz": "UTC"}}\n</tool_call>',
            },
            {
                "from": "tool",
                "value": '<tool_response>\n{"tool_call_id": "c1", "name": "now", "content": "12:00"}\n</tool_response>',
            },
            {"from": "gpt", "value": "<think>\nThat is noon.\n</think>\nIt is noon."},
        ]
    }


def factory(number: int = 0) -> dict[str, Any]:
    """The same as LLaMA-Factory reads it."""
    return {
        "conversations": [
            {"from": "human", "value": f"What time is it? {number}"},
            {"from": "function_call", "value": json.dumps({"name": "now", "arguments": {"tz": "UTC"}})},
            {"from": "observation", "value": "12:00"},
            {"from": "gpt", "value": "It is noon."},
        ],
        "system": "Be brief.",
        "tools": json.dumps(TOOLS),
    }


def in_conversation(row: dict[str, Any]) -> dict[str, str]:
    """Kind → detail of what is wrong with a row's conversation in itself."""
    conversation = read_conversation(row)
    if isinstance(conversation, Problem):
        return {conversation.kind: conversation.detail}
    return {each.kind: each.detail for each in check_conversation(row, conversation)}


def by_rule(target: str, row: dict[str, Any], **tags: str) -> dict[str, str]:
    """Kind → detail of what a consumer's rules say of a row."""
    conversation = read_conversation(row)
    assert not isinstance(conversation, Problem)
    return {each.kind: each.detail for each in RULES[target](row, conversation, tags)}


def rendered(template: str, row: dict[str, Any], target: str = "") -> dict[str, str]:
    """Kind → detail of what a template, a name or Jinja text, does to a row."""
    conversation = read_conversation(row)
    assert not isinstance(conversation, Problem)
    named = find_template(template) if "{" not in template else Template("written here", template)
    return {each.kind: each.detail for each in check_rendering(compile_template(named), *as_read(row, conversation, target))}


def examined(folder: Path, rows: Iterable[Any], target: str = "", **more: Any) -> dict[str, Group]:
    """Kind → what a whole examination, the loading of the file included, found in a file of these rows. A row that is text is
    written as it is."""
    return groups(Order((write_dataset(folder / "rows.jsonl", rows),), target, **more))


def groups(order: Order) -> dict[str, Group]:
    return {each.kind: each for each in examine(order).findings.groups}


def rows_of(group: Group) -> list[int]:
    return [place.row for place in group.first]
