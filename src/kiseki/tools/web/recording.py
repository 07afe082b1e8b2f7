"""A file of requests and their responses: a run's cache, and what `--web_record` writes and `--web_replay` reads.

SQLite, so that the worker processes of a run can share one. Responses are kept compressed. Who is about to ask for something
leaves a claim, so that nobody else asks for the same meanwhile; the claim of a process that is gone counts for nothing.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kiseki.errors import UsageError
from kiseki.sandboxes.owners import machine_id
from kiseki.sandboxes.processes import look
from kiseki.tools.settings import ToolSettings
from kiseki.tools.web.addresses import Guard

_APPLICATION = 0x4B57_4542  # "KWEB": tells a recording from other databases
_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    kind TEXT NOT NULL, request TEXT NOT NULL, response BLOB NOT NULL, PRIMARY KEY (kind, request)
);
CREATE TABLE IF NOT EXISTS claims (
    kind TEXT NOT NULL, request TEXT NOT NULL, owner TEXT NOT NULL, since REAL NOT NULL, PRIMARY KEY (kind, request)
) WITHOUT ROWID;
"""
BUSY_SECONDS = 30.0
"""Other processes write for a few milliseconds each."""
CLAIM_SECONDS = 600.0
"""After which a claim from another machine counts for nothing: no fetch, its turn included, takes so long."""
PAGE_BYTES = 4096
MAX_IN_MEMORY = 256_000_000
MAX_CACHE = 10_000_000_000
"""Bytes. What comes after that is not kept: a cache is there for what many prompts ask for."""
MAX_RESPONSE = 100_000_000
"""Bytes of one when unpacked; nothing that is fetched has so many."""


class Recording:
    """One connection to such a file; for one thread at a time. Its methods raise `sqlite3.Error`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        process = look(os.getpid())
        self._owner = f"{machine_id()} {os.getpid()} {process.started if process else 0}"

    def get(self, kind: str, request: str) -> bytes | None:
        import zstandard

        found = self._connection.execute("SELECT response FROM responses WHERE kind = ? AND request = ?", (kind, request))
        row = found.fetchone()
        return zstandard.ZstdDecompressor().decompress(row[0], max_output_size=MAX_RESPONSE) if row else None

    def put(self, kind: str, request: str, response: bytes) -> None:
        """Keep it. What is there already stays."""
        import zstandard

        packed = zstandard.ZstdCompressor(3).compress(response)
        self._connection.execute("INSERT OR IGNORE INTO responses VALUES (?, ?, ?)", (kind, request, packed))

    def claim(self, kind: str, request: str) -> tuple[bytes | None, bool]:
        """The response, if somebody put it there; else whether the caller is the one to ask for it."""
        with self._transaction():
            if (found := self.get(kind, request)) is not None:
                return found, False
            query = "SELECT owner, since FROM claims WHERE kind = ? AND request = ?"
            row = self._connection.execute(query, (kind, request)).fetchone()
            if row is not None and self._is_alive(*row):
                return None, False
            claim = (kind, request, self._owner, time.time())
            self._connection.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?)", claim)
            return None, True

    def release(self, kind: str, request: str) -> None:
        """Drop the caller's claim, if it still has it."""
        query = "DELETE FROM claims WHERE kind = ? AND request = ? AND owner = ?"
        self._connection.execute(query, (kind, request, self._owner))

    def close(self) -> None:
        self._connection.close()

    def _is_alive(self, owner: str, since: float) -> bool:
        machine, pid, started = owner.split(" ")
        if machine != machine_id():
            return time.time() - since < CLAIM_SECONDS
        if owner == self._owner:  # within one process it's the store that keeps equal requests together
            return False
        process = look(int(pid))
        return process is not None and process.running and process.started == int(started)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def open_to_write(file: str, *, max_bytes: int | None = None) -> Recording:
    """A recording that is made where it is not there yet; "" is one in memory. `max_bytes`: beyond that `put` raises.

    Raises `sqlite3.Error`.
    """
    connection = sqlite3.connect(file or ":memory:", timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    with contextlib.suppress(sqlite3.OperationalError):  # network file systems have no WAL
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
    if max_bytes is not None:
        connection.execute(f"PRAGMA max_page_count = {max_bytes // PAGE_BYTES}")
    return Recording(connection)


def open_to_read(file: str) -> Recording:
    """A recording that nothing is written to. Raises `UsageError`: not there, or something else."""
    path = Path(file)
    if not path.is_file():
        raise UsageError(f"--web_replay: there is no file {file}; --web_record={file} makes one in a run with network")
    journal = path.with_name(f"{path.name}-wal")
    # immutable where nothing is to be played back: then it can be read where nobody may write
    left = journal.exists() and journal.stat().st_size
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=ro{'' if left else '&immutable=1'}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        connection.execute("SELECT count(*) FROM (SELECT 1 FROM responses LIMIT 1)")
        known = connection.execute("PRAGMA application_id").fetchone()[0] == _APPLICATION
    except sqlite3.Error:
        known = False
    if not known:
        connection.close()
        raise UsageError(f"--web_replay: {file} is no recording of --web_record")
    return Recording(connection)


def check_recording(settings: ToolSettings) -> ToolSettings:
    """The settings with whole paths. Raises `UsageError` for files that cannot be recorded to or replayed, and for what
    `--web_allow` cannot mean; creates nothing."""
    Guard(settings.web_allow)
    record, replay = settings.web_record, settings.web_replay
    if record and replay:
        raise UsageError("--web_record and --web_replay cannot go together: what is replayed is recorded already")
    if replay:
        open_to_read(replay).close()
    if record:
        path = Path(record)
        if not path.absolute().parent.is_dir():
            raise UsageError(f"--web_record: there is no folder {path.absolute().parent}; make it first")
        if path.is_dir() or not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
            raise UsageError(f"--web_record: {record} cannot be written; name another file")
        if path.exists() and path.stat().st_size:
            try:
                open_to_read(record).close()
            except UsageError:
                raise UsageError(f"--web_record: {record} is something else than a recording; name another file") from None
    paths = {name: str(Path(value).absolute()) for name, value in (("web_record", record), ("web_replay", replay)) if value}
    return msgspec.structs.replace(settings, **paths)
