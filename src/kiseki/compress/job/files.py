"""Which files are read and which are written: a file, a folder of files, or a run's folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import msgspec

from kiseki.compress.config import CompressionConfig
from kiseki.compress.rows import read_trajectory
from kiseki.errors import DatasetError, UsageError
from kiseki.trajectory.row_files import SUFFIXES, is_row_file, read_lines

RUN_FILES = ("run.db", "trajectories.jsonl")
"""A folder with both is a run's: its batch files hold the same rows once more."""
REJECTS = "_rejects.jsonl"
METRICS = "_metrics.json"
FOLDER_METRICS = "compression_metrics.json"
LOOKED_AT = 20
"""Rows by which a file in a folder is judged."""

Note = Callable[[str], None]


class Reject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a rejects file."""

    file: str
    line: int
    reason: str
    text: str
    """The line as it was; bytes that are no UTF-8 as `\\xNN`."""


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
    done: Path
    """What job the output was made by, once it is complete."""

    @property
    def in_place(self) -> bool:
        """Whether an output takes the place of an input."""
        outputs = {target.output.resolve() for target in self.targets}
        return any(target.input.resolve() in outputs for target in self.targets)

    @property
    def size(self) -> int:
        """Bytes of input."""
        return sum(target.input.stat().st_size for target in self.targets)


def find_files(source: Path, output: Path | None, config: CompressionConfig, note: Note) -> Files:
    """What to do for `--input` and `--output`. `note` is told of files in a folder that are left out.

    Raises `UsageError` or `DatasetError` when there is nothing to read, or the output cannot be where it is wanted.
    """
    if not source.exists():
        raise DatasetError(f"--input: there is no {source}")
    find = _of_folder if source.is_dir() else _of_file
    files = find(source, output, config, note)
    _check(files)
    return files


def _of_file(source: Path, output: Path | None, config: CompressionConfig, note: Note) -> Files:
    if not is_row_file(source):
        raise UsageError(f"--input: {source} is none of {', '.join(SUFFIXES)}, and no folder")
    output = output or source.with_name(_stem(source) + config.output_suffix + source.name[len(_stem(source)) :])
    if output.is_dir():
        output = output / source.name
    elif not is_row_file(output):
        raise UsageError(f"--output: {output} is none of {', '.join(SUFFIXES)}, and no folder")
    if output.suffix == ".parquet" and source.suffix != ".parquet":
        raise UsageError("--output: parquet needs parquet input; choose .jsonl, .jsonl.gz or .jsonl.zst")
    target = Target(source, output, output.with_name(_stem(output) + REJECTS))
    return _files((target,), output, output.with_name(config.metrics_file or _stem(output) + METRICS))


def _of_folder(folder: Path, output: Path | None, config: CompressionConfig, note: Note) -> Files:
    if all((folder / name).exists() for name in RUN_FILES):
        found = [folder / RUN_FILES[1]]
    else:
        there = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
        rows = sorted(path for path in there if is_row_file(path))
        found = []
        for path in rows:
            if why := _why_left_out(path, set(rows), config):
                note(f"{path} is left out: {why}")
            else:
                found.append(path)
    if not found:
        raise DatasetError(f"--input: {folder} has no trajectories: no file in it ({', '.join(SUFFIXES)}) has any")
    output = output or folder.resolve().with_name(folder.resolve().name + config.output_suffix)
    if (output.exists() and not output.is_dir()) or is_row_file(output):
        raise UsageError(f"--output: {output} is a file, and --input is a folder; give a folder")
    stems = Counter(_stem(path) for path in found)
    names = {path: path.name if stems[_stem(path)] > 1 else _stem(path) for path in found}
    targets = tuple(Target(path, output / path.name, output / (names[path] + REJECTS)) for path in found)
    return _files(targets, output, output / (config.metrics_file or FOLDER_METRICS))


def _files(targets: tuple[Target, ...], output: Path, metrics: Path) -> Files:
    name = output.resolve().name
    return Files(targets, output, metrics, output.with_name(f".{name}.partial"), output.with_name(f".{name}.done"))


def _why_left_out(path: Path, beside: set[Path], config: CompressionConfig) -> str:
    """Why a file in a folder is not read, "" where it is. One that cannot be read is an error, since its rows would be missed."""
    stem = _stem(path)
    original = path.with_name(stem.removesuffix(config.output_suffix) + path.name[len(stem) :])
    if original != path and original in beside:
        return f"it is what was made of {original.name} before"
    if is_rejects(path):
        return "it holds what could not be read before"
    problem = ""
    for line, row in islice(read_lines(path), LOOKED_AT):
        try:
            read_trajectory(row)
        except ValueError as error:
            problem = problem or f"line {line}: {error}"
        else:
            return ""
    return problem  # "" for an empty file, which comes out empty


def is_rejects(path: Path) -> bool:
    """Whether it is a rejects file that was written here."""
    try:
        first = next(iter(read_lines(path)), None)
        return first is not None and bool(msgspec.json.decode(first[1], type=Reject))
    except (msgspec.DecodeError, DatasetError):
        return False


def _check(files: Files) -> None:
    """Raises `UsageError` where something would be written over what is not ours."""
    inputs = {target.input.resolve() for target in files.targets}
    written = [target.rejects for target in files.targets]
    outputs = {target.output.resolve() for target in files.targets}
    for path in (files.metrics, *written):
        if path.resolve() in inputs | outputs or path.is_dir():
            raise UsageError(f"{path} would be written over: choose another --output, or metrics.output_file")
    for path in written:
        if path.exists() and path.stat().st_size and not is_rejects(path):
            raise UsageError(f"{path} is there and was not written here: move it, or choose another --output")


def _stem(path: Path) -> str:
    """The name without the suffix that says what it holds."""
    return path.name.removesuffix(next(suffix for suffix in (*SUFFIXES[::-1], "") if path.name.endswith(suffix)))
