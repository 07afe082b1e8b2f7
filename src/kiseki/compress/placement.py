"""Where the text that takes a region's place stands: as a human turn of its own, in the tool turn before it, or in the first
human turn."""

from __future__ import annotations

from kiseki.compress.config import Placement
from kiseki.compress.draft import Draft
from kiseki.compress.turns import SUMMARY_MARK


def place(draft: Draft, start: int, end: int, text: str, placement: Placement) -> int:
    """Put `text` in the place of the turns from `start` to `end`; returns the turn that has it then.

    An earlier summary, and the output that an agent without tool calls got as a human turn, take it in: two human turns in a row
    are what many loaders refuse. Where the tool turn or the first human turn that it should go into is not there, it gets a turn
    of its own. In another turn it has no blank lines: its end is known by that (`is_summary`).
    """
    at = _host(draft, start, placement)
    if at is None:
        draft.splice(start, end, [draft.layout.human(text)])
        return start
    draft.splice(start, end, [])
    paragraph = "\n".join(line for line in text.split("\n") if line.strip())
    draft.splice(at, at + 1, [draft.layout.append(draft.turns[at], paragraph)])
    return at


def _host(draft: Draft, start: int, placement: Placement) -> int | None:
    """The turn that takes the text in; None for a turn of its own."""
    if placement == "first_human":
        return next((at for at, turn in enumerate(draft.turns[:start]) if turn.role == "human"), None)
    before = start - 1
    if before < 0:
        return None
    turn = draft.turns[before]
    if turn.role == "tool":
        in_human_turn = draft.layout.human("").data.keys() <= turn.data.keys() and draft.layout.message(turn)["role"] == "user"
        return before if placement == "tool" or in_human_turn else None
    return before if turn.role == "human" and turn.text.startswith(SUMMARY_MARK) else None
