"""`sts`: session traces as the Hugging Face Hub's viewer shows them, a file each
(https://huggingface.co/docs/hub/session-traces-format): a line for the session, then a line for each message.

The session's line may say more than the viewer reads: what is known of the rollout stands there, with the tools.
"""

from __future__ import annotations

import re
from typing import Any

from kiseki.formats.columns import facts
from kiseki.formats.format import EVERYTHING, Format, Options, Row, Unfit
from kiseki.formats.reading import make_example, read_tools
from kiseki.trajectory.example import Example, prompt_text
from kiseki.trajectory.types import Message, ModelCall, ToolCall

HARNESS = "kiseki"
_NAME_CHARS = 80


def write(example: Example, options: Options) -> list[Row]:
    """One file. Raises `Unfit` for images: contents are texts."""
    if any(each.images for each in example.messages):
        raise Unfit("images")
    file = f"{example.prompt_index:06d}-{example.sample_index:03d}.jsonl"
    title = re.sub(r"\s+", " ", prompt_text(example)).strip()[:_NAME_CHARS]
    session: dict[str, Any] = {"type": "session", "harness": HARNESS, "id": example.key or file.removesuffix(".jsonl")}
    session |= {"name": title, "tools": list(example.tools), **facts(example)}
    lines = [session]
    calls = iter(example.calls)
    for at, message in enumerate(example.messages):
        own = message.role == "assistant" and at >= example.prompt_messages
        call = next(calls, None) if own else None
        lines.append({"type": "message", "message": _message(message, call, example.model if own else "")})
    return [{"name": file, "lines": lines}]


def read(row: Row) -> Example:
    """The example in the lines of a file. Raises `ValueError` where the first is no session's."""
    session, *lines = row["lines"]
    if session.get("type") != "session":
        raise ValueError("the first line is not a session's")
    messages = [_read_message(each["message"]) for each in lines if each.get("type") == "message"]
    known = {
        name: session[name]
        for name in ("prompt_index", "sample_index", "completed", "reward", "model", "source", "key")
        if name in session
    }
    return make_example(known, messages, read_tools(session.get("tools")))


def _message(message: Message, call: ModelCall | None, model: str) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        made["reasoningContent"] = message.reasoning
    if message.tool_calls:
        made["toolCalls"] = [
            {"id": each.id, "function": {"name": each.name, "arguments": each.arguments}} for each in message.tool_calls
        ]
    if message.role == "tool":
        made["toolCallId"] = message.tool_call_id
    if call and call.started:
        made["timestamp"] = round((call.started + call.seconds) * 1000)
    if model := (call.model if call else "") or model:
        made["model"] = model
    return made


def _read_message(made: dict[str, Any]) -> Message:
    calls = tuple(
        ToolCall(each["id"], each["function"]["name"], each["function"]["arguments"]) for each in made.get("toolCalls") or ()
    )
    return Message(
        role=made["role"],
        content=made["content"],
        reasoning=made.get("reasoningContent") or "",
        tool_calls=calls,
        tool_call_id=made.get("toolCallId") or "",
    )


FORMAT = Format(
    name="sts",
    suffixes=(".jsonl",),
    write=write,
    holds=EVERYTHING - {"images", "masks"},
    read=read,
    file_per_row=True,
)
