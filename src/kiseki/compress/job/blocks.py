"""The input as blocks of rows, and what bounds how many are under way."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator

import msgspec

from kiseki.compress.config import CompressionConfig
from kiseki.compress.job.files import Files
from kiseki.compress.job.job import CompressionJob
from kiseki.compress.job.progress import Progress
from kiseki.compress.job.sampled import sampled
from kiseki.errors import UsageError, WorkersFailed
from kiseki.trajectory.row_files import read_lines

BLOCK_BYTES = 1 << 20
BLOCK_ROWS = 256
"""A process takes so much at once: enough that handing it over costs nothing, little enough that the last one ends soon."""
BLOCKS_PER_WORKER = 2


class Row(msgspec.Struct, frozen=True):
    """One row of the input."""

    number: int
    """In the whole job, from 0, those that are not drawn included."""
    file: int
    line: int
    text: bytes


async def each_block(
    blocks: Iterator[list[Row]],
    config: CompressionConfig,
    do: Callable[[list[Row], asyncio.TaskGroup], Awaitable[None]],
    room: Callable[[], Awaitable[None]],
) -> None:
    """`do` every block, two for each process at once; `room` is waited for before each. `do` may start more tasks in the group
    that it is given. Raises what one of them raised; when processes died (`WorkersFailed`), after those tasks are done."""
    died: list[WorkersFailed] = []
    slots = asyncio.Semaphore(BLOCKS_PER_WORKER * (config.num_workers or len(os.sched_getaffinity(0))))
    try:
        async with asyncio.TaskGroup() as tasks:

            async def in_slot(block: list[Row]) -> None:
                try:
                    await do(block, tasks)
                except WorkersFailed as error:
                    died.append(error)
                finally:
                    slots.release()

            for block in blocks:
                await slots.acquire()
                await room()
                if died:
                    break
                tasks.create_task(in_slot(block))
    except BaseExceptionGroup as group:
        raise _first(group) from None
    if died:
        raise died[0]


def read_rows(job: CompressionJob, files: Files, progress: Progress) -> Iterator[Row]:
    """The drawn rows of all files, in order; `progress` is told where the reading is."""
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


def blocks_of(rows: Iterator[Row], wanted: Callable[[Row], bool]) -> Iterator[list[Row]]:
    """The wanted rows, in blocks."""
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
