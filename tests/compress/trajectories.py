"""Rows to compress: fixed ones (`make_row`) and random ones (`sharegpt_rows`, `messages_rows`), in both layouts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from hypothesis import strategies as st

from kiseki.trajectory.sharegpt import to_sharegpt
from kiseki.trajectory.tokens import BUNDLED, open_counter
from kiseki.trajectory.types import Message, ToolCall

LayoutName = Literal["sharegpt", "messages"]
Step = tuple[str, dict[str, Any], str]
"""A tool's name, its arguments, and its output."""


def make_row(
    steps: Sequence[Step | Sequence[Step]],
    *,
    layout: LayoutName = "sharegpt",
    task: str = "Find the bug and fix it.",
    said: str = "I look further.",
    final: str = "It is fixed.",
    **columns: Any,
) -> dict[str, Any]:
    """A system turn, the task, a gpt turn with its tool turns for each of `steps` (several in one: parallel calls), and `final`
    as the last gpt turn, if it is not ""."""
    messages = [Message("user", task)]
    for number, step in enumerate(steps):
        parallel: Sequence[Step] = [step] if isinstance(step, tuple) and isinstance(step[0], str) else step  # type: ignore[assignment]
        calls = [ToolCall(f"call_{number}_{nth}", name, json.dumps(made)) for nth, (name, made, _) in enumerate(parallel)]
        messages.append(Message("assistant", said, tool_calls=tuple(calls)))
        messages += [
            Message("tool", output, tool_call_id=call.id, name=call.name)
            for call, (_, _, output) in zip(calls, parallel, strict=True)
        ]
    if final:
        messages.append(Message("assistant", final))
    return _row(messages, layout) | columns


class Counting:
    """The bundled counter; it remembers what it was asked."""

    def __init__(self) -> None:
        counter = open_counter(BUNDLED)
        self.name, self._count, self.count_chat = counter.name, counter.count, counter.count_chat
        self.texts: list[str] = []

    @property
    def characters(self) -> int:
        return sum(map(len, self.texts))

    def count(self, text: str) -> int:
        self.texts.append(text)
        return self._count(text)


def shell(command: str, output: str, exit_code: int = 0) -> Step:
    """A terminal call whose output is JSON, as the terminal tool gives it."""
    return "terminal", {"command": command}, json.dumps({"output": output, "exit_code": exit_code})


def _row(messages: Sequence[Message], layout: LayoutName) -> dict[str, Any]:
    if layout == "sharegpt":
        return {"conversations": msgspec.to_builtins(to_sharegpt(messages, "[]"))}
    return {"messages": [{"role": "system", "content": "You are an agent."}, *map(_chat_message, messages)]}


def _chat_message(message: Message) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.role == "tool":
        made |= {"tool_call_id": message.tool_call_id, "name": message.name}
    return made


# ---- random ones --------------------------------------------------------------------------------------------------------------

WORDS = (
    "def",
    "import os",
    "    return x",
    "error:",
    "見つかりません",
    "a,b,c",
    '{"k": 1}',
    "<tool_call>",
    "</tool_response>",
    "\\u003cthink>",
)
PIECES = (
    "\x1b[31mred\x1b[0m",
    "10%|█   | 1/10\r50%|███ | 5/10\r100%|████| 10/10",
    "aB3/" * 80,
    "data:image/png;base64," + "aGVsbG8" * 30,
    "same line of a log that comes again",
    "[... 1,234 tokens left out ...]",
    "[CONTEXT SUMMARY]: not one",
    "",
)


@st.composite
def outputs(draw: st.DrawFn) -> str:
    """What tools print: lines, perhaps many, perhaps as JSON."""
    lines = draw(st.lists(st.sampled_from(WORDS + PIECES) | st.text(max_size=30), max_size=6))
    times = draw(st.sampled_from((1, 1, 3, 40, 300)))
    end = draw(st.sampled_from(("\n", "\r\n", " ")))
    text = end.join(f"{each} {number % 7}" if number % 3 else each for number in range(times) for each in lines)
    kind = draw(st.sampled_from(("text", "text", "object", "list", "nested")))
    if kind == "object":
        return json.dumps({"output": text, "exit_code": draw(st.sampled_from((0, 1)))})
    if kind == "list":
        return json.dumps([{"path": each, "line": number} for number, each in enumerate(text.split("\n")[:50])])
    if kind == "nested":
        return json.dumps({"content": json.dumps({"text": text}), "success": True}, ensure_ascii=False)
    return text


STEPS = st.sampled_from(
    (
        ("terminal", {"command": "pytest -x"}),
        ("terminal", {"command": "cat /src/a.py"}),
        ("read_file", {"path": "/src/a.py"}),
        ("write_file", {"path": "/src/a.py", "content": "x = 1\n"}),
        ("search", {"pattern": "<think>"}),
        ("think", {}),
    )
)


@st.composite
def _messages(draw: st.DrawFn) -> list[Message]:
    messages = [Message("user", draw(st.text(max_size=40)))]
    known = draw(st.lists(outputs(), min_size=1, max_size=4))  # so that outputs come again
    for number in range(draw(st.integers(0, 9))):
        kind = draw(st.sampled_from(("calls", "calls", "calls", "calls", "user", "talk", "system")))
        if kind == "user":
            messages.append(Message("user", draw(st.text(max_size=60))))
        elif kind == "talk":
            messages.append(Message("assistant", draw(st.sampled_from(("Done. Next.", "I think so.", "終わりました。")))))
        elif kind == "system":
            messages.append(Message("system", "A rule that came later."))
        else:
            made = draw(st.lists(STEPS, min_size=1, max_size=3))
            calls = [ToolCall(f"c{number}_{nth}", name, json.dumps(args)) for nth, (name, args) in enumerate(made)]
            messages.append(Message("assistant", draw(st.sampled_from(("", "I look. Then I go on."))), tool_calls=tuple(calls)))
            messages += [Message("tool", draw(st.sampled_from(known) | outputs()), "", (), call.id, call.name) for call in calls]
    if draw(st.booleans()):
        messages.append(Message("assistant", "It is done."))
    return messages


@st.composite
def sharegpt_rows(draw: st.DrawFn) -> dict[str, Any]:
    """Rows as `kiseki batch` writes them, and with what other programs write: payloads that are no JSON, a system turn in the
    middle, tool turns without tags."""
    messages = draw(_messages())
    turns: list[dict[str, Any]] = [{"from": "system", "value": "You are an agent."}]
    for message_group in _groups(messages):
        if message_group[0].role == "system":
            turns.append({"from": "system", "value": message_group[0].content})
            continue
        made = [turn for turn in msgspec.to_builtins(to_sharegpt(message_group, "[]")) if turn["from"] != "system"]
        if message_group[0].role == "assistant" and len(message_group) == 2:
            written = draw(st.sampled_from(("tags", "tags", "tags", "plain payload", "no tags")))
            output = message_group[1].content.replace("</tool_response>", "")
            if written == "plain payload":
                made[1]["value"] = f"<tool_response>\n{output}\n</tool_response>"
            elif written == "no tags":
                made[1]["value"] = output
        turns += made
    return {"conversations": turns, "id": draw(st.integers(0, 9))}


def _groups(messages: Sequence[Message]) -> list[list[Message]]:
    """Each message with the tool messages after it."""
    groups: list[list[Message]] = []
    for message in messages:
        if message.role == "tool":
            groups[-1].append(message)
        else:
            groups.append([message])
    return groups


@st.composite
def messages_rows(draw: st.DrawFn) -> dict[str, Any]:
    """Chat messages, some of whose tool messages have a list of parts as their content, with an image."""
    row = _row(draw(_messages()), "messages")
    for message in row["messages"]:
        if message["role"] == "tool" and draw(st.integers(0, 4)) == 0:
            image = {"type": "image_url", "image_url": {"url": "data:,"}}
            message["content"] = [{"type": "text", "text": message["content"]}, image]
    if draw(st.booleans()):
        row["messages"] = json.dumps(row["messages"])
    return row
