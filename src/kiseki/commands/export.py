"""`kiseki export`: a run or files of trajectories → what a trainer reads, and a report of what was left out."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from kiseki.commands.display import make_console
from kiseki.commands.flags import Parser, at_least, names, one_of
from kiseki.errors import UsageError
from kiseki.exports.job import COMPRESSIONS, DROPS, MASKS, ExportJob
from kiseki.formats.format import Options
from kiseki.formats.table import FORMATS

EPILOG = """\
formats:
{formats}

examples:
  kiseki export data/my_run --to trl
  kiseki export data/my_run --to messages --only completed --drop=loops,refusals --split train=0.95,val=0.05
  kiseki export data/my_run --to verl --only 'reward>0.5' --max_per_prompt 4 --decontaminate benchmark.jsonl
  kiseki export trajectories.jsonl.zst --to llamafactory --dedup near --out data/for_training
  kiseki export data/my_run --to parquet --out mine.parquet

The run may still go on: what is done is exported, and the same command brings the export up to date.
Beside the data stand report.json (counts, settings) and left_out.jsonl (each example that is not there, and why).
What every option means exactly: docs/exporting.md

exit status: 0 done; 2 unusable arguments or input, or nothing at all to write; 130 interrupted (an earlier export stays as it
was); 1 anything unexpected"""


def several_of(*choices: str) -> Callable[[str], tuple[str, ...]]:
    """A comma-separated list of words out of `choices`."""
    check = one_of(*choices)
    return lambda text: tuple(dict.fromkeys(check(each) for each in names(text)))


def build_parser() -> Parser:
    formats = "\n".join(f"  {name:<14}{does}" for name, does in FORMATS.items())
    parser = Parser("kiseki export", "Write trajectories as a trainer reads them.", EPILOG.format(formats=formats))
    parser.add_argument("source", help="a run's folder, a file of trajectories (ShareGPT or chat messages), or a folder of them")
    flag = parser.flag
    where = parser.add_argument_group("what is written, and where")
    flag(where, "to", one_of(*FORMATS), "the format, see below")
    words = "a folder, or one file: .jsonl, .jsonl.gz, .jsonl.zst, .parquet (default: SOURCE/exports/FORMAT, or beside the file)"
    flag(where, "out", str, words)
    flag(where, "split", str, "parts by prompt, such as train=0.95,val=0.05; samples of a prompt never part", "")
    flag(where, "seed", int, "of the split, and of the draw among equally good samples", 42)
    flag(where, "shard_rows", at_least(1), "rows of a file at most: train-00000-of-00012.jsonl (default: one file)")
    flag(where, "compression", one_of(*COMPRESSIONS), f"of JSON lines: {', '.join(COMPRESSIONS)}", "none")
    which = parser.add_argument_group("which examples")
    words = "completed, partial, reward>0.5 (>=, <, <=, = too); several with commas: all have to hold. Quote < and >"
    flag(which, "only", str, words, "")
    flag(which, "max_per_prompt", at_least(1), "samples of a prompt at most: the best reward first, then by a draw")
    flag(which, "min_turns", at_least(0), "assistant turns at least")
    flag(which, "max_turns", at_least(1), "assistant turns at most")
    words = "leave out what was there before: exact, or near (MinHash; pip install 'kiseki[export]')"
    flag(which, "dedup", one_of("exact", "near"), words)
    words = "leave out what shares 13 words in a row with this benchmark: JSONL, parquet, CSV, text"
    flag(which, "decontaminate", str, words)
    flag(which, "drop", several_of(*DROPS), f"leave out these kinds: {', '.join(DROPS)}", ())
    how = parser.add_argument_group("how rows are written")
    words = "no loss on assistant turns whose call failed (errors), or that stand for a summary (summaries)"
    flag(how, "mask", several_of(*MASKS), words, ())
    words = (
        "a think block for turns without reasoning, in formats that have reasoning in the text (default: the format's own way)"
    )
    flag(how, "empty_think", one_of("keep", "drop"), words)
    words = (
        "make token ids with this tokenizer where none were captured: formats rl (default: leaves those out), atropos (default:"
        " messages alone)"
    )
    flag(how, "retokenize", str, words)
    return parser


def main(argv: Sequence[str]) -> int:
    flags = build_parser().parse(argv)
    if not flags.to:
        raise UsageError(f"missing --to; the formats are {', '.join(FORMATS)}")
    job = job_of(flags)

    from kiseki.exports.export import export
    from kiseki.exports.summary import print_report

    console = make_console()
    print_report(console, export(job, console))
    return 0


def job_of(flags: argparse.Namespace) -> ExportJob:
    same = (
        "to",
        "only",
        "max_per_prompt",
        "min_turns",
        "max_turns",
        "drop",
        "split",
        "seed",
        "mask",
        "shard_rows",
        "compression",
    )
    return ExportJob(
        source=Path(flags.source),
        out=Path(flags.out) if flags.out else None,
        dedup=flags.dedup or "",
        decontaminate=Path(flags.decontaminate) if flags.decontaminate else None,
        options=Options(empty_think=flags.empty_think, retokenize=flags.retokenize or ""),
        **{name: getattr(flags, name) for name in same},
    )
