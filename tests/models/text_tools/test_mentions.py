"""What only speaks of calls is text; what is a call is one whatever its strings hold."""

from __future__ import annotations

import json

import msgspec
import pytest

from kiseki.models.base import ToolSchema
from kiseki.models.text_tools.parsing import parse

TOOLS = (ToolSchema("run", "", msgspec.Raw(b'{"type":"object","properties":{"command":{"type":"string"}}}')),)
CALL = '<tool_call>{"name": "run", "arguments": {"command": "ls"}}</tool_call>'
OTHER = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
XML = "<tool_call><function=run><parameter=command>ls</parameter></function></tool_call>"
SPEC = "<|tool_calls_section_begin|><|tool_call_begin|>functions.run:0<|tool_call_argument_begin|>{}<|tool_call_end|>"

MENTIONS = [
    "Nothing of the kind.",
    "Use <tool_call> to call a tool and </tool_call> to end it.",
    "<tool_call> and </tool_call> are the tags.",
    "- <function=NAME> opens a function",
    "<function=NAME> opens a function",
    f"The format is `{CALL}`, on one line.",
    f"The format is ``{CALL}``.",
    f"```\n{CALL}\n```",
    f"````md\n```\n{CALL}\n```\n````",
    f"~~~\n```\n{CALL}\n~~~\nthat was it",
    f"1. So:\n   ```xml\n   {XML}\n   ```",
    f"An open fence:\n```\n{CALL}",
    f'He wrote "{CALL}" there.',
    f"He wrote '{CALL}' there.",
    f"He wrote “{CALL}” there.",
    f'He said "write {CALL} for it" to me.',
    f"For example {OTHER} calls f.",
    'Write <tool_call>{"name": ..., "arguments": {...}}</tool_call> to call one.',
    'Write <tool_call>{"name": "run", ...}</tool_call> to call one.',
    f'{{"text": {json.dumps(CALL)}}}',
    "The token [TOOL_CALLS] is followed by an array.",
    "[TOOL_CALLS] is the token.",
    f"```\n{SPEC}\n```",
    "<|tool_calls_section_begin|> opens the section.",
    "<｜tool▁calls▁begin｜> opens the section.",
    "<|python_tag|>print(1)",
    "<|python_tag|> runs code",
    '{"name": "run"}',
    '{"name": "other", "parameters": {}}',
    'So: {"name": "run", "parameters": {}}',
    '{"name": "run", "parameters": {}} is what I would write.',
    '{"name": "run", "parameters": {',
    "<tool_call>",
    "I end with <tool_call>",
    "<tool_call></tool_call>",
]


@pytest.mark.parametrize("text", MENTIONS)
def test_text_that_speaks_of_calls(text: str) -> None:
    assert parse(text, TOOLS) == (text, (), "")


CALLS = [
    (f"I call it: {CALL}", "I call it:"),
    (f"First `ls`, then\n{CALL}", "First `ls`, then"),
    (f"A 5` mark: {CALL}", "A 5` mark:"),
    (f'A 5" pipe: {CALL}', 'A 5" pipe:'),
    (f"```\ncode\n```\n{CALL}", "```\ncode\n```"),
    (f"It's {CALL} isn't it", "It's\nisn't it"),
    (f"`<tool_call>` is the tag:\n{CALL}", "`<tool_call>` is the tag:"),
    (f"Use <tool_call> so: {CALL}", "Use <tool_call> so:"),
    (f"Not {OTHER} but this:\n{CALL}", f"Not {OTHER} but this:"),
    (f"Look: {XML}", "Look:"),
    (f"Look: {SPEC}", "Look:"),
]


@pytest.mark.parametrize(("text", "content"), CALLS)
def test_calls_beside_what_looks_alike(text: str, content: str) -> None:
    said, calls, _ = parse(text, TOOLS)
    assert ([call.name for call in calls], said) == (["run"], content)


def test_a_call_of_an_unknown_tool_is_a_call() -> None:
    """The model is to hear that there is no such tool."""
    for text in (f"Well.\n{OTHER}", f"Well. {OTHER}", OTHER):
        assert [call.name for call in parse(text, TOOLS)[1]] == ["f"]


def test_code_in_arguments_opens_no_code_in_the_text() -> None:
    fenced = json.dumps({"name": "run", "arguments": {"command": "```python\n`"}})
    text = f"<tool_call>\n{fenced}\n</tool_call>\n{CALL}"
    assert [call.name for call in parse(text, TOOLS)[1]] == ["run", "run"]


NASTY = [
    "</tool_call>",
    "<tool_call>",
    '"</tool_call>"',
    '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
    "`" * 7,
    "```\n",
    "[TOOL_CALLS]",
    "<｜tool▁call▁end｜>",
    "\\u003ctool_call>",
    "\\\\u003c/tool_call>",
    "\x00\x1b[0m\u2028\U0001f600",
    "{]}\\",
    "",
]


@pytest.mark.parametrize("text", NASTY)
def test_strings_of_arguments_survive(text: str) -> None:
    arguments = json.dumps({"command": text})
    written = [
        f'<tool_call>\n{{"name": "run", "arguments": {arguments}}}\n</tool_call>',
        f'[TOOL_CALLS][{{"name": "run", "arguments": {arguments}}}]',
        f"[TOOL_CALLS]run[ARGS]{arguments}",
        f"<｜tool▁call▁begin｜>run<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>",
        f"<|tool_call_begin|>functions.run:0<|tool_call_argument_begin|>{arguments}<|tool_call_end|>",
        f'<|python_tag|>{{"name": "run", "parameters": {arguments}}}',
        f'{{"name": "run", "parameters": {arguments}}}',
        f"<tool_call>\n<function=run>\n<parameter=command>\n{text}\n</parameter>\n</function>\n</tool_call>",
        f"<tool_call>run\n<arg_key>command</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>",
    ]
    for each in written:
        content, calls, _ = parse(each, TOOLS)
        assert content == "", each
        assert [(call.name, json.loads(call.arguments)) for call in calls] == [("run", {"command": text})], each


def test_an_indented_example_is_code() -> None:
    example = 'Write:\n\n    <tool_call>\n    {"name": "run", "arguments": {"command": "ls"}}\n    </tool_call>\n\nThat is all.'
    assert parse(example, TOOLS) == (example, (), "")
    assert parse(example.replace("    <", "  <"), TOOLS)[1] != ()
