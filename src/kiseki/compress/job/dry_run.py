"""What would come of a job: every row is read, counted and compressed, and nothing is written or paid for."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

import msgspec

from kiseki.compress.config import CompressionConfig
from kiseki.compress.job import pool as workers
from kiseki.compress.job.blocks import Row, blocks_of, each_block, read_rows
from kiseki.compress.job.files import Files
from kiseki.compress.job.job import CompressionJob
from kiseki.compress.job.progress import Progress
from kiseki.compress.job.totals import Totals
from kiseki.compress.summary import Ask
from kiseki.models.endpoints import ModelSettings
from kiseki.models.spending import find_price


class SummaryCost(msgspec.Struct):
    """What the summaries would take."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float | None = None
    """None where the price is not known."""


async def analyse(
    job: CompressionJob, config: CompressionConfig, files: Files, pool: Executor, progress: Progress, totals: Totals
) -> SummaryCost:
    """Counts in `totals` what would come of the job, with summaries as long as they should be; what these would take."""
    cost = SummaryCost()

    async def do(block: list[Row], tasks: asyncio.TaskGroup) -> None:
        results = await workers.run(pool, workers.begin_rows, [row.text for row in block])
        requests = [result.request for result in results if isinstance(result, Ask)]
        counted = await workers.run(pool, workers.count_texts, requests) if requests else []
        cost.requests += len(requests)
        cost.prompt_tokens += sum(counted)
        cost.completion_tokens += len(requests) * config.summary_target_tokens
        for result in results:
            if isinstance(result, workers.Bad):
                totals.reject()
            elif isinstance(result, Ask):
                totals.add([result.estimate], result.assistant_tokens)
            else:
                totals.add(result.metrics, result.assistant_tokens)
            progress.row(result)

    async def room() -> None:
        pass

    await each_block(blocks_of(read_rows(job, files, progress), lambda row: True), config, do, room)
    if cost.requests:
        price = find_price(ModelSettings(config.model, config.base_url), job.prices)
        if price is not None:
            cost.dollars = price.of(cost.prompt_tokens, cost.completion_tokens) + (cost.requests - 1) * price.request
    return cost
