"""Any conversation as ShareGPT turns of just `from` and `value`, for files in which all rows must have one layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kiseki.compress.layouts.messages import MESSAGES, ROLES
from kiseki.compress.layouts.text_content import content_text
from kiseki.compress.rows import Trajectory
from kiseki.compress.turns import Turn
from kiseki.trajectory.reasoning import native_reasoning, split_content, split_inline
from kiseki.trajectory.sharegpt import to_sharegpt
from kiseki.trajectory.types import Message, ToolCall

TOOLS_COLUMN = "tools"
_CHAT_ROLES = {"system": "system", "human": "user", "gpt": "assistant", "tool": "tool"}
_MEDIA = ("image", "audio", "video", "file")


class Converted(msgspec.Struct, frozen=True):
    """A conversation as ShareGPT turns."""

    turns: list[dict[str, str]]
    has_tools: bool = False
    """The row's tools are in the system turn."""
    media: int = 0
    """Images and the like in whose place there is only a note, as `[image]`."""


def as_sharegpt(trajectory: Trajectory) -> Converted:
    """Turns that are ShareGPT's lose what they have beside `from` and `value`. Messages become the Hermes format where they
    have calls, results or reasoning in fields of their own (`trajectory/sharegpt.py`); where all is in their text, it stays
    as it is."""
    turns = trajectory.turns
    name = "content" if trajectory.layout is MESSAGES else "value"
    media = sum(_media_kind(part) != "" for turn in turns for part in _parts(turn.data.get(name)))
    if trajectory.layout is not MESSAGES:
        return Converted([{"from": str(turn.data["from"]), "value": _text(turn.data.get(name))} for turn in turns], media=media)
    if not any(_has_fields(turn.data) for turn in turns):
        made = [{"from": str(ROLES[str(turn.data["role"])]), "value": _text(turn.data.get(name))} for turn in turns]
        return Converted(made, media=media)
    tools = _tools(trajectory)
    return Converted(_in_hermes_format(_messages(turns), tools), bool(tools), media)


def _in_hermes_format(messages: Sequence[Message], tools: str) -> list[dict[str, str]]:
    """System messages at the start become one turn, with the tools; later ones stay where they are."""
    began = next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))
    starts = [at for at, message in enumerate(messages) if message.role == "system" and at > began]
    made: list[dict[str, str]] = []
    for start, end in zip([0, *starts], [*starts, len(messages)], strict=True):
        part = messages[start:end]
        with_tools = tools if start == 0 else ""
        own = "\n\n".join(each.content for each in part if each.role == "system")
        turns = to_sharegpt(part, with_tools)
        made += [] if with_tools or not own else [{"from": "system", "value": own}]
        made += [{"from": str(turn.role), "value": turn.value} for turn in (turns if with_tools else turns[1:])]
    return made


def _has_fields(data: dict[str, Any]) -> bool:
    told = data.get("tool_calls") or data.get("tool_call_id") or data.get("role") in ("tool_call", "tool_response")
    return bool(told or native_reasoning(data) or split_content(data.get("content"))[1])


def _tools(trajectory: Trajectory) -> str:
    """The JSON list of the row's `tools`; "" where it has none."""
    raw = trajectory.columns.get(TOOLS_COLUMN)
    tools = msgspec.json.decode(raw) if raw is not None else None
    if isinstance(tools, str):
        try:
            tools = msgspec.json.decode(tools)
        except msgspec.DecodeError:
            tools = None
    return msgspec.json.encode(tools).decode() if isinstance(tools, list) and tools else ""


def _messages(turns: Sequence[Turn]) -> list[Message]:
    messages: list[Message] = []
    names: dict[str, str] = {}  # of the tools, by call
    for turn in turns:
        if turn.role == "gpt":
            message = _assistant(turn)
            names |= {call.id: call.name for call in message.tool_calls}
        else:
            output = MESSAGES.outputs(turn)[0]
            role = _CHAT_ROLES[turn.role]
            name = output.name or names.get(output.id, "")
            text = _text(turn.data.get("content"))
            message = Message(role=role, content=text, tool_call_id=output.id, name=name)  # type: ignore[arg-type]
        messages.append(message)
    return messages


def _assistant(turn: Turn) -> Message:
    data = turn.data
    made = MESSAGES.calls(turn) if data.get("tool_calls") or data.get("role") == "tool_call" else []
    calls = tuple(ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in made)
    text = "" if data.get("role") == "tool_call" else _text(data.get("content"))
    native = native_reasoning(data) or split_content(data.get("content"))[1]
    content, inline = split_inline(text, cut_short=bool(calls), has_native=bool(native))
    return Message(role="assistant", content=content, reasoning=native or inline, tool_calls=calls)


# ---- parts that are no text -------------------------------------------------------------------------------------------


def _text(content: Any) -> str:
    """The text of any content, with a note in the place of each image and the like."""
    if not isinstance(content, list):
        return content_text(content)
    return content_text([f"[{kind}]" if (kind := _media_kind(part)) else part for part in content])


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else []


def _media_kind(part: Any) -> str:
    """`image`, `audio`, …; "" for a part that is text or something else."""
    if not isinstance(part, dict) or isinstance(part.get("text"), str):
        return ""
    return next((kind for kind in _MEDIA if kind in str(part.get("type"))), "")
