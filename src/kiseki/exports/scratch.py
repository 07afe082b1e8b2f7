"""A temporary database for what an export has to remember of every row, so that memory does not grow with their number."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

CACHE_KB = 64_000


@contextmanager
def open_scratch(folder: Path) -> Iterator[sqlite3.Connection]:
    """In a file in `folder`, which is removed at the end. Nothing in it is safe: it is of no use after the process."""
    path = folder / "scratch.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        database.execute(f"PRAGMA cache_size = -{CACHE_KB}")
        database.execute("BEGIN")  # one for all: each insert by itself would be written at once
        yield database
    path.unlink()
