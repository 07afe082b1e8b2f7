"""Finds a block of lines in a file although whitespace, line endings or typographic signs differ. Pure, no I/O.

A line is a piece of text that ends in "\\n", or the last piece without one; nothing else ends a line (form feeds and U+2028
are characters). A block is looked for at one level of tolerance after the other, and the first level that finds it is the
only one used. From the level where indentation may differ on, the difference has to be consistent: lines that the block
indents alike are indented alike in the file, or it is no match, since indentation is structure in some languages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec

BLANKS = " \t\r\n"

TYPOGRAPHIC = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2009\u202f\u3000", " "),
    }
)
"""Signs that models write as their ASCII look-alikes. One character for one, so that positions stay the same."""


class Match(msgspec.Struct, frozen=True):
    """Where a block was found."""

    start: int
    """Index of its first line."""
    how: str
    """What had to be ignored for it; "" when nothing had."""
    indents: dict[str, str]
    """The file's indentation for each indentation in the block; empty where they are the same."""


def split_lines(text: str) -> list[str]:
    """The lines with their ends; joined they are the text."""
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _bare(line: str) -> str:
    return line.rstrip("\r\n")


def _right(line: str) -> str:
    return line.rstrip(BLANKS)


def _trimmed(line: str) -> str:
    return line.strip(BLANKS)


def _plain(line: str) -> str:
    return line.translate(TYPOGRAPHIC).strip(BLANKS)


def _loose(line: str) -> str:
    return re.sub(r"[ \t]+", " ", _plain(line))


LEVELS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("", _bare),
    ("trailing whitespace", _right),
    ("indentation", _trimmed),
    ("typographic signs", _plain),
    ("the amount of whitespace", _loose),
)


def find_block(lines: Sequence[str], block: Sequence[str], start: int = 0) -> list[Match]:
    """Every place at or after `start` where `block` stands, all of one level of tolerance. They may overlap.

    A block without anything but whitespace is found only as it is.
    """
    if not block or len(lines) - start < len(block):
        return []
    for how, key in LEVELS:
        wanted = [key(line) for line in block]
        if how and not any(wanted):
            return []
        keyed = [key(line) for line in lines]
        found: list[Match] = []
        for at in range(start, len(lines) - len(block) + 1):
            if keyed[at] == wanted[0] and keyed[at : at + len(block)] == wanted:
                indents = _indents(block, lines[at : at + len(block)])
                if indents is not None:
                    found.append(Match(at, how, indents))
        if found:
            return found
    return []


def indent_of(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _indents(block: Sequence[str], lines: Sequence[str]) -> dict[str, str] | None:
    """How the block's indentations map to the file's; None where one of them would map to two."""
    found: dict[str, str] = {}
    for ours, theirs in zip(block, lines, strict=True):
        if ours.strip(BLANKS) and found.setdefault(indent_of(ours), indent_of(theirs)) != indent_of(theirs):
            return None
    return {} if all(ours == theirs for ours, theirs in found.items()) else found


def reindent(line: str, indents: dict[str, str]) -> str:
    """A new line of the block as the file would indent it."""
    if not indents or not line.strip(BLANKS):
        return line
    ours = indent_of(line)
    rest = line[len(ours) :]
    if ours in indents:
        return indents[ours] + rest
    shallower = max((known for known in indents if ours.startswith(known)), key=len, default=None)
    if shallower is not None:
        return indents[shallower] + _deeper(ours[len(shallower) :], indents) + rest
    deeper = min((known for known in indents if known.startswith(ours)), key=len, default=None)
    if deeper is None:
        return line
    theirs = indents[deeper]
    dropped = _deeper(deeper[len(ours) :], indents)
    return (theirs.removesuffix(dropped) if theirs.endswith(dropped) else "") + rest


def _deeper(more: str, indents: dict[str, str]) -> str:
    """Indentation beyond a known one, in the file's unit where two known ones show what that is (4 spaces are a tab)."""
    known = sorted(indents, key=len)
    for low, high in pairwise(known):
        ours, theirs = high.removeprefix(low), indents[high].removeprefix(indents[low])
        if high.startswith(low) and indents[high].startswith(indents[low]) and more == ours * (len(more) // len(ours)):
            return theirs * (len(more) // len(ours))
    return more


def with_ending(line: str, ending: str) -> str:
    """A line that ends in "\\n" or "\\r\\n" with `ending` instead."""
    return _bare(line) + ending if line.endswith("\n") else line


def ending_of(lines: Sequence[str]) -> str:
    """The line ending of the first line that has one; "" when none has."""
    for line in lines:
        if line.endswith("\n"):
            return "\r\n" if line.endswith("\r\n") else "\n"
    return ""
