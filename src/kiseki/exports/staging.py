"""Files of an export until they are all there, and the moment when they take the place of an earlier export's.

All is written in a folder beside the target. When it is complete a plan of what goes where is written there, and only then are
files removed and renamed. Who is killed before that leaves the target as it was; who is killed after it leaves a plan, which the
next export into the same target carries out first. So a file under its final name is always whole.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from kiseki.errors import UsageError
from kiseki.exports.target import Target, is_name
from kiseki.trajectory.replacing import replacing

_PLAN = "plan.json"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Plan(msgspec.Struct, frozen=True):
    """What is left to do when all is written. Names are those of entries of the target's folder."""

    moves: list[str]
    """From the staging folder, in this order."""
    removals: list[str]


@contextmanager
def staging(target: Target) -> Iterator[Path]:
    """The folder to write in, empty. It is gone at the end.

    Raises `UsageError` when another export into the same target goes on.
    """
    folder, parent = target.partial, target.partial.parent
    made = not parent.exists()
    parent.mkdir(parents=True, exist_ok=True)
    lock = _lock(folder, target.path)
    try:
        if (folder / _PLAN).exists():
            _carry_out(folder, target.folder)
        _empty(folder)
        yield folder
    finally:
        with suppress(OSError):  # a disk that has become read-only; the next export takes it away
            shutil.rmtree(folder)
            if made:
                parent.rmdir()
        os.close(lock)


def put_in_place(folder: Path, target: Target, names: list[str], stale: list[str]) -> None:
    """Let what was written take the target's place: `names`, with the report last, in place of them and of `stale`."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # milliseconds; what comes meanwhile comes after it
    try:
        with replacing(folder / _PLAN) as file:
            file.write(msgspec.json.encode(Plan(names, sorted(set(stale) - set(names)))))
        _carry_out(folder, target.folder)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _carry_out(folder: Path, into: Path) -> None:
    plan = msgspec.json.decode((folder / _PLAN).read_bytes(), type=Plan)
    if not all(map(is_name, plan.moves + plan.removals)):
        raise UsageError(f"{folder / _PLAN} is no plan of an export; remove {folder}")
    into.mkdir(parents=True, exist_ok=True)
    for name in plan.removals:
        _remove(into / name)
    for name in plan.moves:
        if (folder / name).exists():  # else it was moved before a kill
            if (into / name).is_dir():
                _remove(into / name)
            (folder / name).replace(into / name)
    handle = os.open(into, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    (folder / _PLAN).unlink()


def _lock(folder: Path, path: Path) -> int:
    while True:
        folder.mkdir(exist_ok=True)
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:  # another export has just ended
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise UsageError(f"another export to {path} goes on; wait for it, or stop it") from None
        with suppress(FileNotFoundError):
            if os.fstat(lock).st_ino == folder.stat().st_ino:
                return lock
        os.close(lock)


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        _remove(entry)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
