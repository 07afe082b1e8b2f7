"""What a job did, for people: tables, and the histogram of tokens before and after."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kiseki.compress.config import CompressionConfig
from kiseki.compress.job.dry_run import SummaryCost
from kiseki.compress.job.totals import PERCENTILES, STEPS, Totals, percentiles
from kiseki.compress.summary import Spending

BAR = 20
"""Characters of the longest bar."""
STEP_WORDS = {
    "observations_cleaned": "outputs cleaned (escape codes, progress bars, base64, repeated lines)",
    "observations_repeated": "repeated outputs and superseded file views replaced by a pointer",
    "observations_cut": "outputs cut in the middle",
    "observations_masked": "old outputs left out",
    "units_digested": "steps that a digest stands for",
}


def print_report(
    console: Console, totals: Totals, config: CompressionConfig, tokenizer: str, cost: SummaryCost | None = None
) -> None:
    """`cost`: what the summaries of a dry run would take; None after a real one."""
    if totals.trajectories:
        console.print(_tokens(totals, tokenizer))
        console.print(_histogram(totals, config.target_max_tokens))
    console.print(_rows(totals, config, dry=cost is not None))
    for reason, number in totals.reasons.most_common(3):
        console.print(Text(f"as it was, {number:,} row{'s' * (number > 1)}: {reason}"), style="yellow", soft_wrap=True)
    if cost is not None:
        console.print(Text(_cost_words(cost, config)), soft_wrap=True)


def print_spending(console: Console, spending: Spending) -> None:
    """What this session's summaries took, where there were any."""
    if spending.calls:
        words = f"summaries: {spending.calls:,} requests ({spending.errors:,} without a usable summary),"
        words += f" {spending.prompt_tokens:,} tokens in and {spending.completion_tokens:,} out"
        console.print(Text(words + (f", ${spending.cost:,.4f}" if spending.cost else "")), soft_wrap=True)


def bins(totals: Totals, target: int) -> list[int]:
    """The highest number of tokens of each bin: quarters of the target up to it, then wider and wider ones."""
    quarter = max(1, target // 4)
    bounds = sorted({quarter, 2 * quarter, 3 * quarter, target})
    highest = max([*totals.before, *totals.after, 1])
    factors = (factor * 2**power for power in range(60) for factor in (1.5, 2))
    while highest > bounds[-1]:
        bounds.append(max(bounds[-1] + 1, int(target * next(factors))))
    return bounds


def histogram(values: Sequence[int], bounds: Sequence[int]) -> list[int]:
    """How many values each bin has."""
    counts = [0] * len(bounds)
    for value in values:
        counts[bisect_left(bounds, value)] += 1
    return counts


def _tokens(totals: Totals, tokenizer: str) -> Table:
    table = Table(title=f"tokens per trajectory, counted by {tokenizer}", box=box.SIMPLE, title_justify="left")
    for column in ("", "total", "mean", *(f"p{share}" if share < 100 else "longest" for share in PERCENTILES)):
        table.add_column(column, justify="right" if column else "left")
    for name, values in (("before", totals.before), ("after", totals.after)):
        shares = percentiles(values)
        mean = sum(values) / len(values) if values else 0
        table.add_row(name, f"{sum(values):,}", f"{mean:,.0f}", *(f"{each:,}" for each in shares.values()))
    counts = totals.counts
    if counts["assistant_before"]:
        kept = 100 * counts["assistant_after"] / counts["assistant_before"]
        table.caption = f"of the model's own tokens {kept:.1f} % are kept"
    return table


def _histogram(totals: Totals, target: int) -> Table:
    bounds = bins(totals, target)
    before, after = histogram(totals.before, bounds), histogram(totals.after, bounds)
    most = max(*before, *after, 1)
    table = Table(title=f"trajectories by tokens (target {target:,})", box=box.SIMPLE, title_justify="left")
    table.add_column("tokens", justify="right", no_wrap=True, min_width=len(f"≤ {bounds[-1]:,}"))
    for column in ("before", "", "after", ""):
        table.add_column(column, justify="right" if column else "left", no_wrap=True, min_width=6)
    for bound, one, other in zip(bounds, before, after, strict=True):
        style = "" if bound <= target else "yellow"
        table.add_row(f"≤ {bound:,}", f"{one:,}", _bar(one, most), f"{other:,}", _bar(other, most), style=style)
    return table


def _bar(number: int, most: int) -> str:
    return "█" * max(1 if number else 0, round(BAR * number / most))


def _rows(totals: Totals, config: CompressionConfig, *, dry: bool) -> Table:
    counts = totals.counts
    title = f"what --strategy={config.strategy} {'would do' if dry else 'did'}"
    table = Table(title=title, box=box.SIMPLE, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    rows = [
        ("trajectories", totals.trajectories),
        ("within the target as they are", counts["skipped"]),
        ("compressed", counts["compressed"]),
    ]
    rows += [(f"  {STEP_WORDS[step]}", totals.touched[step]) for step in STEPS if totals.touched[step]]
    rows += [
        (f"  {words}", totals.touched[key])
        for key, words in (("summary", "a summary for the steps in the middle"), ("segments", "split into segments"))
        if totals.touched[key]
    ]
    rows.append(("still over the target", counts["over"]))
    if counts["rows_out"] != totals.trajectories:
        rows.append(("rows that come of them", counts["rows_out"]))
    if counts["left_out"]:
        rows.append(("left out, since still over the target (in the rejects)", counts["left_out"]))
    if counts["rejected"]:
        rows.append(("unreadable, or no trajectory (in the rejects)", counts["rejected"]))
    for words, number in rows:
        table.add_row(words, f"{number:,}")
    return table


def _cost_words(cost: SummaryCost, config: CompressionConfig) -> str:
    if not cost.requests:
        return "no summary would be asked for: nothing would be paid"
    words = f"{cost.requests:,} summaries would be asked of {config.model}: about {cost.prompt_tokens:,} tokens in and"
    words += f" {cost.completion_tokens:,} out, "
    return words + (f"${cost.dollars:,.2f}" if cost.dollars is not None else "price not known (--prices=FILE.yaml)")
