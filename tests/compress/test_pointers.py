"""Pointers stay true: what they point to is there, or they are pointers no more."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from compress.laddering import CONFIG, LAYOUTS, check_calls, laddered, lines, outputs
from compress.trajectories import LayoutName, make_row, shell

from kiseki.compress.ladder.ladder import Ladder, run_ladder

SAME, OLDER, MASK = "[Same output as before", "[Older view of ", "[Old output left out]"
VIEW = ("read_file", {"path": "a.py"})


@LAYOUTS
def test_a_pointer_goes_with_what_it_points_to(layout: LayoutName) -> None:
    steps = [
        *(shell("ls", "x"), (*VIEW, lines(30, "old")), shell("make", lines(40)), (*VIEW, lines(30, "new"))),
        *(shell("make", lines(40)), *(shell(f"echo {number}", lines(30, f"{number}")) for number in range(4)), shell("ls", "x")),
    ]
    row = make_row(steps, layout=layout)
    shown = {}
    for less in (600, 1_300, 1_900, 2_100, 2_300):
        before, draft, done = laddered(row, less)
        shown[less] = [each[: len(MASK)] if each.startswith("[") else "shown" for each in outputs(draft)[1:5]]
        notes = [each for each in outputs(draft) if each.startswith("[")]
        assert draft.total <= before.total - less and done.observations_repeated == 2 and not done.units_digested
        assert len(notes) == done.observations_masked + sum(each.startswith((SAME, OLDER)) for each in notes)
        again = list(draft.turns)
        assert run_ladder(draft, CONFIG, before.total - less) == Ladder() and draft.turns == again
    assert shown[600] == [OLDER + "a.py l", "shown", "shown", SAME[: len(MASK)]]
    masked = [MASK if first else "[Old output left out:" for first in (True, False, False, True)]
    assert shown[2_300] == masked


def test_a_call_that_said_something_else_since_is_not_pointed_to() -> None:
    texts = [lines(40), lines(40, "other"), lines(40)]
    row = make_row([shell("ls", "x"), *(shell("make", text) for text in texts), shell("ls", "x")])
    _, draft, done = laddered(row, 50)
    assert done.observations_repeated == 0 and SAME not in "".join(outputs(draft))


def test_what_a_protected_pointer_points_to_is_not_left_out() -> None:
    steps = [shell("ls", "x"), shell("make", lines(40)), *(shell(f"e {number}", lines(9, f"{number}")) for number in range(9))]
    row = make_row([*steps, shell("make", lines(40)), shell("ls", "x")])
    _, draft, done = laddered(row, 200)
    assert done == Ladder(observations_repeated=1)
    config = msgspec.structs.replace(CONFIG, last_n_turns=6)
    protected = draft.turns[-6:]
    done = run_ladder(draft, config, draft.total - 400)
    assert done.observations_masked and draft.turns[-6:] == protected
    assert json.loads(outputs(draft)[1])["output"].startswith("line 0")


@pytest.mark.parametrize("less", [150, 10**6])
def test_a_state_that_a_digest_takes_out_is_not_pointed_to(less: int) -> None:
    first = [shell("ls", "x"), (*VIEW, lines(30, "old"))]  # the second of them may be edited, but its unit stays
    write: Any = ("write_file", {"path": "a.py", "content": lines(30, "new")}, "written")
    row = make_row([first, write, *[shell("ls", "y")] * 6], layout="messages", said="I look. " * 20)
    _, draft, done = laddered(row, less)
    assert (done.observations_repeated, done.units_digested > 0) == (1, less > 150)
    assert outputs(draft)[1].startswith(MASK if done.units_digested else OLDER)
    check_calls(draft)
