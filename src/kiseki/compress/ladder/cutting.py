"""Outputs cut in the middle, head and tail kept: inside the strings of their JSON, to a number of tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from kiseki.compress.draft import Draft
from kiseki.compress.ladder.many import change_outputs

_mark = re.compile(r"\n?\[\.\.\. ([0-9][0-9,]{0,14}) tokens left out \.\.\.\]\n?")
MARK_LENGTH = 40
"""Characters of a mark, about."""
LEAST_KEPT = 80
"""Characters that stay of each string."""
NEAR = 80
"""Characters within which a line end is preferred to the exact place."""
TRIES = 8


def cut_output(draft: Draft, at: int, number: int, size: int, most: int, tolerance: int) -> None:
    """Cut output `number` of turn `at` so that the turn has at most `most` tokens, and not more than `tolerance`
    fewer if it can be; as far as it goes where that can't be done.

    `size`: tokens of the output, about; by its characters it is estimated how many tokens are left out. Of several strings in the
    output the longest are cut, to the same length.
    """
    turn, layout, count = draft.turns[at], draft.layout, draft.counter.count
    lengths: list[int] = []

    def measure(text: str) -> str:
        lengths.append(len(text))
        return text

    layout.edit_leaves(turn, measure, (number,))
    density = size / max(sum(lengths), 1)
    # characters to keep, and the tokens of the turn then: few enough, and too many
    few, many = (0, draft.tokens[at] - size), (sum(lengths), draft.tokens[at])
    best = shortest = None
    tried: set[int] = set()
    for _ in range(TRIES):
        share = (most - tolerance / 2 - few[1]) / max(many[1] - few[1], 1)
        keep = few[0] + round((many[0] - few[0]) * min(max(share, 0), 1))
        longest = _longest(lengths, keep)
        if longest in tried:
            break
        tried.add(longest)
        made = layout.edit_leaves(turn, partial(cut_text, keep=longest, density=density), (number,))
        tokens = count(made.text)
        if tokens > most:
            shortest, many = made, (keep, tokens)
            continue
        best, few = made, (keep, tokens)
        if most - tokens <= tolerance:
            break
    if found := best or shortest:
        draft.put(at, found)


def cut_outputs(draft: Draft, at: int, sizes: Sequence[int], most: int, budget: int) -> None:
    """Cut the outputs of turn `at` that have more than `most` tokens, each string in them to about as many, until the draft is
    within `budget`: the largest first. Less exact than `cut_output`, but the turn is not rewritten and counted for each output.

    `sizes`: tokens of each output, about.
    """
    turn = draft.turns[at]
    density = draft.tokens[at] / max(len(turn.text), 1)
    edit = partial(cut_text, keep=int(most / density), density=density)
    large = sorted((number for number, size in enumerate(sizes) if size > most), key=lambda number: -sizes[number])
    change_outputs(
        draft,
        at,
        {number: sizes[number] - most for number in large},
        lambda numbers: draft.layout.edit_leaves(draft.turns[at], edit, numbers),
        budget,
    )


def _longest(lengths: list[int], keep: int) -> int:
    """The length to which strings are cut so that `keep` characters of all of them are left."""
    rest = keep
    for left, length in zip(range(len(lengths), 0, -1), sorted(lengths), strict=True):
        if length * left > rest:
            return max(rest // left, LEAST_KEPT)
        rest -= length
    return max(lengths, default=LEAST_KEPT)


def cut_text(text: str, keep: int, density: float) -> str:
    """`text` with about `keep` characters of its head and tail, and a line between them that says how many tokens are missing, at
    `density` tokens per character. What was left out earlier is counted in."""
    if len(text) <= keep + MARK_LENGTH:
        return text
    earlier = _mark.search(text) if "[... " in text else None
    before, after = (text[: earlier.start()], text[earlier.end() :]) if earlier else (text, text)
    head = _head(before, keep - min(len(after), keep // 2))
    tail = _tail(after, keep - min(len(before), keep - keep // 2))
    missing = len(before) - len(head) + len(after) - len(tail) - (0 if earlier else len(text))
    if missing <= 0:
        return text
    left_out = max(round(missing * density), 1) + (int(earlier[1].replace(",", "")) if earlier else 0)
    return "\n".join(filter(None, [head, f"[... {left_out:,} tokens left out ...]", tail]))


def _head(text: str, keep: int) -> str:
    if len(text) <= keep:
        return text
    end = text.rfind("\n", max(keep - NEAR, keep // 2), keep + 1)
    return text[:keep] if end < 0 else text[:end]


def _tail(text: str, keep: int) -> str:
    if len(text) <= keep:
        return text
    start = len(text) - keep
    end = text.find("\n", max(start - 1, 0), min(start + NEAR, len(text) - keep // 2))
    return text[start:] if end < 0 else text[end + 1 :]
