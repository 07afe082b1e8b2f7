"""The private folders of sandboxes on the host: `<tempdir>/kiseki-<uid>/<label>/<random>`, and what a dead run left there.

The names let the next start find what belonged to a run: folders by path, cgroups by a name with the same parts, and stray
processes by the path in their environment.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import tempfile
from pathlib import Path

from kiseki.errors import SandboxError

LABEL_LIMIT = 80
"""Characters; a file name may have 255 bytes, and a cgroup's name holds more than the label."""


def clean_label(label: str) -> str:
    """`label` as it may stand in names of folders and cgroups."""
    return re.sub(r"[^A-Za-z0-9_-]", "-", label)[:LABEL_LIMIT] or "run"


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
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise SandboxError(f"cannot make the sandbox's folder: {error}") from error
    return folder


def group_name(folder: Path) -> str:
    """The cgroup of the sandbox with this folder."""
    return f"{group_prefix(folder.parent.name)}{folder.name}"


def group_prefix(label: str) -> str:
    return f"kiseki-{os.getuid()}-{clean_label(label)}."


def normal(path: str) -> str:
    """An absolute path without `.`, `..` and doubled slashes, by its text alone."""
    return os.path.normpath(f"/{path.lstrip('/')}")


def remove(folder: Path) -> None:
    """Remove a sandbox's folder, whatever modes its files have, and the label's with the last one. Never raises."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        _open_folders(folder)
        shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def _open_folders(folder: Path) -> None:
    """Let us into every folder below that was closed."""
    with contextlib.suppress(OSError):
        folder.chmod(0o700)
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                _open_folders(Path(entry.path))
