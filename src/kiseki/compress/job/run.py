"""Files of trajectories → files of compressed trajectories.

```
lines ──▶ blocks ──▶ processes (read, count, compress) ──▶ spool ──▶ output files, in the order of the input
                        │  a row that needs a summary        ▲
                        └──▶ summariser ─────────────────────┘
```
Everything is bounded: blocks under way, rows that wait for a summary. Rows are finished in any order; the spool keeps them, and
survives this process. The output appears when it is whole, by a rename.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kiseki import __version__
from kiseki.compress.config import CompressionConfig
from kiseki.compress.job import pool as workers
from kiseki.compress.job.dry_run import analyse
from kiseki.compress.job.files import Files, find_files
from kiseki.compress.job.fill import fill
from kiseki.compress.job.job import CompressionJob
from kiseki.compress.job.output import read_made, read_totals, write_output
from kiseki.compress.job.spool import Spool
from kiseki.compress.job.totals import Totals
from kiseki.errors import UsageError
from kiseki.trajectory.tokens import Tokenizer, find_tokenizer

if TYPE_CHECKING:
    from rich.console import Console

SMALL_BYTES = 4 << 20
"""Input for which more than one process is not worth its start."""
SAME_ROWS = ("num_workers", "max_concurrent_requests", "max_retries", "retry_delay", "per_trajectory_timeout")
"""Settings that do not change what comes out."""
OK, OVER_LIMIT, SOME_FAILED = 0, 3, 3


def run_compression(job: CompressionJob, config: CompressionConfig, console: Console) -> int:
    """Do the job and print what it did; returns the exit status.

    0 done; 3 a summary could not be had (the row is as it was; the same command tries again), or, with `strict`, a row is still
    over the target. Raises `UsageError` and `DatasetError` for what cannot be used, before anything is written.
    """
    from rich.text import Text

    from kiseki.compress.job.plot import check_plot, plot_tokens
    from kiseki.compress.job.progress import Progress
    from kiseki.compress.job.report import print_report, print_spending

    def note(words: str) -> None:
        console.print(Text(words), style="yellow", soft_wrap=True)

    if job.plot:
        check_plot(job.plot)
    files = find_files(job.input, job.output, config, note)
    if files.in_place and job.sample_percent < 100 and not job.dry_run:
        raise UsageError("--sample_percent with --output=--input would leave a part of the input only; give another --output")
    tokenizer = find_tokenizer(
        config.tokenizer, trust_remote_code=config.trust_remote_code, chat_template=config.count == "chat_template", warn=note
    )
    fingerprint = _fingerprint(job, config, files, tokenizer)
    if not job.dry_run and (made := read_made(files, fingerprint)):
        if job.plot:
            plot_tokens(Path(job.plot), read_totals(files), config.target_max_tokens)
        console.print(Text(f"{files.output} is there already, made of this input with these settings"), soft_wrap=True)
        return OVER_LIMIT if job.strict and made.over else OK
    totals, unanswered = Totals(), 0
    pool = workers.open_pool(_worker_count(config, files.size), tokenizer, config)
    try:
        if job.dry_run:
            with Progress(console, "analysing", files.size) as progress:
                cost = asyncio.run(analyse(job, config, files, pool, progress, totals))
            print_report(console, totals, config, tokenizer.name, cost)
        else:
            with Spool(files.partial, {"job": fingerprint}) as spool:
                if spool.resumed:
                    console.print(Text(f"going on: {spool.resumed:,} rows were done before"), soft_wrap=True)
                with Progress(console, "compressing", files.size) as progress, _nothing_left_behind(spool):
                    spending = asyncio.run(fill(job, config, files, pool, spool, progress))
                with _nothing_left_behind(spool):
                    write_output(files, config, spool.results(), fingerprint, totals, spool.writing)
                unanswered = spool.failed
                if not unanswered or files.in_place:  # in place, the rows themselves say which have none
                    spool.remove()
            print_report(console, totals, config, tokenizer.name)
            print_spending(console, spending)
    finally:
        pool.shutdown(cancel_futures=True)
    if job.plot:
        plot_tokens(Path(job.plot), totals, config.target_max_tokens)
        console.print(Text(f"plot: {job.plot}"), soft_wrap=True)
    if not job.dry_run:
        console.print(Text(f"compressed: {files.output}"), soft_wrap=True)
    if unanswered:
        rows = "1 row is as it was, since its" if unanswered == 1 else f"{unanswered:,} rows are as they were, since their"
        note(f"{rows} summary could not be had; the same command tries again")
    return SOME_FAILED if unanswered else OVER_LIMIT if job.strict and totals.counts["over"] else OK


@contextmanager
def _nothing_left_behind(spool: Spool) -> Iterator[None]:
    """Where the command turns out to be of no use (no key, no trajectory), and nothing was paid for, it leaves nothing."""
    try:
        yield
    except UsageError:
        if not spool.has_summaries:
            spool.remove()
        raise


def _worker_count(config: CompressionConfig, size: int) -> int:
    if config.num_workers:
        return config.num_workers
    return 1 if size < SMALL_BYTES else len(os.sched_getaffinity(0))


def _fingerprint(job: CompressionJob, config: CompressionConfig, files: Files, tokenizer: Tokenizer) -> dict[str, Any]:
    """What makes the output what it is: input as it stands, settings, version."""
    stats = [(target.input, target.input.stat()) for target in files.targets]
    settings = msgspec.to_builtins(config)
    for name in SAME_ROWS:
        del settings[name]
    return {
        "kiseki": __version__,
        "input": [[str(path.resolve()), stat.st_size, stat.st_mtime_ns] for path, stat in stats],
        "settings": settings,
        "tokenizer": tokenizer.name,
        "tokenizer_version": tokenizer.version,
        "sample": [job.sample_percent, job.seed],
    }
