"""The tables at the end of a run: outcomes, tool use, reasoning coverage, what was left out and why, time and money."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kiseki.views.deadlines import OF_ROLLOUT, TOOL, Timeouts
from kiseki.views.statistics import Statistics


def print_report(console: Console, statistics: Statistics) -> None:
    s = statistics
    outcomes = _table("Outcomes", "outcome", "rollouts", "share")
    for name, count in s.outcomes.items():
        if count or name == "completed":
            outcomes.add_row(name, f"{count:,}", _percent(count, s.total_rollouts))
    console.print(outcomes)
    for words in filter(None, (_context_full(s), _by_fallback(s))):
        console.print(Text(words), style="yellow", soft_wrap=True)
    if any(each.count for each in s.tool_statistics.values()):
        tools = _table("Tool use", "tool", "calls", "success", "failure", "success rate")
        for name, tool in sorted(s.tool_statistics.items(), key=lambda pair: -pair[1].count):
            if tool.count:
                tools.add_row(name, f"{tool.count:,}", f"{tool.success:,}", f"{tool.failure:,}", f"{tool.success_rate:.2f} %")
        unused = [name for name, tool in s.tool_statistics.items() if not tool.count]
        if unused:
            tools.caption = f"never used: {', '.join(unused)}"
        console.print(tools)
    turns = s.reasoning_statistics["total_assistant_turns"]
    reasoning = _table("Reasoning coverage", "assistant turns", "with reasoning", "without", "coverage")
    with_reasoning = s.reasoning_statistics["turns_with_reasoning"]
    reasoning.add_row(f"{turns:,}", f"{with_reasoning:,}", f"{turns - with_reasoning:,}", _percent(with_reasoning, turns))
    console.print(reasoning)
    for title, counts in (("Discarded", s.discarded), ("Failed", s.failed)):
        if counts:
            table = _table(title, "reason", "rollouts")
            for name, count in counts.items():
                table.add_row(name, f"{count:,}")
            console.print(table)
    if s.timeouts.cut:
        console.print(_cut_by_a_deadline(s.timeouts))
        allow = dict.fromkeys(MORE_TIME[name] for name in s.timeouts.cut)
        advice = f"deadlines cut the long ones, so what is left is biased; more time: {', '.join(allow)}"
        console.print(Text(advice), style="yellow", soft_wrap=True)
    cost = _table("Time and cost", "time", "median", "p99", "tokens in", "tokens out", "cost")
    whole = s.latency["rollout"]
    cost.add_row(
        f"{s.duration_seconds:,.1f} s",
        f"{whole.get('p50', 0.0):,.2f} s",
        f"{whole.get('p99', 0.0):,.2f} s",
        f"{s.tokens['prompt']:,}",
        f"{s.tokens['completion']:,}",
        f"${s.cost:,.4f}",
    )
    console.print(cost)
    if s.redacted:
        console.print(f"redacted: {s.redacted:,} secrets in tool results")


def _by_fallback(s: Statistics) -> str:
    """What fallback models did, in one line; "" where they did nothing."""
    rollouts, calls = s.fallback_calls["rollouts"], s.fallback_calls["calls"]
    words = f"a fallback model answered {calls:,} calls in {rollouts:,} of the rollouts; metadata.answered_by says which"
    return words if calls else ""


def _context_full(s: Statistics) -> str:
    """What the context window did to rollouts, in one line; "" where it did nothing."""
    ended = s.stop_reasons.get("context_full", 0)
    parts = [f"ended {ended:,}"] if ended else []
    parts += [f"went on with tool results cut in {s.context_cuts:,}"] if s.context_cuts else []
    return f"the context window was full: {', '.join(parts)} of the rollouts" if parts else ""


MORE_TIME = {
    OF_ROLLOUT: "--prompt_timeout",
    "RolloutTimeout": "--prompt_timeout",
    "ProviderTimeout": "--call_timeout",
    "StreamStalled": "--call_timeout",
    "SandboxTimeout": "--sandbox_timeout",
    TOOL: "the tool's own timeout",
}
"""What allows more of each."""


def _cut_by_a_deadline(timeouts: Timeouts) -> Table:
    table = _table("Cut by a deadline", "what", "count", "turns median", "p99", "tokens out median", "p99", "time median", "p99")
    for name, each in (*timeouts.cut.items(), ("not cut", timeouts.not_cut)):
        figures = [f"{of.get(rank, 0.0):,.0f}" for of in (each.turns, each.completion_tokens) for rank in ("p50", "p99")]
        table.add_row(name, f"{each.count:,}", *figures, *(f"{each.seconds.get(rank, 0.0):,.2f} s" for rank in ("p50", "p99")))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", caption_justify="left")
    for at, column in enumerate(columns):
        table.add_column(column, justify="left" if at == 0 else "right")
    return table


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"
