"""The `file` toolset's `search_files`: inside the sandbox, with ripgrep where it is installed, else with a small Python program,
else with `grep`, GNU's or busybox's, which images without either have.

All are made to see the same files and give the same lines in the same order: every file but those below `.git`, those with a
NUL byte, symbolic links and those above `MAX_FILE`; hidden and ignored files included; folders in the order of their names'
bytes. They differ in the regular expressions' finer points (Rust and PCRE2, Python's, or what `posix_regex.py` makes of them,
which says when that is not enough); and `grep` does not search files with a line break in their names. Names of files are listed
by `find` and matched here. What a search prints is read up to `MAX_STREAM`, and the result says when there is more.
"""

from __future__ import annotations

import base64
import functools
import posixpath
import re
from pathlib import Path
from typing import Any, Literal

import msgspec

from kiseki.errors import ToolError
from kiseki.tools.context import ToolContext
from kiseki.tools.glob import glob_regex
from kiseki.tools.paths import PROBE_SECONDS, absolute, check_path
from kiseki.tools.registry import tool
from kiseki.tools.search_grep import MAX_GREP_STREAM, Printed, grep_argv, paths_to_search, printed

MAX_RESULTS = 500
MAX_CONTEXT = 20
MAX_BYTES = 30_000
"""Of the lines in one result, as for a terminal's output."""
MAX_LINE = 400
"""Characters shown of one line, around its match."""
MAX_STREAM = 16_000_000
"""Bytes that are read of what a search prints: more matches than anyone pages through."""
MAX_FILE = 50_000_000
SEARCH_SECONDS = 60.0

_ENGINES = r"""
command -v rg && exit
for each in python3 python; do
  "$each" -c 'import sys; sys.exit(sys.version_info < (3, 6))' 2>/dev/null && command -v "$each" && exit
done
for each in find xargs cat tr grep; do command -v "$each" >/dev/null || exit 0; done
command -v grep"""
# $1 where, $2 most bytes, then the program and its arguments; the target comes last. The first line says how it went.
_SEARCH = r"""
exec 2>&1
root=$1 most=$2; shift 2
if [ -d "$root" ]; then kind=folder target=.; else kind=file target=./${root##*/} root=${root%/*}/; fi
if [ ! -e "$root/$target" ]; then echo missing; exit; fi
cd "$root" 2>/dev/null || { echo closed; exit; }
echo $kind
"$@" "$target" | head -c "$most"
"""
_NO_FIND = b"no find"
# Of symbolic links only the target itself is followed.
_FIND = r"""
command -v find >/dev/null || { printf 'no find'; exit; }
exec find -H "$1" -name .git -prune -o -type f %s -print0 2>/dev/null"""
_FIND_ANY = _FIND % ""
_FIND_SEARCHED = _FIND % f"! -size +{MAX_FILE}c"
_RG = (
    "--no-config",
    "--json",
    "--no-ignore",
    "--hidden",
    "--no-messages",
    "--sort=path",
    "--crlf",
    "--encoding=none",
    "--engine=auto",
    f"--max-filesize={MAX_FILE}",
)


class _Text(msgspec.Struct, frozen=True):
    text: str | None = None
    bytes: str = ""

    def __str__(self) -> str:
        return base64.b64decode(self.bytes).decode("utf-8", "replace") if self.text is None else self.text


class _Start(msgspec.Struct, frozen=True):
    start: int


class _Data(msgspec.Struct, frozen=True):
    path: _Text = _Text()
    lines: _Text = _Text()
    line_number: int = 0
    submatches: list[_Start] = []
    binary_offset: int | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    data: _Data


_decode_event = msgspec.json.Decoder(_Event).decode


class _Listed(msgspec.Struct, frozen=True):
    """Files in the order in which they are searched."""

    prefix: str
    """Before each name, for the model."""
    names: list[bytes]
    """Relative to the folder searched; without those that file_glob and the like leave out."""
    partial: bool


class _Row(msgspec.Struct, frozen=True):
    """One line of one file."""

    path: str
    number: int
    text: str
    match: bool


@tool(toolset="file")
async def search_files(
    ctx: ToolContext,
    pattern: str,
    target: Literal["content", "files"] = "content",
    path: str = ".",
    file_glob: str = "",
    limit: int = 50,
    offset: int = 0,
    output_mode: Literal["content", "files_only", "count"] = "content",
    context: int = 0,
) -> dict[str, Any]:
    """Search the contents of files with a regular expression, line by line, or find files by name. Skips .git and binary
    files. Matches come as `path:line:text`, lines around them as `path-line-text`. next_offset, when there, is the offset of
    the next page.

    Args:
        pattern: For content: a regular expression ("(?i)" at its start ignores case). For files: a glob such as *.py or
            src/**/*.ts, or without * and ? a part of the file's name.
        target: content searches inside files, files searches their names.
        path: The folder or file to search; a relative path starts at the terminal session's current folder.
        file_glob: Only files whose name (with a slash: path below the folder searched) matches, such as *.py or *.{js,ts}.
        limit: How many results, 500 at most.
        offset: How many results to skip.
        output_mode: For content: the lines, only the files' paths, or the number of matching lines in each file.
        context: For content: lines shown before and after each match, 20 at most.
    """
    if not pattern:
        raise ToolError("pattern is empty")
    for name, value in (("pattern", pattern), ("file_glob", file_glob)):
        if "\0" in value:
            raise ToolError(f"{name} contains a NUL character")
    first, count = max(offset, 0), min(max(limit, 1), MAX_RESULTS)
    check_path(path)
    if target == "files":
        return _files_page(*await _list_files(ctx, path, pattern, file_glob), first, count)
    lines = min(max(context, 0), MAX_CONTEXT) if output_mode == "content" else 0
    rows, partial = await _search(ctx, path, pattern, file_glob, lines)
    if output_mode == "content":
        return _lines_page(rows, partial, first, count, lines)
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.path] = counts.get(row.path, 0) + row.match
    found = list(counts) if output_mode == "files_only" else [f"{each}:{number}" for each, number in counts.items()]
    return _files_page(found, partial, first, count) | {"total_matches": sum(counts.values())}


@functools.cache
def _program() -> str:
    return Path(__file__).with_name("search_program.py").read_text()


async def _engine(ctx: ToolContext) -> tuple[str, str]:
    """Kind ("rg", "python", "grep" or "") and path of what can search in this sandbox; looked up once per rollout."""
    if "search_files" not in ctx.state:
        _, answer = await ctx.sandbox.run(["sh", "-c", _ENGINES], timeout=PROBE_SECONDS)
        program = answer.decode("utf-8", "replace").strip()
        name = posixpath.basename(program)
        kind = name if name in ("", "rg", "grep") else "python"
        ctx.state["search_files"] = (kind, program)
    kind, program = ctx.state["search_files"]
    return kind, program


async def _search(ctx: ToolContext, path: str, pattern: str, file_glob: str, context: int) -> tuple[list[_Row], bool]:
    """The rows, and whether the search printed more than is read."""
    if re.search(r"(?<!\\)(?:\\\\)*(?:\\n|\n)", pattern):
        raise ToolError("the pattern has a line break in it, but the search goes line by line")
    glob = glob_regex(file_glob) if file_glob else ""
    kind, program = await _engine(ctx)
    if kind == "grep":
        return await _search_by_grep(ctx, path, pattern, [file_glob] if file_glob else [], context)
    if kind == "rg":
        argv = [program, *_RG, f"--context={context}", *_rg_glob(file_glob), "-e", pattern, "--"]
    elif kind == "python":
        asked = {"pattern": pattern, "glob": glob, "context": context, "max_file": MAX_FILE}
        argv = [program, "-I", "-S", "-c", _program(), msgspec.json.encode(asked).decode()]
    else:
        raise ToolError(
            "this sandbox has neither ripgrep nor Python, nor grep with find, xargs, cat and tr: contents cannot be searched"
        )
    prefix, _, output = await _run(ctx, path, argv)
    lines = output.split(b"\n")
    if len(lines) > 1 and not lines[0].startswith(b"{"):
        words = b"\n".join(lines).decode("utf-8", "replace").strip()
        raise ToolError(f"the pattern {pattern!r} is not a valid regular expression: {words[:1500]}")
    rows: list[_Row] = []
    for number, line in enumerate(lines):
        try:
            event = _decode_event(line)
        except msgspec.DecodeError:  # the end, or where the stream was cut
            return rows, number < len(lines) - 1 or bool(line)
        data = event.data
        if event.type == "end" and data.binary_offset is not None:
            name = prefix + str(data.path).removeprefix("./")
            rows = [row for row in rows if row.path != name]
        elif event.type in ("match", "context"):
            at = len(str(data.lines).encode()[: data.submatches[0].start].decode("utf-8", "ignore")) if data.submatches else 0
            text = _shortened(str(data.lines).rstrip("\n").removesuffix("\r"), at)
            rows.append(_Row(prefix + str(data.path).removeprefix("./"), data.line_number, text, event.type == "match"))
    return rows, False


async def _search_by_grep(ctx: ToolContext, path: str, pattern: str, globs: list[str], context: int) -> tuple[list[_Row], bool]:
    """As `_search`: lists the files, and has those searched that are wanted."""
    listed = await _find(ctx, path, _FIND_SEARCHED, globs)

    async def grep(show: str, names: list[bytes]) -> tuple[list[Printed], bool]:
        argv = grep_argv(pattern, show)
        if not (paths := paths_to_search(names)):
            return [], False
        _, _, output = await _run(ctx, path, argv, b"".join(each + b"\0" for each in paths), MAX_GREP_STREAM)
        return printed(output, paths)

    lines, partial = await grep(f"-nC{context}", listed.names)
    wide = dict.fromkeys(line.name for line in lines if line.match and len(line.text) > MAX_LINE)
    starts: dict[tuple[bytes, int], bytes] = {}
    for each in (await grep("-no", list(wide)))[0]:
        starts.setdefault((each.name, each.number), each.text)
    rows: list[_Row] = []
    for line in lines:
        at = max(line.text.find(starts.get((line.name, line.number), b"")), 0)
        start = len(line.text[:at].decode("utf-8", "replace"))
        text = _shortened(line.text.decode("utf-8", "replace").removesuffix("\r"), start)
        rows.append(_Row(listed.prefix + line.name.decode("utf-8", "replace"), line.number, text, line.match))
    return rows, partial or listed.partial


async def _list_files(ctx: ToolContext, path: str, pattern: str, file_glob: str) -> tuple[list[str], bool]:
    wanted = [pattern if any(sign in pattern for sign in "*?[{/") else f"*{pattern}*", *([file_glob] if file_glob else [])]
    listed = await _find(ctx, path, _FIND_ANY, wanted, also_one=True)
    return [listed.prefix + name.decode("utf-8", "replace") for name in listed.names], listed.partial


async def _find(ctx: ToolContext, path: str, script: str, globs: list[str], *, also_one: bool = False) -> _Listed:
    """The files below `path` that all globs match, or that file, which they are only about with `also_one`."""
    regexes = [re.compile(glob_regex(each)) for each in globs]
    prefix, folder, output = await _run(ctx, path, ["sh", "-c", script, "sh"])
    if output == _NO_FIND:
        raise ToolError("this sandbox has no find, so its files cannot be listed; use ls in the terminal")
    *names, rest = output.split(b"\0")
    found = sorted((name.removeprefix(b"./") for name in names), key=lambda name: name.split(b"/"))
    if folder or also_one:
        found = [name for name in found if all(each.fullmatch(name.decode("utf-8", "replace")) for each in regexes)]
    return _Listed(prefix, found, bool(rest))


async def _run(
    ctx: ToolContext, path: str, argv: list[str], stdin: bytes = b"", most: int = MAX_STREAM
) -> tuple[str, bool, bytes]:
    """What stands before the paths that the program names, so that other tools take them; whether it searched a folder; and what
    it printed."""
    place = await absolute(ctx, path)
    arguments = ["sh", "-c", _SEARCH, "sh", place, str(most), *argv]
    status, answer = await ctx.sandbox.run(arguments, timeout=SEARCH_SECONDS, stdin=stdin, max_output=2 * MAX_STREAM)
    said, _, output = answer.partition(b"\n")
    if said == b"missing":
        raise ToolError(f"no such file or folder: {path}")
    if said == b"closed":
        raise ToolError(f"the folder {path} may not be read")
    if said not in (b"folder", b"file") or status != 0:
        raise ToolError(f"the search was stopped after {SEARCH_SECONDS:g} s: narrow path, file_glob or the pattern")
    if said == b"file":
        return path.removesuffix(posixpath.basename(path)), False, output
    return "" if posixpath.normpath(path) == "." else path.rstrip("/") + "/", True, output


def _rg_glob(file_glob: str) -> list[str]:
    """ripgrep's options for the files to search. The last one that matches counts, so that .git stays out."""
    options = ["--glob=!.git"]
    if file_glob:
        glob = file_glob.removeprefix("!").removeprefix("./")
        anchor = "/" if "/" in glob and not glob.startswith("/") else ""
        options.insert(0, f"--glob={'!' if file_glob.startswith('!') else ''}{anchor}{glob}")
    return options


def _shortened(line: str, at: int) -> str:
    if len(line) <= MAX_LINE:
        return line
    start = max(min(at - MAX_LINE // 4, len(line) - MAX_LINE), 0)
    return f"{'[...] ' if start else ''}{line[start : start + MAX_LINE]}{' [...]' if start + MAX_LINE < len(line) else ''}"


def _files_page(found: list[str], partial: bool, first: int, count: int) -> dict[str, Any]:
    shown: list[str] = []
    size = 0
    for each in found[first : first + count]:
        size += len(each.encode()) + 1
        if size > MAX_BYTES and shown:
            break
        shown.append(each)
    return _page({"files": shown, "total": len(found)}, partial, first + len(shown), len(found))


def _lines_page(rows: list[_Row], partial: bool, first: int, count: int, context: int) -> dict[str, Any]:
    hits = [number for number, row in enumerate(rows) if row.match]
    lines: list[str] = []
    size, done, last = 0, first, -1
    for hit in hits[first : first + count]:
        near = [
            number
            for number in range(max(hit - context, last + 1, 0), min(hit + context + 1, len(rows)))
            if rows[number].path == rows[hit].path and abs(rows[number].number - rows[hit].number) <= context
        ]
        added = [_line(rows[number]) for number in near]
        if context and lines and near and (near[0] != last + 1 or rows[last].path != rows[hit].path):
            added.insert(0, "--")
        size += sum(len(line.encode()) + 1 for line in added)
        if size > MAX_BYTES and lines:
            break
        lines += added
        last = near[-1] if near else last
        done += 1
    return _page({"matches": "\n".join(lines), "total": len(hits)}, partial, done, len(hits))


def _line(row: _Row) -> str:
    sign = ":" if row.match else "-"
    return f"{row.path}{sign}{row.number}{sign}{row.text}"


def _page(answer: dict[str, Any], partial: bool, done: int, total: int) -> dict[str, Any]:
    if done < total:
        answer["next_offset"] = done
    if partial:
        answer["truncated"] = True
        answer["note"] = "there are more results than are read: narrow path, file_glob or the pattern"
    elif not total:
        answer["note"] = "nothing matches"
    return answer
