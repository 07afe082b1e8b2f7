"""`<tool_call>` around a JSON object, as Hermes, Qwen 2.5 and Qwen 3 write it:

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

(https://huggingface.co/datasets/NousResearch/hermes-function-calling-v1, the chat template of Qwen/Qwen2.5-7B-Instruct). More
than one object, or an array of them, may stand in one pair of tags; the closing tag may be missing, or have brackets too many
before it.
"""

from __future__ import annotations

import re

from kiseki.models.text_tools.json_calls import broken_call, read_calls
from kiseki.models.text_tools.source import Found, Source, skip_blanks

NAME = "hermes"
OPENING = "<tool_call>"
_CLOSING = re.compile("</tool_call>")
_REST = re.compile(r"[\s\]},;]*</tool_call>")
_EITHER = re.compile("</?tool_call>")
_WORD = re.compile(r"[\w.\-]{1,128}")


def read(source: Source, at: int) -> Found | None:
    """The calls behind the tag at `at`. A payload that tries to be a call and cannot be read is a broken one."""
    text = source.text
    start = skip_blanks(text, at + len(OPENING))
    calls, end, whole = read_calls(source, start, _EITHER)
    if calls:
        rest = _REST.match(text, end)
        return Found(tuple(calls), rest.end() if rest else end, NAME, whole)
    limit = source.next_start(_EITHER, start)
    closing = _CLOSING.match(text, limit)
    word = _WORD.match(text, start)
    name = word[0] if word and word[0] in source.tools else ""
    own_line = source.starts_line and "\n" in text[at:start]
    if closing is None or start == limit or not (own_line or name):
        return None
    return Found((broken_call(text[start:limit], name),), closing.end(), NAME, whole=False)
