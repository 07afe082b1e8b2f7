"""An extractive digest: what a region's units did, a line for each step, without a model."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from kiseki.compress.ladder.calls import brief, observations_of, one_line, outcome
from kiseki.compress.regions import Unit
from kiseki.compress.turns import SUMMARY_MARK, Layout, Turn
from kiseki.trajectory.tokens import TokenCounter

SAID = 160
"""Characters of what a turn says."""


class Digest:
    """For the first units of a region, however many: a line is made and counted once.

    `limit`: tokens that a text may have; what cannot be less (the mark, the number of steps) is not cut.
    """

    def __init__(self, turns: Sequence[Turn], layout: Layout, counter: TokenCounter) -> None:
        self._turns = turns
        self._layout = layout
        self._counter = counter
        self._steps: dict[int, _Steps] = {}

    def tokens(self, units: Sequence[Unit], limit: int) -> int:
        """What `text` counts, from its lines: a token or two more rather than less."""
        return self._plan(units, limit)[0]

    def text(self, units: Sequence[Unit], limit: int) -> str:
        """`SUMMARY_MARK`, and a line for each step; those in the middle give way where it would be too long."""
        _, head, tail, count = self._plan(units, limit)
        lines = self._steps[units[0].start].lines
        while True:
            text = "\n".join([_title(count), *lines[:head], *_gap(count - head - tail), *lines[count - tail : count]])
            if not head + tail or self._counter.count(text) <= limit:
                return text
            head, tail = (head - 1, tail) if head >= tail else (head, tail - 1)

    def _plan(self, units: Sequence[Unit], limit: int) -> tuple[int, int, int, int]:
        """Tokens, lines at the start, lines at the end, lines that there are."""
        steps = self._steps.setdefault(units[0].start, _Steps())
        for unit in units[len(steps.ends) :]:
            for line in unit_lines(self._turns, self._layout, unit):
                steps.lines.append(line)
                steps.sums.append(steps.sums[-1] + self._counter.count(line + "\n") + 1)
            steps.ends.append(len(steps.lines))
        count = steps.ends[len(units) - 1]
        sums = steps.sums
        title = self._counter.count(_title(count)) + 1
        if title + sums[count] <= limit:
            return title + sums[count], count, 0, count
        fixed = title + self._counter.count("".join(_gap(count))) + 2
        room = max(limit - fixed, 0)
        head = min(bisect.bisect_right(sums, room // 2) - 1, count)
        tail = count - bisect.bisect_left(sums, sums[count] - (room - sums[head]), head, count)
        return fixed + sums[head] + sums[count] - sums[count - tail], head, tail, count


class _Steps:
    """A region's lines so far."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.sums = [0]
        """Tokens of the first lines, by how many."""
        self.ends: list[int] = []
        """Lines up to the end of each unit."""


def unit_lines(turns: Sequence[Turn], layout: Layout, unit: Unit) -> list[str]:
    """What a unit did: a line for each call, or what its turn says. No control characters."""
    first = turns[unit.start]
    if first.role in ("human", "system"):
        return [f"- {'user' if first.role == 'human' else 'system'}: {one_line(first.text, SAID)}"]
    lines = []
    observations = observations_of(turns, layout, unit)
    for each in observations:
        status, line = outcome(each.output.text)
        lines.append(f"- {brief(each.call, each.output.name)} → {status}" + (f": {line}" if line else ""))
    if not observations:
        lines = [f"- {brief(call)}" for call in layout.calls(first)] or [f"- assistant: {_first_sentence(first.text)}"]
    return lines


def _first_sentence(text: str) -> str:
    said = text.rpartition("</think>")[2].strip() or text
    line = one_line(said, SAID)
    end = min((at for at in (line.find(". "), line.find("。")) if at >= 0), default=-1)
    return line[: end + 1] if end >= 0 else line


def _title(steps: int) -> str:
    return f"{SUMMARY_MARK} {steps:,} earlier step{'' if steps == 1 else 's'} in brief:"


def _gap(steps: int) -> list[str]:
    return [f"[… {steps:,} more step{'' if steps == 1 else 's'}]"] if steps else []
