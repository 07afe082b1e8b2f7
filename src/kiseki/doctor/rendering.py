"""What a chat template makes of a conversation: every text, call, result and thought gets a mark, and the marks are looked for in
what is rendered. Pure functions, but for the template itself."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec

from kiseki.doctor.findings import Problem
from kiseki.doctor.templates import Render, TemplateRaised
from kiseki.doctor.turns import Conversation
from kiseki.formats.reading import CALL_ROLES, ROLES

Part = Literal["system", "user", "text", "reasoning", "call", "arguments", "result", "tools"]
Sign = Callable[..., str]
"""(part, turn, whether it ends a string of arguments) → a new mark."""
_SIGN = "kqZ7vX"
"""Letters and digits only, so that nothing escapes or trims it; no text has it."""
_MARK = re.compile(_SIGN + r"\d{6}")
_THINK = re.compile(r"(<think>)(.*?)(</think>)", re.DOTALL)
_CALL = re.compile(r"<tool_call>.*?</tool_call>", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"[^"]*')
_RESPONSE_END = re.compile(r"\s*</tool_response>")
_CLOSING = re.compile(r"</[a-z_]+>")
_DOUBLE = {
    "response doubled": re.compile(r"<tool_response>\s*<tool_response>"),
    "reasoning doubled": re.compile(r"<think>\s*(?:</think>\s*)?<think>"),
}
_REASONING = ("reasoning_content", "reasoning", "thinking")
_PARTS: dict[str, Part] = {"system": "system", "user": "user", "assistant": "text", "tool": "result"}
_NAMES = {"from": "role", "value": "content"}
_LOST = {"user": "turn lost", "text": "turn lost", "system": "turn lost", "reasoning": "reasoning stripped", "call": "call lost"}
_LOST |= {"arguments": "call lost", "result": "result lost", "tools": "tools not rendered"}


class Mark(msgspec.Struct, frozen=True):
    part: Part
    at: int
    """Turn, from 1; 0 for the tools."""
    checks_quotes: bool = False
    """It ends a string of a call's arguments, which the template may have encoded once too often."""


class Marked(msgspec.Struct):
    """A conversation with its marks."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    marks: dict[str, Mark] = {}


def check_rendering(
    render: Render, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, more: dict[str, Any]
) -> Iterator[Problem]:
    """What is wrong with a row under one template. Raises what `render` does other than `TemplateRaised`."""
    marked = mark(messages, tools)
    try:
        text = render(marked.messages, marked.tools, more)
    except TemplateRaised:
        try:
            render(messages, tools, more)
        except TemplateRaised as raised:
            yield Problem("template raises", str(raised))
        return
    yield from compare(marked.marks, text)


def signs(text: str) -> list[str]:
    """Every mark in a text, as often as it is there."""
    return _MARK.findall(text)


def compare(marks: dict[str, Mark], text: str) -> Iterator[Problem]:
    """What the text lost or doubled of what was marked."""
    found = Counter(_MARK.findall(text))
    said = [sign for sign, mark in marks.items() if mark.part not in ("system", "tools", "result")]
    if said and not any(sign in found for sign in said):
        yield Problem("row emptied", f"{len(said)} texts and calls of user and assistant are gone")
        return
    lost: dict[tuple[str, str], list[int]] = {}
    for sign, mark in marks.items():
        if sign not in found:
            words = {"arguments": "arguments of calls in ", "text": "the assistant's text in "}.get(mark.part, "")
            lost.setdefault((_LOST[mark.part], words), []).append(mark.at)
        elif found[sign] > 1 and mark.part != "call":  # some templates name the tool with its result again
            lost.setdefault(("text doubled", f"{mark.part} of "), []).append(mark.at)
    for (kind, words), turns in lost.items():
        yield Problem(kind, "" if turns == [0] else f"{words}{listed_turns(turns)}")
    encoded = [mark.at for sign, mark in marks.items() if mark.checks_quotes and f'{sign}\\"' in text]
    if encoded:
        yield Problem("arguments encoded again", listed_turns(encoded))
    for kind, pattern in _DOUBLE.items():
        if times := len(pattern.findall(text)):
            yield Problem(kind, "once" if times == 1 else f"{times} times")


def listed_turns(turns: list[int]) -> str:
    each = list(dict.fromkeys(turns))
    more = f" … ({len(each)})" if len(each) > 8 else ""
    return f"turn{'s' * (len(each) > 1)} {', '.join(map(str, each[:8]))}{more}"


# ---- marking ------------------------------------------------------------------------------------------------------------


def mark_row(row: dict[str, Any], conversation: Conversation, start: int) -> tuple[dict[str, Any], dict[str, Mark]]:
    """(the row with a mark in everything that its conversation says, the marks), in the layout that it has.

    start: How many marks rows before it have: each is there once.
    """
    renamed = [{_NAMES.get(name, name): value for name, value in turn.raw.items()} for turn in conversation.turns]
    column, listed = row[conversation.column], row.get("tools")
    tools = json.loads(listed) if isinstance(listed, str) and listed.strip() else listed
    marked = mark(renamed, tools if isinstance(tools, list) else None, start)
    turns = [
        {name: message[_NAMES.get(name, name)] for name in turn.raw}
        for turn, message in zip(conversation.turns, marked.messages, strict=True)
    ]
    row = row | {conversation.column: json.dumps(turns, ensure_ascii=False) if isinstance(column, str) else turns}
    if marked.tools:
        row["tools"] = json.dumps(marked.tools, ensure_ascii=False) if isinstance(listed, str) else marked.tools
    return row, marked.marks


def mark(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, start: int = 0) -> Marked:
    """A copy of the conversation with a mark in everything that it says."""
    made = Marked([], tools, {})

    def sign(part: Part, at: int, checks_quotes: bool = False) -> str:
        text = f"{_SIGN}{start + len(made.marks):06d}"
        made.marks[text] = Mark(part, at, checks_quotes)
        return text

    for at, message in enumerate(messages, 1):
        message = dict(message)
        role = ROLES.get(str(message.get("role")), "user")
        part = _PARTS[role]
        content = message.get("content")
        if isinstance(content, str):
            if message.get("role") in CALL_ROLES:
                message["content"] = _NAME.sub(lambda name: name[0] + sign("call", at), content)  # noqa: B023 - used at once
            else:
                message["content"] = _assistant(content, at, sign) if part == "text" else _plain(content, part, at, sign)
        elif isinstance(content, list):
            message["content"] = [
                each | {"text": _plain(each["text"], part, at, sign)}
                if isinstance(each, dict) and isinstance(each.get("text"), str)
                else each
                for each in content
            ]
        thought = next((name for name in _REASONING if isinstance(message.get(name), str) and message[name].strip()), "")
        if thought:
            told = sign("reasoning", at)
            message |= {name: message[name].rstrip() + told for name in _REASONING if message.get(name) == message[thought]}
        if isinstance(message.get("tool_calls"), list):
            message["tool_calls"] = [_call(each, at, sign) for each in message["tool_calls"]]
        made.messages.append(message)
    if tools and isinstance(tools[0], dict):
        first = dict(tools[0])
        function = dict(first["function"]) if isinstance(first.get("function"), dict) else first
        name = "description" if isinstance(function.get("description"), str) else "name"
        if isinstance(function.get(name), str):
            function[name] += sign("tools", 0)
            made.tools = [first | {"function": function} if function is not first else function, *tools[1:]]
    return made


def _plain(text: str, part: Part, at: int, sign: Sign) -> str:
    if not text.strip():
        return text
    if part == "result" and "</tool_response>" in text:
        return _RESPONSE_END.sub(lambda end: sign(part, at) + end[0], text)
    end = len(text.rstrip())
    tag = text.rfind("</", 0, end)
    if tag > 0 and _CLOSING.fullmatch(text, tag, end):  # templates look at how texts begin and end
        end = len(text[:tag].rstrip())
    return text[:end] + sign(part, at) + text[end:]


def _assistant(text: str, at: int, sign: Sign) -> str:
    """Thoughts, calls and what is said beside them, each with its own mark."""

    def think(block: re.Match[str]) -> str:
        return (
            block[1]
            + block[2].rstrip()
            + (sign("reasoning", at) if block[2].strip() else "")
            + block[2][len(block[2].rstrip()) :]
            + block[3]
        )

    def call(block: re.Match[str]) -> str:
        return _NAME.sub(lambda name: name[0] + sign("call", at), block[0], count=1)

    pieces: list[str] = []
    done = 0
    for block in re.finditer(rf"{_THINK.pattern}|{_CALL.pattern}", text, re.DOTALL):
        pieces += [_said(text[done : block.start()], at, sign)]
        pieces += [_THINK.sub(think, block[0]) if block[0].startswith("<think>") else _CALL.sub(call, block[0])]
        done = block.end()
    return "".join([*pieces, _said(text[done:], at, sign)])


def _said(text: str, at: int, sign: Sign) -> str:
    stripped = text.rstrip()
    return stripped + sign("text", at) + text[len(stripped) :] if stripped else text


def _call(value: Any, at: int, sign: Sign) -> Any:
    if not isinstance(value, dict):
        return value
    inner = value.get("function")
    function = dict(inner) if isinstance(inner, dict) else dict(value)
    if isinstance(function.get("name"), str):
        function["name"] += sign("call", at)
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        function["arguments"] = _arguments(arguments, at, sign)
    elif isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, dict):
            function["arguments"] = json.dumps(_arguments(parsed, at, sign), ensure_ascii=False)
    return value | {"function": function} if isinstance(inner, dict) else function


def _arguments(arguments: dict[str, Any], at: int, sign: Sign) -> dict[str, Any]:
    """With a mark at the end of each of its strings, or of a key where there are none."""
    marked = {name: _leaves(value, at, sign) for name, value in arguments.items()}
    if marked and marked == arguments:
        name = next(iter(marked))
        marked = {f"{each}{sign('arguments', at, True)}" if each == name else each: value for each, value in marked.items()}
    return marked


def _leaves(value: Any, at: int, sign: Sign) -> Any:
    if isinstance(value, str):
        return value + sign("arguments", at, True)
    if isinstance(value, list):
        return [_leaves(each, at, sign) for each in value]
    if isinstance(value, dict):
        return {name: _leaves(each, at, sign) for name, each in value.items()}
    return value
