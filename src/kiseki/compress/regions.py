"""What may be compressed, and which part of it: rules over whole units, pure.

A unit is a gpt turn with the tool turns that answer it, or any other turn by itself: what can be taken out without parting a call
from its response. The span is what lies between the protected turns at the start (the first system, human, gpt and tool turn)
and those at the end; a region is the part of the span that a summary or digest takes the place of. A system turn in the middle
and an earlier summary are never taken out, so a region lies on one side of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from kiseki.compress.config import CompressionConfig
from kiseki.compress.turns import Turn, is_summary


class Unit(msgspec.Struct, frozen=True):
    start: int
    end: int
    """The first turn after it."""


def units_of(turns: Sequence[Turn]) -> list[Unit]:
    units: list[Unit] = []
    for at, turn in enumerate(turns):
        if turn.role == "tool" and units and turns[units[-1].start].role == "gpt":
            units[-1] = Unit(units[-1].start, at + 1)
        else:
            units.append(Unit(at, at + 1))
    return units


def is_protected(turns: Sequence[Turn], config: CompressionConfig) -> list[bool]:
    """By turn: the first of each role, and the last N."""
    protected = [False] * len(turns)
    for role in ("system", "human", "gpt", "tool"):
        first = next((at for at, turn in enumerate(turns) if turn.role == role), None)
        if first is not None and getattr(config, f"first_{role}"):
            protected[first] = True
    for at in range(max(0, len(turns) - config.last_n_turns), len(turns)):
        protected[at] = True
    return protected


def between(turns: Sequence[Turn], config: CompressionConfig) -> range:
    """The turns after the protected ones at the start and before those at the end."""
    tail = max(0, len(turns) - config.last_n_turns)
    head = max((at + 1 for at, kept in enumerate(is_protected(turns, config)[:tail]) if kept), default=0)
    return range(head, tail)


def spans(turns: Sequence[Turn], config: CompressionConfig) -> list[list[Unit]]:
    """The compressible units, as lists of neighbours; empty where nothing may be compressed."""
    inside = between(turns, config)
    found: list[list[Unit]] = [[]]
    for unit in units_of(turns):
        if unit.start not in inside or unit.end > inside.stop:
            continue
        if turns[unit.start].role == "system" or is_summary(turns[unit.start]):
            found.append([])
        else:
            found[-1].append(unit)
    return [span for span in found if span]


def choose_region(
    turns: Sequence[Turn],
    tokens: Sequence[int],
    spans: Sequence[Sequence[Unit]],
    overage: int,
    replacement_tokens: Callable[[Sequence[Unit]], int],
    *,
    own_turn: bool,
) -> Sequence[Unit]:
    """The units that a summary shall take the place of: as few as will do, from a span's start; none where it would save nothing.

    `overage`: tokens that must go. `replacement_tokens`: what the summary of these units takes. `own_turn`: it will be a human
    turn, so the turn after the region should not be one; a longer or a shorter region is taken then, if there is one.
    """
    best: Sequence[Unit] = ()
    best_saved = 0
    for span in spans:
        removed = 0
        shorter: Sequence[Unit] = ()
        for count, unit in enumerate(span, 1):
            removed += sum(tokens[unit.start : unit.end])
            region = span[:count]
            saved = removed - replacement_tokens(region)
            doubled = own_turn and unit.end < len(turns) and turns[unit.end].role == "human"
            if saved >= overage and not doubled:
                return region
            if saved >= overage:
                shorter = shorter or region  # not nice, but it does: should no longer one be
            elif saved > best_saved and not doubled:
                best, best_saved = region, saved
        if shorter:
            return shorter
    return best
