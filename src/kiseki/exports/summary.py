"""What an export did, for people: one table, where the files are, and how to check them."""

from __future__ import annotations

import shlex

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kiseki.exports.job import LEFT_OUT, REPORT, ExportReport
from kiseki.exports.target import stem_of
from kiseki.formats.table import EXAMINED
from kiseki.trajectory.text import printable

MATCHES_SHOWN = 5
FRAME_CHARS = 200
_NAME_CHARS = 80


def print_report(console: Console, report: ExportReport) -> None:
    console.print(Text(f"{report.source} as {report.format}"), soft_wrap=True)
    table = Table(show_header=False, box=box.SIMPLE)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("examples read", f"{report.read:,}")
    for split, count in report.written.items():
        rows = report.rows[split]
        table.add_row(f"written, {split}", f"{count:,}" + (f" (rows: {rows:,})" if rows != count else ""))
    if report.cut_tails:
        table.add_row("  of them cut after the last assistant turn", f"{report.cut_tails:,}")
    if report.masked_turns or "mask" in report.settings:
        table.add_row("  assistant turns masked", f"{report.masked_turns:,}")
    table.add_row("left out", f"{report.total_left_out:,}")
    for reason, count in report.left_out.items():
        table.add_row(Text(f"  {printable(reason, _NAME_CHARS)}"), f"{count:,}")
    console.print(table)
    for line, count in list(report.matched.items())[:MATCHES_SHOWN]:
        console.print(Text(f"in the benchmark, at {printable(line, _NAME_CHARS)}: {count:,}"), soft_wrap=True)
    for words in report.frames:
        console.print(Text(f"in much of the benchmark, so not looked for: {printable(words, FRAME_CHARS)}"), soft_wrap=True)
    empty = [split for split, count in report.written.items() if not count]
    if empty:
        words = f"no prompt fell into {', '.join(empty)}: there is no file of it"
        console.print(Text(words), style="yellow", soft_wrap=True)
    console.print(Text(f"exported: {report.target}"), soft_wrap=True)
    if report.total_left_out:
        console.print(Text(f"left out, each with its reason: {_beside(report, LEFT_OUT)}"), soft_wrap=True)
    console.print(Text(f"report: {_beside(report, REPORT)}"), soft_wrap=True)
    if report.format in EXAMINED:
        words = f"check it: kiseki doctor {shlex.quote(report.target)} --for {report.format}"
        console.print(Text(words), soft_wrap=True)


def _beside(report: ExportReport, name: str) -> str:
    return f"{report.target}.{name}" if stem_of(report.target) != report.target else f"{report.target}/{name}"
