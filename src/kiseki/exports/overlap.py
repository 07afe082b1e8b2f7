"""What an example has in common with a benchmark: `--decontaminate FILE`.

FILE is JSONL (also .gz, .zst), parquet, CSV or text. Every text in a row is an entry, also those inside lists and objects; of a
text file every line. Two texts have something in common when they share 13 words in a row (`words.py`: case and punctuation do
not count). An entry of 5 to 12 words has to be in the example as a whole; shorter ones say nothing and are not looked for.
All of the example is looked at but what the system says: prompt, answers, reasoning, calls, results.

8 words in a row that stand in more than 10 lines and in more than a fifth of them are the benchmark's frame, such as the
instruction that ends each of its prompts: they are cut out of its entries, and what is left between them is looked for. Where
that is less than 5 words, the entry has to be in the example as a whole. Lines with the same entries count once.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from kiseki.errors import DatasetError
from kiseki.exports.words import texts, words
from kiseki.trajectory.example import Example
from kiseki.trajectory.json_rows import decode_row
from kiseki.trajectory.row_files import SUFFIXES, check_file, format_of, is_row_file, open_bytes, read_lines

GRAM_WORDS = 13
LEAST_WORDS = 5
FRAME_WORDS, FRAME_LINES, FRAME_SHARE = 8, 10, 0.2
FRAMES_SHOWN = 5
_HEAD_WORDS = 3
"""By which most places of an example are seen to begin nothing of the benchmark's."""
_FIELD_CHARS = 8_000_000


class Benchmark:
    """Its entries. Only hashes are kept: about 200 bytes for each word of the file."""

    frames: tuple[str, ...]
    """What many of its lines have in common and is not looked for: the first few, in words."""

    def __init__(self, path: Path) -> None:
        """Raises `DatasetError` for a file that cannot be read, or has nothing to look for."""
        self.path = path
        self._numbers: dict[str, int] = {}
        self._heads: set[int] = set()
        self._grams: dict[int, dict[int, int]] = {}
        """Length → hash of so many words → line."""
        framing = self._framing()
        shown: dict[str, None] = {}
        for line, entries in self._lines():
            for said, entry in entries:
                framed = {at + more for gram, at in _grams(entry, FRAME_WORDS) if gram in framing for more in range(FRAME_WORDS)}
                runs = [(inside, list(run)) for inside, run in groupby(range(len(entry)), lambda at: at in framed)]  # noqa: B023
                shown |= {" ".join(said[at] for at in run): None for inside, run in runs if inside and len(shown) < FRAMES_SHOWN}
                self._add(line, entry, [run for inside, run in runs if not inside])
        self.frames = tuple(shown)[:FRAMES_SHOWN]
        if not self._grams:
            raise DatasetError(f"--decontaminate: {path} has no text of {LEAST_WORDS} words or more")
        self._lengths = sorted(self._grams)

    def _lines(self) -> Iterator[tuple[int, list[tuple[list[str], list[int]]]]]:
        """(line, (words, their numbers) of each of its entries that is long enough)"""
        for line, group in groupby(_entries(self.path), lambda each: each[0]):
            entries = [said for _, text in group if len(said := words(text)) >= LEAST_WORDS]
            yield line, [(said, [self._numbers.setdefault(each, len(self._numbers) + 1) for each in said]) for said in entries]

    def _framing(self) -> set[int]:
        """Hashes of the words in a row that stand in too many lines."""
        first: dict[int, int] = {}
        again: Counter[int] = Counter()
        seen: set[int] = set()
        for line, entries in self._lines():
            same = hash(tuple(tuple(entry) for _, entry in entries))
            if entries and same not in seen:
                seen.add(same)
                grams = {gram for _, entry in entries for gram, _ in _grams(entry, FRAME_WORDS)}
                again.update(gram for gram in grams if first.setdefault(gram, line) != line)
        most = max(FRAME_LINES, FRAME_SHARE * len(seen))
        return {gram for gram, count in again.items() if count + 1 > most}

    def _add(self, line: int, entry: list[int], pieces: list[list[int]]) -> None:
        """pieces: The places in the entry that are no frame's."""
        long = [[entry[at] for at in piece] for piece in pieces if len(piece) >= LEAST_WORDS]
        if not long and pieces:  # too little is its own to be looked for by itself
            self._add_grams(line, entry, len(entry))
        for piece in long:
            self._add_grams(line, piece, min(len(piece), GRAM_WORDS))

    def _add_grams(self, line: int, said: list[int], size: int) -> None:
        grams = self._grams.setdefault(size, {})
        for gram, at in _grams(said, size):
            grams.setdefault(gram, line)
            self._heads.add(hash(tuple(said[at : at + _HEAD_WORDS])))

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


def _grams(entry: list[int], size: int) -> Iterator[tuple[int, int]]:
    """(hash, place) of each run of so many words. Of a tuple of whole numbers the hash is the same in every process."""
    return ((hash(tuple(entry[at : at + size])), at) for at in range(len(entry) - size + 1))


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
