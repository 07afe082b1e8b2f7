"""One huge thing beside 50 ordinary rollouts in the same worker: how long the event loop stands still, and what it takes.

Huge are a tool's result (50 MB, or 200 MB that a terminal command prints), a model's reply (20 MB, whole or in deltas of 24
characters) and a conversation (1,000 turns). The loop stands still for the longest gap between two beats of a timer that is due
every millisecond, given in wall time and, for a busy machine, in CPU time of the loop's thread; the floor is the same with one
ordinary rollout more. Memory is the peak above what the process had before; what a result takes itself is not in it.
"""

from __future__ import annotations

import asyncio
import functools
import time
from pathlib import Path
from typing import Any

from benchmarks.child import Sample, cpu_seconds, memory_kb, run_child
from benchmarks.figures import Figure, Result
from kiseki.agent.settings import RolloutSettings
from kiseki.batch.worker import Worker
from kiseki.models.admission import UNLIMITED, Admission, LocalDoor
from kiseki.models.breaker import Breaker
from kiseki.models.budget import Budget
from kiseki.models.endpoints import ModelSettings
from kiseki.models.mock_server import MockServer
from kiseki.models.rate_limit import RateLimit
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.trajectory.types import Message, Prompt, RolloutSpec

OTHERS = 50
OTHERS_TURNS = 30
LATENCY = 0.02
"""Seconds per call of the ordinary rollouts, so that they are there all the while."""
SETTLE = 0.5
"""Seconds that their connections get to open before anything is measured."""
RESULT = 50_000_000
"""Bytes of a tool's result."""
PRINTED = 200_000_000
"""Bytes that the terminal command prints."""
REPLY = 20_000_000
"""Characters of a model's reply."""
TURNS = 1000
GOAL_MS = 250
SENTENCE = "line of an ordinary log, with some words and a number in it: {}\n"
KINDS = {
    "text": "a tool's result: 50 MB of text",
    "object": "an object with 50 MB of text",
    "list": "a list of 500,000 texts",
    "surrogates": "50 MB of which half is no UTF-8",
    "error": "ToolError with 50 MB",
    "exception": "ValueError with 50 MB",
    "terminal": "a command that prints 200 MB",
    "content": "a reply: 20 MB of content",
    "reasoning": "20 MB of reasoning",
    "arguments": "a call with 20 MB of arguments",
    "arguments, streamed": "the same in small deltas",
    "turns": f"a conversation of {TURNS:,} turns",
}
CALL_LOOK_UP = {"reasoning": "I look.", "tool_calls": [{"name": "look_up", "arguments": {"word": "a"}}]}
ANSWER = {"content": "Done.", "reasoning": "That is all."}


@functools.cache
def huge(kind: str) -> Any:
    """A result of one kind."""
    if kind == "list":
        return [f"{number:100}" for number in range(RESULT // 100)]
    block = "".join(SENTENCE.format(number) for number in range(1000))
    text: str = block * (RESULT // len(block))
    if kind == "object":
        return {"output": text, "exit_code": 0}
    if kind == "surrogates":
        return {"output": text[: RESULT // 2] + "\udcff\0é€" * (RESULT // 18)}
    return text


def main() -> Result:
    floor = measure("")
    samples = {words: measure(kind) for kind, words in KINDS.items()}
    figures = [
        Figure(words, 1000 * found["gap_cpu"], "ms CPU", goal=GOAL_MS, floor=1000 * floor.result["gap_cpu"], note=_how(found))
        for words, found in ((words, sample.result) for words, sample in samples.items())
    ]
    title = f"large: the longest that {OTHERS} other rollouts wait for the event loop"
    return Result(title=title, floor="one ordinary rollout more", figures=figures)


def _how(found: dict[str, float]) -> str:
    return f"wall {1000 * found['gap']:.0f} ms; {found['cpu']:.2f} s CPU in all, {found['memory_mb']:.0f} MB"


def measure(kind: str) -> Sample:
    """`kind`: of `KINDS`; "" for an ordinary rollout."""
    what, _, streamed = kind.partition(", ")
    large = [{"turns": _turns(what)}]
    ordinary = [{"turns": [CALL_LOOK_UP] * OTHERS_TURNS + [ANSWER]}]
    with MockServer(large, process=True) as asked, MockServer(ordinary, process=True, latency=LATENCY) as asked_by_others:
        sample = run_child("large:run", kind=what, url=asked.base_url, others=asked_by_others.base_url, stream=bool(streamed))
    if not sample.result["whole"]:
        raise RuntimeError(f"the rollout with {kind or 'nothing'} did not complete")
    return sample


def _turns(kind: str) -> list[dict[str, Any]]:
    words = "some words of a long answer, " * (REPLY // 29)
    if kind in ("", "turns"):
        return [CALL_LOOK_UP] * (TURNS if kind else 1) + [ANSWER]
    if kind in ("content", "reasoning"):
        return [ANSWER | {kind: words}]
    if kind == "terminal":
        call = {"name": "terminal", "arguments": {"command": f"yes 'a line of a log' | head -c {PRINTED}"}}
    else:
        call = {"name": "result", "arguments": {"kind": words if kind == "arguments" else kind}}
    return [{"reasoning": "I try it.", "tool_calls": [call]}, ANSWER]


def run(*, kind: str, url: str, others: str, stream: bool) -> dict[str, float]:
    """Run the huge rollout and the others, in a child."""
    if kind not in ("", "terminal", "turns", "content", "reasoning", "arguments"):
        huge("text" if kind in ("error", "exception") else kind)  # made before anything is measured
    return asyncio.run(_run(kind, url, others, stream))


async def _run(kind: str, url: str, others_url: str, stream: bool) -> dict[str, float]:
    plain = kind in ("", "turns")
    worker = _worker(url, "tool_async.py" if plain else "tool_large.py", stream)
    others = _worker(others_url, "tool_async.py", False)
    tasks = [asyncio.create_task(_rollout(others, f"ordinary {number}", "bench")) for number in range(OTHERS)]
    await asyncio.sleep(SETTLE)
    gaps: list[tuple[float, float]] = []
    beating = asyncio.create_task(_beat(gaps))
    before, cpu = memory_kb("VmRSS"), cpu_seconds()
    began = time.perf_counter()
    whole = await _rollout(worker, "huge", "terminal" if kind == "terminal" else "bench" if plain else "large")
    await asyncio.sleep(0.01)  # for the beat that follows
    found = {
        "wall": time.perf_counter() - began,
        "gap": max(wall for wall, _ in gaps),
        "gap_cpu": max(cpu for _, cpu in gaps),
        "cpu": cpu_seconds() - cpu,
        "memory_mb": max(0, memory_kb("VmHWM") - before) / 1024,
    }
    beating.cancel()
    found["whole"] = float(whole and all(await asyncio.gather(*tasks)))
    await worker.close()
    await others.close()
    return found


def _worker(base_url: str, tools: str, stream: bool) -> Worker:
    settings = RolloutSettings(
        model=ModelSettings("mock", base_url=base_url, stream=stream),
        sandbox=SandboxSettings(backend="local", label="benchmark"),
        max_turns=TURNS + 1,
        tool_files=(str(Path(__file__).with_name(tools)),),
    )
    return Worker(settings, LocalDoor(Admission(RateLimit(UNLIMITED), Breaker(settings.model.provider_patience), Budget())))


async def _rollout(worker: Worker, text: str, toolset: str) -> bool:
    """Whether it completed."""
    prompt = Prompt(index=0, messages=(Message(role="user", content=text),))
    spec = RolloutSpec(key=text, prompt=prompt, sample_index=0, batch_num=0, attempt=1, seed=0, toolsets=(toolset,))
    return (await worker.run(spec)).summary.outcome == "completed"


async def _beat(gaps: list[tuple[float, float]]) -> None:
    """Wall and CPU seconds between two beats."""
    wall, cpu = time.perf_counter(), time.thread_time()
    while True:
        await asyncio.sleep(0.001)
        now, cpu_now = time.perf_counter(), time.thread_time()
        gaps.append((now - wall, cpu_now - cpu))
        wall, cpu = now, cpu_now
