"""Tool calls in the text of a reply, in the formats in which open models write them; one file for each family of formats.

A tag is a call only where it stands for itself: not in a code fence or code span, not in quotation marks, and not in the middle
of a sentence about it, which is assumed where the call is of no known tool or cannot be read. At the beginning of a line, what
cannot be read is a call that went wrong: it keeps the name that could be read and its raw text as arguments, and the other calls
stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from kiseki.models.base import ToolSchema
from kiseki.models.text_tools import deepseek, glm, hermes, kimi, llama, mistral, qwen_coder
from kiseki.models.text_tools.source import Found, Source, skip_blanks
from kiseki.trajectory.text import clean_text
from kiseki.trajectory.types import ToolCall


class Family(NamedTuple):
    """How the calls of one family of formats begin, and what reads them."""

    marker: str
    """Stands in every text that has such a call."""
    opening: str
    """Pattern of what a call begins with."""
    read: Callable[[Source, int], Found | None]


FAMILIES = (
    Family(qwen_coder.OPENING, "<tool_call>|<function=", qwen_coder.read),
    Family(glm.OPENING, "<tool_call>", glm.read),
    Family(hermes.OPENING, "<tool_call>", hermes.read),
    Family(mistral.OPENING, r"\[TOOL_CALLS\]", mistral.read),
    Family(deepseek.OPENING, "<[|｜]tool▁calls?▁begin[|｜]>", deepseek.read),
    Family(kimi.OPENING, r"<\|tool_calls_section_begin\|>|<\|tool_call_begin\|>", kimi.read),
    Family(llama.OPENING, r"<\|python_tag\|>", llama.read),
)
"""The first that can read what stands at an opening is taken; Hermes is behind those that share its tag, since it also takes what
nobody can read."""
MOST_OPENINGS = 10_000
"""Looked at in one reply; one with more was not written to call tools, and would hold the event loop up."""
_MARKERS = tuple(dict.fromkeys(family.marker for family in FAMILIES))


def may_hold_calls(text: str) -> bool:
    """Whether it is worth looking closer: a search for a few words."""
    return text.startswith("{", skip_blanks(text, 0)) or any(marker in text for marker in _MARKERS)


def parse(text: str, tools: tuple[ToolSchema, ...]) -> tuple[str, tuple[ToolCall, ...], str]:
    """(what else the text says, its calls, the name of their format) of a reply whose reasoning is already taken out.

    Without calls the text comes back as it is, and no name. Ids are "" where the format has none. Time is linear in the text.
    """
    if not may_hold_calls(text):
        return text, (), ""
    source = Source(clean_text(text), tools)
    if (bare := llama.read_bare(source)) is not None:
        return "", bare.calls, bare.format
    families = [family for family in FAMILIES if family.marker in source.text]
    if not families:
        return text, (), ""
    pieces: list[str] = []
    calls: list[ToolCall] = []
    name = ""
    done = 0
    for start, found in _find(source, families):
        pieces.append(source.text[done:start])
        calls += found.calls
        name = name or found.format
        done = found.end
    if not calls:
        return text, (), ""
    pieces.append(source.text[done:])
    return "\n".join(stripped for piece in pieces if (stripped := piece.strip())), tuple(calls), name


def _find(source: Source, families: list[Family]) -> list[tuple[int, Found]]:
    """Where calls begin, and what was read there."""
    opening = re.compile("|".join(f"(?:{family.opening})" for family in families))
    all_found: list[tuple[int, Found]] = []
    at = looked = 0
    while looked < MOST_OPENINGS and (tag := opening.search(source.text, at)) is not None:
        at = tag.end()
        looked += 1
        source.reach(tag.start())
        if source.in_code(tag.end()) or (found := _read(source, tag, families)) is None:
            continue
        at = found.end
        if _is_meant(source, found):
            all_found.append((tag.start(), found))
            source.skip(found.end)
    return all_found


def _read(source: Source, tag: re.Match[str], families: list[Family]) -> Found | None:
    for family in families:
        if re.match(family.opening, tag[0]) and (found := family.read(source, tag.start())) is not None:
            return found
    return None


def _is_meant(source: Source, found: Found) -> bool:
    """Whether what was read where the prose was read to is a call, and not only spoken of."""
    if source.is_quoted(found.end):
        return False
    if source.starts_line:
        return True
    known, last = any(call.name in source.tools for call in found.calls), source.ends_line(found.end)
    return known or last if found.whole else known and last
