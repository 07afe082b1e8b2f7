"""Watches what a container has written, where its engine cannot bound that: what runs is ended when it takes more than it may.

A look costs the engine a walk through all that the container wrote, so it is only taken where the disk itself got fuller, which
costs nothing to see on the engine's own machine. What is written between two looks may go beyond the limit. Not counted: the
volumes that an image declares.
"""

from __future__ import annotations

import asyncio
import os
import time

from kiseki.errors import SandboxError
from kiseki.sandboxes.cgroup import MEGABYTE
from kiseki.sandboxes.containers_create import Made
from kiseki.sandboxes.containers_engine import Engine
from kiseki.sandboxes.remote import Exceeded

PACE = 2.0
"""Seconds between glances at the disk; a fast one takes some GB in it."""
LONGEST = 10.0
"""Seconds after which a look is taken all the same: the disk may be another machine's, or others free what this one takes."""
NOTICEABLE = 16
"""A disk that got fuller by this part of the limit since the last look is reason for one."""
COST_FACTOR = 50
"""A container is looked at for 2 % of the time at most."""


class DiskWatch:
    def __init__(self, engine: Engine, made: Made, limit_mb: int) -> None:
        self._engine = engine
        self._made = made
        self._limit = limit_mb
        self._free = _free(made.layer)
        self._looked = time.monotonic()
        self._cost = 0.0
        self._size = 0

    async def run(self, exceeded: Exceeded) -> None:
        """Until it is cancelled, or the sandbox is no more."""
        while True:
            await asyncio.sleep(max(PACE, COST_FACTOR * self._cost))
            if not self._reason():
                continue
            try:
                size = await self._look()
                if size > self._limit * MEGABYTE and size > self._size:
                    used = size // MEGABYTE
                    await exceeded(
                        f"disk full: this sandbox may hold {self._limit} MB and its files have {used} MB. "
                        "All that was running in it has been ended; remove files before you go on"
                    )
                    size = await self._look()  # It went on until it was ended.
                self._size = size
            except SandboxError:  # Told elsewhere, to whoever uses the sandbox.
                return

    def _reason(self) -> bool:
        if time.monotonic() - self._looked > LONGEST:
            return True
        free = _free(self._made.layer)
        return free is not None and self._free is not None and self._free - free > self._limit * MEGABYTE // NOTICEABLE

    async def _look(self) -> int:
        """Bytes that the container has written."""
        self._free = _free(self._made.layer)
        self._looked = time.monotonic()
        size = await self._engine.run(self._ask)
        self._cost = time.monotonic() - self._looked
        return size

    def _ask(self) -> int:
        from docker.errors import APIError

        try:
            found = self._engine.call("containers", all=True, size=True, filters={"id": self._made.identity})
        except APIError:
            return 0
        return int(found[0].get("SizeRw") or 0) if found else 0


def _free(folder: str) -> int | None:
    """Bytes on its disk, None where it is not on this machine."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return None
    return status.f_bavail * status.f_frsize
