"""The processes that count and compress: each has the tokenizer and takes blocks of rows."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import msgspec

from kiseki.compress.compressor import Compressor, Done
from kiseki.compress.config import CompressionConfig
from kiseki.compress.summary import Answer, Ask
from kiseki.errors import WorkersFailed
from kiseki.trajectory.tokens import Tokenizer, open_counter

T = TypeVar("T")
_PR_SET_PDEATHSIG = 1
_compressor: Compressor | None = None


class Bad(msgspec.Struct, frozen=True):
    """A row that is no trajectory."""

    reason: str


def open_pool(workers: int, tokenizer: Tokenizer, config: CompressionConfig) -> Executor:
    """`workers` processes; one is a thread of this process.

    Where this process has no other thread yet they are forked: they share the tokenizer's memory and are there at once. A fork
    beside threads can hang on a lock that one of them held, so then they start afresh.
    """
    global _compressor
    _compressor = Compressor(config, open_counter(tokenizer))
    if workers == 1:
        return ThreadPoolExecutor(1)
    alone = len(list(Path("/proc/self/task").iterdir())) == 1
    context = get_context("fork" if alone else "forkserver")
    pool = ProcessPoolExecutor(workers, context, _start, (tokenizer, config, os.getpid() if alone else 0))
    pool.submit(os.getpid).result()  # starts all of them
    return pool


def _start(tokenizer: Tokenizer, config: CompressionConfig, parent: int) -> None:
    """Ctrl-C is the parent's to handle, and when the parent is killed, so is the child. `parent`: 0 where it is a fork server."""
    global _compressor
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:
        os._exit(1)
    if _compressor is None:
        _compressor = Compressor(config, open_counter(tokenizer))


async def run(pool: Executor, work: Callable[..., T], *arguments: object) -> T:
    """`work` in one of the processes. Raises `WorkersFailed` when it dies."""
    from concurrent.futures.process import BrokenProcessPool

    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work, *arguments)
    except BrokenProcessPool:
        raise WorkersFailed(
            "a worker process died (out of memory?); what was done is kept, the same command goes on with it"
            " (fewer processing.num_workers need less memory)"
        ) from None


def begin_rows(rows: Sequence[bytes]) -> list[Done | Ask | Bad]:
    return [_begin(row) for row in rows]


def _begin(row: bytes) -> Done | Ask | Bad:
    assert _compressor is not None
    try:
        return _compressor.begin(row)
    except ValueError as problem:
        return Bad(str(problem))


def finish_row(row: bytes, ask: Ask, answer: Answer) -> Done:
    assert _compressor is not None
    return _compressor.finish(row, ask, answer)


def count_texts(texts: Sequence[str]) -> list[int]:
    assert _compressor is not None
    return [_compressor.counter.count(text) for text in texts]
