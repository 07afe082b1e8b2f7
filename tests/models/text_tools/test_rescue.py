"""A call that an endpoint left in the text goes back once, natively, with the text that remains; where dialects keep a reply's
parts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kiseki.models.base import ChatReply, ChatRequest, ToolSchema
from kiseki.models.dialects.opening import open_dialect
from kiseki.models.endpoints import ModelSettings
from kiseki.models.text_tools.hermes_mode import HERMES
from kiseki.models.text_tools.rescue import rescue
from kiseki.models.text_tools.rewriting import rewrite
from kiseki.trajectory.types import Message, ToolCall

LOOK = ToolSchema("look", "Looks.", msgspec.Raw(b'{"type":"object","properties":{"at":{"type":"string"}}}'))
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "sky"}}\n</tool_call>'
USER, RESULT = Message("user", "Look."), Message("tool", "blue", tool_call_id="c1", name="look")


def text(words: str) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "output_text", "text": words}]}


THOUGHT: dict[str, Any] = {"type": "reasoning", "id": "r", "content": [{"type": "reasoning_text", "text": "hm"}]}
THINKING: dict[str, Any] = {"type": "thinking", "thinking": "hm", "signature": "s"}


def dialect(mode: str) -> Any:
    return open_dialect(ModelSettings("m", "http://127.0.0.1:1/v1", api_mode=mode))


def read(mode: str, parts: list[dict[str, Any]]) -> ChatReply:
    answer = {"responses": {"status": "completed", "output": parts}, "anthropic": {"stop_reason": "end_turn", "content": parts}}
    reply: ChatReply = dialect(mode).reply(msgspec.json.encode(answer[mode]), 0.0, 0.0)
    return reply


def sent(mode: str, *messages: Message) -> list[dict[str, Any]]:
    """What goes back of the turn after the user's: items of Responses, blocks of Anthropic's."""
    body = msgspec.json.decode(dialect(mode).encode(ChatRequest(messages, (LOOK,)))[0])
    if mode == "anthropic":
        blocks: list[dict[str, Any]] = body["messages"][1]["content"]
        return blocks
    return [each for each in body["input"][1:] if each["type"] != "function_call_output" and each.get("role") != "user"]


def shown(part: dict[str, Any]) -> str:
    """Its kind and text."""
    content = part.get("content")
    words = part["text"] if "text" in part else content[0]["text"] if isinstance(content, list) else ""
    return f"{part['type']}:{words}" if part["type"] in ("message", "text") else str(part["type"])


@pytest.mark.parametrize(
    ("mode", "parts", "expected"),
    [
        ("responses", [THOUGHT, text("I look."), text(CALL)], ["reasoning", "message:I look.", "function_call"]),
        ("responses", [text("I look."), THOUGHT, text(CALL)], ["message:I look.", "reasoning", "function_call"]),
        ("responses", [THOUGHT, text(f"I look.\n{CALL}")], ["reasoning", "message:I look.", "function_call"]),
        ("responses", [THOUGHT, text(CALL)], ["reasoning", "function_call"]),
        (
            "anthropic",
            [{"type": "text", "text": "I look."}, THINKING, {"type": "text", "text": CALL}],
            ["text:I look.", "thinking", "tool_use"],
        ),
        ("anthropic", [THINKING, {"type": "text", "text": f"I look.\n{CALL}"}], ["thinking", "text:I look.", "tool_use"]),
        ("anthropic", [{"type": "text", "text": CALL}, THINKING], ["thinking", "tool_use"]),
    ],
)
def test_a_rescued_call_goes_back_once(mode: str, parts: list[dict[str, Any]], expected: list[str]) -> None:
    message = rescue(read(mode, parts), (LOOK,)).message
    assert message.tool_calls == (ToolCall("", "look", '{"at": "sky"}'),)
    message = msgspec.structs.replace(message, tool_calls=(ToolCall("c1", "look", '{"at": "sky"}'),))
    assert [shown(each) for each in sent(mode, USER, message, RESULT)] == expected


@pytest.mark.parametrize(
    ("mode", "parts"),
    [
        ("responses", [text("One."), THOUGHT, text("Two.")]),
        ("anthropic", [{"type": "text", "text": "One."}, THINKING, {"type": "text", "text": "Two."}]),
    ],
)
def test_texts_of_a_reply_keep_their_places(mode: str, parts: list[dict[str, Any]]) -> None:
    back = [shown(each) for each in sent(mode, USER, read(mode, parts).message, USER)]
    assert back[0].endswith(":One.") and back[2].endswith(":Two.") and len(back) == 3


CALLED: dict[str, Any] = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
USED: dict[str, Any] = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}


@pytest.mark.parametrize(
    ("mode", "parts"),
    [
        ("responses", [text("One."), text("Two."), CALLED]),
        ("responses", [THOUGHT, {"type": "web_search_call", "id": "w"}, CALLED]),
        ("anthropic", [{"type": "text", "text": "One."}, THINKING, USED]),
    ],
)
def test_native_calls_of_before_are_told_where_tools_went_to_the_text(mode: str, parts: list[dict[str, Any]]) -> None:
    """What the dialect kept of the turn has no calls."""
    messages = rewrite((USER, read(mode, parts).message, RESULT), HERMES, "")
    assert len([each for each in sent(mode, *messages) if "<tool_call>" in shown(each)]) == 1
    assert "".join(shown(each) for each in sent(mode, *messages)).count("One.") == (text("One.") in parts or mode == "anthropic")
