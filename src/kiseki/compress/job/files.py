"""Which files are read and which are written: a file, a folder of files, or a run's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from kiseki.compress.turns import read_trajectory
from kiseki.errors import DatasetError, UsageError
from kiseki.trajectory.row_files import SUFFIXES, is_row_file, read_lines

RUN_FILES = ("run.db", "trajectories.jsonl")
"""A folder with both is a run's: its batch files hold the same rows once more."""
REJECTS = "_rejects.jsonl"
METRICS = "_metrics.json"
FOLDER_METRICS = "compression_metrics.json"


class Target(msgspec.Struct, frozen=True):
    """One file to be written, from one file."""

    input: Path
    output: Path
    rejects: Path


class Files(msgspec.Struct, frozen=True):
    """What one job reads and writes."""

    targets: tuple[Target, ...]
    output: Path
    """The file or folder that the user gets."""
    metrics: Path
    partial: Path
    """What is done so far, until the output is complete."""


def find_files(source: Path, output: Path | None, suffix: str, metrics_file: str, note: Callable[[str], None]) -> Files:
    """What to do for `--input` and `--output`. `note` is told of files in a folder that hold no trajectories.

    Raises `UsageError` or `DatasetError` when there is nothing to read, or the output cannot be where it is wanted.
    """
    if not source.exists():
        raise DatasetError(f"--input: there is no {source}")
    if source.is_dir():
        return _of_folder(source, output, suffix, metrics_file, note)
    if not is_row_file(source):
        raise UsageError(f"--input: {source} is none of {', '.join(SUFFIXES)}, and no folder")
    output = output or source.with_name(_stem(source) + suffix + source.name[len(_stem(source)) :])
    if output.is_dir():
        output = output / source.name
    elif not is_row_file(output):
        raise UsageError(f"--output: {output} is none of {', '.join(SUFFIXES)}, and no folder")
    _check_format(source, output)
    beside = output.with_name(_stem(output) + METRICS)
    metrics = output.with_name(metrics_file) if metrics_file else beside
    return Files((_target(source, output),), output, metrics, output.with_name(f".{output.name}.partial"))


def _of_folder(folder: Path, output: Path | None, suffix: str, metrics_file: str, note: Callable[[str], None]) -> Files:
    if all((folder / name).exists() for name in RUN_FILES):
        found = [folder / RUN_FILES[1]]
    else:
        found = sorted(
            path for path in folder.iterdir() if path.is_file() and is_row_file(path) and not path.name.startswith(".")
        )
        found = [path for path in found if not path.name.endswith(REJECTS) and _holds_trajectories(path, note)]
    if not found:
        raise DatasetError(f"--input: {folder} has no trajectories: no file in it ({', '.join(SUFFIXES)}) has any")
    output = output or folder.resolve().with_name(folder.resolve().name + suffix)
    if (output.exists() and not output.is_dir()) or is_row_file(output):
        raise UsageError(f"--output: {output} is a file, and --input is a folder; give a folder")
    metrics = output / (metrics_file or FOLDER_METRICS)
    targets = tuple(_target(path, output / path.name) for path in found)
    return Files(targets, output, metrics, output.with_name(f".{output.name}.partial"))


def _holds_trajectories(path: Path, note: Callable[[str], None]) -> bool:
    """Judged by its first row; a file that cannot be read is an error, since its rows would be missed."""
    for line, row in read_lines(path):
        try:
            read_trajectory(row)
        except ValueError as problem:
            note(f"{path} is left out: line {line}: {problem}")
            return False
        return True
    return True  # an empty file comes out empty


def _target(source: Path, output: Path) -> Target:
    return Target(source, output, output.with_name(_stem(output) + REJECTS))


def _stem(path: Path) -> str:
    """The name without the suffix that says what it holds."""
    return path.name.removesuffix(next(suffix for suffix in (*SUFFIXES[::-1], "") if path.name.endswith(suffix)))


def _check_format(source: Path, output: Path) -> None:
    if output.suffix == ".parquet" and source.suffix != ".parquet":
        raise UsageError("--output: parquet needs parquet input; choose .jsonl, .jsonl.gz or .jsonl.zst")
