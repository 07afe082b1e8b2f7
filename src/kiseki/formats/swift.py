"""`swift`: ms-swift's messages with turns of their own for calls and results, `tools` as JSON text, and a flag `loss`
(https://swift.readthedocs.io/en/latest/Instruction/Agent-support.html).

It keeps `role`, `content` and `loss` of a message and drops whatever else it has, so reasoning is a `<think>` block before the
text. Calls that are made together follow each other, as do their results, in the order of their calls. It pairs turns by
position, so these are made to alternate (`alternation.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from kiseki.formats.alternation import alternating, split_think, with_think
from kiseki.formats.columns import FACTS, arguments_object, arrow_schema, facts, tools_text
from kiseki.formats.format import EVERYTHING, Format, Options, Row
from kiseki.formats.images import placeholder_reader, urls, with_placeholders
from kiseki.formats.reading import ROLES, arguments_text, make_example, read_tools
from kiseki.trajectory.example import Example, trained
from kiseki.trajectory.json_rows import decode_row, encode_row
from kiseki.trajectory.sharegpt import unescape_text
from kiseki.trajectory.types import Message, ToolCall

_COLUMNS = {"messages": [{"role": str, "content": str, "loss": bool}], "tools": str, "images": [str], **FACTS}


def write(example: Example, options: Options) -> list[Row]:
    """One row. Raises `Unfit` for turns that cannot be made to alternate, and for arguments that are no JSON object: ms-swift
    drops such rows."""
    example = alternating(example)
    contents = with_placeholders(example)
    loss = set(trained(example))
    messages: list[dict[str, Any]] = []
    for at, message in enumerate(example.messages):
        trains = at in loss
        if message.role == "assistant":
            text = with_think(message.reasoning, contents[at], options)
            if text or not message.tool_calls:
                messages.append({"role": "assistant", "content": text, "loss": trains})
            for call in message.tool_calls:
                made = {"name": call.name, "arguments": arguments_object(call)}
                messages.append({"role": "tool_call", "content": encode_row(made).decode(), "loss": trains})
        else:
            role = "tool_response" if message.role == "tool" else message.role
            messages.append({"role": role, "content": contents[at], "loss": False})
    return [{"messages": messages, "tools": tools_text(example), "images": urls(example), **facts(example)}]


def read(row: Row) -> Example:
    """Raises `ValueError` for a call that is none."""
    take_images = placeholder_reader(row.get("images"))
    messages: list[Message] = []
    masked: set[int] = set()
    for turn in row["messages"]:
        role, content = turn["role"], turn["content"]
        if role == "tool_call":
            made = decode_row(content.encode())
            call = ToolCall("", made["name"], arguments_text(made["arguments"]))
            before = messages.pop() if messages and messages[-1].role == "assistant" else Message(role="assistant")
            messages.append(msgspec.structs.replace(before, tool_calls=(*before.tool_calls, call)))
        else:
            reasoning, text = split_think(content) if role == "assistant" else ("", content)
            text, images = take_images(unescape_text(text) if role == "assistant" else text)
            messages.append(Message(role=ROLES[role], content=text, reasoning=reasoning, images=images))
        if messages[-1].role == "assistant" and not turn["loss"]:
            masked.add(len(messages) - 1)
    return make_example(row, messages, read_tools(row.get("tools")), masked=masked)


FORMAT = Format(
    name="swift",
    suffixes=(".jsonl", ".parquet"),
    write=write,
    holds=EVERYTHING - {"ids"},
    read=read,
    schema=partial(arrow_schema, _COLUMNS),
    ends_on_assistant=True,
)
