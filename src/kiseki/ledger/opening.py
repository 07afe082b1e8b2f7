"""Opening `run.db`: the lock that keeps other runs out, the journal that its file system can have, the version of its tables."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sqlite3
import time
from pathlib import Path

from kiseki.errors import KisekiError, LedgerError, StorageError
from kiseki.ledger.ledger import BUSY_SECONDS, Ledger
from kiseki.ledger.schema import SCHEMA, UPGRADES, VERSION
from kiseki.ledger.words import LEDGER_NAME, code, damaged, in_words

LOCK_NAME = "run.lock"
LOCK_TRIES, LOCK_PAUSE = 4, 0.05
"""A pause is in seconds. A reaper that asks whether a run still lives holds the lock for a moment."""
CACHE_KB = 48_000
"""Holds the index of a million prompts' keys, which planning visits in random order."""


def open_ledger(folder: Path, *, create: bool, read_only_too: bool = False) -> Ledger:
    """The ledger in `folder`, locked for this process. `read_only_too`: without a lock where nobody can write there anyway.

    Raises `LedgerError`: in use by another process, not there (with `create` false), not writable, damaged, not a ledger, or of
    another version; `StorageError` on a full disk.
    """
    path = folder / LEDGER_NAME
    if not create:
        check_there(folder)
    if read_only_too and _is_read_only(folder):
        return Ledger(folder, open_to_read(folder), os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    lock = _take_lock(folder)
    try:
        connection = _connect(path)
        version = _format(path, connection)
        if version == 0:
            # autocommit is off inside a script only if it says so: the tables and the version come together or not at all
            connection.executescript(f"BEGIN IMMEDIATE; {SCHEMA} PRAGMA user_version = {VERSION}; COMMIT;")
        elif version in UPGRADES:
            connection.executescript(f"BEGIN IMMEDIATE; {UPGRADES[version]} PRAGMA user_version = {VERSION}; COMMIT;")
    except sqlite3.DatabaseError as error:
        os.close(lock)
        raise in_words(folder, error) from error
    except UnicodeDecodeError as error:  # in words of SQLite's that cite what is damaged
        os.close(lock)
        raise damaged(folder, str(error)) from error
    except LedgerError:
        os.close(lock)
        raise
    return Ledger(folder, connection, lock)


def open_reader(folder: Path) -> Ledger:
    """The ledger as `open_to_read` gives it, for what its reading methods give: also while a run goes on."""
    return Ledger(folder, open_to_read(folder), os.open(folder / LEDGER_NAME, os.O_RDONLY | os.O_CLOEXEC))


def open_to_read(folder: Path) -> sqlite3.Connection:
    """A connection that can only read, without the lock: also while a run goes, and where nobody can write.

    Raises `LedgerError`: not there, damaged, of another version; or its journal would have to be played back and cannot be.
    """
    path = folder / LEDGER_NAME
    check_there(folder)
    # immutable: without the journal's shared memory, which would have to be made beside it
    read_only = _is_read_only(folder)
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}{'?immutable=1' * read_only}", uri=True, isolation_level=None)
        connection.execute("PRAGMA query_only = ON")
        version = _format(path, connection)
    except sqlite3.DatabaseError as error:
        raise in_words(folder, error) from error
    journal = path.with_name(f"{path.name}-wal")
    if read_only and journal.exists() and journal.stat().st_size:
        raise LedgerError(f"{path} has a journal to be played back, and {folder} is read-only; copy it to where it is not")
    if version != VERSION:
        raise LedgerError(f"{path} has format {version}, this version of the tool {VERSION}; kiseki merge {folder} brings it up")
    return connection


def check_there(folder: Path) -> None:
    """Raises `LedgerError` for a folder without a ledger."""
    if not (folder / LEDGER_NAME).exists():
        raise LedgerError(f"{folder} has no {LEDGER_NAME}: it is not a run folder of this tool")


def _is_read_only(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def _take_lock(folder: Path) -> int:
    """An advisory lock that the kernel drops with the process, so that none can be stale.

    What the file says is only who holds it. Raises `LedgerError`: held by another process, or none to be had; `StorageError` on a
    full disk.
    """
    try:
        lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _not_locked(folder, error) from error
    try:
        for tries_left in reversed(range(LOCK_TRIES)):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not tries_left:
                    raise
                time.sleep(LOCK_PAUSE)
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    except BlockingIOError:
        holder = os.read(lock, 200).decode("utf-8", "replace").strip() or "another process"
        os.close(lock)
        raise LedgerError(f"{folder} is in use by {holder}; wait for it to end, or stop it") from None
    except OSError as error:
        os.close(lock)
        raise _not_locked(folder, error) from error
    return lock


def _not_locked(folder: Path, error: OSError) -> KisekiError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(f"cannot write {folder / LOCK_NAME}: {error.strerror}")
    if error.errno in (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL):
        return LedgerError(
            f"the file system of {folder} gives no locks ({error.strerror}), and nothing else keeps a second run out;"
            " put the run on another disk (--output_dir)"
        )
    return LedgerError(f"cannot write in {folder}: {error.strerror}; a run needs a folder that it can write (--output_dir)")


def _format(path: Path, connection: sqlite3.Connection) -> int:
    """The version of the ledger's schema, 0 for an empty file. Raises `LedgerError` for one that is not for this tool."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if version > VERSION:
        raise LedgerError(
            f"{path} was written by another version of the tool (format {version}, this one has {VERSION}); use that version"
        )
    if (tables or version) and "rollouts" not in tables:
        raise LedgerError(f"{path} is a database of something else; move it away, or name another run")
    return int(version)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    # WAL needs shared memory, which network filesystems do not give: there a rollback journal under an exclusive lock does
    try:
        _format(path, connection)  # before anything is changed
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        if code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL):  # nothing that another mode would change
            connection.close()
            raise
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
