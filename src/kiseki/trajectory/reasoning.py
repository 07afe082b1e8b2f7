"""Where a model's reasoning is found in its reply, and how it is taken out of the content. Pure functions.

Native reasoning comes in its own fields (`native_reasoning`), under a name per server. Inline reasoning stands in the content
between tags (`split_inline`): `<think>` at the very start, as R1, Qwen and their like write it (`<thought>` from Gemini), also
where the template put the opening tag into the prompt so that only the closing one comes back; and `<REASONING_SCRATCHPAD>`,
which no one writes for another reason, anywhere. A tag that an answer merely talks about (quoted, in code, in mid-text) stays
where it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# In order of preference: the first that says anything is taken, since routers repeat the same text under several names.
NATIVE_FIELDS = ("reasoning", "reasoning_content", "thinking", "reasoning_details")
# Keys that hold the text of one item of a list of reasoning items or content parts.
_TEXT_KEYS = ("text", "summary", "thinking", "reasoning", "content")

MOST_BLOCKS = 100
"""Of reasoning one after the other that are taken out; no model writes more than a few, and each costs a look at what follows."""
_OPENING = re.compile(r"\s*<(think|thinking|thought)>")
_SCRATCHPAD = re.compile(r"<REASONING_SCRATCHPAD>(.*?)</REASONING_SCRATCHPAD>\s*", re.DOTALL)
_SCRATCHPAD_OPEN = "<REASONING_SCRATCHPAD>"
_QUOTES = "`'\"‘’“”「」『』"
_AFTER_A_WORD = " ,.;:!?)"
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)", re.MULTILINE)


def text_of(value: Any) -> str:
    """The text of a field that may be a string, a list of strings or items, or one item; "" for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(text_of(item) for item in value)
    if isinstance(value, dict):
        for key in _TEXT_KEYS:
            if text := text_of(value.get(key)):
                return text
    return ""


def native_reasoning(fields: Mapping[str, Any]) -> str:
    """The reasoning that a message's own fields carry; "" where there is none."""
    for name in NATIVE_FIELDS:
        if text := text_of(fields.get(name)).strip():
            return text
    return ""


def split_content(content: Any) -> tuple[str, str]:
    """(text, reasoning) of a content that is a string, null, or a list of parts, where thinking parts are reasoning."""
    if not isinstance(content, list):
        return text_of(content), ""
    texts: list[str] = []
    reasoning: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else "text"
        if kind == "refusal":
            texts.append(text_of(part.get("refusal")))
        else:
            (reasoning if kind in ("thinking", "reasoning") else texts).append(text_of(part))
    return "".join(texts), "".join(reasoning).strip()


def join_reasoning(*parts: str) -> str:
    """The parts that say anything, each once, a blank line between them."""
    return "\n\n".join(dict.fromkeys(part for part in parts if part))


def split_inline(content: str, *, cut_short: bool, has_native: bool) -> tuple[str, str]:
    """(content without its inline reasoning, that reasoning).

    `cut_short`: the reply ended before it was done (`length`) or in tool calls that the server already took out of the text,
    so that a block may have no end. `has_native`: the server already took reasoning out, so that a closing tag without an
    opening one is text. Content without such tags comes back unchanged.
    """
    if "<" not in content:
        return content, ""
    found: list[str] = []
    while len(found) < MOST_BLOCKS and (opening := _OPENING.match(content)):
        tag = opening[1]
        close = _closing(content, f"</{tag}>", opening.end())
        if close < 0:
            if not cut_short:
                break
            found.append(content[opening.end() :])
            content = ""
        else:
            found.append(content[opening.end() : close])
            content = content[close + len(tag) + 3 :].lstrip()
    if not found and not has_native and "<think>" not in content.partition("</think>")[0]:
        close = _unquoted(content, "</think>", 0)
        if close >= 0:
            found.append(content[:close])
            content = content[close + len("</think>") :].lstrip()
    if _SCRATCHPAD_OPEN in content:
        content = _take_scratchpads(content, found, cut_short)
    return content, join_reasoning(*(part.strip() for part in found))


def _closing(content: str, tag: str, start: int) -> int:
    """Where the block that began at `start` ends; -1 if it doesn't. A tag that the reasoning quotes does not end it, unless
    there is no other."""
    close = _unquoted(content, tag, start)
    return close if close >= 0 else content.find(tag, start)


def _unquoted(content: str, tag: str, start: int) -> int:
    """Where `tag` first stands for itself; -1 if it is nowhere, or only spoken of: in quotation marks, in code, as a word."""
    rest = content[start:]
    code = _Code(rest)
    at = rest.find(tag)
    while at >= 0:
        if not _spoken_of(rest[max(at - 1, 0) : at], rest[at + len(tag) : at + len(tag) + 1]) and not code.open_at(at):
            return start + at
        at = rest.find(tag, at + len(tag))
    return -1


def _spoken_of(before: str, after: str) -> bool:
    """Whether a tag between these two characters is a word in a sentence."""
    if not before or not after:
        return False
    return (before in _QUOTES and after in _QUOTES) or (before == " " and after in _AFTER_A_WORD)


class _Code:
    """Where code stands open in a text, asked from its beginning to its end; every part is read once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._read = 0
        self._fences = 0
        self._ticks = 0  # on the line so far

    def open_at(self, end: int) -> bool:
        """Whether the text up to `end` leaves a code fence open, or an inline code span on its last line. `end` must not be
        before the last one that was asked for."""
        text, read = self._text, self._read
        self._fences += len(_FENCE.findall(text, read, end))
        line = text.rfind("\n", read, end) + 1
        self._ticks = text.count("`", line, end) if line else self._ticks + text.count("`", read, end)
        self._read = end
        return self._fences % 2 == 1 or self._ticks % 2 == 1


def _take_scratchpads(content: str, found: list[str], cut_short: bool) -> str:
    """`content` without its scratchpads, which are added to `found`."""

    code = _Code(content)

    def take(match: re.Match[str]) -> str:
        if code.open_at(match.start()):
            return match[0]
        found.append(match[1])
        return ""

    rest = _SCRATCHPAD.sub(take, content)
    head, opened, tail = rest.partition(_SCRATCHPAD_OPEN)
    if opened and cut_short and not _Code(head).open_at(len(head)):
        found.append(tail)
        rest = head
    return rest
