"""`trl`: the columns `messages` and `tools` of TRL's SFTTrainer (https://huggingface.co/docs/trl/dataset_formats), calls with
their arguments as objects, which nearly every chat template takes.

A message has only the keys that it needs, since templates ask whether a message has calls by whether it has the key. In parquet
each message and each tool is JSON, of the type `Json` that the datasets library has since 4.7: it loads them as the objects that
they were, however different, from the first row to the last. In JSONL that library guesses types from the first megabytes; give
it `features={"messages": List(Json()), "tools": List(Json()), …}` there.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from kiseki.formats.columns import FACTS, arguments_object, arrow_schema, check_answers, facts
from kiseki.formats.format import EVERYTHING, Format, Options, Row, Unfit
from kiseki.formats.reading import read_row
from kiseki.trajectory.example import Example
from kiseki.trajectory.json_columns import NOTE
from kiseki.trajectory.types import Message

_encode = msgspec.msgpack.Encoder().encode


def write(example: Example, options: Options) -> list[Row]:
    """One row. Raises `Unfit` for calls and results that do not answer each other, where arguments are no JSON object, or where
    a number would keep the whole file from loading."""
    check_answers(example)
    row = {
        "messages": [_message(each) for each in example.messages],
        "tools": list(example.tools),
        **facts(example),
    }
    if _has_large_number([row["messages"], row["tools"]]):
        raise Unfit("a whole number of more than 64 bits")
    return [row]


def schema() -> Any:
    """With the datasets library's note that says which columns are JSON."""
    import pyarrow

    columns = {name: {"feature": {"_type": "Json"}, "_type": "List"} for name in ("messages", "tools")}
    own = arrow_schema(FACTS)
    columns |= {field.name: {"dtype": str(field.type), "_type": "Value"} for field in own}
    listed = [pyarrow.field(name, pyarrow.list_(pyarrow.json_())) for name in ("messages", "tools")]
    return pyarrow.schema([*listed, *own], {NOTE: msgspec.json.encode({"info": {"features": columns}})})


def _message(message: Message) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.role == "tool":
        return made | {"tool_call_id": message.tool_call_id, "name": message.name}
    if message.role == "assistant":
        made["reasoning_content"] = message.reasoning
        if message.tool_calls:
            made["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments_object(call)}}
                for call in message.tool_calls
            ]
    return made


def _content(message: Message) -> str | list[dict[str, str]]:
    """Parts as the templates of models that see have them."""
    if not message.images:
        return message.content
    parts, done = [], 0
    for image in message.images:
        if image.at > done:
            parts.append({"type": "text", "text": message.content[done : image.at]})
        parts.append({"type": "image", "image": image.url})
        done = image.at
    return [*parts, {"type": "text", "text": message.content[done:]}] if message.content[done:] else parts


def _has_large_number(value: Any) -> bool:
    """Whether a whole number in it is not from -2**63 to 2**64 - 1, which the datasets library does not read in JSON. msgpack has
    the same limits, and writing it is many times faster than a look at every value."""
    try:
        _encode(value)
    except OverflowError:
        return True
    return False


FORMAT = Format(
    name="trl",
    suffixes=(".parquet", ".jsonl"),
    write=write,
    holds=EVERYTHING - {"masks"},
    read=partial(read_row, inline=False),
    schema=schema,
)
