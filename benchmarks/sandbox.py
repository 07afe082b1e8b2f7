"""What a bubblewrap sandbox costs: opening and closing it, a command in its shell, and a terminal call of the whole engine.

CPU counts this process, the processes that it waited for, and those that die with the sandbox's first process, which nobody
waits for: they are asked just before (`lost_cpu`), so sandboxes are opened one at a time. Per command it is the difference of
sandboxes with many and with few commands. The whole engine is measured by long and short rollouts (same number of sandboxes), so
that opening is not in it; the floor is `bash -c` for each command, without a sandbox.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import time
from statistics import median
from typing import Any

from benchmarks.child import Sample, cpu_seconds, lost_cpu, run_child
from benchmarks.figures import Figure, Result
from kiseki.models.mock_server import MockServer
from kiseki.sandboxes.factory import Sandboxes
from kiseki.sandboxes.settings import SandboxSettings

BACKEND = "bubblewrap"
SANDBOXES = 20
FEW, MANY = 50, 350
"""Commands in one sandbox."""
BUILTIN, FORK = "echo hello", "/bin/true"
ROLLOUTS = 20
SHORT, LONG = 5, 45
"""Tool turns of a rollout."""
ROUNDS = 3


def main() -> Result:
    opened = [run_child("sandbox:open_and_close", count=SANDBOXES) for _ in range(ROUNDS)]
    bash = {kind: median(_bash(kind) for _ in range(ROUNDS)) for kind in (BUILTIN, FORK)}
    alone = {kind: median(_commands(kind) for _ in range(ROUNDS)) for kind in (BUILTIN, FORK)}
    engine = {kind: median(_engine(kind) for _ in range(ROUNDS)) for kind in (BUILTIN, FORK)}
    fastest = 1000 * min(sample.result["wall"] for sample in opened) / SANDBOXES
    cpu = median(1000 * sample.result["cpu"] / SANDBOXES for sample in opened)
    return Result(
        title=f"sandbox: {BACKEND}, medians of {ROUNDS} rounds, CPU with all processes of the sandbox",
        floor="bash -c for each command, no sandbox",
        figures=[
            Figure("open and close", cpu, "ms CPU", goal=20, note=f"of it here {_own(opened):.1f} ms"),
            Figure("open and close, wall", fastest, "ms", goal=20, note="one after the other, best round"),
            Figure("a builtin", alone[BUILTIN], "ms CPU", floor=bash[BUILTIN], note=BUILTIN),
            Figure("a command with a fork", alone[FORK], "ms CPU", floor=bash[FORK], note=FORK),
            Figure("engine, builtin", engine[BUILTIN], "ms CPU/call", goal=2.5, floor=bash[BUILTIN], note="model call included"),
            Figure("engine, fork", engine[FORK], "ms CPU/call", goal=2.5, floor=bash[FORK], note="model call included"),
        ],
    )


def _own(samples: list[Sample]) -> float:
    return median(1000 * sample.result["own"] / SANDBOXES for sample in samples)


def _all_cpu() -> float:
    return cpu_seconds() + cpu_seconds(resource.RUSAGE_CHILDREN)


def open_and_close(*, count: int) -> dict[str, float]:
    """Open and close so many sandboxes one after the other, in a child; the first one, which finds bwrap, is not counted."""

    async def one(*, look: bool) -> float:
        sandbox = await Sandboxes(SandboxSettings(backend=BACKEND, label="benchmark")).open()
        lost = lost_cpu() if look else 0.0
        await sandbox.close()
        return lost

    async def all_of_them() -> dict[str, float]:
        lost = await one(look=True)
        cpu, own, began = _all_cpu(), cpu_seconds(), time.perf_counter()
        for _ in range(count):
            await one(look=False)
        wall, own = time.perf_counter() - began, cpu_seconds() - own
        return {"cpu": _all_cpu() - cpu + lost * count, "own": own, "wall": wall}

    return asyncio.run(all_of_them())


def _commands(command: str) -> float:
    """Milliseconds of CPU per command in the persistent shell."""
    few, many = (run_child("sandbox:commands", command=command, count=count).result["cpu"] for count in (FEW, MANY))
    return 1000 * (many - few) / (MANY - FEW)


def commands(*, command: str, count: int) -> dict[str, float]:
    """Run `command` so many times in one sandbox, in a child."""

    async def run() -> float:
        sandbox = await Sandboxes(SandboxSettings(backend=BACKEND, label="benchmark")).open()
        for _ in range(count):
            result = await sandbox.exec(command, timeout=60)
            if result.exit_code:
                raise RuntimeError(f"{command} ended with {result.exit_code}: {result.output}")
        lost = lost_cpu()
        await sandbox.close()
        return lost

    lost = asyncio.run(run())
    return {"cpu": _all_cpu() + lost}


def _bash(command: str) -> float:
    few, many = (run_child("sandbox:bash", command=command, count=count).result["cpu"] for count in (FEW, MANY))
    return 1000 * (many - few) / (MANY - FEW)


def bash(*, command: str, count: int) -> dict[str, float]:
    """The floor: a bash for each command, in a child."""
    for _ in range(count):
        subprocess.run(["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
    return {"cpu": _all_cpu()}


def _engine(command: str) -> float:
    """Milliseconds of CPU per model call with one terminal call, everything included but the sandbox's opening."""
    short, long = (_engine_sample(command, turns) for turns in (SHORT, LONG))
    return 1000 * (long - short) / ((LONG - SHORT) * ROLLOUTS)


def _engine_sample(command: str, turns: int) -> float:
    call: dict[str, Any] = {"tool_calls": [{"name": "terminal", "arguments": {"command": command}}], "reasoning": "I try it."}
    script = [{"turns": [call] * turns + [{"content": "Done.", "reasoning": "That is all."}]}]
    with MockServer(script, process=True) as server:
        sample = run_child(
            "engine:run",
            base_url=server.base_url,
            rollouts=ROLLOUTS,
            concurrency=1,
            max_turns=turns + 1,
            tools="",
            sandbox=BACKEND,
        )
    apart = sum(sample.result[name] for name in ("plan_cpu", "merge_cpu", "batch_files_cpu", "checkpoint_cpu"))
    return sample.cpu + sample.children_cpu + sample.result["lost_cpu"] - apart
