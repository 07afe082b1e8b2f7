"""The dataset as a stream of checked prompts: usable rows come out as `Prompt`, unusable ones as `BadRow` with the reason.

Nothing is held but the row at hand. A row costs nothing until it is known to be usable.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kiseki.errors import DatasetError
from kiseki.trajectory.chat import kind_of, read_message
from kiseki.trajectory.json_rows import decode_row, encode_row
from kiseki.trajectory.parquet_rows import read_batches
from kiseki.trajectory.row_files import check_file, format_of, open_bytes, read_lines
from kiseki.trajectory.text import clean_text
from kiseki.trajectory.types import Message, Prompt

MAX_PROMPT_CHARS = 8_000_000
"""About 2 million tokens: longer than any context window, so a longer one is a mistake in the dataset."""
HF_PREFIX = "hf://"


class BadRow(msgspec.Struct, frozen=True):
    """A row that cannot be run."""

    line: int
    """Line in a text file, from 1; row number from 1 in parquet and Hugging Face datasets."""
    reason: str


def read_prompts(dataset: str, max_samples: int | None = None) -> Iterator[Prompt | BadRow]:
    """Rows of `dataset` (JSONL, .gz, .zst, CSV, parquet, or `hf://org/name[:split]`) in order.

    `max_samples`: stop after so many usable rows. Raises `DatasetError` when the dataset itself cannot be read.
    """
    usable = 0
    for index, (line, row) in enumerate(_rows(dataset)):
        if usable == max_samples:
            return
        if isinstance(row, BadRow):
            yield row
            continue
        try:
            prompt = to_prompt(index, row)
        except ValueError as problem:
            yield BadRow(line, str(problem))
            continue
        usable += 1
        yield prompt


def check_dataset(dataset: str) -> None:
    """Raises `DatasetError` when the dataset is plainly not there or of no kind; reads nothing (it may be a pipe)."""
    if not dataset.startswith(HF_PREFIX):
        check_file(Path(dataset))


def to_prompt(index: int, row: Any) -> Prompt:
    """One row as a `Prompt`. Raises `ValueError` with the reason for a row that has no usable one."""
    if not isinstance(row, dict):
        raise ValueError(f"the row is {kind_of(row)}, not a JSON object")
    rest = {key: value for key, value in row.items() if key not in ("prompt", "image", "docker_image", "cwd")}
    image = _text_column(row, "image") or _text_column(row, "docker_image")
    return Prompt(
        index=index,
        messages=_messages(row.get("prompt")),
        image=image,
        cwd=_text_column(row, "cwd"),
        source=encode_row(rest).decode() if rest else "{}",
    )


def _text_column(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"column {name!r} is {kind_of(value)}, not text")
    return clean_text(value.strip())


def _messages(prompt: Any) -> tuple[Message, ...]:
    if prompt is None:
        raise ValueError("there is no 'prompt', or it is null")
    if isinstance(prompt, str):
        messages: tuple[Message, ...] = (Message(role="user", content=clean_text(prompt)),)
    elif isinstance(prompt, list):
        messages = tuple(read_message(each, f"message {number} in 'prompt'") for number, each in enumerate(prompt))
        if not messages or messages[-1].role != "user":
            raise ValueError("the messages in 'prompt' do not end with the user's")
    else:
        raise ValueError(f"'prompt' is {kind_of(prompt)}, not text or a list of messages")
    if not messages[-1].content.strip():
        raise ValueError("'prompt' is empty")
    if sum(len(each.content) for each in messages) > MAX_PROMPT_CHARS:
        raise ValueError(f"'prompt' is longer than {MAX_PROMPT_CHARS:,} characters")
    return messages


# ---- sources ----------------------------------------------------------------------------------------------------------


def _rows(dataset: str) -> Iterator[tuple[int, Any]]:
    """(line, row) of each row that is not blank; a row that cannot be parsed is a `BadRow`."""
    if dataset.startswith(HF_PREFIX):
        yield from enumerate(_hugging_face(dataset), 1)
        return
    path = Path(dataset)
    if format_of(path) == ".csv":
        yield from _csv(path)
    elif format_of(path) == ".parquet":
        check_file(path)
        yield from enumerate((row for rows, _ in read_batches(path) for row in rows), 1)
    else:
        yield from _json_lines(path)


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    for line, text in read_lines(path):
        try:
            yield line, decode_row(text)
        except ValueError as problem:
            yield line, BadRow(line, str(problem))


def _csv(path: Path) -> Iterator[tuple[int, Any]]:
    check_file(path)
    with open_bytes(path) as stream:
        text = io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline="")
        reader = csv.DictReader(text, restkey="extra_columns")
        csv.field_size_limit(MAX_PROMPT_CHARS)
        try:
            for row in reader:
                yield reader.line_num, row
        except csv.Error as error:
            raise DatasetError(f"line {reader.line_num} is not valid CSV: {error}") from error


def _hugging_face(dataset: str) -> Iterator[Any]:
    try:
        import datasets
    except ImportError:
        raise DatasetError("reading hf:// datasets needs the datasets library: pip install 'kiseki[hf]'") from None
    name, _, split = dataset.removeprefix(HF_PREFIX).partition(":")
    try:
        yield from datasets.load_dataset(name, split=split or "train", streaming=True)
    except Exception as error:  # the library raises dozens of classes for a name, a split or a network that is not there
        raise DatasetError(f"cannot read {dataset}: {type(error).__name__}: {error}") from error
