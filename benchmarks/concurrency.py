"""1,000 rollouts at once: how close to ideal the engine stays, and what a live rollout costs in memory.

The mock server takes 1 s for each answer and each rollout makes 3 calls, so the ideal is 3 s when every rollout is admitted at
once. Wall time is the driver's, from the first prompt handed out to the last commit, the best of the rounds, since others on
the machine can only make it longer. Memory is the difference of the peaks (`VmHWM`, at the driver's end) of a run with 1,000
and one with 100 at once, over 900: what is there whatever runs (imports, database, threads) is not in it.

What stands between 3 calls and the ideal is opening 1,000 connections at once, which no loop does in no time: the floor shows
it, and so does a run with 10 calls per rollout, where the same once-only cost is spread over more of them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from benchmarks.child import Sample, run_child
from benchmarks.figures import Figure, Result
from kiseki.models.mock_server import MockServer

ROLLOUTS = 1000
FEW = 100
TOOL_TURNS = 2
LONG_TURNS = 9
LATENCY = 1.0
CALLS = TOOL_TURNS + 1
IDEAL = LATENCY * CALLS
ROUNDS = 2


class _Run(msgspec.Struct, frozen=True):
    sample: Sample
    peak_in_flight: int

    @property
    def wall(self) -> float:
        return self.sample.result["drive_wall"]


def main() -> Result:
    many = [_run(ROLLOUTS) for _ in range(ROUNDS)]
    few = [_run(FEW) for _ in range(ROUNDS)]
    workers = [_run(ROLLOUTS, engine="processes") for _ in range(ROUNDS)]
    best = min(many, key=lambda run: run.wall)
    best_workers = min(workers, key=lambda run: run.wall)
    long = _run(ROLLOUTS, turns=LONG_TURNS)
    floor = min((_run(ROLLOUTS, function="floor:run") for _ in range(ROUNDS)), key=lambda run: run.wall)
    memory = (min(_peak(run) for run in many) - min(_peak(run) for run in few)) / (ROLLOUTS - FEW)
    return Result(
        title=f"concurrency: {ROLLOUTS:,} rollouts at once, {LATENCY:g} s per call, {CALLS} calls (ideal: {IDEAL:g} s)",
        floor="the bare aiohttp loop, all at once",
        figures=[
            Figure("wall / ideal, one process", best.wall / IDEAL, "×", goal=1.2, floor=floor.wall / IDEAL, note=_how(best)),
            Figure(
                "wall / ideal, 2 workers",
                best_workers.wall / IDEAL,
                "×",
                floor=floor.wall / IDEAL,
                note=f"{_how(best_workers)}; start of the workers included",
            ),
            Figure("wall / ideal, 10 calls each", long.wall / (LATENCY * (LONG_TURNS + 1)), "×", goal=1.2, note=_how(long)),
            Figure("peak in flight at the server", best.peak_in_flight, "calls", note=f"of {ROLLOUTS:,}"),
            Figure("memory per live rollout", memory, "KB", goal=60, note=f"peaks: {_peaks(many)}, {_peaks(few)} with {FEW}"),
        ],
    )


def _run(rollouts: int, *, function: str = "engine:run", turns: int = TOOL_TURNS, **more: Any) -> _Run:
    with MockServer(process=True, turns=turns, latency=LATENCY) as server:
        sample = run_child(function, base_url=server.base_url, rollouts=rollouts, concurrency=rollouts, **more)
        stats = server.stats()
    if stats["calls"] != rollouts * (turns + 1):
        raise RuntimeError(f"{stats['calls']} calls were made for {rollouts} rollouts")
    return _Run(sample, stats["peak_in_flight"])


def _peak(run: _Run) -> float:
    return run.sample.result["peak_kb"]


def _peaks(runs: list[_Run]) -> str:
    return f"{min(_peak(run) for run in runs) / 1024:.0f} MB"


def _how(run: _Run) -> str:
    return f"{run.wall:.2f} s, {run.sample.result['drive_cpu']:.2f} s of it CPU"
