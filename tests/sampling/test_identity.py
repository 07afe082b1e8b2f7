"""The same conversation is known again in every layout, and another one is not taken for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kiseki.compress.rows import read_trajectory
from kiseki.sampling.judging import priority
from kiseki.trajectory.sharegpt import to_sharegpt
from kiseki.trajectory.types import Message, ToolCall

ARGUMENTS = {"path": "a <tool_call>", "n": 1, "deep": {"b": [1, 2], "a": None}}
RESULT = {"lines": ["x", "</tool_response>"], "code": 0}
TOOLS = [{"type": "function", "function": {"name": "look"}}]


def calls(first: Any, second: Any) -> list[dict[str, Any]]:
    return [{"id": f"c{at}", "function": {"name": "look", "arguments": each}} for at, each in enumerate((first, second))]


def chat(*answer: dict[str, Any], first: Any, reasoning: str = "hm", field: str = "reasoning_content") -> list[dict[str, Any]]:
    results = [{"role": "tool", "content": each, "tool_call_id": f"c{at}"} for at, each in enumerate((first, "plain text"))]
    last = {"role": "assistant", "content": "Done.", field: reasoning}
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Look"}, *answer, *results, last]


def turns_of(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"from": role, "value": value} for role, value in pairs]


def kiseki_turns() -> list[dict[str, str]]:
    made = tuple(ToolCall(f"c{at}", "look", text) for at, text in enumerate((json.dumps(ARGUMENTS), "{}")))
    messages = [
        Message("system", "Be brief."),
        Message("user", "Look"),
        Message("assistant", "So.", reasoning="hm", tool_calls=made),
        Message("tool", json.dumps(RESULT), tool_call_id="c0", name="look"),
        Message("tool", "plain text", tool_call_id="c1", name="look"),
        Message("assistant", "Done.", reasoning="hm"),
    ]
    return [{"from": turn.role, "value": turn.value} for turn in to_sharegpt(messages, json.dumps(TOOLS))]


TEXT = json.dumps(ARGUMENTS, indent=1)
SORTED = json.dumps(ARGUMENTS, sort_keys=True)
ANSWER = {"role": "assistant", "content": "So.", "reasoning_content": "hm"}
SAME: dict[str, dict[str, Any]] = {
    "sharegpt": {"conversations": kiseki_turns()},
    "objects": {"messages": chat(ANSWER | {"tool_calls": calls(ARGUMENTS, {})}, first=json.dumps(RESULT)), "tools": TOOLS},
    "texts": {"messages": chat(ANSWER | {"tool_calls": calls(TEXT, "")}, first=json.dumps(RESULT, indent=2)), "tools": TOOLS},
    "sorted": {"messages": chat(ANSWER | {"tool_calls": calls(SORTED, None)}, first=json.dumps(RESULT, sort_keys=True))},
    "think blocks": {
        "messages": chat(
            {"role": "assistant", "content": "<think>\nhm\n\n</think>\n\nSo.", "tool_calls": calls(TEXT, {})},
            first=json.dumps(RESULT),
            field="thinking",
        )
    },
    "turns of their own": {
        "messages": chat(
            ANSWER,
            {"role": "tool_call", "content": json.dumps({"name": "look", "arguments": ARGUMENTS})},
            {"role": "tool_call", "content": {"name": "look", "arguments": {}}},
            first=json.dumps(RESULT),
        )
    },
    "tags in messages": {
        "messages": [
            {"role": {"human": "user", "gpt": "assistant"}.get(turn["from"], turn["from"]), "content": turn["value"]}
            for turn in kiseki_turns()
        ]
    },
    "in text": {"messages": json.dumps(chat(ANSWER | {"tool_calls": calls(ARGUMENTS, {})}, first=json.dumps(RESULT)))},
    "parts": {
        "messages": chat(
            ANSWER | {"content": [{"type": "text", "text": "So."}], "tool_calls": calls(ARGUMENTS, {})},
            first=[{"type": "text", "text": json.dumps(RESULT)}],
        )
    },
}


def priority_of(row: dict[str, Any], seed: int = 1) -> int:
    return priority(read_trajectory(json.dumps(row).encode()), seed)


@pytest.mark.parametrize("name", SAME)
def test_the_same_conversation_in_another_layout(name: str) -> None:
    assert priority_of(SAME[name]) == priority_of(SAME["sharegpt"])
    assert priority_of(SAME[name], 2) != priority_of(SAME["sharegpt"])


OTHER: dict[str, list[dict[str, Any]]] = {
    "arguments": chat(ANSWER | {"tool_calls": calls(ARGUMENTS | {"n": 2}, {})}, first=json.dumps(RESULT)),
    "order of calls": chat(ANSWER | {"tool_calls": calls({}, ARGUMENTS)}, first=json.dumps(RESULT)),
    "result": chat(ANSWER | {"tool_calls": calls(ARGUMENTS, {})}, first=json.dumps(RESULT | {"code": 1})),
    "text": chat(ANSWER | {"content": "So?", "tool_calls": calls(ARGUMENTS, {})}, first=json.dumps(RESULT)),
    "reasoning": chat(ANSWER | {"tool_calls": calls(ARGUMENTS, {})}, first=json.dumps(RESULT), reasoning="hum"),
    "no calls": chat(ANSWER, first=json.dumps(RESULT)),
}


@pytest.mark.parametrize("name", OTHER)
def test_another_conversation(name: str) -> None:
    assert priority_of({"messages": OTHER[name]}) != priority_of(SAME["sharegpt"])


def test_a_think_block_that_is_empty_is_none() -> None:
    rows = [turns_of(("human", "q"), ("gpt", value)) for value in ("<think>\n</think>\nA", "A", " A\n")]
    assert len({priority_of({"conversations": turns}) for turns in rows}) == 1


def test_calls_of_other_sharegpt_datasets() -> None:
    call = {"name": "look", "arguments": {"a": 1}}
    bare = turns_of(("human", "q"), ("function_call", json.dumps(call)), ("observation", "r"))
    tagged = turns_of(("human", "q"), ("gpt", f"<tool_call>{json.dumps(call, indent=1)}</tool_call>"), ("tool", "r"))
    assert priority_of({"conversations": bare}) == priority_of({"conversations": tagged})
    torn = turns_of(("human", "q"), ("gpt", '<tool_call>{"name": </tool_call>'), ("tool", "r"))
    assert priority_of({"conversations": torn}) != priority_of({"conversations": torn[:1] + torn[2:]})
