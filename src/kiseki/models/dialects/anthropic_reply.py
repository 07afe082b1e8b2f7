"""What an answer of the Anthropic Messages API says, as a reply. Pure, no I/O.

It is read leniently (`Any` where servers differ), and everything textual is cleaned once, here. Thinking is kept as it came, for
the next turn: the API checks it by its signature.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from kiseki.errors import BadResponse
from kiseki.models.base import ChatReply
from kiseki.models.dialects.base import arguments_text, cleaned, encode, excerpt, number, string
from kiseki.models.failures import error_of_object
from kiseki.trajectory.reasoning import join_reasoning, split_inline
from kiseki.trajectory.text import clean_text
from kiseki.trajectory.types import Message, ModelCall, ToolCall, Usage

THINKING = "thinking_blocks"
"""Key in `provider_fields`: the thinking blocks of a reply. Where other blocks stand between them, all that came, in order: texts
as they are, of a tool call only its type, since what it says is in `Message.tool_calls`."""
FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "length",  # of the host's own tools: the turn is not done, and nobody goes on with it
    "refusal": "content_filter",
}
"""`stop_reason` → the finish reason that the rest of Kiseki knows. Others stay as they are."""


class Block(msgspec.Struct):
    """A block of content."""

    type: Any = None
    text: Any = None
    thinking: Any = None
    signature: Any = None
    data: Any = None
    id: Any = None
    name: Any = None
    input: msgspec.Raw = msgspec.Raw(b"null")


class Answer(msgspec.Struct):
    """An answer, whole or put together from a stream."""

    id: Any = None
    model: Any = None
    provider: Any = None
    content: list[msgspec.Raw] | None = None
    stop_reason: Any = None
    stop_details: Any = None
    usage: dict[str, Any] | None = None
    error: Any = None


_decode_answer = msgspec.json.Decoder(Answer).decode
_decode_block = msgspec.json.Decoder(Block).decode


def decode_answer(body: bytes) -> Answer:
    """`body` as an answer. Raises BadResponse where it is none."""
    try:
        return _decode_answer(body)
    except (msgspec.DecodeError, RecursionError) as error:
        try:
            return _decode_answer(strict(body))
        except (ValueError, RecursionError):  # DecodeError is a ValueError
            raise BadResponse(f"The answer is no message ({error}): {excerpt(body)}") from None


def strict(body: bytes) -> bytes:
    """JSON as msgspec takes it, of what some servers send: lone surrogates, NaN, broken UTF-8. Raises ValueError or
    RecursionError."""
    return encode(cleaned(json.loads(body.decode("utf-8-sig", "replace"))))


def reply_of(answer: Answer, *, started: float, seconds: float) -> ChatReply:
    """The reply that a whole answer carries. Raises the error that it carries instead, and BadResponse where it is empty."""
    if answer.error:
        raise error_of_object(answer.error)
    if answer.content is None:
        raise BadResponse("The answer has no content.")
    finish = FINISHES.get(string(answer.stop_reason), string(answer.stop_reason))
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    kept: list[dict[str, Any]] = []
    last_kept, last_type = 0, ""
    for raw in answer.content:
        block = _block(raw)
        kind = block.type
        if kind == "text" and isinstance(block.text, str):
            # texts after one another are one that citations cut
            texts.append(block.text if last_type in ("text", "") else f"\n\n{block.text}" if texts else block.text)
            kept.append({"type": "text", "text": block.text})
        elif kind in ("thinking", "redacted_thinking"):
            thoughts.append(string(block.thinking).strip())
            kept.append(cleaned(msgspec.json.decode(raw)))
            last_kept = len(kept)
        elif kind == "tool_use":
            calls.append(ToolCall(string(block.id), string(block.name), _arguments(block.input)))
            kept.append({"type": "tool_use"})
        last_type = kind
    content, inline = split_inline("".join(texts), cut_short=finish == "length" or bool(calls), has_native=any(thoughts))
    reasoning = join_reasoning(*thoughts, inline)
    if finish == "content_filter":
        calls = []  # what is there of them is not the model's last word
        details = answer.stop_details
        content = content or (string(details.get("explanation")) if isinstance(details, dict) else "")
    if not calls and not reasoning and not content.strip() and finish not in ("length", "content_filter"):
        raise BadResponse(f"The reply is empty (stop_reason {string(answer.stop_reason) or 'absent'}).")
    return ChatReply(
        Message(
            "assistant",
            clean_text(content),
            clean_text(reasoning),
            tuple(calls),
            provider_fields={THINKING: _needed(kept, last_kept)} if last_kept else {},
        ),
        ModelCall(
            started,
            seconds,
            finish,
            _usage(answer.usage or {}),
            answer.usage is not None,
            answer.usage is not None and isinstance(answer.usage.get("cost"), int | float),
            string(answer.model),
            string(answer.provider),
            string(answer.id),
        ),
    )


def _block(raw: msgspec.Raw) -> Block:
    try:
        return _decode_block(raw)
    except (msgspec.DecodeError, RecursionError):
        raise BadResponse(f"The answer has a block that is none: {excerpt(bytes(raw))}") from None


def _needed(kept: list[dict[str, Any]], last: int) -> list[dict[str, Any]]:
    """Of all blocks, what must be kept: the thinking alone where it stands before everything else."""
    thinking = [block for block in kept if block["type"] not in ("text", "tool_use")]
    return thinking if len(thinking) == last else [block for block in kept if block != _NO_TEXT]


_NO_TEXT = {"type": "text", "text": ""}


def _arguments(value: msgspec.Raw) -> str:
    """The JSON text of an object as it came; text that should have been one stays text."""
    text = bytes(value)
    if text.lstrip()[:1] == b"{":
        return clean_text(text.decode("utf-8", "replace"))
    return arguments_text(msgspec.json.decode(text))


def _usage(usage: dict[str, Any]) -> Usage:
    """`input_tokens` are those that the cache had no part in."""
    read, written = (int(number(usage.get(f"cache_{each}_input_tokens"))) for each in ("read", "creation"))
    details = usage.get("output_tokens_details")
    return Usage(
        int(number(usage.get("input_tokens"))) + read + written,
        int(number(usage.get("output_tokens"))),
        int(number(details.get("thinking_tokens"))) if isinstance(details, dict) else 0,
        read,
        float(number(usage.get("cost"))),
        written,
    )
