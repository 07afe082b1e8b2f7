"""Folders of the user's that every sandbox gets a copy of: skills, memory. The folder itself is only ever read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from kiseki.errors import UsageError
from kiseki.models.endpoints import ModelSettings
from kiseki.tools.settings import ToolSettings

MAX_BYTES = 50_000_000
"""Of one folder: each rollout gets a copy of its own, in memory where the sandbox keeps its files there."""
MAX_FILES = 10_000
"""Of one folder; unpacking more takes longer than a sandbox takes to start."""
LEFT_OUT = (".git",)
"""The history of a folder that is a clone: often larger than all the rest, and of no use in a sandbox."""


class Entry(NamedTuple):
    """A file, folder or symbolic link below a folder."""

    path: Path
    inside: str
    """Its path in the folder, with "/"."""
    link: str = ""
    """Of a link: what it leads to, from where it is."""
    is_folder: bool = False
    size: int = 0
    executable: bool = False


def why_no_skills(settings: ToolSettings, model: ModelSettings | None, environ: Mapping[str, str]) -> str:
    """Why there are no skills, "" when there are."""
    if not settings.skills_dir:
        return "--skills_dir names a folder of skills"
    return _why_unusable("--skills_dir", settings.skills_dir)


def why_no_memory(settings: ToolSettings, model: ModelSettings | None, environ: Mapping[str, str]) -> str:
    """Why there is no memory, "" when there is."""
    return _why_unusable("--memory_dir", settings.memory_dir) if settings.memory_dir else ""


def _why_unusable(flag: str, folder: str) -> str:
    if not Path(folder).is_dir():
        return f"{flag} {folder}: there is no such folder"
    try:
        for _ in entries(folder):
            pass
    except UsageError as error:
        return f"{flag} {error}"
    except OSError as error:
        return f"{flag} {error.filename or folder}: {error.strerror}"
    return ""


def entries(folder: str) -> Iterator[Entry]:
    """Everything below `folder`, sorted, each folder before what is in it.

    Raises `UsageError`: too much, a link that leads out of the folder, something that is no file.
    """
    root = Path(folder).resolve()
    size = 0
    for count, each in enumerate(_walk(root, root), 1):
        size += each.size
        if count > MAX_FILES or size > MAX_BYTES:
            raise UsageError(
                f"{folder} holds more than {MAX_FILES:,} files or {MAX_BYTES // 1_000_000} MB; choose a smaller folder"
            )
        yield each


def _walk(folder: Path, root: Path) -> Iterator[Entry]:
    for path in sorted(folder.iterdir(), key=lambda each: os.fsencode(each.name)):
        if path.name in LEFT_OUT:
            continue
        inside = path.relative_to(root).as_posix()
        state = path.lstat()
        if stat.S_ISLNK(state.st_mode):
            target = Path(os.path.realpath(path))
            if not target.is_relative_to(root):
                raise UsageError(f"{path} is a link that leads out of the folder; put a copy of what it leads to in its place")
            yield Entry(path, inside, link=os.path.relpath(target, path.parent))
        elif stat.S_ISDIR(state.st_mode):
            yield Entry(path, inside, is_folder=True)
            yield from _walk(path, root)
        elif stat.S_ISREG(state.st_mode):
            yield Entry(path, inside, size=state.st_size, executable=bool(state.st_mode & stat.S_IXUSR))
        else:
            raise UsageError(f"{path} is no file, folder or link; take it out")
