"""The types of every column at any depth over a whole file: where one changes, and whether the `datasets` library has settled it
by then. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kiseki.doctor.findings import Problem

BLOCK_BYTES = 10 << 20
"""Of a file, unpacked, from which the `datasets` library settles columns and types (`chunksize` of its JSON reader)."""
MOST_PATHS = 20_000
"""Columns that are followed; objects with free keys have no end of them."""
_ARRAY = "[]"


class _Column(msgspec.Struct):
    kinds: dict[str, tuple[int, int]]
    """Kind of value → (row, byte of the file) where it is first there."""
    late: bool
    """The first block did not have it at all."""


class Columns:
    """Of one file. `see` takes its rows in order."""

    def __init__(self) -> None:
        self._columns: dict[tuple[str, ...], _Column] = {}
        self._full = False

    def see(self, row: dict[str, Any], number: int, offset: int) -> None:
        """number: The row's. offset: Bytes of the file before it."""
        self._object(row, (), number, offset)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns themselves."""
        return tuple(path[0] for path in self._columns if len(path) == 1)

    def _object(self, value: dict[str, Any], path: tuple[str, ...], number: int, offset: int) -> None:
        for name, each in value.items():
            self._value(each, (*path, name), number, offset)

    def _value(self, value: Any, path: tuple[str, ...], number: int, offset: int) -> None:
        kind = kind_of(value)
        column = self._columns.get(path)
        if column is None:
            if len(self._columns) >= MOST_PATHS:
                return
            column = self._columns[path] = _Column({}, offset >= BLOCK_BYTES)
        if kind not in column.kinds:
            column.kinds[kind] = (number, offset)
        if kind == "object":
            self._object(value, path, number, offset)
        elif kind == "list":
            inner = (*path, _ARRAY)
            for each in value:
                self._value(each, inner, number, offset)

    def problems(self) -> Iterator[tuple[int, Problem]]:
        """(row where it begins, problem), outermost columns first; what is inside of a mixed column is not told."""
        free: list[tuple[str, ...]] = []
        for path in sorted(self._columns, key=len):
            if any(path[: len(each)] == each for each in free):
                continue
            column = self._columns[path]
            name = ".".join(path).replace(f".{_ARRAY}", _ARRAY)
            if "empty" in column.kinds and not column.kinds.keys() - {"empty", "null"}:
                yield column.kinds["empty"][0], Problem("only empty objects", name)
            if column.late:
                row, offset = min(column.kinds.values())
                yield row, Problem("key appears late", f"{name} is first there {_at(offset)}")
                free.append(path)
                continue
            mixed, late = _changes(column.kinds)
            if mixed:
                before, after, row = mixed
                yield row, Problem("mixed types", f"{name} is {before} before and {after} here")
                free.append(path)
            elif late:
                before, after, (row, offset) = late
                yield row, Problem("type changes late", f"{name} is {before} before and {after} {_at(offset)}")
                free.append(path)


def _at(offset: int) -> str:
    return f"after {offset / 2**20:.0f} MB"


WORDS = {
    "null": "null",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number with a point",
    "str": "text",
    "none": "an empty list",
    "list": "a list",
    "empty": "an empty object",
    "object": "an object",
}


def kind_of(value: Any) -> str:
    """Of a decoded value, as `WORDS` has them."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "object" if value else "empty"
    if isinstance(value, list):
        return "list" if value else "none"
    return type(value).__name__


_FAMILY = {"int": "number", "float": "number", "none": "list", "empty": "object"}
Seen = tuple[int, int]


def _changes(kinds: dict[str, Seen]) -> tuple[tuple[str, str, int] | None, tuple[str, str, Seen] | None]:
    """Among the kinds of one column: ((kind, other kind, row where that begins) of kinds that no type holds, (kind, other kind,
    place) of those that a type holds if it is known before)."""
    in_order = sorted(kinds.items(), key=lambda each: each[1])
    real = [(kind, at) for kind, at in in_order if kind != "null"]
    families = [(_FAMILY.get(kind, kind), kind, at) for kind, at in real]
    for family, kind, at in families:
        if family != families[0][0]:
            late = at[1] >= BLOCK_BYTES
            before = WORDS[families[0][1]]
            return (None, (before, WORDS[kind], at)) if late else ((before, WORDS[kind], at[0]), None)
    for wide, narrow in (("float", "int"), ("list", "none"), ("object", "empty")):
        if wide in kinds and kinds[wide][1] >= BLOCK_BYTES and narrow in kinds:
            return None, (WORDS[narrow], WORDS[wide], kinds[wide])
    if real and real[0][1][1] >= BLOCK_BYTES and "null" in kinds:
        return None, ("null", WORDS[real[0][0]], real[0][1])
    return None, None
