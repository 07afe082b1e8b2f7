"""A deadline whose clock stands still while its work waits for its turn: at the endpoint, or for a rollout to start its sandbox.

A rate limit, an outage or a crowd at the start delays work. Were that counted, it would cut the longest, and only in busy hours.
"""

from __future__ import annotations

import asyncio
from types import TracebackType


class Deadline:
    """`async with deadline.running():` bounds a block; `with deadline:` inside it stops the clock. Raises `TimeoutError`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timeout = asyncio.timeout(None)
        self._left: float | None = None

    def running(self) -> asyncio.Timeout:
        """The block that the deadline is for; entered once."""
        self._timeout = asyncio.timeout(self._seconds)
        return self._timeout

    def expired(self) -> bool:
        return self._timeout.expired()

    def __enter__(self) -> None:
        when = self._timeout.when()
        if when is not None and not self.expired():  # else its block is being left already
            self._left = when - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._left is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._left)
            self._left = None
