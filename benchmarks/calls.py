"""CPU per model call of the whole engine, beside a bare aiohttp loop that sends the same requests.

Against the mock server in a process of its own, without latency: 5 tool turns and an answer, so 6 calls a rollout, each tool
call answered in the process. Both run in fresh processes, small and large, turn by turn; the figure is
(CPU of the large run - CPU of the small run) / (calls between them), the median of the rounds, the ratio taken round by round.
Planning, batch files and the merge at the end are not per call and stand apart.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.child import Sample, run_child
from benchmarks.figures import Figure, Result
from kiseki.models.mock_server import MockServer

TOOL_TURNS = 5
CALLS = TOOL_TURNS + 1
CONCURRENCY = 64
SMALL, LARGE = 100, 600
"""Rollouts; the small run opens all connections already."""
ROUNDS = 5
PLAIN_ROUNDS = 2
"""Of them, rounds that measure a plain function as the tool too."""
APART = ("plan_cpu", "merge_cpu", "batch_files_cpu", "checkpoint_cpu")
"""Parts of a run that are not the engine's."""


def main() -> Result:
    check_same_requests()
    rounds: list[tuple[list[Sample], list[Sample]]] = []
    plain: list[Sample] = []
    with MockServer(process=True, turns=TOOL_TURNS) as server:
        for number in range(ROUNDS):
            engine, floor = [], []
            for rollouts in (SMALL, LARGE):
                common = {"base_url": server.base_url, "rollouts": rollouts, "concurrency": CONCURRENCY}
                engine.append(run_child("engine:run", **common))
                floor.append(run_child("floor:run", **common))
                if number < PLAIN_ROUNDS:
                    plain.append(run_child("engine:run", tools="tool_plain.py", **common))
            rounds.append((engine, floor))
    engines = [engine_ms(engine) for engine, _ in rounds]
    floors = [_marginal(floor, lambda sample: sample.cpu) for _, floor in rounds]
    ratio = median(engine / floor for engine, floor in zip(engines, floors, strict=True))
    floor_ms = median(floors)
    plain_ms = median(engine_ms(plain[at : at + 2]) for at in range(0, len(plain), 2))

    def part(*names: str) -> float:
        return median(_marginal(e, lambda sample: sum(sample.result[name] for name in names)) for e, _ in rounds)

    largest = [engine[1] for engine, _ in rounds]
    per_second = max(LARGE / sample.result["drive_wall"] for sample in largest)
    floor_per_second = max(LARGE / floor[1].result["drive_wall"] for _, floor in rounds)
    return Result(
        title=f"calls: CPU per model call ({CALLS} calls a rollout, {CONCURRENCY} rollouts at once, {ROUNDS} rounds)",
        floor="a bare aiohttp loop with the same requests, without retries, validation, records or ledger",
        figures=[
            Figure(
                "engine, per call",
                median(engines),
                "ms",
                goal=0.7,
                floor=floor_ms,
                ratio=ratio,
                ratio_goal=2.1,
                note="async tool",
            ),
            Figure("of it ledger commits", part("commit_cpu"), "ms", note="a thread of the driver; SQLite, synced"),
            Figure("engine, plain function as tool", plain_ms, "ms", floor=floor_ms, note="runs in a thread"),
            Figure("batch files", part("batch_files_cpu", "checkpoint_cpu") * CALLS, "ms/rollout", note="while it runs"),
            Figure("merge and statistics", part("merge_cpu") * CALLS, "ms/rollout", note="at the end"),
            Figure("planning", part("plan_cpu") * CALLS, "ms/rollout", note="at the start"),
            Figure("rollouts per second", per_second, "/s", note=f"best of {ROUNDS}, floor {floor_per_second:,.0f} /s"),
        ],
    )


def engine_ms(pair: list[Sample]) -> float:
    """Of a small and a large run of the engine, milliseconds per model call between them."""
    return _marginal(pair, lambda sample: sample.cpu - sum(sample.result[name] for name in APART))


def _marginal(pair: list[Sample], seconds: Any) -> float:
    """Milliseconds per model call between the small and the large run."""
    small, large = pair
    return float(1000 * (seconds(large) - seconds(small)) / ((LARGE - SMALL) * CALLS))


def check_same_requests() -> None:
    """Raises where the floor does not send what the engine sends, without which the ratio would mean nothing."""
    seen = []
    for function in ("engine:run", "floor:run"):
        with MockServer(process=True, turns=TOOL_TURNS, record=CALLS) as server:
            run_child(function, base_url=server.base_url, rollouts=1, concurrency=1)
            seen.append([entry["body"] for entry in server.stats(log=True)["log"]])
    if seen[0] != seen[1]:
        raise RuntimeError("engine and floor send different requests")
