"""Watches what a container has written, where its engine cannot bound that: what runs is ended when it takes more than it may.

A look costs the engine a walk through all that the container wrote (a second for half a million files), so it is only taken
where the disk itself got fuller, which costs nothing to see on the engine's own machine. What is written from one glance at the
disk to the end of the look that follows may go beyond the limit. Not counted: the volumes that an image declares.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from pathlib import Path

from kiseki.errors import SandboxError
from kiseki.sandboxes.cgroup import MEGABYTE
from kiseki.sandboxes.containers.create import Made
from kiseki.sandboxes.containers.engine import Engine
from kiseki.sandboxes.streams.remote import Exceeded

PACE = 2.0
"""Seconds between glances at the disk; a fast one takes some GB in it."""
LONGEST = 10.0
"""Seconds after which a look is taken all the same: others may free what this one takes, or the disk be another machine's."""
NOTICEABLE = 16
"""A disk that got fuller by this part of the limit since the last look is reason for one, or by half of what was left of the
limit if that is more: on a disk that hundreds fill, each is looked at a few times only until it may have reached its limit."""
COST_FACTOR = 50
"""Without such a reason, looks may take up 2 % of the time."""


class DiskWatch:
    def __init__(self, engine: Engine, made: Made, limit_mb: int) -> None:
        self._engine = engine
        self._made = made
        self._limit = limit_mb
        self._free = _free(made.layer)  # the most since the last look
        self._looked = time.monotonic()
        self._cost = 0.0
        self._size = 0

    async def run(self, exceeded: Exceeded) -> None:
        """Until it is cancelled, or the sandbox is no more."""
        while True:
            await asyncio.sleep(PACE)
            if not self._reason():
                continue
            try:
                size = await self._look()
            except SandboxError:  # A silent engine may speak again; a walk may take longer than an answer may.
                continue
            if size > self._limit * MEGABYTE and size > self._size:
                used = size // MEGABYTE
                try:
                    await exceeded(
                        f"disk full: this sandbox may hold {self._limit} MB and its files have {used} MB. "
                        "All that was running in it has been ended; remove files before you go on"
                    )
                except SandboxError:  # Told elsewhere, to whoever uses the sandbox.
                    return
                with contextlib.suppress(SandboxError):
                    size = await self._look()  # It went on until it was ended.
            self._size = size

    def _reason(self) -> bool:
        quiet, rest = time.monotonic() - self._looked, COST_FACTOR * self._cost
        free = _free(self._made.layer)
        if free is None or self._free is None:
            return quiet > min(rest, LONGEST)
        self._free = max(self._free, free)  # What others freed before must not hide what is taken from now on.
        limit = self._limit * MEGABYTE
        return self._free - free > max(limit // NOTICEABLE, (limit - self._size) // 2) or quiet > max(rest, LONGEST)

    async def _look(self) -> int:
        """Bytes that the container has written."""
        self._free = _free(self._made.layer)
        try:
            return await self._engine.look(self._ask)
        finally:
            self._looked = time.monotonic()

    def _ask(self) -> int:
        """In a thread: the wait for one is no part of the cost."""
        from docker.errors import APIError

        began = time.monotonic()
        try:
            found = self._engine.call("containers", all=True, size=True, filters={"id": self._made.identity})
        except APIError:
            return 0
        finally:
            self._cost = time.monotonic() - began
        return int(found[0].get("SizeRw") or 0) if found else 0


def _free(folder: str) -> int | None:
    """Bytes on its disk, None where it is not on this machine.

    Engines keep ordinary users out of their folders: the nearest one above that may be asked is on the same disk.
    """
    while True:
        try:
            status = os.statvfs(folder)
        except PermissionError:
            folder = str(Path(folder).parent)
        except OSError:
            return None
        else:
            return status.f_bavail * status.f_frsize
