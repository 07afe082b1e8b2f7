"""Rows with a conversation, read and written.

Two layouts are read, by the keys of the turns and not by the column's name: ShareGPT (`from`, `value`) and chat messages (`role`,
`content`). Columns are kept as the JSON text that they came as, and written back so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kiseki.compress.layouts.messages import MESSAGES
from kiseki.compress.layouts.sharegpt import SHAREGPT
from kiseki.compress.layouts.text_protocol import as_text_protocol
from kiseki.compress.turns import Layout, Turn
from kiseki.trajectory.json_rows import decode_row, encode_row


class Trajectory(msgspec.Struct, frozen=True):
    """One row, read."""

    columns: dict[str, msgspec.Raw]
    """Every column as JSON text."""
    column: str
    """Which of them has the conversation."""
    in_text: bool
    """That column is a string which holds the JSON list."""
    layout: Layout
    turns: tuple[Turn, ...]


_decode_columns = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_turns = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_turn = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode

COLUMNS = ("conversations", "messages", "conversation", "trajectory")
"""Columns that may have the conversation; the first that a row has is taken."""


def read_trajectory(row: bytes) -> Trajectory:
    """One row's JSON text. Raises `ValueError` with the reason for one that is no trajectory."""
    try:
        row.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not valid UTF-8 (byte {error.start + 1} of the line)") from None
    try:
        columns = _decode_columns(row)
        column, listed, in_text = _conversation(columns)
        decoded = [(_decode_turn(raw), raw) for raw in listed]
        return _build(columns, column, in_text, decoded)
    except (msgspec.DecodeError, RecursionError):
        value = decode_row(row)  # what strict readers refuse, as lone surrogates and NaN, is read and then written clean
        if not isinstance(value, dict):
            raise ValueError("the row is not a JSON object") from None
        columns = {name: msgspec.Raw(encode_row(each)) for name, each in value.items()}
        column, listed, in_text = _conversation(columns)
        return _build(columns, column, in_text, [(_decode_object(raw), raw) for raw in listed])


def _decode_object(raw: msgspec.Raw) -> dict[str, Any]:
    try:
        return _decode_turn(raw)
    except msgspec.DecodeError:
        raise ValueError("a turn is not a JSON object") from None


def _conversation(columns: dict[str, msgspec.Raw]) -> tuple[str, list[msgspec.Raw], bool]:
    """Which column it is, its turns, and whether they are inside a string. One with turns goes before one without."""
    empty = ""
    for name in COLUMNS:
        raw = columns.get(name)
        if raw is None:
            continue
        start = bytes(raw)[:1]
        if start == b"[":
            if listed := _decode_turns(raw):
                return name, listed, False
            empty = empty or name
        elif start == b'"':
            inner = msgspec.json.decode(raw, type=str)
            if inner.lstrip()[:1] == "[":
                try:
                    return name, _decode_turns(inner), True
                except msgspec.DecodeError as error:
                    raise ValueError(f"column {name!r} holds text that is no JSON list: {error}") from None
    if empty:
        return empty, [], False
    raise ValueError("there is no conversation: neither 'conversations' nor 'messages' is a list of turns")


def _build(
    columns: dict[str, msgspec.Raw], column: str, in_text: bool, decoded: Sequence[tuple[dict[str, Any], msgspec.Raw]]
) -> Trajectory:

    layout: Layout = SHAREGPT if any("from" in data for data, _ in decoded) else MESSAGES
    turns = []
    for number, (data, raw) in enumerate(decoded, 1):
        try:
            turns.append(layout.read(data, raw))
        except ValueError as error:
            raise ValueError(f"turn {number}: {error}") from None
    return Trajectory(columns, column, in_text, layout, as_text_protocol(tuple(turns)))


def write_row(trajectory: Trajectory, turns: Sequence[Turn], more: Mapping[str, Any]) -> bytes:
    """The row as JSON text with these turns, and with `more` columns at its end (in place of any of the same name)."""
    columns: dict[str, Any] = dict(trajectory.columns)
    if list(turns) != list(trajectory.turns):
        listed = _encode([turn.raw for turn in turns])
        columns[trajectory.column] = msgspec.Raw(_encode(listed.decode()) if trajectory.in_text else listed)
    for name, value in more.items():
        columns.pop(name, None)
        columns[name] = value
    return _encode(columns)
