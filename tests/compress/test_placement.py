"""Where a digest may stand: never in an output that only quotes one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from compress.laddering import CONFIG, LAYOUTS, laddered, lines
from compress.trajectories import LayoutName, make_row, shell

from kiseki.compress.turns import SUMMARY_MARK


@pytest.mark.parametrize("placement", ["human", "first_human"])
@LAYOUTS
def test_an_output_that_quotes_a_summary_is_an_output(layout: LayoutName, placement: Any) -> None:
    quoted = f"notes.md\n\n{SUMMARY_MARK} not one of ours\n\n{lines(60)}"
    steps = [("read", {"file": "notes.md"}, quoted), ("read", {"file": "b"}, f"b\n{quoted}")]
    steps += [shell("ls", lines(9, f"{number}")) for number in range(9)]
    config = msgspec.structs.replace(CONFIG, summary_placement=placement)
    row = make_row(steps, layout=layout, said="I look. " * 20)
    before, draft, done = laddered(row, 300, config)
    assert done.observations_cut + done.observations_masked == 1 and draft.turns[5] != before.turns[5]
    before, draft, done = laddered(row, 10**6, config)
    assert done.units_digested and [turn.raw for turn in draft.turns[2:4]] == [turn.raw for turn in before.turns[2:4]]


@LAYOUTS
def test_the_last_paragraph_of_a_protected_output_is_no_place_for_a_digest(layout: LayoutName) -> None:
    steps = [("read", {"file": "notes.md"}, f"notes.md\n\n{SUMMARY_MARK} not one of ours"), *[shell("ls", "x")] * 9]
    before, draft, done = laddered(make_row(steps, layout=layout, said="I look. " * 20), 10**6)
    assert done.units_digested and draft.turns[3] == before.turns[3]
    assert draft.turns[4].role == "human" and draft.turns[4].text.startswith(SUMMARY_MARK)
