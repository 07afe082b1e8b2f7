"""What a sample's folder holds while the sample is drawn and after it: how far each dataset was read, and a lock."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from kiseki.errors import UsageError
from kiseki.sampling.sources import Source

PROGRESS, SAMPLE, LOCK = "progress.json", "sample.jsonl", "lock"


class Tally(msgspec.Struct, frozen=True):
    """What became of the rows of one dataset."""

    rows: int = 0
    bad: int = 0
    """No trajectories."""
    passed: int = 0
    """Not in the draw: their priority was beyond the reservoir's reach, so that their tokens did not matter."""
    short: int = 0
    """Of those within its reach at that time."""
    duplicates: int = 0
    """Of rows that were in the draw at that time, in this dataset or in one before it."""
    kept: int = 0
    """In the reservoir."""
    tokens: int = 0
    """Of those in the reservoir."""
    taken: int = 0
    """In the sample."""
    problem: str = ""
    """Why the first bad row is one."""


class Part(msgspec.Struct, frozen=True):
    """One dataset, and how far it was read."""

    source: Source
    tally: Tally = Tally()
    position: Any = None
    records: int = 0
    """Of its reservoir."""
    done: bool = False


class Saved(msgspec.Struct):
    """`progress.json`."""

    settings: dict[str, Any]
    parts: list[Part]
    complete: bool = False
    """`sample.jsonl` is whole."""
    bytes: int = 0
    """Of it, then."""


def load(folder: Path) -> Saved | None:
    """None where there is nothing that can be used."""
    try:
        return msgspec.json.decode((folder / PROGRESS).read_bytes(), type=Saved)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def is_whole(folder: Path, saved: Saved) -> bool:
    """Whether the finished sample is there as it was written."""
    path = folder / SAMPLE
    return saved.complete and path.is_file() and path.stat().st_size == saved.bytes


def differences(made: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """In which settings the two are not the same, in words; "" where they are."""

    def words(value: Any) -> str:
        return ",".join(value) if isinstance(value, list) else str(value)

    return ", ".join(
        f"{name} {words(made.get(name))}, not {words(asked[name])}" for name in asked if made.get(name) != asked[name]
    )


def part_path(folder: Path, at: int) -> Path:
    """Of a dataset's reservoir."""
    return folder / f"part_{at:02}"


def clear(folder: Path, kept: int = 0) -> None:
    """Remove what an earlier job has left, but for the reservoirs of its first `kept` datasets."""
    for name in (PROGRESS, SAMPLE):
        (folder / name).unlink(missing_ok=True)
    clear_reservoirs(folder, kept)


def clear_reservoirs(folder: Path, kept: int = 0) -> None:
    """Remove what nobody needs any more when the sample is whole."""
    stay = {part_path(folder, at).name for at in range(kept)}
    for path in [*folder.glob("part_*.rows"), *folder.glob("part_*.index")]:
        if path.stem not in stay:
            path.unlink(missing_ok=True)


def save(folder: Path, saved: Saved) -> None:
    """Whole or not at all."""
    path = folder / PROGRESS
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(saved), indent=1))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A context that only one process at a time is in. Raises `UsageError` for the others."""
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another process is drawing the sample in {folder}; wait for it, or choose another name") from None
        yield
