"""`kiseki verify`: check a run's ledger in itself and every file against it. Nothing is changed, no model is run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kiseki.commands.display import make_console
from kiseki.commands.flags import Parser

if TYPE_CHECKING:
    from rich.console import Console

    from kiseki.views.verify import Verdict

HOLDS, WRONG, UNFINISHED = 0, 1, 3
MOST_ATTEMPTS = 5
"""Attempts from here on share a column."""


def build_parser() -> Parser:
    parser = Parser(
        "kiseki verify",
        "Check a run: the ledger in itself, and every file against it. Exit status 0: everything holds and nothing is\n"
        "pending; 3: everything holds, but rollouts are still pending, or a killed session has not made its files yet;\n"
        "1: something is wrong, and every problem is named.",
        "example:\n  kiseki verify data/my_run --list > rollouts.tsv",
    )
    parser.add_argument("run_folder", help="the run's folder, such as data/my_run")
    group = parser.add_argument_group("output")
    words = (
        "a line per (row, sample) on stdout, the report on stderr: prompt_index, sample_index, outcome, attempts, batch, config"
    )
    parser.switch(group, "list", words)
    return parser


def main(argv: Sequence[str]) -> int:
    flags = build_parser().parse(argv)

    import sqlite3

    from rich.console import Console

    from kiseki.errors import LedgerError
    from kiseki.ledger.opening import open_ledger
    from kiseki.views.verify import list_rollouts, unreadable, verify

    folder, stdout = Path(flags.run_folder), make_console()
    console = Console(stderr=True) if flags.list else stdout
    try:
        ledger = open_ledger(folder, create=False, read_only_too=True)
    except LedgerError as error:
        cause = error.__cause__
        if not isinstance(cause, (sqlite3.DatabaseError, UnicodeDecodeError)):
            raise
        return _report(console, folder, unreadable(cause))
    with ledger:
        verdict = verify(ledger, console)
        if flags.list and verdict.outcomes:
            for line in list_rollouts(ledger):
                stdout.file.write(f"{line}\n")
            stdout.file.flush()
    return _report(console, folder, verdict)


def _report(console: Console, folder: Path, verdict: Verdict) -> int:
    from rich.text import Text

    def say(line: str, style: str = "") -> None:
        console.print(Text(line), style=style, soft_wrap=True)

    _print_outcomes(console, verdict)
    pending, failed = verdict.rollouts("pending"), verdict.rollouts("failed")
    if failed:
        poison = " (those that killed their worker twice: with --retry_poison)" if "failed:WorkerDied" in verdict.outcomes else ""
        say(f"failed: {failed:,} rollouts; the same batch command with --resume tries them again{poison}", "yellow")
    if pending:
        say(f"pending: {pending:,} rollouts; the run is not finished, the same batch command with --resume goes on", "yellow")
    for problem in verdict.problems:
        say(problem, "red")
    if verdict.problems:
        say(f"{folder}: problems: {len(verdict.problems)}; rows are named prompt_index/sample_index", "red")
        return WRONG
    if verdict.behind:
        say(f"{folder}: the last session was ended before it made its files; --resume does, or kiseki merge {folder}", "yellow")
        return UNFINISHED
    say(f"{folder}: the ledger is whole, and every file says what it says", "green")
    return UNFINISHED if pending else HOLDS


def _print_outcomes(console: Console, verdict: Verdict) -> None:
    from rich.table import Table

    if not verdict.outcomes:
        return
    columns = sorted({min(attempts, MOST_ATTEMPTS) for by in verdict.outcomes.values() for attempts in by})
    table = Table(title="Rollouts by outcome and attempts", title_justify="left")
    table.add_column("outcome")
    for attempts in columns:
        table.add_column(
            "1 attempt" if attempts == 1 else f"{attempts}{'+' * (attempts == MOST_ATTEMPTS)} attempts", justify="right"
        )
    table.add_column("rollouts", justify="right")
    for outcome, by in sorted(verdict.outcomes.items()):
        counts = [sum(n for attempts, n in by.items() if min(attempts, MOST_ATTEMPTS) == column) for column in columns]
        table.add_row(outcome, *(f"{count:,}" if count else "" for count in counts), f"{sum(counts):,}")
    console.print(table)
