"""Mistral's `[TOOL_CALLS]`, before an array or before each call:

    [TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "a1b2c3d4e"}]
    [TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Paris"}
    [TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}

The first up to tokenizer v7, the second in v11, the third from v13 on (https://github.com/mistralai/mistral-common,
`tokens/tokenizers/instruct.py`); servers that do not show `[ARGS]` leave the name right before the object.
"""

from __future__ import annotations

import re

from kiseki.models.text_tools.json_calls import broken_call, read_arguments, read_calls
from kiseki.models.text_tools.source import Found, Source, skip_blanks
from kiseki.trajectory.types import ToolCall

NAME = "mistral"
OPENING = "[TOOL_CALLS]"
_HEAD = re.compile(r"([^\s\[\]{}<>\"'`]{1,128})\s*(?:\[CALL_ID\]\s*([\w\-]{1,128})\s*)?(?:\[ARGS\]\s*|(?=\{))")
_NEXT = re.compile(r"\[TOOL_CALLS\]")


def read(source: Source, at: int) -> Found | None:
    """The calls behind the token at `at`, up to the next such token."""
    text = source.text
    start = skip_blanks(text, at + len(OPENING))
    calls, end, whole = read_calls(source, start, _NEXT)
    if calls:
        return Found(tuple(calls), end, NAME, whole)
    head = _HEAD.match(text, start)
    if head is None:
        return None
    read_json = read_arguments(text, head.end())
    if read_json is None:
        end = source.next_start(_NEXT, head.end())
        return Found((broken_call(text[head.end() : end], head[1]),), end, NAME, whole=False)
    arguments, end = read_json
    return Found((ToolCall(head[2] or "", head[1], arguments),), end, NAME)
