"""`messages`: chat messages as OpenAI's API writes them, with `reasoning_content`, which most chat templates read, and `weight`.

Every message has the same keys and `content` is always a text: images stand as `<image>` in it, with their URLs in the column
`images`. Arguments are the JSON text that the model wrote. `weight` is 1 where a loss falls on the message and 0 elsewhere. In
JSON lines the datasets library takes a list that is empty in its first 10 MB for one of nothing, and fails at the first call or
image after it; parquet says what is in it from the start.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kiseki.formats.columns import CALL, FACTS, arrow_schema, call_object, check_answers, facts, tools_text
from kiseki.formats.format import EVERYTHING, Format, Options, Row
from kiseki.formats.images import urls, with_placeholders
from kiseki.formats.reading import read_row
from kiseki.trajectory.example import Example, trained
from kiseki.trajectory.types import Message

_MESSAGE = {
    "role": str,
    "content": str,
    "reasoning_content": str,
    "tool_calls": [CALL],
    "tool_call_id": str,
    "name": str,
    "weight": int,
}
_COLUMNS = {"messages": [_MESSAGE], "tools": str, "images": [str], **FACTS}


def write(example: Example, options: Options) -> list[Row]:
    """One row: `messages`, and `tools` as JSON text, since schemas differ from row to row. Raises `Unfit` for calls and
    results that do not answer each other, which APIs and templates refuse."""
    check_answers(example)
    contents = with_placeholders(example)
    loss = set(trained(example))
    return [
        {
            "messages": [_message(each, contents[at], at in loss) for at, each in enumerate(example.messages)],
            "tools": tools_text(example),
            "images": urls(example),
            **facts(example),
        }
    ]


def _message(message: Message, content: str, loss: bool) -> dict[str, Any]:
    return {
        "role": message.role,
        "content": content,
        "reasoning_content": message.reasoning,
        "tool_calls": [call_object(call) for call in message.tool_calls],
        "tool_call_id": message.tool_call_id,
        "name": message.name,
        "weight": int(loss),
    }


FORMAT = Format(
    name="messages",
    suffixes=(".jsonl", ".parquet"),
    write=write,
    holds=EVERYTHING,
    read=partial(read_row, inline=False),
    schema=partial(arrow_schema, _COLUMNS),
)
