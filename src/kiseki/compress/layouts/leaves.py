"""Strings inside JSON text, changed one by one while every other byte stays: the text remains valid JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from kiseki.compress.turns import Edit

_encode = msgspec.json.Encoder().encode
DEEPEST = 3
"""JSON in a string in JSON: more than tools make."""


def edit_text(text: str, edit: Edit, depth: int = 0) -> str:
    """`edit` applied to the strings in `text` where that is a JSON object or array, else to `text` itself."""
    if depth < DEEPEST and text.lstrip()[:1] in ("{", "["):
        try:
            return edit_json(text, edit, depth)
        except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
            pass
    return edit(text)


def edit_json(json_text: str, edit: Edit, depth: int = 0) -> str:
    """`edit` applied once to every string value in JSON text, in order; keys are left alone. Raises `msgspec.DecodeError` for
    what is no JSON."""
    changed = {}
    for old in _strings(msgspec.json.decode(json_text)):
        new = edit_text(old, edit, depth + 1)
        if new != old:
            changed[old] = new
    return _replace(json_text, changed) if changed else json_text


def _replace(json_text: str, changed: Mapping[str, str]) -> str:
    """JSON text with the string values that are among `changed` replaced."""
    shortest = min(map(len, changed))
    pieces = []
    at = 0  # what is before it is in `pieces`
    start = json_text.find('"')
    while start >= 0:
        end = _string_end(json_text, start)
        if end - start - 2 >= shortest:  # a string is never shorter as JSON
            new = changed.get(msgspec.json.decode(json_text[start:end], type=str))
            if new is not None and not _is_key(json_text, end):
                pieces += [json_text[at:start], _encode(new).decode()]
                at = end
        start = json_text.find('"', end)
    return "".join([*pieces, json_text[at:]])


def _string_end(json_text: str, start: int) -> int:
    """The place after the JSON string that begins at `start`."""
    while True:
        start = before = json_text.find('"', start + 1)
        while json_text[before - 1] == "\\":
            before -= 1
        if (start - before) % 2 == 0:  # else the quote is escaped
            return start + 1


def _is_key(json_text: str, end: int) -> bool:
    while json_text[end : end + 1].isspace():
        end += 1
    return json_text[end : end + 1] == ":"


def _strings(value: Any) -> Iterator[str]:
    """The string values of decoded JSON, in order."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            left += reversed(value.values() if isinstance(value, dict) else value)
