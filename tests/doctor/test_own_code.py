"""Rows through the consumers' own code, where it is installed: clean ones pass, broken ones are found by it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from consumer_python import ask
from doctor.cases import TOOLS, factory, messages, sharegpt
from support import write_dataset

from kiseki.doctor.findings import Group

Change = Callable[[dict[str, Any]], Any]


PROGRAM = """
import sys
from pathlib import Path
import msgspec
from kiseki.doctor.examine import Order, examine
findings = examine(Order((Path(sys.argv[1]),), sys.argv[2])).findings
check = next(each for each in findings.checks if "own code" in each.name)
print(msgspec.json.encode((check.name, [each for each in findings.groups if each.where == check.where])).decode())
"""


def told(file: Path, target: str) -> tuple[str, list[Group]]:
    """(the check of the consumer's own code, what that found), said by a doctor that is installed beside that code."""
    program = file.with_name("told.py")
    program.write_text(PROGRAM)
    (said,) = ask("consumers", program, file, target, scratch=file.parent / "scratch")
    return msgspec.convert(said, type=tuple[str, list[Group]])


def lost(groups: list[Group]) -> dict[str, list[int]]:
    return {each.kind: [place.row for place in each.first] for each in groups if each.severity != "note"}


def no_reasoning(number: int) -> dict[str, Any]:
    row = messages(number)
    for turn in row["messages"]:
        turn.pop("reasoning_content", None)
    row["messages"][2]["content"] = ""
    return row


def with_text_calls(row: dict[str, Any]) -> None:
    row["messages"][2]["tool_calls"][0]["function"]["arguments"] = '{"tz": "UT'


LONG = "How long? " * 10_000


def test_a_long_row_is_no_finding_where_no_limit_was_asked_for(tmp_path: Path) -> None:
    """Of axolotl; of others in `test_json_lines`, since each takes half a minute to start."""
    rows = [no_reasoning(0), no_reasoning(1)]
    rows[1]["messages"][1]["content"] = LONG
    assert lost(told(write_dataset(tmp_path / "rows.jsonl", rows), "axolotl")[1]) == {}


@pytest.mark.parametrize(
    ("target", "make", "change", "kind"),
    [
        ("trl", messages, lambda row: row["messages"][1].update(role="human"), "turn lost"),
        ("axolotl", messages, with_text_calls, "the consumer's code raises"),
        ("llamafactory", factory, lambda row: row["conversations"].pop(), "row left out"),
        ("swift", no_reasoning, lambda row: row["messages"][1].update(content=None), "row left out"),
    ],
)
def test_json_lines(tmp_path: Path, target: str, make: Callable[[int], dict[str, Any]], change: Change, kind: str) -> None:
    rows = [make(0), make(1), make(2)]
    if "messages" in rows[0] and target != "axolotl":
        rows[0]["messages"][1]["content"] = LONG  # no finding, since no limit was asked for
    change(rows[1])
    _, groups = told(write_dataset(tmp_path / "rows.jsonl", rows), target)
    assert lost(groups) == {kind: [2]}


def test_sharegpt_names_of_roles_empty_rows_under_trl(tmp_path: Path) -> None:
    _, groups = told(write_dataset(tmp_path / "rows.jsonl", [sharegpt(0), sharegpt(1)]), "trl")
    assert lost(groups)["row emptied"] == [1, 2]


def test_parquet_for_verl(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    for name, tools in (("clean", TOOLS), ("text", json.dumps(TOOLS))):
        rows = [messages(number) | {"tools": tools} for number in range(2)]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    _, groups = told(tmp_path / "clean.parquet", "verl")
    assert lost(groups) == {}
    _, groups = told(tmp_path / "text.parquet", "verl")
    assert "the consumer's code raises" in lost(groups)


def test_models_of_atif(tmp_path: Path) -> None:
    step = {"step_id": 1, "source": "user", "message": "q"}
    answer = {"step_id": 2, "source": "agent", "message": "a"}
    agent = {"name": "kiseki", "version": "1"}
    row = {"schema_version": "ATIF-v1.6", "session_id": "s", "agent": agent, "steps": [step, answer]}
    wrong = row | {"steps": [step, answer | {"step_id": 3}]}
    _, groups = told(write_dataset(tmp_path / "rows.jsonl", [row, wrong]), "atif")
    assert lost(groups) == {"the consumer's code raises": [2]}


@pytest.mark.parametrize("target", ["atif", "atropos"])
def test_models_get_rows_of_parquet_as_well(tmp_path: Path, target: str) -> None:
    import pyarrow
    import pyarrow.parquet

    steps = [{"step_id": at, "source": source, "message": "x"} for at, source in ((1, "user"), (2, "agent"))]
    trajectory = {"schema_version": "ATIF-v1.6", "session_id": "s", "agent": {"name": "kiseki", "version": "1"}, "steps": steps}
    row = trajectory if target == "atif" else {"tokens": [[1, 2]], "masks": [[-100, 2]], "scores": [1.0]}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row, row]), tmp_path / "rows.parquet")
    assert lost(told(tmp_path / "rows.parquet", target)[1]) == {}


def test_scored_groups_of_atropos(tmp_path: Path) -> None:
    row = {"tokens": [[1, 2]], "masks": [[-100, 2]], "scores": [1.0]}
    name, groups = told(write_dataset(tmp_path / "rows.jsonl", [row, row | {"scores": ["high"]}]), "atropos")
    assert name.startswith("Atropos 0.")
    assert lost(groups) == {"the consumer's code raises": [2]}
