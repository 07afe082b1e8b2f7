"""The compressor for programs: one trajectory in, one out (or several)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from kiseki.compress.compressor import Compressor
from kiseki.compress.config import CompressionConfig
from kiseki.compress.metrics import Metrics
from kiseki.compress.summarizer import ask_now
from kiseki.compress.summary import Answer, Ask, read_summary
from kiseki.trajectory.json_rows import encode_row
from kiseki.trajectory.tokens import TokenCounter, find_tokenizer, open_counter


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
    `summary`, gets a request and returns the summary; default: the settings' model is asked. A summary that cannot be had or used
    leaves the row as it was, and `compression_metrics.error` says why.

    Raises `ValueError` for a row that is no trajectory, `UsageError` for settings that cannot be used (no key for the model),
    `TypeError` when `summarize` returns no text, and whatever `summarize` raises.
    """
    config = config or CompressionConfig()
    compressor = Compressor(config, _counter(config.tokenizer, config.trust_remote_code, config.count == "chat_template"))
    text = encode_row(dict(row))
    done = compressor.begin(text)
    if isinstance(done, Ask):
        answer = ask_now(done, config, compressor.counter.count) if summarize is None else _ask_own(summarize, done)
        done = compressor.finish(text, done, answer)
    return CompressedTrajectory(tuple(msgspec.json.decode(each) for each in done.rows), done.metrics)


def _ask_own(summarize: Callable[[str], str], ask: Ask) -> Answer:
    reply = summarize(ask.request)
    if not isinstance(reply, str):
        raise TypeError(f"summarize returned {type(reply).__name__}, not text")
    try:
        return Answer(read_summary(reply), calls=1)
    except ValueError as problem:
        return Answer(error=f"the summary cannot be used: {problem}", calls=1, errors=1)


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
