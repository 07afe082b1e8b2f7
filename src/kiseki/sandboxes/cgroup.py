"""Control groups, versions 1 and 2: real limits on memory, processes and CPU, where this process may make groups.

Owns the groups it makes, under this process's own (so that its limits go on to hold), named by the caller. Where nothing is
writable, or the kernel refuses, there is no group, and the caller says so in `describe()`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from kiseki.sandboxes.base import Limits

CONTROLLERS = ("memory", "pids", "cpu")
CPU_PERIOD = 100_000
"""Microseconds: the kernel's default."""
MEGABYTE = 1 << 20
OWN_PROCESSES = 8
"""Room for the sandbox's own: its first process, the isolating program's watcher, session shell, reporters."""


class Group:
    """One sandbox's group: a folder in one hierarchy (version 2) or in several (version 1)."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self.folders = folders
        """By controller; the same folder several times with version 2."""

    def enter(self, pid: int) -> None:
        """Move a process in; what it starts from then on is in too. Blocks for some milliseconds. Raises OSError."""
        for folder in sorted(set(self.folders.values())):
            (folder / "cgroup.procs").write_text(str(pid))

    def pids(self) -> list[int]:
        """The processes within, on the host's count."""
        found: set[int] = set()
        for folder in set(self.folders.values()):
            try:
                found.update(map(int, (folder / "cgroup.procs").read_text().split()))
            except OSError:
                continue
        return sorted(found)

    def remove(self) -> bool:
        """Whether all of it is gone now; a group with processes cannot be removed."""
        for folder in set(self.folders.values()):
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
        return True


def make(name: str, limits: Limits) -> Group | None:
    """A new group with these limits, as many of them as can be set; None where there is none to be had."""
    folders: dict[str, Path] = {}
    for controller, parent in parents().items():
        folder = parent / name
        try:
            folder.mkdir(exist_ok=True)
            for file, value in _settings(controller, limits, version2=(folder / "cgroup.controllers").exists()):
                _write(folder / file, value)
        except OSError:
            if folder not in folders.values():
                _try_rmdir(folder)
            continue
        folders[controller] = folder
    return Group(folders) if folders else None


def left_over(prefix: str) -> Iterator[Group]:
    """Groups whose name begins so."""
    for parent in set(parents().values()):
        for folder in parent.glob(f"{prefix}*"):
            yield Group({"": folder})


def names(prefix: str) -> set[str]:
    """Of all groups whose name begins so."""
    return {folder.name for parent in set(parents().values()) for folder in parent.glob(f"{prefix}*")}


def are_idle(prefix: str, seconds: float) -> bool:
    """Whether the groups whose name begins so are empty and older than that: those of a sandbox always hold a process."""
    now = time.time()
    for group in left_over(prefix):
        for folder in group.folders.values():
            with contextlib.suppress(FileNotFoundError):
                if group.pids() or now - folder.stat().st_mtime < seconds:
                    return False
    return True


@functools.cache
def parents() -> dict[str, Path]:
    """By controller, the folder in which groups can be made; empty where cgroups are absent or read-only."""
    return find_parents(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())


def find_parents(membership: str, mounts: str) -> dict[str, Path]:
    """`parents`, from the texts of /proc/self/cgroup and /proc/self/mountinfo."""
    own = {}
    for line in membership.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            own[name] = path
    found: dict[str, Path] = {}
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        root, mount = (_unescape(word) for word in before.split()[3:5])
        kind, _, options = after.split()[:3]
        if kind == "cgroup":
            for controller in set(CONTROLLERS) & set(options.split(",")) & own.keys():
                folder = _within(mount, root, own[controller])
                if os.access(folder, os.W_OK):
                    found[controller] = folder
        elif kind == "cgroup2" and "" in own:
            top = Path(mount)
            folder = _within(mount, root, own[""])
            # Its own group holds this process, so it may not hand controllers on: the nearest one above that does is taken.
            for candidate in (folder, *folder.parents):
                if not candidate.is_relative_to(top):
                    break
                given = _read(candidate / "cgroup.subtree_control").split()
                if "memory" in given and os.access(candidate, os.W_OK):
                    found |= {name: candidate for name in CONTROLLERS if name in given and name not in found}
                    break
    return found


def _within(mount: str, root: str, path: str) -> Path:
    """Where the group `path` of a hierarchy is seen, whose folder `root` is mounted at `mount`."""
    relative = path[len(root) :] if root != "/" and path.startswith(root) else path
    return Path(mount) / relative.lstrip("/")


def _settings(controller: str, limits: Limits, *, version2: bool) -> list[tuple[str, str]]:
    memory = str(limits.memory_mb * MEGABYTE)
    pids = str(limits.processes + OWN_PROCESSES)
    quota = str(max(int(limits.cpus * CPU_PERIOD), 1000))
    if version2:
        return {
            "memory": [("memory.max", memory), ("memory.swap.max", "0")],
            "pids": [("pids.max", pids)],
            "cpu": [("cpu.max", f"{quota} {CPU_PERIOD}")],
        }[controller]
    return {
        "memory": [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)],
        "pids": [("pids.max", pids)],
        "cpu": [("cpu.cfs_period_us", str(CPU_PERIOD)), ("cpu.cfs_quota_us", quota)],
    }[controller]


def _write(path: Path, value: str) -> None:
    try:
        path.write_text(value)
    except FileNotFoundError:
        if "sw" not in path.name:  # Kernels without swap accounting have no file for it.
            raise


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _try_rmdir(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return


def _unescape(word: str) -> str:
    return re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), word)
