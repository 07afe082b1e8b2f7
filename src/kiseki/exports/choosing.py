"""Which examples are written: every option that leaves some out, but for those that compare examples with each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from kiseki.errors import UsageError
from kiseki.exports.conditions import Condition, read_only
from kiseki.exports.drops import FINDERS
from kiseki.exports.job import DROPS, ExportJob
from kiseki.exports.overlap import Benchmark
from kiseki.exports.siblings import Numbered
from kiseki.exports.sources import LeftOut
from kiseki.trajectory.example import Example
from kiseki.trajectory.text import printable

CONTAMINATED = "in the benchmark"
_SHOWN = 200
"""Characters of what a benchmark and an example have in common that a report has."""


class Filters(msgspec.Struct, frozen=True):
    """What a job asks of each example by itself."""

    job: ExportJob
    conditions: tuple[Condition, ...]
    benchmark: Benchmark | None


def read_filters(job: ExportJob) -> Filters:
    """Raises `UsageError` for options that cannot be used, `DatasetError` for a benchmark that cannot be read."""
    if unknown := [each for each in job.drop if each not in FINDERS]:
        raise UsageError(f"--drop: {unknown[0]!r} is none of {', '.join(DROPS)}")
    if job.min_turns is not None and job.max_turns is not None and job.min_turns > job.max_turns:
        raise UsageError(f"--min_turns={job.min_turns} is above --max_turns={job.max_turns}: nothing would be left")
    return Filters(job, read_only(job.only), Benchmark(job.decontaminate) if job.decontaminate else None)


def chosen(
    source: Iterable[Example | LeftOut],
    filters: Filters,
    leave_out: Callable[[LeftOut], None],
    matched: Callable[[int], None],
) -> Iterator[Numbered]:
    """The examples that pass, with their numbers in the source; the others go to `leave_out`, what could not be read too.

    matched: Is told the benchmark's line of each example that is left out for it.
    """
    for number, example in enumerate(source):
        if isinstance(example, LeftOut):
            leave_out(example)
        elif found := _why_not(example, filters, matched):
            leave_out(left_out(example, *found))
        else:
            yield number, example


def left_out(example: Example, reason: str, detail: str = "") -> LeftOut:
    return LeftOut(example.key, example.prompt_index, example.sample_index, reason, detail)


def assistant_turns(example: Example) -> int:
    """Of the rollout: those in the prompt do not count."""
    return sum(each.role == "assistant" for each in example.messages[example.prompt_messages :])


def _why_not(example: Example, filters: Filters, matched: Callable[[int], None]) -> tuple[str, str] | None:
    """(reason, detail); the cheap questions first."""
    job = filters.job
    for condition in filters.conditions:
        if reason := condition(example):
            return reason, f"reward {example.reward:g}" if example.reward is not None and "reward" in reason else ""
    turns = assistant_turns(example)
    if job.min_turns is not None and turns < job.min_turns:
        return "too few turns", f"{turns}"
    if job.max_turns is not None and turns > job.max_turns:
        return "too many turns", f"{turns}"
    for kind in job.drop:
        reason, find = FINDERS[kind]
        if detail := find(example):
            return reason, detail
    if filters.benchmark and (found := filters.benchmark.find(example)):
        line, common = found
        matched(line)
        return CONTAMINATED, f"{filters.benchmark.path.name}:{line}: {printable(common, _SHOWN)}"
    return None
