"""Whole examinations: rows are numbered, files are really loaded."""

from __future__ import annotations

import gzip
import json
import secrets
from pathlib import Path
from typing import Any

import pytest
import zstandard
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


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_packed_file_that_ends_too_early_is_examined_up_to_there(tmp_path: Path, pack: Any) -> None:
    lines = [json.dumps(messages(number, note=secrets.token_hex(20_000))) for number in range(60)]
    packed = pack("\n".join(lines).encode())
    torn = tmp_path / ("torn.jsonl" + (".gz" if pack is gzip.compress else ".zst"))
    torn.write_bytes(packed[: len(packed) // 2])
    made = examine(Order((torn,)))
    told = {each.kind: each for each in made.findings.groups}
    assert 0 < made.rows < 60
    assert told["file cannot be read"].details[0].startswith(f"after row {made.rows}: cannot read {torn}")
    torn.write_bytes(packed[:20])
    with pytest.raises(DatasetError, match="cannot read"):
        examine(Order((torn,)))


def test_a_folder_is_examined_whatever_one_of_its_files_is(tmp_path: Path) -> None:
    write_dataset(tmp_path / "a.jsonl", [messages(0)])
    (tmp_path / "b.jsonl").write_text(json.dumps([messages(1)], indent=1))
    (tmp_path / "c.jsonl").write_bytes(json.dumps(messages(2)).encode("utf-16"))
    (tmp_path / "d.parquet").write_bytes(b"PAR1 and nothing else")
    for target in ("", "trl"):
        told = groups(Order((*sorted(tmp_path.glob("*.jsonl")), tmp_path / "d.parquet"), target))
        assert [place.file for place in told["file cannot be read"].first] == ["b.jsonl", "c.jsonl", "d.parquet"]
        assert len(told["file cannot be read"].details) == 3
        assert told["files of two kinds"].severity == "lost"


def test_what_parquet_loads_says_nothing_of_json_lines(tmp_path: Path) -> None:
    """Columns of JSON files are not harmless since a parquet file beside them loads."""
    import pyarrow
    import pyarrow.parquet

    first = write_dataset(tmp_path / "a.jsonl", [messages(0)])
    second = write_dataset(tmp_path / "b.jsonl", [messages(1, extra=1)])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([messages(2)]), tmp_path / "c.parquet")
    assert groups(Order((first, second, tmp_path / "c.parquet")))["columns differ between files"].severity == "lost"


def test_a_deep_row_and_its_neighbours(tmp_path: Path) -> None:
    deep = json.dumps(messages(1))[:-1] + ', "deep": ' + '{"a":' * 500 + "1" + "}" * 500 + "}"
    (tmp_path / "rows.jsonl").write_text("\n".join([json.dumps(messages(0)), deep, json.dumps(messages(0))]) + "\n")
    told = groups(Order((tmp_path / "rows.jsonl",)))
    assert (rows_of(told["nested too deep"]), told["nested too deep"].severity) == ([2], "lost")
    assert rows_of(told["duplicate row"]) == [3]


def test_columns_that_change_late_are_told_in_the_order_of_their_rows(tmp_path: Path) -> None:
    rows = late({"tags": [1]})
    rows[27]["reward"] = 0.5
    rows[28]["note"] = "x"
    assert rows_of(examined(tmp_path, rows)["type changes late"]) == [28, 29, 30]


def test_more_files_than_an_argument_can_name(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 50)
    folder.mkdir()
    files = tuple(write_dataset(folder / f"{'x' * 40}-{number}.jsonl", [messages(number)]) for number in range(600))
    assert not examine(Order(files)).findings.loses
