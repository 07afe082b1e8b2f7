"""Opens the sandbox that a run asked for, and reaps what a dead run left.

A prompt's wish that a backend cannot fulfil (an image, here) is an error: nothing ever runs somewhere else instead.
"""

from __future__ import annotations

import asyncio
import time

import msgspec

from kiseki.errors import ImageError, SandboxError, UsageError
from kiseki.sandboxes import bubblewrap, cgroup, folders, processes
from kiseki.sandboxes.base import Limits, Sandbox
from kiseki.sandboxes.local import open_local

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
    """The run's name, part of the names of folders and cgroups, by which `reap` finds them."""


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


async def open_sandbox(settings: SandboxSettings, *, image: str = "", cwd: str = "", start_timeout: float = 60) -> Sandbox:
    """A fresh sandbox; the caller closes it. `cwd` is the folder that its session starts in, made where it is missing.

    Raises ImageError for an image, UsageError as `choose_backend`, SandboxError when it doesn't start in `start_timeout`
    seconds.
    """
    backend = choose_backend(settings.backend)
    if image:
        raise ImageError(f"sandbox backend {backend!r} has no images, so {image!r} cannot be used; choose one that has")
    if "\0" in cwd:
        raise SandboxError("the working folder's name holds a NUL character")
    opener = bubblewrap.open_bubblewrap if backend == "bubblewrap" else open_local
    try:
        async with asyncio.timeout(start_timeout):
            return await opener(settings.limits, label=settings.label, cwd=cwd)
    except TimeoutError:
        raise SandboxError(f"the sandbox did not start within {start_timeout:g} s") from None


def reap(label: str) -> int:
    """Remove what a dead run with this label left here: processes, cgroups, folders. How many sandboxes that were.

    For before a run starts its workers: it does not spare a live run's sandboxes of the same label. Blocks.
    """
    folder = folders.base() / folders.clean_label(label)
    cookie = f"{folder}/".encode()
    groups = list(cgroup.left_over(folders.group_prefix(label)))

    def remaining() -> set[int]:
        pids = {pid for pid in processes.every_pid() if cookie in processes.environment(pid)}
        pids.update(pid for group in groups for pid in group.pids())
        return {pid for pid in pids if (process := processes.look(pid)) and process.running}

    processes.end_all(remaining)
    end = time.monotonic() + REAP_SECONDS
    while remaining() and time.monotonic() < end:
        time.sleep(0.01)
    while groups and time.monotonic() < end:
        groups = [group for group in groups if not group.remove()]
        time.sleep(0.01 if groups else 0)
    left = list(folder.iterdir()) if folder.is_dir() else []
    for sandbox in left:
        folders.remove(sandbox)
    return len(left)
