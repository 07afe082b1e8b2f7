"""Files of rows, written: JSON lines (plain, .gz, .zst), and parquet in the columns of another parquet file or of a schema."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path
from typing import IO, Any, Protocol

import zstandard

from kiseki.errors import DatasetError, UsageError
from kiseki.trajectory.json_rows import decode_row
from kiseki.trajectory.parquet_rows import Misfit, RowGroups, read_schema
from kiseki.trajectory.row_files import SUFFIXES, format_of, is_row_file

BUFFER_BYTES = 2**20
GROUP_BYTES = 2**24
"""JSON that makes one row group of a parquet file."""
GROUP_ROWS = 10_000
GZIP_LEVEL, ZSTD_LEVEL = 6, 3


class RowWriter(Protocol):
    """Takes rows one after the other. What is not closed is not whole."""

    def write(self, line: bytes) -> None:
        """One row's JSON, without line end."""

    def close(self) -> None:
        """The rest is written, and the file is safe on the disk."""


def open_writer(path: Path, temporary: Path, like: Path | None = None, *, schema: Any = None) -> RowWriter:
    """A writer of `temporary` in the format that the name of `path` says (see `SUFFIXES`); to rename it is the caller's.

    The same rows give the same bytes. `like`: a parquet file, or `schema`: a `pyarrow.Schema`; one is needed for parquet: its
    columns are written, and what the first rows have beyond them. Raises `UsageError` for a format that cannot be written;
    `write` and `close` raise `DatasetError` for a row that does not fit the columns, and `OSError` for a disk that does not take
    it.
    """
    if not is_row_file(path):
        raise UsageError(f"cannot write {path}: the name of a file of rows ends in {', '.join(SUFFIXES)}")
    if format_of(path) != ".parquet":
        return _LineWriter(path, temporary)
    if schema is None and (like is None or format_of(like) != ".parquet"):
        raise UsageError("parquet output needs parquet input; choose .jsonl, .jsonl.gz or .jsonl.zst")
    return _ParquetWriter(path, temporary, read_schema(like) if like else schema)


class _LineWriter:
    def __init__(self, path: Path, temporary: Path) -> None:
        self._file = temporary.open("wb", BUFFER_BYTES)
        packed: Any = None
        if path.suffix == ".gz":
            packed = gzip.GzipFile("", "wb", GZIP_LEVEL, self._file, mtime=0)
        elif path.suffix == ".zst":
            compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True)
            packed = compressor.stream_writer(self._file, closefd=False)
        self._stream = io.BufferedWriter(packed, BUFFER_BYTES) if packed else self._file

    def write(self, line: bytes) -> None:
        self._stream.write(line)
        self._stream.write(b"\n")

    def close(self) -> None:
        if self._stream is not self._file:
            self._stream.close()
        _close_safely(self._file)


class _ParquetWriter:
    def __init__(self, path: Path, temporary: Path, schema: Any) -> None:
        self._path = path
        self._file = temporary.open("wb")
        self._groups = RowGroups(self._file, schema)
        self._lines: list[bytes] = []
        self._bytes = 0
        self._written = 0

    def write(self, line: bytes) -> None:
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes >= GROUP_BYTES or len(self._lines) == GROUP_ROWS:
            self._write_group()

    def close(self) -> None:
        self._write_group()
        self._groups.close()
        _close_safely(self._file)

    def _write_group(self) -> None:
        rows: list[Any] = []
        try:
            for line in self._lines:
                rows.append(decode_row(line))
        except ValueError as problem:
            raise self._misfit(len(rows), problem) from None
        try:
            self._groups.write(rows)
        except Misfit as problem:
            raise self._misfit(problem.position, problem) from None
        self._written += len(rows)
        self._lines, self._bytes = [], 0

    def _misfit(self, position: int, problem: ValueError) -> DatasetError:
        number = self._written + position + 1
        return DatasetError(f"cannot write {self._path}: row {number} does not fit: {problem}; a .jsonl file takes any row")


def _close_safely(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
