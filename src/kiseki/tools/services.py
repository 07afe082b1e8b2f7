"""What the rollouts of one worker share: clients, caches, a browser. Each is made when it is first asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol, TypeVar, cast

from kiseki.models.admission import Door
from kiseki.models.base import ChatModel
from kiseki.models.endpoints import ModelSettings
from kiseki.tools.running import leave
from kiseki.tools.settings import ToolSettings

CLOSE_SECONDS = 15.0
"""For all of them together: a browser ends in one, a server that takes no notice is killed with the worker."""


class Service(Protocol):
    """Something shared. Made by `Kind(services)` on the event loop on which it is used, closed there once."""

    def __init__(self, services: Services) -> None: ...

    async def close(self) -> None: ...


S = TypeVar("S", bound=Service)


class Services:
    """One per worker; belongs to its event loop."""

    def __init__(
        self,
        settings: ToolSettings,
        model: ChatModel | None = None,
        model_settings: ModelSettings | None = None,
        door: Door | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`model`, with its settings and the door to the run's admission: None where no tool asks one (`kiseki tools call`).
        `environ`: where keys are looked up; default none."""
        self.settings = settings
        self.model = model
        self.model_settings = model_settings
        self.door = door
        self.environ = environ or {}
        self._made: dict[type[Service], Service] = {}
        self._slots: dict[str, asyncio.Semaphore] = {}

    def get(self, kind: type[S]) -> S:
        """The worker's one service of this class."""
        if kind not in self._made:
            self._made[kind] = kind(self)
        return cast(S, self._made[kind])

    def slots(self, name: str, count: int) -> asyncio.Semaphore:
        """The turns at the tool `name`, of which `count` may run at once."""
        return self._slots.setdefault(name, asyncio.Semaphore(count))

    async def close(self) -> None:
        """Close all, the last one made first: it may stand on those before it. Never raises; what takes longer than
        `CLOSE_SECONDS` goes on by itself."""

        async def in_turn() -> None:
            while self._made:
                _, service = self._made.popitem()
                await asyncio.gather(service.close(), return_exceptions=True)

        if self._made:
            closing = asyncio.ensure_future(in_turn())
            await asyncio.wait([closing], timeout=CLOSE_SECONDS)
            if not closing.done():
                leave(closing)
