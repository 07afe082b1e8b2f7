"""The ShareGPT form: reading a row back gives the same calls, results, reasoning and text."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kiseki.formats.reading import read_row
from kiseki.trajectory.sharegpt import is_json_object, to_sharegpt
from kiseki.trajectory.types import Message, ToolCall

TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>"]
pieces = st.sampled_from([*TAGS, "<REASONING_SCRATCHPAD>", "\n", "<", "\\", "<\\", "{", "}", '"', "\u2028", "\x00", "\x1b[31m"])
text = st.lists(st.one_of(pieces, st.text(st.characters(exclude_categories=["Cs"]), max_size=5)), max_size=8).map("".join)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), text),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
arguments = st.one_of(st.dictionaries(text, json_values, max_size=3).map(json.dumps), text)
outputs = st.one_of(json_values.map(json.dumps), text)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    messages = [Message(role="user", content=draw(text))]
    number = 0
    for _ in range(draw(st.integers(0, 3))):
        calls = []
        for _ in range(draw(st.integers(1, 3))):
            calls.append(ToolCall(id=f"c{number}", name=draw(text), arguments=draw(arguments)))
            number += 1
        reasoning = draw(text).strip("\n")
        messages.append(Message(role="assistant", content=draw(text), reasoning=reasoning, tool_calls=tuple(calls)))
        messages += [Message(role="tool", content=draw(outputs), tool_call_id=each.id, name=each.name) for each in calls]
    messages.append(Message(role="assistant", content=draw(text), reasoning=draw(text).strip("\n")))
    return messages


def same_json(one: str, other: str) -> bool:
    """Equal as text, or as the JSON object or array that both are."""
    if one == other:
        return True
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


@given(conversations())
def test_reading_back_gives_the_same(messages: list[Message]) -> None:
    turns = to_sharegpt(messages, '[{"type":"function","function":{"name":"</tools>"}}]')
    back = read_row({"conversations": msgspec.json.decode(msgspec.json.encode(turns))}).messages
    assert len(back) == len(messages)
    for before, after in zip(messages, back, strict=True):
        assert (after.role, after.reasoning) == (before.role, before.reasoning)
        assert after.tool_call_id == before.tool_call_id
        if before.role == "tool":
            assert after.name == before.name
            assert same_json(before.content, after.content)
        else:
            assert after.content == before.content
        assert [(call.id, call.name) for call in after.tool_calls] == [(call.id, call.name) for call in before.tool_calls]
        for call, other in zip(before.tool_calls, after.tool_calls, strict=True):
            assert same_json(call.arguments if call.arguments.strip() else "{}", other.arguments)


@given(conversations())
def test_a_plain_reader_sees_valid_blocks(messages: list[Message]) -> None:
    """A reader that knows only the tags, not our escapes, finds the right number of blocks, each valid JSON."""
    turns = to_sharegpt(messages, "[]")
    answering = [turn for turn in turns if turn.role in ("gpt", "tool")]
    calls = sum(len(each.tool_calls) for each in messages)
    blocks = [block for turn in answering for block in re.findall(r"<tool_call>\n(.*?)\n</tool_call>", turn.value, re.DOTALL)]
    results = [b for turn in answering for b in re.findall(r"<tool_response>\n(.*?)\n</tool_response>", turn.value, re.DOTALL)]
    assert len(blocks) == len(results) == calls
    for block in (*blocks, *results):
        json.loads(block)
    for turn in turns:
        if turn.role == "gpt":
            assert turn.value.startswith("<think>\n")
            assert turn.value.count("<think>") == turn.value.count("</think>") == 1
    roles = [turn.role for turn in turns[1:]]
    assert all(one != other for one, other in pairwise(roles)), "results of one turn share one turn"


def test_layout() -> None:
    """The exact text, as trainers see it."""
    messages = [
        Message(role="system", content="Be brief."),
        Message(role="user", content="hi"),
        Message(
            role="assistant",
            content="Looking.",
            reasoning="Let me look.",
            tool_calls=(ToolCall("a", "ls", '{"path": "."}'), ToolCall("b", "pwd", "")),
        ),
        Message(role="tool", content='{"output":"x"}', tool_call_id="a", name="ls"),
        Message(role="tool", content="[not json", tool_call_id="b", name="pwd"),
        Message(role="assistant", content="Done."),
    ]
    system, *turns = to_sharegpt(messages, '[{"type":"function"}]')
    assert system.role == "system"
    assert '<tools>\n[{"type":"function"}]\n</tools>' in system.value
    assert system.value.endswith("\n\nBe brief.")
    assert [(turn.role, turn.value) for turn in turns] == [
        ("human", "hi"),
        (
            "gpt",
            "<think>\nLet me look.\n</think>\nLooking.\n"
            '<tool_call>\n{"name": "ls", "arguments": {"path": "."}}\n</tool_call>\n'
            '<tool_call>\n{"name": "pwd", "arguments": {}}\n</tool_call>',
        ),
        (
            "tool",
            '<tool_response>\n{"tool_call_id": "a", "name": "ls", "content": {"output":"x"}}\n</tool_response>\n'
            '<tool_response>\n{"tool_call_id": "b", "name": "pwd", "content": "[not json"}\n</tool_response>',
        ),
        ("gpt", "<think>\n</think>\nDone."),
    ]


def test_arguments_that_are_no_json_object_become_a_string() -> None:
    for raw in ('{"a": NaN}', "[1]", '{"a": 1,}', "plain"):
        assert not is_json_object(raw)
        messages = [Message(role="assistant", tool_calls=(ToolCall("", "f", raw),))]
        (turn,) = to_sharegpt(messages, "[]")[1:]
        assert read_row({"conversations": [msgspec.to_builtins(turn)]}).messages[0].tool_calls[0].arguments == raw
