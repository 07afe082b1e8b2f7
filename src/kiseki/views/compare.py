"""A file of rows beside the rows that it should hold, and the difference told in rows.

Neither is ever held in memory: they are compared line by line, and where they differ, by way of a temporary database.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import zip_longest
from pathlib import Path

import msgspec

from kiseki.errors import StorageError

SHOWN = 10
"""Names given of each kind of fault."""
PREVIEW = 30
"""Characters of the prompt that name a row without a place in the dataset."""

Fault = tuple[str, str]
"""What is wrong, in words that others like it share; and with which row."""


def is_same(path: Path, lines: Iterable[bytes]) -> bool:
    """Whether `path` holds exactly `lines`."""
    with path.open("rb") as file:
        return all(found == wanted for found, wanted in zip_longest(file, lines))


def differences(path: Path, lines: Iterable[bytes]) -> Iterator[Fault]:
    """What is wrong with the rows of `path`, which should hold `lines` and does not."""
    with closing(sqlite3.connect("")) as db:  # a file of SQLite's own, gone when it is closed
        db.execute("CREATE TABLE wanted (at INTEGER PRIMARY KEY, id BLOB, name TEXT, digest BLOB)")
        db.execute("CREATE TABLE found (at INTEGER PRIMARY KEY, id BLOB, name TEXT, digest BLOB)")
        any_fault = False
        with path.open("rb") as file:
            for table, rows in (("wanted", lines), ("found", file)):
                for at, line in enumerate(rows, 1):
                    try:
                        values = (at, *_identify(line), _digest(line))
                    except (ValueError, RecursionError):
                        any_fault = True
                        yield "lines that are no row", f"line {at}"
                    else:
                        _insert(db, table, values)
                db.execute(f"CREATE INDEX {table}_id ON {table} (id, at)")
        for kind, query in _KINDS.items():
            for (name,) in db.execute(query):
                any_fault = True
                yield kind, name
        if not any_fault:  # such as equal rows of a dataset that no longer has them, in another order
            yield "rows in another order than the ledger's", path.name


def _insert(db: sqlite3.Connection, table: str, values: tuple[int, bytes, str, bytes]) -> None:
    try:
        db.execute(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", values)
    except sqlite3.OperationalError as error:
        raise StorageError(f"cannot write a temporary file: {error}; TMPDIR names another place for it") from error


_KINDS = {
    "rows missing": (
        "SELECT w.name FROM wanted w GROUP BY w.id HAVING count(*) > (SELECT count(*) FROM found f WHERE f.id = w.id)"
        " ORDER BY min(w.at)"
    ),
    "rows doubled": (
        "SELECT f.name FROM found f GROUP BY f.id HAVING count(*) > (SELECT count(*) FROM wanted w WHERE w.id = f.id)"
        " AND EXISTS (SELECT 1 FROM wanted w WHERE w.id = f.id) ORDER BY min(f.at)"
    ),
    "rows unexpected": (
        "SELECT f.name FROM found f GROUP BY f.id HAVING NOT EXISTS (SELECT 1 FROM wanted w WHERE w.id = f.id) ORDER BY min(f.at)"
    ),
    "rows with other content": (
        "SELECT f.name FROM found f JOIN wanted w ON w.id = f.id WHERE f.digest != w.digest GROUP BY f.id ORDER BY min(f.at)"
    ),
    # each row by the first place where it stands, so that a doubled one is not called out of order too
    "rows out of order": (
        "SELECT name || ' after ' || before FROM"
        " (SELECT name, place, lag(name) OVER o AS before, lag(place) OVER o AS place_before FROM"
        " (SELECT f.name AS name, min(f.at) AS at, (SELECT min(w.at) FROM wanted w WHERE w.id = f.id) AS place"
        " FROM found f GROUP BY f.id) WHERE place IS NOT NULL WINDOW o AS (ORDER BY at)) WHERE place < place_before"
    ),
}


class _Parent(msgspec.Struct):
    number: int


class _RowName(msgspec.Struct):
    """What is read of a row."""

    prompt_index: int
    sample_index: int
    prompt: str = ""
    parent: _Parent | None = None
    """Of a sub-agent's row."""


_decode = msgspec.json.Decoder(_RowName).decode


def _identify(line: bytes) -> tuple[bytes, str]:
    """What tells the row from others, and how it is called. Raises `ValueError` for a line that is no row."""
    row = _decode(line)
    name = f"{row.prompt_index}/{row.sample_index}" + (f"/{row.parent.number}" if row.parent else "")
    if row.prompt_index >= 0:
        return name.encode(), name
    return _digest(line), f"{name} {row.prompt[:PREVIEW]!r}"  # the dataset has no place for it: only its content tells it


def _digest(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=16).digest()


def told(faults: Iterable[Fault]) -> Iterator[str]:
    """One text per kind of fault: how many there are, and the first of them by name."""
    counts: Counter[str] = Counter()
    names: dict[str, list[str]] = {}
    for kind, name in faults:
        counts[kind] += 1
        if counts[kind] <= SHOWN:
            names.setdefault(kind, []).append(name)
    for kind, first in names.items():
        yield f"{kind}: {counts[kind]:,} ({', '.join(first)}{', …' if counts[kind] > SHOWN else ''})"
