"""Whose sandbox is whose, and whether that one still lives: told by a lock that the kernel drops with its holder.

A label has an owner: a file that the owning process holds an flock on for as long as it lives. For a run that is the lock of its
ledger; processes whose sandboxes belong to no run make one here. `<base>/.owners/<label>` says who owns the folders of a label;
backends that make more than folders keep the same with each sandbox: labels of a container, tags, and on a remote host that very
file. There, others can write it, and commands too, so no more is done to a file that one names than to look whether it is locked,
and only where it can be a lock of Kiseki's.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import os
import re
import secrets
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from kiseki.errors import SandboxError
from kiseki.sandboxes import folders, processes

FOLDER = ".owners"
"""In the folder of all labels; no label begins with a dot."""

_PROCESS_LABEL = re.compile(r"[a-z]+-(\d+)-[0-9a-f]{8}", re.ASCII)
_NAMED = re.compile(r"(/[^\0\ud800-\udfff]*)#([1-9]\d{0,9})\.(\d{1,20})", re.ASCII)
"""A lock, and the process that held it: its number and when it was started."""
_LOCK = re.compile(rf"/(?:[^\0\ud800-\udfff]*/)?(?:run\.lock|{_PROCESS_LABEL.pattern})", re.ASCII)
"""What locks of Kiseki's are called: a ledger's, and those of `hold`."""

_held: dict[str, int] = {}
"""Lock files of this process, each with its descriptor."""


class Owner(msgspec.Struct, frozen=True):
    """Of a label."""

    machine: str = ""
    """`machine_id()` of where `file` is; "" where it is not known, as below."""
    file: str = ""
    """`SandboxSettings.owner`: the lock's path, which of a run has the process behind it, as `of_this_process` says it."""


State = Literal["alive", "dead", "elsewhere", "unknown"]
"""Of an owner. `elsewhere`: on another machine, so that nothing can be told from here. `unknown`: nobody wrote down who it is, or
somebody else than Kiseki did."""


class LeftOver(msgspec.Struct, frozen=True):
    """One sandbox that a backend has, whoever made it."""

    label: str
    owner: Owner
    created: float = 0.0
    """Unix seconds; 0 where it is not known."""


@functools.cache
def machine_id() -> str:
    """Names this machine, or this container: the same after a restart, another in its neighbours and clones. 12 hex digits.

    One source is not enough: images and clones share /etc/machine-id, containers may share the host's name, and what tells those
    apart is the number of their root folder.
    """
    parts = [socket.gethostname(), str(Path("/").stat().st_ino)]
    for file in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        with contextlib.suppress(OSError):
            parts.append(Path(file).read_text().strip())
            break
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=6).hexdigest()


@functools.cache
def process_label(kind: str) -> str:
    """A label for sandboxes that belong to this process and to no run: another one in every process, on whatever machine."""
    return f"{kind}-{os.getpid()}-{secrets.token_hex(4)}"


def is_process_label(label: str) -> bool:
    """Whether nobody goes on with what it names once its process is gone, as a run goes on after a kill."""
    return _PROCESS_LABEL.fullmatch(top_label(label)) is not None


def top_label(label: str) -> str:
    """Which label's owner is the owner of this one: `abc` of `abc.3`."""
    return folders.clean_label(label).partition(".")[0]


def state(owner: Owner) -> State:
    if not owner.machine or not owner.file:
        return "unknown"
    if owner.machine != machine_id():
        return "elsewhere"
    if not _LOCK.fullmatch(lock_of(owner.file)):
        return "unknown"
    return "alive" if is_alive(owner.file) else "dead"


# ---- the lock -----------------------------------------------------------------------------------------------------------


def of_this_process(lock: str) -> str:
    """The owner that this process is by a lock that it holds elsewhere; "" for one whose path is no text.

    With the process in it: whoever cannot find the file, because it was moved or stands in another mount namespace, can tell.
    """
    process = processes.look(os.getpid())
    named = f"{lock}#{os.getpid()}.{process.started if process else 0}"
    return named if _NAMED.fullmatch(named) else ""


def lock_of(file: str) -> str:
    """The path in an `Owner.file`."""
    named = _NAMED.fullmatch(file)
    return named[1] if named else file


def hold(label: str) -> str:
    """Own a label of `process_label` for as long as this process lives. Returns its owner; may be called again.

    Raises SandboxError.
    """
    file = _record_of(label)
    while str(file) not in _held:
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not _is_still(descriptor, file):  # a reaper came between the two calls
                os.close(descriptor)
                continue
            os.pwrite(descriptor, msgspec.json.encode(Owner(machine_id(), str(file))), 0)
        except OSError as error:
            raise _not_written(file, error) from error
        _held[str(file)] = descriptor
        atexit.register(_let_go, str(file), os.getpid())
    return str(file)


def _let_go(file: str, pid: int) -> None:
    """At the end of the process that took it; one that was forked off has its descriptor too."""
    if os.getpid() == pid:
        Path(file).unlink(missing_ok=True)
        os.close(_held.pop(file))


def is_alive(file: str) -> bool:
    """Whether somebody holds the lock of this `Owner.file`, or may: only what is certain counts as dead."""
    with seized(file) as dead:
        return not dead


@contextlib.contextmanager
def seized(file: str) -> Iterator[bool]:
    """Whether nobody holds the lock of this `Owner.file`; true of "", for no lock. If so, nobody can take it inside the context,
    as a run would that goes on meanwhile."""
    descriptor = -1
    lock = lock_of(file)
    try:
        try:
            if lock not in _held and _LOCK.fullmatch(lock):
                descriptor = _open(lock)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            dead = descriptor >= 0 or not lock
        except (FileNotFoundError, NotADirectoryError):
            dead = not _has_process(file)
        except (OSError, ValueError):  # held; or a file system that cannot tell; or no lock
            dead = False
        yield dead
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _open(lock: str) -> int:
    """Raises OSError, and ValueError for what is no file: to open a device may do something."""
    if not stat.S_ISREG(os.lstat(lock).st_mode):
        raise ValueError(f"{lock} is no lock")
    how = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # not waiting for anything, should it be a pipe by now
    try:
        return os.open(lock, os.O_RDWR | how)  # which a network file system wants for an exclusive lock
    except PermissionError:
        return os.open(lock, os.O_RDONLY | how)


def _has_process(file: str) -> bool:
    """Of a lock that is gone: whether the process that held it runs all the same, so that somebody moved or removed it."""
    if named := _NAMED.fullmatch(file):
        process = processes.look(int(named[2]))
        return process is not None and process.running and process.started == int(named[3])
    made_here = _PROCESS_LABEL.fullmatch(Path(file).name)
    return made_here is not None and Path("/proc", made_here[1]).exists()


def _is_still(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False


# ---- who owns the folders of a label ------------------------------------------------------------------------------------


def record(label: str, owner: str) -> None:
    """Write down who owns the folders of a label, and of those below its top.

    Never raises: folders whose owner is not known are in use as long as they have processes.
    """
    with contextlib.suppress(SandboxError, OSError):
        file = _record_of(label)
        if owner and owner != str(file):
            file.write_bytes(msgspec.json.encode(Owner(machine_id(), owner)))


def find(label: str) -> Owner:
    """Who owns the folders of a label; an empty one where that is not known."""
    try:
        return msgspec.json.decode(_record_of(label).read_bytes(), type=Owner)
    except (OSError, msgspec.DecodeError):  # `hold` has only just made it
        return Owner()


def recorded() -> list[str]:
    """Every label with an owner."""
    return sorted(file.name for file in _folder().iterdir())


def forget(label: str) -> None:
    """Nobody owns a label any more of which nothing is left. For its owner, and for who has `seized` it."""
    file = _record_of(label)
    if file.name == folders.clean_label(label) and str(file) not in _held:
        file.unlink(missing_ok=True)


def _folder() -> Path:
    folder = folders.base() / FOLDER
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise _not_written(folder, error) from error
    return folder


def _record_of(label: str) -> Path:
    return _folder() / top_label(label)


def _not_written(file: Path, error: OSError) -> SandboxError:
    return SandboxError(f"cannot write {file}: {error.strerror}; TMPDIR names another folder for it")
