"""The engine as a batch run uses it, measured part by part; runs in a child process (`benchmarks.child`).

`run` goes through `run_batch`: plan, rollouts, ledger, batch files, merge. The CPU of the parts that run once per start or per
file is taken by the clock of the thread that they run on, so that what is left is the engine: loop, model client, tool
dispatch, records, ledger commits, progress.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

import kiseki.batch.run as batch_run
from benchmarks.child import cpu_seconds, lost_cpu, memory_kb
from kiseki.batch.config import BatchConfig
from kiseki.batch.driver import Driver
from kiseki.ledger.ledger import Ledger
from kiseki.models.endpoints import ModelSettings
from kiseki.sandboxes.shell import ShellSandbox
from kiseki.views.build import Views

MODEL = "mock"
PROMPT = (
    "Look up what a trajectory is, then explain it to somebody who has never trained a model, in three sentences, with an "
    "example from daily life and one from software. Rollout {}."
)


def run(
    *,
    base_url: str,
    rollouts: int,
    concurrency: int,
    max_turns: int = 10,
    tools: str = "tool_async.py",
    sandbox: str = "local",
    engine: str = "inprocess",
    num_workers: int = 2,
    api_mode: str = "chat",
    stream: bool = False,
) -> dict[str, float]:
    """Run a batch run of `rollouts` prompts. Returns seconds and, for memory, KB.

    `tools`: a file beside this one, or "" for the terminal toolset.
    """
    found: dict[str, float] = {}
    _time_parts(found)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = BatchConfig(
            dataset_file=str(write_dataset(folder / "prompts.jsonl", rollouts)),
            batch_size=25,
            run_name="run",
            model=ModelSettings(model=MODEL, base_url=base_url, api_mode=api_mode, stream=stream),
            distribution=str(write_distribution(folder / "distribution.yaml", "bench" if tools else "terminal")),
            max_turns=max_turns,
            num_workers=num_workers,
            concurrency=concurrency,
            engine=engine,
            sandbox=sandbox,
            tools=(str(Path(__file__).with_name(tools)),) if tools else (),
            output_dir=name,
        )
        status = batch_run.run_batch(config, Console(file=io.StringIO(), width=120))
        if status != batch_run.DONE:
            raise RuntimeError(f"the run ended with status {status}")
    return found


def write_dataset(path: Path, rows: int) -> Path:
    with path.open("wb") as file:
        for number in range(rows):
            file.write(msgspec.json.encode({"prompt": PROMPT.format(number)}) + b"\n")
    return path


def write_distribution(path: Path, toolset: str) -> Path:
    path.write_text(f"{toolset}: 100\n")
    return path


def _time_parts(found: dict[str, float]) -> None:
    """Let every part add its CPU to `found`; the driver's own run its wall time and memory too."""
    _timed(found, batch_run, "prepare", "prepare_cpu")
    _timed(found, batch_run, "plan_run", "plan_cpu")
    _timed(found, batch_run, "finish_views", "merge_cpu")
    _timed(found, Ledger, "commit", "commit_cpu")
    _timed(found, Views, "write_batch", "batch_files_cpu")
    _timed(found, Views, "write_checkpoint", "checkpoint_cpu")
    drive = Driver.run

    async def run_driver(driver: Driver) -> None:
        found["base_kb"] = memory_kb("VmRSS")
        cpu, began = cpu_seconds(), time.perf_counter()
        await drive(driver)
        found["drive_wall"] = time.perf_counter() - began
        found["drive_cpu"] = cpu_seconds() - cpu
        found["peak_kb"] = memory_kb("VmHWM")

    close = ShellSandbox.close
    found["lost_cpu"] = 0.0

    async def close_sandbox(sandbox: ShellSandbox) -> None:
        found["lost_cpu"] += lost_cpu()
        await close(sandbox)

    ShellSandbox.close = close_sandbox  # type: ignore[method-assign, assignment]
    Driver.run = run_driver  # type: ignore[method-assign, assignment]


def _timed(found: dict[str, float], owner: Any, name: str, key: str) -> None:
    """Wrap `owner.name`, which runs on one thread from its beginning to its end."""
    function: Callable[..., Any] = getattr(owner, name)
    found[key] = 0.0

    def wrapper(*arguments: Any, **named: Any) -> Any:
        began = time.thread_time()
        try:
            return function(*arguments, **named)
        finally:
            found[key] += time.thread_time() - began

    setattr(owner, name, wrapper)
