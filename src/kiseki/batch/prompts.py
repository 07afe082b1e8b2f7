"""The dataset as a stream of checked prompts: usable rows come out as `Prompt`, unusable ones as `BadRow` with the reason.

Nothing is held but the row at hand. A row costs nothing until it is known to be usable.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import zstandard

from kiseki.errors import DatasetError
from kiseki.trajectory.chat import kind_of, read_message
from kiseki.trajectory.text import clean_text
from kiseki.trajectory.types import Message, Prompt

MAX_PROMPT_CHARS = 8_000_000
"""About 2 million tokens: longer than any context window, so a longer one is a mistake in the dataset."""
HF_PREFIX = "hf://"
COMPRESSED = (".gz", ".zst")


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
        path = Path(dataset)
        if not path.exists():
            raise DatasetError(f"dataset file not found: {dataset}")
        if path.is_dir():
            raise DatasetError(f"dataset is a folder, not a file: {dataset}")
        if path.suffix in COMPRESSED and _format(path) == ".parquet":
            raise DatasetError(f"a parquet file is read as it is, not inside {path.suffix}: unpack {dataset} first")


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
        source=_to_json(rest) if rest else "{}",
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


def _to_json(value: dict[str, Any]) -> str:
    """Any row content as JSON text that every parser takes: no NaN, no lone surrogates, dates as text."""
    try:
        text = msgspec.json.encode(value, enc_hook=str).decode()
    except (UnicodeEncodeError, OverflowError, TypeError, ValueError):
        text = json.dumps(_plain(value), ensure_ascii=False, default=str)
    return clean_text(text)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {clean_text(str(key)): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return clean_text(value) if isinstance(value, str) else value


# ---- sources ----------------------------------------------------------------------------------------------------------


def _rows(dataset: str) -> Iterator[tuple[int, Any]]:
    """(line, row) of each row that is not blank; a row that cannot be parsed is a `BadRow`."""
    if dataset.startswith(HF_PREFIX):
        yield from enumerate(_hugging_face(dataset), 1)
        return
    check_dataset(dataset)
    path = Path(dataset)
    try:
        if _format(path) == ".parquet":
            yield from enumerate(_parquet(path), 1)
            return
        with ExitStack() as stack:
            stream = _open_text(path, stack)
            yield from _csv(stream) if _format(path) == ".csv" else _jsonl(stream)
    except (OSError, EOFError, zstandard.ZstdError) as error:
        raise DatasetError(f"cannot read {dataset}: {error}") from error


def _format(path: Path) -> str:
    """The suffix that says what a file holds, whatever it is compressed with."""
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


def _open_text(path: Path, stack: ExitStack) -> IO[bytes]:
    raw: IO[bytes] = stack.enter_context(path.open("rb"))
    if path.suffix == ".gz":
        return cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=raw)))
    if path.suffix == ".zst":
        return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True))
    return raw


def _jsonl(stream: IO[bytes]) -> Iterator[tuple[int, Any]]:
    for line, text in enumerate(stream, 1):
        if line == 1:
            text = text.removeprefix(b"\xef\xbb\xbf")
        if not text.strip():
            continue
        try:
            yield line, msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield line, _decode_leniently(line, text)


def _decode_leniently(line: int, text: bytes) -> Any:
    """What the strict parser refuses but Python's own writes: lone surrogates, NaN. Else a `BadRow`."""
    try:
        return json.loads(text.decode())
    except UnicodeDecodeError as error:
        return BadRow(line, f"not valid UTF-8 (byte {error.start + 1} of the line)")
    except json.JSONDecodeError as error:
        return BadRow(line, f"not valid JSON: {error.msg} at character {error.pos + 1} of the line")
    except (ValueError, RecursionError) as error:
        return BadRow(line, f"not valid JSON: {error}")


def _csv(stream: IO[bytes]) -> Iterator[tuple[int, Any]]:
    reader = csv.DictReader(io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline=""), restkey="extra_columns")
    csv.field_size_limit(MAX_PROMPT_CHARS)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise DatasetError(f"line {reader.line_num} is not valid CSV: {error}") from error


def _parquet(path: Path) -> Iterator[Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DatasetError("reading parquet needs pyarrow: pip install 'kiseki[parquet]'") from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=512):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise DatasetError(f"cannot read {path}: {error}") from error


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
