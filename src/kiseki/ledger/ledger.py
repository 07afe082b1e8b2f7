"""`run.db`: opened by one process at a time, written by it alone, group by group.

All methods are synchronous and belong to one thread at a time; the driver calls them from a thread of its own so that a
disk never holds up the rollouts.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kiseki import __version__
from kiseki.errors import LedgerError, StorageError
from kiseki.ledger.schema import FROM_VERSION_1, POISON, SCHEMA, VERSION
from kiseki.ledger.types import Attempt, DoneRollout, OpenRollout, SessionState
from kiseki.trajectory.types import Prompt

LEDGER_NAME = "run.db"
LOCK_NAME = "run.lock"
BUSY_SECONDS = 30.0
"""How long to wait for a reader such as a viewer; another writer is kept out by the lock file."""
CACHE_KB = 48_000
"""Holds the index of a million prompts' keys, which planning visits in random order."""
PAGE = 500
"""Lines per query when walking a large table, so that memory does not depend on the run's size."""

_DONE_COLUMNS = (
    "coalesce(p.position, -1), r.sample_index, r.batch_num, r.outcome,"
    " a.reasoning_turns, a.assistant_turns, a.unknown_tools, y.payload, a.record"
)
_DONE_JOINS = "JOIN rollouts r ON r.prompt_id = p.id JOIN attempts a ON a.id = r.attempt_id JOIN payloads y ON y.prompt_id = p.id"
WANTED = "p.position IS NOT NULL AND r.sample_index < ?"
"""A rollout that the run is about: of the dataset as last given, and of as many samples (the parameter) as last asked for."""
IS_UNDONE = "r.outcome IN ('pending', 'failed')"
IS_OPEN = f"{IS_UNDONE} AND r.suspect < {POISON}"
"""What a start of the run has to run."""
_IS_DONE = "r.outcome IN ('completed', 'partial')"

NEW_SESSION = SessionState()

_decode_prompt = msgspec.msgpack.Decoder(Prompt).decode
_to_json = msgspec.json.encode


class Ledger:
    """The open ledger of one run folder. Make one with `open_ledger`."""

    def __init__(self, folder: Path, connection: sqlite3.Connection, lock: int) -> None:
        self.folder = folder
        self.db = connection
        self._lock = lock
        self.session_id = 0

    def close(self) -> None:
        self.db.close()
        os.close(self._lock)  # which gives up the lock

    # ---- identity -------------------------------------------------------------------------------------------------

    def get_meta(self, key: str) -> str:
        line = self.db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return str(line[0]) if line else ""

    def set_meta(self, key: str, value: str) -> None:
        with self.transaction():
            self.db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def start_session(self, settings: str) -> None:
        with self.transaction():
            cursor = self.db.execute(
                "INSERT INTO sessions (started, settings, version) VALUES (?, ?, ?)", (time.time(), settings, __version__)
            )
        self.session_id = cursor.lastrowid or 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block's writes or none. Raises `StorageError` when the disk does not take them."""
        try:
            self.db.execute("BEGIN IMMEDIATE")
            yield
            self.db.execute("COMMIT")
        except BaseException as error:
            if self.db.in_transaction:  # some errors have ended it already
                self.db.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                path = self.folder / LEDGER_NAME
                raise StorageError(f"cannot write {path}: {error}; what was done before is saved, --resume goes on") from error
            raise

    # ---- writing --------------------------------------------------------------------------------------------------

    def open_rollouts(self, num_samples: int) -> Iterator[OpenRollout]:
        """Every wanted rollout that is pending or failed, in dataset order, siblings together."""
        last = (-1, -1, -1)
        query = (
            "SELECT r.id, p.key, y.payload, r.sample_index, r.batch_num, r.attempts, r.suspect,"
            " (SELECT coalesce(sum(cost), 0.0) FROM attempts a WHERE a.rollout_id = r.id), p.position, p.id FROM prompts p"
            " CROSS JOIN rollouts r ON r.prompt_id = p.id CROSS JOIN payloads y ON y.prompt_id = p.id"
            f" WHERE {WANTED} AND {IS_OPEN} AND (p.position, p.id, r.sample_index) > (?, ?, ?)"
            " ORDER BY p.position, p.id, r.sample_index LIMIT ?"
        )
        while lines := self.db.execute(query, (num_samples, *last, PAGE)).fetchall():
            for rollout_id, key, payload, sample, batch, attempts, suspect, spent, position, prompt_id in lines:
                last = (position, prompt_id, sample)
                prompt = msgspec.structs.replace(_decode_prompt(payload), index=position)
                yield OpenRollout(rollout_id, key, prompt, sample, batch, attempts, bool(suspect), spent)

    def commit(self, attempts: Sequence[tuple[int, Attempt]], session: SessionState = NEW_SESSION) -> None:
        """Write ended attempts, each with its rollout's id, in one transaction. When this returns they are safe."""
        with self.transaction():
            self.db.execute(
                "UPDATE sessions SET seconds = ?, cost = ?, tokens = ? WHERE id = ?",
                (session.seconds, session.cost, session.tokens, self.session_id),
            )
            self.db.executemany(
                "INSERT INTO decisions VALUES (NULL, ?, ?, ?, ?)",
                [(self.session_id, each.at, each.kind, each.detail) for each in session.decisions],
            )
            for rollout_id, attempt in attempts:
                self.write(rollout_id, attempt)

    def set_suspect(self, rollout_id: int, level: int) -> None:
        """Note that a worker died with this rollout: 1 with others in it, `POISON` with it alone."""
        with self.transaction():
            self.db.execute("UPDATE rollouts SET suspect = max(suspect, ?) WHERE id = ?", (level, rollout_id))

    def write(self, rollout_id: int, attempt: Attempt) -> None:
        """Write one ended attempt inside a transaction of the caller's."""
        s, use = attempt.summary, attempt.summary.usage
        if attempt.tools_json:
            self.db.execute("INSERT OR IGNORE INTO tool_schemas VALUES (?, ?)", (attempt.tools_hash, attempt.tools_json))
        (number,) = self.db.execute(
            "UPDATE rollouts SET attempts = attempts + 1 WHERE id = ? RETURNING attempts", (rollout_id,)
        ).fetchone()
        cursor = self.db.execute(
            "INSERT INTO attempts VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(rollout_id, self.session_id, number, s.outcome, s.reason, s.error_class, s.error),
                *(s.started, s.seconds, s.model_seconds, s.tool_seconds, s.api_calls),
                *(use.prompt_tokens, use.completion_tokens, use.reasoning_tokens, use.cached_tokens, use.cost),
                *(s.assistant_turns, s.reasoning_turns, _to_json(s.unknown_tools).decode()),
                *(_to_json(s.tool_counts).decode(), attempt.record, s.tool_timeouts, s.redacted, s.config),
            ),
        )
        # a late failure never replaces an outcome that was already paid for
        self.db.execute(
            "UPDATE rollouts SET outcome = ?, attempt_id = ? WHERE id = ? AND outcome IN ('pending', 'failed')",
            (s.outcome, cursor.lastrowid, rollout_id),
        )

    # ---- reading --------------------------------------------------------------------------------------------------

    def done_rollouts(self) -> Iterator[DoneRollout]:
        """Completed and partial rollouts, in dataset order; those that the dataset no longer has come last, oldest first."""
        # two walks, each along an index and page by page: one over the dataset, one over what it no longer has
        yield from self._walk("p.position IS NOT NULL", "p.position")
        yield from self._walk("p.position IS NULL", "p.id")

    def _walk(self, where: str, order: str) -> Iterator[DoneRollout]:
        query = (
            f"SELECT {_DONE_COLUMNS}, {order}, p.id FROM prompts p {_DONE_JOINS}"
            f" WHERE {where} AND {_IS_DONE} AND ({order}, p.id, r.sample_index) > (?, ?, ?)"
            f" ORDER BY {order}, p.id, r.sample_index LIMIT ?"
        )
        last = (-1, -1, -1)  # with the prompt's id: after a plan that was stopped half-way two may share a position
        while lines := self.db.execute(query, (*last, PAGE)).fetchall():
            for line in lines:
                last = (line[-2], line[-1], line[1])
                yield DoneRollout(*line[:-2])

    def done_in_batch(self, batch_num: int) -> Iterator[DoneRollout]:
        """The same for one batch."""
        ids = self.db.execute(
            "SELECT p.id, r.sample_index FROM rollouts r JOIN prompts p ON p.id = r.prompt_id"
            f" WHERE r.batch_num = ? AND {_IS_DONE} ORDER BY p.position IS NULL, p.position, p.id, r.sample_index",
            (batch_num,),
        ).fetchall()
        query = f"SELECT {_DONE_COLUMNS} FROM prompts p {_DONE_JOINS} WHERE p.id = ? AND r.sample_index = ?"
        for pair in ids:
            yield DoneRollout(*self.db.execute(query, pair).fetchone())

    def tool_schemas(self) -> dict[str, str]:
        return dict(self.db.execute("SELECT hash, schemas FROM tool_schemas"))


def open_ledger(folder: Path, *, create: bool) -> Ledger:
    """The ledger in `folder`, locked for this process.

    Raises `LedgerError`: in use by another process, not there (with `create` false), not a ledger, or of another version.
    """
    path = folder / LEDGER_NAME
    if not create and not path.exists():
        raise LedgerError(f"{folder} has no {LEDGER_NAME}: it is not a run folder of this tool")
    try:
        lock = _take_lock(folder)
    except OSError as error:
        raise LedgerError(f"cannot write in {folder}: {error.strerror}") from error
    try:
        connection = _connect(path)
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            # autocommit is off inside a script only if it says so: the tables and the version come together or not at all
            connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        elif version == 1:
            connection.executescript(f"BEGIN IMMEDIATE; {FROM_VERSION_1} PRAGMA user_version = {VERSION}; COMMIT;")
        elif version != VERSION:
            raise LedgerError(f"{path} was written by another version of the tool (format {version}, this one has {VERSION})")
    except sqlite3.DatabaseError as error:
        os.close(lock)
        raise LedgerError(f"{path} cannot be used: {error}") from error
    except LedgerError:
        os.close(lock)
        raise
    return Ledger(folder, connection, lock)


def _take_lock(folder: Path) -> int:
    """An advisory lock that the kernel drops with the process, so that none can be stale."""
    lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 200).decode("utf-8", "replace").strip() or "another process"
        os.close(lock)
        raise LedgerError(f"{folder} is in use by {holder}; wait for it to end, or stop it") from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return lock


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    # WAL needs shared memory, which network filesystems do not give: there a rollback journal under an exclusive lock does
    try:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        mode = ""
    if mode != "wal":
        connection.close()
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk when it returns, also over a power cut
    connection.execute("PRAGMA temp_store = FILE")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KB}")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection
