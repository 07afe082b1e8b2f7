"""`statistics.json`: totals over the whole run, all its sessions included, as queries on the ledger."""

from __future__ import annotations

import time
from array import array
from collections import Counter
from typing import Any

import msgspec

from kiseki.ledger.ledger import IS_UNDONE, WANTED, Ledger
from kiseki.ledger.types import RunInfo
from kiseki.trajectory.replacing import replacing
from kiseki.views.build import ViewSettings
from kiseki.views.deadlines import Timeouts, find_timeouts
from kiseki.views.filters import discard_reason
from kiseki.views.percentiles import percentiles

STATISTICS = "statistics.json"

_decode_counts = msgspec.json.Decoder(dict[str, tuple[int, int]]).decode


class ToolStatistics(msgspec.Struct):
    count: int = 0
    success: int = 0
    failure: int = 0
    success_rate: float = 0.0
    """Percent, two decimals; 0.0 for a tool never used."""
    failure_rate: float = 0.0


class Statistics(msgspec.Struct):
    run_name: str
    distribution: str
    total_prompts: int
    """Rows of the dataset as last given."""
    total_rollouts: int
    total_batches: int
    batch_size: int
    model: str
    completed_at: str
    duration_seconds: float
    """All sessions of the run added up."""
    outcomes: dict[str, int]
    """completed and partial as kept, discarded, failed, pending."""
    stop_reasons: dict[str, int]
    """Of kept rollouts: `answered`, or what stopped them early."""
    context_cuts: int
    """Kept rollouts whose model was sent tool results without their middle. `stop_reasons` has what a full context ended."""
    fallback_calls: dict[str, int]
    """`rollouts` that were kept in which a fallback answered, and the `calls` that it answered in them."""
    tool_statistics: dict[str, ToolStatistics]
    reasoning_statistics: dict[str, int]
    discarded: dict[str, int]
    """By reason."""
    failed: dict[str, int]
    """Wanted rollouts that are failed now, by error class."""
    configurations: dict[str, int]
    """Done rollouts by the configuration that made them (`kiseki log` shows what each is); "" where it is not known."""
    attempts: int
    """Attempts that ended, failed ones included."""
    tokens: dict[str, int]
    """Of every attempt, also of failed and discarded ones."""
    cost: float
    """US dollars, of every attempt, as the provider reported them."""
    redacted: int
    """Secrets taken out of tool results, of every attempt."""
    latency: dict[str, dict[str, float]]
    """Seconds per done rollout: whole, in model calls, in tools."""
    timeouts: Timeouts
    """What deadlines cut off, with its lengths beside those of what was not cut."""


def make_statistics(ledger: Ledger, settings: ViewSettings) -> Statistics:
    """Count everything. One walk over the done rollouts and two over the attempts; no record is unpacked."""
    db = ledger.db
    run = msgspec.json.decode(ledger.get_meta("run"), type=RunInfo)
    tools = {name: ToolStatistics() for name in settings.tools}
    outcomes: Counter[str] = Counter(dict.fromkeys(("completed", "partial", "discarded", "failed", "pending"), 0))
    discarded: Counter[str] = Counter()
    stop_reasons: Counter[str] = Counter()
    configurations: Counter[str] = Counter()
    turns = with_reasoning = context_cuts = 0
    fallback: Counter[str] = Counter({"rollouts": 0, "calls": 0})
    latencies = {name: array("d") for name in ("rollout", "model", "tools")}
    facts = db.execute(
        "SELECT r.outcome, a.reason, a.assistant_turns, a.reasoning_turns, a.unknown_tools != '[]', a.tool_counts, a.config,"
        " a.context_cuts > 0, a.fallback_calls, a.seconds, a.model_seconds, a.tool_seconds"
        " FROM rollouts r JOIN attempts a ON a.id = r.attempt_id WHERE r.outcome IN ('completed', 'partial')"
    )
    for outcome, stop_reason, assistant_turns, reasoning_turns, unknown, counts, config, cut, by_fallback, *seconds in facts:
        configurations[config] += 1
        for values, value in zip(latencies.values(), seconds, strict=True):
            values.append(value)
        reason = discard_reason(
            assistant_turns=assistant_turns,
            reasoning_turns=reasoning_turns,
            has_unknown_tools=bool(unknown),
            reasoning_filter=settings.reasoning_filter,
        )
        outcomes["discarded" if reason else outcome] += 1
        if reason:
            discarded[reason] += 1
        else:
            stop_reasons[stop_reason] += 1
            context_cuts += cut
            fallback.update(rollouts=bool(by_fallback), calls=by_fallback)
        turns += assistant_turns
        with_reasoning += reasoning_turns
        for name, (count, failures) in _decode_counts(counts).items():
            if name in tools:
                tools[name].count += count
                tools[name].failure += failures
    for each in tools.values():
        each.success = each.count - each.failure
        if each.count:
            each.success_rate = round(100 * each.success / each.count, 2)
            each.failure_rate = round(100 * each.failure / each.count, 2)
    wanted = f"FROM prompts p JOIN rollouts r ON r.prompt_id = p.id LEFT JOIN attempts a ON a.id = r.attempt_id WHERE {WANTED}"
    still_open = f"SELECT r.outcome, a.error_class, count(*) {wanted} AND {IS_UNDONE} GROUP BY 1, 2 ORDER BY 3 DESC, 2"
    failed: dict[str, int] = {}
    for outcome, error_class, count in db.execute(still_open, (run.num_samples,)):
        outcomes[outcome] += count
        if outcome == "failed":
            failed[error_class] = count
    total = db.execute(
        "SELECT count(*), coalesce(sum(prompt_tokens), 0), coalesce(sum(completion_tokens), 0),"
        " coalesce(sum(reasoning_tokens), 0), coalesce(sum(cached_tokens), 0), coalesce(sum(cache_write_tokens), 0),"
        " coalesce(sum(cost), 0.0), coalesce(sum(redacted), 0) FROM attempts"
    ).fetchone()
    return Statistics(
        run_name=run.run_name,
        distribution=run.distribution,
        total_prompts=_one(db.execute("SELECT count(*) FROM prompts WHERE position IS NOT NULL")),
        total_rollouts=sum(outcomes.values()),
        total_batches=_one(db.execute("SELECT count(DISTINCT batch_num) FROM rollouts WHERE batch_num >= 0")),
        batch_size=run.batch_size,
        model=run.model,
        completed_at=time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()),
        duration_seconds=round(float(_one(db.execute("SELECT coalesce(sum(seconds), 0.0) FROM sessions"))), 2),
        outcomes=dict(outcomes),
        stop_reasons=dict(stop_reasons.most_common()),
        context_cuts=context_cuts,
        fallback_calls=dict(fallback),
        tool_statistics=tools,
        reasoning_statistics={
            "total_assistant_turns": turns,
            "turns_with_reasoning": with_reasoning,
            "turns_without_reasoning": turns - with_reasoning,
        },
        discarded=dict(discarded.most_common()),
        failed=failed,
        configurations=dict(sorted(configurations.items())),
        attempts=total[0],
        tokens=dict(zip(("prompt", "completion", "reasoning", "cached", "cache_write"), total[1:6], strict=True)),
        cost=round(float(total[6]), 6),
        redacted=total[7],
        latency={name: percentiles(values) for name, values in latencies.items()},
        timeouts=find_timeouts(db),
    )


def write_statistics(ledger: Ledger, settings: ViewSettings) -> Statistics:
    statistics = make_statistics(ledger, settings)
    with replacing(ledger.folder / STATISTICS) as file:
        file.write(msgspec.json.format(msgspec.json.encode(statistics), indent=2) + b"\n")
    return statistics


def _one(cursor: Any) -> Any:
    return cursor.fetchone()[0]
