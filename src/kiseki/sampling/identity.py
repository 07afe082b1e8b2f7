"""What a conversation says, in whatever layout: two rows with the same words, calls and results are the same conversation."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from kiseki.compress.layouts.messages import MESSAGES
from kiseki.compress.layouts.sharegpt import SHAREGPT
from kiseki.compress.layouts.text_content import content_text
from kiseki.compress.rows import Trajectory
from kiseki.compress.turns import Call, Layout, Turn
from kiseki.trajectory.reasoning import native_reasoning, split_inline
from kiseki.trajectory.sharegpt import CALL_FORMAT, TOOLS_PREAMBLE, unescape_json, unescape_text

Item = tuple[str, ...]

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_RESPONSE = "<tool_response>"


class _CallIn(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


def what_is_said(trajectory: Trajectory) -> list[Item]:
    """What each says, thinks, calls and gets back, one after the other.

    Where turns end does not matter: some layouts have one turn for each call and result. Nor does the order of results that
    follow each other, or the way in which JSON is written.
    """
    items: list[Item] = []
    outputs: list[Item] = []
    for turn in trajectory.turns:
        if turn.role == "tool":
            layout: Layout = SHAREGPT if turn.text.lstrip().startswith(_RESPONSE) else trajectory.layout
            outputs += [("output", _plain_json(output.text)) for output in layout.outputs(turn)]
            continue
        items += sorted(outputs)
        outputs = []
        if turn.role == "gpt":
            items += _answer(turn, trajectory.layout)
        elif text := _without_tools(turn.text).strip():
            items.append((turn.role, text))
    return items + sorted(outputs)


def _answer(turn: Turn, layout: Layout) -> list[Item]:
    data = turn.data
    if data.get("role") == "tool_call" or data.get("from") == "function_call":
        text, calls = turn.text.rpartition("</think>")[0], layout.calls(turn)
        text = f"{text}</think>" if text else ""
    elif layout is MESSAGES:
        text, calls = content_text(data.get("content")), layout.calls(turn) if data.get("tool_calls") else []
    else:
        text, calls = turn.text, []
    native = native_reasoning(data) if layout is MESSAGES else ""
    text, inline = split_inline(text, cut_short=bool(calls), has_native=bool(native))
    if not calls:
        text, calls = _take_calls(text)
    said = [("reasoning", native or inline), ("gpt", text)]
    items: list[Item] = [(kind, unescape_text(each).strip()) for kind, each in said if each.strip()]
    return items + [("call", call.name, _plain_arguments(call.arguments)) for call in calls]


def _take_calls(text: str) -> tuple[str, list[Call]]:
    """The text without the calls that stand in it between tags, and those calls."""
    calls: list[Call] = []

    def take(found: re.Match[str]) -> str:
        try:
            call = msgspec.json.decode(found[1], type=_CallIn)
        except msgspec.DecodeError:
            return found[0]
        calls.append(Call(call.name, unescape_json(bytes(call.arguments).decode())))
        return ""

    return _CALL.sub(take, text), calls


def _without_tools(text: str) -> str:
    """A system turn without the tools that Kiseki wrote before it; messages have them in a column."""
    return text.partition(CALL_FORMAT)[2] if text.startswith(TOOLS_PREAMBLE) else text


def _plain_arguments(text: str) -> str:
    """An object and a string that holds it are the same."""
    value = _decoded(text or "{}")
    value = _decoded(value) if isinstance(value, str) else value
    return value if isinstance(value, str) else _encoded({} if value is None else value)


def _plain_json(text: str) -> str:
    text = text.strip()
    return _encoded(_decoded(text)) if text[:1] in ("{", "[") else text


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return text.strip()


def _encoded(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, order="deterministic").decode()
