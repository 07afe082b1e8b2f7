"""`llamafactory`: LLaMA-Factory's `formatting: sharegpt` with `function_call` and `observation` turns, and its dataset_info.json
(https://github.com/hiyouga/LLaMA-Factory/blob/main/data/README.md).

It drops a row without an error where the turns do not alternate, so they are made to (`alternation.py`). The calls of a turn
stand in one `function_call` as a list, the results in one `observation`, between the tags that its own reader of OpenAI messages
puts there. Reasoning is a `<think>` block before the rest. A text beside calls is kept by writing these in `<tool_call>` tags,
which templates with other tags of their own (LFM2) refuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import PurePath
from typing import Any

import msgspec

from kiseki.formats.alternation import alternating, split_think, with_think
from kiseki.formats.columns import FACTS, arguments_object, arrow_schema, facts
from kiseki.formats.format import EVERYTHING, Format, Options, Row, Unfit
from kiseki.formats.images import placeholder_reader, urls, with_placeholders
from kiseki.formats.reading import arguments_text, make_example, read_tools
from kiseki.trajectory.example import Example
from kiseki.trajectory.json_rows import decode_row, encode_row
from kiseki.trajectory.sharegpt import escape_json, unescape_text
from kiseki.trajectory.types import Message, ToolCall

BETWEEN_RESULTS = "\n</tool_response>\n<tool_response>\n"
_OPEN, _CLOSE = "<tool_call>\n", "\n</tool_call>"
_NAMED = {"messages": "conversations", "system": "system", "tools": "tools", "images": "images"}
_COLUMNS = {"conversations": [{"from": str, "value": str}], "system": str, "tools": str, "images": [str], **FACTS}


def write(example: Example, options: Options) -> list[Row]:
    """One row. Raises `Unfit` for turns that cannot be made to alternate, and for arguments that are no JSON object, at which
    LLaMA-Factory ends."""
    example = alternating(example)
    contents = with_placeholders(example)
    turns: list[dict[str, str]] = []
    system = ""
    results: list[str] = []
    for at, message in enumerate(example.messages):
        if message.role == "system":
            system = contents[at]
        elif message.role == "user":
            turns.append({"from": "human", "value": contents[at]})
        elif message.role == "assistant":
            turns.append(_assistant(message, contents[at], options))
        else:
            results.append(contents[at])
            if at + 1 == len(example.messages) or example.messages[at + 1].role != "tool":
                turns.append({"from": "observation", "value": _observation(results)})
                results = []
    return [
        {
            "conversations": turns,
            "system": system,
            "tools": encode_row([_tool(each) for each in example.tools]).decode() if example.tools else "",
            "images": urls(example),
            **facts(example),
        }
    ]


def read(row: Row) -> Example:
    """Raises `ValueError` for turns that are not as `write` gives them."""
    take_images = placeholder_reader(row.get("images"))
    messages: list[Message] = []
    calls: tuple[ToolCall, ...] = ()
    if row.get("system"):
        messages.append(_shown(take_images, "system", row["system"]))
    for turn in row["conversations"]:
        kind, value = turn["from"], turn["value"]
        if kind == "human":
            messages.append(_shown(take_images, "user", value))
        elif kind == "observation":
            parts = value.split(BETWEEN_RESULTS)
            messages += [_shown(take_images, "tool", each) for each in (parts if len(parts) == len(calls) else [value])]
        else:
            reasoning, value = split_think(value)
            calls = ()
            if kind == "function_call":
                text, payload = _split_calls(value)
                made = decode_row(payload.encode())
                listed = made if isinstance(made, list) else [made]
                calls = tuple(ToolCall("", each["name"], arguments_text(each["arguments"])) for each in listed)
            else:
                text = value
            shown = _shown(take_images, "assistant", unescape_text(text))
            messages.append(msgspec.structs.replace(shown, reasoning=reasoning, tool_calls=calls))
    return make_example(row, messages, read_tools(row.get("tools")))


def dataset_info(files: Sequence[str]) -> dict[str, bytes]:
    """dataset_info.json with each data file as a dataset of its name. All columns are in it: LLaMA-Factory takes what is not
    listed for missing."""
    known = {
        PurePath(name).name.partition(".")[0]: {"file_name": name, "formatting": "sharegpt", "columns": _NAMED} for name in files
    }
    return {"dataset_info.json": msgspec.json.format(msgspec.json.encode(known), indent=2) + b"\n"}


def _assistant(message: Message, content: str, options: Options) -> dict[str, str]:
    if not message.tool_calls:
        return {"from": "gpt", "value": with_think(message.reasoning, content, options)}
    calls = [{"name": call.name, "arguments": arguments_object(call)} for call in message.tool_calls]
    payload = escape_json(encode_row(calls if len(calls) > 1 else calls[0]).decode())
    if not content:
        return {"from": "function_call", "value": with_think(message.reasoning, "", options) + payload}
    return {"from": "function_call", "value": f"{with_think(message.reasoning, content, options)}\n{_OPEN}{payload}{_CLOSE}"}


def _split_calls(value: str) -> tuple[str, str]:
    """(text, JSON of the calls) of a `function_call` turn without its reasoning."""
    text, tag, payload = value.partition(_OPEN)
    return (text.removesuffix("\n"), payload.removesuffix(_CLOSE)) if tag else ("", value)


def _observation(results: Sequence[str]) -> str:
    if any(BETWEEN_RESULTS in each for each in results) and len(results) > 1:
        raise Unfit("literal result tags in one of several results")
    return BETWEEN_RESULTS.join(results)


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    """As its documentation has it: flat, and with the `properties` and the description without which some templates end."""
    function: dict[str, Any] = tool["function"]
    parameters = {"type": "object", "properties": {}} | function.get("parameters", {})
    return {"name": function["name"], "description": "", **function, "parameters": parameters}


def _shown(take_images: Any, role: Any, content: str) -> Message:
    text, images = take_images(content)
    return Message(role=role, content=text, images=images)


FORMAT = Format(
    name="llamafactory",
    suffixes=(".jsonl", ".parquet"),
    write=write,
    holds=EVERYTHING - {"ids", "masks"},
    read=read,
    schema=partial(arrow_schema, _COLUMNS),
    ends_on_assistant=True,
    packed=False,
    beside=dataset_info,
)
