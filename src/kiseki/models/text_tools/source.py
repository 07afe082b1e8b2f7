"""A reply as the parsers read it: what stands where, and whether a tag is a call or only spoken of. No format is known here.

Everything is asked from the beginning to the end and every part is read a bounded number of times, since a reply can have
megabytes and be made to hurt.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kiseki.models.base import ToolSchema
from kiseki.trajectory.types import ToolCall

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})([^\n]*)", re.MULTILINE)
_TICKS = re.compile("`+")
_QUOTE = re.compile('"')
_NEWLINE = re.compile("\n")
_LINE_END = re.compile(r"[ \t\r]*(?:\n|\Z)")
_BLANKS = re.compile(r"\s*")
_QUOTES = "'\"‘’“”「」『』"


class Found(NamedTuple):
    """What a parser read from an opening tag on."""

    calls: tuple[ToolCall, ...]
    end: int
    """Behind the last character that belongs to them."""
    format: str
    """As `ModelCall.tool_calls_as` has it."""
    whole: bool = True
    """Every call could be read. Where it could not, its name is what could be ("" for nothing), its arguments the raw text."""


CODE_INDENT = 4
"""Blanks before a line of code in Markdown (spec.commonmark.org, "Indented code blocks")."""


class Source:
    """The text of a reply, the tools that it may call, and how far its prose has been read."""

    def __init__(self, text: str, tools: tuple[ToolSchema, ...]) -> None:
        self.text = text
        self.tools = {tool.name: tool for tool in tools}
        self._matches: dict[re.Pattern[str], tuple[int, re.Match[str] | None]] = {}
        self._read = 0
        self._fence = ""
        # of the line so far
        self._ticks = 0
        self._quotes = 0
        self._blank = True
        self._indent = 0  # of blanks alone, calls apart

    def next(self, pattern: re.Pattern[str], at: int) -> re.Match[str] | None:
        """The first match from `at` on. Kept, so that asking again and again for what is far away or nowhere costs one search."""
        asked, match = self._matches.get(pattern, (len(self.text) + 1, None))
        if asked > at or (match is not None and match.start() < at):
            match = pattern.search(self.text, at)
            self._matches[pattern] = at, match
        return match

    def next_start(self, pattern: re.Pattern[str], at: int) -> int:
        """Where the first match from `at` on begins; the end of the text where there is none."""
        match = self.next(pattern, at)
        return len(self.text) if match is None else match.start()

    def reach(self, at: int) -> None:
        """Read the prose up to `at`, which must not be before what was read or skipped already."""
        text, start = self.text, self._read
        for match in _FENCE.finditer(text, start, at):
            self._see_fence(match[1], match[2])
        if (newline := text.rfind("\n", start, at)) >= 0:
            self._ticks = self._quotes = 0
            self._blank = True
            self._indent = 0
            start = newline + 1
        self._ticks += len(_TICKS.findall(text, start, at))
        self._quotes += text.count('"', start, at)
        self._blank = self._blank and not text[start:at].strip()
        self._indent += len(text[start:at].expandtabs(CODE_INDENT)) if self._blank else 0
        self._read = at

    def end_of_broken(self, at: int, opening: re.Pattern[str], closing: re.Pattern[str]) -> tuple[int, int]:
        """Where the text of a call that cannot be read ends, and the call with its closing tag; `at` is inside it. It does not
        reach into the next call."""
        limit = self.next_start(opening, at)
        closed = self.next(closing, at)
        return (closed.start(), closed.end()) if closed is not None and closed.start() < limit else (limit, limit)

    def skip(self, end: int) -> None:
        """Go on at `end`: what stands before it is calls, not prose, and another call may follow on the line."""
        self._read = end
        self._ticks = self._quotes = 0
        self._blank = True

    @property
    def starts_line(self) -> bool:
        """Whether nothing but blanks and calls stands on the line, as far as it was read."""
        return self._blank

    def in_code(self, end: int) -> bool:
        """Whether a tag that begins where was read to, and ends at `end`, stands in a code fence or a code span."""
        indented = self._blank and self._indent >= CODE_INDENT
        return bool(self._fence) or indented or (self._ticks % 2 == 1 and self._has_on_line(_TICKS, end))

    def is_quoted(self, end: int) -> bool:
        """Whether what begins where was read to, and ends at `end`, stands in quotation marks."""
        before, after = self.text[max(self._read - 1, 0) : self._read], self.text[end : end + 1]
        if before and after and before in _QUOTES and after in _QUOTES:
            return True
        return self._quotes % 2 == 1 and self._has_on_line(_QUOTE, end)

    def ends_line(self, end: int) -> bool:
        """Whether nothing but blanks stands behind `end` on its line."""
        return _LINE_END.match(self.text, end) is not None

    def _has_on_line(self, pattern: re.Pattern[str], at: int) -> bool:
        match = self.next(pattern, at)
        return match is not None and match.start() < self.next_start(_NEWLINE, at)

    def _see_fence(self, mark: str, rest: str) -> None:
        if self._fence:
            if mark[0] == self._fence[0] and len(mark) >= len(self._fence) and not rest.strip():
                self._fence = ""
        elif mark[0] == "~" or "`" not in rest:
            self._fence = mark


def skip_blanks(text: str, at: int) -> int:
    """The first position from `at` on that holds no blank."""
    match = _BLANKS.match(text, at)
    assert match is not None
    return match.end()
