"""`kiseki push`: a run → a dataset on the Hugging Face Hub, with a card that says how it was made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kiseki.commands.display import make_console
from kiseki.commands.flags import Parser
from kiseki.errors import UsageError

EPILOG = """\
examples:
  kiseki push my-org/my-traces --run data/my_run
  kiseki push my-org/my-traces --run data/my_run --redact

The token is HF_TOKEN or that of `hf auth login`; HF_ENDPOINT names another Hub. A push that was interrupted goes on with the
same command: what is there already is not sent again.

exit status: 0 pushed, or nothing new; 2 refused, by the Hub too, with nothing changed there; 130 interrupted; 1 the Hub cannot be
reached or fails"""


def build_parser() -> Parser:
    parser = Parser(
        "kiseki push",
        "Push a run's dataset to the Hugging Face Hub in one commit, with a dataset card. The repository is made, private,\n"
        "where it is not there; one that holds anything else is left alone. Everything is checked for secrets first.",
        EPILOG,
    )
    parser.add_argument("repository", metavar="ORG/NAME", help="the dataset on the Hub")
    group = parser.add_argument_group("what is pushed")
    parser.flag(group, "run", str, "the run's folder, such as data/my_run")
    words = "only the batches that are finished, while the run goes on (batch --push_every does it)"
    parser.switch(group, "checkpoint", words)
    words = "format of kiseki export, such as messages or trl (default: the rows of trajectories.jsonl)"
    parser.flag(group, "to", str, words, "")
    parser.flag(group, "split", str, "splits with their shares, as train=0.95,val=0.05; needs --to (default: all in train)", "")
    parser.flag(group, "seed", int, "of that split", 42)
    parser.switch(group, "redact", "replace secrets by markers in what is pushed, instead of refusing to push")
    parser.switch(group, "public", "everybody may see it (default: private)")
    return parser


def main(argv: Sequence[str]) -> int:
    flags = build_parser().parse(argv)
    if flags.run is None:
        raise UsageError(f"missing --run: kiseki push {flags.repository} --run data/my_run")
    if flags.split and not flags.to:
        raise UsageError("--split needs --to, the format that is split: --to=sharegpt is the one of trajectories.jsonl")
    if flags.to and flags.checkpoint:
        raise UsageError("--checkpoint pushes the batch files as they are: leave out --to")

    from kiseki.hub.push import print_pushed, push_run

    console = make_console()
    pushed = push_run(
        Path(flags.run),
        flags.repository,
        console,
        public=flags.public,
        redact=flags.redact,
        checkpoint=flags.checkpoint,
        to=flags.to,
        split=flags.split,
        seed=flags.seed,
    )
    print_pushed(console, pushed)
    return 0
