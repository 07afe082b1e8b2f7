"""Sandboxes of the contract suite: opened, spoken to, watched from outside."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path

from contract.backends import Place

from kiseki.sandboxes import processes
from kiseki.sandboxes.base import ExecResult, Limits, Sandbox
from kiseki.sandboxes.factory import Sandboxes
from kiseki.sandboxes.settings import SandboxSettings

LABEL = f"contract-{os.getpid()}"
QUICK = 30.0
"""Seconds that no command here needs, also on a machine under load."""


def settings(place: Place, limits: Limits | None = None, label: str = LABEL) -> SandboxSettings:
    return SandboxSettings(
        backend=place.backend, label=label, limits=limits or Limits(), image=place.image, host=place.host, start_timeout=120
    )


@contextlib.asynccontextmanager
async def sandboxes(wanted: SandboxSettings) -> AsyncIterator[Sandboxes]:
    opener = Sandboxes(wanted)
    try:
        yield opener
    finally:
        await opener.close()


@contextlib.asynccontextmanager
async def sandbox(
    place: Place, *, limits: Limits | None = None, image: str = "", cwd: str = "", label: str = LABEL
) -> AsyncIterator[Sandbox]:
    async with sandboxes(settings(place, limits, label)) as opener:
        box = await opener.open(image=image, cwd=cwd)
        try:
            yield box
        finally:
            await box.close()


def within(
    place: Place,
    body: Callable[[Sandbox], Awaitable[None]],
    *,
    limits: Limits | None = None,
    image: str = "",
    cwd: str = "",
) -> None:
    """Run `body` with an open sandbox."""

    async def main() -> None:
        async with sandbox(place, limits=limits, image=image, cwd=cwd) as box:
            await body(box)

    asyncio.run(main())


def within_each(place: Place, body: Callable[[Sandbox], Awaitable[None]], folders: Iterable[str]) -> None:
    """Run `body` with an open sandbox for each of these working folders."""

    async def main() -> None:
        async with sandboxes(settings(place)) as opener:

            async def one(cwd: str) -> None:
                box = await opener.open(cwd=cwd)
                try:
                    await body(box)
                finally:
                    await box.close()

            await asyncio.gather(*map(one, folders))

    asyncio.run(main())


async def sh(box: Sandbox, command: str, timeout: float = QUICK, max_output: int = 50_000) -> ExecResult:
    return await box.exec(command, timeout=timeout, max_output=max_output)


async def out(box: Sandbox, command: str) -> str:
    return (await sh(box, command)).output


async def until(condition: Callable[[], bool]) -> bool:
    """Whether it comes true soon."""
    end = time.monotonic() + QUICK
    while not condition() and time.monotonic() < end:
        await asyncio.sleep(0.01)
    return condition()


def alive_with(text: str) -> list[int]:
    """Processes of this machine, and so of all sandboxes, whose command line holds `text`."""
    found = []
    for pid in processes.every_pid():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        process = processes.look(pid)
        if text.encode() in line and process and process.running:
            found.append(pid)
    return found


def peak_memory() -> int:
    """Bytes of this process's resident memory at its highest since `forget_peak`."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")
