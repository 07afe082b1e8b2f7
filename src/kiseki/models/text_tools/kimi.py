"""The tokens of Kimi K2:

    <|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Paris"}
    <|tool_call_end|><|tool_calls_section_end|>

(https://huggingface.co/moonshotai/Kimi-K2-Instruct, `docs/tool_call_guidance.md`). `functions.NAME:INDEX` is the call's id, which
the model expects back with the result.
"""

from __future__ import annotations

import re

from kiseki.models.text_tools.json_calls import broken_call, read_arguments
from kiseki.models.text_tools.source import Found, Source, skip_blanks
from kiseki.trajectory.types import ToolCall

NAME = "kimi_k2"
OPENING = "<|tool_call"
_SECTION = re.compile(r"<\|tool_calls_section_begin\|>")
_SECTION_END = re.compile(r"\s*<\|tool_calls_section_end\|>")
_CALL = re.compile(
    r"<\|tool_call_begin\|>\s*((?:functions\.)?([^\s<>|]{1,128}?)(?::\d{1,9})?)\s*<\|tool_call_argument_begin\|>\s*"
)
_CALL_END = re.compile(r"\s*<\|tool_call_end\|>")
_STOP = re.compile(r"<\|tool_call(?:s_section_end|s_section_begin|_begin|_end)\|>")


def read(source: Source, at: int) -> Found | None:
    """The calls of the section, or the one call, that begins at `at`."""
    text = source.text
    section = _SECTION.match(text, at)
    end = section.end() if section else at
    calls: list[ToolCall] = []
    whole = True
    while (call := _CALL.match(text, skip_blanks(text, end))) is not None:
        if (read_json := read_arguments(text, call.end())) is not None:
            arguments, end = read_json
            calls.append(ToolCall(call[1], call[2], arguments))
        else:
            end = source.next_start(_STOP, call.end())
            broken = broken_call(text[call.end() : end], call[2])
            calls.append(ToolCall(call[1], broken.name, broken.arguments))
            whole = False
        closing = _CALL_END.match(text, end)
        end = closing.end() if closing else end
    if not calls:
        return None
    closing = _SECTION_END.match(text, end)
    return Found(tuple(calls), closing.end() if closing else end, NAME, whole)
