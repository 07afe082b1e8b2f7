"""Where examples come from: a run's ledger, or files of rows that were made anywhere.

A row that cannot be read is not an error: it comes as `LeftOut`, to be reported with all the others that are not written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from kiseki.errors import DatasetError
from kiseki.exports.job import LEFT_OUT
from kiseki.formats.reading import read_row
from kiseki.formats.table import reader_for
from kiseki.ledger.opening import open_reader
from kiseki.ledger.words import LEDGER_NAME
from kiseki.trajectory.example import Example
from kiseki.trajectory.json_rows import decode_row
from kiseki.trajectory.record import decode_record
from kiseki.trajectory.row_files import SUFFIXES, is_row_file, read_lines
from kiseki.views.build import load_view_settings
from kiseki.views.examples import example_of
from kiseki.views.filters import discard_reason

FAILED, DISCARDED = "failed", "discarded: "
"""Reasons why a rollout of a run is no example at all; the second goes on with the filter's."""


class LeftOut(msgspec.Struct, frozen=True):
    """An example, or what should have been one, that is not written."""

    key: str
    """The rollout's key, or file and line."""
    prompt_index: int
    sample_index: int
    reason: str
    """A word or two, the same for all of its kind."""
    detail: str = ""


class Source(msgspec.Struct, frozen=True):
    """A run's folder, or files."""

    path: Path
    files: tuple[Path, ...]
    """Empty for a run: its ledger is read."""

    @property
    def is_run(self) -> bool:
        return not self.files


def find_source(path: Path) -> Source:
    """The run in a folder, else the files of rows in it, else the file itself. Raises `DatasetError` where there is nothing."""
    if not path.exists():
        raise DatasetError(f"there is no {path}")
    if path.name == LEDGER_NAME:
        raise DatasetError(f"{path} is a run's ledger; give its folder: {path.parent}")
    if not path.is_dir():
        return Source(path, (path,))
    if (path / LEDGER_NAME).exists():
        return Source(path, ())
    there = (each for each in path.iterdir() if each.is_file() and is_row_file(each))
    files = tuple(sorted(each for each in there if not each.name.endswith(LEFT_OUT)))  # the reports of exports are no data
    if not files:
        raise DatasetError(f"{path} has neither a {LEDGER_NAME} nor files that end in {', '.join(SUFFIXES)}")
    return Source(path, files)


def count_of(source: Source) -> int:
    """How much `examples` will report to have read at its end: rollouts of a run, bytes of files."""
    if not source.is_run:
        return sum(file.stat().st_size for file in source.files)
    with open_reader(source.path) as ledger:
        done = ledger.db.execute("SELECT count(*) FROM rollouts WHERE outcome IN ('completed', 'partial')").fetchone()
    return int(done[0])


def examples(source: Source, *, read: Callable[[int], None] = lambda count: None) -> Iterator[Example | LeftOut]:
    """Every example in the order of the run's dataset or of the files, one at a time.

    read: Is told how much has been read since it was last told, in the unit of `count_of`.

    Raises `DatasetError` for a file that cannot be read as a whole, `LedgerError` for a run.
    """
    return _of_run(source.path, read) if source.is_run else _of_files(source.files, read)


def _of_run(folder: Path, read: Callable[[int], None]) -> Iterator[Example | LeftOut]:
    with open_reader(folder) as ledger:
        settings = load_view_settings(ledger)
        schemas = ledger.tool_schemas()
        for done in ledger.done_rollouts():
            read(1)
            discarded = discard_reason(
                assistant_turns=done.assistant_turns,
                reasoning_turns=done.reasoning_turns,
                has_unknown_tools=done.unknown_tools != "[]",
                reasoning_filter=bool(settings and settings.reasoning_filter),
            )
            if discarded:
                yield LeftOut(_key(done.record), done.position, done.sample_index, f"{DISCARDED}{discarded}")
                continue
            try:
                yield example_of(done, schemas)
            except (ValueError, KeyError, MemoryError) as error:
                yield LeftOut("", done.position, done.sample_index, "damaged record", str(error))
        failed = ledger.db.execute(
            "SELECT coalesce(p.position, -1), r.sample_index, a.error_class, a.record"
            " FROM rollouts r JOIN prompts p ON p.id = r.prompt_id JOIN attempts a ON a.id = r.attempt_id"
            " WHERE r.outcome = 'failed' ORDER BY 1, 2"
        )
        for position, sample, error_class, record in failed:
            yield LeftOut(_key(record), position, sample, FAILED, error_class)


def _key(record: bytes) -> str:
    try:
        return decode_record(record).key
    except (ValueError, MemoryError):  # a damaged one has no name, and is left out all the same
        return ""


def _of_files(files: tuple[Path, ...], read: Callable[[int], None]) -> Iterator[Example | LeftOut]:
    number = 0
    for file in files:
        reader = read_lines(file)
        before = 0
        for line, text in reader:
            read(reader.position - before)
            before = reader.position
            key = f"{file.name}:{line}"
            try:
                row = decode_row(text)
                if not isinstance(row, dict):
                    raise ValueError("it is not a JSON object")
                own = reader_for(row)
                yield own(row) if own else read_row(row, key=key, number=number)
            except ValueError as error:
                yield LeftOut(key, number, 0, "unreadable row", str(error))
            except (KeyError, TypeError, AttributeError, RecursionError) as error:  # other values than the columns promise
                yield LeftOut(key, number, 0, "unreadable row", f"{type(error).__name__}: {error}")
            number += 1
        read(reader.size - before)
