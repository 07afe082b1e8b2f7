"""A progress bar that counts, for work whose end may not be known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def counting_bar(
    console: Console, what: str, total: int | None = None, *, in_bytes: bool = False
) -> Iterator[Callable[[int], None]]:
    """Gives a function that takes how many are done. Shows nothing where the console is no terminal."""
    count = DownloadColumn(binary_units=True) if in_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal, refresh_per_second=2) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
