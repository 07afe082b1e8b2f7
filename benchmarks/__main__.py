"""`python -m benchmarks [NAME …] [--json FILE]`: measure and print; every benchmark, or those named. About 10 minutes for all."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.figures import Result, load, machine, show, today
from kiseki.errors import KisekiError

NAMES = (
    *("calls", "dialects", "concurrency", "sandbox", "containers", "startup", "plan", "progress", "memory", "large", "compress"),
)
LOG_WIDTH = 160
"""Columns where stdout is no terminal."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What Kiseki costs in CPU, time and memory.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(NAMES)} (default: all)")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there too")
    asked = parser.parse_args()
    if unknown := [name for name in asked.names if name not in NAMES]:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    console = Console(width=None if sys.stdout.isatty() else LOG_WIDTH)
    results: dict[str, Result] = {}
    for name in asked.names or NAMES:
        try:
            with console.status(f"measuring: {name}", spinner_style="none"):
                results[name] = measure(name)
        except KisekiError as error:  # a container engine that is not here, an image that cannot be had
            console.print(f"{name}: not measured: {error}\n", markup=False)
            continue
        show(console, results[name])
        if asked.json:
            asked.json.write_bytes(as_json(results))


def measure(name: str) -> Result:
    before, began = load(), time.perf_counter()
    result: Result = importlib.import_module(f"benchmarks.{name}").main()
    result.seconds = time.perf_counter() - began
    result.load_before, result.load_after = before, load()
    return result


def as_json(results: dict[str, Result]) -> bytes:
    """All figures so far, with what they were measured on."""
    figures = {
        name: {
            "seconds": result.seconds,
            "load": [result.load_before, result.load_after],
            "figures": [
                {**msgspec.structs.asdict(figure), "times_floor": figure.times_floor, "met": figure.met}
                for figure in result.figures
            ],
        }
        for name, result in results.items()
    }
    return (
        msgspec.json.format(msgspec.json.encode({"at": today(), "machine": machine(), "benchmarks": figures}), indent=2) + b"\n"
    )


if __name__ == "__main__":
    main()
