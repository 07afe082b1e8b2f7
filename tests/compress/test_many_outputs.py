"""Turns with many outputs: the work for each does not grow with their number."""

from __future__ import annotations

import json

import pytest
from compress.laddering import CONFIG, check_calls, laddered, lines, outputs, read
from compress.trajectories import Counting, make_row, shell

from kiseki.compress.draft import Draft
from kiseki.compress.ladder.ladder import Ladder, run_ladder


@pytest.mark.parametrize(
    ("what", "length", "less", "step"),
    [
        ("one", 20, 7_000, "observations_repeated"),
        ("each", 120, 70_000, "observations_cut"),
        ("each", 8, 5_000, "observations_masked"),
        ("each", 8, 10**9, "observations_masked"),
    ],
)
def test_a_turn_with_many_outputs_is_rewritten_and_counted_a_few_times(what: str, length: int, less: int, step: str) -> None:
    parallel = [shell(f"c {number}", lines(length, f"{number if what == 'each' else 0}")) for number in range(100)]
    row = make_row([shell("a", "x"), parallel, shell("b", "x"), shell("e", "x")])
    counter = Counting()
    before = read(row)
    draft = Draft(before.turns, before.layout, counter)
    done = run_ladder(draft, CONFIG, before.total - less)
    assert done.counts()[step] > 20
    assert counter.characters < 15 * len(json.dumps(row))
    if less < before.total:
        size = before.tokens[5] // 100
        assert 0 <= before.total - less - draft.total < 4 * size, "no more than needed, by an output or a few"
    check_calls(draft)


def test_of_many_outputs_the_large_ones_are_cut() -> None:
    parallel = [shell(f"c {number}", lines(400 if number == 30 else 3, f"{number}")) for number in range(40)]
    row = make_row([shell("a", "x"), parallel, shell("b", "x"), shell("e", "x")])
    before, draft, done = laddered(row, 1_000)
    assert done == Ladder(observations_cut=1)
    changed = [at for at, (old, new) in enumerate(zip(outputs(before), outputs(draft), strict=True)) if old != new]
    assert changed == [31]
