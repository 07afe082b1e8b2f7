"""The private folders of sandboxes on the host: `<tempdir>/kiseki-<uid>/<label>/<random>`, and what a dead run left there.

The names let the next start find what belonged to a run: folders by path, cgroups by a name with the same parts, and stray
processes by the path in their environment. Labels are a hierarchy: `abc.3` lies below `abc`, and `abcd` does not.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
import time
from pathlib import Path

from kiseki.errors import SandboxError
from kiseki.sandboxes import cgroup

LABEL_LIMIT = 80
"""Characters; a file name may have 255 bytes, and a cgroup's name holds more than the label."""

MAKE_ROUNDS = 100
UNTOUCHED_SECONDS = 60.0
"""Between a label's folder and its first sandbox are milliseconds, or a machine under load."""


def clean_label(label: str) -> str:
    """`label` as it may stand in names of folders and cgroups."""
    return re.sub(r"^\.|[^A-Za-z0-9_.-]", "-", label)[:LABEL_LIMIT] or "run"


def base() -> Path:
    """`<tempdir>/kiseki-<uid>`, made by us and closed to others. Raises SandboxError."""
    folder = Path(tempfile.gettempdir()) / f"kiseki-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise SandboxError(f"cannot make the folder for sandboxes: {error}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise SandboxError(f"{folder} belongs to someone else")
    if status.st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def make(label: str) -> Path:
    """A new folder for one sandbox. Raises SandboxError."""
    folder = base() / clean_label(label) / secrets.token_hex(8)
    for rounds_left in reversed(range(MAKE_ROUNDS)):
        try:
            folder.mkdir(mode=0o700, parents=True)
            break
        except (FileNotFoundError, FileExistsError) as error:  # The label's folder went or came in between, with another sandbox.
            if not rounds_left:
                raise SandboxError(f"cannot make the sandbox's folder: {error}") from error
        except OSError as error:
            raise SandboxError(f"cannot make the sandbox's folder: {error}") from error
    return folder


def labels() -> list[str]:
    """Every label that has a folder, as it stands in its name."""
    return sorted(folder.name for folder in base().iterdir() if not folder.name.startswith("."))


def left_over(label: str) -> list[Path]:
    """The folders of all sandboxes with this label or one below it."""
    return [Path(entry) for top in _tops(clean_label(label)) for entry in _entries(top) if entry.is_dir(follow_symlinks=False)]


def is_untouched(label: str) -> bool:
    """Whether nothing came or went in the label's folder, or one below it, for so long that nobody is about to use it."""
    made = max(map(made_at, _tops(clean_label(label))), default=0.0)
    return time.time() - made > UNTOUCHED_SECONDS and cgroup.are_idle(group_prefix(label), UNTOUCHED_SECONDS)


def made_at(folder: Path) -> float:
    """When the folder was made, or last something in it, in Unix seconds; 0 when it is gone."""
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0


def _tops(name: str) -> list[Path]:
    return [top for top in (base() / name, *base().glob(f"{name}.*")) if top.is_dir()]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Its own, none when it is gone: label folders come and go with their sandboxes."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def cookies(label: str) -> tuple[bytes, bytes]:
    """What the environment of every process holds that belongs to a sandbox with this label, or to one with a label below it."""
    top = base() / clean_label(label)
    return f"{top}/".encode(), f"{top}.".encode()


def group_name(folder: Path) -> str:
    """The cgroup of the sandbox with this folder."""
    return f"{group_prefix(folder.parent.name)}{folder.name}"


def group_prefix(label: str) -> str:
    """How the names of the cgroups of this label and of those below it begin."""
    return f"kiseki-{os.getuid()}-{clean_label(label)}."


def grouped_labels() -> list[str]:
    """Every label that has a cgroup, of whichever folder for temporary files."""
    prefix = f"kiseki-{os.getuid()}-"
    return sorted({name.removeprefix(prefix).rpartition(".")[0] for name in cgroup.names(prefix)} - {""})


def normal(path: str) -> str:
    """An absolute path without `.`, `..` and doubled slashes, by its text alone."""
    return os.path.normpath(f"/{path.lstrip('/')}")


def below_home(cwd: str) -> str:
    """A relative `cwd`, of which `~` and `~/` are the same as nothing."""
    return "" if cwd == "~" else cwd.removeprefix("~/")


def remove_labels(label: str) -> None:
    """Remove the empty folders of a label and of those below it. Never raises."""
    for top in _tops(clean_label(label)):
        with contextlib.suppress(OSError):
            top.rmdir()


def remove(folder: Path) -> None:
    """Remove a sandbox's folder, whatever modes its files have, and the label's with the last one. Never raises."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        # Folders that are closed to us, or one in another a thousand deep: these programs cope with both.
        for program in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            with contextlib.suppress(OSError):
                subprocess.run([*program, "--", folder], stdin=subprocess.DEVNULL, capture_output=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()
