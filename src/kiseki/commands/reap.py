"""`kiseki reap`: remove the sandboxes that dead runs and agents left, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kiseki.commands.display import make_console
from kiseki.commands.flags import Parser, one_of

if TYPE_CHECKING:
    from rich.table import Table

    from kiseki.sandboxes.reaper import Found

BACKENDS = ("bubblewrap", "local", "docker", "podman", "apptainer", "modal", "ssh")
"""Those of `sandboxes.factory`, which --help should not have to import."""
FOLDERS = ("bubblewrap", "local", "apptainer")
"""What these leave is found by the folders of this machine, which do not say whose they are."""
STATES = {"alive": "lives", "dead": "dead", "elsewhere": "on another machine", "unknown": "not known"}
WORDS_CHARS = 1000
"""Of a path, or of what a backend says, that are shown: commands in a sandbox may have written them."""
UNITS = {"days": 86_400, "h": 3_600, "min": 60, "s": 1}


def build_parser() -> Parser:
    parser = Parser(
        "kiseki reap",
        "Remove what killed runs and agents left behind: containers, instances, folders, processes, control groups. A run\n"
        "does so by itself when it goes on with --resume; this is for runs that will not.\n\n"
        "Only what is certainly dead is removed: its owner, a run or a process of this machine, is gone. Live runs, and what\n"
        "other machines have on the same engine, are listed and left alone.",
        "examples:\n  kiseki reap --dry_run\n  kiseki reap --sandbox=docker\n  kiseki reap --ssh_host=me@big-machine",
    )
    group = parser.add_argument_group("what to look at")
    words = f"all (every one that answers), or one of {', '.join(BACKENDS)}; one that is named must answer"
    parser.flag(group, "sandbox", one_of("all", *BACKENDS), words, "all")
    parser.flag(group, "ssh_host", str, "[user@]host[:port]: look there, too", "")
    parser.switch(group, "dry_run", "only list it")
    return parser


def main(argv: Sequence[str]) -> int:
    flags = build_parser().parse(argv)

    import msgspec
    from rich.text import Text

    from kiseki.errors import SandboxError, UsageError
    from kiseki.sandboxes.reaper import HERE, remove, survey
    from kiseki.sandboxes.settings import SandboxSettings
    from kiseki.trajectory.text import printable

    if flags.ssh_host and flags.sandbox not in ("all", "ssh"):
        raise UsageError(f"--ssh_host is for --sandbox=ssh, or for all, not for {flags.sandbox}")
    settings = SandboxSettings(host=flags.ssh_host)
    console = make_console()
    found: list[Found] = []
    silent = {}
    for backend in _places(flags.sandbox, flags.ssh_host, HERE):
        try:
            found += survey(msgspec.structs.replace(settings, backend=backend))
        except SandboxError as error:
            if flags.sandbox != "all" or backend == "ssh":  # it was asked for by name
                raise UsageError(f"nothing is removed: {printable(str(error), WORDS_CHARS)}") from error
            silent[backend] = printable(str(error), WORDS_CHARS)
    if any(each.sandboxes for each in found):
        console.print(_table(found, HERE))
    for backend, why in silent.items():
        console.print(Text(f"not looked at: {backend} ({why})"), style="dim", soft_wrap=True)
    dead = [each for each in found if each.state == "dead"]
    if flags.dry_run:
        console.print(f"sandboxes that would be removed: {sum(each.sandboxes for each in dead):,}")
        return 0
    removed, refused = 0, 0
    for each in dead:
        try:
            removed += remove(each)
        except SandboxError as error:
            refused += 1
            words = printable(str(error), WORDS_CHARS)
            console.print(Text(f"{each.settings.backend}, {_whose(each)}: {words}"), style="yellow", soft_wrap=True)
    console.print(f"sandboxes removed: {removed:,}")
    if refused:
        raise SandboxError("not everything could be removed; what is left and why is above")
    return 0


def _places(sandbox: str, host: str, here: str) -> tuple[str, ...]:
    if sandbox == "all":
        return (here, "docker", "podman", "modal", *(["ssh"] if host else []))
    return (here,) if sandbox in FOLDERS else (sandbox,)


def _table(found: list[Found], here: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Sandboxes", title_justify="left")
    table.add_column("where", no_wrap=True)
    table.add_column("of", overflow="fold")
    for column in ("number", "oldest"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("owner", no_wrap=True)
    for each in found:
        if each.sandboxes:
            where = {here: "this machine", "ssh": each.settings.host}.get(each.settings.backend, each.settings.backend)
            table.add_row(Text(where), Text(_whose(each)), f"{each.sandboxes:,}", _age(each.since), STATES[each.state])
    return table


def _whose(found: Found) -> str:
    """The run's folder, which says more than its label."""
    from kiseki.ledger.opening import LOCK_NAME
    from kiseki.sandboxes.owners import lock_of
    from kiseki.trajectory.text import printable

    lock = Path(lock_of(found.owner.file))
    label = found.settings.label
    return printable(f"{lock.parent} ({label})" if lock.name == LOCK_NAME else label, WORDS_CHARS)


def _age(since: float) -> str:
    now = time.time()
    seconds = int(now - since) if 0 < since < now else 0
    unit, size = next(((unit, size) for unit, size in UNITS.items() if seconds >= size), ("", 1))
    return f"{seconds // size} {unit}" if unit else ""
