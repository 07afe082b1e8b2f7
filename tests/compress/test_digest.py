"""The digest: a line for each step, within its tokens, for every number of units."""

from __future__ import annotations

import json
from typing import Any

import pytest
from compress.trajectories import LayoutName, make_row, messages_rows, sharegpt_rows, shell
from hypothesis import given, settings
from hypothesis import strategies as st

from kiseki.compress.ladder.digest import Digest
from kiseki.compress.regions import units_of
from kiseki.compress.rows import read_trajectory
from kiseki.compress.turns import SUMMARY_MARK
from kiseki.trajectory.tokens import BUNDLED, open_counter

COUNTER = open_counter(BUNDLED)


def digest_of(row: dict[str, Any], limit: int = 1_000) -> list[str]:
    trajectory = read_trajectory(json.dumps(row).encode())
    turns = [turn for turn in trajectory.turns if turn.role != "system"]
    return Digest(turns, trajectory.layout, COUNTER).text(units_of(turns), limit).split("\n")


@pytest.mark.parametrize("layout", ["sharegpt", "messages"])
def test_a_line_says_tool_arguments_outcome_and_result(layout: LayoutName) -> None:
    row = make_row(
        [
            shell("pytest -x", "\n\x1b[31mFAILED tests/a.py\x1b[0m\nmore", exit_code=1),
            [("read_file", {"path": "a.py", "limit": 9}, json.dumps({"content": "1|import os"})), shell("ls", "")],
            ("search", {"pattern": "x\ny"}, json.dumps({"error": "no such\nfolder", "success": False})),
            ("run", {"command": "make"}, "OUTPUT:\nbuilt\n[Command finished with exit code 2]"),
            ("odd", {}, "Error: it broke"),
            ("list", {"depth": 2}, "[1, 2]"),
        ],
        layout=layout,
    )
    title, *lines = digest_of(row)
    assert title == f"{SUMMARY_MARK} 9 earlier steps in brief:"
    assert lines == [
        "- user: Find the bug and fix it.",
        "- terminal: pytest -x → exit code 1: FAILED tests/a.py",
        "- read_file: a.py → ok: 1|import os",
        "- terminal: ls → ok",
        "- search: x y → error: no such",
        "- run: make → exit code 2: built",
        "- odd → error: Error: it broke",
        "- list: 2 → ok: [1, 2]",
        "- assistant: It is fixed.",
    ]


def test_what_is_said_is_one_sentence_without_its_reasoning() -> None:
    row = {
        "conversations": [
            {"from": "gpt", "value": "<think>\nLong. Thoughts.\n</think>\nFirst sentence. Second one."},
            {"from": "human", "value": "and\tthen\u2028?" + "!" * 500},
        ]
    }
    title, said, asked = digest_of(row)
    assert title == f"{SUMMARY_MARK} 2 earlier steps in brief:"
    assert said == "- assistant: First sentence."
    assert asked == f"- user: and then ?{'!' * 150}…"


def test_lines_in_the_middle_give_way() -> None:
    row = make_row([shell(f"echo {number}", f"{number} is shown") for number in range(50)])
    title, *lines = digest_of(row, 200)
    assert title == f"{SUMMARY_MARK} 52 earlier steps in brief:"
    gap = next(at for at, line in enumerate(lines) if line.startswith("[… "))
    assert lines[gap] == f"[… {52 - (len(lines) - 1)} more steps]"
    assert lines[0] == "- user: Find the bug and fix it." and lines[-1] == "- assistant: It is fixed."
    assert abs(gap - (len(lines) - 1 - gap)) <= 2
    assert 150 < COUNTER.count("\n".join([title, *lines])) <= 200


@settings(max_examples=40, deadline=None)
@given(sharegpt_rows() | messages_rows(), st.sampled_from((1, 40, 120, 1_000)))
def test_every_prefix_fits_and_costs_about_what_is_said(row: dict[str, Any], limit: int) -> None:
    trajectory = read_trajectory(json.dumps(row).encode())
    units = units_of(trajectory.turns)
    digest = Digest(trajectory.turns, trajectory.layout, COUNTER)
    for count in range(1, len(units) + 1):
        foretold, text = digest.tokens(units[:count], limit), digest.text(units[:count], limit)
        lines = text.split("\n")
        assert text.startswith(SUMMARY_MARK)
        assert all(line.isprintable() for line in lines)
        assert COUNTER.count(text) <= max(limit, 30)
        assert COUNTER.count(text) <= foretold <= COUNTER.count(text) + 2 * len(lines) + 2
        assert text == Digest(trajectory.turns, trajectory.layout, COUNTER).text(units[:count], limit)
