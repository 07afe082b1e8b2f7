"""Opens the sandbox that a run asked for, and reaps what a dead run left.

A prompt's wish that a backend cannot fulfil (an image, here) is an error: nothing ever runs somewhere else instead.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from kiseki.errors import ImageError, SandboxTimeout, UsageError
from kiseki.sandboxes import bubblewrap, cgroup, folders, processes
from kiseki.sandboxes.base import Limits, Sandbox
from kiseki.sandboxes.local import open_local
from kiseki.trajectory.text import clean_text

BACKENDS = ("bubblewrap", "local")
"""The best first: what "auto" tries, in order."""
REAP_SECONDS = 5.0
"""How long killed processes may take to be gone before their folder is removed all the same."""


class SandboxSettings(msgspec.Struct, frozen=True):
    """What all sandboxes of a run have in common."""

    backend: str = "auto"
    """"auto", "bubblewrap" or "local"."""
    limits: Limits = Limits()
    label: str = "run"
    """The run's name, part of the names of folders and cgroups, by which `reap` finds them. A dot makes a level: each worker of
    the run "abc" may have its own, as "abc.3"."""
    start_timeout: float = 60.0
    """Seconds that one may take to start."""
    program: str = ""
    """The bwrap that was found to work, so that no worker tries it again: that would hold up its event loop."""


def choose_backend(name: str) -> str:
    """The backend that `name` means on this machine. Raises UsageError for one that is unknown or cannot work here."""
    if name not in ("auto", *BACKENDS):
        raise UsageError(f"there is no sandbox backend {name!r}; the backends are auto, {', '.join(BACKENDS)}")
    if name == "local":
        return name
    reason = bubblewrap.why_unavailable()
    if not reason:
        return "bubblewrap"
    if name == "auto":
        return "local"
    raise UsageError(f"sandbox backend 'bubblewrap' does not work here: {reason}; 'local' does")


async def open_sandbox(settings: SandboxSettings, *, image: str = "", cwd: str = "") -> Sandbox:
    """A fresh sandbox; the caller closes it. `cwd` is the folder that its session starts in, made where it is missing; a
    relative one, also as `~/…`, is below the home folder.

    Raises ImageError for an image, UsageError as `choose_backend` and for a `cwd` that cannot be had, SandboxTimeout when it
    doesn't start in time, SandboxError when it doesn't otherwise.
    """
    backend = settings.backend if settings.program else choose_backend(settings.backend)
    if image:
        raise ImageError(f"sandbox backend {backend!r} has no images, so {image!r} cannot be used; choose one that has")
    if "\0" in cwd:
        raise UsageError(f"the working folder's name {cwd!r} holds a NUL character")
    limit = asyncio.timeout(settings.start_timeout)
    try:
        async with limit:
            if backend == "local":
                return await open_local(settings.limits, label=settings.label, cwd=clean_text(cwd))
            return await bubblewrap.open_bubblewrap(
                settings.limits, label=settings.label, cwd=clean_text(cwd), program=settings.program
            )
    except TimeoutError:
        if not limit.expired():
            raise
        allowed = f"{settings.start_timeout:g} s"
        raise SandboxTimeout(f"the sandbox did not start within {allowed}; --sandbox_timeout allows more") from None


def reap(label: str) -> int:
    """Remove what a dead run or worker left here whose label is this one or below it (`abc`: also `abc.3`, never `abcd`):
    processes, cgroups, folders. How many sandboxes that were.

    For before a run starts its workers, or for a worker that died: it does not spare live sandboxes of these labels. Blocks.
    """
    reap_orphans()
    return _reap(label)


def reap_orphans() -> None:
    """Remove what processes that are gone left under labels of their own (`folders.process_label`)."""
    for label in folders.orphans():
        _reap(label)


def _reap(label: str) -> int:
    cookies = folders.cookies(label)
    groups = list(cgroup.left_over(folders.group_prefix(label)))

    def remaining() -> set[int]:
        pids = set(processes.marked(*cookies))
        pids.update(pid for group in groups for pid in group.pids())
        return {pid for pid in pids if (process := processes.look(pid)) and process.running}

    processes.end_all(remaining)
    end = time.monotonic() + REAP_SECONDS
    while remaining() and time.monotonic() < end:
        time.sleep(0.01)
    while groups and time.monotonic() < end:
        groups = [group for group in groups if not group.remove()]
        time.sleep(0.01 if groups else 0)
    left = folders.left_over(label)
    for sandbox in left:
        folders.remove(sandbox)
    return len(left)
