"""The compressor for programs: one trajectory in, one out (or several)."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from collections.abc import Callable, Coroutine, Mapping
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from kiseki.compress.compressor import Compressor, Done
from kiseki.compress.config import CompressionConfig
from kiseki.compress.metrics import Metrics
from kiseki.compress.summary import Answer, Ask, read_summary
from kiseki.trajectory.tokens import TokenCounter, find_tokenizer, open_counter

T = TypeVar("T")


class CompressedTrajectory(msgspec.Struct, frozen=True):
    """What `compress_trajectory` gives."""

    rows: tuple[dict[str, Any], ...]
    """One row; several with strategy `segment`. Each has its `compression_metrics`."""
    metrics: tuple[Metrics, ...]
    """One for each row."""

    @property
    def row(self) -> dict[str, Any]:
        """The row; the first one where there are several."""
        return self.rows[0]


def compress_trajectory(
    row: Mapping[str, Any],
    config: CompressionConfig | None = None,
    *,
    summarize: Callable[[str], str] | None = None,
) -> CompressedTrajectory:
    """One trajectory brought within `config.target_max_tokens` tokens.

    `row`: an object with `conversations` (ShareGPT turns) or `messages`; its other columns are kept. `summarize`: for strategy
    `summary`, gets a request and returns the summary; default: the settings' model is asked. A summary that cannot be had leaves
    the row as it was, and `compression_metrics.error` says why.

    Raises `ValueError` for a row that is no trajectory and `UsageError` for settings that cannot be used (no key for the model).
    """
    config = config or CompressionConfig()
    compressor = Compressor(config, _counter(config.tokenizer, config.trust_remote_code, config.count == "chat_template"))
    text = msgspec.json.encode(row)
    begun = compressor.begin(text)
    if isinstance(begun, Ask):
        answer = ask_now(config, begun, compressor.counter) if summarize is None else _ask_own(summarize, begun)
        begun = compressor.finish(text, begun, answer)
    return _decoded(begun)


def ask_now(config: CompressionConfig, ask: Ask, counter: TokenCounter) -> Answer:
    """The settings' model asked for one summary, also where an event loop is running already."""
    from kiseki.compress.summarizer import open_summarizer

    async def once() -> Answer:
        summarizer = open_summarizer(config, os.environ, count=counter.count)
        try:
            return await summarizer.ask(ask)
        finally:
            await summarizer.close()

    return _run(once())


def _ask_own(summarize: Callable[[str], str], ask: Ask) -> Answer:
    try:
        return Answer(read_summary(summarize(ask.request)), calls=1)
    except ValueError as problem:
        return Answer(error=f"the summary cannot be used: {problem}", calls=1, errors=1)


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, in a thread of its own, since this one may have a loop."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(asyncio.run(coroutine))
        except BaseException as error:  # raised again below, in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


@lru_cache(maxsize=8)
def _counter(tokenizer: str, trust_remote_code: bool, chat_template: bool) -> TokenCounter:
    return open_counter(
        find_tokenizer(
            tokenizer,
            trust_remote_code=trust_remote_code,
            chat_template=chat_template,
            warn=lambda words: warnings.warn(words, stacklevel=4),
        )
    )


def _decoded(done: Done) -> CompressedTrajectory:
    return CompressedTrajectory(tuple(msgspec.json.decode(each) for each in done.rows), done.metrics)
