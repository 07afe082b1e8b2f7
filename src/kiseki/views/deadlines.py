"""What deadlines cut off, and how long it was, from columns of the ledger.

A deadline cuts the long ones, so what is left is biased: hence the lengths of both, side by side.
"""

from __future__ import annotations

import sqlite3
from array import array

import msgspec

from kiseki.views.percentiles import percentiles

OF_ROLLOUT = "timeout"
"""The reason of a partial rollout whose time was over; every other name but `TOOL` is an error class."""
TOOL = "tool"
CLASSES = (OF_ROLLOUT, "RolloutTimeout", "ProviderTimeout", "StreamStalled", "SandboxTimeout", TOOL)


class Lengths(msgspec.Struct, frozen=True):
    """How long attempts had become when they ended: p50, p90, p99 and max of each; {} where there are none."""

    count: int
    """Attempts; of "tool": tool calls that were cut, which may be several in one attempt."""
    turns: dict[str, float]
    """Assistant turns."""
    completion_tokens: dict[str, float]
    """Of all the attempt's model calls."""
    seconds: dict[str, float]
    """Of the whole attempt."""


class Timeouts(msgspec.Struct, frozen=True):
    cut: dict[str, Lengths]
    """By what was cut, over every attempt of the run: "timeout" (partial: --prompt_timeout), "RolloutTimeout" (failed: the same
    before any reply), "ProviderTimeout", "StreamStalled" (a model call), "SandboxTimeout" (a sandbox's start), and "tool" (a tool
    or its command; the lengths are of the attempts with such calls, which went on). What never happened is not named."""
    not_cut: Lengths
    """Completed and partial attempts in which no deadline of any kind passed."""


class _Many:
    """Lengths of any number of attempts: 24 bytes each."""

    def __init__(self) -> None:
        self.count = 0
        self._values = (array("d"), array("d"), array("d"))

    def add(self, count: int, lengths: tuple[float, float, float]) -> None:
        self.count += count
        for values, value in zip(self._values, lengths, strict=True):
            values.append(value)

    def lengths(self) -> Lengths:
        return Lengths(self.count, *(percentiles(values, with_max=True) for values in self._values))


def find_timeouts(db: sqlite3.Connection) -> Timeouts:
    """One walk over all attempts."""
    cut = {name: _Many() for name in CLASSES}
    not_cut = _Many()
    attempts = db.execute("SELECT outcome, reason, tool_timeouts, assistant_turns, completion_tokens, seconds FROM attempts")
    for outcome, reason, tool_timeouts, *lengths in attempts:  # the reason of a failed one is its error class
        if reason in cut:
            cut[reason].add(1, lengths)
        elif outcome != "failed" and not tool_timeouts:
            not_cut.add(1, lengths)
        if tool_timeouts:
            cut[TOOL].add(tool_timeouts, lengths)
    return Timeouts({name: each.lengths() for name, each in cut.items() if each.count}, not_cut.lengths())
