"""Llama 3's JSON, behind its token or as the whole message, several calls with semicolons between them:

    <|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": "add", "parameters": {"a": 1, "b": 2}}

(https://github.com/meta-llama/llama-models, `models/llama3_1/prompt_format.md`, "JSON based tool calling"; vLLM's parser
`llama3_json`). Without the token nothing marks a call, so only a message that is nothing else counts, of tools that exist.
"""

from __future__ import annotations

import re

from kiseki.models.text_tools.json_calls import read_calls
from kiseki.models.text_tools.source import Found, Source, skip_blanks
from kiseki.trajectory.sharegpt import is_json_object

NAME = "llama3_json"
OPENING = "<|python_tag|>"
_END = re.compile(r"(?:\s*<\|(?:eom_id|eot_id)\|>)*\s*")
_NEXT = re.compile(r"<\|(?:python_tag|eom_id|eot_id)\|>")
_KEYS = ('"parameters"', '"arguments"')


def read(source: Source, at: int) -> Found | None:
    """The calls behind the token at `at`; code that is to be run by an interpreter also stands there, and is none."""
    text = source.text
    start = skip_blanks(text, at + len(OPENING))
    calls, end, whole = read_calls(source, start, _NEXT)
    if not calls:
        return None
    rest = _END.match(text, end)
    return Found(tuple(calls), rest.end() if rest else end, NAME, whole)


def read_bare(source: Source) -> Found | None:
    """The calls that the whole text is, one of them readable at least; None where it is anything else, or one is of an unknown
    tool."""
    text = source.text
    start = skip_blanks(text, 0)
    if text[start : start + 1] != "{" or not any(key in text for key in _KEYS):
        return None
    calls, end, whole = read_calls(source, start, _NEXT)
    rest = _END.match(text, end)
    if rest is None or rest.end() < len(text) or not all(call.name in source.tools for call in calls):
        return None
    if not whole and not any(is_json_object(call.arguments) for call in calls):
        return None
    return Found(tuple(calls), len(text), NAME)
