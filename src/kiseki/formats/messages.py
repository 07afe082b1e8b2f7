"""`messages`: chat messages as OpenAI's API writes them, with `reasoning_content`, which most chat templates read, and `weight`.

Every message has the same keys, so that a file of any length loads as it is: `content` is a text, or in every row of a file with
images a list of parts; arguments are the JSON text that the model wrote.
"""

from __future__ import annotations

from typing import Any

from kiseki.formats.format import EVERYTHING, Format, Options, Row
from kiseki.formats.images import as_parts
from kiseki.trajectory.example import Example
from kiseki.trajectory.json_rows import encode_row
from kiseki.trajectory.types import Message


def write(example: Example, options: Options) -> list[Row]:
    """One row: `messages`, and `tools` as JSON text, since schemas differ from row to row."""
    return [
        {
            "messages": [_message(each, at in example.masked) for at, each in enumerate(example.messages)],
            "tools": encode_row(example.tools).decode(),
            "prompt_index": example.prompt_index,
            "sample_index": example.sample_index,
            "completed": example.completed,
            "reward": "" if example.reward is None else repr(example.reward),
            "model": example.model,
            "source": example.source,
        }
    ]


def _message(message: Message, masked: bool) -> dict[str, Any]:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    return {
        "role": message.role,
        "content": as_parts(message),
        "reasoning_content": message.reasoning,
        "tool_calls": calls,
        "tool_call_id": message.tool_call_id,
        "name": message.name,
        "weight": 0 if masked else 1,
    }


FORMAT = Format(name="messages", suffixes=(".jsonl",), write=write, holds=EVERYTHING)
