"""A row's conversation as it stands, for judging: nothing is repaired, and nothing raises. `formats/reading.py` is what reads
rows to use them. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import msgspec

from kiseki.doctor.findings import Problem
from kiseki.formats import hermes
from kiseki.formats.llamafactory import BETWEEN_RESULTS
from kiseki.formats.reading import CALL_ROLES, COLUMNS, ROLES, conversation_of
from kiseki.trajectory.json_rows import decode_row
from kiseki.trajectory.reasoning import native_reasoning, split_content, split_inline
from kiseki.trajectory.sharegpt import blocks, is_json_object

Form = Literal["object", "text", "encoded", "broken"]
"""How a call's arguments stand there: an object; its JSON text; JSON text of that text; nothing that is an object."""

_ENCODED = re.compile(r'"arguments"\s*:\s*"\s*\{')
RESPONSE = "<tool_response>"


class Call(msgspec.Struct, frozen=True):
    id: str
    name: str
    form: Form
    arguments: Any


class Turn(msgspec.Struct, frozen=True):
    """One turn, or chat message."""

    at: int
    """From 1."""
    named: str
    """Its role as the row has it."""
    role: str
    """What that means, as `Message.role`; "" where it is not known."""
    text: str = ""
    """Without reasoning and calls where those stand in it."""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    results: tuple[str, ...] = ()
    """Of a tool turn: the call ids that it answers, "" for one without."""
    raw: dict[str, Any] = {}

    @property
    def masked(self) -> bool:
        """Whether a loss flag of axolotl (`train`, `weight`), ms-swift (`loss`, `loss_scale`) or OpenAI (`weight`) is off."""
        return any(self.raw.get(flag) is not None and not self.raw[flag] for flag in ("train", "weight", "loss", "loss_scale"))


class Conversation(msgspec.Struct, frozen=True):
    column: str
    turns: tuple[Turn, ...]
    sharegpt: bool
    """Turns of `from` and `value`; else messages of `role` and `content`."""
    inline: bool
    """Calls and reasoning stand in the text, between tags."""
    tools: tuple[str, ...] | None
    """Names; None where the row has none, or where they are no list of schemas."""


def read_conversation(row: Mapping[str, Any]) -> Conversation | Problem:
    """The row's conversation, or why it has none."""
    try:
        column, turns = conversation_of(row)
    except ValueError as error:
        empty = [name for name in COLUMNS if name in row and row[name] in ([], "[]")]
        return Problem("empty conversation", f"{empty[0]} is []") if empty else Problem("no conversation", str(error))
    sharegpt = any("from" in turn for turn in turns)
    inline = sharegpt or ("tools" not in row and not any(turn.get("tool_calls") for turn in turns))
    tools = _tool_names(row.get("tools"))
    made = []
    for at, turn in enumerate(turns, 1):
        read = _turn(turn, at, inline)
        made.append(read)
        if read.role == "system" and inline and not tools:
            tools = _told_tools(read.text)
    return Conversation(column, tuple(made), sharegpt, inline, tools)


@lru_cache(maxsize=64)  # the same system turn stands in many rows
def _told_tools(text: str) -> tuple[str, ...] | None:
    return _tool_names(hermes.read_system(text)[0])


def _tool_names(value: Any) -> tuple[str, ...] | None:
    if isinstance(value, str):
        value = _json(value) if value.strip() else []
    if not isinstance(value, list | tuple):
        return None
    names = []
    for each in value:
        each = _json(each) if isinstance(each, str) else each
        function = each.get("function", each) if isinstance(each, dict) else None
        if isinstance(function, dict) and function.get("name"):
            names.append(str(function["name"]))
    return tuple(names) if names else None


def _turn(raw: dict[str, Any], at: int, inline: bool) -> Turn:
    named = raw.get("from", raw.get("role"))
    named = named if isinstance(named, str) else repr(named)
    role: str = ROLES.get(named, "")
    text, thinking = split_content(raw.get("value") if "from" in raw else raw.get("content"))
    if named in CALL_ROLES:
        rest, reasoning = split_inline(text, cut_short=False, has_native=False)
        if tagged := next(blocks(rest, "tool_call"), None):  # LLaMA-Factory takes the first, with text before it
            said, rest = rest[: tagged[0] - len("<tool_call>")], rest[slice(*tagged)].strip()
        else:
            said = ""
        value = _json(rest)
        listed = value if isinstance(value, list) else [value]
        calls = tuple(call for each in listed if (call := _call(each)) is not None)
        return Turn(at, named, role, said if calls else said + rest, reasoning, calls, raw=raw)
    if role == "assistant":
        reasoning = native_reasoning(raw) or thinking
        if calls := _field_calls(raw.get("tool_calls")):
            return Turn(at, named, role, text, reasoning, calls, raw=raw)
        if inline:
            told, rest, found = hermes.read_gpt(text)
            encoded = bool(found) and bool(_ENCODED.search(text))
            made = tuple(Call(call.id, call.name, _text_form(call.arguments, encoded), call.arguments) for call in found)
            return Turn(at, named, role, rest, reasoning or told, made, raw=raw)
        if not reasoning:
            text, reasoning = split_inline(text, cut_short=False, has_native=False)
        return Turn(at, named, role, text, reasoning, raw=raw)
    if role == "tool":
        if isinstance(found_id := raw.get("tool_call_id"), str) and found_id:
            ids: tuple[str, ...] = (found_id,)
        elif named == "observation" and BETWEEN_RESULTS in text:  # as LLaMA-Factory joins them
            ids = ("",) * (text.count(BETWEEN_RESULTS) + 1)
        elif RESPONSE in text:
            ids = tuple(call_id for call_id, _, _ in hermes.read_results(text))
        else:
            ids = _listed_results(text) if named == "observation" else ("",)
        return Turn(at, named, role, text, results=ids, raw=raw)
    return Turn(at, named, role, text, raw=raw)


def _listed_results(text: str) -> tuple[str, ...]:
    """One observation answers all calls of the turn before: as many results as its list has, where it is one."""
    return ("*",) if text.lstrip()[:1] == "[" else ("",)


def _field_calls(value: Any) -> tuple[Call, ...]:
    value = _json(value) if isinstance(value, str) else value
    return tuple(call for each in value if (call := _call(each))) if isinstance(value, list | tuple) else ()


def _call(value: Any) -> Call | None:
    if not isinstance(value, dict):
        return None
    function = value.get("function", value)
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return None
    arguments = function.get("arguments")
    form: Form = "object" if isinstance(arguments, dict) or arguments is None else "broken"
    if isinstance(arguments, str):
        inner = _json(arguments)
        form = "text" if isinstance(inner, dict) else "broken"
        if isinstance(inner, str) and is_json_object(inner):
            form = "encoded"
    return Call(value["id"] if isinstance(value.get("id"), str) else "", function["name"], form, arguments)


def _text_form(arguments: str, encoded: bool) -> Form:
    """Of a call between tags, where arguments are to be an object."""
    if not is_json_object(arguments):
        return "broken"
    return "encoded" if encoded else "object"


def _json(text: str) -> Any:
    try:
        return decode_row(text.encode("utf-8", "replace"))
    except ValueError:
        return None
