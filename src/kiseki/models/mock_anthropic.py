"""The mock server's Anthropic Messages API. Pure but for what it remembers of prompts.

It refuses what that API refuses (platform.claude.com/docs, "Messages", "Tool use", "Extended thinking", "Prompt caching"):
unknown fields, no `max_tokens`, a call without its result in the very next message, a result without its call, thinking that was
changed or has lost its signature, more than four marks. Signatures are made from the text, so that every such server can check
them. Its usage says what of the prompt was marked in an earlier request, and so comes from the cache.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from kiseki.models.mock_answer import CHARS_PER_TOKEN, STREAM_PIECE, encode
from kiseki.models.mock_dialects import Memory, MockDialect, Refused, asked_of
from kiseki.models.mock_script import Asked
from kiseki.trajectory.reasoning import join_reasoning, native_reasoning, split_content

FIELDS = {
    *("model", "messages", "max_tokens", "system", "tools", "tool_choice", "stream", "temperature", "top_p", "top_k"),
    *("stop_sequences", "metadata", "thinking", "output_config", "service_tier", "cache_control"),
}
MOST_MARKS = 4
LOOKBACK = 20
"""Blocks before a mark in which an entry of the cache is looked for."""
LEAST_BUDGET = 1024
_ID = re.compile(r"^[a-zA-Z0-9_-]+$")
_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}
_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_UNANSWERED = "`tool_use` ids were found without `tool_result` blocks immediately after"
_TOO_LONG = "prompt is too long: 9001 tokens > 8192 maximum"


def read(body: bytes) -> tuple[Asked, Any]:
    """A body as a chat request, and as itself. Raises msgspec.DecodeError or `Refused`."""
    request = msgspec.json.decode(body, type=dict[str, Any])
    try:
        return _read(request)
    except (KeyError, TypeError, AttributeError) as error:
        raise Refused(f"Something is not as it should be: {error!r}") from None


def _read(request: dict[str, Any]) -> tuple[Asked, Any]:
    if unknown := set(request) - FIELDS:
        raise Refused(f"{min(unknown)}: Extra inputs are not permitted")
    for name in ("model", "messages", "max_tokens"):
        if name not in request:
            raise Refused(f"{name}: Field required")
    thinking = request.get("thinking") or {}
    if thinking.get("type") == "enabled" and not LEAST_BUDGET <= thinking.get("budget_tokens", 0) < request["max_tokens"]:
        raise Refused("thinking.budget_tokens: must be at least 1024 and less than `max_tokens`")
    messages = [{**message, "content": _blocks(message.get("content"))} for message in request["messages"]]
    _check(messages, thinks=thinking.get("type") == "enabled")
    marks = sum("cache_control" in block for block, _ in _prompt(request, messages))
    if marks > MOST_MARKS:
        raise Refused(f"A maximum of {MOST_MARKS} blocks with cache_control may be provided. Found {marks}.")
    chat: dict[str, Any] = {name: request[name] for name in ("model", "max_tokens", "stream") if name in request}
    chat["messages"] = list(_chat_messages(request.get("system"), messages))
    chat["tools"] = [
        {"function": {"name": tool["name"], "parameters": tool["input_schema"]}} for tool in request.get("tools") or ()
    ]
    return asked_of(chat), {**request, "messages": messages}


def _blocks(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())


def _check(messages: list[dict[str, Any]], *, thinks: bool) -> None:
    if not messages:
        raise Refused("messages: at least one message is required")
    if messages[0]["role"] != "user":
        raise Refused('messages: first message must use the "user" role')
    called: list[str] = []
    for at, message in enumerate(messages):
        if message["role"] not in ("user", "assistant"):
            raise Refused(f"messages.{at}.role: Input should be 'user' or 'assistant'")
        if not message["content"]:
            raise Refused(f"messages.{at}: all messages must have non-empty content")
        results = [block.get("tool_use_id") for block in message["content"] if block["type"] == "tool_result"]
        if missing := [each for each in called if each not in results]:
            raise Refused(f"messages.{at - 1}: {_UNANSWERED}: {', '.join(missing)}.")
        if stray := [each for each in results if each not in called]:
            raise Refused(f"messages.{at}: unexpected `tool_use_id` found in `tool_result` blocks: {', '.join(map(str, stray))}.")
        if results and any(block["type"] != "tool_result" for block in message["content"][: len(results)]):
            raise Refused(f"messages.{at}: `tool_result` blocks must come first")
        for place, block in enumerate(message["content"]):
            _check_block(block, message["role"], f"messages.{at}.content.{place}")
        if message["role"] == "assistant" and message["content"][-1]["type"] in ("thinking", "redacted_thinking"):
            raise Refused(f"messages.{at}: The final block in an assistant message cannot be `thinking`.")
        called = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        if len(set(called)) < len(called):
            raise Refused(f"messages.{at}: `tool_use` ids must be unique")
        first = message["content"][0]["type"]
        if thinks and called and at >= len(messages) - 2 and first not in ("thinking", "redacted_thinking"):
            raise Refused(f"messages.{at}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{first}`.")
    if called:
        raise Refused(f"messages.{len(messages) - 1}: {_UNANSWERED}.")


def _check_block(block: dict[str, Any], role: str, where: str) -> None:
    kind = block["type"]
    if kind == "text" and not block["text"].strip():
        raise Refused(f"{where}: text content blocks must contain non-whitespace text")
    if kind in ("thinking", "redacted_thinking") and "cache_control" in block:
        raise Refused(f"{where}.cache_control: Extra inputs are not permitted")
    if kind == "thinking" and block.get("signature") != signature(block["thinking"]):
        raise Refused(f"{where}: Invalid `signature` in `thinking` block")
    if kind == "tool_use" and not isinstance(block["input"], dict):
        raise Refused(f"{where}.tool_use.input: Input should be a valid dictionary")
    for name in ("id", "tool_use_id"):
        if name in block and not _ID.match(block[name]):
            raise Refused(f"{where}.{kind}.{name}: String should match pattern '{_ID.pattern}'")
    wanted = "assistant" if kind in ("thinking", "redacted_thinking", "tool_use") else "user" if kind == "tool_result" else role
    if role != wanted:
        raise Refused(f"{where}: `{kind}` blocks can only be in `{wanted}` messages")


def _chat_messages(system: Any, messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The conversation as a chat request has it; of the assistant's turns only the text, which is all that the script reads."""
    for block in _blocks(system):
        yield {"role": "system", "content": block["text"]}
    for message in messages:
        for block in message["content"]:
            if block["type"] == "tool_result":
                yield {"role": "tool", "content": block.get("content", "")}
        parts = [_part(block) for block in message["content"] if block["type"] in ("text", "image")]
        if message["role"] == "assistant" or parts:
            yield {"role": message["role"], "content": parts}


def _part(block: dict[str, Any]) -> dict[str, Any]:
    if block["type"] == "text":
        return {"type": "text", "text": block["text"]}
    source = block["source"]
    url = source["url"] if source["type"] == "url" else f"data:{source['media_type']};base64,{source['data']}"
    return {"type": "image_url", "image_url": {"url": url}}


def signature(thinking: str) -> str:
    """What vouches for a text of thinking."""
    return base64.b64encode(hashlib.blake2b(thinking.encode(), digest_size=24, person=b"mock thinking").digest()).decode()


def answer(completion: dict[str, Any], request: Any, memory: Memory) -> dict[str, Any]:
    """A chat completion as a message."""
    choice = completion["choices"][0]
    message, finish = choice["message"], choice["finish_reason"]
    text, reasoning = split_content(message["content"])
    reasoning = join_reasoning(native_reasoning(message), reasoning)
    content: list[dict[str, Any]] = []
    if reasoning and (request.get("thinking") or {}).get("type") != "disabled":
        content.append({"type": "thinking", "thinking": reasoning, "signature": signature(reasoning)})
    if text:
        content.append({"type": "text", "text": text})
    content += [_tool_use(call) for call in message.get("tool_calls") or ()]
    made = {
        "id": f"msg_mock_{len(request['messages'])}",
        "type": "message",
        "role": "assistant",
        "model": completion["model"],
        "content": content,
        "stop_reason": _STOP_REASONS.get(finish, finish),
        "stop_sequence": None,
    }
    if "usage" in completion:
        made["usage"] = _usage(completion["usage"], request, memory)
    return made


def _tool_use(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    text = function["arguments"]
    try:
        value: Any = msgspec.Raw(encode(msgspec.json.decode(text, type=dict[str, msgspec.Raw])))
    except (msgspec.DecodeError, TypeError):
        value = text  # what this API itself never sends
    used = {"type": "tool_use", "name": function["name"], "input": value}
    return {**used, "id": call["id"]} if "id" in call else used


def _usage(counted: dict[str, Any], request: Any, memory: Memory) -> dict[str, Any]:
    prompt = int(counted.get("prompt_tokens", 0))
    cached, written = _cache(request, memory)
    cached = min(cached, prompt)
    written = min(written, prompt - cached)
    usage = {
        "input_tokens": prompt - cached - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "output_tokens": int(counted.get("completion_tokens", 0)),
        "output_tokens_details": {
            "thinking_tokens": (counted.get("completion_tokens_details") or {}).get("reasoning_tokens", 0),
        },
    }
    return {**usage, "cost": counted["cost"]} if "cost" in counted else usage


def _cache(request: Any, memory: Memory) -> tuple[int, int]:
    """Tokens that come from the cache: up to the last block, at a mark or a little before one, that was marked before. And those
    that are put into it: from there to the last mark."""
    digest = hashlib.blake2b(digest_size=16)
    size, cached = 0, 0
    ends: list[tuple[bytes, int]] = []
    marked: Memory = {}
    for block, head in _prompt(request, request["messages"]):
        text = encode({name: value for name, value in block.items() if name != "cache_control"})
        digest.update(head + text)
        size += len(text)
        ends.append((digest.digest(), size // CHARS_PER_TOKEN))
        if "cache_control" in block:
            cached = max([cached, *(tokens for key, tokens in ends[-LOOKBACK:] if key in memory)])
            marked.update(ends[-1:])
    memory.update(marked)
    return cached, max([cached, *marked.values()]) - cached


def _prompt(request: Any, messages: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Every block in the order of the cache, with the role that it stands under."""
    for tool in request.get("tools") or ():
        yield tool, b"tools"
    for block in _blocks(request.get("system")):
        yield block, b"system"
    for message in messages:
        for block in message["content"]:
            yield block, message["role"].encode()


def events(message: dict[str, Any]) -> bytes:
    """A message as a stream, `message_stop` included."""
    return b"".join(_event(each) for each in _stream(message))


def _event(data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), encode(data))


def _stream(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    usage = message.get("usage")
    head = {**message, "content": [], "stop_reason": None}
    if usage:
        head["usage"] = {**usage, "output_tokens": 1}
    yield {"type": "message_start", "message": head}
    yield {"type": "ping"}
    for index, block in enumerate(message["content"]):
        begun, deltas = _pieces(block)
        yield {"type": "content_block_start", "index": index, "content_block": begun}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {name: message[name] for name in ("stop_reason", "stop_sequence", "stop_details") if name in message}
    yield {"type": "message_delta", "delta": end, **({"usage": usage} if usage else {})}
    yield {"type": "message_stop"}


def _pieces(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """How a block begins, and its deltas."""
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": each} for each in _cut(block["text"])]
    if block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": each} for each in _cut(block["thinking"])]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {**block, "thinking": "", "signature": ""}, deltas
    if block["type"] != "tool_use":
        return block, []
    value = block["input"]
    text = value if isinstance(value, str) else bytes(value).decode()
    pieces = ["", *_cut(text)] if text != "{}" else [""]
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": each} for each in pieces]


def _cut(text: str) -> list[str]:
    return [text[start : start + STREAM_PIECE] for start in range(0, len(text), STREAM_PIECE)]


def error(status: int, code: str, words: str) -> dict[str, Any]:
    kind = _ERROR_TYPES.get(status, "api_error")
    words = _TOO_LONG if code == "context_length_exceeded" else words
    return {"type": "error", "error": {"type": kind, "message": words}, "request_id": "req_mock"}


def error_inside(words: str, stream: bool) -> bytes:
    failed = {"type": "error", "error": {"type": "api_error", "message": words}}
    return _event(failed) if stream else encode(failed)


def rate_headers(what: str, limit: float, left: int, reset: float) -> dict[str, str]:
    then = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=reset)
    told = {"limit": f"{limit:.0f}", "remaining": str(left), "reset": then.isoformat().replace("+00:00", "Z")}
    return {f"anthropic-ratelimit-{what}-{name}": value for name, value in told.items()}


ANTHROPIC = MockDialect(
    path="/messages",
    read=read,
    answer=answer,
    events=events,
    error=error,
    error_inside=error_inside,
    rate_headers=rate_headers,
)
