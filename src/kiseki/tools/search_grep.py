"""Searching by `grep`, as `search.py` has it done in a sandbox with neither ripgrep nor Python: what to run there, and what its
output says. GNU's and busybox's `grep` will do, beside `xargs`, `cat` and `tr`. Pure, no I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from kiseki.errors import ToolError
from kiseki.tools.posix_regex import posix_regex

MAX_GREP_STREAM = 4_000_000
"""Bytes that are read of what it prints: its lines are that much shorter than ripgrep's."""
MAX_WORDS = 1500
"""Characters of grep's own words in an error."""
# $1 pattern, $2 and $3 options, of which the last say what is shown of a file that matches. The files' names come on stdin, each
# with a NUL. Says why the pattern is none, or "ok", then the lines, and a NUL when it got to the end. Only files that match are
# looked at for NULs, and first a hundred together: a program started for each would take longer than all else.
_GREP = r"""
export LC_ALL=C.UTF-8 2>/dev/null
why=$(echo | grep "$2" -e "$1" 2>&1)
[ $? -lt 2 ] || { printf %s "$why"; exit; }
echo ok
{
  xargs -0 grep -l "$2" -e "$1" | tr '\n' '\000' | xargs -0 -r -n 100 sh -c '
    has_nul() { tr -dc "\000" | tr "\000" "\n" | read -r each; }
    if cat "$@" | has_nul; then
      for file do has_nul <"$file" || printf "%s\000" "$file"; done
    else
      printf "%s\000" "$@"
    fi' sh | xargs -0 -r grep -H "$2" "$3" -e "$1"
} 2>/dev/null
printf '\000'"""
_SIGN = re.compile(rb"([:-])(?=([0-9]+)\1)")
"""Between a file's name and a line's number, which the same sign follows."""


class Printed(msgspec.Struct, frozen=True):
    """One line of a file."""

    name: bytes
    number: int
    text: bytes
    match: bool


def grep_argv(pattern: str, show: str) -> list[str]:
    """What to run, with the files on its stdin; `show` is an option such as "-nC2", lines with two around them, or "-no", only
    what matches in them. Raises `ToolError` for a pattern that is beyond grep."""
    regex, ignore_case = posix_regex(pattern)
    return ["sh", "-c", _GREP, "sh", regex, "-aiE" if ignore_case else "-aE", show]


def paths_to_search(names: list[bytes]) -> dict[bytes, bytes]:
    """Path → name, relative to the folder searched, without those that have a line break in their names.

    What grep prints begins with a path, and which one is never in doubt: beside `a`, the file `a:1:b` gets a slash more.
    """
    known = {name for name in names if b"\n" not in name}
    paths: dict[bytes, bytes] = {}
    for name in names:
        if name in known:
            doubts = sum(name[: sign.start()] in known for sign in _SIGN.finditer(name))
            paths[b"." + b"/" * (1 + doubts) + name] = name
    return paths


def printed(output: bytes, paths: Mapping[bytes, bytes]) -> tuple[list[Printed], bool]:
    """The lines, and whether the output breaks off before its end. Raises `ToolError` for what grep has against the pattern."""
    said, _, rest = output.partition(b"\n")
    if said != b"ok":
        words = output.decode("utf-8", "replace").strip()
        raise ToolError(
            f"grep, which is all that this sandbox has to search with, does not take the pattern: {words[:MAX_WORDS]}"
        )
    longest = max(map(len, paths))
    lines: list[Printed] = []
    for line in rest.split(b"\n")[:-1]:
        for sign in _SIGN.finditer(line, 0, longest + 24):  # and the number
            name = paths.get(line[: sign.start()])
            if name is not None:
                lines.append(Printed(name, int(sign[2]), line[sign.end(2) + 1 :], sign[1] == b":"))
                break
    return lines, not output.endswith(b"\0")
