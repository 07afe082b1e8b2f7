"""`kiseki`: finds the subcommand and turns what goes wrong into one line and an exit status.

0 done; 2 unusable arguments or input; 3 finished, but some rollouts failed; 130 interrupted; 1 anything unexpected.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence

from kiseki import __version__
from kiseki.commands.display import go_dark
from kiseki.commands.flags import complain
from kiseki.errors import KisekiError, UsageError

COMMANDS = {
    "batch": "a dataset of prompts → trajectories",
    "agent": "one prompt → one trajectory",
    "merge": "rebuild a run's files from its ledger, with other filters",
    "mock-server": "a model server that injects faults, for trying set-ups",
}
UNUSABLE, UNEXPECTED, INTERRUPTED = 2, 1, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the subcommand in `argv` (default: the process's) and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    resumes = arguments[:1] == ["batch"]  # the others have nothing that --resume would go on with
    try:
        return _dispatch(arguments)
    except UsageError as error:
        complain(error)
        return UNUSABLE
    except KeyboardInterrupt:
        complain(KisekiError("interrupted" + ("; everything that was done is saved, --resume goes on" if resumes else "")))
        return INTERRUPTED
    except BrokenPipeError:
        go_dark(sys.stdout)
        return UNEXPECTED
    except OSError as error:  # what is on the disk stays whole: files are replaced only when they are complete
        where = f"{error.filename}: " if error.filename else ""
        saved = "; what was done before is saved, a run goes on with --resume" if resumes else ""
        complain(KisekiError(f"{where}{error.strerror or error}{saved}"))
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
    module = importlib.import_module(f"kiseki.commands.{name.replace('-', '_')}")
    status: int = module.main(arguments[1:])
    return status


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
