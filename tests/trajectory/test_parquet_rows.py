"""Parquet files of rows: every type comes back, new columns are found, and a row that does not fit is named."""

from __future__ import annotations

import datetime
import decimal
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rows import read_all, write_lines, write_rows, write_table

from kiseki.errors import DatasetError, UsageError
from kiseki.trajectory.json_rows import decode_row
from kiseki.trajectory.row_files import read_lines
from kiseki.trajectory.row_writers import open_writer

TOKYO = datetime.timezone(datetime.timedelta(hours=9))
MOMENT = datetime.datetime(2026, 1, 15, 10, 30, 0, 123456)
OF_EVERY_TYPE: dict[str, tuple[pa.DataType, Any]] = {
    "int8": (pa.int8(), -5),
    "uint64": (pa.uint64(), 2**64 - 1),
    "float32": (pa.float32(), 0.1),
    "half": (pa.float16(), 0.5),
    "double": (pa.float64(), 1e300),
    "true": (pa.bool_(), True),
    "text": (pa.string(), "日本語 \u2028 \x00"),
    "large text": (pa.large_string(), "x" * 3_000_000),
    "view": (pa.string_view(), "a text of more than twelve bytes"),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), "one of a few"),
    "binary": (pa.binary(), bytes(range(256))),
    "large binary": (pa.large_binary(), b""),
    "hash": (pa.binary(4), b"\x00\xff\x01\x02"),
    "naive": (pa.timestamp("us"), MOMENT),
    "millis": (pa.timestamp("ms"), MOMENT.replace(microsecond=123000)),
    "nanos": (pa.timestamp("ns"), 1768473000123456789),
    "zoned": (pa.timestamp("us", "Asia/Tokyo"), MOMENT.replace(tzinfo=TOKYO)),
    "utc nanos": (pa.timestamp("ns", "UTC"), 1768473000123456789),
    "day": (pa.date32(), MOMENT.date()),
    "time": (pa.time64("us"), MOMENT.time()),
    "long": (pa.duration("us"), datetime.timedelta(days=-3, microseconds=7)),
    "price": (pa.decimal128(20, 6), decimal.Decimal("12345678901234.567890")),
    "map": (pa.map_(pa.string(), pa.timestamp("s")), [("k", MOMENT.replace(microsecond=0)), ("n", None)]),
    "pair": (pa.list_(pa.int16(), 2), [1, 2]),
    "deep": (
        pa.struct({"inner": pa.struct({"days": pa.list_(pa.date32()), "raw": pa.binary()}), "n": pa.int64()}),
        {"inner": {"days": [MOMENT.date(), None], "raw": b"\x80"}, "n": None},
    ),
    "turns": (
        pa.large_list(pa.struct({"from": pa.string(), "at": pa.timestamp("us")})),
        [{"from": "human", "at": MOMENT}, None, {"from": None, "at": None}],
    ),
    "nothing": (pa.null(), None),
}


def test_every_type_comes_back(tmp_path: Path) -> None:
    schema = pa.schema({name: kind for name, (kind, _) in OF_EVERY_TYPE.items()}, {"made": "by hand"})
    columns = [pa.array([value, None, value], kind) for kind, value in OF_EVERY_TYPE.values()]
    like = write_table(tmp_path / "like.parquet", pa.Table.from_arrays(columns, schema=schema))
    copy = write_lines(tmp_path / "copy.parquet", (text for _, text in read_lines(like)), like)
    before, after = pq.read_table(like), pq.read_table(copy)
    assert after.schema.equals(before.schema, check_metadata=True)
    for name in OF_EVERY_TYPE:
        assert after[name].equals(before[name]), (name, before[name], after[name])


def test_what_the_datasets_library_stores_as_json(tmp_path: Path) -> None:
    """Whole turns, calls, contents and columns, in Arrow's type or in text that only the library's note calls JSON."""
    call = {"name": "look", "arguments": {"path": "a", "big": 12345678901234567, "n": 1.10}}
    rows: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}], "meta": {"a": 1}, "n": 1},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}], "meta": ["b", None], "n": 2},
    ]
    import datasets

    library = tmp_path / "library.parquet"
    datasets.Dataset.from_list(rows, on_mixed_types="use_json").to_parquet(library)
    assert isinstance(pq.read_schema(library).field("meta").type, pa.JsonType)
    assert read_all(library) == rows
    copy = write_rows(tmp_path / "copy.parquet", read_all(library), library)
    assert (
        pq.read_table(copy).equals(pq.read_table(library)) and pq.read_schema(copy).metadata == pq.read_schema(library).metadata
    )
    in_text = write_table(tmp_path / "text.parquet", pq.read_table(library).cast(plain(pq.read_schema(library))))
    assert read_all(in_text) == rows and read_all(write_rows(tmp_path / "again.parquet", rows, in_text)) == rows
    loaded = datasets.load_dataset("parquet", data_files=str(copy), split="train", cache_dir=str(tmp_path / "cache"))
    assert list(loaded) == rows


def plain(schema: pa.Schema) -> pa.Schema:
    """Text in place of JSON, as readers that do not know Arrow's type leave it."""
    return pa.schema({"messages": pa.list_(pa.string()), "meta": pa.string(), "n": pa.int64()}, schema.metadata)


def test_a_content_that_the_library_took_for_json_is_text_again(tmp_path: Path) -> None:
    contents = ["42", '{"a": 1}', "[1, 2]", "plain", '"quoted"', [{"type": "text", "text": "q"}], None]
    rows = [{"messages": [{"role": "tool", "content": content}]} for content in contents]
    stored = pa.array([None if each is None else each if each in contents[:3] else json.dumps(each) for each in contents])
    note = {"role": {"dtype": "string", "_type": "Value"}, "content": {"_type": "Json"}}
    features = {"info": {"features": {"messages": {"feature": note, "_type": "List"}}}}
    turns = pa.array(
        [[{"role": "tool", "content": each.as_py()}] for each in stored],
        pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
    )
    table = pa.table({"messages": turns}).replace_schema_metadata({"huggingface": json.dumps(features)})
    path = write_table(tmp_path / "r.parquet", table)
    assert read_all(path) == rows
    assert read_all(write_rows(tmp_path / "copy.parquet", rows, path)) == rows


def test_the_text_of_what_json_has_no_word_for(tmp_path: Path) -> None:
    table = pa.table({"at": [MOMENT], "day": [MOMENT.date()], "raw": [b"\x00x"], "price": [decimal.Decimal("1.50")]})
    table = table.append_column("odd", pa.array([[float("nan"), float("inf")]]))
    (row,) = read_all(write_table(tmp_path / "r.parquet", table))
    assert row == {"at": "2026-01-15T10:30:00.123456", "day": "2026-01-15", "raw": "AHg=", "price": "1.50", "odd": [None, None]}


def test_columns_that_the_rows_have_beyond_the_input(tmp_path: Path) -> None:
    """A whole new column, keys in a list of objects, in an object and in a column that was always null; some rows without."""
    table = pa.table({"turns": [[{"from": "human", "value": "hi"}]], "meta": [{"model": "m"}], "note": [None], "old": [1]})
    like = write_table(tmp_path / "like.parquet", table)
    turn = {"from": "gpt", "value": "hello"}
    metrics = {"ratio": 0.5, "tokens": 7, "skipped": False, "why": "", "inner": {"n": 1, "none": None}, "empty": {}, "ids": [1]}
    rows: list[dict[str, Any]] = [
        {"turns": [turn], "meta": None, "note": None},
        {"turns": [turn, turn | {"train": True}], "meta": {"model": "m", "seed": 3}, "compression_metrics": metrics},
        {"turns": [turn | {"train": False, "loss": None}, None], "note": ["x"], "compression_metrics": metrics | {"tokens": 8}},
        {"turns": [], "old": 5, "mixed": 1},
        {"mixed": 1.5},
    ]
    path = write_rows(tmp_path / "out.parquet", rows, like)
    got = read_all(path)
    assert got[0]["turns"] == [turn | {"train": None, "loss": None}]
    assert [each["train"] for each in got[1]["turns"]] == [None, True]
    assert got[1]["meta"] == {"model": "m", "seed": 3}
    assert got[2]["turns"] == [turn | {"train": False, "loss": None}, None]
    assert [row["compression_metrics"] for row in got] == [
        None,
        *({**metrics, "tokens": n, "empty": None} for n in (7, 8)),
        None,
        None,
    ]
    assert [row["note"] for row in got] == [None, None, ["x"], None, None]
    assert [row["old"] for row in got] == [None, None, None, 5, None]
    assert [row["mixed"] for row in got] == [None, None, None, 1.0, 1.5]
    assert pq.read_schema(path).names == [*table.column_names, "compression_metrics", "mixed"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b'{"n": "five"}', "column 'n': .*five"),
        (b'{"n": true}', "column 'n': "),
        (b'{"n": 18446744073709551616}', "column 'n': .*too large"),
        (b'{"text": 5}', "column 'text': "),
        (b'{"raw": "no base64!"}', "column 'raw': "),
        (b'{"raw": 5}', "column 'raw': "),
        (b'{"at": "yesterday"}', "column 'at': .*yesterday"),
        (b'{"price": "much"}', "column 'price': "),
        (b'{"turns": {"from": "human"}}', "column 'turns': it is an object, not an array"),
        (b'{"turns": ["hi"]}', "column 'turns': it is a string, not an object"),
        (b'{"turns": [{"form": "human"}]}', "column 'turns': there is no column for 'form'"),
        (b'{"new": 1}', "no column for 'new'"),
        (b"[1]", "it is an array, not an object"),
        (b'{"n": ', "not valid JSON"),
    ],
)
def test_a_row_that_does_not_fit_is_named(tmp_path: Path, row: bytes, reason: str) -> None:
    """After the first group, whose rows say which columns there are; a good row on each side."""
    kinds = {"n": pa.int64(), "text": pa.string(), "raw": pa.binary(), "at": pa.timestamp("us"), "price": pa.decimal128(9, 2)}
    schema = pa.schema(kinds | {"turns": pa.list_(pa.struct({"from": pa.string()}))})
    like = write_table(tmp_path / "like.parquet", schema.empty_table())
    lines = [b'{"n": 1}'] * 10_000 + [b'{"raw": "eHg=", "at": "2026-01-15"}', row, b'{"n": 3}']
    with pytest.raises(
        DatasetError, match=rf"cannot write .*out\.parquet: row 10002 does not fit: .*{reason}.*; a \.jsonl"
    ) as caught:
        write_lines(tmp_path / "out.parquet", lines, like)
    assert "\n" not in str(caught.value)


def test_what_the_input_never_leaves_out_must_be_there(tmp_path: Path) -> None:
    part = pa.struct([pa.field("from", pa.string(), nullable=False), pa.field("value", pa.string())])
    turns = pa.list_(pa.field("element", part, nullable=False))
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("turns", turns)])
    like = write_table(tmp_path / "like.parquet", schema.empty_table())
    good = {"n": 1, "turns": [{"from": "human"}]}
    assert pq.read_schema(write_rows(tmp_path / "out.parquet", [good, {"n": 2}], like)).equals(schema)
    for row, reason in (
        ({"turns": []}, "'n' is not there or null"),
        ({"n": 1, "turns": [{"value": "hi"}]}, "column 'turns': 'from' is not there or null"),
        ({"n": 1, "turns": [None]}, "column 'turns': a null is in it"),
    ):
        with pytest.raises(DatasetError, match=f"row 2 does not fit: {reason}"):
            write_rows(tmp_path / "out.parquet", [good, row], like)


def test_no_rows_give_the_columns_alone(tmp_path: Path) -> None:
    like = write_table(tmp_path / "like.parquet", pa.table({"n": [1], "text": ["x"]}))
    assert pq.read_table(write_lines(tmp_path / "out.parquet", [], like)).equals(pq.read_table(like).slice(0, 0))


def test_text_that_no_parquet_holds_is_cleaned(tmp_path: Path) -> None:
    like = write_table(tmp_path / "like.parquet", pa.table({"text": ["x"], "score": [1.5]}))
    path = write_lines(tmp_path / "out.parquet", [b'{"text": "\\ud83d!", "score": NaN}'], like)
    assert read_all(path) == [{"text": "\ufffd!", "score": None}]


@pytest.mark.parametrize(("group", "batches"), [(400, 3), (30, 14)])
def test_large_rows_come_in_small_batches(tmp_path: Path, group: int, batches: int) -> None:
    """40 MB, also where one row group holds everything; rows are numbered on over batches and groups."""
    texts = [f"{number:05}" * 20_000 for number in range(400)]
    path = tmp_path / "r.parquet"
    pq.write_table(pa.table({"text": texts}), path, row_group_size=group)
    reader = read_lines(path)
    seen = [(number, decode_row(text)["text"] == texts[number - 1], reader.position) for number, text in reader]
    assert [(number, same) for number, same, _ in seen] == [(number, True) for number in range(1, 401)]
    assert len({position for _, _, position in seen}) == batches


def test_parquet_needs_parquet_input(tmp_path: Path) -> None:
    for like in (None, tmp_path / "in.jsonl"):
        with pytest.raises(UsageError, match=r"parquet output needs parquet input; choose \.jsonl, \.jsonl\.gz or \.jsonl\.zst"):
            open_writer(tmp_path / "out.parquet", tmp_path / "t", like)
    with pytest.raises(UsageError, match=r"out\.csv: the name of a file of rows ends in \.jsonl"):
        open_writer(tmp_path / "out.csv", tmp_path / "t")
    (tmp_path / "in.parquet").write_bytes(b"no parquet")
    with pytest.raises(DatasetError, match=r"cannot read .*in\.parquet"):
        open_writer(tmp_path / "out.parquet", tmp_path / "t", tmp_path / "in.parquet")
    assert not (tmp_path / "t").exists()


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_table(tmp_path / "r.parquet", pa.table({"n": [1]}))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DatasetError, match=r"reading parquet needs pyarrow: pip install 'kiseki\[parquet\]'"):
        list(read_lines(path))
    with pytest.raises(DatasetError, match=r"writing parquet needs pyarrow: pip install 'kiseki\[parquet\]'"):
        open_writer(tmp_path / "out.parquet", tmp_path / "t", path)
