"""The mode `json`: every reply is one JSON object, a thought and then either tool calls or an answer, and the endpoint is asked
to hold the model to that (`reply_schema.py`).

    {"thought": "…", "tool_calls": [{"name": "get_weather", "arguments": {"city": "Paris"}}]}
    {"thought": "…", "answer": "…"}

Replies are read by position and as far as they go, so that nothing is lost of one that was cut off. A reply of another form, from
an endpoint that did not hold the model to it, is read as in the mode `hermes`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from kiseki.models.base import ToolSchema
from kiseki.models.text_tools.json_calls import read_calls, read_value
from kiseki.models.text_tools.parsing import parse
from kiseki.models.text_tools.reply_schema import reply_schema
from kiseki.models.text_tools.rewriting import Mode, Reading
from kiseki.models.text_tools.source import Source
from kiseki.trajectory.reasoning import join_reasoning
from kiseki.trajectory.sharegpt import is_json_object
from kiseki.trajectory.text import clean_text
from kiseki.trajectory.types import Message, ToolCall

NAME = "json"
_PROMPT = """\
Reply with one JSON object and nothing else: your thought, and then either the tools that you call or your answer to the user.
{"thought": "...", "tool_calls": [{"name": "...", "arguments": {...}}]}
{"thought": "...", "answer": "..."}
The results of the tools come back in the next message. These are the tools, with the JSON schemas of their arguments:
"""
_START = re.compile(r"\s*(?:```(?:json)?\s*)?\{")
_KEY = re.compile(r'\s*,?\s*"([^"\\]{1,64})"\s*:\s*')
_END = re.compile(r"\s*\}\s*(?:```\s*)?")
_EMPTY = re.compile(r"\[\s*(?:\]|\Z)")
_NEVER = re.compile(r"(?!)")
LONGEST_ESCAPE = 12
"""Characters that a string cut off in an escape loses at most: a surrogate pair."""


def prompt(tools: tuple[ToolSchema, ...]) -> str:
    """The tools, and the form of a reply."""
    listed = [{"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in tools]
    return _PROMPT + msgspec.json.encode(listed).decode()


def write_turn(message: Message) -> str:
    """What the assistant said in the form that it was asked for; text beside calls is a part of the thought."""
    if not message.tool_calls:
        return _encode({"thought": message.reasoning, "answer": message.content})
    thought = join_reasoning(message.reasoning, message.content)
    calls = ", ".join(f'{{"name": {_encode(each.name)}, "arguments": {_arguments(each)}}}' for each in message.tool_calls)
    return f'{{"thought": {_encode(thought)}, "tool_calls": [{calls}]}}'


def write_results(results: Sequence[Message]) -> str:
    return _encode({"tool_results": [{"name": each.name, "content": _content(each.content)} for each in results]})


def read(text: str, tools: tuple[ToolSchema, ...]) -> Reading:
    """What can be read of a reply; its text where that is nothing."""
    reading = _read_object(Source(clean_text(text), tools))
    return reading or Reading(*parse(text, tools))


def _read_object(source: Source) -> Reading | None:
    text = source.text
    start = _START.match(text)
    if start is None:
        return None
    at = start.end()
    values: dict[str, str] = {}
    calls: list[ToolCall] = []
    while (key := _KEY.match(text, at)) is not None:
        at = key.end()
        if key[1] == "tool_calls" and not calls:
            calls, at, _ = read_calls(source, at, _NEVER)
            values["tool_calls"] = ""
            at = empty.end() if (empty := _EMPTY.match(text, at)) else at
            continue
        value, at = _read_text(text, at)
        values[key[1]] = value
    if not values.keys() & {"thought", "tool_calls", "answer"}:
        return None
    end = _END.match(text, at)
    answer = "\n".join(each for each in (values.get("answer", ""), text[end.end() if end else at :].strip()) if each)
    return Reading(answer, tuple(calls), NAME if calls else "", values.get("thought", "").strip())


def _read_text(text: str, at: int) -> tuple[str, int]:
    """(text, end) of the value at `at`: a string, or the JSON text of something else. Of one that is cut off what is there."""
    if (read_whole := read_value(text, at)) is not None:
        value, end = read_whole
        return (clean_text(value) if isinstance(value, str) else text[at:end]), end
    if text.startswith('"', at):
        rest = text[at:]
        for lost in range(LONGEST_ESCAPE):
            if (part := read_value(rest[: len(rest) - lost] + '"', 0)) is not None:
                return clean_text(part[0]), len(text)
    return text[at:], len(text)


def _arguments(call: ToolCall) -> str:
    arguments = call.arguments.strip() or "{}"
    return arguments if is_json_object(arguments) else _encode(call.arguments)


def _content(content: str) -> Any:
    stripped = content.strip()
    return msgspec.Raw(stripped.encode()) if is_json_object(stripped) else content


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()


JSON = Mode(prompt, reply_schema, write_turn, write_results, read, writes_answers=True)
