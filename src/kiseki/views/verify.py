"""A run checked against its own contract: the ledger in itself, then every file against the ledger. Changes nothing.

What is wrong becomes one line each, with what to do about it. The ledger comes first: as long as it is not whole, its files
may be the better copy, and nobody is told to make them anew.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rich.console import Console

from kiseki.errors import LedgerError, UsageError
from kiseki.ledger.ledger import IS_UNDONE, WANTED, Ledger
from kiseki.ledger.types import RunInfo
from kiseki.ledger.words import LEDGER_NAME, in_words
from kiseki.trajectory.record import decode_record, with_children
from kiseki.trajectory.types import Prompt
from kiseki.views.bar import counting_bar
from kiseki.views.build import (
    CHECKPOINT,
    CHILDREN,
    TRAJECTORIES,
    Views,
    ViewSettings,
    are_behind,
    are_stale,
    batch_path,
    load_view_settings,
)
from kiseki.views.compare import SHOWN, Fault, differences, is_same, told
from kiseki.views.filters import discard_reason
from kiseki.views.statistics import STATISTICS, make_statistics

RESTORE = (
    f"put a copy of {LEDGER_NAME} back, or move {LEDGER_NAME}* away: --resume then takes over the rows of the batch_*.jsonl files"
)
RESUME = "the same batch command with --resume plans them again"
PENDING = "pending"
STEP = 1000
"""Rows between two steps of a progress bar."""

T = TypeVar("T")

_decode_prompt = msgspec.msgpack.Decoder(Prompt).decode


class Verdict(msgspec.Struct, frozen=True):
    """What a check of a run has found."""

    outcomes: dict[str, dict[int, int]]
    """Outcome (`completed`, `partial`, `discarded:<reason>`, `failed:<error class>`, `pending`) → attempts → rollouts.
    Empty when the ledger cannot be read."""
    problems: tuple[str, ...]
    behind: bool = False
    """The last session was ended before it could make the files of the whole run; they are not compared."""

    def rollouts(self, outcome: str) -> int:
        """How many ended so, `failed` of whatever class."""
        return sum(sum(by.values()) for name, by in self.outcomes.items() if name.partition(":")[0] == outcome)


def verify(ledger: Ledger, console: Console) -> Verdict:
    """Check the run. Raises `UsageError` for one that never started."""
    ledger.db.execute("PRAGMA query_only = ON")
    try:
        with counting_bar(console, f"checking {LEDGER_NAME}"):
            damage = [f"{LEDGER_NAME}: {line}; {RESTORE}" for line in told(_damage(ledger))]
        if damage:  # no answer of it could be trusted
            return Verdict({}, tuple(damage))
        settings = _view_settings(ledger)
        outcomes = count_outcomes(ledger, settings)
        problems = list(_line_problems(ledger))
        if problems:
            return Verdict(outcomes, (*problems, "the run's files were not compared: that needs a ledger whose lines agree"))
        problems = [f"{LEDGER_NAME}: {line}; {RESTORE}" for line in told(_record_faults(ledger, console))]
        merge = f"kiseki merge {ledger.folder} makes it again" if not problems else f"first {RESTORE}"
        problems += [f"{line}; {remedy or merge}" for line, remedy in _view_problems(ledger, settings, console)]
        return Verdict(outcomes, tuple(problems), are_behind(ledger))
    except (sqlite3.DatabaseError, msgspec.DecodeError, UnicodeDecodeError) as error:
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(in_words(ledger.folder, error), LedgerError):
            raise  # the disk's doing, or another program's
        return unreadable(error)


def unreadable(error: Exception) -> Verdict:
    """Of a ledger that says nothing but `error`."""
    return Verdict({}, (f"{LEDGER_NAME}: it cannot be read: {error}; {RESTORE}",))


# ---- outcomes -----------------------------------------------------------------------------------------------------------

_FACTS = (
    "r.outcome, coalesce(a.error_class, ''), min(a.assistant_turns, 1), min(a.reasoning_turns, 1),"
    " coalesce(a.unknown_tools, '[]') != '[]', r.attempts"
)
_COUNTED = f"(({WANTED}) OR NOT {IS_UNDONE})"
"""What the run is about, and what else its files hold."""


def count_outcomes(ledger: Ledger, settings: ViewSettings) -> dict[str, dict[int, int]]:
    """As in `Verdict.outcomes`."""
    lines = ledger.db.execute(
        f"SELECT {_FACTS}, count(*) FROM prompts p JOIN rollouts r ON r.prompt_id = p.id"
        f" LEFT JOIN attempts a ON a.id = r.attempt_id WHERE {_COUNTED} GROUP BY 1, 2, 3, 4, 5, 6",
        (_num_samples(ledger),),
    )
    outcomes: dict[str, dict[int, int]] = {}
    for *facts, attempts, count in lines:
        by_attempts = outcomes.setdefault(_outcome(settings, *facts), {})
        by_attempts[attempts] = by_attempts.get(attempts, 0) + count
    return outcomes


def list_rollouts(ledger: Ledger) -> Iterator[str]:
    """Per (row, sample), in dataset order, those without a place in it last: prompt_index, sample_index, outcome, attempts,
    batch and configuration, with tabs between."""
    settings = _view_settings(ledger)
    for where, order in (("p.position IS NOT NULL", "p.position"), ("p.position IS NULL", "p.id")):
        lines = ledger.db.execute(
            f"SELECT coalesce(p.position, -1), r.sample_index, r.batch_num, coalesce(a.config, ''), {_FACTS}"
            " FROM prompts p CROSS JOIN rollouts r ON r.prompt_id = p.id LEFT JOIN attempts a ON a.id = r.attempt_id"
            f" WHERE {where} AND {_COUNTED} ORDER BY {order}, p.id, r.sample_index",
            (_num_samples(ledger),),
        )
        for position, sample, batch, config, *facts, attempts in lines:
            yield "\t".join(map(str, (position, sample, _outcome(settings, *facts), attempts, batch, config)))


def _outcome(settings: ViewSettings, outcome: str, error_class: str, turns: int, reasoning: int, unknown: int) -> str:
    if outcome == "failed":
        return f"failed:{error_class}"
    reason = outcome != PENDING and discard_reason(
        assistant_turns=turns,
        reasoning_turns=reasoning,
        has_unknown_tools=bool(unknown),
        reasoning_filter=settings.reasoning_filter,
    )
    return f"discarded:{reason}" if reason else outcome


def _view_settings(ledger: Ledger) -> ViewSettings:
    settings = load_view_settings(ledger)
    if settings is None:
        raise UsageError(f"{ledger.folder} holds a run that never started; there is nothing to verify")
    return settings


def _num_samples(ledger: Ledger) -> int:
    return msgspec.json.decode(ledger.get_meta("run"), type=RunInfo).num_samples


# ---- the ledger ---------------------------------------------------------------------------------------------------------


def _damage(ledger: Ledger) -> Iterator[Fault]:
    for (line,) in ledger.db.execute(f"PRAGMA integrity_check({SHOWN})"):
        if line != "ok":
            yield "it is damaged", line.replace("\n", " ")


_NAME = "coalesce(p.position, -1) || '/' || r.sample_index"
_ROLLOUTS = "FROM prompts p JOIN rollouts r ON r.prompt_id = p.id"
_OWN_DONE = "SELECT 1 FROM attempts a WHERE a.rollout_id = r.id AND a.outcome IN ('completed', 'partial')"
# more than one line per (prompt, sample) is what the unique index keeps out, and `integrity_check` looks after that
_LINE_CHECKS: tuple[tuple[str, str, str], ...] = (
    (
        "rows of the dataset without a rollout",
        RESUME,
        "WITH RECURSIVE samples (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM samples WHERE n + 1 < :samples)"
        " SELECT p.position || '/' || n FROM prompts p CROSS JOIN samples WHERE p.position IS NOT NULL"
        " AND NOT EXISTS (SELECT 1 FROM rollouts r WHERE r.prompt_id = p.id AND r.sample_index = n) ORDER BY p.position, n",
    ),
    (
        "places in the dataset that several prompts have",
        RESUME,
        "SELECT position FROM prompts WHERE position IS NOT NULL GROUP BY position HAVING count(*) > 1",
    ),
    (
        "rows without their prompt",
        RESTORE,
        "SELECT coalesce(position, -1) FROM prompts WHERE id NOT IN (SELECT prompt_id FROM payloads) ORDER BY position",
    ),
    (
        "rollouts whose attempts are not as many as counted, numbered from 1",
        RESTORE,
        f"SELECT {_NAME} {_ROLLOUTS} LEFT JOIN attempts a ON a.rollout_id = r.id GROUP BY r.id HAVING r.attempts != count(a.id)"
        " OR count(a.id) != count(DISTINCT a.attempt) OR min(a.attempt) != 1 OR max(a.attempt) != count(a.id)",
    ),
    (
        "rollouts whose outcome is that of no attempt of theirs",
        RESTORE,
        f"SELECT {_NAME} {_ROLLOUTS} LEFT JOIN attempts a ON a.id = r.attempt_id WHERE r.outcome != '{PENDING}'"
        " AND (a.id IS NULL OR a.rollout_id != r.id OR a.outcome != r.outcome)",
    ),
    (
        "rollouts that are open although an attempt of theirs counts",
        RESTORE,
        f"SELECT {_NAME} {_ROLLOUTS} WHERE {IS_UNDONE} AND EXISTS ({_OWN_DONE})"
        f" OR r.outcome = '{PENDING}' AND r.attempt_id IS NOT NULL",
    ),
    (
        "rollouts paid for twice",
        "the first attempt counts and nothing is missing, but this should not be: please report it",
        f"SELECT {_NAME} {_ROLLOUTS} JOIN attempts a ON a.rollout_id = r.id WHERE a.outcome IN ('completed', 'partial')"
        " GROUP BY r.id HAVING count(*) > 1",
    ),
)


def _line_problems(ledger: Ledger) -> Iterator[str]:
    """Where the lines of the ledger contradict each other or the contract in `ledger/schema.py`."""
    orphans = told(
        (f"lines of {table} that belong to no line of {parent}", f"id {rowid}")
        for table, rowid, parent, _ in ledger.db.execute("PRAGMA foreign_key_check")
    )
    yield from (f"{LEDGER_NAME}: {line}; {RESTORE}" for line in orphans)
    samples = _num_samples(ledger)
    for kind, remedy, query in _LINE_CHECKS:
        names = ledger.db.execute(query, {"samples": samples} if ":samples" in query else {})
        yield from (f"{LEDGER_NAME}: {line}; {remedy}" for line in told((kind, str(name)) for (name,) in names))


def _record_faults(ledger: Ledger, console: Console) -> Iterator[Fault]:
    """Prompts and records that cannot be read, or are another's."""
    db = ledger.db
    for position, payload in db.execute(
        "SELECT coalesce(p.position, -1), y.payload FROM payloads y JOIN prompts p ON p.id = y.prompt_id"
    ):
        try:
            _decode_prompt(payload)
        except ValueError:
            yield "prompts that cannot be read", str(position)
    tools = {"", *ledger.tool_schemas()}
    configs = {"", *(name for (name,) in db.execute("SELECT hash FROM configs"))}
    (total,) = db.execute("SELECT count(*) FROM attempts").fetchone()
    lines = db.execute(
        f"SELECT {_NAME}, lower(hex(p.key)) || '-' || r.sample_index, r.sample_index, a.outcome, a.config, a.record"
        " FROM attempts a CROSS JOIN rollouts r ON r.id = a.rollout_id CROSS JOIN prompts p ON p.id = r.prompt_id"
    )
    with counting_bar(console, "reading records", total) as done:
        for name, key, sample, outcome, config, packed in _counted(lines, done):
            try:
                record = decode_record(packed)
            except (ValueError, MemoryError):
                yield "records that cannot be read", name
                continue
            if (record.key, record.sample_index) != (key, sample):
                yield "records of another rollout", name
            if record.outcome != outcome:
                yield "records with another outcome than the ledger", name
            if any(each.tools_hash not in tools for each in with_children(record)):
                yield "records whose tool schemas are not there", name
            if config not in configs:
                yield "attempts whose configuration is not there", name


# ---- the files ----------------------------------------------------------------------------------------------------------


def _view_problems(ledger: Ledger, settings: ViewSettings, console: Console) -> Iterator[tuple[str, str]]:
    """Where a file says something else than would be written now, and what to do about it where that is not a merge."""
    views = Views(ledger, settings)
    if are_behind(ledger):  # of batch files there are those of batches that had ended
        if not are_stale(ledger):
            yield from _batch_problems(ledger.folder, views, console, all_of_them=False)
        return
    path = ledger.folder / TRAJECTORIES
    with counting_bar(console, f"comparing {TRAJECTORIES}") as done:
        if not path.exists():
            yield f"{TRAJECTORIES}: it is not there", ""
        elif not is_same(path, _counted(views.trajectory_lines(), done)):
            yield from _told_of(path, views.trajectory_lines())
    yield from _child_problems(ledger.folder / CHILDREN, views)
    yield from _batch_problems(ledger.folder, views, console, all_of_them=True)
    yield from _summary_problems(ledger.folder / CHECKPOINT, views.checkpoint(), "last_updated")
    statistics = msgspec.to_builtins(make_statistics(ledger, settings))
    yield from _summary_problems(ledger.folder / STATISTICS, statistics, "completed_at")


def _child_problems(path: Path, views: Views) -> Iterator[tuple[str, str]]:
    if next(views.child_lines(), None) is None:
        if path.exists():
            yield f"{path.name}: no sub-agent of the run has a row", ""
    elif not path.exists():
        yield f"{path.name}: it is not there", ""
    elif not is_same(path, views.child_lines()):
        yield from _told_of(path, views.child_lines())


def _batch_problems(folder: Path, views: Views, console: Console, *, all_of_them: bool) -> Iterator[tuple[str, str]]:
    numbers = views.stale_batches(all_of_them=True)
    known = {batch_path(folder, number).name for number in numbers}
    found = sorted(path.name for path in folder.glob("batch_*.jsonl") if re.fullmatch(r"batch_\d+\.jsonl", path.name))
    faults, different = list[Fault](), list[int]()
    with counting_bar(console, "comparing batch files", len(numbers)) as done:
        for number in _counted(numbers, done, 1):
            path = batch_path(folder, number)
            if next(views.batch_lines(number), None) is None:
                if path.exists():
                    faults.append(("batch files of a batch without a kept row", path.name))
            elif not path.exists():
                if all_of_them:
                    faults.append(("batch files that are not there", path.name))
            elif not is_same(path, views.batch_lines(number)):
                different.append(number)
    for number in different[:SHOWN]:
        yield from _told_of(batch_path(folder, number), views.batch_lines(number))
    faults += [("further batch files that differ", batch_path(folder, number).name) for number in different[SHOWN:]]
    yield from ((line, "") for line in told(faults))
    strange = (("batch files that are no part of the run", name) for name in found if name not in known)
    yield from ((line, "move them away") for line in told(strange))


def _told_of(path: Path, lines: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    return ((f"{path.name}: {line}", "") for line in told(differences(path, lines)))


def _summary_problems(path: Path, wanted: dict[str, Any], stamp: str) -> Iterator[tuple[str, str]]:
    """A file that holds one JSON object, whose `stamp` may be any."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        yield f"{path.name}: it is not there", ""
        return
    except (ValueError, RecursionError):
        yield f"{path.name}: it is no JSON object", ""
        return
    other = [name for name in wanted | found if name != stamp and (name not in found or found[name] != wanted.get(name, ...))]
    yield from ((f"{path.name}: {line}", "") for line in told(("fields that say something else", name) for name in other))


def _counted(items: Iterable[T], done: Callable[[int], None], step: int = STEP) -> Iterator[T]:
    """The items, `done` being told how many there were."""
    for number, item in enumerate(items, 1):
        yield item
        if number % step == 0:
            done(number)
