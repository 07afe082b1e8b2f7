"""The compressor beside the bare tokenizer: CPU per token, both cores, and memory over file size.

Rows are SWE-agent-like: a system prompt that all share, a task, then calls with outputs of code, made from this Python's own
library, so that every turn is another text. Floor: JSON-decoding the same rows and counting each turn's text with the same
tokenizer, in one process per core at once, since cores that share a chip slow each other down. The compressor is measured
whole: start, reading, deciding, spool, output, all processes.
The goal, 80 % of the bare tokenizer's speed, is at most 1.25 times its CPU.
"""

from __future__ import annotations

import os
import random
import resource
import statistics
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
from bpe_openai._bindings import tokenizer_for_encoding
from rich.console import Console

from benchmarks.child import Sample, cpu_seconds, memory_kb, run_child
from benchmarks.figures import Figure, Result
from kiseki.compress.config import CompressionConfig
from kiseki.compress.job.job import CompressionJob
from kiseki.compress.job.run import run_compression

MEGABYTES = 200
GOAL_TIMES = 1.25
SIZES = (30, 200)
"""Megabytes of input between which memory must not grow."""
GROWTH_GOAL_MB = 30.0
TARGET = 15_250


def main(megabytes: int = MEGABYTES) -> Result:
    with tempfile.TemporaryDirectory() as name:
        rows = write_rows(Path(name) / "rows.jsonl", megabytes)
        bare = _on_all_cores(rows)
        fits = run_child("compress:compress", path=str(rows), target=10**9)
        bare += _on_all_cores(rows)
        ladder = run_child("compress:compress", path=str(rows), target=TARGET)
        peaks = [
            run_child("compress:compress", path=str(write_rows(Path(name) / f"{size}.jsonl", size)), target=TARGET)
            for size in SIZES
        ]
    floor = statistics.median(each.result["cpu"] for each in bare)
    tokens = bare[0].result["tokens"]
    per_million = 1e6 / tokens
    growth = peaks[1].result["peak_mb"] - peaks[0].result["peak_mb"]
    return Result(
        title=f"compress: {megabytes} MB of trajectories, {tokens / 1e6:.1f} million tokens, {bare[0].result['rows']:.0f} rows",
        floor="JSON-decoding the rows and counting each turn, in one process per core at the same time",
        figures=[
            _figure("every row fits: CPU per million tokens", fits, floor, per_million),
            _figure("ladder to 15,250 tokens: CPU per million tokens", ladder, floor, per_million),
            Figure("bare tokenizer, one of the processes", tokens / 1e6 / floor, "million tokens/s"),
            Figure("every row fits, all cores, wall", tokens / 1e6 / fits.result["wall"], "million tokens/s"),
            Figure("ladder, all cores, wall", tokens / 1e6 / ladder.result["wall"], "million tokens/s"),
            Figure("ladder, all cores, wall", bare[0].result["rows"] / ladder.result["wall"], "rows/s"),
            *(
                Figure(f"peak memory of a process, {size} MB of input", peak.result["peak_mb"], "MB")
                for size, peak in zip(SIZES, peaks, strict=True)
            ),
            Figure("growth with the input", growth, "MB", goal=GROWTH_GOAL_MB),
        ],
    )


def _on_all_cores(rows: Path) -> list[Sample]:
    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as threads:
        return list(threads.map(lambda path: run_child("compress:bare", path=path), [str(rows)] * cores))


def _figure(name: str, sample: Sample, floor: float, per_million: float) -> Figure:
    return Figure(
        name, sample.result["cpu"] * per_million, "s", floor=floor * per_million, ratio_goal=GOAL_TIMES, note="all processes"
    )


def write_rows(path: Path, megabytes: int) -> Path:
    """Rows of 2,000 to 40,000 tokens, about 12,000 on average."""
    rng, texts = random.Random(7), _texts()
    system = {"from": "system", "value": "You can call functions.\n<tools>\n" + '{"name": "terminal"}\n' * 60 + "</tools>"}
    with path.open("wb") as file:
        while file.tell() < megabytes << 20:
            turns = [system, {"from": "human", "value": "Fix the failing test in " + next(texts)[:600]}]
            for number in range(rng.choice((4, 8, 16, 32, 48))):
                turns += _unit(number, next(texts), rng)
            turns.append({"from": "gpt", "value": "<think>\n</think>\nDone: the test passes."})
            file.write(msgspec.json.encode({"conversations": turns, "metadata": {"model": "some"}, "completed": True}) + b"\n")
    return path


def _unit(number: int, text: str, rng: random.Random) -> list[dict[str, Any]]:
    call = {"name": "terminal", "arguments": {"command": f"sed -n {number},+60p src/module_{number}.py"}}
    size = min(len(text), rng.choice((200, 800, 1500, 4000, 12000)))
    content = {"tool_call_id": f"c{number}", "name": "terminal", "content": {"output": text[:size], "exit_code": 0}}
    thought = f"<think>\nStep {number}: {text[-300:]}\n</think>\n"
    return [
        {"from": "gpt", "value": f"{thought}<tool_call>\n{msgspec.json.encode(call).decode()}\n</tool_call>"},
        {"from": "tool", "value": f"<tool_response>\n{msgspec.json.encode(content).decode()}\n</tool_response>"},
    ]


def _texts() -> Iterator[str]:
    """Pieces of Python's library, without end; the second time round each begins elsewhere."""
    sources = [path.read_text(errors="replace") for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))]
    offset = 0
    while True:
        for source in sources:
            yield from (source[at : at + 12_000] for at in range(offset, len(source), 12_000))
        offset = (offset + 1_237) % 12_000


def bare(*, path: str) -> dict[str, float]:
    """The floor, in a child."""
    count = tokenizer_for_encoding("o200k_base").count
    cpu, decode, rows, tokens = cpu_seconds(), msgspec.json.Decoder().decode, 0, 0
    with open(path, "rb") as file:
        for line in file:
            tokens += sum(count(turn["value"]) for turn in decode(line)["conversations"])
            rows += 1
    return {"cpu": cpu_seconds() - cpu, "tokens": float(tokens), "rows": float(rows)}


def compress(*, path: str, target: int) -> dict[str, float]:
    """The whole job, in a child and its processes."""
    began, cpu = time.perf_counter(), _cpu()
    config = CompressionConfig(strategy="ladder", target_max_tokens=target)
    with open("/dev/null", "w") as nowhere:
        run_compression(CompressionJob(Path(path), Path(f"{path}.out.jsonl")), config, Console(file=nowhere))
    wall = time.perf_counter() - began
    peak = max(memory_kb("VmHWM"), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    return {"wall": wall, "cpu": _cpu() - cpu, "peak_mb": peak / 1024}


def _cpu() -> float:
    """Of this process and of those that it waited for."""
    return cpu_seconds() + cpu_seconds(resource.RUSAGE_CHILDREN)
