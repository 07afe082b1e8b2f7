"""Each format as its model's chat template writes it: whole, several at once, with text around, and with one broken call."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from kiseki.models.base import ToolSchema
from kiseki.models.text_tools.parsing import parse

TOOLS = tuple(
    ToolSchema(name, "", msgspec.Raw(json.dumps({"type": "object", "properties": properties, **more}).encode()))
    for name, properties, more in (
        ("weather", {"city": {"type": "string"}, "days": {"type": "integer"}}, {}),
        ("add", {"a": {"type": "number"}, "b": {"type": ["number", "null"]}}, {}),
        (
            "write",
            {
                "path": {"type": "string"},
                "text": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "append": {"type": "boolean"},
                "lines": {"type": "array", "items": {"type": "integer"}},
                "at": {"$ref": "#/$defs/At"},
                "mode": {"enum": ["a", "b"]},
                "any": {},
            },
            {"$defs": {"At": {"type": "object", "properties": {"line": {"type": "integer"}}}}},
        ),
    )
)


def read(text: str) -> tuple[str, list[tuple[str, str, Any]], str]:
    content, calls, name = parse(text, TOOLS)
    return content, [(call.id, call.name, json.loads(call.arguments)) for call in calls], name


PARIS = ("", "weather", {"city": "Paris", "days": 2})
SUM = ("", "add", {"a": 1.5, "b": -2})
PARIS_JSON = '{"city": "Paris", "days": 2}'
SUM_JSON = '{"a": 1.5, "b": -2}'

WRITTEN = {
    "hermes": (
        f'<tool_call>\n{{"name": "weather", "arguments": {PARIS_JSON}}}\n</tool_call>\n'
        f'<tool_call>\n{{"name": "add", "arguments": {SUM_JSON}}}\n</tool_call>',
        ("", ""),
    ),
    "qwen3_coder": (
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=add>\n<parameter=a>\n1.5\n</parameter>\n<parameter=b>\n-2\n</parameter>\n</function>\n"
        "</tool_call>",
        ("", ""),
    ),
    "llama3_json": (
        f'<|python_tag|>{{"name": "weather", "parameters": {PARIS_JSON}}}; {{"name": "add", "parameters": {SUM_JSON}}}<|eom_id|>',
        ("", ""),
    ),
    "mistral": (
        f'[TOOL_CALLS] [{{"name": "weather", "arguments": {PARIS_JSON}, "id": "a1b2c3d4e"}}, '
        f'{{"name": "add", "arguments": {SUM_JSON}}}]',
        ("a1b2c3d4e", ""),
    ),
    "deepseek_v3": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{PARIS_JSON}\n```<｜tool▁call▁end｜>\n"
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{SUM_JSON}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ("", ""),
    ),
    "deepseek_v31": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{PARIS_JSON}<｜tool▁call▁end｜>"
        f"<｜tool▁call▁begin｜>add<｜tool▁sep｜>{SUM_JSON}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        ("", ""),
    ),
    "kimi_k2": (
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{PARIS_JSON}<|tool_call_end|>"
        f"<|tool_call_begin|>functions.add:1<|tool_call_argument_begin|>{SUM_JSON}<|tool_call_end|><|tool_calls_section_end|>",
        ("functions.weather:0", "functions.add:1"),
    ),
    "glm45": (
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n"
        "</tool_call>\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1.5</arg_value>\n<arg_key>b</arg_key>\n"
        "<arg_value>-2</arg_value>\n</tool_call>",
        ("", ""),
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_parallel_calls_with_text_around(name: str) -> None:
    text, ids = WRITTEN[name]
    calls = [(ids[0], *PARIS[1:]), (ids[1], *SUM[1:])]
    assert read(text) == ("", calls, name)
    assert read(f"Let me see.\n\n{text}\n\nDone soon.") == ("Let me see.\nDone soon.", calls, name)


VARIANTS = [
    ("hermes", f'<tool_call>{{"name": "weather", "arguments": {PARIS_JSON}}}</tool_call>'),
    ("hermes", f'I look. <tool_call>{{"name": "weather", "parameters": {PARIS_JSON}}}'),  # unclosed
    ("hermes", f'<tool_call>\n{{"name": "weather", "arguments": {PARIS_JSON}}}}}\n</tool_call>'),  # a brace too many
    ("hermes", f'<tool_call>\n{{"name": "weather", "arguments": {json.dumps(PARIS_JSON)}}}\n</tool_call>'),  # encoded twice
    ("hermes", f'<tool_call>[{{"name": "weather", "arguments": {PARIS_JSON}}}]</tool_call>'),
    ("qwen3_coder", "<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>"),
    ("qwen3_coder", "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n<parameter=days>\n2\n</parameter>\n</function>"),
    ("qwen3_coder", "<tool_call><function=weather><parameter=city>Paris</parameter><parameter=days>2</parameter>"),
    ("qwen3_coder", f"<function=weather>{PARIS_JSON}</function>"),
    ("llama3_json", f'{{"name": "weather", "parameters": {PARIS_JSON}}}'),
    ("llama3_json", f'\n{{"type": "function", "name": "weather", "parameters": {PARIS_JSON}}}<|eot_id|>'),
    ("mistral", f"[TOOL_CALLS]weather[ARGS]{PARIS_JSON}"),
    ("mistral", f"I look.[TOOL_CALLS]weather{PARIS_JSON}"),
    ("mistral", f'[TOOL_CALLS][{{"name": "weather", "arguments": {PARIS_JSON}}}'),  # unclosed
    ("deepseek_v3", f"<|tool▁calls▁begin|><|tool▁call▁begin|>function<|tool▁sep|>weather\n```json\n{PARIS_JSON}\n```"),
    ("deepseek_v31", f"Look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{PARIS_JSON}"),
    (
        "glm45",
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days</arg_key><arg_value>2</arg_value>",
    ),
]


@pytest.mark.parametrize(("name", "text"), VARIANTS)
def test_variant(name: str, text: str) -> None:
    _, calls, read_as = read(text)
    assert (calls, read_as) == ([PARIS], name)


def test_mistral_calls_with_ids() -> None:
    text = f"[TOOL_CALLS]weather[CALL_ID]a1b2c3d4e[ARGS]{PARIS_JSON}[TOOL_CALLS]add[CALL_ID]f1f2f3f4f[ARGS]{SUM_JSON}"
    assert read(text)[1] == [("a1b2c3d4e", *PARIS[1:]), ("f1f2f3f4f", *SUM[1:])]


def test_kimi_unclosed_and_without_the_section() -> None:
    assert read(f"<|tool_call_begin|>functions.weather:3<|tool_call_argument_begin|>{PARIS_JSON}") == (
        "",
        [("functions.weather:3", *PARIS[1:])],
        "kimi_k2",
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<tool_call>\n<function=now>\n</function>\n</tool_call>", ("", "now", {})),
        ("<tool_call>now\n</tool_call>", ("", "now", {})),
        ('<tool_call>{"name": "now"}</tool_call>', ("", "now", {})),
        ('<tool_call>{"name": "now", "arguments": null}</tool_call>', ("", "now", {})),
    ],
)
def test_without_arguments_and_of_an_unknown_tool(text: str, expected: Any) -> None:
    assert read(text)[1] == [expected]


VALUES = [
    ("path", "007", "007"),
    ("text", "null", None),
    ("text", "12", "12"),
    ("append", "True", True),
    ("append", "false", False),
    ("append", "perhaps", "perhaps"),
    ("lines", "[1, 2]", [1, 2]),
    ("lines", "one", "one"),
    ("at", '{"line": 3}', {"line": 3}),
    ("mode", "a", "a"),
    ("any", '{"x": [null]}', {"x": [None]}),
    ("any", "plain words", "plain words"),
    ("path", "a\n  b\n", "a\n  b\n"),
    ("path", "</parameter> and <parameter=x> </arg_value> <b>", "</parameter> and <parameter=x> </arg_value> <b>"),
    ("extra", "1", "1"),
]


@pytest.mark.parametrize(("key", "text", "value"), VALUES)
def test_values_are_typed_by_the_schema(key: str, text: str, value: Any) -> None:
    qwen = f"<tool_call>\n<function=write>\n<parameter={key}>\n{text}\n</parameter>\n</function>\n</tool_call>"
    glm = f"<tool_call>write\n<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n</tool_call>"
    assert read(qwen)[1] == [("", "write", {key: value})]
    assert read(glm)[1] == [("", "write", {key: value})]


def test_a_whole_float_is_an_integer_where_one_is_wanted() -> None:
    assert read("<function=weather><parameter=days>2.0</parameter></function>")[1] == [("", "weather", {"days": 2})]


GOOD = f'<tool_call>\n{{"name": "weather", "arguments": {PARIS_JSON}}}\n</tool_call>\n'
GOOD_QWEN = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n</tool_call>\n"
)
GOOD_GLM = (
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
    "<arg_value>2</arg_value>\n</tool_call>\n"
)
BROKEN = [
    (
        GOOD,
        '<tool_call>\n{"name": "add", "arguments": {"a": 1,, }}\n</tool_call>\n',
        "add",
        '{"name": "add", "arguments": {"a": 1,, }}',
    ),
    (GOOD, '<tool_call>\n{"nam": "add"}\n</tool_call>\n', "", '{"nam": "add"}'),
    (GOOD, "<tool_call>\nadd(1, 2)\n</tool_call>\n", "add", "add(1, 2)"),
    (GOOD, '<tool_call>\n{"name": "add", "argum\n', "add", '{"name": "add", "argum'),
    (GOOD, '<tool_call>\n"add"\n</tool_call>\n', "", '"add"'),
    (GOOD_QWEN, "<tool_call>\n<function=add>\na: 1\n</function>\n</tool_call>\n", "add", "<function=add>\na: 1"),
    (GOOD_GLM, "<tool_call>add\n<arg_key>a</arg_key>\n1\n</tool_call>\n", "add", "<arg_key>a</arg_key>\n1"),
]


@pytest.mark.parametrize(("good", "bad", "name", "raw"), BROKEN)
def test_one_broken_call_leaves_the_others(good: str, bad: str, name: str, raw: str) -> None:
    content, calls, _ = parse(f"First.\n{good}{bad}{good}", TOOLS)
    assert content == "First."
    assert [call.name for call in calls] == ["weather", name, "weather"]
    assert calls[1].arguments == raw
    assert json.loads(calls[0].arguments) == json.loads(calls[2].arguments) == PARIS[2]


@pytest.mark.parametrize(
    ("text", "raw"),
    [
        (f'{GOOD}<tool_call>\n{{"name": "add", "arguments": {{"a": 1', '{"name": "add", "arguments": {"a": 1'),
        (f"{GOOD_QWEN}<tool_call>\n<function=add>\n<parameter=a>\n1", "<function=add>\n<parameter=a>\n1"),
        (f"{GOOD_GLM}<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1", "<arg_key>a</arg_key>\n<arg_value>1"),
        (f"[TOOL_CALLS]weather[ARGS]{PARIS_JSON}[TOOL_CALLS]add[ARGS]{{", "{"),
    ],
)
def test_cut_off_in_the_last_call(text: str, raw: str) -> None:
    content, calls, _ = parse(text, TOOLS)
    assert content == ""
    assert [call.name for call in calls] == ["weather", "add"]
    assert calls[1].arguments == raw


def test_broken_calls_between_tokens() -> None:
    cases = {
        "mistral": f"[TOOL_CALLS]add[ARGS]{{a: 1}}[TOOL_CALLS]weather[ARGS]{PARIS_JSON}",
        "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{a: 1}"
        f"<|tool_call_end|><|tool_call_begin|>functions.weather:1<|tool_call_argument_begin|>{PARIS_JSON}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        "deepseek_v31": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{a: 1}<｜tool▁call▁end｜>"
        f"<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{PARIS_JSON}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    }
    for name, text in cases.items():
        content, calls, read_as = parse(text, TOOLS)
        assert (content, read_as) == ("", name)
        assert [(call.name, call.arguments.strip()) for call in calls] == [("add", "{a: 1}"), ("weather", PARIS_JSON)]


def test_a_broken_element_of_an_array() -> None:
    content, calls, _ = parse(f'[TOOL_CALLS][{{"name": "weather", "arguments": {PARIS_JSON}}}, {{"name": "add", "argum', TOOLS)
    assert content == ""
    assert [(call.name, call.arguments) for call in calls] == [("weather", PARIS_JSON), ("add", '{"name": "add", "argum')]


def test_line_breaks_inside_strings() -> None:
    assert read('<tool_call>{"name": "write", "arguments": {"text": "a\nb\t<x>"}}</tool_call>')[1] == [
        ("", "write", {"text": "a\nb\t<x>"})
    ]


def test_arguments_stay_as_they_were_written() -> None:
    arguments = '{"a":  1.50, "b":1e3}'
    _, calls, _ = parse(f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>', TOOLS)
    assert calls[0].arguments == arguments


def test_a_broken_call_ends_where_the_next_of_a_known_tool_begins() -> None:
    good, bad = '{"name": "weather", "arguments": {"city": "Paris"}}', '{"name": "weather", "arguments": {"city": "Lo'
    for text in (
        f"[TOOL_CALLS][{bad}, {good}]",
        f"<tool_call>\n{bad}\n{good}\n</tool_call>",
        f"{bad}; {good}".replace("arguments", "parameters"),
    ):
        _, calls, _ = parse(text, TOOLS)
        assert [call.name for call in calls] == ["weather", "weather"], text
        assert msgspec.json.decode(calls[1].arguments) == {"city": "Paris"} and calls[0].arguments.startswith('{"name"')


def test_objects_inside_a_broken_call_are_none() -> None:
    _, calls, _ = parse('[TOOL_CALLS][{"name": "weather", "arguments": {"of": [{"name": "x"}, {"name": "y"}], "city": "Lo', TOOLS)
    assert [call.name for call in calls] == ["weather"]
