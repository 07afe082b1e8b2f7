"""The files of a run folder, made from its ledger: `batch_N.jsonl`, `trajectories.jsonl`, `children.jsonl`, `checkpoint.json`.

All of them can be deleted and made again. None is read to make another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from kiseki.ledger.ledger import IS_UNDONE, Ledger
from kiseki.ledger.types import DoneRollout, RunInfo
from kiseki.trajectory.record import summarize
from kiseki.trajectory.replacing import replacing
from kiseki.trajectory.types import Record
from kiseki.views.filters import REASONS, discard_reason
from kiseki.views.rows import child_lines, row_line

TRAJECTORIES = "trajectories.jsonl"
CHILDREN = "children.jsonl"
CHECKPOINT = "checkpoint.json"


class ViewSettings(msgspec.Struct, frozen=True):
    """What the views of a run depend on beside its rollouts. Kept in the ledger, so that views can be checked against it."""

    reasoning_filter: bool
    tools: tuple[str, ...]
    """Every tool of the run."""


def load_view_settings(ledger: Ledger) -> ViewSettings | None:
    """As last used for this run, None when it has no views yet."""
    text = ledger.get_meta("views")
    return msgspec.json.decode(text, type=ViewSettings) if text else None


def save_view_settings(ledger: Ledger, settings: ViewSettings) -> None:
    """Keep them for this run; files made with others are stale from here on."""
    with ledger.transaction():
        if load_view_settings(ledger) not in (None, settings):
            mark_stale(ledger)
        ledger.db.execute("INSERT OR REPLACE INTO meta VALUES ('views', ?)", (msgspec.json.encode(settings).decode(),))


def mark_stale(ledger: Ledger) -> None:
    """Batch files on the disk may say something else than the ledger. Inside the transaction that makes it so."""
    ledger.db.execute("INSERT OR REPLACE INTO meta VALUES ('views_stale', '1')")


def are_stale(ledger: Ledger) -> bool:
    return bool(ledger.get_meta("views_stale"))


def mark_behind(ledger: Ledger) -> None:
    """A session has begun, and the files of the whole run are made at its end."""
    ledger.set_meta("views_behind", "1")


def are_behind(ledger: Ledger) -> bool:
    """Whether the last session was ended before it could make them."""
    return bool(ledger.get_meta("views_behind"))


def mark_fresh(ledger: Ledger) -> None:
    with ledger.transaction():
        ledger.db.execute("INSERT OR REPLACE INTO meta VALUES ('views_stale', ''), ('views_behind', '')")


class Views:
    """Makes the files of one run folder."""

    def __init__(self, ledger: Ledger, settings: ViewSettings) -> None:
        self._ledger = ledger
        self._settings = settings
        self.damaged: set[tuple[int, int]] = set()
        """(prompt_index, sample_index) of rollouts whose record cannot be read; left out of every file."""

    def write_batch(self, batch_num: int) -> None:
        """`batch_N.jsonl`: the kept rows of one batch; no file for a batch that has none."""
        _write_if_any(batch_path(self._ledger.folder, batch_num), self.batch_lines(batch_num))

    def write_trajectories(self, written: Callable[[int], None] = lambda rows: None) -> Path:
        """`trajectories.jsonl`: the kept rows of the whole run in dataset order. `written` is told how many so far."""
        path = self._ledger.folder / TRAJECTORIES
        with replacing(path) as file:
            for rows, line in enumerate(self.trajectory_lines(), 1):
                file.write(line)
                written(rows)
        return path

    def write_children(self) -> None:
        """`children.jsonl`: the rows of the kept rollouts' sub-agents; no file where there are none."""
        _write_if_any(self._ledger.folder / CHILDREN, self.child_lines())

    def batch_lines(self, batch_num: int) -> Iterator[bytes]:
        """The lines of `batch_N.jsonl`."""
        return self._lines(self._ledger.done_in_batch(batch_num))

    def trajectory_lines(self) -> Iterator[bytes]:
        """The lines of `trajectories.jsonl`."""
        return self._lines(self._ledger.done_rollouts())

    def child_lines(self) -> Iterator[bytes]:
        """The lines of `children.jsonl`: those of one rollout together, in the order of `trajectories.jsonl`."""
        tools = self._settings.tools
        schemas = self._ledger.tool_schemas()
        return self._made(
            self._ledger.done_rollouts(only_parents=True), lambda done: child_lines(done, tools, schemas, self._keeps)
        )

    def _lines(self, rollouts: Iterable[DoneRollout]) -> Iterator[bytes]:
        tools = self._settings.tools
        schemas = self._ledger.tool_schemas()
        return self._made(rollouts, lambda done: [row_line(done, tools, schemas)])

    def _made(self, rollouts: Iterable[DoneRollout], make: Callable[[DoneRollout], list[bytes]]) -> Iterator[bytes]:
        """The lines of those that no filter discards."""
        for done in rollouts:
            if discard_reason(
                assistant_turns=done.assistant_turns,
                reasoning_turns=done.reasoning_turns,
                has_unknown_tools=done.unknown_tools != "[]",
                reasoning_filter=self._settings.reasoning_filter,
            ):
                continue
            try:
                lines = make(done)
            except (ValueError, KeyError, MemoryError):  # torn, without its tool schemas, or of a size that it never had
                self.damaged.add((done.position, done.sample_index))
            else:
                yield from lines

    def _keeps(self, child: Record) -> bool:
        """A sub-agent's conversation is filtered as any other."""
        facts = summarize(child)
        return not discard_reason(
            assistant_turns=facts.assistant_turns,
            reasoning_turns=facts.reasoning_turns,
            has_unknown_tools=bool(facts.unknown_tools),
            reasoning_filter=self._settings.reasoning_filter,
        )

    def stale_batches(self, *, all_of_them: bool) -> list[int]:
        """Batches with done rollouts that have no file yet, or all of them."""
        numbers = self._ledger.db.execute(
            "SELECT DISTINCT batch_num FROM rollouts WHERE outcome IN ('completed', 'partial') ORDER BY batch_num"
        )
        return [n for (n,) in numbers if all_of_them or not batch_path(self._ledger.folder, n).exists()]

    def write_checkpoint(self) -> None:
        with replacing(self._ledger.folder / CHECKPOINT) as file:
            file.write(msgspec.json.format(msgspec.json.encode(self.checkpoint()), indent=1) + b"\n")

    def checkpoint(self) -> dict[str, Any]:
        """`checkpoint.json`: how far the run is. Indices are ranges, so that its size does not grow with the run's."""
        run = msgspec.json.decode(self._ledger.get_meta("run"), type=RunInfo)
        done = self._ledger.db.execute(
            "SELECT p.position FROM prompts p WHERE p.position IS NOT NULL AND NOT EXISTS"
            f" (SELECT 1 FROM rollouts r WHERE r.prompt_id = p.id AND {IS_UNDONE} AND r.sample_index < ?) ORDER BY p.position",
            (run.num_samples,),
        )
        return {
            "run_name": run.run_name,
            "completed_prompts": to_ranges(position for (position,) in done),
            "batch_stats": self._batch_stats(),
            "last_updated": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()),
        }

    def _batch_stats(self) -> dict[str, dict[str, int]]:
        """Per batch: `processed` rows in its file, `skipped` left out of it, and those by reason."""
        stats: dict[str, dict[str, int]] = {}
        facts = self._ledger.db.execute(
            "SELECT r.batch_num, r.outcome, min(a.assistant_turns, 1), min(a.reasoning_turns, 1), a.unknown_tools != '[]',"
            " count(*) FROM rollouts r JOIN attempts a ON a.id = r.attempt_id GROUP BY 1, 2, 3, 4, 5 ORDER BY 1"
        )
        for batch, outcome, assistant_turns, reasoning_turns, unknown, count in facts:
            keys = ("processed", "skipped", "failed", *(f"discarded_{reason}" for reason in REASONS))
            of_batch = stats.setdefault(str(batch), dict.fromkeys(keys, 0))
            reason = discard_reason(
                assistant_turns=assistant_turns,
                reasoning_turns=reasoning_turns,
                has_unknown_tools=bool(unknown),
                reasoning_filter=self._settings.reasoning_filter,
            )
            left_out = "failed" if outcome == "failed" else f"discarded_{reason}" if reason else ""
            of_batch["skipped" if left_out else "processed"] += count
            if left_out:
                of_batch[left_out] += count
        return stats


def _write_if_any(path: Path, lines: Iterator[bytes]) -> None:
    """A file of the lines, none where there are none."""
    first = next(lines, None)
    if first is None:
        path.unlink(missing_ok=True)
        return
    with replacing(path) as file:
        file.write(first)
        file.writelines(lines)


def batch_path(folder: Path, batch_num: int) -> Path:
    return folder / f"batch_{batch_num}.jsonl"


def to_ranges(sorted_numbers: Iterable[int]) -> list[list[int]]:
    """`[first, last]` pairs, both included, of ascending numbers."""
    ranges: list[list[int]] = []
    for number in sorted_numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges
