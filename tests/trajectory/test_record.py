"""What a whole rollout took: every model call in it is counted once, wherever it was made."""

from __future__ import annotations

from typing import Any

from kiseki.trajectory.record import decode_record, encode_record, summarize, usage_of, with_children
from kiseki.trajectory.types import InnerCall, ModelCall, Record, ToolCall, ToolRun, Usage


def record(key: str, tokens: int, *runs: ToolRun) -> Record:
    """A rollout with one model call."""
    call = ModelCall(started=0.0, seconds=1.0, usage=Usage(prompt_tokens=tokens, cost=float(tokens)))
    fields: dict[str, Any] = {"sample_index": 0, "attempt": 1, "seed": 0, "messages": (), "prompt_messages": 0}
    fields |= {"outcome": "completed", "reason": "answered", "model": "m", "toolsets": (), "tools_hash": "h"}
    return Record(key=key, calls=(call,), tool_runs=runs, **fields)


def run(tokens: int, **more: Any) -> ToolRun:
    return ToolRun(call_id="c", name="t", ok=True, redacted=1, usage=Usage(prompt_tokens=tokens, cost=float(tokens)), **more)


GRANDCHILD = record("k/1/1", 1)
CHILD = record("k/1", 10, run(100, children=(GRANDCHILD,)))
INNER = InnerCall(ToolCall("c/1", "t", "{}"), "", run(1_000, children=(record("k/2", 10_000),)))
WHOLE = record("k", 100_000, run(0, children=(CHILD,)), run(1_000_000, inner=(INNER,)))


def test_all_of_it_is_counted_once() -> None:
    assert usage_of(WHOLE) == Usage(prompt_tokens=1_111_111, cost=1_111_111.0)
    assert usage_of(CHILD).prompt_tokens == 111
    assert [each.key for each in with_children(WHOLE)] == ["k", "k/1", "k/1/1", "k/2"]


def test_a_summary_has_the_whole_usage_and_only_its_own_calls() -> None:
    summary = summarize(WHOLE)
    assert summary.usage == usage_of(WHOLE)
    assert (summary.api_calls, summary.model_seconds, summary.tool_counts) == (1, 1.0, {"t": (2, 0)})
    assert (summary.children, summary.redacted) == (3, 4)


def test_sub_agents_are_kept_with_their_rollout() -> None:
    assert decode_record(encode_record(WHOLE)) == WHOLE
