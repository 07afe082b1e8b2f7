"""What compression did to all rows: the aggregate metrics file, and what the reports show."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kiseki.compress.metrics import Metrics

STEPS = ("observations_cleaned", "observations_repeated", "observations_cut", "observations_masked", "units_digested")
PERCENTILES = (50, 90, 99, 100)


class Totals:
    """Counts rows one by one. Of each trajectory two numbers stay in memory: its tokens before and after."""

    def __init__(self) -> None:
        self.began = time.time()
        self.before = array("q")
        self.after = array("q")
        """Of every row that comes out: with `segment`, one for each segment."""
        self.counts: Counter[str] = Counter()
        self.touched: Counter[str] = Counter()
        """By step: rows that it changed."""
        self.ratios = 0.0
        self.reasons: Counter[str] = Counter()
        """Why rows stayed over the target."""

    def add(self, metrics: Sequence[Metrics], assistant_tokens: tuple[int, int]) -> None:
        """One trajectory: one row's metrics, or those of its segments."""
        first = metrics[0]
        counts = self.counts
        compressed = any(each.was_compressed for each in metrics)
        after = sum(each.compressed_tokens for each in metrics)
        self.before.append(first.original_tokens)
        self.after.extend(each.compressed_tokens for each in metrics)
        counts["rows_out"] += len(metrics)
        counts["compressed"] += compressed
        counts["skipped"] += first.skipped_under_target
        counts["over"] += any(each.still_over_limit for each in metrics)
        counts["failed"] += bool(first.error)
        counts["turns_before"] += first.original_turns
        counts["turns_after"] += sum(each.compressed_turns for each in metrics)
        counts["turns_removed"] += (removed := sum(each.turns_removed for each in metrics))
        counts["saved"] += (saved := sum(each.tokens_saved for each in metrics))
        counts["calls"] += first.summarization_api_calls
        counts["errors"] += first.summarization_errors
        counts["assistant_before"] += assistant_tokens[0]
        counts["assistant_after"] += assistant_tokens[1]
        if compressed:
            counts["saved_of_compressed"] += saved
            counts["turns_removed_of_compressed"] += removed
            self.ratios += after / first.original_tokens if first.original_tokens else 1.0
        for step in STEPS:
            if number := sum(getattr(each, step) for each in metrics):
                self.touched[step] += 1
                counts[step] += number
        if first.compression_region.turns_count:
            self.touched["summary" if first.strategy == "summary" else "digest"] += 1
        if len(metrics) > 1:
            self.touched["segments"] += 1
        if first.error:
            self.reasons[first.error] += 1

    def reject(self) -> None:
        self.counts["rejected"] += 1

    def leave_out(self) -> None:
        """A row that is still over the target and is not kept."""
        self.counts["left_out"] += 1

    @property
    def trajectories(self) -> int:
        return len(self.before)

    def document(self, more: Mapping[str, Any], processing: Mapping[str, Any]) -> dict[str, Any]:
        """The aggregate file. `more` goes into `summary`, `processing` into that section."""
        counts, rows = self.counts, self.trajectories
        before, after, compressed = sum(self.before), sum(self.after), counts["compressed"]
        ended = time.time()
        return {
            "summary": {
                "total_trajectories": rows,
                "trajectories_compressed": compressed,
                "trajectories_skipped_under_target": counts["skipped"],
                "trajectories_still_over_limit": counts["over"],
                "trajectories_failed": counts["failed"],
                "compression_rate": _share(compressed, rows),
                "rows_rejected": counts["rejected"],
                "rows_written": counts["rows_out"] - counts["left_out"],
                **more,
            },
            "tokens": {
                "total_before": before,
                "total_after": after,
                "total_saved": counts["saved"],
                "overall_compression_ratio": _share(after, before, 1.0),
                "percentiles_before": percentiles(self.before),
                "percentiles_after": percentiles(self.after),
                "assistant_before": counts["assistant_before"],
                "assistant_after": counts["assistant_after"],
            },
            "turns": {
                "total_before": counts["turns_before"],
                "total_after": counts["turns_after"],
                "total_removed": counts["turns_removed"],
            },
            "averages": {
                "avg_compression_ratio": _share(self.ratios, compressed, 1.0),
                "avg_tokens_saved_per_compressed": _share(counts["saved_of_compressed"], compressed),
                "avg_turns_removed_per_compressed": _share(counts["turns_removed_of_compressed"], compressed),
            },
            "steps": {step: {"rows": self.touched[step], "times": counts[step]} for step in STEPS},
            "summarization": {
                "total_api_calls": counts["calls"],
                "total_errors": counts["errors"],
                "success_rate": _share(counts["calls"] - counts["errors"], counts["calls"], 1.0),
            },
            "processing": {
                "start_time": _iso(self.began),
                "end_time": _iso(ended),
                "duration_seconds": round(ended - self.began, 3),
                **processing,
            },
        }


def percentiles(values: Sequence[int]) -> dict[str, int]:
    """`p50` … `p100`; zeros where there are no values."""
    ordered = sorted(values)
    return {f"p{share}": ordered[max(0, -(-len(ordered) * share // 100) - 1)] if ordered else 0 for share in PERCENTILES}


def _share(part: float, whole: float, none: float = 0.0) -> float:
    return round(part / whole, 4) if whole else none


def _iso(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))
