"""Politeness: how many requests a worker process makes to one host, and how fast."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kiseki.errors import ToolError

AT_ONCE = 2
GAP_SECONDS = 0.25
"""Between the beginnings of two requests: with four worker processes, a site gets what a person with many tabs asks for."""
PATIENCE_SECONDS = 300.0
"""Longest wait for a turn: 1,200 requests were before it."""
_KNOWN_HOSTS = 1_000


class _Host:
    def __init__(self) -> None:
        self.slots = asyncio.Semaphore(AT_ONCE)
        self.users = 0
        self.next = 0.0
        """When the next request may begin."""


class Turns:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Host] = {}

    @asynccontextmanager
    async def at(self, name: str) -> AsyncIterator[None]:
        """A turn at the host `name`. Raises `ToolError` when none comes."""
        now = asyncio.get_running_loop().time
        if len(self._hosts) >= _KNOWN_HOSTS:
            self._hosts = {each: host for each, host in self._hosts.items() if host.users or host.next > now()}
        host = self._hosts.setdefault(name, _Host())
        host.users += 1
        try:
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await host.slots.acquire()
            except TimeoutError:
                raise ToolError(f"too many pages of {name} are asked for at the moment; try it later") from None
            try:
                wait = host.next - now()
                host.next = max(now(), host.next) + GAP_SECONDS
                if wait > 0:
                    await asyncio.sleep(wait)
                yield
            finally:
                host.slots.release()
        finally:
            host.users -= 1
