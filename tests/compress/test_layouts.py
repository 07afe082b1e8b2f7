"""Turns are edited in place: what is not meant stays byte for byte."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kiseki.compress.ladder.observations import clean
from kiseki.compress.layouts.leaves import edit_json
from kiseki.compress.rows import read_trajectory
from kiseki.compress.turns import Layout, Turn

TEXTS = st.text(st.sampled_from('ab"\\,:}] \n\té見😀\x7f'), max_size=8)
VALUES = st.recursive(
    TEXTS | st.integers() | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def doubled(text: str) -> str:
    return text + text if "a" in text else text


def each_doubled(value: Any) -> Any:
    if isinstance(value, str):
        return doubled(value)
    if isinstance(value, dict):
        return {key: each_doubled(inner) for key, inner in value.items()}
    return [each_doubled(inner) for inner in value] if isinstance(value, list) else value


@settings(max_examples=100, deadline=None)
@given(VALUES, st.sampled_from((None, 2)), st.booleans())
def test_values_in_json_are_edited_and_keys_are_not(value: Any, indent: int | None, escaped: bool) -> None:
    text = json.dumps({"a": value}, indent=indent, ensure_ascii=escaped)
    assert json.loads(edit_json(text, doubled)) == {"a": each_doubled(value)}


def test_every_other_byte_of_json_stays() -> None:
    text = '{ "old" \n: "old",\t"n": 1.50e+2, "\\u006fld": ["\\u00e9\\/", "\\u006fld", "\\\\\\"", ""] }'
    edited = edit_json(text, lambda each: "new" if each == "old" else each)
    assert edited == '{ "old" \n: "new",\t"n": 1.50e+2, "\\u006fld": ["\\u00e9\\/", "new", "\\\\\\"", ""] }'


def tool_turn(value: str) -> tuple[Turn, Layout]:
    trajectory = read_trajectory(json.dumps({"conversations": [{"from": "tool", "value": value}]}).encode())
    return trajectory.turns[0], trajectory.layout


def test_responses_with_nothing_in_them() -> None:
    value = "<tool_response>\n \n</tool_response>\n<tool_response></tool_response>\n<tool_response>\nx\n</tool_response>"
    turn, layout = tool_turn(value)
    assert [each.text for each in layout.outputs(turn)] == ["", "", "x"]
    assert layout.edit_leaves(turn, lambda text: text) is turn
    assert layout.edit_leaves(turn, str.upper).text == value.replace("x", "X")
    assert layout.replace_outputs(turn, {1: "y"}).text == value.replace("></", ">y</")


def test_cleaning_makes_no_tags() -> None:
    code = "\x1b[0m"
    turn, layout = tool_turn(f"<tool{code}_response>{code}</tool_response> {code}")
    assert layout.edit_leaves(turn, clean) is turn
    turn, layout = tool_turn(f"<tool_response>\n{code} </tool_{code}response> {code}\n</tool_response>")
    assert layout.edit_leaves(turn, clean).text == "<tool_response>\n \\u003c/tool_response>\n</tool_response>"
