"""The ShareGPT form of a trajectory, written; `formats/reading.py` reads it back.

Turns are `{"from": system|human|gpt|tool, "value": text}` in the layout of the Hermes function-calling format: tools in
`<tools>`, calls in `<tool_call>`, results in `<tool_response>`, reasoning in `<think>`
(https://huggingface.co/datasets/NousResearch/hermes-function-calling-v1).

What makes the form lossless:

- Inside JSON (calls, results, tool schemas), a literal tag has its `<` written as the JSON escape `\\u003c`, so that no
  payload can close its own block. JSON readers see the same string.
- Inside plain text (reasoning, answers), a literal tag gets a backslash after its `<` (`<\\think>`); one that already has
  backslashes gets one more. Readers take one away. Human and system turns are not parsed, so a prompt stays as it is.
- A call's arguments are copied as the model wrote them when they are a JSON object, else put in as one JSON string.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from kiseki.trajectory.types import Message, ToolCall

TOOLS_PREAMBLE = (
    "You can call functions to help with the user's request. Their signatures are listed, as JSON, between the <tools> tags:\n"
)
CALL_FORMAT = (
    "To call a function, write a JSON object with its name and arguments between <tool_call> tags:\n"
    '<tool_call>\n{"name": "function-name", "arguments": {"parameter": "value"}}\n</tool_call>\n'
    "Its result comes back between <tool_response> tags."
)
_TAGS = "think|tool_call|tool_response|tools|REASONING_SCRATCHPAD"
_literal = re.compile(rf"<(\\*)(?=/?(?:{_TAGS})>)")
_escaped = re.compile(rf"<\\(\\*)(?=/?(?:{_TAGS})>)")
_in_json = re.compile(rf"<(?=/?(?:{_TAGS})>)")
_escaped_in_json = re.compile(rf"(?<!\\)((?:\\\\)*)\\u003c(?=/?(?:{_TAGS})>)")


class Turn(msgspec.Struct, frozen=True, rename={"role": "from"}):
    """One turn of a ShareGPT conversation; `role` is `from` in JSON."""

    role: Literal["system", "human", "gpt", "tool"]
    value: str


def to_sharegpt(messages: Sequence[Message], tools: msgspec.Raw | str) -> list[Turn]:
    """The conversation of one rollout.

    `messages` are the record's (no ephemeral prompt, no prefill); `tools` is the JSON list of tool schemas as text. A system
    message of the dataset's own prompt follows the tools in the system turn. Results that answer one assistant turn share
    one `tool` turn, in the order of their calls.
    """
    own_system = [each.content for each in messages if each.role == "system"]
    turns = [Turn("system", "\n\n".join([tools_text(tools), *own_system]))]
    results: list[Message] = []
    place: dict[str, int] = {}  # of each call in its turn; results may have come in another order

    def flush() -> None:
        if results:
            results.sort(key=lambda result: place.get(result.tool_call_id, len(place)))
            turns.append(Turn("tool", "\n".join(map(response_text, results))))
            results.clear()

    for message in messages:
        if message.role == "tool":
            results.append(message)
            continue
        flush()
        place = {call.id: number for number, call in enumerate(message.tool_calls)}
        if message.role == "user":
            turns.append(Turn("human", message.content))
        elif message.role == "assistant":
            turns.append(Turn("gpt", _gpt_text(message)))
    flush()
    return turns


def tools_text(tools: msgspec.Raw | str) -> str:
    text = tools if isinstance(tools, str) else bytes(tools).decode()
    return f"{TOOLS_PREAMBLE}<tools>\n{escape_json(text)}\n</tools>\n{CALL_FORMAT}"


def _gpt_text(message: Message) -> str:
    reasoning = message.reasoning.strip("\n")
    parts = [f"<think>\n{escape_text(reasoning)}\n</think>\n" if reasoning else "<think>\n</think>\n"]
    if message.content:
        parts.append(escape_text(message.content))
    calls = "\n".join(call_text(call) for call in message.tool_calls)
    if message.content and calls:
        parts.append("\n")
    parts.append(calls)
    return "".join(parts)


def call_text(call: ToolCall) -> str:
    arguments = call.arguments.strip() or "{}"
    if not is_json_object(arguments):
        arguments = _encode(call.arguments)
    return f'<tool_call>\n{{"name": {escape_json(_encode(call.name))}, "arguments": {escape_json(arguments)}}}\n</tool_call>'


def response_text(message: Message) -> str:
    content = message.content.strip()
    if not (content[:1] in ("{", "[") and _is_json(content)):
        content = _encode(message.content)
    payload = f'{{"tool_call_id": {_encode(message.tool_call_id)}, "name": {_encode(message.name)}, "content": {content}}}'
    return f"<tool_response>\n{escape_json(payload)}\n</tool_response>"


def blocks(text: str, tag: str) -> Iterator[tuple[int, int]]:
    """Start and end of what stands between `<tag>` and `</tag>`, each time that both are there; of any length in linear time."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    at = 0
    while (start := text.find(opening, at)) >= 0 and (end := text.find(closing, start)) >= 0:
        at = end + len(closing)
        yield start + len(opening), end


def is_json_object(text: str) -> bool:
    """Whether `text` is one strict JSON object (no NaN, no trailing comma)."""
    return text.lstrip()[:1] == "{" and _is_json(text)


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False
    return True


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def escape_json(text: str) -> str:
    """JSON text in which no string closes the block that it stands in."""
    return _in_json.sub(r"\\u003c", text) if "<" in text else text


def unescape_json(text: str) -> str:
    """What `escape_json` was given."""
    return _escaped_in_json.sub(r"\1<", text) if "\\u003c" in text else text


def escape_text(text: str) -> str:
    """Plain text of a gpt or tool turn, with the literal tags in it marked as such."""
    return _literal.sub(r"<\\\1", text) if "<" in text else text


def unescape_text(text: str) -> str:
    """What `escape_text` was given."""
    return _escaped.sub(r"<\1", text) if "<\\" in text else text
