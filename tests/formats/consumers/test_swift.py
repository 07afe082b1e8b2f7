"""`swift`, read by ms-swift's own loader and template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from consumer_python import ask
from formats.consumers.cases import EXAMPLES, check_all, exported
from formats.consumers.conftest import PROGRAMS, Asked

from kiseki.trajectory.sharegpt import escape_text

Row = dict[str, Any]
TEMPLATE = {"template_type": "qwen3", "agent_template": "hermes", "loss_scale": "default", "max_length": None}


@pytest.fixture
def rows(asked: Asked) -> list[Row]:
    def make(folder: Path) -> list[Row]:
        path = exported(folder, "swift") / "train.jsonl"
        return ask("consumers", PROGRAMS / "swift_rows.py", path, json.dumps(TEMPLATE), scratch=folder)

    made: list[Row] = asked("swift", make)
    return made


def test_no_row_is_dropped_and_only_what_is_to_be_trained_is(rows: list[Row]) -> None:
    check_all(rows, masks=True, whole=escape_text)


def test_results_stand_in_the_order_of_their_calls(rows: list[Row]) -> None:
    text = rows[0]["text"]
    assert EXAMPLES[0].messages[3].content == "w00gx second"
    assert text.index("w00hx first") < text.index("w00gx second")
