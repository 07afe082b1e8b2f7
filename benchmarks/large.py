"""One huge thing beside 50 ordinary rollouts in the same worker: how long the event loop stands still, and what it takes.

Huge are a tool's result (50 MB, or 200 MB that a terminal command prints), a model's reply (20 MB, whole and in deltas of 24
characters) and a conversation (5,000 turns). The loop stands still for the longest gap between two beats of a timer that is due
every millisecond; the floor is the same without the huge rollout. Memory is the peak above what the process had before.
"""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

from benchmarks.child import Sample, cpu_seconds, memory_kb, run_child
from benchmarks.figures import Figure, Result
from kiseki.agent.rollout import RolloutSettings
from kiseki.batch.worker import Worker
from kiseki.ledger.types import Attempt
from kiseki.models.admission import UNLIMITED, Admission, LocalDoor
from kiseki.models.breaker import Breaker
from kiseki.models.budget import Budget
from kiseki.models.endpoints import ModelSettings
from kiseki.models.mock_server import MockServer
from kiseki.models.rate_limit import RateLimit
from kiseki.sandboxes.factory import SandboxSettings
from kiseki.trajectory.types import Message, Prompt, RolloutSpec

OTHERS = 50
OTHERS_TURNS = 30
LATENCY = 0.02
"""Seconds per call of the ordinary rollouts, so that they are there all the while."""
RESULTS = ("text", "object", "list", "surrogates", "error", "exception")
PRINTED = 200_000_000
REPLY = 20_000_000
TURNS = 5000


def main() -> Result:
    figures: list[Figure] = []
    for kind in ("nothing", *RESULTS, "terminal", "content", "reasoning", "arguments", "content, streamed", "arguments, streamed"):
        sample = measure(kind)
        floor = floor if figures else sample.result["gap"]
        figures.append(Figure(kind, sample.result["gap"] * 1000, "ms", note=f"{sample.result}"))
    return Result(title="large", figures=figures)


def measure(kind: str) -> Sample:
    kind, _, streamed = kind.partition(", ")
    if kind == "nothing":
        turns: list[dict[str, Any]] = [{"content": "ok"}]
    elif kind == "terminal":
        command = f"yes 'a line of a log' | head -c {PRINTED}"
        turns = [{"tool_calls": [{"name": "terminal", "arguments": {"command": command}}]}, {"content": "ok"}]
    elif kind == "content" or kind == "reasoning":
        turns = [{"content": "ok", kind: "some words of a long answer " * (REPLY // 28)}]
    elif kind == "arguments":
        arguments = {"kind": "some words of a long answer " * (REPLY // 28)}
        turns = [{"tool_calls": [{"name": "result", "arguments": arguments}]}, {"content": "ok"}]
    else:
        turns = [{"tool_calls": [{"name": "result", "arguments": {"kind": kind}}]}, {"content": "ok"}]
    look = {"tool_calls": [{"name": "look_up", "arguments": {"word": "a"}}]}
    with (
        MockServer([{"turns": turns}], process=True) as huge,
        MockServer([{"turns": [look] * OTHERS_TURNS + [{"content": "ok"}]}], process=True, latency=LATENCY) as ordinary,
    ):
        return run_child(
            "large:run", huge=huge.base_url, ordinary=ordinary.base_url, stream=bool(streamed), sandbox=kind == "terminal"
        )


def run(*, huge: str, ordinary: str, stream: bool, sandbox: bool) -> dict[str, float]:
    return asyncio.run(_run(huge, ordinary, stream, sandbox))


async def _run(huge: str, ordinary: str, stream: bool, sandbox: bool) -> dict[str, float]:
    large = _worker(huge, "large_tools.py", stream)
    others = _worker(ordinary, "tool_async.py", False)
    tasks = [asyncio.create_task(_timed(others, f"o{n}", ("bench",))) for n in range(OTHERS)]
    await asyncio.sleep(0.3)  # past the opening of the connections
    gaps: list[tuple[float, float]] = []
    beating = asyncio.create_task(_beat(gaps))
    gc.collect()
    base, cpu = memory_kb("VmRSS"), cpu_seconds()
    attempt, wall = await _timed(large, "huge", ("terminal",) if sandbox else ("large",))
    await asyncio.sleep(0.01)
    beating.cancel()
    cpu = cpu_seconds() - cpu
    peak = memory_kb("VmHWM")
    walls = [took for _, took in await asyncio.gather(*tasks)]
    await large.close()
    await others.close()
    if attempt.summary.outcome == "failed":
        print("FAILED", attempt.summary.error[:300])
    return {
        "gap": max(g for g, _ in gaps), "gap_cpu": max(c for _, c in gaps), "wall": wall, "others": max(walls), "memory_mb": (peak - base) / 1024, "cpu": cpu,
        "record_kb": len(attempt.record) / 1024, "ok": float(attempt.summary.outcome != "failed"),
    }


def _worker(base_url: str, tools: str, stream: bool) -> Worker:
    settings = RolloutSettings(
        model=ModelSettings("mock", base_url=base_url, stream=stream),
        sandbox=SandboxSettings(backend="local", label="large"),
        max_turns=10_000,
        tool_files=(str(Path(__file__).with_name(tools)),),
        run_tools=("look_up", "result", "terminal"),
    )
    return Worker(settings, LocalDoor(Admission(RateLimit(UNLIMITED), Breaker(300), Budget())))


async def _timed(worker: Worker, key: str, toolsets: tuple[str, ...]) -> tuple[Attempt, float]:
    prompt = Prompt(index=0, messages=(Message(role="user", content=key),))
    spec = RolloutSpec(key=key, prompt=prompt, sample_index=0, batch_num=0, attempt=1, seed=0, toolsets=toolsets)
    began = time.perf_counter()
    attempt = await worker.run(spec)
    return attempt, time.perf_counter() - began


async def _beat(gaps: list[tuple[float, float]]) -> None:
    last, cpu = time.perf_counter(), time.thread_time()
    while True:
        await asyncio.sleep(0.001)
        now, cpu_now = time.perf_counter(), time.thread_time()
        gaps.append((now - last, cpu_now - cpu))
        last, cpu = now, cpu_now
