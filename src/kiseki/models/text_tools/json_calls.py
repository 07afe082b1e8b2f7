"""Calls that are JSON, read by position: where an object ends is for the JSON decoder to say, so a tag or a bracket in one of its
strings ends nothing.

Line breaks inside strings are taken as they are, which strict JSON forbids and models write; such arguments are written anew.
Otherwise arguments stay the text that the model wrote.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from kiseki.models.text_tools.source import Source, skip_blanks
from kiseki.trajectory.sharegpt import unescape_json
from kiseki.trajectory.text import clean_text
from kiseki.trajectory.types import ToolCall

_decode_at = json.JSONDecoder(strict=False).raw_decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NAME = re.compile(r"""["']name["']\s*:\s*["']([^"'\\\n]{1,256})["']""")
FIRST_PART = 4_096
"""Characters; most calls are shorter."""
LONGEST_TOKEN = 32
"""Characters before the end of a part where an error can come of its being cut: a word, an escape."""
_NEXT_CALL = re.compile(r"""[,;\n][ \t]*(?=\{[ \t\n]*"name"[ \t]*:[ \t]*"([^"\\\n]{1,256})")""")
MOST_BROKEN = 16
"""Calls of one group that are given up one by one; after that what is left is one broken call."""
NAME_LOOKED_FOR = 2_000
"""Characters of a broken call in which its name is looked for."""


def read_value(text: str, at: int) -> tuple[Any, int] | None:
    """(value, end) of the JSON value at `at`; None where there is none, or one too deep or with a number too long.

    It is read from a part that grows while it is too short: an error of the decoder costs as much as there is text before it.
    """
    size = FIRST_PART
    while True:
        part = text[at : at + size]
        try:
            value, end = _decode_at(part)
        except json.JSONDecodeError as error:
            is_short = error.msg.startswith("Unterminated string") or error.pos > len(part) - LONGEST_TOKEN
            if not is_short or at + size >= len(text):
                return None
            size *= 4
        except (ValueError, RecursionError):
            return None
        else:
            return value, at + end


def read_arguments(text: str, at: int) -> tuple[str, int] | None:
    """(JSON text, end) of the object at `at`; None where there is none."""
    if text[at : at + 1] != "{" or (read := read_value(text, at)) is None:
        return None
    value, end = read
    raw = text[at:end]
    return unescape_json(raw) if _is_strict(raw) else _written(value), end


def read_call(text: str, at: int) -> tuple[ToolCall, int] | None:
    """The call that is an object at `at`, `{"name", "arguments"}` or with `parameters` in place of these, and where it ends; an
    object that is no call has no name. None where there is no object."""
    if text[at : at + 1] != "{" or (read := read_value(text, at)) is None:
        return None
    fields, end = read
    raw = text[at:end]
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        return broken_call(raw), end
    key = "arguments" if "arguments" in fields else "parameters"
    value = fields.get(key)
    call_id = fields.get("id")
    return ToolCall(clean_text(call_id) if isinstance(call_id, str) else "", clean_text(name), _arguments(raw, key, value)), end


def read_calls(source: Source, at: int, stop: re.Pattern[str]) -> tuple[list[ToolCall], int, bool]:
    """(calls, where they end, whether all could be read) of the objects from `at` on, one after the other or in an array.

    One that cannot be read is a broken call of everything up to the next of a known tool, or up to `stop`. Where there is no
    object at all there are no calls.
    """
    text = source.text
    calls: list[ToolCall] = []
    whole = True
    broken = 0
    end = at
    in_array = text[at : at + 1] == "["
    if in_array:
        at = skip_blanks(text, at + 1)
    while text[at : at + 1] == "{":
        if (read := read_call(text, at)) is not None:
            call, end = read
            calls.append(call)
            whole = whole and bool(call.name)
            at = _after_separator(text, end)
            continue
        following = _next_known(source, at, source.next_start(stop, at)) if broken < MOST_BROKEN else None
        if following is None:
            break
        calls.append(broken_call(text[at : following.start()]))
        whole = False
        broken += 1
        end = at = following.end()
    if in_array and calls and text[at : at + 1] == "]":
        end = at + 1
    elif text[at : at + 1] == "{" or (in_array and calls and at < source.next_start(stop, at)):
        end = source.next_start(stop, at)
        calls.append(broken_call(text[at:end]))
        whole = False
    elif in_array and calls:  # its end is missing
        end = at
    return calls, end, whole


def _next_known(source: Source, at: int, end: int) -> re.Match[str] | None:
    """What stands before the next object that begins as a call of a known tool does."""
    found = _NEXT_CALL.finditer(source.text, at, end)
    return next((each for each in found if each[1] in source.tools), None)


def broken_call(raw: str, name: str = "") -> ToolCall:
    """What is made of a call that cannot be read: its text is the arguments, so that the model is told what was wrong."""
    raw = raw.strip()
    if not name and (match := _NAME.search(raw, 0, NAME_LOOKED_FOR)):
        name = match[1]
    return ToolCall("", clean_text(name), raw)


def _arguments(raw: str, key: str, value: Any) -> str:
    if value is None:
        return "{}"
    if isinstance(value, str):  # encoded twice; or no JSON at all, which is written this way
        return clean_text(value)
    try:
        return unescape_json(bytes(_decode_fields(raw)[key]).decode())
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError, KeyError):
        return _written(value)


def _is_strict(raw: str) -> bool:
    try:
        _decode_fields(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False
    return True


def _written(value: Any) -> str:
    return clean_text(json.dumps(value, ensure_ascii=False))


def _after_separator(text: str, at: int) -> int:
    """Behind the blanks at `at`, and behind a comma or semicolon with what is blank after it."""
    at = skip_blanks(text, at)
    return skip_blanks(text, at + 1) if text[at : at + 1] in (",", ";") else at
