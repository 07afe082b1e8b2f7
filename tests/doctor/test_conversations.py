"""What is wrong with conversations in themselves."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from doctor.cases import factory, in_conversation, messages, sharegpt

Turns = list[dict[str, Any]]


@pytest.mark.parametrize("make", [messages, sharegpt, factory])
def test_clean_rows_have_no_problem(make: Callable[[], dict[str, Any]]) -> None:
    assert in_conversation(make()) in ({}, {"arguments as objects": "turn 3, now"})


def changed(change: Callable[[Turns], Any]) -> dict[str, str]:
    row = messages()
    change(row["messages"])
    told = in_conversation(row)
    told.pop("arguments as objects", None)
    return told


@pytest.mark.parametrize(
    ("change", "kind", "detail"),
    [
        (lambda turns: turns[1].update(role="narrator"), "unknown role", "turn 2: narrator"),
        (lambda turns: turns.insert(2, {"role": "system", "content": "x"}), "system turn not first", "turn 3"),
        (lambda turns: turns[4].update(content=" ", reasoning_content=""), "empty assistant turn", "turn 5"),
        (lambda turns: turns.pop(3), "call without result", "turn 3"),
        (lambda turns: turns[3:].clear() or turns.__delitem__(slice(3, None)), "ends on calls", "turn 3"),
        (lambda turns: turns[3].update(tool_call_id="c9"), "result without call", "turn 3: c9"),
        (lambda turns: turns.insert(1, {"role": "tool", "content": "x"}), "result without call", "turn 2"),
        (lambda turns: turns.insert(3, dict(turns[3])), "result doubled", "turn 3: c1 is answered 2 times"),
        (lambda turns: turns.pop(), "ends on a tool turn", "turn 4"),
        (
            lambda turns: turns.insert(4, {"role": "user", "content": "[SUMMARY]"}),
            "alternation broken",
            "turn 5 is user, not assistant",
        ),
        (lambda turns: turns[3].update(content="<tool_response>\n1\n</tool_response>"), "wrapped result", "turn 4"),
        (lambda turns: [turn.update(weight=0) for turn in turns], "nothing to train on", ""),
        (lambda turns: turns.__delitem__(slice(2, None)), "no assistant turn", ""),
    ],
)
def test_problems_of_a_conversation(change: Callable[[Turns], Any], kind: str, detail: str) -> None:
    told = changed(change)
    assert kind in told
    assert told[kind] == detail


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ('{"tz": "UTC"}', "arguments as text"),
        (json.dumps('{"tz": "UTC"}'), "arguments double-encoded"),
        ('{"tz": ', "arguments not JSON"),
        ("[1]", "arguments not JSON"),
        ({"tz": "UTC"}, "arguments as objects"),
    ],
)
def test_arguments_in_a_field(arguments: Any, kind: str) -> None:
    assert list(in_conversation(messages(arguments=arguments))) == [kind]


@pytest.mark.parametrize(
    ("written", "kinds"),
    [
        ('"{\\"tz\\": \\"UTC\\"}"', ["arguments double-encoded"]),
        ('"{\\"tz\\": "', ["arguments not JSON"]),
        ('{"tz": "{\\"arguments\\": 1}"}', []),
    ],
)
def test_arguments_between_tags(written: str, kinds: list[str]) -> None:
    row = sharegpt()
    row["conversations"][2]["value"] = f'<tool_call>\n{{"name": "now", "arguments": {written}}}\n</tool_call>'
    assert list(in_conversation(row)) == kinds


def test_parallel_calls_are_matched_by_id_and_by_number() -> None:
    row = messages()
    call = row["messages"][2]["tool_calls"][0]
    row["messages"][2]["tool_calls"].append({**call, "id": "c2"})
    assert in_conversation(row)["call without result"] == "turn 3: c2"
    row["messages"].insert(4, {**row["messages"][3], "tool_call_id": "c2"})
    assert "call without result" not in in_conversation(row)
    tagged = sharegpt()
    turn = tagged["conversations"][2]
    turn["value"] += turn["value"][turn["value"].index("<tool_call>") :]
    assert in_conversation(tagged) == {"call without result": "turn 3: 2 calls, 1 results"}


def test_tools() -> None:
    row = messages()
    del row["tools"]
    assert in_conversation(row)["tools missing"] == "now"
    assert in_conversation({**messages(), "tools": "[]"})["tools missing"] == "now"
    row = messages()
    row["messages"][2]["tool_calls"][0]["function"]["name"] = "then"
    assert in_conversation(row)["unknown tool"] == "turn 3: then"


def test_images() -> None:
    row = messages(images=["a.png"])
    assert in_conversation(row)["images and <image> differ"] == "0 <image> in the text, 1 images"
    row["messages"][1]["content"] = "<image> What is it?"
    assert "images and <image> differ" not in in_conversation(row)


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"messages": []}, "empty conversation"),
        ({"conversations": "[]"}, "empty conversation"),
        ({"text": "x"}, "no conversation"),
        ({"messages": [1]}, "no conversation"),
        ({"messages": "[{"}, "no conversation"),
    ],
)
def test_rows_without_a_conversation(row: dict[str, Any], kind: str) -> None:
    assert list(in_conversation(row)) == [kind]


def test_a_conversation_in_a_column_of_text() -> None:
    row = copy.deepcopy(messages())
    row["messages"] = json.dumps(row["messages"])
    assert list(in_conversation(row)) == ["arguments as objects"]


def test_calls_and_results_in_parts_of_the_content() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "now", "input": {}}
    row = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "image_url", "image_url": {"url": "x"}}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "x"}, use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "12"}]},
            {"role": "assistant", "content": "done"},
        ]
    }
    assert in_conversation(row)["part is no text"] == "turn 3: tool_result"
    row["messages"].pop(2)
    assert in_conversation(row)["part is no text"] == "turn 2: tool_use"
