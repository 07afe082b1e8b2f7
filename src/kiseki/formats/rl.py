"""`rl`: exact token ids, masks and logprobs, a row for each sequence that the model saw and continued.

Usually that is one row for a rollout. Where a call's prompt does not begin with the ids so far (a template that takes old
reasoning out), the next row begins: `segment` of `segments`. `prompt_ids` is the first call's prompt; `response_ids` all that
follows it, with `response_mask` 1 for what the model sampled, 0 for results, for what the template added, and for masked replies.
Ids and logprobs are the server's (`ModelCall.tokens`), or, with `retokenized`, made anew from the text (`token_sequences`), then
without logprobs. The rows with one `prompt_index` are a group. `reward` is 0.0 where there is none, as `has_reward` says.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kiseki.formats.columns import FACTS, arrow_schema, call_object, facts, tools_text
from kiseki.formats.format import EVERYTHING, Format, Options, Row
from kiseki.formats.images import as_parts
from kiseki.formats.reading import read_row
from kiseki.formats.token_sequences import sequences_of
from kiseki.trajectory.example import Example
from kiseki.trajectory.json_rows import encode_row
from kiseki.trajectory.types import Message

_IDS = ("prompt_ids", "response_ids", "response_mask", "logprobs")


def write(example: Example, options: Options) -> list[Row]:
    """One row for each segment. Raises `Unfit`."""
    found = sequences_of(example, options)
    messages = [_message(each, at in example.masked) for at, each in enumerate(example.messages)]
    return [
        {
            **facts(example),
            "reward": 0.0 if example.reward is None else float(example.reward),
            "has_reward": example.reward is not None,
            "stop_reason": example.stop_reason,
            "segment": number,
            "segments": len(found),
            "prompt_ids": each.prompt,
            "response_ids": each.response,
            "response_mask": each.mask,
            "logprobs": each.logprobs,
            "has_logprobs": each.has_logprobs,
            "retokenized": each.retokenized,
            "messages": encode_row(messages[: each.messages]).decode(),
            "tools": tools_text(example),
        }
        for number, each in enumerate(found)
    ]


def read(row: Row) -> Example:
    """The conversation, and what the row says of it; its token ids stay where they are. Raises `ValueError`."""
    found = read_row({name: value for name, value in row.items() if name not in _IDS}, inline=False)
    return found if row.get("has_reward") else msgspec.structs.replace(found, reward=None)


def schema() -> Any:
    import pyarrow as pa

    own = {field.name: field.type for field in arrow_schema(FACTS)} | {"reward": pa.float64()}
    own |= {"has_reward": pa.bool_(), "stop_reason": pa.string(), "segment": pa.int64(), "segments": pa.int64()}
    own |= {"prompt_ids": pa.list_(pa.int32()), "response_ids": pa.list_(pa.int32()), "response_mask": pa.list_(pa.int8())}
    own |= {"logprobs": pa.list_(pa.float64()), "has_logprobs": pa.bool_(), "retokenized": pa.bool_()}
    return pa.schema(own | {"messages": pa.string(), "tools": pa.string()})


def _message(message: Message, masked: bool) -> dict[str, Any]:
    """With only the keys that say something: the column is text, so rows need not agree on them."""
    row: dict[str, Any] = {"role": message.role, "content": as_parts(message)}
    if message.reasoning:
        row["reasoning_content"] = message.reasoning
    if message.tool_calls:
        row["tool_calls"] = [call_object(call) for call in message.tool_calls]
    if message.role == "tool":
        row |= {"tool_call_id": message.tool_call_id, "name": message.name}
    if masked:
        row["weight"] = 0
    return row


FORMAT = Format(name="rl", suffixes=(".jsonl", ".parquet"), write=write, read=read, holds=EVERYTHING, schema=schema)
