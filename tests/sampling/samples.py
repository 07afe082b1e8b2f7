"""Rows of two layouts, and samples drawn of them as the command draws them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from rows import read_all

from kiseki.compress.config import CompressionConfig
from kiseki.sampling.draw import draw_sample
from kiseki.sampling.folder import SAMPLE, Part, Tally
from kiseki.sampling.job import SampleJob
from kiseki.trajectory.tokens import find_tokenizer, open_counter

COUNTER = open_counter(find_tokenizer("bundled", warn=print))
SHORT, LONG = 40, 120
"""Words of two kinds of answers; `MIN_TOKENS` is between them."""
MIN_TOKENS = 100


def sharegpt(number: int, words: int = LONG, **columns: Any) -> dict[str, Any]:
    turns = [{"from": "human", "value": f"Task {number}"}, {"from": "gpt", "value": "word " * words}]
    return {"id": number, "conversations": turns} | columns


def messages(number: int, words: int = LONG, **columns: Any) -> dict[str, Any]:
    """The same as `sharegpt`, in the other layout."""
    turns = [{"role": "user", "content": f"Task {number}"}, {"role": "assistant", "content": "word " * words}]
    return {"messages": turns} | columns


def quiet(words: str) -> None:
    raise AssertionError(words)


def draw(
    folder: Path,
    *datasets: Path,
    watch: Callable[[int, Tally], None] = lambda at, tally: None,
    note: Callable[[str], None] = quiet,
    raw: str = "raw",
    **settings: Any,
) -> list[Part]:
    job = SampleJob(
        tuple(map(str, datasets)),
        folder / raw,
        **({"total_samples": 20, "min_tokens": MIN_TOKENS, "batch_size": 9, "num_proc": 1} | settings),
    )
    return draw_sample(job, CompressionConfig(), watch, note)


def sample(folder: Path, *datasets: Path, **settings: Any) -> list[dict[str, Any]]:
    draw(folder, *datasets, **settings)
    return read_all(folder / settings.get("raw", "raw") / SAMPLE)
