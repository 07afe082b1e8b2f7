"""`parquet`: everything that an example has, in columns of fixed types. What has no type of its own (schemas of tools, arguments,
the prompt row's other columns) is JSON text.

`reward` is the one column with nulls: a number, where there is one.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from kiseki.formats.columns import arrow_schema, tools_text
from kiseki.formats.format import EVERYTHING, Format, Options, Row
from kiseki.formats.reading import read_tools
from kiseki.trajectory.example import Example, trained
from kiseki.trajectory.json_rows import decode_row, encode_row
from kiseki.trajectory.types import CallTokens, ImageAt, Message, ModelCall, ToolCall, Usage

_OWN = {
    "key": str,
    "prompt_index": int,
    "sample_index": int,
    "prompt_messages": int,
    "completed": bool,
    "partial": bool,
    "stop_reason": str,
    "finish_reason": str,
    "model": str,
    "reward": float,
    "started": float,
    "seconds": float,
    "source": str,
    "metadata": str,
}
"""Fields of an `Example` that are columns as they are."""
_OF_CALL = {
    "started": float,
    "seconds": float,
    "finish_reason": str,
    "usage_reported": bool,
    "cost_reported": bool,
    "model": str,
    "provider": str,
    "response_id": str,
    "retries": int,
    "waited": float,
}
"""Those of a `ModelCall`."""
_USAGE = {
    "prompt_tokens": int,
    "completion_tokens": int,
    "reasoning_tokens": int,
    "cached_tokens": int,
    "cost": float,
    "cache_write_tokens": int,
}
_TOKENS = {"prompt_ids": [int], "shared": int, "completion_ids": [int], "logprobs": [float], "has_tokens": bool}
_MESSAGE = {
    "role": str,
    "content": str,
    "reasoning": str,
    "tool_calls": [{"id": str, "name": str, "arguments": str}],
    "tool_call_id": str,
    "name": str,
    "images": [{"at": int, "url": str}],
    "provider_fields": str,
    "masked": bool,
    "failed": bool,
    "trained": bool,
}
_COLUMNS = {
    "messages": [_MESSAGE],
    "tools": str,
    **_OWN,
    "usage": _USAGE,
    "calls": [{**_OF_CALL, "usage": _USAGE, **_TOKENS}],
    "toolsets": [str],
}


def write(example: Example, options: Options) -> list[Row]:
    """One row."""
    loss = set(trained(example))
    return [
        {
            "messages": [_message(example, at, at in loss) for at in range(len(example.messages))],
            "tools": tools_text(example),
            **{name: _as(kind, getattr(example, name)) for name, kind in _OWN.items()},
            "usage": _usage(example.usage),
            "calls": [_call(each) for each in example.calls],
            "toolsets": list(example.toolsets),
        }
    ]


def read(row: Row) -> Example:
    """The example that `write` was given."""
    messages = row["messages"]
    return Example(
        messages=tuple(_read_message(each) for each in messages),
        tools=read_tools(row["tools"]),
        masked=frozenset(at for at, each in enumerate(messages) if each["masked"]),
        failed=frozenset(at for at, each in enumerate(messages) if each["failed"]),
        usage=Usage(**row["usage"]),
        calls=tuple(_read_call(each) for each in row["calls"]),
        toolsets=tuple(row["toolsets"]),
        **{name: row[name] for name in _OWN},
    )


def _message(example: Example, at: int, loss: bool) -> dict[str, Any]:
    message = example.messages[at]
    return {
        "role": message.role,
        "content": message.content,
        "reasoning": message.reasoning,
        "tool_calls": [_plain(call) for call in message.tool_calls],
        "tool_call_id": message.tool_call_id,
        "name": message.name,
        "images": [_plain(image) for image in message.images],
        "provider_fields": encode_row(message.provider_fields).decode(),
        "masked": at in example.masked,
        "failed": at in example.failed,
        "trained": loss,
    }


def _read_message(made: dict[str, Any]) -> Message:
    return Message(
        role=made["role"],
        content=made["content"],
        reasoning=made["reasoning"],
        tool_calls=tuple(ToolCall(**each) for each in made["tool_calls"]),
        tool_call_id=made["tool_call_id"],
        name=made["name"],
        provider_fields=decode_row(made["provider_fields"].encode()),
        images=tuple(ImageAt(**each) for each in made["images"]),
    )


def _call(call: ModelCall) -> dict[str, Any]:
    tokens = call.tokens or CallTokens((), ())
    return {name: _as(kind, getattr(call, name)) for name, kind in _OF_CALL.items()} | {
        "usage": _usage(call.usage),
        "prompt_ids": list(tokens.prompt),
        "shared": tokens.shared,
        "completion_ids": list(tokens.completion),
        "logprobs": list(map(float, tokens.logprobs)),
        "has_tokens": call.tokens is not None,
    }


def _read_call(made: dict[str, Any]) -> ModelCall:
    tokens = CallTokens(tuple(made["prompt_ids"]), tuple(made["completion_ids"]), tuple(made["logprobs"]), made["shared"])
    return ModelCall(
        **{name: made[name] for name in _OF_CALL},
        usage=Usage(**made["usage"]),
        tokens=tokens if made["has_tokens"] else None,
    )


def _as(kind: type, value: Any) -> Any:
    return float(value) if kind is float and value is not None else value


def _usage(usage: Usage) -> dict[str, Any]:
    return _plain(usage) | {"cost": float(usage.cost)}


def _plain(struct: msgspec.Struct) -> dict[str, Any]:
    return msgspec.structs.asdict(struct)


FORMAT = Format(
    name="parquet", suffixes=(".parquet",), write=write, holds=EVERYTHING, read=read, schema=partial(arrow_schema, _COLUMNS)
)
