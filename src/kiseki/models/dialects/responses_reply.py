"""What an answer of the Responses API says, as a reply. Pure, no I/O.

It is read leniently (`Any` where servers differ), and everything textual is cleaned once, here.

Kept in `provider_fields`, where a message says less than its items did: `response_items`, in their order, and
`response_items_from`, which model at which host made them, since no other can read encrypted reasoning. Items are kept as they
came, but for three kinds. Of a `function_call`, what the message's next call does not say. Of a `message`, its `phase`, and its
`text` where there are several. Of `reasoning`, neither `status`, which the API gives and does not take, nor nulls.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from kiseki.errors import BadResponse, ProviderError
from kiseki.models.base import ChatReply
from kiseki.models.dialects.base import arguments_text, cleaned, excerpt, number, string
from kiseki.models.failures import error_of_object
from kiseki.trajectory.reasoning import join_reasoning, split_content, split_inline, text_of
from kiseki.trajectory.text import clean_text
from kiseki.trajectory.types import Message, ModelCall, ToolCall, Usage

T = TypeVar("T")
ITEMS = "response_items"
SOURCE = "response_items_from"
"""Keys in `provider_fields`."""
UNFINISHED = ("queued", "in_progress", "cancelled")
_CALL_FIELDS = ("id", "status", "call_id", "name", "arguments")
_OWN_FAULTS = ("invalid_prompt", "policy", "image")
"""In codes of a failed response that say that the request was at fault."""


class Asked(msgspec.Struct, frozen=True):
    """What an answer alone does not say."""

    source: str
    """For `response_items_from`."""
    openai: bool
    """The host is one whose own API this is: it knows reasoning only by its encrypted form, and says when a reply was cut."""
    most: Any
    """Tokens that the reply may have; None where the request sets no limit."""


class WireResponse(msgspec.Struct):
    """What is read of an answer, or of the one in a stream's last event; the rest (it repeats the request's tools) is skipped."""

    id: Any = None
    model: Any = None
    provider: Any = None
    status: Any = None
    error: Any = None
    incomplete_details: Any = None
    output: Any = None
    usage: Any = None


_decode_response = msgspec.json.Decoder(WireResponse).decode


def decode_response(body: bytes) -> WireResponse:
    """Raises BadResponse where it is no answer."""
    try:
        return _decode_response(body)
    except (msgspec.DecodeError, RecursionError) as error:  # ValidationError included
        return decode_loosely(body, WireResponse, error)


def decode_loosely(body: bytes, kind: type[T], error: Exception) -> T:
    """What is no JSON to msgspec, yet sent by servers: lone surrogates, NaN and broken UTF-8. Raises BadResponse where it is none
    at all, with the first `error`."""
    try:
        return msgspec.convert(json.loads(body.decode("utf-8-sig", "replace")), kind)
    except (ValueError, RecursionError, msgspec.ValidationError):
        raise BadResponse(f"The answer is not one of the Responses API ({error}): {excerpt(body)}") from None


def reply_of(answer: WireResponse, asked: Asked, started: float, seconds: float) -> ChatReply:
    """The reply that a whole answer carries. Raises the error that it carries instead, and BadResponse where it has no output, or
    an empty one."""
    if (error := error_inside(answer)) is not None:
        raise error
    if answer.status in UNFINISHED:
        raise BadResponse(f"The response is {answer.status}, and not complete.")
    if not isinstance(answer.output, list):
        raise BadResponse("The answer has no output.")
    try:
        message, finish = _message(answer, asked)
    except RecursionError:
        raise BadResponse("The answer is nested too deep.") from None
    if not message.tool_calls and not message.reasoning and not message.content.strip() and finish == "stop":
        raise BadResponse(f"The reply is empty (status {string(answer.status) or 'absent'}).")
    reported = isinstance(answer.usage, dict)
    return ChatReply(
        message,
        ModelCall(
            started,
            seconds,
            finish,
            _usage(answer),
            reported,
            reported and isinstance(answer.usage.get("cost"), int | float),
            string(answer.model),
            string(answer.provider),
            string(answer.id),
        ),
    )


def error_inside(answer: WireResponse) -> ProviderError | None:
    """The error of a failed response; None where it did not fail."""
    error = answer.error
    if not error and answer.status != "failed":
        return None
    error = error or {"code": "server_error", "message": "The endpoint says that the response failed, and no more."}
    if isinstance(error, dict) and isinstance(code := error.get("code"), str) and any(word in code for word in _OWN_FAULTS):
        error = {**error, "status": 400}
    return error_of_object(error)


def _message(answer: WireResponse, asked: Asked) -> tuple[Message, str]:
    """The message that the output is, and why it ended."""
    items = [item for item in answer.output if isinstance(item, dict)]
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    kept: list[dict[str, Any]] = []
    for item in items:
        kind = item.get("type")
        if kind == "message":
            text, thought = split_content(item.get("content"))
            texts.append(text)
            reasoning.append(thought)
            kept.append({"type": kind, "text": text} | ({"phase": item["phase"]} if item.get("phase") else {}))
        elif kind == "function_call":
            calls.append(
                ToolCall(
                    string(item.get("call_id")),
                    string(item.get("name")),
                    arguments_text(item.get("arguments")),
                )
            )
            kept.append({name: value for name, value in item.items() if name not in _CALL_FIELDS and value is not None})
        elif kind == "reasoning":
            reasoning.append(_thought(item))
            if item.get("encrypted_content") or not asked.openai:
                kept.append({name: value for name, value in item.items() if name != "status" and value is not None})
        else:
            kept.append(item)
    finish = _finish(answer, asked, calls)
    native = join_reasoning(*reasoning)
    said = "\n\n".join(text for text in texts if text)
    content, inline = split_inline(said, cut_short=finish == "length" or bool(calls), has_native=bool(native))
    if len(texts) == 1:
        for item in kept:
            item.pop("text", None)
    message = Message(
        "assistant",
        clean_text(content),
        clean_text(join_reasoning(native, inline)),
        tuple(calls),
        provider_fields={} if _plain(kept) else {ITEMS: cleaned(kept), SOURCE: asked.source},
    )
    return message, finish


def _plain(kept: list[dict[str, Any]]) -> bool:
    """Whether a message says all that its items did: a text, or none, and then calls."""
    after = kept[1:] if kept and kept[0] == {"type": "message"} else kept
    return all(item == {"type": "function_call"} for item in after)


def _thought(item: dict[str, Any]) -> str:
    """The text of a reasoning item: its own, where the server gives it, else the summary."""
    for name in ("content", "summary"):
        parts = item.get(name)
        if text := "\n\n".join(map(text_of, parts)).strip() if isinstance(parts, list) else text_of(parts).strip():
            return text
    return ""


def _finish(answer: WireResponse, asked: Asked, calls: list[ToolCall]) -> str:
    if answer.status == "incomplete":
        details = answer.incomplete_details
        filtered = isinstance(details, dict) and details.get("reason") == "content_filter"
        return "content_filter" if filtered else "length"
    # llama.cpp calls a reply completed that it has cut
    if not asked.openai and isinstance(asked.most, int) and _usage(answer).completion_tokens >= asked.most:
        return "length"
    return "tool_calls" if calls else "stop"


def _usage(answer: WireResponse) -> Usage:
    usage = answer.usage if isinstance(answer.usage, dict) else {}

    def detail(of: str, name: str) -> int:
        details = usage.get(of)
        return int(number(details.get(name))) if isinstance(details, dict) else 0

    return Usage(
        int(number(usage.get("input_tokens"))),
        int(number(usage.get("output_tokens"))),
        detail("output_tokens_details", "reasoning_tokens"),
        detail("input_tokens_details", "cached_tokens"),
        float(number(usage.get("cost"))),
        detail("input_tokens_details", "cache_write_tokens"),
    )
