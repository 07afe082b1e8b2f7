"""Files of trajectories → files of compressed trajectories.

```
lines ──▶ blocks ──▶ processes (read, count, compress) ──▶ spool ──▶ output files, in the order of the input
                        │  a row that needs a summary        ▲
                        └──▶ summariser ──▶ processes ───────┘
```
Everything is bounded: blocks under way, rows that wait for a summary. Rows are finished in any order; the spool keeps them, and
survives this process. The output appears when it is whole, by a rename.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Executor
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
from kiseki.compress.job.output import write_output
from kiseki.compress.job.spool import Spool
from kiseki.errors import UsageError
from kiseki.trajectory.tokens import Tokenizer, find_tokenizer

if TYPE_CHECKING:
    from rich.console import Console

    from kiseki.compress.job.progress import Progress

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
    from kiseki.compress.job.report import print_report

    def note(words: str) -> None:
        console.print(Text(words), style="yellow", soft_wrap=True)

    if job.plot:
        check_plot(job.plot)
    files = find_files(job.input, job.output, config.output_suffix, config.metrics_file, note)
    tokenizer = find_tokenizer(
        config.tokenizer, trust_remote_code=config.trust_remote_code, chat_template=config.count == "chat_template", warn=note
    )
    size = sum(target.input.stat().st_size for target in files.targets)
    fingerprint = _fingerprint(job, config, files, tokenizer)
    if not job.dry_run and _is_there(files, fingerprint):
        console.print(Text(f"{files.output} is there already, made of this input with these settings"), soft_wrap=True)
        return OK
    unanswered = 0
    pool = workers.open_pool(_worker_count(config, size), tokenizer, config)  # before any thread is started
    try:
        if job.dry_run:
            with Progress(console, "analysing", size) as progress:
                totals, cost = asyncio.run(analyse(job, config, files, pool, progress))
            print_report(console, totals, config, tokenizer.name, cost)
        else:
            with Spool(files.partial, {"job": fingerprint}) as spool:
                if spool.resumed:
                    console.print(Text(f"going on: {spool.resumed:,} rows were done before"), soft_wrap=True)
                with Progress(console, "compressing", size) as progress:
                    _fill(job, config, files, pool, spool, progress)
                totals = write_output(files, config, spool.results(), fingerprint)
                unanswered = spool.failed
                if not unanswered:
                    spool.remove()
                print_report(console, totals, config, tokenizer.name)
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


def _fill(job: CompressionJob, config: CompressionConfig, files: Files, pool: Executor, spool: Spool, progress: Progress) -> None:
    try:
        asyncio.run(fill(job, config, files, pool, spool, progress))
    except UsageError:  # no key, say: nothing was made of the command
        if not spool.paid:
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


def _is_there(files: Files, fingerprint: dict[str, Any]) -> bool:
    """Whether the whole output was made of this input with these settings, and stands as it was made."""
    if files.partial.exists() or not files.metrics.exists():
        return False
    try:
        made = msgspec.json.decode(files.metrics.read_bytes())["processing"]
        outputs = made["outputs"]
        return bool(made["job"] == msgspec.to_builtins(fingerprint)) and all(
            Path(each["path"]).stat().st_size == each["bytes"] for each in outputs
        )
    except (msgspec.DecodeError, KeyError, TypeError, OSError):
        return False
