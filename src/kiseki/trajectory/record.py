"""A `Record` as bytes: msgpack under zstd, the form in which workers hand records on and the ledger keeps them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import msgspec
import zstandard

from kiseki.trajectory.types import Message, Record, ToolRun, Usage

LEVEL = 3
"""zstd's default: a 16 KB record in about 0.1 ms; higher levels cost more CPU than the disk they save is worth."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode
_local = threading.local()  # zstd contexts are not thread-safe, and making one per record costs more than the record


def encode_record(record: Record) -> bytes:
    return compress(pack(record))


def pack(record: Record) -> bytes:
    """The record before `compress`."""
    return _encode(record)


def compress(packed: bytes) -> bytes:
    """What takes most of the time, and leaves the interpreter to other threads meanwhile."""
    if not hasattr(_local, "compress"):
        _local.compress = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compress
    compressed: bytes = _local.compress(packed)
    return compressed


def decode_record(data: bytes) -> Record:
    """Raises `ValueError` when the bytes are damaged."""
    if not hasattr(_local, "decompress"):
        _local.decompress = zstandard.ZstdDecompressor().decompress
    try:
        return _decode(_local.decompress(data))
    except (zstandard.ZstdError, msgspec.DecodeError, MemoryError) as error:  # the last for a size that is damaged
        raise ValueError(f"a record cannot be read: {error}") from error


class Summary(msgspec.Struct, frozen=True):
    """What the ledger keeps of a record in columns, so that resume, filters and statistics never unpack one."""

    outcome: str
    reason: str
    error_class: str
    error: str
    retryable: bool
    started: float
    seconds: float
    api_calls: int
    usage: Usage
    """`usage_of`: tools and sub-agents included, which the other figures are not unless they say so."""
    model_seconds: float
    tool_seconds: float
    assistant_turns: int
    reasoning_turns: int
    unknown_tools: tuple[str, ...]
    tool_counts: dict[str, tuple[int, int]]
    """Per tool called: (calls, failures)."""
    tool_timeouts: int = 0
    """Tool calls that were cut off at their time limit."""
    redacted: int = 0
    """Secrets taken out of tool results, those of sub-agents included."""
    config: str = ""
    children: int = 0
    """Sub-agents that it started."""
    context_cuts: int = 0
    """Tool results that its model was sent without their middle; those of sub-agents are in their own records."""
    fallback_calls: int = 0
    """Model calls that another model than the run's answered."""


def own_messages(record: Record) -> tuple[Message, ...]:
    """The messages that this rollout made, without the prompt's."""
    return record.messages[record.prompt_messages :]


def with_children(record: Record) -> Iterator[Record]:
    """The record, then those of its sub-agents and theirs."""
    yield record
    for run in record.tool_runs:
        for each in with_inner(run):
            for child in each.children:
                yield from with_children(child)


def with_inner(run: ToolRun) -> Iterator[ToolRun]:
    """The tool call, then those that it made itself."""
    yield run
    for inner in run.inner:
        yield from with_inner(inner.run)


def usage_of(record: Record) -> Usage:
    """Of all that a rollout did: its own model calls, those that its tools made, and its sub-agents'."""
    total = Usage()
    for each in with_children(record):
        total = sum((call.usage + call.refused for call in each.calls), total)
        for run in each.tool_runs:
            total = sum((part.usage for part in with_inner(run)), total)
    return total


def results_cut(record: Record) -> int:
    """Tool results that its model was sent without their middle."""
    return len({cut.message for cut in record.context_cuts})


def summarize(record: Record) -> Summary:
    turns = [each for each in own_messages(record) if each.role == "assistant"]
    counts: Counter[str] = Counter(run.name for run in record.tool_runs)
    failures: Counter[str] = Counter(run.name for run in record.tool_runs if not run.ok)
    return Summary(
        outcome=record.outcome,
        reason=record.reason,
        error_class=record.error_class,
        error=record.error,
        retryable=record.retryable,
        started=record.started,
        seconds=record.seconds,
        api_calls=len(record.calls),
        usage=usage_of(record),
        model_seconds=sum(call.seconds for call in record.calls),
        tool_seconds=sum(run.seconds for run in record.tool_runs),
        assistant_turns=len(turns),
        reasoning_turns=sum(1 for turn in turns if turn.reasoning.strip()),
        unknown_tools=record.unknown_tools,
        tool_counts={name: (count, failures[name]) for name, count in counts.items()},
        tool_timeouts=sum(run.timed_out for run in record.tool_runs),
        redacted=sum(part.redacted for each in with_children(record) for run in each.tool_runs for part in with_inner(run)),
        config=record.config,
        children=sum(1 for _ in with_children(record)) - 1,
        context_cuts=results_cut(record),
        fallback_calls=sum(1 for call in record.calls if call.fallback),
    )
