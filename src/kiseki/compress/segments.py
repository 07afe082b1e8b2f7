"""One trajectory as several, each of which fits: nothing of what the model wrote is lost.

Every segment begins with the system turns and the first human turn; from the second on, that turn also has a digest of what
happened before the segment. A segment ends with a gpt turn or a tool turn, never between a call and its response. Outputs are cut
only in a unit that alone is larger than a segment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from kiseki.compress.config import CompressionConfig
from kiseki.compress.draft import Draft
from kiseki.compress.ladder.digest import Digest
from kiseki.compress.ladder.ladder import Ladder, shrink
from kiseki.compress.regions import Unit, units_of

DIGEST_SHARE = 2
"""A digest takes at most one part in so many of a segment: the rest is for its turns."""
LEAST_DIGEST = 40
"""Tokens with which a digest can say something."""


class Segment(msgspec.Struct, frozen=True):
    """One of them."""

    draft: Draft
    left_out: int = 0
    """Tokens of outputs that it lacks."""
    steps: Ladder = Ladder()
    """How they were left out."""


class _Whole(msgspec.Struct, frozen=True):
    """The trajectory that is split."""

    draft: Draft
    first: int
    """The first turn after the prompt."""
    units: Sequence[Unit]
    """Those after the prompt."""
    told: Sequence[Unit]
    """Those that digests tell of, the prompt's too."""
    digest: Digest
    """One for all segments: each tells a little more than the one before."""


def split(draft: Draft, config: CompressionConfig, budget: int) -> list[Segment]:
    """The segments, in order: one where everything after the prompt is one unit, none where nothing is. `budget`: tokens of a
    segment's text."""
    turns = draft.turns
    first = next((at for at, turn in enumerate(turns) if turn.role in ("gpt", "tool")), len(turns))
    units = units_of(turns)
    told = [unit for unit in units if turns[unit.start].role != "system"]
    digest = Digest(turns, draft.layout, draft.counter)
    whole = _Whole(draft, first, [unit for unit in units if unit.start >= first], told, digest)
    segments: list[Segment] = []
    at = 0
    while at < len(whole.units):
        segment, end = _segment(whole, at, budget, config.summary_target_tokens)
        if segment.draft.total > budget and at > 0:
            segment, end = _segment(whole, at, budget, 0)
        segments.append(segment)
        at = end
    return segments


def _segment(whole: _Whole, at: int, budget: int, digest_tokens: int) -> tuple[Segment, int]:
    """The segment from unit `at` on, and the first unit after it."""
    units, tokens = whole.units, whole.draft.tokens
    piece, start = _head(whole, at, budget, digest_tokens)
    head, used = len(piece.turns), piece.total
    end = start
    while end < len(units) and (used := used + sum(tokens[units[end].start : units[end].end])) <= budget:
        end += 1
    while end < len(units) and end - 1 > start and whole.draft.turns[units[end - 1].start].role == "human":
        end -= 1  # the question begins the next segment
    end = max(end, min(start + 1, len(units)))
    for unit in units[start:end]:
        piece.take(whole.draft, unit.start, unit.end)
    if piece.total <= budget:
        return Segment(piece), end
    total = piece.total
    steps = shrink(piece, range(head, len(piece.turns)), budget)
    return Segment(piece, total - piece.total, steps), end


def _head(whole: _Whole, at: int, budget: int, digest_tokens: int) -> tuple[Draft, int]:
    """What a segment begins with, and its first unit after that."""
    draft, turns = whole.draft, whole.draft.turns
    head = Draft((), draft.layout, draft.counter)
    if at == 0:
        head.take(draft, 0, whole.first)
        return head, 0
    start = whole.units[at].start
    asks = turns[start].role == "human"  # it takes the place of the first human turn, which the digest then tells of
    systems = [place for place in range(whole.first) if turns[place].role == "system"]
    humans = [start] if asks else [place for place in range(whole.first) if turns[place].role != "system"]
    for place in (*systems, *humans):
        head.take(draft, place, place + 1)
    past = _between(whole.told, 0 if asks else whole.first, start)
    room = min(digest_tokens, (budget - head.total) // DIGEST_SHARE)
    if humans and past and room >= LEAST_DIGEST:
        host = len(systems)
        text = whole.digest.text(past, room)
        head.splice(host, host + 1, [draft.layout.append(head.turns[host], text)])
    return head, at + asks


def _between(units: Sequence[Unit], start: int, end: int) -> Sequence[Unit]:
    """The units among the turns from `start` to `end`."""
    first, after = (bisect_left(units, place, key=lambda unit: unit.start) for place in (start, end))
    return units[first:after]
