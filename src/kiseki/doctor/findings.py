"""What was found, grouped: memory grows with the kinds of problems, not with the rows that have them."""

from __future__ import annotations

import msgspec

from kiseki.doctor.kinds import KINDS, Severity, sections, severity_of
from kiseki.trajectory.text import printable

SHOWN = 10
"""Rows that are named of each group."""
_ORDER: dict[Severity, int] = {"lost": 0, "harm": 1, "note": 2}


class Problem(msgspec.Struct, frozen=True):
    """One, in the row at hand."""

    kind: str
    """Of `kinds.KINDS`."""
    detail: str = ""
    """What exactly; may hold words of the file."""
    where: str = ""
    """What sees it so: `template qwen3`, `TRL`; groups are kept apart by it. "" for everybody."""
    severity: Severity | None = None
    """None: as the kind has it."""


class Place(msgspec.Struct, frozen=True, order=True):
    file: str
    row: int
    """Line of a JSONL file, row of a parquet file, from 1; 0 for the file as a whole."""


class Group(msgspec.Struct):
    """Problems of one kind, seen by one reader."""

    kind: str
    where: str
    severity: Severity
    rows: int = 0
    """How many have it."""
    times: int = 0
    """How often it is there at all."""
    first: list[Place] = []
    details: list[str] = []
    """Of the first ones, each once."""


class Check(msgspec.Struct):
    """One thing that was looked at."""

    name: str
    count: int = 0
    unit: str = "rows"
    section: str = ""
    """Of the kinds that it finds (`kinds.sections`)."""
    where: str | None = None
    """Only those that are seen there; None for all."""
    note: str = ""
    """Why it was not done; "" where it was."""


class Findings:
    """Collects. Rows have to come in order, so that one with several problems of a kind is counted once."""

    def __init__(self, target: str = "") -> None:
        self._target = target
        self._groups: dict[tuple[str, str, Severity], Group] = {}
        self._last: dict[tuple[str, str, Severity], Place] = {}
        self.checks: list[Check] = []

    def add(self, problem: Problem, place: Place) -> None:
        severity = problem.severity or severity_of(problem.kind, self._target)
        key = (problem.kind, problem.where, severity)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(problem.kind, problem.where, severity)
        group.times += 1
        most = 3 if place.row else SHOWN  # files are few, and each has its own
        if len(group.details) < most and problem.detail and (detail := printable(problem.detail, 300)) not in group.details:
            group.details.append(detail)
        if self._last.get(key) != place:
            self._last[key] = place
            group.rows += 1
            if len(group.first) < SHOWN:
                group.first.append(place)

    def has(self, *kinds: str) -> bool:
        return any(kind in kinds for kind, _, _ in self._groups)

    def soften(self, kinds: tuple[str, ...], why: str) -> None:
        """What turned out to do no harm."""
        for key, group in self._groups.items():
            if key[0] in kinds:
                group.severity = "note"
                group.details.append(why)

    @property
    def groups(self) -> list[Group]:
        """The worst first, then in the order in which `KINDS` has them."""
        kinds = list(KINDS)
        return sorted(self._groups.values(), key=lambda each: (_ORDER[each.severity], kinds.index(each.kind), each.where))

    def worst(self, check: Check) -> Severity | None:
        """Of what a check found; None where it found nothing."""
        known = sections()
        found = [
            each.severity
            for each in self._groups.values()
            if known[each.kind] == check.section and check.where in (None, each.where)
        ]
        return min(found, key=_ORDER.__getitem__, default=None)

    @property
    def loses(self) -> bool:
        """Whether anything would be lost or harmed."""
        return any(each.severity != "note" for each in self._groups.values())
