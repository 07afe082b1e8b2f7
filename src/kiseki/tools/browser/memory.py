"""How many pages fit: by the memory that this machine, or this container, has left right now, whoever uses the rest."""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path

CONTEXT_BYTES = 200_000_000
"""One rollout's pages. Measured: an empty page adds 60 MB, a heavy one 150 MB and more."""
RESERVE_BYTES = 1_000_000_000
"""Stays free for what else grows: sandboxes, and pages that are larger than most."""
GROWING_SECONDS = 10.0
"""So long a new page's memory may not be in use yet."""


class Room:
    """What a worker has opened."""

    def __init__(self) -> None:
        self.open = 0
        self._recent: list[float] = []

    def take(self) -> bool:
        """Whether there is room for one more, which then counts as open. There always is for one: else nobody got on."""
        now = time.monotonic()
        self._recent = [at for at in self._recent if now - at < GROWING_SECONDS]
        wanted = RESERVE_BYTES + CONTEXT_BYTES * (1 + len(self._recent))
        if self.open and available() < wanted:
            return False
        self.open += 1
        self._recent.append(now)
        return True

    def give_back(self) -> None:
        self.open -= 1


def available() -> float:
    """Bytes that can be used without swapping; infinite where nobody says."""
    return min(_of_machine(), _of_group())


def _of_machine() -> float:
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024.0
    return math.inf


def _of_group() -> float:
    """Of the cgroup (version 2) that a container is in, which it sees as the root."""
    group = "/sys/fs/cgroup"
    with contextlib.suppress(ValueError, IndexError):
        limit, used = int(_lines(f"{group}/memory.max")[0]), int(_lines(f"{group}/memory.current")[0])
        cached = next((int(line.split()[1]) for line in _lines(f"{group}/memory.stat") if line.startswith("inactive_file ")), 0)
        return float(limit - used + cached)
    return math.inf


def _lines(file: str) -> list[str]:
    try:
        return Path(file).read_text().splitlines()
    except OSError:
        return []
