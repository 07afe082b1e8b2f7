"""Sandboxes that stand started ahead of need: a few of each image that a worker is asked for again and again.

It starts them in the background and hands each out once, after a check of its health; whoever takes one closes it. It closes
those that nobody took. What starting means, and when one may start, is the business of whoever made it.

Most runs use one image, or one per prompt. An image asked for once is not kept warm, and few are at a time: where they change
with every prompt, a pool would only start everything twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from kiseki.sandboxes.shell import ShellSandbox

MOST_IMAGES = 4
"""Kept warm at a time."""
IDLE_ASKS = 32
"""Sandboxes of other images asked for, after which an image's place may go to another: were it always the one longest not asked
for, five images in turn would push each other out before any is used."""
REMEMBERED = 1000
"""Images asked for before, at most: a run may have one for each of its prompts."""
FAILURES = 3
"""Starts of an image that fail in a row, after which it is not kept warm for a while."""
RESTING_ASKS = 100
"""That while, in sandboxes of the image asked for."""
CHECK_SECONDS = 10.0
"""For finding a healthy one among those that stand ready; usually it takes milliseconds. Then a fresh one is started."""
CLOSE_SECONDS = 30.0
"""For closing all at the end; what takes longer is left to the reaper."""


class _Shelf:
    """The sandboxes of one image."""

    def __init__(self) -> None:
        self.ready: deque[ShellSandbox] = deque()
        """The oldest first."""
        self.starting: set[asyncio.Task[None]] = set()
        self.dropped = False
        self.last_ask = 0
        self.failures = 0
        self.rest = 0
        """So many times asked for without starting any."""


class WarmPool:
    """Of one worker. Belongs to one event loop."""

    def __init__(self, size: int, start: Callable[[str], Awaitable[ShellSandbox]]) -> None:
        """`size`: sandboxes per image. `start` gives a started sandbox of an image, or fails and leaves nothing behind."""
        self._size = size
        self._start = start
        self._shelves: dict[str, _Shelf] = {}
        self._known: dict[str, None] = {}  # images asked for before, in the order in which they were first
        self._asks = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def take(self, image: str) -> ShellSandbox | None:
        """A healthy sandbox of the image, which is the caller's from now on, or None where none stands ready."""
        if not self._size:
            return None
        self._asks += 1
        shelf = self._shelf(image)
        if shelf is None:
            return None
        shelf.last_ask = self._asks
        shelf.rest = max(0, shelf.rest - 1)
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                for _ in range(len(shelf.ready)):
                    if shelf.ready and await self._healthy(sandbox := shelf.ready.popleft()):
                        return sandbox
        except TimeoutError:
            return None
        finally:
            self._fill(image, shelf)
        return None

    async def close(self) -> None:
        """Close all that nobody took. Nobody asks any more. Raises nothing."""
        for shelf in self._shelves.values():
            self._drop(shelf)
        loop = asyncio.get_running_loop()
        end = loop.time() + CLOSE_SECONDS
        while self._tasks and loop.time() < end:  # a start that ends may still leave one to close
            await asyncio.wait(self._tasks, timeout=end - loop.time())

    def _shelf(self, image: str) -> _Shelf | None:
        """The image's, where it is kept warm."""
        if (shelf := self._shelves.get(image)) is not None:
            return shelf
        if image not in self._known:
            self._known[image] = None
            if len(self._known) > REMEMBERED:
                del self._known[next(iter(self._known))]
            return None
        if len(self._shelves) >= MOST_IMAGES:
            idle = min(self._shelves, key=lambda each: self._shelves[each].last_ask)
            if self._asks - self._shelves[idle].last_ask <= IDLE_ASKS:
                return None
            self._drop(self._shelves.pop(idle))
        return self._shelves.setdefault(image, _Shelf())

    def _fill(self, image: str, shelf: _Shelf) -> None:
        if shelf.dropped or shelf.rest:
            return
        for _ in range(self._size - len(shelf.ready) - len(shelf.starting)):
            task = self._in_background(self._start_one(image, shelf))
            shelf.starting.add(task)
            task.add_done_callback(shelf.starting.discard)

    async def _start_one(self, image: str, shelf: _Shelf) -> None:
        try:
            sandbox = await self._start(image)
        except Exception:  # whoever needs one starts one, and is told why that fails
            shelf.failures += 1
            if shelf.failures >= FAILURES:
                shelf.failures, shelf.rest = 0, RESTING_ASKS
            return
        shelf.failures = 0
        if shelf.dropped:
            self._discard(sandbox)
        else:
            shelf.ready.append(sandbox)

    async def _healthy(self, sandbox: ShellSandbox) -> bool:
        """Whether it is; if not, it is closed."""
        healthy = False
        try:
            with contextlib.suppress(Exception):
                healthy = await sandbox.healthy()
        finally:
            if not healthy:
                self._discard(sandbox)
        return healthy

    def _drop(self, shelf: _Shelf) -> None:
        shelf.dropped = True
        for task in shelf.starting:
            task.cancel()
        while shelf.ready:
            self._discard(shelf.ready.popleft())

    def _discard(self, sandbox: ShellSandbox) -> None:
        self._in_background(_close(sandbox))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _close(sandbox: ShellSandbox) -> None:
    with contextlib.suppress(Exception):
        await sandbox.close()
