"""Replaces a passage of a text that a model quoted from memory. Pure, no I/O.

First the passage is taken literally. Where it is not found so, what models get wrong is tolerated step by step: line endings,
typographic signs, trailing whitespace, indentation (the replacement is indented like the file), the amount of whitespace,
then the same once more with escape sequences (a backslash and an n instead of a line break) or `read_file`'s line numbers
taken out. There is no matching by similarity: a wrong edit costs more than an error that shows the closest lines.

Whatever was tolerated, nothing outside the passage changes, and lines of the passage that are the same in old and new keep
the file's own bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher

import msgspec

from kiseki.errors import ToolError
from kiseki.tools.matching import TYPOGRAPHIC, ending_of, find_block, reindent, split_lines, with_ending

MAX_LISTED = 10
"""Line numbers of ambiguous matches that are named."""
MAX_COMPARED = 20_000
"""Lines looked at for the closest ones: a fraction of a second."""
MAX_SHOWN = 12
"""Lines shown as the closest ones."""
MIN_LIKENESS = 0.5
"""Below this ratio, "the closest line" has nothing to do with what was meant."""
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", '\\"': '"', "\\'": "'", "\\\\": "\\"}


class Replaced(msgspec.Struct, frozen=True):
    text: str
    count: int
    how: str
    """What had to be ignored to find the passage; "" when it was there literally."""


class _Span(msgspec.Struct, frozen=True):
    start: int
    end: int
    indents: dict[str, str] = {}


def replace_text(text: str, old: str, new: str, replace_all: bool = False) -> Replaced:
    """`text` with `old` replaced by `new`. Raises `ToolError`: nothing to do, not found, found more than once."""
    if not old:
        raise ToolError("old_string is empty: quote the text to be replaced (write_file creates a file or replaces all of it)")
    if old == new:
        raise ToolError("old_string and new_string are the same: nothing to change")
    for ignoring, passage, replacement in _variants(old, new):
        how, spans = _find(text, passage)
        if not spans:
            continue
        if len(spans) > 1 and not replace_all:
            raise ToolError(_ambiguous(text, spans, how))
        spans = _apart(spans)
        result = _splice(text, spans, passage, replacement)
        if result == text:
            raise ToolError("the replacement leaves the file as it is: old_string and new_string differ only in what was ignored")
        return Replaced(result, len(spans), " and ".join(filter(None, (ignoring, how))))
    raise ToolError(_not_found(text, old, new))


def _variants(old: str, new: str) -> Iterator[tuple[str, str, str]]:
    yield "", old, new
    plain = _unescaped(old)
    if plain != old:
        yield "escape sequences", plain, _unescaped(new)
    without = _without_numbers(old)
    if without != old:
        yield "line numbers", without, _without_numbers(new)


def _unescaped(text: str) -> str:
    return re.sub(r"\\[ntr\"'\\]", lambda found: _ESCAPES[found[0]], text)


def _without_numbers(text: str) -> str:
    """Without the `12|` that `read_file` puts ahead of each line, where every line has one and they count up."""
    lines = text.split("\n")
    found = [re.match(r"\s*(\d+)\|", line) for line in lines]
    if not found[-1] and not lines[-1]:  # the passage ends in a line break
        found.pop()
    numbers = [int(each[1]) for each in found if each]
    if not numbers or len(numbers) < len(found) or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        return text
    return "\n".join([line[each.end() :] for line, each in zip(lines, found, strict=False) if each] + lines[len(found) :])


def _find(text: str, passage: str) -> tuple[str, list[_Span]]:
    """Where the passage stands, overlapping places included, and what had to be ignored."""
    if passage in text:
        return "", _every(re.escape(passage), text)
    if not passage.strip():
        return "", []
    flexible = r"\r?\n".join(re.escape(part) for part in passage.replace("\r\n", "\n").split("\n"))
    for how, pattern, where in (
        ("line endings", flexible, text),
        (
            "typographic signs",
            r"\r?\n".join(re.escape(part) for part in passage.translate(TYPOGRAPHIC).replace("\r\n", "\n").split("\n")),
            text.translate(TYPOGRAPHIC),
        ),
    ):
        spans = _every(pattern, where)
        if spans:
            return how, spans
    return _find_lines(text, passage)


def _every(pattern: str, text: str) -> list[_Span]:
    """Every match: one that begins within another makes a passage ambiguous as much as one further on."""
    regex = re.compile(pattern)
    spans: list[_Span] = []
    found = regex.search(text)
    while found:
        spans.append(_Span(*found.span()))
        found = regex.search(text, found.start() + 1)
    return spans


def _apart(spans: list[_Span]) -> list[_Span]:
    """Those that do not begin within the one before."""
    result: list[_Span] = []
    for span in spans:
        if not result or span.start >= result[-1].end:
            result.append(span)
    return result


def _find_lines(text: str, passage: str) -> tuple[str, list[_Span]]:
    lines, block = split_lines(text), split_lines(passage)
    found = find_block(lines, block)
    if not found:
        return "", []
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    spans = []
    for match in found:
        end = starts[match.start + len(block)]
        if not passage.endswith("\n"):  # then the line break after the passage is not part of it
            end -= len(ending_of([lines[match.start + len(block) - 1]]))
        spans.append(_Span(starts[match.start], end, match.indents))
    return found[0].how, spans


def _splice(text: str, spans: list[_Span], passage: str, replacement: str) -> str:
    parts, at = [], 0
    uniform = "\r\n" if 0 < text.count("\n") == text.count("\r\n") else ""
    for span in spans:
        parts += [text[at : span.start], _merged(text[span.start : span.end], passage, replacement, span.indents, uniform)]
        at = span.end
    return "".join(parts) + text[at:]


def _merged(there: str, old: str, new: str, indents: dict[str, str], uniform: str) -> str:
    """What `there` becomes: lines that `old` and `new` share stay as they are there, new lines take its form."""
    theirs, ours, wanted = split_lines(there), split_lines(old), split_lines(new)
    ending = ending_of(theirs) or uniform
    if there == old and (not ending or ending == ending_of(wanted) or "\r" in new):
        return new
    # What both begin and end with first: among equal lines a diff may pair the wrong ones, and with them their bytes there.
    head = _shared(ours, wanted)
    tail = _shared(ours[head:][::-1], wanted[head:][::-1])
    result = theirs[:head]
    for tag, i, j, m, n in SequenceMatcher(
        None, ours[head : len(ours) - tail], wanted[head : len(wanted) - tail], autojunk=False
    ).get_opcodes():
        if tag == "equal":
            result += theirs[head + i : head + j]
        else:
            fresh = (reindent(line, indents) for line in wanted[head + m : head + n])
            result += [with_ending(line, ending) if ending else line for line in fresh]
    return "".join(result + theirs[len(ours) - tail :])


def _shared(one: list[str], other: list[str]) -> int:
    """How many lines both begin with."""
    return next(
        (at for at, (line, there) in enumerate(zip(one, other, strict=False)) if line != there), min(len(one), len(other))
    )


def _line_number(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _ambiguous(text: str, spans: list[_Span], how: str) -> str:
    lines = [str(_line_number(text, span.start)) for span in spans[:MAX_LISTED]]
    more = ", …" if len(spans) > MAX_LISTED else ""
    found = f"old_string is found {len(spans)} times" + (f" when ignoring {how}" if how else "")
    return f"{found} (lines {', '.join(lines)}{more}): add lines around it until it is unique, or set replace_all to true"


def _not_found(text: str, old: str, new: str) -> str:
    message = "old_string is not in the file"
    if new.strip() and new in text:
        message += f"; new_string is there already, at line {_line_number(text, text.index(new))}"
    shown = closest_lines(text.split("\n"), old.split("\n"))
    return f"{message}. {shown}" if shown else f"{message}, nor anything like it: read the file again"


def closest_lines(lines: list[str], block: list[str]) -> str:
    """The passage most like `block`, numbered, or "" when nothing is like it."""
    wanted = max(block, key=lambda line: (len(_words(line)), len(line.strip())))
    words = _words(wanted)
    if not wanted.strip() or not words:
        return ""
    scored = [(len(words & _words(line)), -number) for number, line in enumerate(lines[:MAX_COMPARED]) if line.strip()]
    best, best_ratio = -1, MIN_LIKENESS
    for _, number in sorted(scored, reverse=True)[:20]:
        ratio = SequenceMatcher(None, wanted.strip()[:500], lines[-number].strip()[:500]).ratio()
        if ratio > best_ratio:
            best, best_ratio = -number, ratio
    if best < 0:
        return ""
    first = max(best - block.index(wanted), 0)
    chosen = list(enumerate(lines[first : first + min(max(len(block), 1), MAX_SHOWN)], first + 1))
    return "The closest lines are:\n" + "\n".join(f"{number}|{line.rstrip()[:200]}" for number, line in chosen)


def _words(line: str) -> set[str]:
    return set(re.findall(r"\w+|[^\w\s]", line))
