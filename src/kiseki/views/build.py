"""The files of a run folder, made from its ledger: `batch_N.jsonl`, `trajectories.jsonl`, `checkpoint.json`.

All of them can be deleted and made again. None is read to make another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from kiseki.ledger.ledger import IS_OPEN, Ledger
from kiseki.ledger.types import DoneRollout, RunInfo
from kiseki.views.files import replacing
from kiseki.views.filters import REASONS, discard_reason
from kiseki.views.rows import row_line

TRAJECTORIES = "trajectories.jsonl"
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
    ledger.set_meta("views", msgspec.json.encode(settings).decode())


class Views:
    """Makes the files of one run folder."""

    def __init__(self, ledger: Ledger, settings: ViewSettings) -> None:
        self._ledger = ledger
        self._settings = settings
        self._schemas: dict[str, str] = {}

    def write_batch(self, batch_num: int) -> None:
        """`batch_N.jsonl`: the kept rows of one batch; no file for a batch that has none."""
        path = batch_path(self._ledger.folder, batch_num)
        if not self._write(path, self._ledger.done_in_batch(batch_num)):
            path.unlink()

    def write_trajectories(self, written: Callable[[int], None] = lambda rows: None) -> Path:
        """`trajectories.jsonl`: the kept rows of the whole run in dataset order. `written` is told how many so far."""
        path = self._ledger.folder / TRAJECTORIES
        self._write(path, self._ledger.done_rollouts(), written)
        return path

    def _write(self, path: Path, rollouts: Iterable[DoneRollout], written: Callable[[int], None] = lambda rows: None) -> int:
        self._schemas = self._ledger.tool_schemas()
        rows = 0
        with replacing(path) as file:
            for done in rollouts:
                if not self.discards(done):
                    file.write(row_line(done, self._settings.tools, self._schemas))
                    rows += 1
                    written(rows)
        return rows

    def discards(self, done: DoneRollout) -> str:
        return discard_reason(
            assistant_turns=done.assistant_turns,
            reasoning_turns=done.reasoning_turns,
            has_unknown_tools=done.unknown_tools != "[]",
            reasoning_filter=self._settings.reasoning_filter,
        )

    def stale_batches(self, *, all_of_them: bool) -> list[int]:
        """Batches with done rollouts that have no file yet, or all of them."""
        numbers = self._ledger.db.execute(
            "SELECT DISTINCT batch_num FROM rollouts WHERE outcome IN ('completed', 'partial') ORDER BY batch_num"
        )
        return [n for (n,) in numbers if all_of_them or not batch_path(self._ledger.folder, n).exists()]

    def write_checkpoint(self) -> None:
        """`checkpoint.json`: how far the run is. Indices are ranges, so that its size does not grow with the run's."""
        run = msgspec.json.decode(self._ledger.get_meta("run"), type=RunInfo)
        done = self._ledger.db.execute(
            "SELECT p.position FROM prompts p WHERE p.position IS NOT NULL AND NOT EXISTS"
            f" (SELECT 1 FROM rollouts r WHERE r.prompt_id = p.id AND {IS_OPEN} AND r.sample_index < ?) ORDER BY p.position",
            (run.num_samples,),
        )
        content = {
            "run_name": run.run_name,
            "completed_prompts": to_ranges(position for (position,) in done),
            "batch_stats": self._batch_stats(),
            "last_updated": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()),
        }
        with replacing(self._ledger.folder / CHECKPOINT) as file:
            file.write(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")

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
