"""A deadline whose clock stands still while one waits for one's turn: to start a sandbox, at the endpoint.

A rate limit, an outage or a crowd at the start delays a rollout. Were that counted, it would cut the longest ones, and only in
busy hours.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType


class Deadline:
    """`async with deadline.running():` bounds a block; `with deadline:` inside it stops the clock. Raises `TimeoutError`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timeout = asyncio.timeout(None)
        self._running = False
        self._left: float | None = None
        self._holders = 0  # several may wait at once: the calls of one turn, sub-agents

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The block that the deadline is for; entered once."""
        self._running = True
        try:
            async with asyncio.timeout(self._seconds) as self._timeout:
                yield
        finally:
            self._running = False

    def expired(self) -> bool:
        return self._timeout.expired()

    def __enter__(self) -> None:
        if self.expired():
            self._end_for_good()
            return
        self._holders += 1
        when = self._timeout.when()
        if when is not None:
            self._left = when - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._holders -= 1
        if self._left is not None and not self._holders:
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._left)
            self._left = None

    def _end_for_good(self) -> None:
        """Raise again where the block goes on although its time is over.

        An HTTP request whose own time limit passes in the same moment takes the deadline's cancellation for its own (aiohttp
        does so where its timer is entered twice), and nothing would end the block any more.
        """
        task = asyncio.current_task()
        if self._running and task is not None and not task.cancelling():
            raise TimeoutError
