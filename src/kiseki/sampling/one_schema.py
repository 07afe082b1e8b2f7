"""Rows of several datasets in one file that loads as a table: the same columns in every row, each of one type.

A column that some rows lack is null there. One that has no single type over all rows (text here and a list there, objects with
other keys) is JSON text in all of them; what is text already stays as it is. Conversations stay as they are where all rows
have them in the same column and layout; of chat messages whose calls' arguments have no single type, those become JSON text;
else all of them become ShareGPT turns in `conversations` (`conversion.py`).
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from kiseki.compress.layouts.messages import MESSAGES
from kiseki.compress.rows import Trajectory
from kiseki.sampling.conversion import TOOLS_COLUMN, as_sharegpt

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
        self.mixed = ""
        """Why the conversations become ShareGPT; "" where they do not."""
        self.mixed_arguments = False
        """Whether the arguments of calls become JSON text."""
        self.converted = 0
        """Rows written whose turns are others than they were."""
        self.media = 0
        """Images and the like that were lost with it."""
        self._first: Trajectory | None = None
        self._turns: dict[str, Kind] = {}
        self._turns_with_text: dict[str, Kind] = {}  # the arguments of calls as JSON text
        self._columns: dict[str, Kind | None] = {}  # None: JSON text

    @property
    def changes_conversations(self) -> bool:
        return bool(self.mixed or self.mixed_arguments)

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

    def write(self, trajectory: Trajectory) -> dict[str, Any]:
        """The row's columns, as they are or as JSON text."""
        row, told = self._write_conversation(trajectory)
        for name, kind in self._columns.items():
            raw = _NULL if name in told else trajectory.columns.get(name, _NULL)
            if name not in row:
                row[name] = raw if kind is not None else _as_text(raw)
        return row

    def changes(self) -> str:
        """What became of the conversations, in a line; "" where they are as they were."""
        if self.mixed:
            rows = "1 row" if self.converted == 1 else f"{self.converted:,} rows"
            lost = f"; {self.media:,} images and the like are now notes as [image]" if self.media else ""
            return f"{self.mixed}: {rows} became ShareGPT turns in the column {SHAREGPT_COLUMN!r}{lost}"
        return "the arguments of calls have no single type: they are JSON text in all rows" if self.mixed_arguments else ""

    def _write_conversation(self, trajectory: Trajectory) -> tuple[dict[str, Any], set[str]]:
        """The column with the turns, and which other columns are told by it."""
        datas = [turn.data for turn in trajectory.turns]
        if self.mixed:
            made = as_sharegpt(trajectory)
            self.media += made.media
            self.converted += made.turns != datas
            return {SHAREGPT_COLUMN: made.turns}, {trajectory.column} | ({TOOLS_COLUMN} if made.has_tools else set())
        if self.mixed_arguments:
            return {trajectory.column: [_with_text_arguments(data) for data in datas]}, set()
        return {trajectory.column: trajectory.columns[trajectory.column]}, set()

    def _learn_conversation(self, trajectory: Trajectory) -> bool:
        self._first = self._first or trajectory
        if not self.mixed:
            self.mixed = _difference(self._first, trajectory)
        if self.mixed or trajectory.in_text:
            return False
        new = False
        for turn in trajectory.turns:
            if trajectory.layout is MESSAGES:
                new |= self._learn_turn(self._turns_with_text, _with_text_arguments(turn.data))
            if not self.mixed_arguments:
                new |= self._learn_turn(self._turns, turn.data)
        return new

    def _learn_turn(self, kinds: dict[str, Kind], data: dict[str, Any]) -> bool:
        new = False
        for key, value in data.items():
            new |= key not in kinds
            try:
                new |= kinds.setdefault(key, Kind()).learn(value)
            except MixedTypes:
                if kinds is self._turns and self._turns_with_text and key == "tool_calls":
                    self.mixed_arguments = True
                else:
                    self.mixed = self.mixed or f"{key!r} of the turns has no single type"
        return new


def _difference(one: Trajectory, other: Trajectory) -> str:
    """Why the two conversations cannot stand in one column as they are; "" where they can."""
    if one.layout is not other.layout:
        return "the datasets mix ShareGPT turns and chat messages"
    if one.column != other.column:
        return f"the conversations are in the columns {one.column!r} and {other.column!r}"
    return "" if one.in_text == other.in_text else f"{one.column!r} is text in some rows and a list in others"


def _with_text_arguments(data: dict[str, Any]) -> dict[str, Any]:
    """The message with the arguments of its calls as JSON text."""
    calls = data.get("tool_calls")
    return data | {"tool_calls": [_call_with_text(each) for each in calls]} if isinstance(calls, list) else data


def _call_with_text(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    if isinstance(call.get("function"), dict):
        return call | {"function": _call_with_text(call["function"])}
    arguments = call.get("arguments")
    return call if arguments is None or isinstance(arguments, str) else call | {"arguments": _encode(arguments).decode()}


def _as_text(raw: msgspec.Raw) -> msgspec.Raw:
    text = bytes(raw)
    return raw if text[:1] == b'"' or text == b"null" else msgspec.Raw(_encode(text.decode()))
