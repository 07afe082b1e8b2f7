"""A conversation as turns, whatever its layout: the one model that every strategy works on. `rows.py` reads and writes them.

What is not touched is written back byte for byte: turns are kept as the JSON text that they came as.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, Protocol

import msgspec

from kiseki.trajectory.summaries import SUMMARY_MARK as SUMMARY_MARK

Role = Literal["system", "human", "gpt", "tool"]


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


_encode = msgspec.json.Encoder().encode


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
