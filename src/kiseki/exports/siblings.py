"""Samples of one prompt, brought together.

A run has them together already. In files they may be anywhere: there the examples go through a file on the disk, in the order in
which their prompts came first.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

import msgspec
import zstandard

from kiseki.exports.conditions import draw, prompt_words
from kiseki.trajectory.example import Example

Numbered = tuple[int, Example]
"""An example with its number in the source, from 0."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Example).decode


def prompt_key(example: Example, *, of_run: bool) -> str:
    """The same for all samples of a prompt. In a run two prompts may read the same and have other images or other facts."""
    return f"{example.prompt_index}" if of_run and example.prompt_index >= 0 else f"\0{prompt_words(example)}"


def adjacent(examples: Iterable[Numbered], seed: int) -> Iterator[Iterator[Numbered]]:
    """Siblings of a run, the best first: by reward, those without one last; among equals by a draw."""
    for _, group in groupby(examples, lambda each: prompt_key(each[1], of_run=True)):
        yield iter(sorted(group, key=lambda each: _rank(each[1], seed)))


def gathered(examples: Iterable[Numbered], seed: int, database: sqlite3.Connection, folder: Path) -> Iterator[Iterator[Numbered]]:
    """The same of examples in any order. They are all read before the first is given; `folder` is where they wait."""
    database.execute("CREATE TABLE prompts (digest BLOB PRIMARY KEY, first INTEGER) WITHOUT ROWID")
    database.execute(
        "CREATE TABLE waiting (first, worth, draw, number, start, size, PRIMARY KEY (first, worth, draw, number)) WITHOUT ROWID"
    )
    path = folder / "waiting"
    packer, unpacker = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    with path.open("w+b", 2**20) as file:
        start = 0
        for number, example in examples:
            digest = hashlib.blake2b(prompt_key(example, of_run=False).encode(), digest_size=16).digest()
            database.execute("INSERT OR IGNORE INTO prompts VALUES (?, ?)", (digest, number))
            (first,) = database.execute("SELECT first FROM prompts WHERE digest = ?", (digest,)).fetchone()
            packed = packer.compress(_encode(example))
            file.write(packed)
            database.execute(
                "INSERT INTO waiting VALUES (?, ?, ?, ?, ?, ?)", (first, *_rank(example, seed), number, start, len(packed))
            )
            start += len(packed)

        def read(line: tuple[int, int, int, int]) -> Numbered:
            _, number, start, size = line
            file.seek(start)
            return number, _decode(unpacker.decompress(file.read(size)))

        lines = database.execute("SELECT first, number, start, size FROM waiting ORDER BY first, worth, draw, number")
        for _, group in groupby(lines, lambda line: line[0]):
            yield map(read, group)
    path.unlink()


def alone(examples: Iterable[Numbered]) -> Iterator[Iterator[Numbered]]:
    """Each for itself, as it comes."""
    for each in examples:
        yield iter((each,))


def _rank(example: Example, seed: int) -> tuple[float, float]:
    worth = float("inf") if example.reward is None else -example.reward
    return worth, draw(seed, f"{example.key}\0{example.sample_index}")
