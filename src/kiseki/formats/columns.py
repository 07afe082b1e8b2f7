"""Columns: their types, and those that several formats have: what a row says of its rollout beside the conversation, its tools,
and calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiseki.formats.format import Unfit
from kiseki.trajectory.example import Example
from kiseki.trajectory.json_rows import decode_row, encode_row
from kiseki.trajectory.sharegpt import is_json_object
from kiseki.trajectory.types import Message, ToolCall

Columns = Mapping[str, Any]
"""Names of columns and their types: `str`, `int`, `float`, `bool`, a list with the type of its items, or columns again for an
object with these keys."""

FACTS: Columns = {
    "key": str,
    "prompt_index": int,
    "sample_index": int,
    "completed": bool,
    "reward": str,
    "model": str,
    "source": str,
}
"""Of `facts`."""
CALL: Columns = {"id": str, "type": str, "function": {"name": str, "arguments": str}}
"""Of `call_object`."""


def arrow_schema(columns: Columns) -> Any:
    """The columns as a `pyarrow.Schema`; whole numbers have 64 bits, as have others."""
    import pyarrow

    scalars = {str: pyarrow.string(), int: pyarrow.int64(), float: pyarrow.float64(), bool: pyarrow.bool_()}

    def kind(column: Any) -> Any:
        if isinstance(column, list):
            return pyarrow.list_(kind(column[0]))
        if isinstance(column, Mapping):
            return pyarrow.struct([pyarrow.field(name, kind(each)) for name, each in column.items()])
        return scalars[column]

    return pyarrow.schema([pyarrow.field(name, kind(each)) for name, each in columns.items()])


def facts(example: Example) -> dict[str, Any]:
    """What every row says of its rollout, in fixed types; `reading.read_row` reads it back. `reward` is text, "" for none: a
    column that is null for a while and then a number does not load."""
    return {
        "key": example.key,
        "prompt_index": example.prompt_index,
        "sample_index": example.sample_index,
        "completed": example.completed,
        "reward": "" if example.reward is None else repr(example.reward),
        "model": example.model,
        "source": example.source,
    }


def tools_text(example: Example) -> str:
    """The tools as a JSON list: schemas differ from row to row, so they have no type of their own."""
    return encode_row(example.tools).decode()


def call_object(call: ToolCall) -> dict[str, Any]:
    """A call as chat APIs write it, with its arguments as the text that they are."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def arguments_object(call: ToolCall) -> dict[str, Any]:
    """The arguments, decoded. Raises `Unfit` where they are no JSON object."""
    text = call.arguments.strip() or "{}"
    if not is_json_object(text):
        raise Unfit("arguments that are no JSON object", f"a call of {call.name}")
    decoded: dict[str, Any] = decode_row(text.encode())
    return decoded


def check_answers(example: Example) -> None:
    """Raises `Unfit` unless results follow the calls that they answer, one for each; those of the last turn may be missing."""
    messages = example.messages
    wanted: set[str] = set()
    for message in messages:
        if message.role == "tool":
            if message.tool_call_id not in wanted:
                raise Unfit("a result without its call")
            wanted.remove(message.tool_call_id)
            continue
        if wanted:
            raise Unfit("a call without its result")
        wanted = {call.id for call in message.tool_calls}


def in_call_order(messages: tuple[Message, ...]) -> list[int]:
    """Positions of the messages, with the results of each turn in the order of its calls."""
    order: list[int] = []
    place: dict[str, int] = {}
    results: list[int] = []

    def flush() -> None:
        order.extend(sorted(results, key=lambda at: place.get(messages[at].tool_call_id, len(place))))
        results.clear()

    for at, message in enumerate(messages):
        if message.role == "tool":
            results.append(at)
            continue
        flush()
        order.append(at)
        place = {call.id: number for number, call in enumerate(message.tool_calls)}
    flush()
    return order
