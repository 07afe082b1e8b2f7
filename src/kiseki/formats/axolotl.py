"""`axolotl`: for its `type: chat_template` (https://docs.axolotl.ai/docs/dataset-formats/conversation.html), with a flag `train`
on every message.

`messages` and `tools` are JSON text, which axolotl decodes: so a message has only the keys that it needs (chat templates ask
whether it has calls by whether it has the key), and no two rows differ in type. The dataset's part of a configuration:

    datasets:
      - path: train.jsonl
        ds_type: json
        type: chat_template
        field_messages: messages
        message_field_training: train
        roles_to_train: [assistant]
        train_on_eos: turn
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kiseki.formats.columns import FACTS, arguments_object, arrow_schema, call_object, check_answers, facts, tools_text
from kiseki.formats.format import EVERYTHING, Format, Options, Row, Unfit
from kiseki.formats.reading import read_row
from kiseki.trajectory.example import Example, trained
from kiseki.trajectory.json_rows import encode_row
from kiseki.trajectory.types import Message

_COLUMNS = {"messages": str, "tools": str, **FACTS}


def write(example: Example, options: Options) -> list[Row]:
    """One row. Raises `Unfit` for images, for calls and results that do not answer each other, and where arguments are no JSON
    object: axolotl ends at such a row."""
    check_answers(example)
    if any(each.images for each in example.messages):
        raise Unfit("images")
    loss = set(trained(example))
    messages = [_message(each, at in loss) for at, each in enumerate(example.messages)]
    return [{"messages": encode_row(messages).decode(), "tools": tools_text(example), **facts(example)}]


def _message(message: Message, loss: bool) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "assistant":
        made["reasoning_content"] = message.reasoning
    if message.tool_calls:
        for call in message.tool_calls:
            arguments_object(call)
        made["tool_calls"] = [call_object(call) for call in message.tool_calls]
    if message.role == "tool":
        made |= {"tool_call_id": message.tool_call_id, "name": message.name}
    return made | {"train": loss}


FORMAT = Format(
    name="axolotl",
    suffixes=(".jsonl", ".parquet"),
    write=write,
    holds=EVERYTHING - {"images"},
    read=partial(read_row, inline=False),
    schema=partial(arrow_schema, _COLUMNS),
)
