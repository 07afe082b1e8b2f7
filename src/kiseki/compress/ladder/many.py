"""Many outputs of one turn changed together: the turn is rewritten and counted a few times, however many outputs it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kiseki.compress.draft import Draft
from kiseki.compress.turns import Turn

EXACT = 4
"""Rounds after which each takes twice as many outputs as the one before, at least."""


def change_outputs(
    draft: Draft, at: int, gains: Mapping[int, int], make: Callable[[Sequence[int]], Turn], budget: int
) -> list[int]:
    """Change outputs of turn `at`, in the order of `gains`, until the draft is within `budget` tokens. Returns the numbers of
    those that were changed: not the ones with which the turn would be no shorter.

    `gains`: by the output's number, about how many tokens its change saves. `make`: the turn as it is in the draft, with these
    outputs changed. It is done in rounds, each for as many outputs as the gains say; where they promise too much again and again,
    for more.
    """
    waiting = list(gains)
    changed: list[int] = []
    rounds = 0
    while waiting and (too_many := draft.total - budget) > 0:
        least = 2 ** max(rounds - EXACT, 0)
        count = saved = 0
        while count < len(waiting) and (count < least or saved < too_many):
            saved += gains[waiting[count]]
            count += 1
        now, waiting = waiting[:count], waiting[count:]
        if draft.put(at, make(now)):
            changed += now
        rounds += 1
    return changed
