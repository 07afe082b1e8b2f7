"""`kiseki merge`: make every file of a run again from its ledger. No model is run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kiseki.commands.display import make_console
from kiseki.commands.flags import Parser, one_of


def build_parser() -> Parser:
    parser = Parser(
        "kiseki merge",
        "Rebuild batch_*.jsonl, trajectories.jsonl, children.jsonl, checkpoint.json and statistics.json of a run from its\n"
        "ledger.",
        "example:\n  kiseki merge data/my_run --reasoning_filter=off",
    )
    parser.add_argument("run_folder", help="the run's folder, such as data/my_run")
    group = parser.add_argument_group("filters")
    words = "discard rollouts without any reasoning (default: as the run was made)"
    parser.flag(group, "reasoning_filter", one_of("on", "off"), words)
    return parser


def main(argv: Sequence[str]) -> int:
    flags = build_parser().parse(argv)

    import msgspec
    from rich.text import Text

    from kiseki.errors import UsageError
    from kiseki.ledger.opening import open_ledger
    from kiseki.views.build import TRAJECTORIES, Views, load_view_settings, save_view_settings
    from kiseki.views.finish import finish_views
    from kiseki.views.report import print_report

    folder, console = Path(flags.run_folder), make_console()
    with open_ledger(folder, create=False) as ledger:
        ledger.waiting = lambda line: console.print(Text(line), style="yellow", soft_wrap=True)
        settings = load_view_settings(ledger)
        if settings is None:
            raise UsageError(f"{folder} holds a run that never started; there is nothing to merge")
        if flags.reasoning_filter:
            settings = msgspec.structs.replace(settings, reasoning_filter=flags.reasoning_filter == "on")
            save_view_settings(ledger, settings)
        print_report(console, finish_views(ledger, Views(ledger, settings), settings, console, rebuild=True))
    console.print(Text(f"trajectories: {folder / TRAJECTORIES}"), soft_wrap=True)
    return 0
