"""What a benchmark gives, and how it is shown."""

from __future__ import annotations

import os
import sys
import time

import msgspec
from rich.console import Console
from rich.table import Table


class Figure(msgspec.Struct, frozen=True):
    """One measured number."""

    name: str
    value: float
    unit: str
    goal: float | None = None
    """At most so much."""
    floor: float | None = None
    """The least that the job could cost, measured in the same run, in the same unit."""
    ratio_goal: float | None = None
    """At most so many times the floor."""
    ratio: float | None = None
    """Of value and floor, where it was taken pairwise; else it follows from them."""
    note: str = ""

    @property
    def times_floor(self) -> float | None:
        return self.ratio if self.ratio is not None or not self.floor else self.value / self.floor

    @property
    def met(self) -> bool | None:
        """Whether a goal is reached: the ratio's where there is one, since it holds on any machine. None without a goal."""
        if self.ratio_goal is not None and self.times_floor is not None:
            return self.times_floor <= self.ratio_goal
        return None if self.goal is None else self.value <= self.goal


class Result(msgspec.Struct):
    """What one benchmark found."""

    title: str
    figures: list[Figure]
    floor: str = ""
    """What the floor is, in words."""
    seconds: float = 0.0
    load_before: float = 0.0
    load_after: float = 0.0


def show(console: Console, result: Result) -> None:
    table = Table(title=result.title, title_justify="left", caption_justify="left")
    table.caption = f"floor: {result.floor}" if result.floor else None
    table.add_column("figure")
    for name in ("measured", "goal", "floor", "× floor", "× goal"):
        table.add_column(name, justify="right")
    table.add_column("reached")
    table.add_column("how", style="dim")
    for figure in result.figures:
        times, met = figure.times_floor, figure.met
        table.add_row(
            figure.name,
            f"{number(figure.value)} {figure.unit}",
            "" if figure.goal is None else f"≤ {number(figure.goal)}",
            "" if figure.floor is None else number(figure.floor),
            "" if times is None else f"{times:.2f}",
            "" if figure.ratio_goal is None else f"≤ {figure.ratio_goal:.1f}",
            "" if met is None else "[green]yes[/]" if met else "[red]no[/]",
            figure.note,
        )
    console.print(table)
    console.print(f"{machine()}; load {result.load_before:.1f} → {result.load_after:.1f}; took {result.seconds:.0f} s\n")


def number(value: float) -> str:
    """Three digits that count, thousands with commas."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GB, Python {'.'.join(map(str, sys.version_info[:3]))}"


def load() -> float:
    return os.getloadavg()[0]


def today() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
