"""How long the light commands take to answer, beside an interpreter that does nothing. Medians, turn by turn.

Wall time as a user feels it, and the CPU of the process, which holds on a busy machine too.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from statistics import median

from benchmarks.child import ROOT, cpu_seconds
from benchmarks.figures import Figure, Result

TIMES = 7
FLOOR = ["-c", "pass"]
COMMANDS = {
    "kiseki --help": ["-m", "kiseki", "--help"],
    "kiseki batch --list_distributions": ["-m", "kiseki", "batch", "--list_distributions"],
    "kiseki batch --help": ["-m", "kiseki", "batch", "--help"],
}
GOAL = 0.25
WITHOUT_GOAL = ("kiseki batch --help",)


def main() -> Result:
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ("", *COMMANDS)}
    for _ in range(TIMES):
        for name, arguments in (("", FLOOR), *COMMANDS.items()):
            taken[name].append(_take(arguments))
    wall = {name: median(wall for wall, _ in found) for name, found in taken.items()}
    cpu = {name: median(cpu for _, cpu in found) for name, found in taken.items()}
    figures = []
    for name in COMMANDS:
        goal = None if name in WITHOUT_GOAL else GOAL
        figures += [
            Figure(name, wall[name], "s", goal=goal, floor=wall[""], note=f"wall, median of {TIMES}"),
            Figure(f"{name}: CPU", cpu[name], "s", goal=goal, floor=cpu[""], note="what it takes where nothing else runs"),
        ]
    return Result(title="startup: time to answer", floor="python -c pass", figures=figures)


def _take(arguments: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one start."""
    cpu, began = cpu_seconds(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, cwd=ROOT, check=True)
    return time.perf_counter() - began, cpu_seconds(resource.RUSAGE_CHILDREN) - cpu
