"""`kiseki compress` (`trajectory_compressor.py`): trajectories → within a token budget."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from kiseki.commands.display import make_console
from kiseki.commands.flags import Parser, at_least, one_of
from kiseki.commands.shared_flags import add_summary_flags
from kiseki.errors import UsageError

EPILOG = """\
examples:
  kiseki compress --input=data/my_run --strategy=ladder
  kiseki compress --input=data/trajectories.jsonl --target_max_tokens=16000 --dry_run
  kiseki compress --input=trajectories.jsonl.zst --output=short.jsonl.zst --config=compression.yaml --max_cost=5
  kiseki compress --input=data/my_run --strategy=ladder --show 1

Killed? The same command goes on where it was. What each strategy and setting does: docs/compression.md

exit status: 0 done; 2 unusable arguments or input; 3 a summary could not be had (the row is as it was, the same command tries
again), or, with --strict, a row is still over the target; 130 interrupted (what is done is kept); 1 anything unexpected"""


def _percent(text: str) -> float:
    number = float(at_least(0, float)(text))
    if not 0 < number <= 100:
        raise ValueError("it must be above 0 and at most 100")
    return number


def build_parser(prog: str = "kiseki compress") -> Parser:
    parser = Parser(prog, "Bring trajectories within a token budget, without touching what the model wrote.", EPILOG)
    flag, switch = parser.flag, parser.switch
    files = parser.add_argument_group("what is read and written")
    flag(files, "input", str, "trajectories: .jsonl, .jsonl.gz, .jsonl.zst, .parquet, a folder of such files, or a run's folder")
    flag(files, "output", str, "file or folder (default: the input's name with _compressed)")
    flag(files, "config", str, "YAML with any of the settings below, and the rest of them (docs/compression.md)")
    flag(files, "sample_percent", _percent, "only so many percent of the rows, drawn by --seed (default: all)")
    flag(files, "seed", int, "of that draw", 42)
    switch(files, "strict", "exit status 3 when a row is still over the target")
    how = parser.add_argument_group("how (default: as --config says)")
    flag(how, "target_max_tokens", at_least(1), "tokens that a trajectory may have (default: 15250)")
    words = "summary (a model writes it), ladder (rules, no model), segment (several rows that fit) (default: summary)"
    flag(how, "strategy", one_of("summary", "ladder", "segment"), words)
    words = "where a summary stands: human (a turn of its own), tool (in the tool turn before), first_human (default: human)"
    flag(how, "summary_placement", one_of("human", "tool", "first_human"), words)
    switch(how, "mark_summary", "put loss flags on every turn, off for summaries: train (axolotl), loss (ms-swift)")
    words = (
        "Hugging Face id or folder, a tokenizer.json, tiktoken:ENCODING, or bundled, which needs no network (default: bundled)"
    )
    flag(how, "tokenizer", str, words)
    flag(
        how,
        "count",
        one_of("text", "chat_template"),
        "tokens of the text, or under the chat template (default: text)",
    )
    switch(how, "trust_remote_code", "let the tokenizer's repository run its own code on this machine")
    look = parser.add_argument_group("looking first")
    switch(
        look,
        "dry_run",
        "analyse and write nothing: tokens before and after, what each step touches, summaries",
    )
    flag(look, "plot", str, "FILE.png: tokens before and after as a picture; pip install 'kiseki[plot]'", "")
    flag(look, "show", at_least(1), "print row N (the first is 1) before and after, side by side, and write nothing")
    add_summary_flags(parser)
    parser.set_defaults(mark_summary=None, trust_remote_code=None)  # off where neither the flag nor the file says anything
    return parser


def main(argv: Sequence[str], prog: str = "kiseki compress") -> int:
    flags = build_parser(prog).parse(argv)
    if not flags.input:
        raise UsageError(f"missing --input; {prog} --help shows an example")
    return _run(flags)


def _run(flags: argparse.Namespace) -> int:
    from kiseki.compress.config import CompressionConfig, read_config
    from kiseki.compress.job.job import CompressionJob
    from kiseki.compress.job.run import run_compression

    given = {name: value for name, value in vars(flags).items() if name in CompressionConfig.__struct_fields__}
    config = read_config(Path(flags.config) if flags.config else None, **given)
    own = ("sample_percent", "seed", "dry_run", "plot", "strict", "max_cost", "max_total_tokens", "prices")
    job = CompressionJob(
        Path(flags.input),
        Path(flags.output) if flags.output else None,
        **{name: value for name in own if (value := getattr(flags, name)) is not None},
    )
    console = make_console()
    if flags.show is not None:
        from kiseki.compress.job.show import show_row

        show_row(flags.show, job, config, console)
        return 0
    return run_compression(job, config, console)
