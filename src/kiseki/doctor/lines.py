"""The lines of a JSONL file as bytes: whether each is one whole JSON object that every reader takes. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from kiseki.doctor.findings import Problem
from kiseki.trajectory.json_rows import decode_row

_decode = msgspec.json.Decoder().decode
_SEPARATORS = (b"\xe2\x80\xa8", b"\xe2\x80\xa9", b"\xc2\x85")
_SURROGATE = re.compile(rb"\\u[dD][89abAB]")


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
    if row is None and problems and problems[-1].kind in ("torn last line", "invalid UTF-8", "not JSON"):
        return None, problems
    if not isinstance(row, dict):
        return None, [*problems, Problem("not an object", f"a {type(row).__name__}")]
    if _may_repeat_keys(line, row) and (repeated := _repeated_keys(line)):
        problems.append(Problem("duplicate keys", ", ".join(repeated)))
    return row, problems


def _leniently(line: bytes, torn: bool) -> tuple[Any, list[Problem]]:
    """A line that strict JSON does not allow."""
    try:
        row = decode_row(line)
    except ValueError as error:
        words = str(error)
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


def _may_repeat_keys(line: bytes, row: dict[str, Any]) -> bool:
    """Cheap, and never wrong in saying no for JSON that has no blank before its colons: inside a string a quote is escaped, so
    that `":` stands only after keys."""
    return line.count(b'":') - line.count(b'\\":') > _keys(row) or b'" :' in line


def _keys(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(_keys(each) for each in value.values() if isinstance(each, dict | list))
    return sum(_keys(each) for each in value if isinstance(each, dict | list))


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
