"""The index of a corpus: made once, found again by what the corpus is, and made anew when that changes."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

from kiseki.errors import UsageError
from kiseki.tools.web.corpus_files import Found, Source
from kiseki.tools.web.corpus_terms import spaced

VERSION = "2"
"""Of what an index holds: another one is made where this changes."""
TELL_EVERY = 500
"""Documents."""
_SCHEMA = """
PRAGMA journal_mode = OFF;
PRAGMA synchronous = OFF;
CREATE VIRTUAL TABLE words USING fts5(title, text, content = '', tokenize = 'porter unicode61 remove_diacritics 2');
CREATE TABLE documents (id INTEGER PRIMARY KEY, url TEXT NOT NULL, title TEXT NOT NULL, text TEXT NOT NULL);
CREATE INDEX documents_by_url ON documents (url);
CREATE TABLE about (documents INTEGER NOT NULL, skipped INTEGER NOT NULL, content TEXT NOT NULL);
"""
"""No journal: an index that was not finished is never looked at. `words` keeps no text of its own, `documents` has it."""


def ensure_index(path: str, read: Callable[[int], None] = lambda count: None) -> Path:
    """The index of the corpus at `path` (a folder, or a file of rows), made unless it is there already. `read` is told now and
    then how many documents are in it.

    Several processes may ask for it at once: one makes it, the others wait. Raises `UsageError` for a corpus that cannot be
    read or holds no text, and where no index can be made.
    """
    source = Source(Path(path))
    folder = _cache()
    name = f"corpus-{_hash([str(source.path)])}"
    index = folder / f"{name}-{_hash(itertools.chain([VERSION], source.state()))}.db"
    try:
        if index.exists():
            return index
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder / f"{name}.lock"):
            if not index.exists():
                for old in folder.glob(f"{name}-*"):  # of what the corpus was, or half of one: nobody else is at it now
                    old.unlink()
                half = index.with_suffix(".half")
                try:
                    _make(half, source, read)
                    half.replace(index)
                finally:
                    half.unlink(missing_ok=True)
    except (OSError, sqlite3.Error) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"cannot make the index of {path} in {folder}: {why}; XDG_CACHE_HOME names another place") from error
    return index


def open_index(index: Path) -> sqlite3.Connection:
    """For reading, from any thread."""
    return sqlite3.connect(f"file:{quote(os.fsencode(index))}?mode=ro&immutable=1", uri=True, check_same_thread=False)


def describe(index: Path) -> str:
    """What an index holds, in words."""
    with contextlib.closing(open_index(index)) as database:
        documents, skipped = database.execute("SELECT documents, skipped FROM about").fetchone()
    without = f", {skipped:,} without a text left out" if skipped else ""
    return f"{documents:,} document{'s' * (documents != 1)}{without}"


def fingerprint(index: Path) -> str:
    """A hash of the documents: the same for the same corpus, wherever it lies and whenever it was copied there."""
    with contextlib.closing(open_index(index)) as database:
        (content,) = database.execute("SELECT content FROM about").fetchone()
    return str(content)


def _make(file: Path, source: Source, read: Callable[[int], None]) -> None:
    database = sqlite3.connect(file)
    try:
        try:
            database.executescript(_SCHEMA)
        except sqlite3.OperationalError as error:
            if "fts5" not in str(error):
                raise
            raise UsageError(
                f"--corpus needs SQLite with FTS5, which that of this Python ({sqlite3.sqlite_version}) has not; "
                "Pythons from python.org, conda and most systems have it"
            ) from None
        count, content = 0, hashlib.blake2b(digest_size=8)
        with database:
            for count, found in enumerate(source.documents(), 1):
                _add(database, count, found)
                for part in (found.url, found.title, found.text):
                    content.update(part.encode("utf-8", "surrogateescape") + b"\0")
                if count % TELL_EVERY == 0:
                    read(count)
            if not count:
                raise UsageError(source.why_nothing())
            database.execute("INSERT INTO about VALUES (?, ?, ?)", (count, source.skipped, content.hexdigest()))
        read(count)
    finally:
        database.close()
    with file.open("rb") as written:
        os.fsync(written)  # a name must not outlive what it names


def _add(database: sqlite3.Connection, number: int, found: Found) -> None:
    database.execute("INSERT INTO documents VALUES (?, ?, ?, ?)", (number, found.url, found.title, found.text))
    words = (number, spaced(found.title), spaced(found.text))
    database.execute("INSERT INTO words (rowid, title, text) VALUES (?, ?, ?)", words)


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # given up when the file closes, and when the process ends
        yield


def _hash(parts: Iterable[str]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part.encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def _cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path("~/.cache").expanduser()) / "kiseki"
