"""One trajectory as several, each of which fits: nothing of what the model wrote is lost.

Every segment begins with the system turns and the first human turn; from the second on, that turn also has a digest of what
happened before the segment. A segment ends with a gpt turn or a tool turn, never between a call and its response, and begins
with what was said right before its first gpt turn. Outputs are cut only in a step that alone is larger than a segment.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

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
ROUNDS = 4
"""Attempts at a segment's size where a chat template adds to it, which is only known of a whole conversation."""


class Segment(msgspec.Struct, frozen=True):
    """One of them."""

    draft: Draft
    tokens: int
    """What it counts, as it is asked for."""
    left_out: int = 0
    """Tokens of outputs that it lacks."""
    steps: Ladder = Ladder()
    """How they were left out."""


class _Whole(msgspec.Struct, frozen=True):
    """The trajectory that is split."""

    draft: Draft
    first: int
    """The first turn after the prompt."""
    steps: Sequence[Unit]
    """What stays together, after the prompt: a unit of the model's, and what was said to it before."""
    told: Sequence[Unit]
    """Those that digests tell of, the prompt's too."""
    digest: Digest
    """One for all segments: each tells a little more than the one before."""
    count: Callable[[Draft], int]


def split(draft: Draft, config: CompressionConfig, target: int, count: Callable[[Draft], int]) -> list[Segment]:
    """The segments, in order: one where everything after the prompt is one step, none where nothing is.

    `target`: what a segment may count. `count`: what it does count; raises `ValueError` where that cannot be said.
    """
    turns = draft.turns
    first = next((at for at, turn in enumerate(turns) if turn.role in ("gpt", "tool")), len(turns))
    units = units_of(turns)
    told = [unit for unit in units if turns[unit.start].role != "system"]
    steps = _steps([unit for unit in units if unit.start >= first], [turn.role == "gpt" for turn in turns])
    whole = _Whole(draft, first, steps, told, Digest(turns, draft.layout, draft.counter), count)
    segments: list[Segment] = []
    at = 0
    while at < len(steps):
        segment, end = _fitting(whole, at, target, config.summary_target_tokens)
        if segment.tokens > target and at > 0:
            segment, end = _fitting(whole, at, target, 0)
        segments.append(segment)
        at = end
    return segments


def _steps(units: Sequence[Unit], is_gpt: Sequence[bool]) -> list[Unit]:
    """Units, each of the model's with those before it that are not; what follows the last one is a step of its own."""
    steps: list[Unit] = []
    is_open = False
    for unit in units:
        start = steps.pop().start if is_open else unit.start
        steps.append(Unit(start, unit.end))
        is_open = not is_gpt[unit.start]
    return steps


def _fitting(whole: _Whole, at: int, target: int, digest_tokens: int) -> tuple[Segment, int]:
    """The segment from step `at` on, and the first step after it."""
    budget = target
    for _ in range(ROUNDS):
        segment, end = _segment(whole, at, budget, digest_tokens)
        if segment.tokens <= target or segment.draft.total > budget:
            break
        budget = segment.draft.total - (segment.tokens - target)
    return segment, end


def _segment(whole: _Whole, at: int, budget: int, digest_tokens: int) -> tuple[Segment, int]:
    """The same with as many steps as are within `budget` tokens of text, but at least one."""
    steps, tokens = whole.steps, whole.draft.tokens
    piece, start = _head(whole, at, budget, digest_tokens)
    head, used = len(piece.turns), piece.total + sum(tokens[start : steps[at].end])
    end = at + 1
    while end < len(steps) and (used := used + sum(tokens[steps[end].start : steps[end].end])) <= budget:
        end += 1
    piece.take(whole.draft, start, steps[end - 1].end)
    total = piece.total
    done = shrink(piece, range(head, len(piece.turns)), budget)
    return Segment(piece, whole.count(piece), total - piece.total, done), end


def _head(whole: _Whole, at: int, budget: int, digest_tokens: int) -> tuple[Draft, int]:
    """What a segment begins with, and its first turn after that."""
    draft, turns = whole.draft, whole.draft.turns
    head = Draft((), draft.layout, draft.counter)
    if at == 0:
        head.take(draft, 0, whole.first)
        return head, whole.first
    start = whole.steps[at].start
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
    return head, start + asks


def _between(units: Sequence[Unit], start: int, end: int) -> Sequence[Unit]:
    """The units among the turns from `start` to `end`."""
    first, after = (bisect_left(units, place, key=lambda unit: unit.start) for place in (start, end))
    return units[first:after]
