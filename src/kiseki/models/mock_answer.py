"""The mock server's answers as bytes: a script's turn as an OpenAI chat completion, whole or streamed. Pure.

Faults of the reply itself (`REPLY_FAULTS`) are worked into it here; those of HTTP and the connection are `mock_http`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kiseki.models.mock_images import chat_images
from kiseki.models.mock_script import Asked, MockConfig, Situation, Turn, fill
from kiseki.models.mock_tokens import stream_tokens

encode = msgspec.json.Encoder().encode

CHARS_PER_TOKEN = 4
PER_MILLION = 1_000_000
CONTEXT_LENGTH, MOST_TOKENS = 131_072, 32_768  # as listed; nothing holds a request to them
STREAM_PIECE = 24  # characters in a delta: small enough that every text of some length comes in several
TAGS = {
    "think": ("<think>", "</think>\n\n"),
    "think_unopened": ("", "\n</think>\n\n"),
    "scratchpad": ("<REASONING_SCRATCHPAD>", "</REASONING_SCRATCHPAD>\n"),
}


def completion(
    config: MockConfig, asked: Asked, situation: Situation, turn: Turn, fault: str, prompt_chars: int
) -> dict[str, Any]:
    """The whole answer to a request, its usage without a price (`bill`)."""
    variables = {
        "prompt": situation.prompt,
        "last_tool_result": situation.last_tool_result,
        "turn": str(situation.turn),
        "model": asked.model,
    }
    content, reasoning = fill(turn.content, variables), fill(turn.reasoning, variables)
    calls = [] if fault in ("length", "content_filter", "empty") else _calls(asked, turn, fault, variables)
    finish = turn.finish_reason or ("tool_calls" if calls else "stop")
    if fault in ("content_filter", "empty"):
        content, reasoning = "", ""
    if fault == "length" and isinstance(content, str):
        content = content[: len(content) // 2]
    most = asked.most
    if most is not None:
        content, reasoning, calls, cut = _cut(most, content, reasoning, calls)
        finish = "length" if cut else finish
    if fault in ("content_filter", "length"):
        finish = fault
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = calls
        message["content"] = content or None
    if reasoning:
        _place(message, reasoning, turn.reasoning_field or config.reasoning_field)
    if asked.modalities and "image" in asked.modalities and fault not in ("content_filter", "empty"):
        message["images"] = chat_images(situation.prompt, asked.image_config)
    message.update(turn.message)
    usage = dict(turn.usage) if turn.usage else _usage(prompt_chars, content, reasoning, calls)
    if most is not None and _count(usage, "completion_tokens") > most:
        usage |= {"completion_tokens": most, "total_tokens": _count(usage, "prompt_tokens") + most}
    return {
        "id": f"chatcmpl-mock-{len(asked.messages)}",
        "object": "chat.completion",
        "created": 0,
        "model": asked.model,
        "provider": "mock",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": usage,
    }


def bill(config: MockConfig, answer: dict[str, Any], fault: str) -> tuple[int, int, float]:
    """Prompt tokens, completion tokens and dollars of an answer; its usage gets the cost, or is left out as the fault wants."""
    usage = answer["usage"]
    prompt, given = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    cost = usage.get("cost")
    if not isinstance(cost, int | float):
        cost = (prompt * config.price[0] + given * config.price[1]) / PER_MILLION
        if config.report_cost:
            usage["cost"] = cost
    if fault == "no_usage":
        del answer["usage"]
    return prompt, given, cost


def model_list(config: MockConfig) -> dict[str, Any]:
    """What GET /v1/models says."""
    model: dict[str, Any] = {"object": "model", "created": 0}
    if config.list_prices:
        prompt, completion = config.price
        model["pricing"] = {
            "prompt": _dollars_per_token(prompt),
            "completion": _dollars_per_token(completion),
            "request": "0",
            "input_cache_read": _dollars_per_token(prompt / 10),
        }
        model["context_length"] = CONTEXT_LENGTH
        model["top_provider"] = {"context_length": CONTEXT_LENGTH, "max_completion_tokens": MOST_TOKENS}
    return {"object": "list", "data": [{"id": name, **model} for name in dict.fromkeys(("mock", *config.models))]}


def _dollars_per_token(per_million: float) -> str:
    return f"{per_million / PER_MILLION:.15f}".rstrip("0").rstrip(".")


def _count(usage: dict[str, Any], name: str) -> int:
    """A count of a usage, which a script can give anything."""
    value = usage.get(name)
    return int(value) if isinstance(value, int | float) else 0


def _cut(most: int, content: Any, reasoning: str, calls: list[dict[str, Any]]) -> tuple[Any, str, list[dict[str, Any]], bool]:
    """What fits into `most` tokens of content, reasoning and calls, in the order in which a model says it, and whether all did.

    A call that doesn't fit is left out whole.
    """
    left = (most - 1) * CHARS_PER_TOKEN + CHARS_PER_TOKEN - 1  # counts are rounded down, then one is added
    if len(reasoning) > left:
        return "", reasoning[:left], [], True
    left -= len(reasoning) // CHARS_PER_TOKEN * CHARS_PER_TOKEN
    if isinstance(content, str):
        if len(content) > left:
            return content[:left], reasoning, [], True
        left -= len(content)
    for position, call in enumerate(calls):
        left -= len(call["function"]["arguments"])
        if left < 0:
            return content, reasoning, calls[:position], True
    return content, reasoning, calls, False


def _calls(asked: Asked, turn: Turn, fault: str, variables: dict[str, str]) -> list[dict[str, Any]]:
    calls = []
    for position, call in enumerate(turn.tool_calls):
        arguments, name = fill(call.arguments, variables), call.name
        text = arguments if isinstance(arguments, str) else encode(arguments).decode()
        call_id = call.id if call.id is not None else f"call_{len(asked.messages)}_{position}"
        if fault == "malformed_arguments":
            text = text[:-1] + ', "'
        elif fault == "unknown_tool":
            name = "no_such_tool"
        elif fault == "duplicate_ids":
            call_id = "call_duplicate"
        wire: dict[str, Any] = {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
        if fault == "missing_ids":
            del wire["id"]
        calls.append(wire)
    return calls


def _place(message: dict[str, Any], reasoning: str, field: str) -> None:
    if field in TAGS:
        opening, closing = TAGS[field]
        message["content"] = f"{opening}{reasoning}{closing}{message['content'] or ''}"
    elif field == "parts":
        thinking = {"type": "thinking", "thinking": [{"type": "text", "text": reasoning}]}
        message["content"] = [thinking, {"type": "text", "text": message["content"] or ""}]
    elif field == "reasoning_details":
        message["reasoning"] = reasoning
        message[field] = [{"type": "reasoning.text", "text": reasoning, "signature": "mock", "format": "mock-v1", "index": 0}]
    else:
        message[field] = reasoning


def _usage(prompt_chars: int, content: Any, reasoning: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
    thought = len(reasoning) // CHARS_PER_TOKEN
    said = len(content) if isinstance(content, str) else 0
    called = sum(len(call["function"]["arguments"]) for call in calls)
    prompt, given = prompt_chars // CHARS_PER_TOKEN, 1 + (said + called) // CHARS_PER_TOKEN + thought
    return {
        "prompt_tokens": prompt,
        "completion_tokens": given,
        "total_tokens": prompt + given,
        "completion_tokens_details": {"reasoning_tokens": thought},
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def events(answer: dict[str, Any]) -> bytes:
    """The same answer as a stream of server-sent events, `[DONE]` included."""
    head = {**answer, "object": "chat.completion.chunk"}
    usage, prompt_ids = head.pop("usage", None), head.pop("prompt_token_ids", None)
    choice = answer["choices"][0]
    chunks: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in _deltas(choice["message"])
    ]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    if prompt_ids is not None:
        chunks[0]["prompt_token_ids"] = prompt_ids
        stream_tokens(choice, [chunk["choices"][0] for chunk in chunks[1:]])
    if usage is not None:
        chunks.append({**head, "choices": [], "usage": usage})
    lines = [b": MOCK PROCESSING\n\n", *(b"data: %b\n\n" % encode(chunk) for chunk in chunks), b"data: [DONE]\n\n"]
    return b"".join(lines)


def _deltas(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for name, value in message.items():
        if name == "role" or value is None:
            continue
        if name == "tool_calls":
            yield from _call_deltas(value)
        elif name == "reasoning_details":
            for item in value:
                yield from ({name: [piece]} for piece in _detail_pieces(item))
        elif isinstance(value, str):
            for start in range(0, len(value), STREAM_PIECE):
                yield {name: value[start : start + STREAM_PIECE]}
        else:
            yield {name: value}


def _call_deltas(calls: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for index, call in enumerate(calls):
        function = call["function"]
        text = function["arguments"]
        yield {"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}
        if not isinstance(text, str):
            yield {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            continue
        for start in range(0, len(text), STREAM_PIECE):
            yield {"tool_calls": [{"index": index, "function": {"arguments": text[start : start + STREAM_PIECE]}}]}


def _detail_pieces(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    text = item.get("text")
    if not isinstance(text, str):
        yield item
        return
    rest = {key: value for key, value in item.items() if key not in ("text", "signature")}
    for start in range(0, len(text), STREAM_PIECE):
        yield {**rest, "text": text[start : start + STREAM_PIECE]}
    if "signature" in item:
        yield {**rest, "text": "", "signature": item["signature"]}
