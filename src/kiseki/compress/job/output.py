"""From the spool to the files that the user gets: in the order of the input, each whole or not there at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from kiseki.compress.config import CompressionConfig
from kiseki.compress.job.files import Files, Target
from kiseki.compress.job.spool import Result
from kiseki.compress.job.totals import Totals
from kiseki.errors import DatasetError
from kiseki.trajectory.row_writers import RowWriter, open_writer


class Reject(msgspec.Struct, frozen=True):
    """One line of the rejects file."""

    file: str
    line: int
    reason: str
    text: str
    """The line as it was; bytes that are no UTF-8 as `\\xNN`."""


def write_output(files: Files, config: CompressionConfig, results: Iterable[Result], fingerprint: Mapping[str, Any]) -> Totals:
    """Every row of the job into its file, what cannot be used into the rejects, and the aggregate metrics; returns the totals.

    Raises `DatasetError`, and writes nothing, when not one row is a trajectory.
    """
    totals = Totals()
    with ExitStack() as stack:
        writers = [stack.enter_context(_Output(target)) for target in files.targets]
        first_problem = ""
        for result in results:
            target, writer = files.targets[result.file], writers[result.file]
            if result.rejected:
                totals.reject()
                first_problem = first_problem or f"{target.input}, line {result.line}: {result.rejected}"
                writer.reject(Reject(str(target.input), result.line, result.rejected, _shown(result.rows[0])))
                continue
            totals.add(result.metrics, result.assistant_tokens)
            for row, metrics in zip(result.rows, result.metrics, strict=True):
                if metrics.still_over_limit and not config.save_over_limit:
                    totals.leave_out()
                    reason = f"{metrics.compressed_tokens:,} tokens, still over the target of {metrics.target_max_tokens:,}"
                    writer.reject(Reject(str(target.input), result.line, reason, _shown(row)))
                else:
                    writer.write(row)
        if totals.counts["rejected"] and not totals.trajectories:
            raise DatasetError(f"there is no trajectory in the input; {first_problem}")
        outputs = [writer.finish() for writer in writers]
    if config.metrics:
        processing = {"tokenizer": fingerprint["tokenizer"], "job": fingerprint, "outputs": outputs}
        settings = {"strategy": config.strategy, "target_max_tokens": config.target_max_tokens}
        _replace(files.metrics, msgspec.json.format(msgspec.json.encode(totals.document(settings, processing)), indent=2) + b"\n")
    return totals


class _Output:
    """One output file, and its rejects, under temporary names until `finish`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._temporary = target.output.with_name(f".{target.output.name}.tmp")
        self._rejects_temporary = target.rejects.with_name(f".{target.rejects.name}.tmp")
        self._writer: RowWriter | None = None
        self._rejects: RowWriter | None = None

    def __enter__(self) -> _Output:
        self._target.output.parent.mkdir(parents=True, exist_ok=True)
        like = self._target.input if self._target.input.suffix == ".parquet" else None
        self._writer = open_writer(self._target.output, self._temporary, like)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._temporary.unlink(missing_ok=True)
            self._rejects_temporary.unlink(missing_ok=True)

    def write(self, row: bytes) -> None:
        assert self._writer is not None
        self._writer.write(row)

    def reject(self, reject: Reject) -> None:
        if self._rejects is None:
            self._rejects = open_writer(self._target.rejects, self._rejects_temporary)
        self._rejects.write(msgspec.json.encode(reject))

    def finish(self) -> dict[str, Any]:
        """Both files in their place; what the output is then."""
        assert self._writer is not None
        self._writer.close()
        if self._rejects is not None:
            self._rejects.close()
            self._rejects_temporary.replace(self._target.rejects)
        elif self._target.rejects != self._target.input:
            self._target.rejects.unlink(missing_ok=True)  # of an earlier job
        size = self._temporary.stat().st_size
        self._temporary.replace(self._target.output)
        _sync_folder(self._target.output.parent)
        return {"path": str(self._target.output.resolve()), "bytes": size}


def _shown(text: bytes) -> str:
    return text.decode(errors="backslashreplace")


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
