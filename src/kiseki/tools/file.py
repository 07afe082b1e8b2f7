"""The `file` toolset's `read_file`, `write_file` and `patch` (`search_files` is in `search.py`).

Everything goes through the sandbox; the host's files are never touched. Files are text in UTF-8: bytes that are not are shown
as U+FFFD when read, and kept as they are when a file is patched. A file with a NUL byte counts as binary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from kiseki.errors import ToolError
from kiseki.tools.context import ToolContext
from kiseki.tools.diff import MAX_DIFF_BYTES, unified_diff
from kiseki.tools.matching import ending_of, split_lines
from kiseki.tools.paths import PROBE_SECONDS, MissingFile, absolute, check_path, explain_unreadable
from kiseki.tools.registry import tool
from kiseki.tools.replacing import replace_text
from kiseki.tools.v4a import Edit, apply_patch, named_paths, parse_patch, text_paths
from kiseki.trajectory.text import clean_text, cut_middle

MAX_LINES = 2_000
MAX_BYTES = 50_000
"""Of the text in one `read_file` result: with JSON's escapes the whole stays below 60,000 for nearly every file, about 15,000
tokens."""
MAX_LINE = 2_000
"""Characters shown of one line: longer ones are data or minified code, which nobody reads line by line."""
MAX_FILE_BYTES = 50_000_000
QUICK_SIZE = 200_000
"""Bytes or characters that are worked through in a few milliseconds; a thread would cost more than it saves."""

_T = TypeVar("_T")

_KINDS = (
    (b"\x89PNG", "PNG image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"GIF8", "GIF image"),
    (b"RIFF", "RIFF media (WebP, WAV or AVI)"),
    (b"%PDF", "PDF document"),
    (b"PK\x03\x04", "ZIP archive (or a document or package in that form)"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data"),
    (b"BZh", "bzip2 data"),
    (b"\xfd7zXZ", "xz data"),
    (b"\x7fELF", "ELF program or library"),
    (b"SQLite format 3", "SQLite database"),
    (b"\xff\xfe", "UTF-16 text (iconv converts it)"),
    (b"\xfe\xff", "UTF-16 text (iconv converts it)"),
)


def binary_kind(data: bytes) -> str:
    """What kind of binary file this is; "" for text."""
    if b"\0" not in data:
        return ""
    return next((kind for start, kind in _KINDS if data.startswith(start)), "data with NUL bytes")


async def _compute(size: int, function: Callable[..., _T], *arguments: Any) -> _T:
    """The function's result, computed aside where there is so much to do that other rollouts would wait for it."""
    return await asyncio.to_thread(function, *arguments) if size > QUICK_SIZE else function(*arguments)


async def _read(context: ToolContext, path: str) -> bytes:
    """The content. Raises `MissingFile`, and `ToolError` for a folder and the like."""
    check_path(path)
    place = await absolute(context, path) if path.startswith("~") else path
    try:
        return await context.sandbox.read_file(place, max_bytes=MAX_FILE_BYTES)
    except ToolError as error:
        raise await explain_unreadable(context, path, error) from error


async def _write(context: ToolContext, path: str, data: bytes) -> None:
    await context.sandbox.write_file(await absolute(context, path) if path.startswith("~") else path, data)


async def _read_text(context: ToolContext, path: str, *, binary: bool = False) -> str:
    """As text from which the same bytes can be made again. Raises `ToolError` for a binary file too, unless it may be one."""
    data = await _read(context, path)
    if not binary and (kind := binary_kind(data)):
        raise ToolError(f"{path} is a binary file ({kind}, {len(data):,} bytes): it cannot be patched as text")
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


@tool(toolset="file")
async def read_file(context: ToolContext, path: str, offset: int = 1, limit: int = 500) -> dict[str, Any]:
    """Read a text file. Each line of the content is given as `number|text`; the number and the bar are not part of the file.
    A long file comes in pages: next_offset, when there, is the offset of the next page.

    Args:
        path: The file; a relative path starts at the terminal session's current folder.
        offset: First line, counted from 1.
        limit: How many lines, 2000 at most.
    """
    data = await _read(context, path)
    if kind := binary_kind(data):
        raise ToolError(f"{path} is a binary file ({kind}, {len(data):,} bytes): use the terminal to look into it")
    if not data:
        return {"content": "", "total_lines": 0, "note": "the file is empty"}
    return await _compute(len(data), _page, data, path, max(offset, 1), min(max(limit, 1), MAX_LINES))


def _page(data: bytes, path: str, first: int, limit: int) -> dict[str, Any]:
    text = data.decode("utf-8", "replace")
    lines = split_lines(text)
    if first > len(lines):
        raise ToolError(f"offset {first} is past the end: {path} has {len(lines)} lines")
    shown: list[str] = []
    notes: list[str] = []
    size = 0
    shortened = False
    for number, line in enumerate(lines[first - 1 : first - 1 + limit], first):
        bare = line.rstrip("\n").removesuffix("\r")
        if len(bare) > MAX_LINE:
            bare = f"{bare[:MAX_LINE]} [... {len(bare) - MAX_LINE:,} more characters in this line ...]"
            shortened = True
        numbered = f"{number}|{bare}"
        size += len(numbered.encode()) + 1
        if size > MAX_BYTES and shown:
            notes.append(f"cut at {MAX_BYTES:,} bytes")
            break
        shown.append(numbered)
    last = first + len(shown) - 1
    answer: dict[str, Any] = {"content": "\n".join(shown), "total_lines": len(lines)}
    if last < len(lines):
        answer["next_offset"] = last + 1
    if shortened or notes:
        answer["truncated"] = True
    if ending_of(lines) == "\r\n":
        notes.append("its lines end with CRLF")
    if last == len(lines) and not text.endswith("\n"):
        notes.append("the last line has no line break at its end")
    if "\ufffd" in text and b"\xef\xbf\xbd" not in data:
        notes.append("it is not valid UTF-8: wrong bytes are shown as \ufffd")
    if notes:
        answer["note"] = "; ".join(notes)
    return answer


@tool(toolset="file")
async def write_file(context: ToolContext, path: str, content: str) -> dict[str, Any]:
    """Create a file, or replace all of an existing one, with exactly this content. Missing folders are made. To change part
    of a file use patch.

    Args:
        path: The file; a relative path starts at the terminal session's current folder.
        content: The whole new text.
    """
    data = clean_text(content).encode()
    status = "replaced"
    try:
        await _read(context, path)
    except MissingFile:
        status = "created"
    except ToolError:
        pass  # a folder, or too large to read: the write tells, or can do it all the same
    await _write(context, path, data)
    return {"bytes_written": len(data), "status": status}


@tool(toolset="file")
async def patch(
    context: ToolContext,
    path: str = "",
    old_string: str = "",
    new_string: str = "",
    replace_all: bool = False,
    patch: str = "",
) -> dict[str, Any]:
    """Change files, in one of two ways. Replace: give path, old_string and new_string; old_string has to be in the file
    exactly once (small differences in whitespace are tolerated) unless replace_all is true. Patch: give only patch, a text
    from "*** Begin Patch" to "*** End Patch" with sections "*** Add File: p", "*** Update File: p" (optionally
    "*** Move to: q") and "*** Delete File: p"; updates have hunks that begin with "@@" or "@@ def name" and consist of lines
    that begin with a space (context), "-" or "+". All of a patch is done or nothing. Returns a unified diff.

    Args:
        path: The file to replace in; a relative path starts at the terminal session's current folder.
        old_string: The text to be replaced, with enough lines around it to be unique.
        new_string: What comes instead; empty to delete.
        replace_all: Replace every occurrence.
        patch: The whole patch, for several files or places at once.
    """
    if patch:
        if path or old_string or new_string:
            raise ToolError("give either patch alone, or path with old_string and new_string, not both")
        return await _patch_files(context, patch)
    if not path:
        raise ToolError("give either path with old_string and new_string, or patch alone")
    before = await _read_text(context, path)
    done = await _compute(len(before), replace_text, before, old_string, new_string, replace_all)
    await _write(context, path, _bytes(done.text))
    diff = await _compute(len(before), unified_diff, path, path, before, done.text)
    answer: dict[str, Any] = {"success": True, "replacements": done.count, "diff": diff}
    if done.how:
        answer["note"] = f"old_string was found by ignoring {done.how}; check the diff"
    return answer


async def _patch_files(context: ToolContext, text: str) -> dict[str, Any]:
    changes = parse_patch(text)
    files: dict[str, str | None] = {}
    reasons: dict[str, MissingFile] = {}
    worked_on = text_paths(changes)
    for path in named_paths(changes):
        try:
            files[path] = await _read_text(context, path, binary=path not in worked_on)
        except MissingFile as error:
            files[path], reasons[path] = None, error
    for change in changes:
        earlier = any(other.path == change.path or other.move_to == change.path for other in changes if other is not change)
        if change.action != "add" and change.path in reasons and not earlier:
            raise reasons[change.path]
    edits = await _compute(sum(len(each or "") for each in files.values()), apply_patch, changes, files)
    await _carry_out(context, edits)
    leaving = {edit.moved_from for edit in edits}
    diffs = [_diff(edit, files[edit.moved_from or edit.path]) for edit in edits if edit.path not in leaving]
    diff = cut_middle("".join(diffs).encode(), MAX_DIFF_BYTES).decode("utf-8", "replace")
    return {"success": True, "files_changed": [edit.path for edit in edits], "diff": diff}


def _diff(edit: Edit, before: str | None) -> str:
    old = edit.moved_from or (edit.path if before is not None else "/dev/null")
    new = edit.path if edit.after is not None else "/dev/null"
    if "\0" in (before or ""):
        return f"Binary files {old} and {new} differ\n"
    return unified_diff(old, new, before or "", edit.after or "")


async def _carry_out(context: ToolContext, edits: list[Edit]) -> None:
    """Do all edits; when one cannot be done, take back those before it."""
    leaving = {edit.moved_from for edit in edits}
    done: list[Edit] = []
    try:
        for edit in sorted(edits, key=lambda edit: not edit.moved_from):  # a move first, while its file is still there
            done.append(edit)
            if edit.moved_from:
                await _program(context, 'mkdir -p -- "${2%/*}/" && mv -f -- "$1" "$2"', edit.moved_from, edit.path)
            if edit.after is not None:
                await _write(context, edit.path, _bytes(edit.after))
            elif edit.path not in leaving:
                await _program(context, 'rm -f -- "$1"', edit.path)
    except ToolError as error:
        for edit in done:
            if edit.moved_from:
                await _program(context, 'mv -f -- "$1" "$2"; :', edit.path, edit.moved_from)
        for edit in edits:
            if edit not in done and edit.path not in leaving:
                continue
            if edit.before is not None:
                await _write(context, edit.path, _bytes(edit.before))
            elif not edit.moved_from:
                await _program(context, 'rm -f -- "$1"', edit.path)
        raise ToolError(f"the patch could not be written, so nothing was changed: {error}") from error


async def _program(context: ToolContext, text: str, *paths: str) -> None:
    """Run a short shell program with the paths, seen from the root, as its arguments."""
    places = [await absolute(context, path) for path in paths]
    argv = ["sh", "-c", f"exec 2>&1; {text}", "sh", *places]
    status, output = await context.sandbox.run(argv, timeout=PROBE_SECONDS)
    if status != 0:
        raise ToolError(output.decode("utf-8", "replace").strip() or f"status {status}")
