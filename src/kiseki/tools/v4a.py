"""Reads and applies patches in the V4A form (`*** Begin Patch` … `*** End Patch`). Pure: gets and gives texts, no I/O.

Form (OpenAI's apply_patch): file sections `*** Add File:`, `*** Update File:` (optionally `*** Move to:`), `*** Delete File:`.
An update has hunks: `@@` lines that name a line above (a class, a function) to narrow the place, then lines that begin with a
space (stays), `-` (goes) or `+` (comes); `*** End of File` after a hunk says that it stands at the end of the file. Tolerated,
since models write them: an empty line for an empty context line, `@@ -1,2 +1,3 @@` headers, code fences around the patch.

A hunk is looked for after the hunk before it, with `matching`'s tolerance. One without an `@@` name that fits in more than
one place is refused instead of guessed. Lines that stay keep the file's own bytes.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Literal

import msgspec

from kiseki.errors import ToolError
from kiseki.tools.matching import Match, ending_of, find_block, reindent, split_lines, with_ending
from kiseki.tools.replacing import closest_lines


class Hunk(msgspec.Struct):
    line: int
    """Of the patch where it begins, for messages."""
    anchors: list[str] = []
    lines: list[tuple[str, str]] = []
    """Sign and text of each line; while parsing, the sign of an empty line is empty."""
    at_end: bool = False


class FileChange(msgspec.Struct):
    action: Literal["add", "update", "delete"]
    path: str
    move_to: str = ""
    content: str = ""
    """Of an added file."""
    hunks: list[Hunk] = []


class Edit(msgspec.Struct, frozen=True):
    """What becomes of one path."""

    path: str
    before: str | None
    """None: there was no such file."""
    after: str | None
    """None: the file goes."""
    moved_from: str = ""
    """The path that this file has now; its mode is to be kept."""


_SECTION = re.compile(r"\*\*\* (Add|Update|Delete) File:\s*(.*)")
_RANGES = re.compile(r"@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@ ?")


def parse_patch(text: str) -> list[FileChange]:
    """The file sections. Raises `ToolError` naming the patch's line."""
    lines = text.replace("\r\n", "\n").split("\n")
    bounds = [number for number, line in enumerate(lines) if line.strip() in ("*** Begin Patch", "*** End Patch")]
    if not bounds or lines[bounds[0]].strip() != "*** Begin Patch":
        raise ToolError('the patch has no line "*** Begin Patch"')
    if lines[bounds[-1]].strip() != "*** End Patch":
        raise ToolError('the patch has no line "*** End Patch", so it may be incomplete: nothing was changed')
    changes: list[FileChange] = []
    for number in range(bounds[0] + 1, bounds[-1]):
        line = lines[number]
        if section := _SECTION.fullmatch(line.rstrip()):
            action, path = section[1].lower(), section[2].strip()
            if not path:
                raise ToolError(f"line {number + 1} of the patch names no file")
            changes.append(FileChange(action, posixpath.normpath(path)))  # type: ignore[arg-type]
        elif not changes:
            if line.strip():
                raise ToolError(f"line {number + 1} of the patch comes before any file: {line[:100]!r}")
        else:
            _take_line(changes[-1], line, number + 1)
    if not changes:
        raise ToolError("the patch changes no file")
    for change in changes:
        _check(change)
    return changes


def _take_line(change: FileChange, line: str, number: int) -> None:
    if change.action == "add":
        if line.startswith("+"):
            change.content += line[1:] + "\n"
        elif line.strip():
            raise ToolError(f'line {number} of the patch: every line of the new file {change.path} begins with "+"')
    elif change.action == "delete":
        if line.strip():
            raise ToolError(f"line {number} of the patch: nothing follows Delete File, but there is {line[:100]!r}")
    elif line.startswith("*** Move to:"):
        change.move_to = posixpath.normpath(line.partition(":")[2].strip())
    elif line.strip() == "*** End of File":
        if change.hunks:
            change.hunks[-1].at_end = True
    elif line.startswith("@@"):
        ranges = _RANGES.match(line)
        anchor = line[ranges.end() :] if ranges else line[3:] if line.startswith("@@ ") else line[2:]
        if not change.hunks or change.hunks[-1].lines:
            change.hunks.append(Hunk(number))
        if anchor.strip():
            change.hunks[-1].anchors.append(anchor)
    elif line[:1] in (" ", "-", "+", ""):
        if not change.hunks or change.hunks[-1].at_end:
            if not line.strip():
                return  # an empty line between sections
            change.hunks.append(Hunk(number))
        change.hunks[-1].lines.append((line[:1], line[1:]))
    else:
        raise ToolError(f'line {number} of the patch begins with none of " ", "-", "+", "@@", "***": {line[:100]!r}')


def _check(change: FileChange) -> None:
    for hunk in change.hunks:
        while hunk.lines and not hunk.lines[-1][0]:
            hunk.lines.pop()  # an empty line ahead of the next hunk or section is layout, not context
        hunk.lines = [(sign or " ", line) for sign, line in hunk.lines]
        if all(sign == " " for sign, _ in hunk.lines):
            raise ToolError(f'the hunk at line {hunk.line} of the patch ({change.path}) has no line with "+" or "-"')
    if change.action == "update" and not change.hunks and not change.move_to:
        raise ToolError(f"the patch says Update File: {change.path}, but not what to change in it")


def apply_patch(changes: list[FileChange], files: Mapping[str, str | None]) -> list[Edit]:
    """What becomes of each path. `files` has the text of every path that the patch names, None where there is no file.

    Raises `ToolError` when any part does not fit; so either all of it can be done or nothing is.
    """
    now: dict[str, str | None] = dict(files)
    moved: dict[str, str] = {}
    for change in changes:
        path, text = change.path, now[change.path]
        if change.action == "add":
            if text is not None:
                raise ToolError(f"Add File: {path} exists already; use Update File, or delete it first")
            now[path] = change.content
            continue
        if text is None:
            raise ToolError(f"{change.action.capitalize()} File: there is no file {path}")
        if change.action == "delete":
            now[path] = None
            continue
        text = apply_hunks(text, change.hunks, path)
        if change.move_to and change.move_to != path:
            if now[change.move_to] is not None:
                raise ToolError(f"Move to: {change.move_to} exists already")
            now[path] = None
            moved[change.move_to] = moved.pop(path, path)
            path = change.move_to
        now[path] = text
    edits = [Edit(path, files[path], now[path], moved.get(path, "")) for path in now if files[path] != now[path]]
    if not edits:
        raise ToolError("the patch leaves every file as it is")
    return edits


def named_paths(changes: list[FileChange]) -> list[str]:
    """Every path that the patch reads or writes, each once."""
    return list(dict.fromkeys(path for change in changes for path in (change.path, change.move_to) if path))


def text_paths(changes: list[FileChange]) -> set[str]:
    """Those of the paths whose present content the patch works on; of the others it matters only whether there is a file."""
    return {change.path for change in changes if change.action == "update"}


def apply_hunks(text: str, hunks: list[Hunk], path: str) -> str:
    """`text` with all hunks done. Raises `ToolError` for the first that does not fit."""
    lines = split_lines(text)
    ending = ending_of(lines) or "\n"
    result: list[str] = []
    at = 0
    for hunk in hunks:
        block = [line for sign, line in hunk.lines if sign != "+"]
        match = _place(lines, hunk, block, at, path)
        result += lines[at : match.start]
        at = match.start
        for sign, line in hunk.lines:
            if sign == "+":
                result.append(with_ending(reindent(line, match.indents) + "\n", ending))
            else:
                if sign == " ":
                    result.append(lines[at])
                at += 1
    result += lines[at:]
    return _joined(result, bool(lines) and not lines[-1].endswith("\n"), ending)


def _joined(lines: list[str], bare_end: bool, ending: str) -> str:
    """The text: every line ended but the last, which is as the file's last line was."""
    lines = [line if line.endswith("\n") else line + ending for line in lines]
    if bare_end and lines:
        lines[-1] = lines[-1].removesuffix("\n").removesuffix("\r")
    return "".join(lines)


def _place(lines: list[str], hunk: Hunk, block: list[str], at: int, path: str) -> Match:
    """Where the hunk's context and removed lines stand."""
    where = f"the hunk at line {hunk.line} of the patch does not fit {path}"
    for anchor in hunk.anchors:
        found = find_block(lines, [anchor], at)
        begins = (number for number in range(at, len(lines)) if lines[number].strip().startswith(anchor.strip()))
        start = found[0].start if found else next(begins, -1)
        if start < 0:
            raise ToolError(
                f"{where}: it has no line {anchor!r}" + (" after the hunk before" if at else "") + _hint(lines, [anchor])
            )
        at = start
    if not block:  # only new lines: below the named line, else at the end
        return Match(at + 1 if hunk.anchors else len(lines), "", {})
    if hunk.at_end:
        ending = find_block(lines, block, max(at, len(lines) - len(block)))
        if ending:
            return ending[0]
    found = find_block(lines, block, at)
    if not found:
        earlier = find_block(lines, block)
        if earlier:
            raise ToolError(
                f"{where}: its lines stand at line {earlier[0].start + 1}, before the place reached; order the hunks by line"
            )
        raise ToolError(f"{where}: these lines are not in it:\n" + "\n".join(block[:12]) + _hint(lines, block))
    if len(found) > 1 and not hunk.anchors:
        places = ", ".join(str(each.start + 1) for each in found[:10])
        raise ToolError(f"{where} in one place only, but at lines {places}: add context lines or a line like @@ def name():")
    return found[0]


def _hint(lines: list[str], block: list[str]) -> str:
    shown = closest_lines([line.rstrip("\r\n") for line in lines], block)
    return f"\n{shown}" if shown else ""
