"""Rows into files: one for each split, or several of so many rows, or one for each row."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from kiseki.errors import KisekiError
from kiseki.exports.job import WrittenFile
from kiseki.exports.target import Target
from kiseki.formats.format import Format, Row
from kiseki.trajectory.json_rows import encode_row
from kiseki.trajectory.row_writers import RowWriter, open_writer

FOLDER_FILES = 1000
"""Files in one folder at most, where each row is one."""
_NAME_CHARS = 150


class SplitWriter(Protocol):
    """Writes the rows of one split into the staging folder."""

    def write(self, row: Row) -> None: ...

    def finish(self) -> list[WrittenFile]:
        """All is safe on the disk, under its final name in the staging folder."""


def open_split(folder: Path, split: str, target: Target, format: Format, shard_rows: int | None) -> SplitWriter:
    """Raises what `open_writer` raises."""
    if format.file_per_row:
        return _FilePerRow(folder, split, format.suffixes[0])
    return _Files(folder, split, target, format, shard_rows)


class _Files:
    def __init__(self, folder: Path, split: str, target: Target, format: Format, shard_rows: int | None) -> None:
        self._folder, self._split, self._target = folder, split, target
        self._schema = format.schema() if target.suffix == ".parquet" and format.schema else None
        self._shard_rows = shard_rows
        self._writer: RowWriter | None = None
        self._rows: list[int] = []
        """Of each file so far."""

    def write(self, row: Row) -> None:
        if self._writer is None or self._rows[-1] == self._shard_rows:
            self._close()
            path = self._staged(len(self._rows))
            self._writer = open_writer(path, path, schema=self._schema)
            self._rows.append(0)
        self._writer.write(encode_row(row))
        self._rows[-1] += 1

    def finish(self) -> list[WrittenFile]:
        self._close()
        files = []
        for number, rows in enumerate(self._rows):
            shard = f"-{number:05}-of-{len(self._rows):05}" if self._shard_rows else ""
            name = self._target.single or f"{self._split}{shard}{self._target.suffix}"
            path = self._staged(number).rename(self._folder / name)
            files.append(WrittenFile(name, self._split, rows, path.stat().st_size))
        return files

    def _staged(self, number: int) -> Path:
        return self._folder / f"rows.{self._split}.{number}{self._target.suffix}"

    def _close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class _FilePerRow:
    def __init__(self, folder: Path, split: str, suffix: str) -> None:
        self._folder, self._split, self._suffix = folder / split, split, suffix
        self._rows = self._bytes = 0
        self._numbers: dict[str, int] = {}
        """Of names in the last folder: the number that the last file of this name got."""

    def write(self, row: Row) -> None:
        folder = self._folder / f"{self._rows // FOLDER_FILES:05}"
        if self._rows % FOLDER_FILES == 0:
            folder.mkdir(parents=True)
            self._numbers.clear()
        name = _plain(str(row["name"]).removesuffix(self._suffix))
        number = self._numbers.get(name, 1)
        path = folder / f"{name}{self._suffix}"
        while path.exists():
            number += 1
            path = folder / f"{name}-{number}{self._suffix}"
        self._numbers[name] = number
        data = b"".join(encode_row(line) + b"\n" for line in row["lines"])
        path.write_bytes(data)
        self._rows += 1
        self._bytes += len(data)

    def finish(self) -> list[WrittenFile]:
        os.sync()  # one for all of them
        return [WrittenFile(f"{self._split}/", self._split, self._rows, self._bytes, files=self._rows)]


def _plain(name: str) -> str:
    """A name that is a file's in every file system, without the suffix that it gets."""
    stem = "".join(each if each.isalnum() or each in "-_." else "_" for each in name)
    return stem.lstrip(".")[:_NAME_CHARS] or "row"


def write_beside(folder: Path, files: dict[str, bytes]) -> list[WrittenFile]:
    """Other files that the consumer wants in the data's folder."""
    for name, data in files.items():
        if name != Path(name).name:
            raise KisekiError(f"a format wants a file {name!r} beside its data, which is no name of one")
        (folder / name).write_bytes(data)
    return [WrittenFile(name, "", 0, len(data)) for name, data in files.items()]
