"""The tags of GLM 4.5 and its successors (4.7 leaves the line breaks out):

    <tool_call>get_weather
    <arg_key>city</arg_key>
    <arg_value>Paris</arg_value>
    </tool_call>

(the chat template of zai-org/GLM-4.5; vLLM's parsers `glm45` and `glm47`). Strings stand bare, everything else as JSON.
"""

from __future__ import annotations

import re

from kiseki.models.text_tools.json_calls import broken_call
from kiseki.models.text_tools.source import Found, Source, skip_blanks
from kiseki.models.text_tools.values import written_arguments
from kiseki.trajectory.types import ToolCall

NAME = "glm45"
OPENING = "<tool_call>"
_HEAD = re.compile(r"<tool_call>\s*([\w.\-/]{1,128})\s*(?=<arg_key>|</tool_call>)")
_KEY = re.compile(r"\s*<arg_key>([^<>]{1,256})</arg_key>\s*<arg_value>")
_VALUE_END = re.compile(r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>|\Z))")
_CLOSING = re.compile(r"\s*</tool_call>")
_TAG_END = re.compile("</tool_call>")
_ANY_OPENING = re.compile("<tool_call>")
_NEXT_CALL = re.compile(r"</tool_call>\s*<tool_call>")


def read(source: Source, at: int) -> Found | None:
    """The call whose tag stands at `at`."""
    text = source.text
    head = _HEAD.match(text, at)
    if head is None:
        return None
    name = head[1]
    if name not in source.tools and (not source.starts_line or text.startswith(" ", at + len(OPENING))):
        return None
    pairs: list[tuple[str, str]] = []
    end = head.end()
    limit = source.next_start(_NEXT_CALL, end)
    while (key := _KEY.match(text, end, limit)) is not None:
        closed = source.next_start(_VALUE_END, key.end())
        if closed >= limit:
            break
        pairs.append((key[1].strip(), text[key.end() : closed]))
        end = closed + len("</arg_value>")
    closing = _CLOSING.match(text, end)
    if closing or (pairs and skip_blanks(text, end) == len(text)):
        call = ToolCall("", name, written_arguments(pairs, source.tools.get(name)))
        return Found((call,), closing.end() if closing else end, NAME)
    raw_end, end = source.end_of_broken(head.end(), _ANY_OPENING, _TAG_END)
    return Found((broken_call(text[head.end() : raw_end], name),), end, NAME, whole=False)
