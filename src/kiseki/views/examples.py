"""Done rollouts as `Example`s: what exports are made of."""

from __future__ import annotations

from typing import Any

import msgspec

from kiseki.formats.reading import read_row, read_tools, reward_of
from kiseki.ledger.types import DoneRollout
from kiseki.trajectory.example import Example
from kiseki.trajectory.record import decode_record, usage_of
from kiseki.trajectory.types import Prompt, Record

_decode_prompt = msgspec.msgpack.Decoder(Prompt).decode


def example_of(done: DoneRollout, schemas: dict[str, str]) -> Example:
    """The example of one done rollout. `schemas`: the ledger's tool schemas by hash. Raises `ValueError` when the record is
    damaged, `KeyError` when its schemas are not there."""
    prompt = _decode_prompt(done.payload)
    record = decode_record(done.record)
    if record.adopted_conversation:
        adopted = read_row({"conversations": record.adopted_conversation})
        return msgspec.structs.replace(adopted, **_facts(record, prompt, done), prompt_messages=0)
    failed_calls = {run.call_id for run in record.tool_runs if not run.ok}
    return Example(
        messages=record.messages,
        tools=_tools(schemas[record.tools_hash]),
        prompt_messages=record.prompt_messages,
        failed=frozenset(
            at for at, each in enumerate(record.messages) if each.role == "tool" and each.tool_call_id in failed_calls
        ),
        calls=record.calls,
        **_facts(record, prompt, done),
    )


def _facts(record: Record, prompt: Prompt, done: DoneRollout) -> dict[str, Any]:
    return {
        "key": record.key,
        "prompt_index": done.position,
        "sample_index": done.sample_index,
        "completed": record.outcome == "completed",
        "partial": record.outcome == "partial",
        "stop_reason": record.reason,
        "finish_reason": record.calls[-1].finish_reason if record.calls else "",
        "model": record.model,
        "reward": reward_of(None, prompt.source),
        "started": record.started,
        "seconds": record.seconds,
        "usage": usage_of(record),
        "toolsets": record.toolsets,
        "source": prompt.source,
    }


_of_schemas: dict[str, tuple[dict[str, Any], ...]] = {}


def _tools(schemas: str) -> tuple[dict[str, Any], ...]:
    """Decoded once for all the rollouts that were sent the same."""
    if schemas not in _of_schemas:
        _of_schemas[schemas] = read_tools(schemas)
    return _of_schemas[schemas]
