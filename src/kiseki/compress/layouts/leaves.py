"""Strings inside JSON text, changed one by one while every other byte stays: the text remains valid JSON."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from kiseki.compress.turns import Edit

_string = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"(\s*:)?', re.DOTALL)
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
    if not changed:
        return json_text

    def change(match: re.Match[str]) -> str:
        new = None if match[1] else changed.get(msgspec.json.decode(match[0], type=str))
        return match[0] if new is None else _encode(new).decode()

    return _string.sub(change, json_text)


def _strings(value: Any) -> Iterator[str]:
    """The string values of decoded JSON, in order."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            left += reversed(value.values() if isinstance(value, dict) else value)
