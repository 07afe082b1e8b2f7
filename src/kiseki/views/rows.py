"""A record as a row of `trajectories.jsonl`.

Every row of a run has the same keys and types from first to last, which is what `datasets` and Arrow need: no null, floats
always written as floats, free-form data as one JSON string.
"""

from __future__ import annotations

import time

import msgspec

from kiseki.ledger.types import DoneRollout
from kiseki.trajectory.record import decode_record
from kiseki.trajectory.sharegpt import Turn, to_sharegpt
from kiseki.trajectory.types import Prompt, Usage


class ToolStats(msgspec.Struct):
    count: int = 0
    success: int = 0
    failure: int = 0


class Metadata(msgspec.Struct, frozen=True):
    batch_num: int
    timestamp: str
    """When the rollout began, UTC."""
    model: str
    stop_reason: str
    """`answered`, or what stopped it early."""
    finish_reason: str
    """Of the last model call."""
    provider: str
    """Upstream provider of the last model call, where a router names it."""
    seed: int
    attempt: int
    config: str
    """Which of the run's configurations made it (`kiseki log` shows them); "" where it is not known."""
    seconds: float
    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cached_tokens: int
    cost: float
    """US dollars."""
    sandbox: str
    """Backend that the tools ran in, "" when none was needed."""
    image: str
    """Of the sandbox, "" where it had none."""
    cwd: str
    """The dataset row's."""
    unavailable_toolsets: str
    """Toolsets of the distribution that the run did without, comma-separated."""
    source: str
    """The dataset row's other columns as one JSON object."""


class Row(msgspec.Struct, frozen=True):
    prompt_index: int
    prompt: str
    sample_index: int
    conversations: list[Turn]
    metadata: Metadata
    completed: bool
    partial: bool
    api_calls: int
    toolsets_used: tuple[str, ...]
    tool_stats: dict[str, ToolStats]
    tool_error_counts: dict[str, int]


# JSON allows these line ends inside strings, but readers that split lines as Python's splitlines does would tear the row
_LINE_ENDS = tuple((end.encode(), f"\\u{ord(end):04x}".encode()) for end in "\u2028\u2029\u0085")
_decode_prompt = msgspec.msgpack.Decoder(Prompt).decode
_decode_turns = msgspec.json.Decoder(list[Turn]).decode
_encode = msgspec.json.Encoder().encode


def row_line(done: DoneRollout, tools: tuple[str, ...], schemas: dict[str, str]) -> bytes:
    """The row of one done rollout as a JSON line with its line end.

    `tools`: every tool of the run, for the zero-filled statistics; `schemas`: the ledger's tool schemas by hash. Raises
    `ValueError` when the record is damaged.
    """
    prompt = _decode_prompt(done.payload)
    record = decode_record(done.record)
    stats = {name: ToolStats() for name in tools}
    for run in record.tool_runs:
        if run.name in stats:  # other names are what the unknown_tool filter is for
            of_tool = stats[run.name]
            of_tool.count += 1
            of_tool.success += run.ok
            of_tool.failure += not run.ok
    usage = sum((call.usage for call in record.calls), Usage())
    row = Row(
        prompt_index=done.position,
        prompt=prompt.text,
        sample_index=done.sample_index,
        conversations=_decode_turns(record.adopted_conversation)
        if record.adopted_conversation
        else to_sharegpt(record.messages, schemas[record.tools_hash]),
        metadata=Metadata(
            batch_num=done.batch_num,
            timestamp=time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.started)),
            model=record.model,
            stop_reason=record.reason,
            finish_reason=record.calls[-1].finish_reason if record.calls else "",
            provider=record.calls[-1].provider if record.calls else "",
            seed=record.seed,
            attempt=record.attempt,
            config=record.config,
            seconds=round(record.seconds, 3),
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            cached_tokens=usage.cached_tokens,
            cost=float(usage.cost),
            sandbox=record.sandbox.get("backend", ""),
            image=record.sandbox.get("image", ""),
            cwd=prompt.cwd,
            unavailable_toolsets=",".join(record.unavailable_toolsets),
            source=prompt.source,
        ),
        completed=done.outcome == "completed",
        partial=done.outcome == "partial",
        api_calls=len(record.calls),
        toolsets_used=record.toolsets,
        tool_stats=stats,
        tool_error_counts={name: of_tool.failure for name, of_tool in stats.items()},
    )
    line: bytes = _encode(row)
    for end, escape in _LINE_ENDS:
        if end in line:
            line = line.replace(end, escape)
    return line + b"\n"
