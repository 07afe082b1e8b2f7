"""One export, from the source to the files: the door that `kiseki export`, `kiseki push` and `kiseki doctor` go through.

```
source ──▶ filters of one example ──▶ samples of a prompt together (where asked for) ──▶ at most N of them ──▶ format's rows
                                                                                           ▲ not a duplicate     │
report.json, left_out.jsonl ◀── counts of each step                                        └── what was written  ▼ files of splits
```
A row at a time: what has to be remembered of all of them is on the disk.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kiseki.errors import DatasetError, StorageError, UsageError
from kiseki.exports.choosing import chosen, read_filters
from kiseki.exports.conditions import read_split
from kiseki.exports.job import LEFT_OUT, MASKS, REPORT, ExportJob, ExportReport, WrittenFile
from kiseki.exports.loading import beside_of
from kiseki.exports.pipeline import DUPLICATE, Pipeline
from kiseki.exports.scratch import open_scratch
from kiseki.exports.siblings import Numbered, adjacent, alone, gathered
from kiseki.exports.sources import LeftOut, Source, count_of, examples, find_source
from kiseki.exports.staging import put_in_place, staging
from kiseki.exports.target import Target, check_free, earlier_report, find_target
from kiseki.formats.format import Format
from kiseki.formats.table import FORMATS, find_format
from kiseki.trajectory.example import Example
from kiseki.trajectory.replacing import replacing

if TYPE_CHECKING:
    from rich.console import Console

RETOKENIZED = ("rl", "atropos")
"""Formats of token ids."""
_REASONS_SHOWN = 5


def export(job: ExportJob, console: Console | None = None) -> ExportReport:
    """Do the job. What was there of an earlier export is replaced when all is written, and stays as it was when not.

    console: Where a progress bar shows. Default: nowhere.

    Raises `UsageError` for options that cannot be used, `DatasetError` for a source that cannot be read or of which nothing at
    all can be written (the message says why), `StorageError` where the disk does not take it.
    """
    started = time.time()
    format = find_format(job.to)
    _check(job, format)
    filters, splits = read_filters(job), read_split(job.split)
    source = find_source(job.source)
    target = find_target(job, source, format)
    if target.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise UsageError(f"--to={job.to} writes parquet, which needs pyarrow: pip install 'kiseki[parquet]'")
    beside = beside_of(format, target, splits, [WrittenFile(f"{splits[0].name}{target.suffix}", splits[0].name, 1, 0)])
    with _disk(target), staging(target) as folder:
        earlier = earlier_report(target)
        check_free(target, earlier, beside, [each.name for each in splits])
        with (folder / target.beside(LEFT_OUT)).open("wb") as reports, open_scratch(folder) as database:
            pipeline = Pipeline(job, filters, format, target, splits, folder, database, reports)
            passing = chosen(_read(source, console), filters, pipeline.leave_out, pipeline.match)
            pipeline.run(_siblings(passing, job, format, source, database, folder, console))
            files = pipeline.finish()
        report = pipeline.report(source, files, started)
        if not report.total_written:
            raise DatasetError(_nothing(report, pipeline.first))
        names = _finish_reports(folder, target, report)
        owned = [each.name.rstrip("/") for each in earlier.files] if earlier else []
        stale = [*owned, target.beside(REPORT), target.beside(LEFT_OUT)] if earlier else []
        put_in_place(folder, target, names, stale)
    return report


def _check(job: ExportJob, format: Format) -> None:
    if unknown := [each for each in job.mask if each not in MASKS]:
        raise UsageError(f"--mask: {unknown[0]!r} is none of {', '.join(MASKS)}")
    if job.mask and "masks" not in format.holds:
        able = ", ".join(name for name in FORMATS if "masks" in find_format(name).holds)
        raise UsageError(f"--mask: {job.to} has no place for loss flags; these formats have: {able}")
    if job.options.retokenize and job.to not in RETOKENIZED:
        raise UsageError(f"--retokenize: {job.to} has no token ids; these formats have: {', '.join(RETOKENIZED)}")
    if job.dedup not in ("", *DUPLICATE):
        raise UsageError(f"--dedup: {job.dedup!r} is none of {', '.join(DUPLICATE)}")


def _read(source: Source, console: Console | None) -> Iterator[Example | LeftOut]:
    """The source, with a bar on the console."""
    from kiseki.views.bar import counting_bar

    words, in_bytes = f"reading {source.path.name}", not source.is_run
    bar = counting_bar(console, words, count_of(source), in_bytes=in_bytes) if console else nullcontext(lambda done: None)
    with bar as show:
        done = 0

        def read(count: int) -> None:
            nonlocal done
            done += count
            show(done)

        yield from examples(source, read=read)


def _siblings(
    passing: Iterator[Numbered],
    job: ExportJob,
    format: Format,
    source: Source,
    database: sqlite3.Connection,
    folder: Path,
    console: Console | None,
) -> Iterator[Iterator[Numbered]]:
    if job.max_per_prompt is None and not format.per_prompt:
        return alone(passing)
    if source.is_run:
        return adjacent(passing, job.seed)
    return _shown(gathered(passing, job.seed, database, folder), console)


def _shown(groups: Iterator[Iterator[Numbered]], console: Console | None) -> Iterator[Iterator[Numbered]]:
    """With a bar of their own: the source's is at its end when the first one comes."""
    from kiseki.views.bar import counting_bar

    first = next(groups, None)
    if first is not None:
        with counting_bar(console, "writing prompts") if console else nullcontext(lambda done: None) as show:
            for number, group in enumerate(chain((first,), groups), 1):
                yield group
                show(number)


def _finish_reports(folder: Path, target: Target, report: ExportReport) -> list[str]:
    """What is to be put in place, the report last."""
    left, last = target.beside(LEFT_OUT), target.beside(REPORT)
    text = msgspec.json.format(msgspec.json.encode(report), indent=2)
    with replacing(folder / last) as file:
        file.write(text + b"\n")
    return [*(each.name.rstrip("/") for each in report.files), *([left] if report.total_left_out else []), last]


def _nothing(report: ExportReport, first: LeftOut | None) -> str:
    if first is None:
        return f"{report.source} has no examples: nothing to write"
    reasons = [f"{count:,} {reason}" for reason, count in report.left_out.items() if count]
    listed = ", ".join(reasons[:_REASONS_SHOWN]) + (", …" if len(reasons) > _REASONS_SHOWN else "")
    where = first.key or f"prompt {first.prompt_index}, sample {first.sample_index}"
    detail = f"; the first is {where}: {first.detail or first.reason}"
    return f"nothing to write: all {report.read:,} examples are left out ({listed}){detail}"


@contextmanager
def _disk(target: Target) -> Iterator[None]:
    """An error of the disk while the export's own files are written, in words."""
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        raise StorageError(f"cannot write {target.path}: {getattr(error, 'strerror', None) or error}") from error
