"""Rows of several datasets in one file that loads as a table: the same columns in every row, each of one type.

A column that some rows lack is null there. One that has no single type over all rows (text here and a list there, objects with
other keys) is JSON text in all of them; what is text already stays as it is. Conversations stay as they are where all rows
have them in the same column and layout; else all of them become ShareGPT turns in `conversations` (`conversion.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from kiseki.compress.turns import Trajectory
from kiseki.sampling.conversion import as_sharegpt

SHAREGPT_COLUMN = "conversations"

_TIME = re.compile(r"\d{4}-\d\d-\d\d")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode
_NULL = msgspec.Raw(b"null")


class MixedTypes(Exception):
    """Values that cannot stand in one column of a table."""


class Kind:
    """The type of all values of one column, as far as they were seen."""

    def __init__(self) -> None:
        self.name = ""
        """Empty where only null was seen."""
        self._inner: Kind | None = None
        self._fields: dict[str, Kind] = {}

    def learn(self, value: Any) -> bool:
        """Whether the value shows something new of the type: loaders, which judge by the first rows, should see it early.

        Raises `MixedTypes`.
        """
        if value is None:
            return False
        name = _name(value)
        if self.name in ("", name):
            new = not self.name
            self.name = name
        elif (self.name, name) in (("int", "float"), ("time", "text")):
            new, self.name = True, name
        elif (self.name, name) in (("float", "int"), ("text", "time")):
            new = False
        else:
            raise MixedTypes
        if name == "list":
            inner = self._inner = self._inner or Kind()
            return sum(inner.learn(each) for each in value) > 0 or new
        if name == "object":
            if new:
                self._fields = {key: Kind() for key in value}
            if self._fields.keys() != value.keys():
                raise MixedTypes
            return sum(self._fields[key].learn(each) for key, each in value.items()) > 0 or new
        return new


def _name(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise MixedTypes
        return "int"
    if isinstance(value, float):
        return "float"
    if isinstance(value, str):
        return "time" if _TIME.match(value) else "text"  # loaders take text that looks so for times, if all of it does
    return "list" if isinstance(value, list) else "object"


class Schema:
    """What the rows of a file will look like: shown all of them once (`learn`), it writes each (`write`)."""

    def __init__(self) -> None:
        self.converts = False
        """Whether the conversations become ShareGPT."""
        self._form: tuple[str, bool, object] | None = None
        self._turns: dict[str, Kind] = {}
        self._columns: dict[str, Kind | None] = {}  # None: JSON text

    def learn(self, trajectory: Trajectory) -> bool:
        """Whether the row shows something new: those rows should stand first."""
        new = self._learn_conversation(trajectory)
        for name, raw in trajectory.columns.items():
            if name == trajectory.column:
                continue
            new |= name not in self._columns
            kind = self._columns.setdefault(name, Kind())
            try:
                new |= kind is not None and kind.learn(_decode(raw))
            except MixedTypes:
                self._columns[name] = None
        return new

    def write(self, trajectory: Trajectory, more: Mapping[str, Any]) -> bytes:
        """The row as JSON text; `more` columns stand at its end, in place of any of the same name."""
        if self.converts:
            row: dict[str, Any] = {SHAREGPT_COLUMN: as_sharegpt(trajectory)}
        else:
            row = {trajectory.column: trajectory.columns[trajectory.column]}
        for name, kind in self._columns.items():
            raw = trajectory.columns.get(name, _NULL)
            if name in row or name == trajectory.column:
                continue
            row[name] = raw if kind is not None else _as_text(raw)
        for name in more:
            row.pop(name, None)
        return _encode(row | dict(more))

    def _learn_conversation(self, trajectory: Trajectory) -> bool:
        form = (trajectory.column, trajectory.in_text, trajectory.layout)
        self._form = self._form or form
        if self.converts or form != self._form:
            self.converts = True
            return False
        if trajectory.in_text:
            return False
        new = False
        try:
            for turn in trajectory.turns:
                for key, value in turn.data.items():
                    new |= key not in self._turns
                    new |= self._turns.setdefault(key, Kind()).learn(value)
        except MixedTypes:
            self.converts = True
        return new


def _as_text(raw: msgspec.Raw) -> msgspec.Raw:
    text = bytes(raw)
    return raw if text[:1] == b'"' or text == b"null" else msgspec.Raw(_encode(text.decode()))
