"""The XML of Qwen3-Coder (and of Qwen 3.5, Step 3.5, Nemotron 3), with or without the outer tag:

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

(the chat template of Qwen/Qwen3-Coder-30B-A3B-Instruct; vLLM's parser `qwen3_coder`). Values are bare text between two line
breaks; nothing in them is escaped, so a value ends where its closing tag is followed by what can follow it, or where another
parameter of the tool begins on a line of its own. Llama 3.1's
`<function=NAME>{JSON}</function>` is read too (the "custom tool call format" of Meta's prompt-format page).
"""

from __future__ import annotations

import re

from kiseki.models.text_tools.json_calls import broken_call, read_arguments
from kiseki.models.text_tools.source import Found, Source, skip_blanks
from kiseki.models.text_tools.values import parameters_of, written_arguments
from kiseki.trajectory.types import ToolCall

NAME = "qwen3_coder"
OUTER = "<tool_call>"
OPENING = "<function="
_HEAD = re.compile(r"<function=[\"']?([^\s<>\"']{1,128})[\"']?\s*>")
_PARAMETER = re.compile(r"\s*<parameter=[\"']?([^<>\"'\n]{1,256}?)[\"']?\s*>")
_VALUE_END = re.compile(r"</parameter>(?=\s*(?:<parameter=|</function>|</?tool_call>|<function=|\Z))")
_LOST_END = re.compile(r"<parameter=|</function>|</tool_call>")
_NEXT_CALL = re.compile(r"</(?:tool_call|function)>\s*(?:<tool_call>\s*)?<function=")
_INNER = re.compile(r"^[ \t]*<parameter=([^<>\n]{1,256})>", re.MULTILINE)
_FUNCTION_END = re.compile(r"\s*</function>")
_OUTER_END = re.compile(r"\s*</tool_call>")
_BROKEN_END = re.compile(r"</function>\s*</tool_call>|</tool_call>|</function>")
_ANY_OPENING = re.compile(r"<tool_call>|<function=")


def read(source: Source, at: int) -> Found | None:
    """The call whose outer or inner tag stands at `at`; further functions in the same outer tag are found by their own tags."""
    text = source.text
    outer = text.startswith(OUTER, at)
    head = _HEAD.match(text, skip_blanks(text, at + len(OUTER)) if outer else at)
    if head is None:
        return None
    name = head[1]
    if not source.starts_line and name not in source.tools:
        return None
    limit = source.next_start(_NEXT_CALL, head.end())
    pairs, end, whole = _read_pairs(source, head.end(), limit, parameters_of(source.tools.get(name)))
    arguments = ""
    if not pairs and (read_json := read_arguments(text, skip_blanks(text, end))):
        arguments, end = read_json
        whole = True
    closing = _FUNCTION_END.match(text, end)
    last = _OUTER_END.match(text, closing.end() if closing else end)
    rest = skip_blanks(text, end)
    unclosed = (pairs or arguments) and (rest == len(text) or _ANY_OPENING.match(text, rest))
    if whole and (closing or last or unclosed):
        end = last.end() if last else closing.end() if closing else end
        call = ToolCall("", name, arguments or written_arguments(pairs, source.tools.get(name)))
        return Found((call,), end, NAME)
    if not outer and name not in source.tools:
        return None
    raw_end, end = source.end_of_broken(head.end(), _ANY_OPENING, _BROKEN_END)
    return Found((broken_call(text[head.start() : raw_end], name),), end, NAME, whole=False)


def _read_pairs(source: Source, at: int, limit: int, names: frozenset[str]) -> tuple[list[tuple[str, str]], int, bool]:
    """(names and texts, where they end, whether each has an end) of the parameters from `at` on."""
    text = source.text
    pairs: list[tuple[str, str]] = []
    missing = set(names)
    while (parameter := _PARAMETER.match(text, at, limit)) is not None:
        start = parameter.end()
        end = source.next_start(_VALUE_END, start)
        if end < limit:
            at = end + len("</parameter>")
        else:
            limit = min(limit, source.next_start(_ANY_OPENING, start))
            end = at = source.next_start(_LOST_END, start)
            if end >= limit:
                return pairs, at, False
        name = parameter[1].strip()
        missing.discard(name)
        for inner in _INNER.finditer(text, start, end) if missing else ():
            if inner[1] in missing:  # the end of this one was forgotten
                end = at = inner.start()
                break
        pairs.append((name, text[start:end].removeprefix("\n").removesuffix("\n")))
    return pairs, at, True
