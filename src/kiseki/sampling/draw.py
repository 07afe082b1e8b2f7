"""Long trajectories of several datasets → one file: a sample that the seed and the rows alone decide.

Every conversation has a priority, a hash of the seed and what it says; the smallest win. So the same seed gives the same rows,
whatever the number of processes, the order of the rows, and however often the download was interrupted; and the same
conversation is known again in another dataset, as long as the first one is in the draw: what fell out of it is not remembered.

```
datasets ──▶ chunks ──▶ processes (read, hash, count tokens) ──▶ reservoirs, one per dataset ──▶ sample.jsonl
```
Each dataset fills a reservoir that would do for the whole sample, and gives an equal share of it; what one cannot give, the
others do. All is kept in one folder, and `progress.json` in it says how far each dataset was read.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any

import msgspec

from kiseki.compress.config import CompressionConfig
from kiseki.compress.job.pool import open_pool
from kiseki.compress.rows import read_trajectory
from kiseki.errors import DatasetError, UsageError, WorkersFailed
from kiseki.sampling.folder import SAMPLE, Part, Saved, Tally, clear_reservoirs, locked, part_path, save
from kiseki.sampling.job import SampleJob
from kiseki.sampling.judging import Verdict, count_row, judge
from kiseki.sampling.one_schema import Schema
from kiseki.sampling.reservoir import Reservoir
from kiseki.sampling.resume import Note, begin, settings_of
from kiseki.sampling.sources import Chunk, read_chunks
from kiseki.trajectory.row_writers import open_writer
from kiseki.trajectory.tokens import find_tokenizer

SAVE_SECONDS = 3.0
"""How much of a download a kill may take."""
WRITTEN_AT_ONCE = 64
"""Rows of the sample that are in memory at once."""
SOURCE_COLUMN, TOKENS_COLUMN = "_source_dataset", "_original_tokens"
OWN_COLUMNS = (SOURCE_COLUMN, TOKENS_COLUMN)
DIED = (
    "a process that counts tokens died (out of memory?); what was read is kept, the same command goes on from there"
    " (a smaller --num_proc or --batch_size needs less memory)"
)
Watch = Callable[[int, Tally], None]


def draw_sample(job: SampleJob, config: CompressionConfig, watch: Watch, note: Note) -> list[Part]:
    """Fill `sample.jsonl` in the job's folder, going on with what is there of the same job; returns the datasets with their
    tallies. A finished one is left as it is.

    Rows have all columns of their own, `_source_dataset` and `_original_tokens`. `watch` is told of each dataset's progress,
    `note` of what the user wants to know. Raises `UsageError`, `DatasetError` (also where no row can be taken) and
    `WorkersFailed`.
    """
    if doubled := sorted({each for each in job.datasets if job.datasets.count(each) > 1}):
        raise UsageError(f"--datasets names {', '.join(doubled)} more than once")
    tokenizer = find_tokenizer(
        config.tokenizer, trust_remote_code=config.trust_remote_code, chat_template=config.count == "chat_template", warn=note
    )
    job.folder.mkdir(parents=True, exist_ok=True)
    # before any thread is started, and before the lock, which its processes would hold too
    pool = open_pool(_workers(job), tokenizer, config)
    try:
        with locked(job.folder):
            saved = begin(job, settings_of(job, tokenizer), note)
            if not saved.complete:
                _fill(job, saved, pool, watch, note)
            clear_reservoirs(job.folder)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return saved.parts


def _workers(job: SampleJob) -> int:
    return min(job.num_proc, len(os.sched_getaffinity(0)))


def shares(available: list[int], total: int) -> list[int]:
    """How many rows of each dataset are taken: equally many, but no more than it has; what one lacks falls to the others, and
    what cannot be divided to those that have most."""
    given = [0] * len(available)
    left = total
    order = sorted(range(len(available)), key=lambda at: available[at])
    for rank, at in enumerate(order):
        given[at] = min(available[at], left // (len(order) - rank))
        left -= given[at]
    return given


# ---- drawing ----------------------------------------------------------------------------------------------------------


def _fill(job: SampleJob, saved: Saved, pool: Executor, watch: Watch, note: Note) -> None:
    reservoirs: list[Reservoir] = []
    try:
        for at, part in enumerate(saved.parts):
            reservoir = _open_reservoir(job, at, part)
            reservoirs.append(reservoir)
            if not part.done:
                _read(job, saved, at, reservoirs, pool, watch, note)
        _write_sample(job, saved, reservoirs, pool, note)
    finally:
        for reservoir in reservoirs:
            reservoir.close()


def _open_reservoir(job: SampleJob, at: int, part: Part) -> Reservoir:
    try:
        return Reservoir(part_path(job.folder, at), job.total_samples, part.records)
    except ValueError as error:
        raise DatasetError(f"{error}: delete {job.folder} to draw the sample afresh") from None


def _read(job: SampleJob, saved: Saved, at: int, reservoirs: list[Reservoir], pool: Executor, watch: Watch, note: Note) -> None:
    """One dataset from where it was left into its reservoir, which is the last one."""
    part, reservoir = saved.parts[at], reservoirs[-1]
    chunks = read_chunks(part.source, part.position, job.batch_size, note, done=part.tally.rows)
    save_due = 0.0
    try:
        for chunk, verdicts in _judged(chunks, job, reservoir, pool):
            tally = _weigh(chunk, verdicts, part.tally, reservoirs, job.min_tokens)
            part = saved.parts[at] = Part(part.source, tally, chunk.position, reservoir.records)
            watch(at, tally)
            if time.monotonic() >= save_due:
                reservoir.sync()
                save(job.folder, saved)
                save_due = time.monotonic() + SAVE_SECONDS
    except BaseException:
        with suppress(OSError):  # of a disk that is full
            reservoir.sync()
            save(job.folder, saved)
        raise
    saved.parts[at] = msgspec.structs.replace(part, done=True)
    reservoir.sync()
    save(job.folder, saved)


def _judged(
    chunks: Iterator[Chunk], job: SampleJob, reservoir: Reservoir, pool: Executor
) -> Iterator[tuple[Chunk, list[Verdict]]]:
    """The chunks in their order, with what the processes say of their rows."""
    from concurrent.futures.process import BrokenProcessPool

    waiting: deque[tuple[Chunk, Future[list[Verdict]]]] = deque()
    problem: DatasetError | None = None
    try:
        try:
            for chunk in chunks:
                waiting.append((chunk, pool.submit(judge, chunk.rows, reservoir.reach, job.seed, job.min_tokens)))
                while waiting and (len(waiting) > _workers(job) or waiting[0][1].done()):
                    first, judged = waiting.popleft()
                    yield first, judged.result()
        except DatasetError as error:  # what was read before it is kept
            problem = error
        for first, judged in waiting:
            yield first, judged.result()
    except BrokenProcessPool:
        raise WorkersFailed(DIED) from None
    if problem:
        raise problem


def _weigh(chunk: Chunk, verdicts: list[Verdict], tally: Tally, reservoirs: list[Reservoir], min_tokens: int) -> Tally:
    """The chunk's rows into the last reservoir, or not; the tally after them. In the order of the rows, so that it depends on
    nothing else."""
    reservoir = reservoirs[-1]
    counts = {"bad": tally.bad, "passed": tally.passed, "short": tally.short, "duplicates": tally.duplicates}
    problem = tally.problem
    for number, (row, verdict) in enumerate(zip(chunk.rows, verdicts, strict=True), tally.rows + 1):
        if isinstance(verdict, str):
            counts["bad"] += 1
            problem = problem or f"row {number}: {verdict}"
            continue
        priority, tokens = verdict
        if any(priority in each.entries for each in reservoirs):
            counts["duplicates"] += 1
        elif priority >= reservoir.reach:
            counts["passed"] += 1
        elif tokens < min_tokens:
            counts["short"] += 1
        else:
            reservoir.add(priority, row, tokens)
    rows = tally.rows + len(chunk.rows)
    return Tally(rows=rows, kept=len(reservoir.entries), tokens=reservoir.tokens, problem=problem, **counts)


# ---- the sample -------------------------------------------------------------------------------------------------------


def _write_sample(job: SampleJob, saved: Saved, reservoirs: list[Reservoir], pool: Executor, note: Note) -> None:
    taken = shares([len(each.entries) for each in reservoirs], job.total_samples)
    if not any(taken):
        raise _nothing(job, saved.parts)
    drawn = sorted(
        (priority, at) for at, reservoir in enumerate(reservoirs) for priority in sorted(reservoir.entries)[: taken[at]]
    )
    schema = Schema()
    telling = {priority for priority, at in drawn if schema.learn(read_trajectory(reservoirs[at].row(priority)))}
    drawn.sort(key=lambda each: each[0] not in telling)  # loaders judge a file's types by its first rows
    path = job.folder / SAMPLE
    temporary = path.with_suffix(".tmp")
    writer = open_writer(path, temporary)
    for start in range(0, len(drawn), WRITTEN_AT_ONCE):
        some = drawn[start : start + WRITTEN_AT_ONCE]
        rows = [schema.write(read_trajectory(reservoirs[at].row(priority))) for priority, at in some]
        tokens = [reservoirs[at].entries[priority].tokens for priority, at in some]
        if schema.changes_conversations:
            tokens = _count(rows, pool)
        for (_, at), row, count in zip(some, rows, tokens, strict=True):
            own = {name: value for name, value in row.items() if name not in OWN_COLUMNS}
            more = {SOURCE_COLUMN: saved.parts[at].source.given, TOKENS_COLUMN: count}
            writer.write(msgspec.json.encode(own | more))
    writer.close()
    temporary.replace(path)
    if words := schema.changes():
        note(words)
    for at, part in enumerate(saved.parts):
        saved.parts[at] = msgspec.structs.replace(part, tally=msgspec.structs.replace(part.tally, taken=taken[at]))
    saved.complete, saved.bytes = True, path.stat().st_size
    save(job.folder, saved)


def _count(rows: list[dict[str, Any]], pool: Executor) -> list[int]:
    from concurrent.futures.process import BrokenProcessPool

    try:
        return list(pool.map(count_row, map(msgspec.json.encode, rows)))
    except BrokenProcessPool:
        raise WorkersFailed(DIED) from None


def _nothing(job: SampleJob, parts: list[Part]) -> DatasetError:
    rows = sum(part.tally.rows for part in parts)
    problem = next((f"; {part.source.given}, {part.tally.problem}" for part in parts if part.tally.problem), "")
    return DatasetError(
        f"not one of {rows:,} rows is a trajectory of at least {job.min_tokens:,} tokens (lower --min_tokens?){problem}"
    )
