"""The host's process table, read through /proc: who descends from whom, since when, and how to end a tree that fights back.

Owns no process and keeps no state. A sandbox's processes are visible here with their host pids, also those inside another
pid namespace. Every function takes a process that vanished in between as one that was never there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
HUNT_ROUNDS = 100
"""How often `end_all` looks again for processes started meanwhile. What it found is stopped and cannot fork: three rounds
are the rule, and a fork bomb dries up after a few."""
GONE_PAUSES = (0.001, 0.02)
"""Seconds between looks whether what was killed is gone: at first, and at most."""


class Process(NamedTuple):
    """One line of the process table."""

    parent: int
    started: int
    """Clock ticks since boot, comparable with `now_ticks()`."""
    running: bool
    """False for a zombie."""


def now_ticks() -> int:
    """The present on the clock of `Process.started`."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * TICKS_PER_SECOND)


def look(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    fields = stat[stat.rfind(b")") + 2 :].split()  # The name before it may hold spaces and parentheses.
    return Process(int(fields[1]), int(fields[19]), fields[0] not in b"ZX")


def children(pid: int) -> list[int]:
    """Direct children, of whichever thread."""
    found: list[int] = []
    try:
        for thread in os.scandir(f"/proc/{pid}/task"):
            with open(f"{thread.path}/children", "rb") as file:
                found.extend(map(int, file.read().split()))
    except FileNotFoundError:
        if not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists():  # A kernel without PROC_CHILDREN.
            return [other for other in every_pid() if (process := look(other)) and process.parent == pid]
    except OSError:
        pass
    return found


def descendants(pid: int) -> dict[int, Process]:
    """The whole tree below `pid`, without itself."""
    table: dict[int, Process] = {}
    left = children(pid)
    while left:
        child = left.pop()
        if child not in table and (process := look(child)):
            table[child] = process
            left.extend(children(child))
    return table


def below(table: dict[int, Process], root: int) -> set[int]:
    """`root` and its descendants within `table`."""
    found = {root}
    grew = True
    while grew:
        more = {pid for pid, process in table.items() if process.parent in found} - found
        found |= more
        grew = bool(more)
    return found


def every_pid() -> list[int]:
    return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]


def environment(pid: int) -> bytes:
    """The environment block that the program was started with; empty where it cannot be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""


def marked(*cookies: bytes) -> list[int]:
    """All processes whose environment holds one of these."""
    found = []
    for pid in every_pid():
        block = environment(pid)
        if any(cookie in block for cookie in cookies):
            found.append(pid)
    return found


def inner_pid(pid: int) -> int:
    """Its number in its innermost pid namespace (the same number where there is none)."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            for line in file:
                if line.startswith(b"NSpid:"):
                    return int(line.split()[-1])
    except OSError:
        pass
    return pid


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def end_all(find: Callable[[], Iterable[int]]) -> set[int]:
    """SIGKILL everything that `find` returns, until it returns nothing new. Returns what that was; it need not be gone yet.

    Each is stopped first: a stopped process neither forks nor notices its child's death, so the set cannot grow behind us. But
    for a fork that was under way (into new namespaces it takes milliseconds): that one ends, unless SIGKILL comes before, so
    what it made is looked for after that.
    """
    found: set[int] = set()
    killed: set[int] = set()
    for _ in range(HUNT_ROUNDS):
        new = set(find()) - found
        if new:
            send(new, signal.SIGSTOP)
            found |= new
        elif found == killed:
            return found
        else:
            send(found - killed, signal.SIGKILL)
            killed = set(found)
    send(found, signal.SIGKILL)
    return found


async def wait_gone(pids: Iterable[int], seconds: float) -> None:
    """Until none of these, which were killed, runs any more, or for `seconds`: the kernel takes its time, and under load more."""
    pause, most = GONE_PAUSES
    end = time.monotonic() + seconds
    left = list(pids)
    while left := [pid for pid in left if (process := look(pid)) and process.running]:
        if time.monotonic() >= end:
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, most)


async def wait_exit(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for a child of ours without a thread, and reap it. False when it is still there after `seconds`."""
    if process.poll() is not None:
        return True
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    descriptor = os.pidfd_open(process.pid)
    loop.add_reader(descriptor, gone.set)
    try:
        async with asyncio.timeout(seconds):
            await gone.wait()
    except TimeoutError:
        pass
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return process.poll() is not None
