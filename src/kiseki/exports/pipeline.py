"""From examples that passed the filters to rows in files, and the counts of all that happened to them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from kiseki import __version__
from kiseki.exports.choosing import CONTAMINATED, Filters, left_out
from kiseki.exports.conditions import Split, split_of
from kiseki.exports.drops import FINDERS
from kiseki.exports.job import ExportJob, ExportReport, WrittenFile
from kiseki.exports.loading import beside_of
from kiseki.exports.masks import with_masks
from kiseki.exports.siblings import Numbered
from kiseki.exports.sources import LeftOut, Source
from kiseki.exports.target import Target
from kiseki.exports.writing import SplitWriter, open_split, write_beside
from kiseki.formats.format import Format, Row, Unfit
from kiseki.trajectory.example import Example, without_tail

if TYPE_CHECKING:
    import sqlite3

    from kiseki.exports.duplicates import Duplicates

DUPLICATE = {"exact": "duplicate", "near": "near duplicate"}
OVER_THE_CAP, SAME_PROMPT, NO_ROWS, NO_TURN = "over max_per_prompt", "another row of its prompt", "no row", "no assistant turn"
MOST_MATCHED = 1000
"""Lines of a benchmark that a report counts."""


class Pipeline:
    """What is written and what is not, of examples that passed the filters."""

    def __init__(
        self,
        job: ExportJob,
        filters: Filters,
        format: Format,
        target: Target,
        splits: tuple[Split, ...],
        folder: Path,
        database: sqlite3.Connection,
        reports: IO[bytes],
    ) -> None:
        self._job, self._format, self._target, self._splits = job, format, target, splits
        self._folder, self._reports = folder, reports
        self._frames = filters.benchmark.frames if filters.benchmark else ()
        self._duplicates = _open_duplicates(job, database)
        self._most = 1 if format.per_prompt else job.max_per_prompt
        self._writers: dict[str, SplitWriter] = {}
        self.first: LeftOut | None = None
        """The first that was left out."""
        self._left_out: Counter[str] = Counter()
        self._written: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self._matched: Counter[int] = Counter()
        self._cut = self._masked = 0

    def leave_out(self, each: LeftOut) -> None:
        self.first = self.first or each
        self._left_out[each.reason] += 1
        self._reports.write(msgspec.json.encode(each) + b"\n")

    def match(self, line: int) -> None:
        self._matched[line] += 1

    def run(self, groups: Iterable[Iterator[Numbered]]) -> None:
        for group in groups:
            self._write_group(group)

    def _write_group(self, group: Iterator[Numbered]) -> None:
        """Of examples that come best first, as many as are wanted, in the order of the source."""
        ready: list[tuple[int, Example, list[Row]]] = []
        for number, example in group:
            made = self._rows_of(example) if len(ready) != self._most else self._not_needed(example)
            if isinstance(made, LeftOut):
                self.leave_out(made)
            else:
                ready.append((number, example, made))
        for _, example, rows in sorted(ready, key=lambda each: each[0]):
            self._write(example, rows)

    def _not_needed(self, example: Example) -> LeftOut:
        if self._format.per_prompt:
            return left_out(example, SAME_PROMPT)
        return left_out(example, OVER_THE_CAP, f"the {self._most} best are written")

    def _rows_of(self, example: Example) -> list[Row] | LeftOut:
        format = self._format
        signature = self._duplicates.sign(example) if self._duplicates else None
        if self._duplicates and (same := self._duplicates.find(signature)):
            return left_out(example, DUPLICATE[self._job.dedup], f"of {same}")
        if not format.per_prompt and not any(each.role == "assistant" for each in example.messages):
            return left_out(example, NO_TURN)
        whole = example
        if format.ends_on_assistant:
            example = without_tail(example)
        example, masked = with_masks(example, self._job.mask)
        try:
            rows = list(format.write(example, self._job.options))
        except Unfit as unfit:
            return left_out(example, unfit.reason, unfit.detail)
        if not rows:
            return left_out(example, NO_ROWS, f"{format.name} makes none of it")
        self._cut += len(example.messages) < len(whole.messages)
        self._masked += masked
        if self._duplicates:
            self._duplicates.add(signature, whole.key or f"prompt {whole.prompt_index}, sample {whole.sample_index}")
        return rows

    def _write(self, example: Example, rows: list[Row]) -> None:
        split = split_of(example, self._splits, self._job.seed)
        if split not in self._writers:
            self._writers[split] = open_split(self._folder, split, self._target, self._format, self._job.shard_rows)
        for row in rows:
            self._writers[split].write(row)
        self._written[split] += 1
        self._rows[split] += len(rows)

    def finish(self) -> list[WrittenFile]:
        """The files of all rows, in the staging folder under their final names, and what belongs beside them."""
        files = [file for split in self._splits if (writer := self._writers.get(split.name)) for file in writer.finish()]
        if files and (beside := beside_of(self._format, self._target, self._splits, files)):
            files += write_beside(self._folder, beside)
        return files

    def report(self, source: Source, files: list[WrittenFile], started: float) -> ExportReport:
        names, path = [each.name for each in self._splits], self._job.decontaminate
        written = {name: self._written[name] for name in names}
        left = dict(self._left_out.most_common()) | {reason: 0 for reason in _asked(self._job) if not self._left_out[reason]}
        return ExportReport(
            kiseki=__version__,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            source=str(source.path),
            source_kind="run" if source.is_run else "files",
            format=self._format.name,
            target=str(self._target.path),
            settings=settings_of(self._job),
            read=sum(written.values()) + sum(left.values()),
            written=written,
            rows={name: self._rows[name] for name in names},
            left_out=left,
            cut_tails=self._cut,
            masked_turns=self._masked,
            frames=self._frames,
            matched={f"{path.name}:{line}": count for line, count in self._matched.most_common(MOST_MATCHED)} if path else {},
            seconds=round(time.time() - started, 3),
            files=tuple(files),
        )


def _asked(job: ExportJob) -> list[str]:
    """Reasons that were asked for: that nothing was left out for them is worth saying."""
    found = [FINDERS[kind][0] for kind in job.drop] + [CONTAMINATED] * (job.decontaminate is not None)
    return found + ([DUPLICATE[job.dedup]] if job.dedup else [])


def settings_of(job: ExportJob) -> dict[str, Any]:
    """The options of a job that are not as they are by themselves; the seed always."""
    given: dict[str, Any] = msgspec.to_builtins(job, enc_hook=str)
    plain: dict[str, Any] = msgspec.to_builtins(ExportJob(source=job.source, to=job.to), enc_hook=str)
    own = {name: value for name, value in given.pop("options").items() if value}
    return {name: value for name, value in given.items() if value != plain[name] or name == "seed"} | own


def _open_duplicates(job: ExportJob, database: sqlite3.Connection) -> Duplicates | None:
    from kiseki.exports.duplicates import ExactDuplicates, NearDuplicates

    kinds: dict[str, Callable[[sqlite3.Connection], Duplicates]] = {"exact": ExactDuplicates, "near": NearDuplicates}
    return kinds[job.dedup](database) if job.dedup else None
