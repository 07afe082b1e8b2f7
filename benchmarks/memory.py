"""What the driver's process holds while a run of many prompts goes through driver, ledger and views.

The engine answers at once, so the driver is as fast as it can be. Memory is the resident set after a quarter of the rollouts, a
half, and all of them; what is there at a half (imports, SQLite's cache, the plan) stays, and nothing more may come. A million
prompts take ten minutes: `python -c 'from benchmarks.memory import run; print(run(prompts=1_000_000))'`.
"""

from __future__ import annotations

import asyncio
import io
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from rich.console import Console

import kiseki.batch.run as batch_run
from benchmarks.child import memory_kb, run_child
from benchmarks.engine import write_dataset, write_distribution
from benchmarks.figures import Figure, Result
from kiseki.agent.settings import RolloutSettings
from kiseki.batch.config import BatchConfig
from kiseki.batch.engines import Engine, Give
from kiseki.batch.prepare import Toolsets
from kiseki.ledger.types import Attempt
from kiseki.models.admission import Admission
from kiseki.models.endpoints import ModelSettings
from kiseki.trajectory.record import encode_record, summarize
from kiseki.trajectory.types import Message, Record, RolloutSpec

PROMPTS = 200_000
GOAL_MB = 250
GROWTH_GOAL_MB = 10
POINTS = (0.25, 0.5, 1.0)


def main() -> Result:
    found = run_child("memory:run", prompts=PROMPTS)
    at = [found.result[f"{point:g}"] for point in POINTS]
    return Result(
        title=f"memory: a run of {PROMPTS:,} prompts, the driver's process",
        figures=[
            Figure("peak", found.peak_rss_kb / 1024, "MB", goal=GOAL_MB, note="with planning and the views at the end"),
            *(Figure(f"after {point:.0%}", mb, "MB") for point, mb in zip(POINTS, at, strict=True)),
            Figure("growth from a half on", at[-1] - at[1], "MB", goal=GROWTH_GOAL_MB),
        ],
    )


class Instant:
    """An engine whose rollouts end as soon as they begin."""

    def __init__(self, rollouts: int, found: dict[str, float]) -> None:
        self._marks = {int(point * rollouts): f"{point:g}" for point in POINTS}
        self._found = found
        self._given = 0

    async def run(self, specs: AsyncIterator[RolloutSpec], give: Give) -> None:
        async for spec in specs:
            give(_attempt(spec))
            self._given += 1
            if mark := self._marks.get(self._given):
                self._found[mark] = memory_kb("VmRSS") / 1024
            await asyncio.sleep(0)

    def kill(self) -> None:
        pass

    async def close(self) -> None:
        pass


def _attempt(spec: RolloutSpec) -> Attempt:
    answer = Message(role="assistant", content=f"What I know about {spec.prompt.text}", reasoning="I think about it.")
    record = Record(
        key=spec.key,
        sample_index=spec.sample_index,
        attempt=spec.attempt,
        seed=spec.seed,
        messages=(*spec.prompt.messages, answer),
        prompt_messages=1,
        outcome="completed",
        reason="answered",
        model="mock",
        toolsets=spec.toolsets,
        tools_hash="none",
    )
    return Attempt(spec.key, summarize(record), encode_record(record), {"none": "[]"})


def run(*, prompts: int) -> dict[str, float]:
    """A whole run in this process. Returns MB at each of `POINTS`."""
    found: dict[str, float] = {}

    def engine(
        config: BatchConfig, toolsets: Toolsets, settings: RolloutSettings, admission: Admission, concurrency: int
    ) -> Engine:
        return Instant(prompts, found)

    batch_run.choose_engine = engine
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = BatchConfig(
            dataset_file=str(write_dataset(folder / "prompts.jsonl", prompts)),
            batch_size=100,
            run_name="run",
            model=ModelSettings(model="mock", base_url="http://127.0.0.1:9/v1"),
            distribution=str(write_distribution(folder / "distribution.yaml", "bench")),
            tools=(str(Path(__file__).with_name("tool_async.py")),),
            output_dir=name,
        )
        if batch_run.run_batch(config, Console(file=io.StringIO(), width=120)) != batch_run.DONE:
            raise RuntimeError("the run did not end well")
    return found | {"peak": memory_kb("VmHWM") / 1024}
