"""`openai`: what OpenAI's supervised fine-tuning documents, and nothing else: messages of `role`, `content`, `tool_calls` and
`tool_call_id`, `weight` 0 or 1 on the assistant's, `tools` and `parallel_tool_calls` beside them
(https://platform.openai.com/docs/guides/supervised-fine-tuning).

The API refuses empty lists of calls and nulls, so a message has only the keys that it needs: the files are for the API, not for
libraries that want one type per column (`messages` is for those). Reasoning cannot be held.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kiseki.formats.columns import call_object, check_answers
from kiseki.formats.format import EVERYTHING, Format, Options, Row, Unfit
from kiseki.formats.images import as_parts
from kiseki.formats.reading import read_row
from kiseki.trajectory.example import Example, trained
from kiseki.trajectory.types import Message


def write(example: Example, options: Options) -> list[Row]:
    """One row. Raises `Unfit` for what the API refuses: calls without results (but at the end) and results without calls, images
    anywhere but in a user's message, an assistant turn that says nothing, no turn that a loss falls on."""
    check_answers(example)
    loss = set(trained(example))
    if not loss:
        raise Unfit("no turn to train on")
    row: Row = {"messages": [_message(each, at in loss) for at, each in enumerate(example.messages)]}
    if example.tools:
        row["tools"] = list(example.tools)
        row["parallel_tool_calls"] = any(len(each.tool_calls) > 1 for each in example.messages)
    return [row]


def _message(message: Message, loss: bool) -> dict[str, Any]:
    if message.images and message.role != "user":
        raise Unfit("an image outside a user turn")
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content}
    if message.role != "assistant":
        return {"role": message.role, "content": as_parts(message)}
    if not message.content and not message.tool_calls:
        raise Unfit("an assistant turn that says nothing")
    made: dict[str, Any] = {"role": "assistant"}
    if message.content:
        made["content"] = message.content
    if message.tool_calls:
        made["tool_calls"] = [call_object(call) for call in message.tool_calls]
    return made | {"weight": int(loss)}


FORMAT = Format(
    name="openai",
    suffixes=(".jsonl",),
    write=write,
    holds=EVERYTHING - {"reasoning"},
    read=partial(read_row, inline=False),
    ends_on_assistant=True,
    packed=False,
)
