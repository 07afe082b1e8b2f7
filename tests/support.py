"""What many tests need: the command line as a user runs it, datasets, rows, a clock, and a client of the mock server."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import json
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from kiseki.models.admission import UNLIMITED, Admission, LocalDoor
from kiseki.models.asking import AskedModel
from kiseki.models.breaker import Breaker
from kiseki.models.budget import Budget
from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import open_client
from kiseki.models.rate_limit import RateLimit
from kiseki.sandboxes.base import Sandbox
from kiseki.sandboxes.factory import Sandboxes
from kiseki.sandboxes.settings import SandboxSettings

T = TypeVar("T")

REPOSITORY = Path(__file__).parent.parent
SECONDS = 120
"""A bound for one command; none comes near it."""

FAST = ("--engine=inprocess",)
"""For runs where it does not matter which engine runs them: no processes to start."""

IN_PROCESS_TOOL = '''
from kiseki import tool

@tool(toolset="mine")
def shout(text: str) -> str:
    """Say it louder.

    Args:
        text: What to say.
    """
    return text.upper()
'''


def environment(**more: str) -> dict[str, str]:
    """The process's environment without anything that would change what a command does."""
    own = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    return own | {"COLUMNS": "200"} | more


def kiseki(*arguments: str, cwd: Path, status: int | None = 0, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `kiseki …` to its end and check its exit status."""
    command = [sys.executable, "-m", "kiseki", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment(**more), capture_output=True, text=True, timeout=SECONDS)
    assert status is None or done.returncode == status, (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
    return done


def start_kiseki(*arguments: str, cwd: Path, **more: str) -> subprocess.Popen[str]:
    """Start `kiseki …` in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "kiseki", *arguments],
        cwd=cwd,
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


async def open_sandbox(settings: SandboxSettings, *, image: str = "", cwd: str = "") -> Sandbox:
    """One, of a backend whose sandboxes share nothing."""
    return await Sandboxes(settings).open(image=image, cwd=cwd)


def children(pid: int) -> list[int]:
    """Processes that `pid` has started: a driver's workers."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():  # each has the children that it has started
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread of a pool ends when it likes
            found += map(int, (thread / "children").read_text().split())
    return found


def write_dataset(path: Path, rows: Iterable[Any]) -> Path:
    """A JSONL file; a row that is text already is written as it is."""
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def light_tools(folder: Path) -> tuple[str, str]:
    """Flags for a run whose only tool needs no sandbox, so that a rollout costs a millisecond."""
    (folder / "mine.py").write_text(IN_PROCESS_TOOL)
    (folder / "mine.yaml").write_text("mine: 100\n")
    return "--tools=mine.py", "--distribution=mine.yaml"


class FakeTimer:
    """One wait on a `FakeTime`."""

    def __init__(self, due: float, call: Callable[[], None]) -> None:
        self.due = due
        self.call = call
        self.over = False
        """It was called, or is cancelled."""

    def cancel(self) -> None:
        self.over = True


class FakeTime:
    """A clock that nothing but waiting moves, and what was slept.

    Whatever is waited for comes in the order of its time, and as soon as the event loop is free; or, `by_hand`, when the test
    says so (`advance`), which needs no event loop.
    """

    def __init__(self, *, by_hand: bool = False) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self._by_hand = by_hand
        self._timers: list[tuple[float, int, FakeTimer]] = []
        self._count = 0

    def clock(self) -> float:
        return self.now

    def later(self, seconds: float, call: Callable[[], None]) -> FakeTimer:
        """`call` is called in so many seconds, unless the timer is cancelled before."""
        timer = FakeTimer(self.now + seconds, call)
        self._count += 1
        heapq.heappush(self._timers, (timer.due, self._count, timer))
        if not self._by_hand:
            asyncio.get_running_loop().call_soon(self._next)
        return timer

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        over = asyncio.Event()
        self.later(seconds, over.set)
        await over.wait()

    @property
    def due(self) -> float | None:
        """When the next timer is, None where nothing waits."""
        while self._timers and self._timers[0][2].over:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def advance(self, seconds: float) -> None:
        """Let so much time pass, with all that is due in it."""
        end = self.now + seconds
        while (due := self.due) is not None and due <= end:
            self._next()
        self.now = end

    def _next(self) -> None:
        if self.due is not None:
            due, _, timer = heapq.heappop(self._timers)
            self.now = max(self.now, due)
            timer.over = True
            timer.call()


BREAKER_PATIENCE = 300.0
"""Seconds; a call's own is the setting `provider_patience`."""


def with_client(
    base_url: str,
    use: Callable[[AskedModel], Awaitable[T]],
    *,
    time: FakeTime | None = None,
    ceiling: int = UNLIMITED,
    **fields: Any,
) -> T:
    """What `use` gives, with a client that is closed after it and never really waits: not between tries, not to be let in."""
    time = time or FakeTime()

    async def run() -> T:
        settings = ModelSettings("m", base_url, **fields)
        admission = Admission(RateLimit(ceiling), Breaker(BREAKER_PATIENCE), Budget(), clock=time.clock, later=time.later)
        client = AskedModel(open_client(settings), LocalDoor(admission), settings, rng=random.Random(1), sleep=time.sleep)
        try:
            return await use(client)
        finally:
            admission.close()
            await client.close()

    return asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another process does; the test's own timeout ends a wait in vain."""
    while not condition():
        await asyncio.sleep(0.01)
