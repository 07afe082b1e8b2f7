"""One trajectory as several, each of which fits: nothing of what the model wrote is lost.

Every segment begins with the system turns and the first human turn; from the second on, that turn also has a digest of what
happened before the segment. A segment ends with a gpt turn or a tool turn, never between a call and its response. Outputs are cut
only in a unit that alone is larger than a segment.
"""

from __future__ import annotations

from kiseki.compress.config import CompressionConfig
from kiseki.compress.draft import Draft
from kiseki.compress.ladder.digest import digest_text
from kiseki.compress.ladder.ladder import shrink
from kiseki.compress.regions import Unit, units_of
from kiseki.compress.turns import Turn

DIGEST_SHARE = 2
"""A digest takes at most one part in so many of a segment: the rest is for its turns."""
LEAST_DIGEST = 40
"""Tokens with which a digest can say something."""


def split(draft: Draft, config: CompressionConfig, budget: int) -> list[Draft]:
    """The segments, in order; one where everything after the prompt is one unit. `budget`: tokens of a segment's text."""
    turns = draft.turns
    first = next((at for at, turn in enumerate(turns) if turn.role in ("gpt", "tool")), len(turns))
    units = [unit for unit in units_of(turns) if unit.start >= first]
    segments: list[Draft] = []
    at = 0
    while at < len(units):
        piece, end = _segment(draft, units, at, first, budget, config.summary_target_tokens)
        if piece.total > budget and at > 0:
            piece, end = _segment(draft, units, at, first, budget, 0)
        segments.append(piece)
        at = end
    return segments or [draft]


def _segment(draft: Draft, units: list[Unit], at: int, first: int, budget: int, digest_tokens: int) -> tuple[Draft, int]:
    """The segment from unit `at` on, and the first unit after it."""
    turns, count = draft.turns, draft.counter.count
    head, start = _head(draft, units, at, first, budget, digest_tokens)
    used = sum(count(turn.text) for turn in head)
    end = start
    while end < len(units) and used + _tokens(draft, units[end]) <= budget:
        used += _tokens(draft, units[end])
        end += 1
    while end < len(units) and end - 1 > start and turns[units[end - 1].start].role == "human":
        end -= 1  # the question begins the next segment
    end = max(end, min(start + 1, len(units)))
    body = [turn for unit in units[start:end] for turn in turns[unit.start : unit.end]]
    piece = Draft([*head, *body], draft.layout, draft.counter)
    if piece.total > budget:
        shrink(piece, range(len(head), len(piece.turns)), budget)
    return piece, end


def _head(draft: Draft, units: list[Unit], at: int, first: int, budget: int, digest_tokens: int) -> tuple[list[Turn], int]:
    """What a segment begins with, and its first unit after that."""
    prompt = list(draft.turns[:first])
    if at == 0:
        return prompt, 0
    systems = [turn for turn in prompt if turn.role == "system"]
    question = draft.turns[units[at].start]
    asks = question.role == "human"  # it takes the place of the first human turn, which the digest then tells of
    humans = [question] if asks else [turn for turn in prompt if turn.role != "system"]
    past = draft.turns[0 if asks else first : units[at].start]
    spent = sum(draft.counter.count(turn.text) for turn in (*systems, *humans))
    room = min(digest_tokens, (budget - spent) // DIGEST_SHARE)
    if humans and room >= LEAST_DIGEST:
        told = [turn for turn in past if turn.role != "system"]
        humans[0] = draft.layout.append(humans[0], digest_text(told, draft.layout, draft.counter, room))
    return [*systems, *humans], at + asks


def _tokens(draft: Draft, unit: Unit) -> int:
    return sum(draft.tokens[unit.start : unit.end])
