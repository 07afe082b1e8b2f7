"""The Hermes tags in the text of turns, read leniently: calls, results, tools and reasoning, as `trajectory/sharegpt.py` writes
them and as other tools do (tags on one line, Python's quotes, text between the calls)."""

from __future__ import annotations

import ast
import re
from typing import Any

import msgspec

from kiseki.trajectory.json_rows import decode_row
from kiseki.trajectory.reasoning import split_inline
from kiseki.trajectory.sharegpt import CALL_FORMAT, TOOLS_PREAMBLE, blocks, unescape_json, unescape_text
from kiseki.trajectory.types import ToolCall

_OPEN, _CLOSE = len("<tool_call>"), len("</tool_call>")
_OWN_THINK = re.compile(r"\A<think>\n(?:(.*?)\n)?</think>(?:\n|\Z)", re.DOTALL)
_FORMAT_PROSE = "You are a function calling AI model"
"""How the system turn of the Hermes format begins that explains nothing but the tags."""


def read_gpt(value: str, *, escaped: bool = True) -> tuple[str, str, tuple[ToolCall, ...]]:
    """(reasoning, text, calls without ids) of an assistant turn's text. What stands in call tags and is no call stays text.

    escaped: Literal tags in the text are marked as `trajectory/sharegpt.py` does it. Default: True.
    """
    plain = unescape_text if escaped else str
    reasoning = ""
    if own := _OWN_THINK.match(value):
        reasoning, value = plain(own[1] or ""), value[own.end() :]
    elif "<" in value:
        value, reasoning = split_inline(value, cut_short=False, has_native=False)
    calls: list[ToolCall] = []
    pieces: list[str] = []
    done = 0
    for start, end in blocks(value, "tool_call"):
        if call := read_call(value[start:end].strip()):
            piece = value[done : start - _OPEN]
            told = piece.strip() or (own and not calls)  # after a block of our own layout blanks are the model's
            pieces.append(piece.removesuffix("\n") if told else "")
            calls.append(call)
            done = end + _CLOSE
    rest = value[done:]
    pieces.append(rest if not calls or rest.strip() else "")
    text = "\n".join(piece if at == 0 else piece.strip("\n") for at, piece in enumerate(pieces) if piece)
    return reasoning, plain(text), tuple(calls)


def read_call(payload: str) -> ToolCall | None:
    """The call in a `<tool_call>` block; None for a payload that is none."""
    fields = _fields(payload)
    if fields is None or not isinstance(fields.get("name"), str):
        return None
    return ToolCall(id="", name=fields["name"], arguments=fields.get("arguments", "{}"))


def read_results(value: str, *, escaped: bool = True) -> list[tuple[str, str, str]]:
    """(call id, tool's name, content) of each result in a tool turn; the whole text as one where it has no response tags.
    escaped: As in `read_gpt`."""
    found = []
    for start, end in blocks(value, "tool_response"):
        payload = value[start:end].strip()
        fields = _fields(payload, raw="content")
        if fields is None or "content" not in fields:
            found.append(("", str((fields or {}).get("name") or ""), unescape_json(payload)))
        else:
            call_id = fields.get("tool_call_id") or fields.get("id") or ""
            found.append((str(call_id), str(fields.get("name") or ""), fields["content"]))
    return found or [("", "", unescape_text(value) if escaped else value)]


def read_system(value: str) -> tuple[list[Any], str]:
    """(tools, what else the turn says) of a system turn; the explanation of the tags is left out, since consumers write their
    own."""
    own = value.startswith(TOOLS_PREAMBLE)
    opening, closing = "<tools>", "</tools>"
    end = value.rfind(closing, 0, value.find(CALL_FORMAT) if own and CALL_FORMAT in value else len(value))
    start = value.rfind(opening, 0, end) + len(opening)
    payload = value[start:end].strip() if 0 < len(opening) <= start <= end else ""
    if payload[:1] not in ("[", "{"):
        return [], value
    tools = _json(unescape_json(payload))
    if not isinstance(tools, list):  # one object a line
        lines = [_json(line) for line in payload.splitlines() if line.strip()]
        tools = lines if lines and all(isinstance(each, dict) for each in lines) else []
    if not tools and payload != "[]":
        return [], value
    rest = value[end + len(closing) :]
    if own:
        return tools, rest.removeprefix("\n").removeprefix(CALL_FORMAT).removeprefix("\n\n")
    if value.lstrip().startswith(_FORMAT_PROSE):
        return tools, ""
    return tools, (value[: start - len(opening)].rstrip() + "\n" + rest.lstrip()).strip()


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
