"""Files of rows for tests: written and read through the doors that commands use."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kiseki.trajectory.json_rows import decode_row, encode_row
from kiseki.trajectory.row_files import read_lines
from kiseki.trajectory.row_writers import open_writer


def write_lines(path: Path, lines: Iterable[bytes], like: Path | None = None) -> Path:
    temporary = path.with_name("being-written")
    writer = open_writer(path, temporary, like)
    for line in lines:
        writer.write(line)
    writer.close()
    return temporary.rename(path)


def write_rows(path: Path, rows: Iterable[Any], like: Path | None = None) -> Path:
    return write_lines(path, (encode_row(row) for row in rows), like)


def read_all(path: Path) -> list[Any]:
    return [decode_row(text) for _, text in read_lines(path)]


def write_table(path: Path, table: pa.Table) -> Path:
    pq.write_table(table, path)
    return path
