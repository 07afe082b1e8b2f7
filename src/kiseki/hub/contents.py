"""The files of a push, made ready on the disk: rows in shards, every line past the guard, each file with its hashes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from kiseki.hub.repository import Local, local_file
from kiseki.hub.scan import Guard
from kiseki.trajectory.row_files import read_lines
from kiseki.trajectory.row_writers import open_writer

SHARD_BYTES = 100_000_000
"""Of JSON lines in one file: large enough that there are few, small enough to be sent again after a broken connection."""

PACKED = (".parquet", ".gz", ".zst")
"""Files of rows of which the bytes on the disk say nothing."""


def stage_rows(
    folder: Path,
    split: str,
    lines: Iterable[bytes],
    guard: Guard,
    *,
    named: str,
    into: str,
    written: Callable[[int], None] = lambda rows: None,
) -> list[Local]:
    """`INTO/SPLIT-00000-of-00002.jsonl`, …: the lines (with their line ends) in order; no file where there are none.

    The same lines give the same files. folder: Where they are put. named: What the guard calls the file. written: Is told how
    many rows there are so far.
    """
    shards: list[tuple[Path, int]] = []
    rows = in_shard = size = 0
    file = None
    try:
        for line in lines:
            rows += 1
            line = guard.passed(line, named, rows)
            if file is None or size + len(line) > SHARD_BYTES:
                if file:
                    file.close()
                    shards[-1] = (shards[-1][0], in_shard)
                path = folder / f"{into}-{split}-{len(shards):05}.jsonl"
                file = path.open("wb")
                shards.append((path, 0))
                in_shard = size = 0
            file.write(line)
            in_shard += 1
            size += len(line)
            written(rows)
    finally:
        if file:
            file.close()
            shards[-1] = (shards[-1][0], in_shard)
    count = len(shards)
    return [local_file(f"{into}/{split}-{at:05}-of-{count:05}.jsonl", path, in_file) for at, (path, in_file) in enumerate(shards)]


def stage_file(folder: Path, source: Path, guard: Guard, name: str, rows: int | None = None) -> Local:
    """One file under `name`: as it is, or a copy in `folder` where the guard replaces.

    rows: How many it has. Default: as many as lines; packed files (`PACKED`) have none.
    """
    copy = folder / source.name
    if source.suffix in PACKED:
        if guard.replaces:
            _clean_packed(source, copy, guard)
            return local_file(name, copy, rows or 0)
        for number, line in read_lines(source):
            guard.passed(line, source.name, number)
        return local_file(name, source, rows or 0)
    if not guard.replaces:
        with source.open("rb") as lines:
            found = sum(1 for number, line in enumerate(lines, 1) if guard.passed(line, source.name, number))
        return local_file(name, source, found if rows is None else rows)
    number = 0
    with source.open("rb") as lines, copy.open("wb") as cleaned:
        for number, line in enumerate(lines, 1):
            cleaned.write(guard.passed(line, source.name, number))
    return local_file(name, copy, number if rows is None else rows)


def hold(folder: Path, source: Path) -> Path:
    """A file of the run as it is now, in `folder`: the run may put another in its place at any time."""
    held = folder / source.name
    try:
        held.hardlink_to(source)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without such links
        shutil.copyfile(source, held)
    return held


def _clean_packed(source: Path, copy: Path, guard: Guard) -> None:
    """The same rows, of parquet in the same columns."""
    writer = open_writer(source, copy, like=source)
    for number, line in read_lines(source):
        writer.write(guard.passed(line, source.name, number))
    writer.close()


def stage_text(folder: Path, name: str, text: bytes, guard: Guard) -> Local:
    """A small file of ours, such as the card."""
    lines = text.splitlines(keepends=True)
    path = folder / name
    path.write_bytes(b"".join(guard.passed(line, name, number) for number, line in enumerate(lines, 1)))
    return local_file(name, path)
