"""Who may start a sandbox now: holds the starts that wait and those that are under way, and asks `starting.py` how many there
may be. One per worker, for one event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from kiseki.errors import ImageError, SandboxError
from kiseki.sandboxes.starting import StartEnd, StartLimit

NOT_HELD: AbstractContextManager[Any] = nullcontext()

T = TypeVar("T")


class Slots:
    """`await slots.start(work)` runs `work` when a start may begin."""

    def __init__(self) -> None:
        self.limit = StartLimit()
        # those that somebody waits for, then those ahead of need, each in the order in which they came
        self._waiting: tuple[deque[asyncio.Future[int]], ...] = (deque(), deque())

    async def start(
        self, work: Callable[[], Awaitable[T]], on_hold: AbstractContextManager[Any] = NOT_HELD, *, ahead: bool = False
    ) -> T:
        """What `work` returns or raises. With `ahead` it lets all others go first. `on_hold` is entered while it waits for its
        turn, so that such a wait counts against nobody."""
        number = await self._turn(on_hold, ahead)
        end: StartEnd = "nothing"
        try:
            result = await work()
            end = "ok"
            return result
        except SandboxError as error:
            end = "nothing" if isinstance(error, ImageError) else "failed"
            raise
        finally:
            self._leave(number, end)

    async def _turn(self, on_hold: AbstractContextManager[Any], ahead: bool) -> int:
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting[ahead].append(turn)
        self._let_in()
        try:
            if not turn.done():
                with on_hold:
                    await turn
        except BaseException:
            turn.cancel()
            if not turn.cancelled():  # it came at the same moment
                self._leave(turn.result(), "nothing")
            raise
        return turn.result()

    def _leave(self, number: int, end: StartEnd) -> None:
        self.limit.end(asyncio.get_running_loop().time(), number, end)
        self._let_in()

    def _let_in(self) -> None:
        now = asyncio.get_running_loop().time()
        for waiting in self._waiting:
            while waiting and self.limit.free:
                turn = waiting.popleft()
                if not turn.done():  # else cancelled while it waited
                    turn.set_result(self.limit.start(now))
