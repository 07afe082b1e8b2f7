"""Runs one function of the benchmarks in a fresh process and measures what that process took.

`python -m benchmarks.child` is that process: it reads `{"function": "module:name", "arguments": {…}}` from stdin and writes a
`Sample` as one JSON line to stdout.
"""

from __future__ import annotations

import importlib
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parent.parent


class Sample(msgspec.Struct, frozen=True):
    """What one child took from its start to the function's end."""

    cpu: float
    """Seconds, user and system, of the child itself, its start and imports included."""
    children_cpu: float
    """Seconds of the processes that the child started and waited for."""
    wall: float
    """Seconds that the function ran."""
    peak_rss_kb: int
    result: dict[str, float]
    """What the function returned."""


def run_child(function: str, **arguments: Any) -> Sample:
    """Run `function` (`module:name` below `benchmarks`, JSON-able arguments) in a process of its own."""
    asked = msgspec.json.encode({"function": function, "arguments": arguments})
    # Popen's own pipes: nothing but the last line of stdout is read, stderr stays visible
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.child"], input=asked, stdout=subprocess.PIPE, cwd=ROOT, env=environment(), check=True
    )
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Sample)


def environment() -> dict[str, str]:
    """The process's environment without keys and proxies, which would change what is measured."""
    return {name: value for name, value in os.environ.items() if not name.upper().endswith(("_API_KEY", "_PROXY"))}


def cpu_seconds(who: int = resource.RUSAGE_SELF) -> float:
    """User and system time of this process, or (`RUSAGE_CHILDREN`) of the ended processes that it waited for."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def lost_cpu() -> float:
    """CPU seconds, so far, of processes below this one that no wait will ever count, and of all that they waited for.

    Such are those in a pid namespace of which a child of ours holds the first process: from the third generation on.
    """
    below = [os.getpid()]
    for _ in range(2):
        below = [child for pid in below for child in _children(pid)]
    lost = [child for pid in below for child in _children(pid)]
    for pid in lost:  # grows as it goes
        lost += _children(pid)
    return sum(map(_cpu_of, lost))


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _cpu_of(pid: int) -> float:
    try:
        own = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
        waited_for = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13:15]
    except OSError:
        return 0.0
    return own + sum(map(int, waited_for)) / os.sysconf("SC_CLK_TCK")


def memory_kb(field: str) -> int:
    """`VmRSS` or `VmHWM` (its peak) of this process. Not `ru_maxrss`: that one starts at what the parent had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def main() -> None:
    asked = msgspec.json.decode(sys.stdin.buffer.read())
    module, _, name = asked["function"].partition(":")
    function = getattr(importlib.import_module(f"benchmarks.{module}"), name)
    began = time.perf_counter()
    result = function(**asked["arguments"])
    sample = Sample(
        cpu=cpu_seconds(),
        children_cpu=cpu_seconds(resource.RUSAGE_CHILDREN),
        wall=time.perf_counter() - began,
        peak_rss_kb=memory_kb("VmHWM"),
        result=result,
    )
    print(msgspec.json.encode(sample).decode(), flush=True)


if __name__ == "__main__":
    main()
