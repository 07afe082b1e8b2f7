"""The lines of a JSONL file as bytes: whether each is one whole JSON object that every reader takes. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from kiseki.doctor.columns import WORDS, kind_of
from kiseki.doctor.findings import Problem
from kiseki.trajectory.json_rows import decode_row

_decode = msgspec.json.Decoder().decode
_SEPARATORS = (b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xc2\x85")
_SURROGATE = re.compile(rb"\\u[dD][89abAB]")
_UNREADABLE = ("torn last line", "invalid UTF-8", "not JSON", "nested too deep")
DEEPEST = 64
"""Levels that Arrow takes (`kMaxNestingDepth`); all checks of a row are recursive."""


def read_line(line: bytes, *, torn: bool) -> tuple[dict[str, Any] | None, list[Problem]]:
    """(the row, what is wrong with its bytes) of one line without its line end; no row where it is no object.

    torn: Whether it is a last line without a line end.
    """
    if b"\0" in line:
        return None, [Problem("NUL bytes", f"{line.count(0):,} of {len(line):,} bytes")]
    problems: list[Problem] = []
    if any(each in line for each in _SEPARATORS):
        problems.append(Problem("line separators in text"))
    try:
        row = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        row, found = _leniently(line, torn)
        problems += found
    if row is None and problems and problems[-1].kind in _UNREADABLE:
        return None, problems
    if not isinstance(row, dict):
        return None, [*problems, Problem("not an object", WORDS[kind_of(row)])]
    keys, depth = _shape(row)
    if depth > DEEPEST:
        return None, [*problems, Problem("nested too deep", f"{depth:,} levels")]
    if _may_repeat_keys(line, keys) and (repeated := _repeated_keys(line)):
        problems.append(Problem("duplicate keys", ", ".join(repeated)))
    return row, problems


def refusal(first: bytes) -> str:
    """Why a file that begins with this line is not JSON lines at all; "" where it may be."""
    if first.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "it is UTF-16: iconv -f UTF-16 -t UTF-8 makes UTF-8 of it"
    text = first.removeprefix(b"\xef\xbb\xbf").strip()
    if text.startswith(b"["):
        try:
            value = decode_row(text)
        except ValueError:
            value = [{}]
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return "it is one JSON array, not a line for each row: jq -c '.[]' makes lines of it"
    return ""


def _leniently(line: bytes, torn: bool) -> tuple[Any, list[Problem]]:
    """A line that strict JSON does not allow."""
    try:
        row = decode_row(line)
    except ValueError as error:
        words = str(error)
        if "recursion" in words:
            return None, [Problem("nested too deep", "deeper than Python reads")]
        kind = "torn last line" if torn else "invalid UTF-8" if words.startswith("not valid UTF-8") else "not JSON"
        return None, [Problem(kind, words)]
    problems = []
    constants: list[str] = []
    raw = json.loads(line.decode(), parse_constant=constants.append)
    if constants:
        problems.append(Problem("NaN", ", ".join(sorted(set(constants)))))
    if _SURROGATE.search(line) and any(_has_surrogate(text) for text in _texts(raw)):
        problems.append(Problem("lone surrogate"))
    return row, problems


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _may_repeat_keys(line: bytes, keys: int) -> bool:
    """Cheap, and never wrong in saying no for JSON that has no blank before its colons: inside a string a quote is escaped, so
    that `":` stands only after keys."""
    return line.count(b'":') - line.count(b'\\":') > keys or b'" :' in line


def _shape(row: dict[str, Any]) -> tuple[int, int]:
    """(keys in all of its objects, levels). Level by level: a row may be deeper than a stack."""
    keys, depth = 0, 0
    level: list[Any] = [row]
    while level:
        depth += 1
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                keys += len(value)
                below += [each for each in value.values() if isinstance(each, dict | list)]
            else:
                below += [each for each in value if isinstance(each, dict | list)]
        level = below
    return keys, depth


def _repeated_keys(line: bytes) -> list[str]:
    repeated: dict[str, None] = {}

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for name, value in found:
            if name in made:
                repeated[name] = None
            made[name] = value
        return made

    json.loads(line.decode(), object_pairs_hook=pairs)
    return list(repeated)
