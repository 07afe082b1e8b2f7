"""A row's conversation as turns, whatever its layout: the one model that every strategy works on.

Two layouts are read, by the keys of the turns and not by the column's name: ShareGPT (`from`, `value`; `sharegpt.py`) and chat
messages (`role`, `content`; `messages.py`). What is not touched is written back byte for byte: turns and columns are kept as
the JSON text that they came as.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from kiseki.trajectory.row_files import decode_row, encode_row

Role = Literal["system", "human", "gpt", "tool"]

SUMMARY_MARK = "[CONTEXT SUMMARY]:"
"""How every summary and digest begins, so that it is known again."""


class Turn(msgspec.Struct, frozen=True):
    """One turn. `role` is what it is in the conversation: `tool` for every turn that holds results of calls, also where its
    layout names it otherwise."""

    role: Role
    text: str
    """What is counted: everything that the model reads of it."""
    data: dict[str, Any]
    """The turn's JSON object."""
    raw: msgspec.Raw
    """The same as text, as it came or was encoded."""


class Call(msgspec.Struct, frozen=True):
    """One tool call of a gpt turn."""

    name: str
    arguments: str
    """JSON text as the model wrote it."""
    id: str = ""


class Output(msgspec.Struct, frozen=True):
    """One result in a tool turn."""

    text: str
    """The result; JSON text where it is structured."""
    name: str = ""
    """Of the tool, where the turn says it."""
    id: str = ""
    """Of the call, where the turn says it."""


Edit = Callable[[str], str]


class Layout(Protocol):
    """How turns are read and written. Stateless; never changes a turn in place."""

    def read(self, data: dict[str, Any], raw: msgspec.Raw) -> Turn:
        """Raises `ValueError` for a turn with a role that is none."""
        ...

    def calls(self, turn: Turn) -> list[Call]:
        """Of a gpt turn, in order; one that can't be read is left out."""
        ...

    def outputs(self, turn: Turn) -> list[Output]:
        """Of a tool turn, in order; at least one."""
        ...

    def edit_leaves(self, turn: Turn, edit: Edit, which: Collection[int] | None = None) -> Turn:
        """The tool turn with `edit` applied to every string inside its outputs (inside their JSON where they are JSON, so that it
        stays valid), or only to those of the outputs with the numbers `which`. The same object where nothing changes."""
        ...

    def replace_outputs(self, turn: Turn, texts: Mapping[int, str]) -> Turn:
        """The tool turn with whole outputs, by number, replaced by plain text. Ids and names stay."""
        ...

    def append(self, turn: Turn, text: str) -> Turn:
        """The turn with a paragraph after everything that it has."""
        ...

    def human(self, text: str) -> Turn:
        """A new human turn."""
        ...

    def message(self, turn: Turn) -> dict[str, Any]:
        """As a chat template takes it: `role`, `content` and what else the layout has."""
        ...


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
    from kiseki.compress.layouts.messages import MESSAGES
    from kiseki.compress.layouts.sharegpt import SHAREGPT
    from kiseki.compress.layouts.text_protocol import as_text_protocol

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


def turn_of(role: Role, text: str, data: dict[str, Any]) -> Turn:
    """A turn that was made or changed here."""
    return Turn(role, text, data, msgspec.Raw(_encode(data)))


def is_summary(turn: Turn) -> bool:
    """Whether a summary or digest was put there earlier: a human turn that begins with the mark, or a human or tool turn whose
    last paragraph or part does, after its responses. A mark in the middle is only quoted."""
    if turn.role not in ("human", "tool"):
        return False
    content = turn.data.get("value", turn.data.get("content"))
    last = content[-1] if isinstance(content, list) and content else None
    own = last["text"] if isinstance(last, dict) and isinstance(last.get("text"), str) else turn.text.rpartition("\n\n")[2]
    if not own.startswith(SUMMARY_MARK):
        return turn.role == "human" and turn.text.startswith(SUMMARY_MARK)
    # where responses have tags, a summary's own are escaped
    return not (turn.text.lstrip().startswith("<tool_response>") and "</tool_response>" in own)
