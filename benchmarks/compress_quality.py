"""What each strategy leaves of real trajectories: `python -m benchmarks.compress_quality FILE [--targets 4000,8000]`.

FILE: trajectories in any form that the compressor reads. Of `summary` the figures are those of a summary that is as long as it
should be; no model is asked.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kiseki.compress.compressor import Compressor
from kiseki.compress.config import CompressionConfig, Strategy
from kiseki.compress.summary import Ask
from kiseki.trajectory.row_files import read_lines
from kiseki.trajectory.tokens import find_tokenizer, open_counter

STRATEGIES: tuple[Strategy, ...] = ("summary", "ladder", "segment")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compress_quality", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--targets", default="4000,8000", help="comma-separated numbers of tokens")
    asked = parser.parse_args()
    counter = open_counter(find_tokenizer("bundled", warn=print))
    rows = [row for _, row in read_lines(asked.file)]
    table = Table(title=f"{len(rows)} trajectories, counted by {counter.name}", title_justify="left")
    for column in (
        "target",
        "strategy",
        "over before",
        "over after",
        "tokens before",
        "tokens after",
        "the model's kept",
        "rows out",
    ):
        table.add_column(column, justify="left" if column == "strategy" else "right")
    for target in map(int, asked.targets.split(",")):
        for strategy in STRATEGIES:
            compressor = Compressor(CompressionConfig(strategy=strategy, target_max_tokens=target), counter)
            table.add_row(f"{target:,}", strategy, *_measured(compressor, rows, target))
    Console().print(table)


def _measured(compressor: Compressor, rows: list[bytes], target: int) -> list[str]:
    """Of the rows that are over the target: the others stay as they are."""
    sums: Counter[str] = Counter()
    for row in rows:
        result = compressor.begin(row)
        metrics = [result.estimate] if isinstance(result, Ask) else list(result.metrics)
        if metrics[0].original_tokens <= target:
            continue
        before, after = result.assistant_tokens
        sums.update(
            over=1,
            still=any(each.still_over_limit for each in metrics),
            before=metrics[0].original_tokens,
            after=sum(each.compressed_tokens for each in metrics),
            assistant=before,
            kept=after,
            rows=len(metrics),
        )
    share = 100 * sums["kept"] / sums["assistant"] if sums["assistant"] else 100.0
    shown = [f"{sums[name]:,}" for name in ("over", "still", "before", "after")]
    return [*shown, f"{share:.0f} %", f"{sums['rows']:,}"]


if __name__ == "__main__":
    main()
