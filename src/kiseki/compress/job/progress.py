"""A bar while files are read, or a plain line now and then where stdout is no terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from kiseki.compress.compressor import Done
    from kiseki.compress.job.pool import Bad
    from kiseki.compress.summary import Ask

PLAIN_SECONDS = 5.0


class Progress:
    """A context. `total`: bytes of all input files."""

    def __init__(self, console: Console, doing: str, total: int) -> None:
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._console = console
        self._doing, self._total = doing, total
        self._position = 0
        self._rows = self._compressed = self._bad = 0
        self._plain_due = time.monotonic() + PLAIN_SECONDS
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TimeRemainingColumn(),
            TextColumn("{task.fields[words]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            refresh_per_second=4,
        )
        self._task = self._bar.add_task(doing, total=total or 1, words="")

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def at(self, position: int) -> None:
        """So many bytes of the input are read."""
        self._position = position

    def row(self, result: Done | Ask | Bad) -> None:
        """One row is done."""
        self._rows += 1
        metrics = getattr(result, "metrics", ())
        self._compressed += any(each.was_compressed for each in metrics)
        self._bad += hasattr(result, "reason")
        self._draw()

    def note(self, words: str) -> None:
        """Something that the user wants to know of now."""
        self._console.print(Text(words), style="yellow", soft_wrap=True)

    def _draw(self) -> None:
        words = f"{self._rows:,} rows, {self._compressed:,} compressed"
        if self._bad:
            words += f", {self._bad:,} unreadable"
        if self._console.is_terminal:
            self._bar.update(self._task, completed=self._position, words=words)
        elif time.monotonic() >= self._plain_due:
            self._plain_due = time.monotonic() + PLAIN_SECONDS
            share = 100 * self._position / (self._total or 1)
            self._console.print(Text(f"{self._doing}: {share:.0f} %, {words}"), soft_wrap=True)
