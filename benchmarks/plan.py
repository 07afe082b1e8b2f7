"""Planning a dataset: what the driver does before the first rollout, per row, and the memory that it takes.

100,000 prompts, fresh and again when every rollout is done (a resume that finds nothing to run), each in a process of its own.
Beside it, reading and JSON-decoding the same file. The goal is set for 1,000,000 rows (20 s for the resume, 250 MB of memory in
all), so here a tenth of the time, and the same memory, since it must not grow with the dataset.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.child import Sample, cpu_seconds, run_child
from benchmarks.engine import write_dataset
from benchmarks.figures import Figure, Result
from kiseki.batch.plan import make_plan, read_into_ledger
from kiseki.batch.prompts import read_prompts
from kiseki.ledger.opening import open_ledger

ROWS = 100_000
GOAL_SECONDS_PER_MILLION = 20.0
GOAL_MB = 250.0


def main(rows: int = ROWS) -> Result:
    with tempfile.TemporaryDirectory() as name:
        dataset = str(write_dataset(Path(name) / "prompts.jsonl", rows))
        folder = {"folder": name, "dataset": dataset}
        reading = [run_child("plan:read", dataset=dataset)]
        fresh = run_child("plan:plan", **folder)
        reading.append(run_child("plan:read", dataset=dataset))
        run_child("plan:finish", folder=name)
        done = run_child("plan:plan", **folder)
        reading.append(run_child("plan:read", dataset=dataset))
    if (fresh.result["to_run"], done.result["to_run"]) != (rows, 0):
        raise RuntimeError(f"planned {fresh.result['to_run']:.0f} and then {done.result['to_run']:.0f} of {rows} rows")
    floor = min(_per_row(sample, rows) for sample in reading)
    peak = max(fresh.peak_rss_kb, done.peak_rss_kb) / 1024
    base = min(sample.peak_rss_kb for sample in reading) / 1024
    goal = GOAL_SECONDS_PER_MILLION
    return Result(
        title=f"plan: a dataset of {rows:,} prompts",
        floor="reading and JSON-decoding the file",
        figures=[
            Figure("fresh run", _per_row(fresh, rows), "µs CPU/row", floor=floor, note=f"{fresh.result['wall']:.2f} s wall"),
            Figure(
                "resume of a finished run",
                _per_row(done, rows),
                "µs CPU/row",
                goal=goal,
                floor=floor,
                note=f"{done.result['wall']:.2f} s wall",
            ),
            Figure("peak memory", peak, "MB", goal=GOAL_MB, floor=base, note="whole process; floor: of the reading alone"),
        ],
    )


def _per_row(sample: Sample, rows: int) -> float:
    return 1e6 * sample.result["cpu"] / rows


def read(*, dataset: str) -> dict[str, float]:
    """The floor, in a child."""
    cpu, decode = cpu_seconds(), msgspec.json.Decoder().decode
    with open(dataset, "rb") as file:
        for line in file:
            decode(line)
    return {"cpu": cpu_seconds() - cpu}


def plan(*, folder: str, dataset: str) -> dict[str, float]:
    """Plan and take the first rollout, in a child."""
    cpu, began = cpu_seconds(), time.perf_counter()
    ledger = open_ledger(Path(folder), create=True)
    rows = read_prompts(dataset)
    read_into_ledger(ledger, rows, num_samples=1, bad_row=lambda row: None, planned=lambda rows: None)
    made = make_plan(ledger, num_samples=1, batch_size=1000, first_batch=0)
    next(ledger.open_rollouts(1), None)
    taken = {"cpu": cpu_seconds() - cpu, "wall": time.perf_counter() - began, "to_run": float(made.to_run)}
    ledger.close()
    return taken


def finish(*, folder: str) -> dict[str, float]:
    """Say in the ledger that all is done, in a child. Planning never looks at an attempt, so none is made up."""
    ledger = open_ledger(Path(folder), create=False)
    with ledger.transaction():
        ledger.db.execute("UPDATE rollouts SET outcome = 'completed', attempts = 1")
    ledger.close()
    return {}
