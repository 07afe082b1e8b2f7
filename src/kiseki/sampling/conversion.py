"""Any conversation as ShareGPT turns of just `from` and `value`, for files in which all rows must have one layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kiseki.compress.layouts.messages import MESSAGES, ROLES
from kiseki.compress.layouts.text_content import content_text
from kiseki.compress.turns import Trajectory, Turn
from kiseki.models.reasoning import native_reasoning, split_inline
from kiseki.trajectory.sharegpt import to_sharegpt
from kiseki.trajectory.types import Message, ToolCall

_CHAT_ROLES = {"human": "user", "gpt": "assistant", "tool": "tool"}


def as_sharegpt(trajectory: Trajectory) -> list[dict[str, str]]:
    """Turns that are ShareGPT's lose what they have beside `from` and `value`. Messages become the Hermes format where they
    have calls, results or reasoning in fields of their own (`trajectory/sharegpt.py`); where all is in their text, it stays
    as it is."""
    turns = trajectory.turns
    if trajectory.layout is not MESSAGES:
        return [{"from": str(turn.data["from"]), "value": turn.text} for turn in turns]
    if not any(_has_fields(turn.data) for turn in turns):
        return [{"from": ROLES[str(turn.data["role"])], "value": turn.text} for turn in turns]
    system = [turn.text for turn in turns if turn.role == "system"]
    tools = _tools(trajectory)
    messages = _messages([turn for turn in turns if turn.role != "system"])
    begun = [Message(role="system", content=text) for text in system] if tools else []
    made = [{"from": str(turn.role), "value": turn.value} for turn in to_sharegpt([*begun, *messages], tools)]
    if not tools:
        made[:1] = [{"from": "system", "value": "\n\n".join(system)}] if system else []
    return made


def _has_fields(data: dict[str, Any]) -> bool:
    told = data.get("tool_calls") or data.get("tool_call_id") or data.get("role") in ("tool_call", "tool_response")
    return bool(told or native_reasoning(data))


def _tools(trajectory: Trajectory) -> str:
    """The JSON list of the row's `tools`; "" where it has none."""
    raw = trajectory.columns.get("tools")
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
            message = Message(role=role, content=turn.text, tool_call_id=output.id, name=name)  # type: ignore[arg-type]
        messages.append(message)
    return messages


def _assistant(turn: Turn) -> Message:
    data = turn.data
    made = MESSAGES.calls(turn) if data.get("tool_calls") or data.get("role") == "tool_call" else []
    calls = tuple(ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in made)
    text = "" if data.get("role") == "tool_call" else content_text(data.get("content"))
    native = native_reasoning(data)
    content, inline = split_inline(text, cut_short=bool(calls), has_native=bool(native))
    return Message(role="assistant", content=content, reasoning=native or inline, tool_calls=calls)
