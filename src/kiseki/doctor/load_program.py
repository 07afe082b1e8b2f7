"""A program: loads files with pyarrow and the `datasets` library as a trainer does, and says on stdout as JSON what came of it.

A process of its own, so that neither the memory nor the settings of those libraries stay, and a crash in them is an answer too.
Its one argument is a file with a `LoadJob` as JSON. What it prints is a `LoadReport`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import msgspec

MOST_ARROW_BYTES = 2**28
"""Of a JSON file that pyarrow alone reads: it holds all of it."""


class LoadJob(msgspec.Struct, frozen=True):
    files: list[str]
    kind: Literal["json", "parquet"]
    cache: str
    """A folder for what the libraries write."""
    block_bytes: int
    """More than the longest line."""


class LoadReport(msgspec.Struct):
    """An error is None where it went well, and where it was not tried."""

    pyarrow: str = ""
    """Version; "" where it is not installed."""
    pyarrow_errors: dict[str, str] = {}
    """By file."""
    datasets: str = ""
    datasets_error: str | None = None
    rows: int = -1
    """That `datasets` found; -1 where it did not load."""
    times: list[str] = []
    """Columns that it made times of."""


def load(job: LoadJob) -> LoadReport:
    """Raises nothing."""
    report = LoadReport()
    if find_spec("pyarrow"):
        import pyarrow

        report.pyarrow = str(pyarrow.__version__)
        for file in job.files:
            if error := _with_pyarrow(file, job):
                report.pyarrow_errors[file] = error
    if find_spec("datasets"):
        _with_datasets(job, report)
    return report


def _with_pyarrow(file: str, job: LoadJob) -> str:
    import pyarrow.json
    import pyarrow.parquet

    try:
        if job.kind == "parquet":
            with pyarrow.parquet.ParquetFile(file) as opened:
                for _ in opened.iter_batches(256):
                    pass
        elif Path(file).stat().st_size <= MOST_ARROW_BYTES:
            options = pyarrow.json.ReadOptions(block_size=job.block_bytes)
            pyarrow.json.read_json(file, read_options=options)
    except Exception as error:  # whatever it says is the answer
        return _words(error)
    return ""


def _with_datasets(job: LoadJob, report: LoadReport) -> None:
    import datasets

    report.datasets = str(datasets.__version__)
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        made = datasets.load_dataset(job.kind, data_files=job.files, split="train", cache_dir=job.cache)
    except Exception as error:  # whatever it says is the answer
        report.datasets_error = _words(error)
        return
    report.rows = len(made)
    report.times = list(_times(made.features.arrow_schema, ""))


def _times(kind: Any, path: str) -> Iterator[str]:
    """Paths of times in an Arrow schema or type."""
    import pyarrow

    if pyarrow.types.is_timestamp(kind) if isinstance(kind, pyarrow.DataType) else False:
        yield path
    elif isinstance(kind, pyarrow.Schema) or pyarrow.types.is_struct(kind):
        for field in kind:
            yield from _times(field.type, f"{path}.{field.name}".lstrip("."))
    elif pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        yield from _times(kind.value_type, f"{path}[]")


def _words(error: BaseException) -> str:
    """Of the error that began it."""
    while cause := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        error = cause
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]


def main() -> None:
    job = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=LoadJob)
    with contextlib.redirect_stdout(sys.stderr):
        report = load(job)
    sys.stdout.write(msgspec.json.encode(report).decode() + "\n")


if __name__ == "__main__":
    main()
