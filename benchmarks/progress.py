"""CPU of the progress display over 10 s, drawing to a terminal of 120 columns and as plain lines, while a run goes on.

The display runs as in a batch run while the process does nothing else but change the numbers; the same without it is the floor.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console

from benchmarks.child import cpu_seconds, run_child
from benchmarks.figures import Figure, Result
from kiseki.batch.driver import Tally
from kiseki.batch.progress import Progress

SECONDS = 10.0
CHANGES_PER_SECOND = 10
GOAL_PERCENT = 1.0
KINDS = ("none", "live", "plain")


def main() -> Result:
    with ThreadPoolExecutor() as side_by_side:  # they hardly do anything
        samples = side_by_side.map(lambda kind: run_child("progress:run", kind=kind), KINDS)
        shares = {kind: 100 * sample.result["cpu"] / SECONDS for kind, sample in zip(KINDS, samples, strict=True)}
    return Result(
        title=f"progress: CPU of the display over {SECONDS:g} s",
        floor="the same process without it",
        figures=[
            Figure("on a terminal", shares["live"], "% of a core", goal=GOAL_PERCENT, floor=shares["none"]),
            Figure("plain lines", shares["plain"], "% of a core", goal=GOAL_PERCENT, floor=shares["none"]),
        ],
    )


def run(*, kind: str) -> dict[str, float]:
    """Show progress for a while, in a child."""
    tally = Tally(total=1_000_000)
    with open(os.devnull, "w") as file:
        console = Console(file=file, force_terminal=kind == "live", width=120)
        if kind == "none":
            return {"cpu": _work(tally)}
        with Progress(console, tally, lambda: "", verbose=False):
            return {"cpu": _work(tally)}


def _work(tally: Tally) -> float:
    """CPU seconds of the process while the numbers change."""
    cpu = cpu_seconds()
    for _ in range(int(SECONDS * CHANGES_PER_SECOND)):
        time.sleep(1 / CHANGES_PER_SECOND)
        tally.done += 37
        tally.running = 250
        tally.prompt_tokens += 100_000
        tally.completion_tokens += 7_000
        tally.cost += 0.21
    return cpu_seconds() - cpu
