"""From the spool to the files that the user gets: in the order of the input, each whole or not there at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from kiseki.compress.config import CompressionConfig
from kiseki.compress.job.files import Files, Reject, Target, is_rejects
from kiseki.compress.job.spool import Result
from kiseki.compress.job.totals import Totals
from kiseki.compress.metrics import Metrics
from kiseki.errors import DatasetError, StorageError, UsageError
from kiseki.trajectory.replacing import replacing
from kiseki.trajectory.row_files import read_lines
from kiseki.trajectory.row_writers import RowWriter, open_writer


class Made(msgspec.Struct, frozen=True):
    """What is kept beside a complete output, so that it is not made again."""

    job: Any
    """What it was made of, and how."""
    outputs: dict[str, int]
    """Path → bytes."""
    over: int
    """Rows in it that are still over the target."""


class _Measured(msgspec.Struct, frozen=True):
    """What is read of an output's row."""

    compression_metrics: Metrics


def write_output(
    files: Files,
    config: CompressionConfig,
    results: Iterable[Result],
    job: Mapping[str, Any],
    totals: Totals,
    writing: Callable[[], None],
) -> None:
    """Every row of the job into its file, what cannot be used into the rejects, and the aggregate metrics; counts in `totals`.

    `writing` is called when all is written under temporary names, before the first file is put in its place. Raises
    `DatasetError`, and writes nothing, when not one row is a trajectory.
    """
    ready: list[tuple[Path, Path]] = []  # temporary name, place
    stale: list[Path] = []
    grouped = groupby(results, lambda result: result.file)
    group: tuple[int, Iterator[Result]] | None = next(grouped, None)
    first_problem = ""
    try:
        for number, target in enumerate(files.targets):
            rows: Iterator[Result] = iter(())
            if group is not None and group[0] == number:
                rows = group[1]
            problem, rejected = _write_file(target, config, rows, totals, ready)
            first_problem = first_problem or problem
            stale += [] if rejected or not is_rejects(target.rejects) else [target.rejects]
            if group is not None and group[0] == number:
                group = next(grouped, None)
        if totals.counts["rejected"] and not totals.trajectories:
            raise DatasetError(f"there is no trajectory in the input; {first_problem}")
        writing()
        sizes = {str(place.resolve()): temporary.stat().st_size for temporary, place in ready}
        for temporary, place in ready:
            temporary.replace(place)
        for path in stale:  # rejects of an earlier job
            path.unlink()
    except BaseException as error:
        for temporary, _ in ready:
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise StorageError(f"cannot write {files.output}: {error.strerror or error}") from error
        raise
    for folder in {place.parent for _, place in ready}:
        _sync(folder)
    if config.metrics:
        outputs = [{"path": path, "bytes": size} for path, size in sizes.items()]
        processing = {"tokenizer": job["tokenizer"], "outputs": outputs}
        settings = {"strategy": config.strategy, "target_max_tokens": config.target_max_tokens}
        with replacing(files.metrics) as file:
            file.write(msgspec.json.format(msgspec.json.encode(totals.document(settings, processing)), indent=2) + b"\n")
    with replacing(files.done) as file:
        file.write(msgspec.json.encode(Made(job, sizes, totals.counts["over"])))


def read_made(files: Files, job: Mapping[str, Any]) -> Made | None:
    """What is known of a complete output that this very job made and that stands as it was made; else None."""
    try:
        made = msgspec.json.decode(files.done.read_bytes(), type=Made)
        whole = all(Path(path).stat().st_size == size for path, size in made.outputs.items())
    except (OSError, msgspec.DecodeError):
        return None
    return made if whole and made.job == msgspec.to_builtins(job) and not files.partial.exists() else None


def read_totals(files: Files) -> Totals:
    """The tokens of a complete output's rows, before and after. Raises `UsageError` where the rows do not have them."""
    totals = Totals()
    for target in files.targets:
        for line, row in read_lines(target.output):
            try:
                metrics = msgspec.json.decode(row, type=_Measured).compression_metrics
            except msgspec.DecodeError:
                raise UsageError(
                    f"--plot: {target.output}, line {line} has no compression_metrics; --dry_run draws too"
                ) from None
            if metrics.segment_index == 0:
                totals.before.append(metrics.original_tokens)
            totals.after.append(metrics.compressed_tokens)
    return totals


def _write_file(
    target: Target, config: CompressionConfig, results: Iterable[Result], totals: Totals, ready: list[tuple[Path, Path]]
) -> tuple[str, bool]:
    """One output file and its rejects under temporary names, which go to `ready`; the first problem, and if there are rejects."""
    target.output.parent.mkdir(parents=True, exist_ok=True)
    output = _open(target.output, target.input, ready)
    rejects: RowWriter | None = None
    problem = ""

    def reject(line: int, reason: str, row: bytes) -> None:
        nonlocal rejects
        rejects = rejects or _open(target.rejects, None, ready)
        shown = row.decode(errors="backslashreplace")
        rejects.write(msgspec.json.encode(Reject(str(target.input), line, reason, shown)))

    try:
        for result in results:
            if result.rejected:
                totals.reject()
                problem = problem or f"{target.input}, line {result.line}: {result.rejected}"
                reject(result.line, result.rejected, result.rows[0])
                continue
            totals.add(result.metrics, result.assistant_tokens)
            for row, metrics in zip(result.rows, result.metrics, strict=True):
                if metrics.still_over_limit and not config.save_over_limit:
                    totals.leave_out()
                    target_tokens = f"still over the target of {metrics.target_max_tokens:,}"
                    reject(result.line, f"{metrics.compressed_tokens:,} tokens, {target_tokens}", row)
                else:
                    output.write(row)
    finally:
        output.close()
        if rejects is not None:
            rejects.close()
    return problem, rejects is not None


def _open(path: Path, like: Path | None, ready: list[tuple[Path, Path]]) -> RowWriter:
    temporary = path.with_name(f".{path.name}.tmp")
    writer = open_writer(path, temporary, like if like and like.suffix == ".parquet" else None)
    ready.append((temporary, path))
    return writer


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)  # the renames
    finally:
        os.close(handle)
