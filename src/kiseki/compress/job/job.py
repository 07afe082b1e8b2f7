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
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kiseki import __version__
from kiseki.compress.compressor import Done
from kiseki.compress.config import CompressionConfig
from kiseki.compress.job import pool as workers
from kiseki.compress.job.files import Files, find_files
from kiseki.compress.job.output import write_output
from kiseki.compress.job.sampled import sampled
from kiseki.compress.job.spool import Result, Spool
from kiseki.compress.job.totals import Totals
from kiseki.compress.summary import Ask
from kiseki.errors import UsageError
from kiseki.models.budget import Need
from kiseki.trajectory.row_files import read_lines
from kiseki.trajectory.tokens import Tokenizer, find_tokenizer

if TYPE_CHECKING:
    from rich.console import Console

    from kiseki.compress.job.progress import Progress
    from kiseki.compress.summarizer import Summarizer

BLOCK_BYTES = 1 << 20
BLOCK_ROWS = 256
"""A process takes so much at once: enough that handing it over costs nothing, little enough that the last one ends soon."""
SMALL_BYTES = 4 << 20
"""Input for which more than one process is not worth its start."""
BLOCKS_PER_WORKER = 2
WAITING_PER_REQUEST = 4
"""Rows that wait for a summary, per request that is made at once."""

SAME_ROWS = ("num_workers", "max_concurrent_requests", "max_retries", "retry_delay", "per_trajectory_timeout")
"""Settings that do not change what comes out."""

OK, OVER_LIMIT, SOME_FAILED = 0, 3, 3


class CompressionJob(msgspec.Struct, frozen=True):
    """What one run of the compressor reads, writes and may spend."""

    input: Path
    """A file of trajectories, a folder of such files, or a run's folder."""
    output: Path | None = None
    """File or folder. Default: the input's name with the settings' suffix."""
    sample_percent: float = 100.0
    """Only so many percent of the rows, drawn by `seed`. Default: all."""
    seed: int = 42
    dry_run: bool = False
    """Analyse for real, write nothing and ask no model. Default: False."""
    plot: str = ""
    """PNG for the histogram of tokens before and after. Default: none."""
    strict: bool = False
    """Exit status 3 when a row is still over the target. Default: False."""
    max_cost: float | None = None
    """US dollars that the summaries may cost. Default: no limit."""
    max_total_tokens: int | None = None
    """Tokens that the summaries may take, in and out. Default: no limit."""
    prices: str = ""
    """YAML with prices that the endpoint does not list."""


class Row(msgspec.Struct, frozen=True):
    """One row of the input."""

    number: int
    """In the whole job, from 0, among those that were drawn."""
    file: int
    line: int
    text: bytes


def run_compression(job: CompressionJob, config: CompressionConfig, console: Console) -> int:
    """Do the job and print what it did; returns the exit status.

    0 done; 3 a summary could not be had (the row is as it was; the same command tries again), or, with `strict`, a row is still
    over the target. Raises `UsageError` and `DatasetError` for what cannot be used, before anything is written.
    """
    from rich.text import Text

    from kiseki.compress.job.plot import check_plot
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
    pool = workers.open_pool(_worker_count(config, size), tokenizer, config)  # before any thread is started
    try:
        if job.dry_run:
            totals, cost = asyncio.run(_analyse(job, config, files, pool, console))
            print_report(console, totals, config, tokenizer.name, cost=cost)
        else:
            with Spool(files.partial, {"job": fingerprint}) as spool:
                totals = _compress(job, config, files, pool, spool, fingerprint, console)
                print_report(console, totals, config, tokenizer.name)
    finally:
        pool.shutdown(cancel_futures=True)
    if job.plot:
        from kiseki.compress.job.plot import plot_tokens

        plot_tokens(Path(job.plot), totals, config.target_max_tokens)
        console.print(Text(f"plot: {job.plot}"), soft_wrap=True)
    if not job.dry_run:
        console.print(Text(f"compressed: {files.output}"), soft_wrap=True)
    failed = totals.counts["unanswered"]
    if failed:
        note(f"{failed:,} rows are as they were, since their summary could not be had; the same command tries them again")
    return SOME_FAILED if failed else OVER_LIMIT if job.strict and totals.counts["over"] else OK


def _compress(
    job: CompressionJob,
    config: CompressionConfig,
    files: Files,
    pool: Executor,
    spool: Spool,
    fingerprint: dict[str, Any],
    console: Console,
) -> Totals:
    from rich.text import Text

    from kiseki.compress.job.progress import Progress

    if spool.resumed:
        console.print(Text(f"going on: {spool.resumed:,} rows were done before"), soft_wrap=True)
    try:
        with Progress(console, "compressing", sum(target.input.stat().st_size for target in files.targets)) as progress:
            asyncio.run(_fill(job, config, files, pool, spool, progress))
    except UsageError:  # no key, say: nothing was made of the command
        if not spool.paid:
            spool.remove()
        raise
    totals = write_output(files, config, spool.results(), fingerprint, console)
    if spool.failed:
        totals.counts["unanswered"] = spool.failed
        spool.flush()
    else:
        spool.remove()
    return totals


async def _fill(
    job: CompressionJob, config: CompressionConfig, files: Files, pool: Executor, spool: Spool, progress: Progress
) -> None:
    """Get every row that the spool does not have into it."""
    summaries = _Summaries(job, config, pool, spool, progress)
    try:
        blocks = _blocks(_rows(job, files, progress), lambda row: not spool.has(row.number))
        async with asyncio.TaskGroup() as tasks:
            slots = asyncio.Semaphore(_slots(config))

            async def do(block: list[Row]) -> None:
                try:
                    results = await workers.run(pool, workers.begin_rows, [row.text for row in block])
                finally:
                    slots.release()
                for row, result in zip(block, results, strict=True):
                    if isinstance(result, Ask):
                        tasks.create_task(summaries.get(row, result))
                    else:
                        spool.put(row.number, _result(row, result))
                        progress.row(result)
                spool.flush()

            for block in blocks:
                await slots.acquire()
                await summaries.room()
                tasks.create_task(do(block))
    except BaseExceptionGroup as group:
        raise _first(group) from None
    finally:
        spool.flush()
        await summaries.close()


class _Summaries:
    """The rows that wait for a summary."""

    def __init__(self, job: CompressionJob, config: CompressionConfig, pool: Executor, spool: Spool, progress: Progress) -> None:
        self._job, self._config = job, config
        self._pool, self._spool, self._progress = pool, spool, progress
        self._summarizer: Summarizer | None = None
        self._waiting = 0
        self._most = WAITING_PER_REQUEST * config.max_concurrent_requests
        self._less = asyncio.Event()

    async def room(self) -> None:
        """Wait until so few rows wait that more may come."""
        while self._waiting >= self._most:
            self._less.clear()
            await self._less.wait()

    async def get(self, row: Row, ask: Ask) -> None:
        self._waiting += 1
        try:
            summarizer = self._open()
            answer = await summarizer.ask(ask)
            done = await workers.run(self._pool, workers.finish_row, row.text, ask, answer)
        finally:
            self._waiting -= 1
            self._less.set()
        spent = (summarizer.spent.cost, summarizer.spent.tokens)
        self._spool.put(row.number, _result(row, done, spent, failed=bool(answer.error)))
        self._spool.flush()
        self._progress.row(done)

    def _open(self) -> Summarizer:
        """Opened for the first row that needs it, so that no key is needed where none does."""
        if self._summarizer is None:
            from kiseki.compress.summarizer import open_summarizer

            job = self._job
            self._summarizer = open_summarizer(
                self._config,
                os.environ,
                count=lambda text: workers.count_texts([text])[0],
                max_cost=job.max_cost,
                max_total_tokens=job.max_total_tokens,
                prices=job.prices,
                spent=Need(*self._spool.spent),
                on_change=self._progress.note,
            )
        return self._summarizer

    async def close(self) -> None:
        if self._summarizer is not None:
            await self._summarizer.close()


async def _analyse(
    job: CompressionJob, config: CompressionConfig, files: Files, pool: Executor, console: Console
) -> tuple[Totals, dict[str, int]]:
    """What would come of the job, and what its summaries would take: `requests`, `prompt_tokens`, `completion_tokens`."""
    from kiseki.compress.job.progress import Progress

    totals, cost = Totals(), {"requests": 0, "prompt_tokens": 0, "completion_tokens": 0}
    slots = asyncio.Semaphore(_slots(config))

    async def do(block: list[Row]) -> None:
        try:
            results = await workers.run(pool, workers.begin_rows, [row.text for row in block])
            asks = [result for result in results if isinstance(result, Ask)]
            counted = await workers.run(pool, workers.count_texts, [ask.request for ask in asks]) if asks else []
        finally:
            slots.release()
        cost["requests"] += len(asks)
        cost["prompt_tokens"] += sum(counted)
        cost["completion_tokens"] += len(asks) * config.summary_target_tokens
        for result in results:
            if isinstance(result, workers.Bad):
                totals.reject()
            elif isinstance(result, Ask):
                totals.add([result.estimate], result.assistant_tokens)
            else:
                totals.add(result.metrics, result.assistant_tokens)
            progress.row(result)

    with Progress(console, "analysing", sum(target.input.stat().st_size for target in files.targets)) as progress:
        try:
            async with asyncio.TaskGroup() as tasks:
                for block in _blocks(_rows(job, files, progress), lambda row: True):
                    await slots.acquire()
                    tasks.create_task(do(block))
        except BaseExceptionGroup as group:
            raise _first(group) from None
    return totals, cost


def _rows(job: CompressionJob, files: Files, progress: Progress) -> Iterator[Row]:
    number = 0
    position = 0
    for file, target in enumerate(files.targets):
        progress.at(position)
        reader = read_lines(target.input)
        for line, text in reader:
            if sampled(number, job.sample_percent, job.seed):
                yield Row(number, file, line, text)
            number += 1
            progress.at(position + reader.position)
        position += target.input.stat().st_size


def _blocks(rows: Iterator[Row], wanted: Callable[[Row], bool]) -> Iterator[list[Row]]:
    block: list[Row] = []
    size = 0
    for row in rows:
        if not wanted(row):
            continue
        block.append(row)
        size += len(row.text)
        if size >= BLOCK_BYTES or len(block) >= BLOCK_ROWS:
            yield block
            block, size = [], 0
    if block:
        yield block


def _result(row: Row, result: Done | workers.Bad, spent: tuple[float, int] = (0.0, 0), *, failed: bool = False) -> Result:
    if isinstance(result, workers.Bad):
        return Result(row.file, row.line, (row.text,), rejected=result.reason)
    return Result(row.file, row.line, result.rows, result.metrics, result.assistant_tokens, spent=spent, failed=failed)


def _slots(config: CompressionConfig) -> int:
    return BLOCKS_PER_WORKER * (config.num_workers or len(os.sched_getaffinity(0)))


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


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one that the user is told of: an unusable setting before what it made of others."""
    flat: list[BaseException] = []

    def collect(error: BaseException) -> None:
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                collect(each)
        else:
            flat.append(error)

    collect(group)
    return next((error for error in flat if isinstance(error, UsageError)), flat[0])
