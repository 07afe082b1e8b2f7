"""What SQLite says about a ledger, in words that its user can act on."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from kiseki.errors import KisekiError, LedgerError, StorageError

LEDGER_NAME = "run.db"
SAID_CHARS = 150
"""Of what SQLite says about a damaged file, in our message."""


def in_words(folder: Path, error: sqlite3.DatabaseError) -> KisekiError:
    """What SQLite's error about the ledger in `folder` means to its user, with the way out."""
    path, number = folder / LEDGER_NAME, code(error)
    if number == sqlite3.SQLITE_FULL:
        return StorageError(f"cannot write {path}: no space left on its disk or in the folder for temporary files")
    if number in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StorageError(f"cannot write {path}: another program holds it, close that program")
    if number in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH):
        return StorageError(f"cannot write {path}: {error}; the folder and its files must be writable")
    if number in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_TOOBIG):
        name = getattr(error, "sqlite_errorname", "")
        return StorageError(
            f"cannot write {path}: {error} ({name}); is the disk, or your share of it, full, read-only or faulty?"
        )
    return damaged(folder, str(error))


def damaged(folder: Path, what: str) -> LedgerError:
    path, what = folder / LEDGER_NAME, " ".join(what.split())[:SAID_CHARS]  # SQLite may cite what it found there
    return LedgerError(
        f"{path} is damaged or no ledger ({what}); put a copy of it back (kiseki verify {folder} says what is damaged),"
        f" or move {path}* away: --resume then takes over the rows of the batch_*.jsonl files"
    )


def code(error: sqlite3.DatabaseError) -> int:
    """SQLite's primary result code."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF
