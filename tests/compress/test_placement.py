"""Where a digest may stand: never in an output that only quotes one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from compress.laddering import CONFIG, LAYOUTS, laddered, lines
from compress.trajectories import LayoutName, make_row, shell

from kiseki.compress.ladder.ladder import Ladder, run_ladder
from kiseki.compress.turns import SUMMARY_MARK, is_summary


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


@pytest.mark.parametrize("placement", ["human", "tool", "first_human"])
@pytest.mark.parametrize("as_parts", [False, True])
@LAYOUTS
def test_a_digest_that_names_tags_is_known_again(layout: LayoutName, as_parts: bool, placement: Any) -> None:
    steps = [shell(f"grep -n </tool_response> f{number}", lines(30, "<tool_response>")) for number in range(9)]
    row = make_row([[shell("ls", "x"), shell("ls", "y")], *steps], layout=layout, said="I look. " * 20)
    turns = row["messages" if layout == "messages" else "conversations"]
    for at in (11, 7):
        rule = {"from": "system", "value": "A rule."} if layout == "sharegpt" else {"role": "system", "content": "A rule."}
        turns.insert(at, rule)
    if as_parts and layout == "messages":
        for turn in turns:
            turn["content"] = [{"type": "text", "text": turn["content"]}]
    config = msgspec.structs.replace(CONFIG, summary_placement=placement)
    _, draft, done = laddered(row, 10**6, config)
    told = [turn for turn in draft.turns if is_summary(turn)]
    marks = sum(turn.text.count(SUMMARY_MARK) for turn in draft.turns)
    assert marks == sum(turn.text.count(SUMMARY_MARK) for turn in told) >= 1
    region = done.region
    assert region.start_idx >= 0 and region.turns_count <= region.end_idx - region.start_idx <= len(turns)
    assert not any(f"user: {SUMMARY_MARK}" in turn.text for turn in draft.turns)
    again = list(draft.turns)
    assert run_ladder(draft, config, 1) == Ladder() and draft.turns == again
