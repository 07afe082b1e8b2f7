"""Rows of a file with their numbers, and what is wrong with their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kiseki.doctor.findings import Problem
from kiseki.doctor.lines import read_line, refusal
from kiseki.errors import DatasetError
from kiseki.trajectory.json_rows import decode_row
from kiseki.trajectory.row_files import open_bytes, read_lines

_BOM = b"\xef\xbb\xbf"
Line = tuple[int, "dict[str, Any] | None", tuple[int, int], list[Problem]]
"""(number, row, (bytes before it, its own), what is wrong with it)."""


def json_rows(path: Path, read: Callable[[int], None]) -> Iterator[Line]:
    """Of JSON lines. `read` is told how many bytes have been read since it was last told. Raises `DatasetError`."""
    offset = 0
    with open_bytes(path, read) as stream:
        for number, line in enumerate(stream, 1):
            if number == 1 and (why := refusal(line)):
                raise DatasetError(f"{path}: {why}")
            text = (line.removeprefix(_BOM) if number == 1 else line).rstrip(b"\r\n")
            if text and not text.isspace():
                row, problems = read_line(text, torn=not line.endswith(b"\n"))
                yield number, row, (offset, len(line)), problems
            offset += len(line)


def parquet_rows(path: Path, read: Callable[[int], None]) -> Iterator[Line]:
    """The same of parquet, whose rows have no place in bytes."""
    reader = read_lines(path)
    before = 0
    for number, text in reader:
        read(reader.position - before)
        before = reader.position
        yield number, decode_row(text), (0, 0), []
