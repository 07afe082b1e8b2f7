"""The tokens of DeepSeek V3 (and R1), and the shorter form of V3.1:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather
    ```json
    {"city": "Paris"}
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>

(the chat templates of deepseek-ai/DeepSeek-V3-0324 and DeepSeek-V3.1; vLLM's parsers `deepseek_v3` and `deepseek_v31`). Some
servers write an ASCII bar for the wide one.
"""

from __future__ import annotations

import re

from kiseki.models.text_tools.json_calls import broken_call, read_arguments
from kiseki.models.text_tools.source import Found, Source, skip_blanks
from kiseki.trajectory.types import ToolCall

V3 = "deepseek_v3"
V31 = "deepseek_v31"
OPENING = "tool▁call"
_SECTION = re.compile("<[|｜]tool▁calls▁begin[|｜]>")
_SECTION_END = re.compile(r"\s*<[|｜]tool▁calls▁end[|｜]>")
_CALL = re.compile(r"<[|｜]tool▁call▁begin[|｜]>\s*([^\s<>]{1,128})\s*<[|｜]tool▁sep[|｜]>\s*")
_V3_NAME = re.compile(r"([^\s<>{}`]{1,128})\s*(?:```(?:json)?\s*)?")
_CALL_END = re.compile(r"\s*(?:```)?\s*<[|｜]tool▁call▁end[|｜]>")
_FENCE_END = re.compile(r"\s*```")
_STOP = re.compile("<[|｜]tool▁call(?:s▁end|s▁begin|▁begin|▁end)[|｜]>")


def read(source: Source, at: int) -> Found | None:
    """The calls of the section, or the one call, that begins at `at`."""
    text = source.text
    section = _SECTION.match(text, at)
    end = section.end() if section else at
    calls: list[ToolCall] = []
    kind, whole = V31, True
    while (call := _CALL.match(text, skip_blanks(text, end))) is not None:
        name, start = call[1], call.end()
        if name == "function" and (named := _V3_NAME.match(text, start)):
            kind, name, start = V3, named[1], named.end()
        if (read_json := read_arguments(text, start)) is not None:
            arguments, end = read_json
            calls.append(ToolCall("", name, arguments))
            closing = _CALL_END.match(text, end) or (_FENCE_END.match(text, end) if kind == V3 else None)
            end = closing.end() if closing else end
        else:
            end = source.next_start(_STOP, start)
            calls.append(broken_call(text[start:end], name))
            whole = False
            closing = _CALL_END.match(text, end)
            end = closing.end() if closing else end
    if not calls:
        return None
    closing = _SECTION_END.match(text, end)
    return Found(tuple(calls), closing.end() if closing else end, kind, whole)
