"""Rows on the ladder: what its tests share."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kiseki.compress.config import CompressionConfig
from kiseki.compress.draft import Draft
from kiseki.compress.ladder.ladder import Ladder, run_ladder
from kiseki.compress.rows import read_trajectory
from kiseki.trajectory.tokens import BUNDLED, open_counter

COUNTER = open_counter(BUNDLED)
CONFIG = CompressionConfig(strategy="ladder", last_n_turns=2, summary_target_tokens=120)
LAYOUTS = pytest.mark.parametrize("layout", ["sharegpt", "messages"])


def read(row: dict[str, Any]) -> Draft:
    trajectory = read_trajectory(json.dumps(row).encode())
    return Draft(trajectory.turns, trajectory.layout, COUNTER)


def laddered(row: dict[str, Any], less: int, config: CompressionConfig = CONFIG) -> tuple[Draft, Draft, Ladder]:
    """The row before, after it was made `less` tokens shorter (as far as it goes), and what was done."""
    before, draft = read(row), read(row)
    return before, draft, run_ladder(draft, config, before.total - less)


def outputs(draft: Draft) -> list[str]:
    return [each.text for turn in draft.turns if turn.role == "tool" for each in draft.layout.outputs(turn)]


def lines(count: int, what: str = "line") -> str:
    return "\n".join(f"{what} {number}: something that was printed" for number in range(count))


def check_calls(draft: Draft) -> None:
    """Every call has its output and every output its call."""
    layout = draft.layout
    for at, turn in enumerate(draft.turns):
        if turn.role != "gpt":
            continue
        calls = layout.calls(turn)
        after = []
        for answer in draft.turns[at + 1 :]:
            if answer.role != "tool":
                break
            after += layout.outputs(answer)
        assert len(after) == len(calls)
        if all(call.id for call in calls):
            assert [each.id for each in after] == [call.id for call in calls]
    for first, second in zip(draft.turns, draft.turns[1:], strict=False):
        assert second.role != "tool" or first.role in ("gpt", "tool")
