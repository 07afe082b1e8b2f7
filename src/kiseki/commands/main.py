"""`kiseki`: finds the subcommand and turns what goes wrong into one line and an exit status.

0 done; 2 unusable arguments or input; 3 finished, but some rollouts failed; 130 interrupted; 1 anything unexpected.
"""

from __future__ import annotations

import difflib
import importlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from kiseki import __version__
from kiseki.commands.display import complain, go_dark, open_missing_streams
from kiseki.commands.key_file import load_keys
from kiseki.errors import KisekiError, StorageError, UsageError

COMMANDS = {
    "batch": "a dataset of prompts → trajectories",
    "agent": "one prompt → one trajectory",
    "models": "tries what a model's endpoint can do, and says which flags to use",
    "tools": "every tool: what it takes, what it needs, and a way to try it",
    "compress": "trajectories → within a token budget",
    "sample": "long trajectories of several datasets → one compressed file",
    "export": "trajectories → what a trainer reads, and what was left out",
    "images": "which container images a dataset needs, which are there, and pulling the others",
    "push": "a run → a dataset on the Hugging Face Hub, with its card",
    "merge": "rebuild a run's files from its ledger, with other filters",
    "doctor": "what a trainer would make of data: what it loses, in which rows, and the fix",
    "verify": "check a run: its ledger, and every file against it",
    "log": "a run's sessions, and why it slowed down, paused or stopped",
    "reap": "remove the sandboxes that dead runs and agents left",
    "mock-server": "a model server that injects faults, for trying set-ups",
}
UNUSABLE, UNEXPECTED, INTERRUPTED = 2, 1, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand in `argv` (default: the process's) and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    resumes = {"batch": " with --resume", "compress": "", "sample": "", "push": ""}  # the others have nothing to go on with
    looks = any(argument.startswith(("--show", "--dry")) for argument in arguments)
    how = None if looks else resumes.get("".join(arguments[:1]))
    saved = "" if how is None else f"; what was done before is saved, the same command{how} goes on"
    open_missing_streams()
    _stop_in_order()
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()  # now, since at the exit of the process it would be too late for a clear line
        return status
    except UsageError as error:
        complain(error)
        return UNUSABLE
    except KeyboardInterrupt:
        complain(KisekiError(f"interrupted{saved}"))
        return INTERRUPTED
    except BrokenPipeError:
        go_dark(sys.stdout)
        return UNEXPECTED
    except StorageError as error:
        complain(KisekiError(f"{error}{saved}"))
        return UNEXPECTED
    except OSError as error:  # what is on the disk stays whole: files are replaced only when they are complete
        where = f"{error.filename}: " if error.filename else ""
        complain(KisekiError(f"{where}{error.strerror or error}{saved}"))
        go_dark(sys.stdout)  # it may have been the screen
        return UNEXPECTED
    except KisekiError as error:
        complain(error)
        return UNEXPECTED


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0
    if arguments[0] in ("-V", "--version"):
        sys.stdout.write(f"kiseki {__version__}\n")
        return 0
    name = arguments[0]
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean {close[0]}?" if close else f"the commands are {', '.join(COMMANDS)}"
        raise UsageError(f"unknown command {name!r}; {hint}")
    load_keys(Path())
    module = importlib.import_module(f"kiseki.commands.{name.replace('-', '_')}")
    try:
        status: int = module.main(arguments[1:])
    except SystemExit:  # how argparse ends after --help
        return 0
    return status


def _stop_in_order() -> None:
    """SIGTERM and the end of the terminal stop a command as Ctrl-C does; what was ignored at its start (`nohup`) stays so."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


def _help() -> str:
    lines = [f"  {name:<14}{does}" for name, does in COMMANDS.items()]
    return "\n".join(
        [
            f"Kiseki {__version__}: a file of prompts in, a dataset of tool-using agent trajectories out.",
            "",
            "usage: kiseki COMMAND [FLAGS]",
            "",
            *lines,
            "",
            "kiseki COMMAND --help explains its flags. A first run, without any key:",
            "  kiseki batch --dataset_file=examples/prompts.jsonl --batch_size=5 --run_name=first --model=builtin/practice",
            "",
        ]
    )
