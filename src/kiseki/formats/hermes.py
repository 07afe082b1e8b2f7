"""The Hermes tags in the text of turns, read leniently: calls, results, tools and reasoning, as `trajectory/sharegpt.py` writes
them and as other tools do (tags on one line, Python's quotes, text between the calls)."""

from __future__ import annotations

import ast
import re
from typing import Any

import msgspec

from kiseki.trajectory.json_rows import decode_row
from kiseki.trajectory.reasoning import split_inline
from kiseki.trajectory.sharegpt import CALL_FORMAT, TOOLS_PREAMBLE, unescape_json, unescape_text
from kiseki.trajectory.types import ToolCall

_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_RESPONSE = re.compile(r"<tool_response>\s*(.*?)\s*</tool_response>", re.DOTALL)
_TOOLS = re.compile(r"<tools>\s*([\[{].*?)\s*</tools>", re.DOTALL)
_OWN_THINK = re.compile(r"\A<think>\n(?:(.*?)\n)?</think>(?:\n|\Z)", re.DOTALL)
_FORMAT_PROSE = "You are a function calling AI model"
"""How the system turn of the Hermes format begins that explains nothing but the tags."""


def read_gpt(value: str) -> tuple[str, str, tuple[ToolCall, ...]]:
    """(reasoning, text, calls without ids) of an assistant turn's text. What stands in call tags and is no call stays text."""
    reasoning = ""
    if own := _OWN_THINK.match(value):
        reasoning, value = unescape_text(own[1] or ""), value[own.end() :]
    elif "<" in value:
        value, reasoning = split_inline(value, cut_short=False, has_native=False)
    calls: list[ToolCall] = []
    pieces: list[str] = []
    done = 0
    for block in _CALL.finditer(value):
        if call := read_call(block[1]):
            piece = value[done : block.start()]
            told = piece.strip() or (own and not calls)  # after a block of our own layout blanks are the model's
            pieces.append(piece.removesuffix("\n") if told else "")
            calls.append(call)
            done = block.end()
    rest = value[done:]
    pieces.append(rest if not calls or rest.strip() else "")
    text = "\n".join(piece if at == 0 else piece.strip("\n") for at, piece in enumerate(pieces) if piece)
    return reasoning, unescape_text(text), tuple(calls)


def read_call(payload: str) -> ToolCall | None:
    """The call in a `<tool_call>` block; None for a payload that is none."""
    fields = _fields(payload)
    if fields is None or not isinstance(fields.get("name"), str):
        return None
    return ToolCall(id="", name=fields["name"], arguments=fields.get("arguments", "{}"))


def read_results(value: str) -> list[tuple[str, str, str]]:
    """(call id, tool's name, content) of each result in a tool turn; the whole text as one where it has no response tags."""
    found = []
    for block in _RESPONSE.finditer(value):
        fields = _fields(block[1], raw="content")
        if fields is None or "content" not in fields:
            found.append(("", str((fields or {}).get("name") or ""), unescape_json(block[1])))
        else:
            call_id = fields.get("tool_call_id") or fields.get("id") or ""
            found.append((str(call_id), str(fields.get("name") or ""), fields["content"]))
    return found or [("", "", unescape_text(value))]


def read_system(value: str) -> tuple[list[Any], str]:
    """(tools, what else the turn says) of a system turn; the explanation of the tags is left out, since consumers write their
    own."""
    block = _TOOLS.search(value)
    if block is None:
        return [], value
    tools = _json(unescape_json(block[1]))
    if not isinstance(tools, list):  # one object a line
        lines = [_json(line) for line in block[1].splitlines() if line.strip()]
        tools = lines if lines and all(isinstance(each, dict) for each in lines) else []
    if not tools and block[1] != "[]":
        return [], value
    if value.startswith(TOOLS_PREAMBLE):
        own = value[block.end() :].removeprefix("\n").removeprefix(CALL_FORMAT).removeprefix("\n\n")
        return tools, own
    if value.lstrip().startswith(_FORMAT_PROSE):
        return tools, ""
    return tools, (value[: block.start()].rstrip() + "\n" + value[block.end() :].lstrip()).strip()


def _fields(payload: str, raw: str = "arguments") -> dict[str, Any] | None:
    """The object in a block, with the field `raw` as the JSON text or plain text that it was written from."""
    try:
        columns = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        value = _json(payload)
        if not isinstance(value, dict):
            value = _python(payload)
        if not isinstance(value, dict):
            return None
        columns = {str(name): msgspec.Raw(msgspec.json.encode(each)) for name, each in value.items()}
    fields: dict[str, Any] = {}
    for name, each in columns.items():
        text = unescape_json(bytes(each).decode())
        fields[name] = text if name == raw and not text.startswith('"') else _json(text)
    return fields


def _json(text: str) -> Any:
    try:
        return decode_row(text.encode("utf-8", "replace"))
    except ValueError:
        return None


def _python(text: str) -> Any:
    try:
        return ast.literal_eval(text) if len(text) < 100_000 else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
