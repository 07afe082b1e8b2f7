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

MIN_ROOM = 2
"""A digest takes at most one part in so many of a segment: the rest is for its turns."""


def split(draft: Draft, config: CompressionConfig, budget: int) -> list[Draft]:
    """The segments, in order; one where everything after the prompt is one unit. `budget`: tokens of a segment's text."""
    turns = draft.turns
    first = next((at for at, turn in enumerate(turns) if turn.role in ("gpt", "tool")), len(turns))
    units = [unit for unit in units_of(turns) if unit.start >= first]
    segments: list[Draft] = []
    at = 0
    while at < len(units):
        head, at_first = _head(draft, units, at, first, config, budget)
        used = sum(draft.counter.count(turn.text) for turn in head)
        end = at_first
        while end < len(units) and used + _tokens(draft, units[end]) <= budget:
            used += _tokens(draft, units[end])
            end += 1
        while end < len(units) and end - 1 > at_first and turns[units[end - 1].start].role == "human":
            end -= 1  # the question begins the next segment
        end = max(end, min(at_first + 1, len(units)))
        body = [turn for unit in units[at_first:end] for turn in turns[unit.start : unit.end]]
        piece = Draft([*head, *body], draft.layout, draft.counter)
        if piece.total > budget:
            shrink(piece, range(len(head), len(piece.turns)), budget)
        segments.append(piece)
        at = end
    return segments or [draft]


def _head(draft: Draft, units: list[Unit], at: int, first: int, config: CompressionConfig, budget: int) -> tuple[list[Turn], int]:
    """What a segment begins with, and its first unit after that."""
    prompt = list(draft.turns[:first])
    if at == 0:
        return prompt, 0
    systems = [turn for turn in prompt if turn.role == "system"]
    question = draft.turns[units[at].start]
    asks = question.role == "human"  # it takes the place of the first human turn, which the digest then tells of
    humans = [question] if asks else [turn for turn in prompt if turn.role != "system"]
    past = draft.turns[0 if asks else first : units[at].start]
    told = [turn for turn in past if turn.role != "system"]
    spent = sum(draft.counter.count(turn.text) for turn in (*systems, *humans))
    room = min(config.summary_target_tokens, max(0, budget - spent) // MIN_ROOM)
    digest = digest_text(told, draft.layout, draft.counter, room)
    if digest and humans:
        humans[0] = draft.layout.append(humans[0], digest)
    return [*systems, *humans], at + asks


def _tokens(draft: Draft, unit: Unit) -> int:
    return sum(draft.tokens[unit.start : unit.end])
