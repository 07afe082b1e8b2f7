"""`kiseki sample` (`scripts/sample_and_compress.py`): long trajectories of several datasets → one compressed file."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kiseki.commands.display import make_console
from kiseki.commands.flags import Parser, at_least, names, one_of
from kiseki.commands.shared_flags import add_summary_flags
from kiseki.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from kiseki.compress.config import CompressionConfig
    from kiseki.sampling.folder import Part, Saved, Tally
    from kiseki.sampling.job import SampleJob

DATASETS = (
    "NousResearch/swe-terminus-agent-glm-kimi-minimax",
    "NousResearch/hermes-agent-megascience-sft1",
    "NousResearch/Hermes-Agent-Thinking-GLM-4.7-SFT2",
    "NousResearch/Hermes-Agent-Thinking-GLM-4.7-SFT1",
    "NousResearch/terminal-tasks-glm-hermes-agent",
)
PLAIN_SECONDS = 5.0
"""Between two lines where stdout is no terminal."""

EPILOG = """\
examples:
  kiseki sample --total_samples=500 --strategy=ladder
  kiseki sample --datasets=org/one,org/two:train,more.jsonl --output_name=mixed --min_tokens=20000 --config=compression.yaml
  kiseki sample --output_name=mixed --skip_download --strategy=ladder

The same command goes on where it was interrupted. The raw sample stays in data/OUTPUT_NAME_raw/.

exit status: 0 done; 2 unusable arguments or input; 3 a summary could not be had (the same command tries again);
130 interrupted (what is done is kept); 1 anything unexpected"""


def _name(text: str) -> str:
    if not text.strip() or text in (".", "..") or Path(text).name != text:
        raise ValueError("it must be a name, without a folder")
    return text


def build_parser(prog: str = "kiseki sample") -> Parser:
    words = "Draw long trajectories from several datasets and compress them into one file."
    parser = Parser(prog, words, EPILOG)
    flag, switch = parser.flag, parser.switch
    draw = parser.add_argument_group("the sample")
    words = (
        "comma-separated: ORG/NAME[:CONFIG][:SPLIT][@REVISION] of the Hugging Face Hub, local folders, files (.jsonl, .jsonl.gz,"
        " .jsonl.zst, .parquet) (default: five agent datasets of NousResearch)"
    )
    flag(draw, "datasets", names, words)
    flag(draw, "total_samples", at_least(1), "trajectories in all; each dataset gives an equal share if it can (default: 2500)")
    flag(draw, "min_tokens", at_least(0), "leave shorter ones out (default: 16000)")
    flag(draw, "seed", int, "of the draw: the same seed takes the same rows (default: 42)")
    files = parser.add_argument_group("files")
    flag(files, "output_name", _name, "the result is data/OUTPUT_NAME.jsonl", "compressed_agentic")
    flag(files, "output_dir", str, "folder of the result", "data")
    switch(files, "skip_download", "compress the finished raw sample that is there; flags of the sample only have to fit it")
    how = parser.add_argument_group("compression (kiseki compress --help explains it)")
    flag(how, "config", str, "YAML with its settings")
    flag(how, "strategy", one_of("summary", "ladder", "segment"), "summary, ladder or segment (default: summary)")
    flag(how, "target_max_tokens", at_least(1), "tokens that a trajectory may have (default: 15250)")
    flag(how, "tokenizer", str, "what counts tokens, also those of --min_tokens (default: bundled)")
    add_summary_flags(parser)
    work = parser.add_argument_group("running it")
    flag(work, "num_proc", at_least(1), "processes that count tokens, never more than there are cores", 8)
    flag(work, "batch_size", at_least(1), "rows that a process gets at once, and after which a download can go on", 100)
    return parser


def main(argv: Sequence[str], prog: str = "kiseki sample") -> int:
    return _run(build_parser(prog).parse(argv))


def _run(flags: argparse.Namespace) -> int:
    from rich.text import Text

    from kiseki.compress.config import read_config
    from kiseki.compress.job.job import CompressionJob
    from kiseki.compress.job.run import run_compression
    from kiseki.sampling.draw import draw_sample
    from kiseki.sampling.folder import SAMPLE
    from kiseki.sampling.job import SampleJob
    from kiseki.sampling.result import check_result, files_of

    if flags.datasets == ():
        raise UsageError("--datasets names none")
    config = read_config(
        Path(flags.config) if flags.config else None,
        strategy=flags.strategy,
        target_max_tokens=flags.target_max_tokens,
        tokenizer=flags.tokenizer,
    )
    folder = Path(flags.output_dir) / f"{flags.output_name}_raw"
    result = Path(flags.output_dir) / f"{flags.output_name}.jsonl"
    check_result(result, folder, config.metrics_file)
    console = make_console()
    if flags.skip_download:
        saved = _finished(flags, config, folder, console)
        parts, total, least = saved.parts, saved.settings["total_samples"], saved.settings["min_tokens"]
    else:
        given = {name: value for name in ("total_samples", "seed", "min_tokens") if (value := getattr(flags, name)) is not None}
        job = SampleJob(
            flags.datasets or DATASETS,
            folder,
            files_of(result, config.metrics_file),
            batch_size=flags.batch_size,
            num_proc=flags.num_proc,
            **given,
        )
        _check_summarizer(config, job.min_tokens)
        with _progress(console, job) as (watch, note):
            parts = draw_sample(job, config, watch, note)
        total, least = job.total_samples, job.min_tokens
    _print_parts(console, total, least, parts)
    console.print(Text(f"raw sample: {folder / SAMPLE}"), soft_wrap=True)
    limits = {"max_cost": flags.max_cost, "max_total_tokens": flags.max_total_tokens, "prices": flags.prices}
    return run_compression(CompressionJob(folder / SAMPLE, result, **limits), config, console)


def _finished(flags: argparse.Namespace, config: CompressionConfig, folder: Path, console: Console) -> Saved:
    """The raw sample that is there, made as those flags say that were given."""
    from kiseki.sampling.resume import find_finished, tokenizer_settings
    from kiseki.trajectory.tokens import find_tokenizer

    asked: dict[str, object] = {"datasets": list(flags.datasets)} if flags.datasets else {}
    asked |= {name: value for name in ("total_samples", "min_tokens") if (value := getattr(flags, name)) is not None}
    asked |= {"seed": str(flags.seed)} if flags.seed is not None else {}
    if flags.tokenizer:
        trust = config.trust_remote_code
        found = find_tokenizer(flags.tokenizer, trust_remote_code=trust, warn=lambda words: _note(console, words))
        asked |= tokenizer_settings(found)
    saved = find_finished(folder, asked)
    _check_summarizer(config, saved.settings["min_tokens"])
    return saved


def _check_summarizer(config: CompressionConfig, min_tokens: int) -> None:
    """Where every row will need a summary: what would keep it from having one is said now."""
    from kiseki.compress.summarizer import check_summarizer

    if config.strategy == "summary" and min_tokens > config.target_max_tokens:
        check_summarizer(config, os.environ)


def _note(console: Console, words: str) -> None:
    from rich.text import Text

    console.print(Text(words), style="yellow", soft_wrap=True)


@contextmanager
def _progress(console: Console, job: SampleJob) -> Iterator[tuple[Callable[[int, Tally], None], Callable[[str], None]]]:
    """A line for each dataset that is being read or was; plain lines now and then where the console is no terminal."""
    from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
    from rich.text import Text

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), TextColumn("{task.fields[words]}"))
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal, refresh_per_second=2)
    tasks: dict[int, TaskID] = {}
    due = 0.0

    def watch(at: int, tally: Tally) -> None:
        nonlocal due
        words = f"{tally.rows:,} rows read, {tally.kept:,} in the draw with {tally.tokens:,} tokens"
        if at not in tasks:
            if not tasks:
                bar.start()  # not before: processes are started until then
            for task in tasks.values():
                bar.stop_task(task)
            tasks[at] = bar.add_task(job.datasets[at], total=None, words="")
        bar.update(tasks[at], words=words)
        if not console.is_terminal and time.monotonic() >= due:
            due = time.monotonic() + PLAIN_SECONDS
            console.print(Text(f"{job.datasets[at]}: {words}"), soft_wrap=True)

    try:
        yield watch, lambda words: _note(console, words)
    finally:
        bar.stop()


def _print_parts(console: Console, total: int, least: int, parts: Sequence[Part]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title="the sample, in rows", box=box.SIMPLE, title_justify="left")
    for column in ("dataset", "read", "no trajectory", "too short, of those looked at", "duplicate", "not drawn", "taken"):
        table.add_column(column, justify="left" if column == "dataset" else "right", overflow="fold")
    for part in parts:
        tally = part.tally
        not_drawn = tally.rows - tally.bad - tally.short - tally.duplicates - tally.taken
        counts = (tally.rows, tally.bad, tally.short, tally.duplicates, not_drawn, tally.taken)
        table.add_row(Text(part.source.given), *(f"{each:,}" for each in counts))
    console.print(table)
    for part in parts:
        if part.tally.problem:
            words = f"{part.source.given}: {part.tally.bad:,} rows are no trajectories; the first is {part.tally.problem}"
            _note(console, words)
    taken = sum(part.tally.taken for part in parts)
    if taken < total:
        words = f"the datasets have only {taken:,} of the {total:,} trajectories asked for"
        _note(console, f"{words} that are at least {least:,} tokens long")
