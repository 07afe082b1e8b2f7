"""Whole examinations: rows are numbered, files are really loaded."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from doctor.cases import examined, factory, groups, messages, rows_of, sharegpt
from support import write_dataset

from kiseki.doctor.examine import Order, examine
from kiseki.errors import DatasetError
from kiseki.trajectory.tokens import BUNDLED


@pytest.mark.parametrize("make", [messages, sharegpt, factory])
def test_clean_files_say_what_was_checked(tmp_path: Path, make: Any) -> None:
    file = write_dataset(tmp_path / "rows.jsonl", [make(0), make(1)])
    made = examine(Order((file,)))
    assert not made.findings.loses
    assert made.rows == made.conversations == 2
    assert {check.count for check in made.findings.checks if check.unit == "rows" and not check.note} == {2}


def test_broken_lines_have_their_numbers(tmp_path: Path) -> None:
    lines = [json.dumps(messages(0)), "", "\0" * 8, '{"a": "\\ud83d"}', json.dumps(messages(1)), json.dumps(messages(0))]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join([*lines, '{"messages": [{']))
    told = groups(Order((file,)))
    assert {kind: rows_of(told[kind]) for kind in ("NUL bytes", "lone surrogate", "torn last line", "duplicate row")} == {
        "NUL bytes": [3],
        "lone surrogate": [4],
        "torn last line": [7],
        "duplicate row": [6],
    }
    assert "datasets does not load it" in told


def late(change: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of 12 MB; the last one is changed."""
    filler = "x" * 400_000
    rows = [messages(number, filler=filler, reward=0, note=None, tags=[]) for number in range(30)]
    rows[-1] |= change
    return rows


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"reward": 0.5}, "type changes late"),
        ({"note": "x"}, "type changes late"),
        ({"tags": [{"a": 1}]}, "type changes late"),
        ({"new": 1}, "key appears late"),
    ],
)
def test_types_that_change_after_the_first_block_fail_at_the_trainer(tmp_path: Path, change: dict[str, Any], kind: str) -> None:
    told = examined(tmp_path, late(change))
    assert rows_of(told[kind]) == [30]
    assert told[kind].severity == "lost"
    assert "datasets does not load it" in told


def test_what_this_version_of_datasets_loads_is_only_a_note(tmp_path: Path) -> None:
    rows = late({})
    rows[-1]["messages"][1]["extra"] = 1
    told = examined(tmp_path, rows)
    assert "datasets does not load it" not in told
    assert told["key appears late"].severity == "note"


def test_mixed_types_are_lost_only_for_consumers_of_old_libraries(tmp_path: Path) -> None:
    rows = [messages(0, id=1), messages(1, id="a")]
    assert examined(tmp_path, rows)["mixed types"].severity == "note"
    rows = [factory(0) | {"id": 1}, factory(1) | {"id": "a"}]
    assert examined(tmp_path, rows, "llamafactory")["mixed types"].severity == "lost"


def test_files_of_different_columns(tmp_path: Path) -> None:
    first = write_dataset(tmp_path / "a.jsonl", [messages(0)])
    second = write_dataset(tmp_path / "b.jsonl", [messages(1, extra=1)])
    told = groups(Order((first, second)))
    assert told["columns differ between files"].severity == "lost"
    assert told["columns differ between files"].first[0].file == "b.jsonl"


def test_parquet_and_packed_files(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([messages(0), messages(1)]), tmp_path / "rows.parquet")
    assert not examine(Order((tmp_path / "rows.parquet",))).findings.loses
    with gzip.open(tmp_path / "rows.jsonl.gz", "wt") as file:
        file.write(json.dumps(messages(0)) + "\n")
    assert not examine(Order((tmp_path / "rows.jsonl.gz",))).findings.loses


def test_a_summary_turn_and_an_end_on_a_tool_turn_for_llamafactory(tmp_path: Path) -> None:
    summary, ends = factory(1), factory(2)
    summary["conversations"].insert(3, {"from": "human", "value": "[SUMMARY]"})
    ends["conversations"].pop()
    told = examined(tmp_path, [factory(0), summary, ends], "llamafactory")
    assert rows_of(told["alternation broken"]) == [2]
    assert rows_of(told["ends on a tool turn"]) == [3]
    assert {told[kind].severity for kind in ("alternation broken", "ends on a tool turn")} == {"lost"}


def test_rows_over_a_limit(tmp_path: Path) -> None:
    rows = [messages(0), messages(1)]
    rows[1]["messages"][1]["content"] = "word " * 500
    told = examined(tmp_path, rows, tokenizer=BUNDLED, max_tokens=400)
    assert rows_of(told["over the token limit"]) == [2]


def test_a_template_that_was_asked_for_counts(tmp_path: Path) -> None:
    template = tmp_path / "mine.jinja"
    template.write_text(
        "{% for m in messages %}{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}{{ tools | tojson }}"
    )
    told = examined(tmp_path, [messages()], template=str(template))
    assert (told["reasoning stripped"].severity, told["reasoning stripped"].where) == ("harm", "template mine")


def test_files_without_a_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n\n")
    write_dataset(tmp_path / "b.jsonl", [messages()])
    assert "empty file" in groups(Order((tmp_path / "b.jsonl", tmp_path / "a.jsonl")))
    with pytest.raises(DatasetError, match="no row"):
        examine(Order((tmp_path / "a.jsonl",)))
