"""A record as a row of `trajectories.jsonl`.

Every row of a run has the same keys and types from first to last, which is what `datasets` and Arrow need: no null, floats
always written as floats, free-form data as one JSON string.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import msgspec

from kiseki.ledger.types import DoneRollout
from kiseki.trajectory.record import decode_record, results_cut, usage_of, with_children, with_inner
from kiseki.trajectory.sharegpt import Turn, to_sharegpt
from kiseki.trajectory.types import Prompt, Record


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
    answered_by: str
    """The model that answered each model call, in order, comma-separated: another than `model` is a fallback."""
    seed: int
    attempt: int
    config: str
    """Which of the run's configurations made it (`kiseki log` shows them); "" where it is not known."""
    seconds: float
    prompt_tokens: int
    """The five of tokens and the cost are of all that the rollout did: its tools' model calls and its sub-agents' too."""
    completion_tokens: int
    reasoning_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    """Put into the provider's cache, where that has a price of its own."""
    cost: float
    """US dollars."""
    children: int
    """Sub-agents that it started; their rows are in `children.jsonl`, but of those that failed or that a filter discards."""
    context_cuts: int
    """Tool results that stand here whole, and that the model was sent without their middle from some call on."""
    inner_tool_calls: int
    """Tool calls that its tools made (`execute_code`); no part of the conversation nor of `tool_stats`."""
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


class Parent(msgspec.Struct, frozen=True):
    """Where a sub-agent was started."""

    prompt_index: int
    sample_index: int
    call_id: str
    """Of the call, in the conversation that started it."""
    number: int
    """Among the rollout's sub-agents, from 1."""
    depth: int
    """1: the rollout itself started it."""


class ChildRow(Row, frozen=True):
    """Of `children.jsonl`: `prompt_index`, `sample_index` and `metadata.source` are those of its rollout."""

    parent: Parent


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
    return _line(_row(done, prompt, prompt.text, decode_record(done.record), tools, schemas))


def child_lines(
    done: DoneRollout, tools: tuple[str, ...], schemas: dict[str, str], is_kept: Callable[[Record], bool]
) -> list[bytes]:
    """The same for its sub-agents, in the order in which they were started."""
    prompt = _decode_prompt(done.payload)
    rows = []
    for record, call_id, depth in _children(decode_record(done.record)):
        if record.outcome != "failed" and is_kept(record):
            row = _row(done, prompt, record.messages[record.prompt_messages - 1].content, record, tools, schemas)
            number = int(record.key.rpartition("/")[2])
            parent = Parent(done.position, done.sample_index, call_id, number, depth)
            rows.append(ChildRow(**{name: getattr(row, name) for name in row.__struct_fields__}, parent=parent))
    return [_line(row) for row in sorted(rows, key=lambda row: row.parent.number)]


def _children(record: Record, depth: int = 1) -> Iterator[tuple[Record, str, int]]:
    """Each with the id of the call that started it, and its depth."""
    for run in record.tool_runs:
        for each in with_inner(run):
            for child in each.children:
                yield child, each.call_id, depth
                yield from _children(child, depth + 1)


def _row(done: DoneRollout, prompt: Prompt, text: str, record: Record, tools: tuple[str, ...], schemas: dict[str, str]) -> Row:
    stats = {name: ToolStats() for name in tools}
    for run in record.tool_runs:
        if run.name in stats:  # other names are what the unknown_tool filter is for
            of_tool = stats[run.name]
            of_tool.count += 1
            of_tool.success += run.ok
            of_tool.failure += not run.ok
    usage = usage_of(record)
    return Row(
        prompt_index=done.position,
        prompt=text,
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
            answered_by=",".join(call.fallback or record.model for call in record.calls),
            seed=record.seed,
            attempt=record.attempt,
            config=record.config,
            seconds=round(record.seconds, 3),
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            cached_tokens=usage.cached_tokens,
            cache_write_tokens=usage.cache_write_tokens,
            cost=float(usage.cost),
            children=sum(1 for _ in with_children(record)) - 1,
            context_cuts=results_cut(record),
            inner_tool_calls=sum(1 for run in record.tool_runs for _ in with_inner(run)) - len(record.tool_runs),
            sandbox=record.sandbox.get("backend", ""),
            image=record.sandbox.get("image", ""),
            cwd=prompt.cwd,
            unavailable_toolsets=",".join(record.unavailable_toolsets),
            source=prompt.source,
        ),
        completed=record.outcome == "completed",
        partial=record.outcome == "partial",
        api_calls=len(record.calls),
        toolsets_used=record.toolsets,
        tool_stats=stats,
        tool_error_counts={name: of_tool.failure for name, of_tool in stats.items()},
    )


def _line(row: Row) -> bytes:
    line: bytes = _encode(row)
    for end, escape in _LINE_ENDS:
        if end in line:
            line = line.replace(end, escape)
    return line + b"\n"
