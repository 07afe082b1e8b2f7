"""Files of rows: what is written is read back, in every format; a file that cannot be read is named, never half read."""

from __future__ import annotations

import gzip
import io
import json
import os
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rows import read_all, write_lines, write_rows, write_table

from kiseki.errors import DatasetError
from kiseki.trajectory.json_rows import decode_row, encode_row
from kiseki.trajectory.row_files import SUFFIXES, is_row_file, read_lines

TEXT_SUFFIXES = [suffix for suffix in SUFFIXES if suffix != ".parquet"]
SKIPPABLE_FRAME = b"\x50\x2a\x4d\x18\x04\x00\x00\x00note"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["\u2028", "\x85", "\r\n", "\x00", "\ufeff"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
rows_of_json = st.lists(st.dictionaries(texts, values, max_size=4), max_size=5)


# ---- text -------------------------------------------------------------------------------------------------------------


@given(rows_of_json)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_come_back_from_every_text_format(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    for suffix in TEXT_SUFFIXES:
        path = write_rows(tmp_path / f"rows{suffix}", rows)
        assert list(read_lines(path)) == [(number, encode_row(row)) for number, row in enumerate(rows, 1)]
        assert read_all(path) == rows


def test_other_programs_read_what_is_written(tmp_path: Path) -> None:
    lines = [b'{"n": %d}' % number for number in range(1000)]
    whole = b"".join(line + b"\n" for line in lines)
    assert write_lines(tmp_path / "r.jsonl", lines).read_bytes() == whole
    assert gzip.decompress(write_lines(tmp_path / "r.jsonl.gz", lines).read_bytes()) == whole
    with zstandard.ZstdDecompressor().stream_reader(write_lines(tmp_path / "r.jsonl.zst", lines).read_bytes()) as stream:
        assert stream.read() == whole


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_rows_give_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    like = write_table(tmp_path / "like.parquet", pa.table({"n": [1]}))
    one, other = (write_rows(tmp_path / f"{name}{suffix}", ({"n": n} for n in range(50)), like) for name in ("one", "other"))
    assert one.read_bytes() == other.read_bytes()
    if suffix.endswith(".gz"):
        assert one.read_bytes()[3:8] == bytes(5), "neither a name nor a time"


def test_lines_end_at_newlines_only(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes('\ufeff{"a": "x\u2028y\x85z"}\r\n\r\n \t\n{"a": "\x0b\x0c\x1c"}\n\n{"a": "no line end"}'.encode())
    assert list(read_lines(path)) == [
        (1, '{"a": "x\u2028y\x85z"}'.encode()),
        (4, b'{"a": "\x0b\x0c\x1c"}'),
        (6, b'{"a": "no line end"}'),
    ]


def test_several_members_and_frames_are_one_file(tmp_path: Path) -> None:
    parts = [b'{"n": 1}\n{"n"', b": 2}\n", b'{"n": 3}\n']
    (tmp_path / "r.jsonl.gz").write_bytes(b"".join(map(gzip.compress, parts)))
    one, two, three = map(zstandard.compress, parts)
    (tmp_path / "r.jsonl.zst").write_bytes(SKIPPABLE_FRAME + one + two + SKIPPABLE_FRAME + three)
    for name in ("r.jsonl.gz", "r.jsonl.zst"):
        assert read_all(tmp_path / name) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_line_longer_than_any_buffer(tmp_path: Path) -> None:
    lines = [b'{"a": "%b"}' % (os.urandom(2_500_000).hex().encode()), b'{"a": "%b"}' % (b"x" * 5_000_000), b"{}"]
    for suffix in TEXT_SUFFIXES:
        assert [text for _, text in read_lines(write_lines(tmp_path / f"r{suffix}", lines))] == lines


def test_the_position_is_in_the_file_on_disk(tmp_path: Path) -> None:
    lines = [b'{"a": "%b"}' % os.urandom(1000).hex().encode() for _ in range(2500)]
    like = write_table(tmp_path / "like.parquet", pa.table({"a": ["x"]}))
    for suffix in SUFFIXES:
        path = write_lines(tmp_path / f"r{suffix}", lines, like)
        reader = read_lines(path)
        assert (reader.position, reader.size) == (0, path.stat().st_size)
        for _ in range(2):
            positions = [reader.position for _ in reader]
            assert all(one <= other for one, other in pairwise(positions))
            assert 0 < positions[0] < positions[1500] < positions[-1] <= reader.size, suffix
            assert reader.position == reader.size


def test_a_pipe_is_read_as_it_comes(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b'{"n": 1}\n{"n": 2}\n',))
    writer.start()
    reader = read_lines(path)
    assert [text for _, text in reader] == [b'{"n": 1}', b'{"n": 2}']
    assert (reader.position, reader.size) == (18, 0)
    writer.join()


@pytest.mark.parametrize(
    ("text", "row"),
    [
        (b'{"a": "\\ud83d lone"}', {"a": "\ufffd lone"}),
        (b'{"a": "\\ud83d\\ude00"}', {"a": "\U0001f600"}),
        (b'{"\\udc80": [NaN, -Infinity, 1.5]}', {"\ufffd": [None, None, 1.5]}),
        (b" [1] ", [1]),
        (b"18446744073709551616", 2**64),
    ],
)
def test_rows_of_lenient_writers_are_read(text: bytes, row: Any) -> None:
    assert decode_row(text) == row
    assert json.loads(encode_row(row)) == row


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"a": }', "not valid JSON: Expecting value at character 7 of the line"),
        (b'{"a": "torn', "not valid JSON: Unterminated string"),
        (b'{"a": "caf\xe9"}', r"not valid UTF-8 \(byte 11 of the line\)"),
        (b"[" * 100_000, "not valid JSON: .*recursion"),
        (b'{"a": NaN, "b": ' + b"[" * 900 + b"]" * 900 + b"}", "not valid JSON: .*recursion"),
    ],
)
def test_what_is_no_json_has_a_reason(text: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode_row(text)


# ---- files that cannot be read ------------------------------------------------------------------------------------------

WHOLE = b"".join(b'{"n": %d, "text": "%b"}\n' % (number, os.urandom(20).hex().encode()) for number in range(2000))
BROKEN: dict[str, Callable[[], bytes]] = {
    "torn.jsonl.gz": lambda: gzip.compress(WHOLE)[:-5],
    "torn_early.jsonl.gz": lambda: gzip.compress(WHOLE)[:2000],
    "torn_second.jsonl.gz": lambda: gzip.compress(WHOLE) + gzip.compress(WHOLE)[:500],
    "plain.jsonl.gz": lambda: WHOLE,
    "flipped.jsonl.gz": lambda: flipped(gzip.compress(WHOLE)),
    "torn.jsonl.zst": lambda: zstandard.compress(WHOLE)[:-1],
    "torn_early.jsonl.zst": lambda: zstandard.compress(WHOLE)[:2000],
    "torn_second.jsonl.zst": lambda: zstandard.compress(WHOLE) + zstandard.compress(WHOLE)[:3],
    "plain.jsonl.zst": lambda: WHOLE,
    "followed.jsonl.zst": lambda: zstandard.compress(WHOLE) + b"something else",
    "flipped.jsonl.zst": lambda: flipped(zstandard.ZstdCompressor(write_checksum=True).compress(WHOLE)),
    "plain.parquet": lambda: WHOLE,
    "empty.parquet": lambda: b"",
    "torn.parquet": lambda: as_parquet(WHOLE)[:-20],
}


def flipped(data: bytes) -> bytes:
    return data[:1500] + bytes(each ^ 0xFF for each in data[1500:1600]) + data[1600:]


def as_parquet(text: bytes) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([json.loads(line) for line in text.splitlines()]), sink)
    return sink.getvalue()


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(BROKEN[name]())
    with pytest.raises(DatasetError, match=rf"cannot read .*{name}: .") as caught:
        list(read_lines(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "r.parquet.gz").touch()
    (tmp_path / "loop.jsonl").symlink_to("loop.jsonl")
    for name, problem in {
        "missing.jsonl": "not found",
        "r.parquet.gz/under.jsonl": "not found",
        "": "is a folder",
        "r.parquet.gz": "not inside .gz: unpack",
        "loop.jsonl": "cannot read .*loop.jsonl: .*symbolic links",
        "n" * 300 + ".jsonl": "cannot read .*: File name too long",
    }.items():
        with pytest.raises(DatasetError, match=problem):
            read_lines(tmp_path / name)


def test_names_of_row_files() -> None:
    assert all(is_row_file(Path(f"runs/part{suffix}")) for suffix in SUFFIXES)
    assert not any(is_row_file(Path(name)) for name in ("a.json", "a.gz", "a.json.gz", "a.csv", "a.parquet.gz", "a.jsonl.tmp"))
