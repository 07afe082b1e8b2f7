"""Replies that are made to hurt: megabytes of openings, brackets and quotes are read in time that the text's length explains."""

from __future__ import annotations

import msgspec
import pytest

from kiseki.models.base import ToolSchema
from kiseki.models.text_tools import parsing
from kiseki.models.text_tools.parsing import parse

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
