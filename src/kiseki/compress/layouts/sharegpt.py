"""ShareGPT turns (`from`, `value`), with the Hermes tags for calls and results; see `trajectory/sharegpt.py` for the format."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec

from kiseki.compress.layouts.leaves import edit_json, edit_text
from kiseki.compress.layouts.text_content import append_text, content_text, edit_parts, shown
from kiseki.compress.layouts.text_protocol import commands
from kiseki.compress.turns import Call, Edit, Output, Role, Turn, turn_of
from kiseki.trajectory.json_rows import encode_row
from kiseki.trajectory.sharegpt import blocks, escape_json, escape_text, unescape_json

ROLES: dict[str, Role] = {
    "system": "system",
    "human": "human",
    "user": "human",
    "gpt": "gpt",
    "assistant": "gpt",
    "model": "gpt",
    "function_call": "gpt",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
CHAT_ROLES = {"system": "system", "human": "user", "gpt": "assistant", "tool": "tool"}
_columns = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NAMES = ("tool_call_id", "id", "name")
"""Fields of a response that say whose it is."""


class _CallIn(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class ShareGPT:
    """A `Layout`."""

    def read(self, data: dict[str, Any], raw: msgspec.Raw) -> Turn:
        role = ROLES.get(str(data.get("from")))
        if role is None:
            raise ValueError(f"its 'from' is {shown(data.get('from'))}, not one of {', '.join(ROLES)}")
        return Turn(role, content_text(data.get("value")), data, raw)

    def calls(self, turn: Turn) -> list[Call]:
        if turn.data.get("from") == "function_call":
            return _bare_calls(turn.text)
        calls = []
        for start, end in _blocks(turn.text, "tool_call"):
            try:
                call = msgspec.json.decode(turn.text[start:end], type=_CallIn)
            except msgspec.DecodeError:
                continue
            calls.append(Call(call.name, unescape_json(bytes(call.arguments).decode())))
        return calls or commands(turn.text)

    def outputs(self, turn: Turn) -> list[Output]:
        outputs = [_read_output(turn.text[start:end]) for start, end in _blocks(turn.text, "tool_response")]
        return outputs or [Output(turn.text)]

    def edit_leaves(self, turn: Turn, edit: Edit, which: Collection[int] | None = None) -> Turn:
        def change(number: int, payload: str) -> str:
            return _edit_payload(payload, edit) if which is None or number in which else payload

        return self._with_blocks(turn, change, lambda text: edit_text(text, edit))

    def replace_outputs(self, turn: Turn, texts: Mapping[int, str]) -> Turn:
        def change(number: int, payload: str) -> str:
            return payload if number not in texts else _replace_payload(payload, texts[number])

        plain = iter([texts[0]]) if 0 in texts else None
        return self._with_blocks(turn, change, lambda text: text if plain is None else next(plain, ""))

    def append(self, turn: Turn, text: str) -> Turn:
        added = text if ROLES[turn.data["from"]] in ("system", "human") else escape_text(text)
        value = append_text(turn.data.get("value"), added)
        return turn_of(turn.role, content_text(value), turn.data | {"value": value})

    def human(self, text: str) -> Turn:
        return turn_of("human", text, {"from": "human", "value": text})

    def message(self, turn: Turn) -> dict[str, Any]:
        return {"role": CHAT_ROLES[ROLES[turn.data["from"]]], "content": turn.text}

    def _with_blocks(self, turn: Turn, change: Callable[[int, str], str], change_plain: Edit) -> Turn:
        """The turn with the payload of each response changed; with its text, where it has no response blocks."""
        numbers = itertools.count()
        tagged = next(_blocks(turn.text, "tool_response"), None) is not None

        def of_text(text: str) -> str:
            pieces = []
            at = 0
            for start, end in _blocks(text, "tool_response"):
                pieces += [text[at:start], change(next(numbers), text[start:end])]
                at = end
            if tagged:
                return "".join([*pieces, text[at:]])
            changed = change_plain(text)  # not where what is left of the text would be taken for tags
            return text if next(_blocks(changed, "tool_response"), None) else changed

        value = edit_parts(turn.data.get("value"), of_text)
        if value == turn.data.get("value"):
            return turn
        return turn_of(turn.role, content_text(value), turn.data | {"value": value})


SHAREGPT = ShareGPT()


def _blocks(text: str, tag: str) -> Iterator[tuple[int, int]]:
    """Start and end of what stands between the tags, without the blanks around it."""
    for start, end in blocks(text, tag):
        while start < end and text[start].isspace():
            start += 1
        while start < end and text[end - 1].isspace():
            end -= 1
        yield start, end


def _bare_calls(text: str) -> list[Call]:
    """LLaMA-Factory's `function_call` turn: one call's JSON or a list of them, perhaps after a think block."""
    try:
        decoded = msgspec.json.decode(text.rpartition("</think>")[2].strip(), type=_CallIn | list[_CallIn])
    except msgspec.DecodeError:
        return []
    calls = decoded if isinstance(decoded, list) else [decoded]
    return [Call(call.name, bytes(call.arguments).decode()) for call in calls]


def _fields(payload: str) -> dict[str, msgspec.Raw] | None:
    try:
        return _columns(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        pass
    if not payload.startswith("{"):
        return None
    try:  # with NaN or lone surrogates: Python's JSON, which many datasets hold
        return _columns(encode_row(json.loads(payload)))
    except (ValueError, RecursionError, msgspec.DecodeError):
        return None


def _read_output(payload: str) -> Output:
    fields = _fields(payload)
    if fields is None:
        return Output(unescape_json(payload))
    if "content" not in fields:
        return Output(unescape_json(payload), _text(fields, "name"), _text(fields, "tool_call_id"))
    raw = unescape_json(bytes(fields["content"]).decode())
    text = msgspec.json.decode(raw, type=str) if raw.startswith('"') else raw
    return Output(text, _text(fields, "name"), _text(fields, "tool_call_id"))


def _text(fields: Mapping[str, msgspec.Raw], name: str) -> str:
    raw = bytes(fields.get(name, msgspec.Raw(b'""')))
    return msgspec.json.decode(raw, type=str) if raw.startswith(b'"') else ""


def _edit_payload(payload: str, edit: Edit) -> str:
    fields = _fields(payload)
    if fields is None:
        old = unescape_json(payload)
        new = edit_text(old, edit)
        return payload if new == old else escape_json(new)
    names = ("content",) if "content" in fields else [name for name in fields if name not in _NAMES]
    changed = {}
    for name in names:
        old = unescape_json(bytes(fields[name]).decode())
        new = edit_json(old, edit)
        if new != old:
            changed[name] = new
    return _payload(fields, changed) if changed else payload


def _replace_payload(payload: str, text: str) -> str:
    fields = _fields(payload)
    if fields is None:
        return escape_json(text)
    kept = {name: raw for name, raw in fields.items() if name in _NAMES}
    return _payload(kept | {"content": msgspec.Raw(b'""')}, {"content": msgspec.json.encode(text).decode()})


def _payload(fields: Mapping[str, msgspec.Raw], changed: Mapping[str, str]) -> str:
    """The fields as `trajectory/sharegpt.py` writes them."""
    pairs = [
        f"{msgspec.json.encode(name).decode()}: {escape_json(changed[name]) if name in changed else bytes(raw).decode()}"
        for name, raw in fields.items()
    ]
    return "{" + ", ".join(pairs) + "}"
