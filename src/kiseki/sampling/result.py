"""The files that come of a sample: no one else's file is overwritten."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kiseki.compress.job.files import METRICS, REJECTS
from kiseki.compress.job.output import Made
from kiseki.errors import UsageError
from kiseki.sampling.folder import SAMPLE

_WAY_OUT = "choose another --output_name or --output_dir, or move it away"


def files_of(result: Path, metrics_file: str) -> tuple[Path, Path, Path]:
    """The result itself, what is rejected of it, and its metrics: what `kiseki compress` would write."""
    stem = result.name.removesuffix(".jsonl")
    return result, result.with_name(stem + REJECTS), result.with_name(metrics_file or stem + METRICS)


def check_result(result: Path, raw: Path, metrics_file: str) -> None:
    """Whether the files can be written, and are not there or were made of the raw sample in `raw`. Raises `UsageError`."""
    for folder in (raw, *raw.parents):
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is a file, and a folder is needed there; {_WAY_OUT}")
    files = files_of(result, metrics_file)
    for file in files:
        if file.is_dir():
            raise UsageError(f"{file} is a folder, and a file is to be written there; {_WAY_OUT}")
    being_written = result.with_name(f".{result.name}.partial").exists()
    there = [each for each in files if each.exists()]
    if there and not being_written and not _was_made(result, raw):
        raise UsageError(f"{there[0]} is there, and this command has not made it as it is; {_WAY_OUT}")


def _was_made(result: Path, raw: Path) -> bool:
    """Whether the result was made of this raw sample, and is as it was made or gone."""
    try:
        made = msgspec.json.decode(result.with_name(f".{result.name}.done").read_bytes(), type=Made)
        inputs = [Path(path).parts[-2:] for path, *_ in made.job["input"]]
        sizes = {Path(path).name: size for path, size in made.outputs.items()}
        same = not result.exists() or result.stat().st_size == sizes[result.name]
        return same and result.name in sizes and inputs == [(raw.name, SAMPLE)]
    except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError):
        return False
