"""What an example has in common with a benchmark: `--decontaminate FILE`.

FILE is JSONL (also .gz, .zst), parquet, CSV or text. Every text in a row is an entry, also those inside lists and objects; of a
text file every line. Two texts have something in common when they share 13 words in a row (`words.py`: case and punctuation do
not count). An entry of 5 to 12 words has to be in the example as a whole; shorter ones say nothing and are not looked for.
All of the example is looked at but what the system says: prompt, answers, reasoning, calls, results.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kiseki.errors import DatasetError
from kiseki.exports.words import texts, words
from kiseki.trajectory.example import Example
from kiseki.trajectory.json_rows import decode_row
from kiseki.trajectory.row_files import SUFFIXES, check_file, format_of, is_row_file, open_bytes, read_lines

GRAM_WORDS = 13
LEAST_WORDS = 5
_HEAD_WORDS = 3
"""By which most places of an example are seen to begin nothing of the benchmark's."""
_FIELD_CHARS = 8_000_000


class Benchmark:
    """Its entries. Only hashes are kept: about 200 bytes for each word of the file."""

    def __init__(self, path: Path) -> None:
        """Raises `DatasetError` for a file that cannot be read, or has nothing to look for."""
        self.path = path
        self._numbers: dict[str, int] = {}
        self._heads: set[int] = set()
        self._grams: dict[int, dict[int, int]] = {}
        """Length → hash of so many words → line."""
        for line, text in _entries(path):
            self._add(line, [self._numbers.setdefault(word, len(self._numbers) + 1) for word in words(text)])
        if not self._grams:
            raise DatasetError(f"--decontaminate: {path} has no text of {LEAST_WORDS} words or more")
        self._lengths = sorted(self._grams)

    def _add(self, line: int, entry: list[int]) -> None:
        size = min(len(entry), GRAM_WORDS)
        if size < LEAST_WORDS:
            return
        grams = self._grams.setdefault(size, {})
        for at in range(len(entry) - size + 1):
            # of a tuple of whole numbers: the same in every process
            grams.setdefault(hash(tuple(entry[at : at + size])), line)
            self._heads.add(hash(tuple(entry[at : at + _HEAD_WORDS])))

    def find(self, example: Example) -> tuple[int, str] | None:
        """(line, words in common) of the first place of an example that is in the benchmark, None where there is none."""
        for text in texts(example):
            said = words(text)
            numbers = [self._numbers.get(word, 0) for word in said]
            for at in range(len(said) - LEAST_WORDS + 1):
                if not numbers[at] or hash(tuple(numbers[at : at + _HEAD_WORDS])) not in self._heads:
                    continue
                for length in self._lengths:
                    # short of its length at the end of the text, and then the hash of no gram of that length
                    line = self._grams[length].get(hash(tuple(numbers[at : at + length])))
                    if line is not None:
                        return line, " ".join(said[at : at + length])
        return None


def _entries(path: Path) -> Iterator[tuple[int, str]]:
    """(line or row, text)"""
    check_file(path)
    kind = format_of(path)
    if kind == ".csv":
        csv.field_size_limit(_FIELD_CHARS)
        with open_bytes(path) as stream:
            reader = csv.reader(io.TextIOWrapper(stream, "utf-8-sig", errors="replace", newline=""))
            try:
                for row in reader:
                    yield from ((reader.line_num, text) for text in row)
            except csv.Error as error:
                raise DatasetError(f"{path}, line {reader.line_num}: {error}") from None
    elif is_row_file(path):
        for line, data in read_lines(path):
            try:
                yield from ((line, text) for text in _texts(decode_row(data)))
            except ValueError as error:
                raise DatasetError(f"{path}, line {line}: {error}") from None
    elif kind == ".txt":
        with open_bytes(path) as stream:
            yield from ((number, line.decode("utf-8", "replace")) for number, line in enumerate(stream, 1))
    else:
        raise DatasetError(f"--decontaminate: {path} is none of {', '.join(SUFFIXES)}, .csv, .txt")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)
