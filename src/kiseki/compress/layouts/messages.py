"""Chat messages (`role`, `content`, `tool_calls`, `reasoning_content`), as OpenAI's API and most public datasets have them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from kiseki.compress.layouts.leaves import edit_text
from kiseki.compress.layouts.text_content import append_text, content_text, edit_parts, shown
from kiseki.compress.layouts.text_protocol import commands
from kiseki.compress.turns import Call, Edit, Output, Role, Turn, turn_of

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "human",
    "human": "human",
    "assistant": "gpt",
    "gpt": "gpt",
    "model": "gpt",
    "tool_call": "gpt",
    "tool": "tool",
    "function": "tool",
    "tool_response": "tool",
    "ipython": "tool",
}
_REASONING = ("reasoning_content", "reasoning", "thinking")


class Messages:
    """A `Layout`."""

    def read(self, data: dict[str, Any], raw: msgspec.Raw) -> Turn:
        role = ROLES.get(str(data.get("role")))
        if role is None:
            raise ValueError(f"its 'role' is {shown(data.get('role'))}, not one of {', '.join(ROLES)}")
        return Turn(role, _text(data), data, raw)

    def calls(self, turn: Turn) -> list[Call]:
        if turn.data.get("role") == "tool_call":
            listed = _as_json(turn.data.get("content"))
            return [_call(each, "") for each in (listed if isinstance(listed, list) else [listed]) if isinstance(each, dict)]
        calls = turn.data.get("tool_calls")
        if not isinstance(calls, list):
            return commands(turn.text)
        return [_call(each.get("function", each), str(each.get("id") or "")) for each in calls if isinstance(each, dict)]

    def outputs(self, turn: Turn) -> list[Output]:
        data = turn.data
        return [Output(content_text(data.get("content")), str(data.get("name") or ""), str(data.get("tool_call_id") or ""))]

    def edit_leaves(self, turn: Turn, edit: Edit, which: Collection[int] | None = None) -> Turn:
        if which is not None and 0 not in which:
            return turn
        content = edit_parts(turn.data.get("content"), lambda text: edit_text(text, edit))
        return turn if content == turn.data.get("content") else self._with(turn, content)

    def replace_outputs(self, turn: Turn, texts: Mapping[int, str]) -> Turn:
        if 0 not in texts:
            return turn
        content = turn.data.get("content")
        if isinstance(content, list):  # images and the like stay
            others = [part for part in content if isinstance(part, dict) and not isinstance(part.get("text"), str)]
            return self._with(turn, [{"type": "text", "text": texts[0]}, *others])
        return self._with(turn, texts[0])

    def append(self, turn: Turn, text: str) -> Turn:
        return self._with(turn, append_text(turn.data.get("content"), text))

    def human(self, text: str) -> Turn:
        return turn_of("human", text, {"role": "user", "content": text})

    def message(self, turn: Turn) -> dict[str, Any]:
        return {name: value for name, value in turn.data.items() if value is not None and name not in ("train", "loss")}

    def _with(self, turn: Turn, content: Any) -> Turn:
        data = turn.data | {"content": content}
        return turn_of(turn.role, _text(data), data)


MESSAGES = Messages()


def _text(data: Mapping[str, Any]) -> str:
    """Reasoning, content and calls, in the order in which templates write them."""
    parts = [content_text(data.get(name)) for name in _REASONING]
    reasoning = next((part for part in parts if part), "")
    content = content_text(data.get("content"))
    calls = data.get("tool_calls")
    texts = [_call_text(each) for each in calls if isinstance(each, dict)] if isinstance(calls, list) else []
    return "\n".join(part for part in (reasoning, content, *texts) if part)


def _call_text(call: Mapping[str, Any]) -> str:
    made = _call(call.get("function", call), "")
    return f'{{"name": {msgspec.json.encode(made.name).decode()}, "arguments": {made.arguments}}}'


def _call(function: Any, call_id: str) -> Call:
    if not isinstance(function, dict):
        return Call("", "{}", call_id)
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    return Call(str(function.get("name") or ""), text, call_id)


def _as_json(content: Any) -> Any:
    if not isinstance(content, str):
        return content
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError:
        return None
