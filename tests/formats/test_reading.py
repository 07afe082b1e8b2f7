"""Rows as other tools write them, read as examples."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kiseki.formats.reading import read_row
from kiseki.trajectory.types import ImageAt, Message, ToolCall

CALL = ToolCall("call_1", "f", '{"x": 1}')
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def hermes(gpt: str, tool: str = '<tool_response>\n{"name": "f", "content": {"y": 2}}\n</tool_response>') -> dict[str, Any]:
    turns = [("human", "q"), ("gpt", gpt), ("tool", tool), ("gpt", "a")]
    return {"conversations": [{"from": role, "value": value} for role, value in turns]}


@pytest.mark.parametrize(
    ("gpt", "text", "reasoning"),
    [
        ('<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>', "", ""),
        ('<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', "", ""),
        ('<think>\nhm\n</think>\nsure\n<tool_call>\n{"arguments": {"x": 1}, "name": "f"}\n</tool_call>', "sure", "hm"),
        ("<think>hm</think>\n\n<tool_call>\n{'arguments': {'x': 1}, 'name': 'f'}\n</tool_call>\n", "", "hm"),
        ('before\n<tool_call>\n{"name": "f", "arguments": "{\\"x\\": 1}"}\n</tool_call>\nafter', "before\nafter", ""),
    ],
)
def test_hermes_turns_of_every_hand(gpt: str, text: str, reasoning: str) -> None:
    _, said, result, answer = read_row(hermes(gpt)).messages
    assert (said.content, said.reasoning) == (text, reasoning)
    assert [(call.id, call.name, json.loads(call.arguments)) for call in said.tool_calls] == [("call_1", "f", {"x": 1})]
    assert (result.tool_call_id, result.name, json.loads(result.content)) == ("call_1", "f", {"y": 2})
    assert answer.content == "a"


def test_what_is_no_call_stays_text() -> None:
    (said,) = read_row({"conversations": [{"from": "gpt", "value": "write <tool_call>…</tool_call> like this"}]}).messages
    assert said == Message(role="assistant", content="write <tool_call>…</tool_call> like this")


def test_a_system_turn_with_tools() -> None:
    listed = json.dumps([{"name": "f", "parameters": {"type": "object", "properties": {}}}])
    prose = "You are a function calling AI model. Here are the tools: <tools> {} </tools> Answer with tags."
    for value, own in ((prose.format(listed), []), (f"Be brief.\n<tools>\n{listed}\n</tools>", ["Be brief."])):
        read = read_row({"conversations": [{"from": "system", "value": value}, {"from": "human", "value": "q"}]})
        assert read.tools == (TOOL,)
        assert [each.content for each in read.messages if each.role == "system"] == own


def test_a_system_turn_that_speaks_of_tools_stays() -> None:
    value = "The list of tools stands in <tools> tags."
    read = read_row({"conversations": [{"from": "system", "value": value}, {"from": "human", "value": "q"}]})
    assert (read.tools, read.messages[0].content) == ((), value)


def test_turns_that_are_calls() -> None:
    rows: list[dict[str, Any]] = [
        {
            "conversations": [
                {"from": "human", "value": "q"},
                {"from": "function_call", "value": '<think>\nhm\n</think>\n\n{"name": "f", "arguments": {"x": 1}}'},
                {"from": "observation", "value": "r"},
                {"from": "gpt", "value": "a"},
            ],
            "tools": json.dumps([TOOL]),
        },
        {
            "messages": [
                {"role": "user", "content": "q"},
                {"role": "assistant", "content": "", "reasoning_content": "hm"},
                {"role": "tool_call", "content": '{"name": "f", "arguments": "{\\"x\\": 1}"}'},
                {"role": "tool_response", "content": "r"},
                {"role": "assistant", "content": "a"},
            ],
            "tools": [TOOL],
        },
    ]
    for row in rows:
        read = read_row(row)
        assert read.tools == (TOOL,)
        _, said, result, answer = read.messages
        assert (said.reasoning, [json.loads(call.arguments) for call in said.tool_calls]) == ("hm", [{"x": 1}])
        assert (result.tool_call_id, result.name, result.content) == (said.tool_calls[0].id, "f", "r")
        assert answer.content == "a"


def test_results_find_their_calls() -> None:
    """By id; without ids by name; without names by position."""
    calls = [{"function": {"name": name, "arguments": "{}"}} for name in ("f", "g")]
    with_ids = [call | {"id": f"id_{at}"} for at, call in enumerate(calls)]
    cases: list[tuple[list[Any], list[dict[str, Any]]]] = [
        (with_ids, [{"tool_call_id": "id_1", "content": "of g"}, {"tool_call_id": "id_0", "content": "of f"}]),
        (calls, [{"name": "g", "content": "of g"}, {"name": "f", "content": "of f"}]),
        (calls, [{"content": "of f"}, {"content": "of g"}]),
    ]
    for made, results in cases:
        turns = [{"role": "assistant", "tool_calls": made}, *({"role": "tool"} | result for result in results)]
        said, *answers = read_row({"messages": turns}).messages
        names = {call.id: call.name for call in said.tool_calls}
        assert sorted((names[each.tool_call_id], each.name, each.content) for each in answers) == [
            ("f", "f", "of f"),
            ("g", "g", "of g"),
        ]


def test_a_result_without_a_call_keeps_what_it_says() -> None:
    read = read_row({"messages": [{"role": "user", "content": "q"}, {"role": "tool", "tool_call_id": "lost", "content": "r"}]})
    assert read.messages[1] == Message(role="tool", content="r", tool_call_id="lost")


def test_failed_results() -> None:
    turns = [{"role": "tool", "content": content} for content in ('{"error": "x"}', "fine", "", '{"error": null}')]
    assert read_row({"messages": turns}).failed == {0, 2}


def test_reasoning_in_its_own_field_or_in_the_text() -> None:
    for turn in (
        {"reasoning_content": "hm", "content": "a"},
        {"reasoning": "hm", "content": "a"},
        {"content": "<think>\nhm\n</think>\n\na"},
        {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}]},
    ):
        (said,) = read_row({"messages": [{"role": "assistant"} | turn]}).messages
        assert (said.reasoning, said.content) == ("hm", "a")


def test_text_that_only_looks_like_tags_stays_where_a_row_has_fields_for_them() -> None:
    text = '<think>\nhm\n</think>\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    row = {"messages": [{"role": "assistant", "content": text, "reasoning_content": "", "tool_calls": []}], "tools": "[]"}
    assert read_row(row).messages == (Message(role="assistant", content=text),)


def test_loss_flags_of_every_trainer() -> None:
    flags: list[dict[str, Any]] = [{"train": False}, {"weight": 0}, {"loss": False}, {"loss_scale": 0.0}, {"train": True}, {}]
    turns = [{"role": "assistant", "content": str(at)} | flag for at, flag in enumerate(flags)]
    assert read_row({"messages": turns}).masked == {0, 1, 2, 3}


def test_images_as_parts_and_as_placeholders() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "image_url", "image_url": {"url": "u1"}}, {"type": "text", "text": " b"}]
    for row in (
        {"messages": [{"role": "user", "content": parts}]},
        {"messages": [{"role": "user", "content": "a <image> b"}], "images": ["u1"]},
        {"messages": [{"role": "user", "content": "a <image> b"}], "images": [{"path": "u1"}]},
    ):
        assert read_row(row).messages == (Message(role="user", content="a  b", images=(ImageAt(2, "u1"),)),)
    (plain,) = read_row({"messages": [{"role": "user", "content": "an <image> tag"}]}).messages
    assert plain == Message(role="user", content="an <image> tag")


def test_what_else_a_row_says() -> None:
    turns = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    row = {
        "prompt_index": 7,
        "sample_index": 2,
        "conversations": turns,
        "completed": False,
        "partial": True,
        "toolsets_used": ["web"],
        "metadata": {"model": "m", "stop_reason": "max_turns", "prompt_tokens": 5, "source": '{"reward": true}'},
        "extra": [1],
    }
    read = read_row(row)
    assert (read.prompt_index, read.sample_index, read.completed, read.partial) == (7, 2, False, True)
    assert (read.model, read.stop_reason, read.usage.prompt_tokens, read.toolsets) == ("m", "max_turns", 5, ("web",))
    assert (read.reward, json.loads(read.metadata)) == (1.0, {"extra": [1]})
    assert read_row({"messages": json.dumps(turns), "score": 1, "reward": 0.5}, number=3).prompt_index == 3


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": "x"}, "there is no conversation"),
        ({"messages": []}, "there is no conversation"),
        ({"messages": ["x"]}, "turn 1 of 'messages' is not an object"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "turn 1 has the role 'narrator'"),
        ({"messages": "[{"}, "no JSON list"),
        ({"conversations": [{"from": "function_call", "value": "f(1)"}]}, "turn 1 is to be a call"),
        ({"messages": [{"role": "assistant", "tool_calls": "[{"}]}, "tool_calls is text, and not valid JSON"),
        ({"messages": [{"role": "assistant", "tool_calls": ["f"]}]}, "no call"),
        ({"messages": [{"role": "user", "content": "q"}], "tools": "[1"}, "tools is text, and not valid JSON"),
        ({"messages": [{"role": "user", "content": "q"}], "tools": ["{}"]}, "no schema"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "neither text nor an image"),
    ],
)
def test_rows_that_are_no_conversation(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_row(row)


def test_calls_in_tags_in_a_turn_that_is_calls() -> None:
    calls = '[{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]'
    value = f"<think>\nhm\n</think>\n\nsure\n<tool_call>\n{calls}\n</tool_call>"
    turns = [{"from": "human", "value": "q"}, {"from": "function_call", "value": value}]
    _, said = read_row({"conversations": turns, "tools": "[]"}).messages
    assert (said.content, said.reasoning, [call.name for call in said.tool_calls]) == ("sure", "hm", ["f", "g"])
    payload = {"name": "f", "arguments": {"x": "<tool_call>"}}
    _, said = read_row({"conversations": [turns[0], {"from": "function_call", "value": json.dumps(payload)}]}).messages
    assert (said.content, json.loads(said.tool_calls[0].arguments)) == ("", {"x": "<tool_call>"})


def test_images_of_every_turn() -> None:
    turns = [
        {"from": "human", "value": "<image>q"},
        {"from": "gpt", "value": "<think>\nhm\n</think>\nit is <image>"},
        {"from": "tool", "value": '<tool_response>\n{"name": "f", "content": "see <image>"}\n</tool_response>'},
    ]
    read = read_row({"conversations": turns, "images": ["a", "b", "c"]})
    shown = [(each.content, each.images) for each in read.messages]
    assert shown == [("q", (ImageAt(0, "a"),)), ("it is ", (ImageAt(6, "b"),)), ("see ", (ImageAt(4, "c"),))]


def test_told_that_nothing_stands_in_the_text() -> None:
    text = '<think>\nhm\n</think>\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    (said,) = read_row({"messages": [{"role": "assistant", "content": text}]}, inline=False).messages
    assert said == Message(role="assistant", content=text)


def test_ids_that_begin_anew_in_each_turn() -> None:
    turns: list[dict[str, Any]] = []
    for name in ("search", "write"):
        turns.append({"role": "assistant", "tool_calls": [{"id": "call_0", "function": {"name": name, "arguments": "{}"}}]})
        turns.append({"role": "tool", "tool_call_id": "call_0", "content": f"of {name}"})
    assert [(each.name, each.content) for each in read_row({"messages": turns}).messages if each.role == "tool"] == [
        ("search", "of search"),
        ("write", "of write"),
    ]


def test_the_call_of_an_older_api() -> None:
    turns = [
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"x": 1}'}},
        {"role": "function", "name": "f", "content": "r"},
    ]
    said, result = read_row({"messages": turns}).messages
    assert (said.tool_calls, result) == ((CALL,), Message(role="tool", content="r", tool_call_id="call_1", name="f"))


def test_a_backslash_before_a_tag_is_undone_only_where_our_own_turns_have_put_it() -> None:
    text = "x <\\think> and <\\/tool_call>"
    (chat,) = read_row({"messages": [{"role": "assistant", "content": text}]}).messages
    (own,) = read_row({"conversations": [{"from": "gpt", "value": text}]}).messages
    assert (chat.content, own.content) == (text, text.replace("\\", ""))


def test_rewards_are_read_as_exports_write_them() -> None:
    values: list[tuple[Any, float | None]] = [
        ("0.7", 0.7),
        ("", None),
        (True, 1.0),
        ("high", None),
        (10**400, None),
        ("nan", None),
    ]
    for value, reward in values:
        read = read_row({"messages": [{"role": "user", "content": "q"}], "reward": value})
        assert read.reward == reward


def test_numbers_that_no_column_holds_are_not_taken() -> None:
    row = {
        "messages": [{"role": "user", "content": "q"}],
        "prompt_index": 10**30,
        "metadata": {"cost": 10**400, "seconds": 1e400},
    }
    read = read_row(row, number=4)
    assert (read.prompt_index, read.usage.cost, read.seconds) == (4, 0.0, 0.0)


@pytest.mark.parametrize("value", ["<tool_call>" * 20_000, "<tool_call>" + " " * 200_000, "</tool_call><tool_call>" * 20_000])
def test_tags_without_end_take_no_time_to_speak_of(value: str) -> None:
    """Quadratic reading would take minutes."""
    (said,) = read_row({"conversations": [{"from": "gpt", "value": value}]}).messages
    assert said.content == value
