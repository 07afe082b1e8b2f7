"""`kiseki log`: the sessions of a run, its configurations, and why it slowed down, paused or stopped. Also while the run goes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kiseki.commands.display import make_console
from kiseki.commands.flags import Parser

if TYPE_CHECKING:
    import sqlite3

    from rich.table import Table


def build_parser() -> Parser:
    parser = Parser(
        "kiseki log",
        "Show the sessions of a run, the configurations that its rows were made with, and what made it slow down, pause or\n"
        "stop. The run may be going on meanwhile.",
        "example:\n  kiseki log data/my_run",
    )
    parser.add_argument("run_folder", help="the run's folder, such as data/my_run")
    return parser


def main(argv: Sequence[str]) -> int:
    flags = build_parser().parse(argv)

    import sqlite3

    import msgspec
    from rich.text import Text

    from kiseki.errors import LedgerError
    from kiseki.ledger.opening import open_to_read

    folder, console = Path(flags.run_folder), make_console()
    try:
        # without the lock: a run that is slow now is what one wants to look at
        with closing(open_to_read(folder)) as db:
            sessions, configurations, decisions = _sessions(db), _configurations(db), _decisions(db)
    except (sqlite3.DatabaseError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LedgerError(f"the ledger of {folder} cannot be read: {error}; kiseki verify {folder} says more") from error
    console.print(sessions)
    if configurations.row_count:
        console.print(configurations)
    if decisions.row_count:
        console.print(decisions)
    else:
        console.print(Text("nothing slowed it down, paused or stopped it"))
    return 0


def _sessions(db: sqlite3.Connection) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Sessions", title_justify="left", show_lines=True)
    table.add_column("", no_wrap=True)
    table.add_column("started (UTC)\nversion", no_wrap=True)
    table.add_column("model\nendpoint", overflow="fold")
    for column in ("seconds", "cost\ntokens", "attempts"):
        table.add_column(column, justify="right", no_wrap=True)
    attempts: dict[int, list[str]] = {}
    for session, outcome, count in db.execute("SELECT session_id, outcome, count(*) FROM attempts GROUP BY 1, 2"):
        attempts.setdefault(session, []).append(f"{outcome} {count:,}")
    lines = db.execute("SELECT id, started, version, settings, seconds, cost, tokens FROM sessions ORDER BY id")
    for session, started, version, settings, seconds, cost, tokens in lines:
        table.add_row(
            str(session),
            f"{_utc(started)}\n{version}",
            Text(_model(settings)),
            f"{seconds:,.1f}",
            f"${cost:,.4f}\n{tokens:,}",
            "\n".join(attempts.get(session, ["none"])),
        )
    return table


def _configurations(db: sqlite3.Connection) -> Table:
    """What is set in each; of several, only what they differ in."""
    import msgspec
    from rich.table import Table
    from rich.text import Text

    table = Table("", "settings", title="Configurations", title_justify="left", show_lines=True)
    configs = {name: msgspec.json.decode(info, type=dict[str, Any]) for name, info in db.execute("SELECT * FROM configs")}
    fields = dict.fromkeys(field for info in configs.values() for field in info)
    first = next(iter(configs.values()), {})
    if len(configs) > 1:
        fields = {field: None for field in fields if any(info.get(field) != first.get(field) for info in configs.values())}
    for name, info in configs.items():
        shown = {field: info.get(field) for field in fields}
        table.add_row(name, Text("\n".join(f"{field}: {value}" for field, value in shown.items() if value not in (None, ""))))
    return table


def _decisions(db: sqlite3.Connection) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("time (UTC)", "session", "kind", "detail", title="What changed how fast it went", title_justify="left")
    for at, session, kind, detail in db.execute("SELECT at, session_id, kind, detail FROM decisions ORDER BY id"):
        table.add_row(_utc(at), str(session), kind, Text(detail))
    return table


def _model(settings: str) -> str:
    """Model and host of the endpoint, a line each, in a session's settings."""
    import msgspec

    model = msgspec.json.decode(settings, type=dict[str, Any]).get("model", {})
    return f"{model.get('model', '')}\n{urlsplit(model.get('base_url', '')).netloc}".strip()


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
