"""Replies that are made to hurt: megabytes of openings, brackets and quotes are read in time that the text's length explains."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kiseki.models.base import ToolSchema
from kiseki.models.text_tools import parsing, values
from kiseki.models.text_tools import reply_schema as reply_schemas
from kiseki.models.text_tools.parsing import parse
from kiseki.models.text_tools.reply_schema import reply_schema
from kiseki.models.text_tools.values import types_of

SCHEMA = b'{"type":"object","properties":{"p":{"$ref":"#/properties/p"},"q":{"type":"string"}}}'
TOOLS = (ToolSchema("f", "", msgspec.Raw(SCHEMA)),)
SIZE = 1_000_000

PIECES = [
    "<tool_call>",
    "<tool_call>{",
    "\n<tool_call>\n{",
    '<tool_call>{"a":"',
    '<tool_call>[{"name":"f"},',
    'x <tool_call>{"name":"g","arguments":{"p":"x"}}</tool_call>',
    '"<tool_call>{"name":"f"}',
    "`<tool_call>{",
    "```\n<tool_call>{\n",
    "<tool_call>" + " " * 300,
    "</tool_call>",
    "<function=f>",
    "<function=f><parameter=q>",
    "\n<function=f>\n<parameter=q>\n",
    '"<function=f><parameter=q>x</parameter></function>',
    "<tool_call>f<arg_key>q</arg_key><arg_value>",
    "\n<tool_call>f\n<arg_key>q</arg_key><arg_value>x</arg_value>",
    "[TOOL_CALLS]f[ARGS]{",
    "[TOOL_CALLS][{",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{",
    "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{",
    "<|python_tag|>{",
    '{"name":',
    "[",
    "<parameter=q>\n",
    "</parameter> ",
    " ",
    "`",
    '"',
    "9",
]
STARTS = ["", '<tool_call>{"a":', "<tool_call>\n<function=f>", "<function=f><parameter=q>", "[TOOL_CALLS][", "<tool_call>f"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("start", STARTS)
def test_a_megabyte_of_anything(start: str) -> None:
    """With anything quadratic in it this takes minutes."""
    for piece in PIECES:
        text = start + piece * (SIZE // len(piece))
        content, calls, _ = parse(text, TOOLS)
        assert len(content) + sum(len(call.arguments) for call in calls) < 2 * len(text) + 100 * len(calls)


@pytest.mark.parametrize("arguments", ['{"a":' * 5_000, '{"a":' * 5_000 + "1" + "}" * 5_000, '{"a":' + "1" * 5_000 + "}"])
def test_what_no_decoder_takes_is_a_broken_call(arguments: str) -> None:
    _, calls, _ = parse(f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>', TOOLS)
    assert [call.name for call in calls] == ["f"]
    assert arguments in calls[0].arguments


def test_a_long_call_is_read_whole() -> None:
    """Longer than the parts in which JSON is read, whatever stands where a part ends."""
    for length in (*range(3_900, 4_150), 16_400, 2 * SIZE):
        arguments = '{"q": "' + "\\u003c" * (length // 6) + "x" * (length % 6) + '", "p": [true, null, -1.5e3]}'
        _, calls, _ = parse(f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>', TOOLS)
        assert [(call.name, call.arguments) for call in calls] == [("f", arguments)]


def test_no_more_than_so_many_openings_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "MOST_OPENINGS", 3)
    call = '<tool_call>{"name":"f"}</tool_call>'
    content, calls, _ = parse(call * 5, TOOLS)
    assert len(calls) == 3
    assert content == call * 2


def test_a_schema_that_refers_to_itself() -> None:
    _, calls, _ = parse("<function=f><parameter=p>1</parameter></function>", TOOLS)
    assert calls[0].arguments == '{"p": 1}'


def test_text_that_is_no_utf8() -> None:
    _, calls, _ = parse('<tool_call>{"name": "f\\ud800", "arguments": {"q": "\ud800"}}</tool_call>', TOOLS)
    (calls[0].name + calls[0].arguments).encode()


def circular(alternatives: int) -> dict[str, Any]:
    """A schema with as many ways round as there are alternatives, at every step."""
    loop = {"anyOf": [{"$ref": "#/$defs/a"}] * alternatives + [{"type": "integer"}]}
    return {"type": "object", "properties": {"p": {"$ref": "#/$defs/a"}}, "$defs": {"a": loop}}


def doubling(levels: int) -> dict[str, Any]:
    """A schema in which each definition names the next twice."""
    defs: dict[str, Any] = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    defs[f"d{levels}"] = {"type": "integer"}
    return {"type": "object", "properties": {"p": {"$ref": "#/$defs/d0"}}, "$defs": defs}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("schema", [circular(10), doubling(14)])
def test_a_schema_with_many_ways_round(schema: dict[str, Any]) -> None:
    """Followed one by one these take days."""
    assert types_of(schema["properties"]["p"], schema) == {"integer"}
    tool = ToolSchema("f", "", msgspec.Raw(msgspec.json.encode(schema)))
    assert parse("<function=f><parameter=p>1</parameter></function>", (tool,))[1][0].arguments == '{"p": 1}'
    assert len(bytes(reply_schema((tool,)))) < 5 * len(bytes(tool.parameters))


def test_a_schema_of_more_than_anyone_reads_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "MOST_PARTS", 10)
    assert types_of({"anyOf": [{"type": "integer"}] * 9}, {}) == {"integer"}
    assert types_of({"anyOf": [{"type": "integer"}] * 10}, {}) == frozenset()


def test_of_a_schema_of_more_than_anyone_reads_a_part_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_schemas, "MOST_PARTS", 10)
    schema = {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(20)}}
    tool = ToolSchema("f", "", msgspec.Raw(msgspec.json.encode(schema)))
    assert bytes(reply_schema((tool,))).count(b"integer") == 9


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kinds", [["object"] * 8, [f"x{n}" for n in range(8)], ["object", "array", "null", ["object"]] * 8])
def test_types_that_are_named_again_and_again(kinds: list[Any]) -> None:
    """Each of them with all that is below it, eight levels deep."""
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(8):
        schema = {"type": kinds, "properties": {"a": schema}}
    tool = ToolSchema("f", "", msgspec.Raw(msgspec.json.encode(schema)))
    assert len(bytes(reply_schema((tool,)))) < 5 * len(bytes(tool.parameters))


def test_one_definition_under_many_names() -> None:
    schema = {
        "type": "object",
        "properties": {f"p{n}": {"$ref": f"#/$defs/list/{'0' * n}"} for n in range(1, 101)},
        "$defs": {"list": [{"enum": ["x" * 10_000]}]},
    }
    tool = ToolSchema("f", "", msgspec.Raw(msgspec.json.encode(schema)))
    assert len(bytes(reply_schema((tool,)))) < 5 * len(bytes(tool.parameters))


def test_a_reference_with_a_number_that_no_list_has() -> None:
    schema = {"type": "object", "properties": {"p": {"$ref": "#/l/" + "9" * 5_000}}, "l": [{"type": "integer"}]}
    tool = ToolSchema("f", "", msgspec.Raw(msgspec.json.encode(schema)))
    assert parse("<function=f><parameter=p>x</parameter></function>", (tool,))[1][0].arguments == '{"p": "x"}'
    assert b"$ref" not in bytes(reply_schema((tool,)))
