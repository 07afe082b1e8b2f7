"""Every row of the input into the spool: compressed in the processes, summed up by the model where that is wanted."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from kiseki.compress.compressor import Done
from kiseki.compress.config import CompressionConfig
from kiseki.compress.job import pool as workers
from kiseki.compress.job.blocks import Row, blocks_of, each_block, read_rows
from kiseki.compress.job.files import Files
from kiseki.compress.job.job import CompressionJob
from kiseki.compress.job.progress import Progress
from kiseki.compress.job.spool import Result, Spool
from kiseki.compress.summary import Ask, Spending
from kiseki.models.budget import Need

if TYPE_CHECKING:
    from kiseki.compress.summarizer import Summarizer

WAITING_PER_REQUEST = 4
"""Rows that wait for a summary, per request that is made at once."""


async def fill(
    job: CompressionJob, config: CompressionConfig, files: Files, pool: Executor, spool: Spool, progress: Progress
) -> Spending:
    """Get every row that the spool does not have into it; returns what this session's summaries took.

    Raises `UsageError` where a summary cannot be asked for, and `WorkersFailed`; the spool has what was done before.
    """
    summaries = _Summaries(job, config, spool, progress)

    async def do(block: list[Row], tasks: asyncio.TaskGroup) -> None:
        results = await workers.run(pool, workers.begin_rows, [row.text for row in block])
        for row, result in zip(block, results, strict=True):
            if isinstance(result, Ask):
                tasks.create_task(summaries.get(row, result))
            else:
                spool.put(row.number, _result(row, result))
                progress.row(result)
        spool.flush()

    rows = read_rows(job, files, progress)
    try:
        await each_block(blocks_of(rows, lambda row: not spool.has(row.number)), config, do, summaries.room)
    finally:
        spool.flush()
        await summaries.close()
    return summaries.spending


class _Summaries:
    """The rows that wait for a summary."""

    def __init__(self, job: CompressionJob, config: CompressionConfig, spool: Spool, progress: Progress) -> None:
        self._job, self._config = job, config
        self._spool, self._progress = spool, progress
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
            done = workers.finish_row(row.text, ask, answer)  # here, so that no process that dies takes it along
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

    @property
    def spending(self) -> Spending:
        return self._summarizer.spending if self._summarizer else Spending()

    async def close(self) -> None:
        if self._summarizer is not None:
            await self._summarizer.close()


def _result(row: Row, result: Done | workers.Bad, spent: tuple[float, int] = (0.0, 0), *, failed: bool = False) -> Result:
    if isinstance(result, workers.Bad):
        return Result(row.file, row.line, (row.text,), rejected=result.reason)
    return Result(row.file, row.line, result.rows, result.metrics, result.assistant_tokens, spent=spent, failed=failed)
