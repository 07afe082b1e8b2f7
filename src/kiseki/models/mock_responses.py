"""The mock server's OpenAI Responses API. Pure but for the prompts that it remembers.

It refuses what that API refuses, in its words: unknown fields, items and parts in the wrong place, a call without its output, an
output without its call, reasoning that was changed or has lost what it led to, a strict tool whose schema is none.

Reasoning comes in either of two ways. Asked for encrypted content, it is OpenAI's: that, which is read again and checked, and a
summary where one is wanted. Otherwise it is an open model's server: the text itself.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec

from kiseki.models.mock_answer import STREAM_PIECE, encode
from kiseki.models.mock_dialects import CHAT, Memory, MockDialect, Refused, asked_of
from kiseki.models.mock_script import Asked
from kiseki.trajectory.reasoning import join_reasoning, native_reasoning, split_content

ENCRYPTED = "reasoning.encrypted_content"
LEAST_CACHED, CACHE_STEP = 1024, 128
"""Tokens: shorter prompts are not cached, and longer ones in such steps."""
_PARTS = {"assistant": ("output_text", "refusal")}
_OTHER_PARTS = ("input_text", "input_image", "input_file")
_NEEDED = {
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": ("id", "summary"),
}
_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


class AskedResponse(msgspec.Struct):
    """What a request may have; the last two are OpenRouter's and llama.cpp's."""

    model: str | None = None
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    include: list[str] | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    user: str | None = None
    provider: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def read(body: bytes) -> tuple[Asked, Any]:
    """A request as a chat request, and as it is. Raises msgspec.DecodeError and `Refused`."""
    asked = msgspec.json.decode(body, type=dict[str, Any])
    for name in asked:
        if name not in AskedResponse.__struct_fields__:
            raise Refused(f"Unknown parameter: '{name}'.", code="unknown_parameter")
    msgspec.convert(asked, AskedResponse)
    _need(asked, ("model", "input"), "")
    if isinstance(asked["input"], str):
        asked["input"] = [{"role": "user", "content": asked["input"]}]
    form = (asked.get("text") or {}).get("format") or {}
    if form.get("type") == "json_schema":
        _need(form, ("name", "schema"), "text.format.")
    _check_pairs(asked["input"])
    instructions = asked.get("instructions")
    messages = [{"role": "system", "content": instructions}] if instructions else []
    for at, item in enumerate(asked["input"]):
        _add(messages, item, f"input[{at}]", asked["input"][at + 1 :])
    chat = {
        "model": asked["model"],
        "messages": messages,
        "stream": bool(asked.get("stream")),
        "tools": [_chat_tool(tool, f"tools[{at}]") for at, tool in enumerate(asked.get("tools") or ())],
        "max_tokens": asked.get("max_output_tokens"),
    }
    if form.get("type") == "json_schema":
        chat["response_format"] = {"type": "json_schema", "json_schema": {"name": form["name"], "schema": form["schema"]}}
    return asked_of(chat), asked


def _need(given: dict[str, Any], names: tuple[str, ...], where: str) -> None:
    for name in names:
        if given.get(name) is None:
            raise Refused(f"Missing required parameter: '{where}{name}'.", code="missing_required_parameter")


def _chat_tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    _need(tool, ("type", "name"), f"{where}.")
    schema = tool.get("parameters") or {}
    if tool.get("strict", True):
        if schema.get("additionalProperties") is not False:
            words = "In context=(), 'additionalProperties' is required to be supplied and to be false."
            raise Refused(f"Invalid schema for function '{tool['name']}': {words}", code="invalid_function_parameters")
        if sorted(schema.get("required", ())) != sorted(schema.get("properties", ())):
            words = "In context=(), 'required' is required to be an array including every key in properties."
            raise Refused(f"Invalid schema for function '{tool['name']}': {words}", code="invalid_function_parameters")
    return {"type": "function", "function": {"name": tool["name"], "parameters": msgspec.Raw(encode(schema))}}


def _check_pairs(items: list[dict[str, Any]]) -> None:
    """Every call has its output after it, and every output its call before it."""
    open_calls: dict[str, None] = {}
    known = set[str]()
    for item in items:
        kind, name = item.get("type"), str(item.get("call_id"))
        if kind == "function_call":
            open_calls[name] = None
            known.add(name)
        elif kind == "function_call_output":
            if name not in known:
                raise Refused(f"No tool call found for function call output with call_id {name}.")
            open_calls.pop(name, None)
    for name in open_calls:
        raise Refused(f"No tool output found for function call {name}.")


def _add(messages: list[dict[str, Any]], item: dict[str, Any], where: str, after: list[dict[str, Any]]) -> None:
    """Put an item to the messages of a chat request: those that a reply is made of are one message there."""
    kind = item.get("type", "message")
    _need(item, _NEEDED.get(kind, ()), f"{where}.")
    if kind == "function_call_output":
        messages.append({"role": "tool", "content": _chat_content(item["output"], "user", where)})
        return
    if kind == "message":
        _need(item, ("role", "content"), f"{where}.")
        content = _chat_content(item["content"], item["role"], where)
        if item["role"] != "assistant":
            messages.append({"role": item["role"], "content": content})
            return
    elif kind == "reasoning":
        content = ""
        _check_reasoning(item, where, after)
    elif kind == "function_call":
        content = ""
        if not isinstance(item["arguments"], str):
            raise Refused(f"Invalid type for '{where}.arguments': expected a string.", code="invalid_type")
    else:
        raise Refused(f"Invalid value: '{kind}'.", code="invalid_value")
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1]["content"] += split_content(content)[0]


def _chat_content(content: Any, role: str, where: str) -> Any:
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    known = _PARTS.get(role, _OTHER_PARTS)
    for part in msgspec.convert(content, list[dict[str, Any]]):
        if part.get("type") not in known:
            words = f"Invalid value: '{part.get('type')}'. Supported values are: {' and '.join(map(repr, known))}."
            raise Refused(f"{words} ({where}.content)", code="invalid_value")
        if part["type"] == "input_image":
            _need(part, ("image_url",), f"{where}.content.")
            parts.append({"type": "image_url", "image_url": {"url": part["image_url"]}})
        else:
            parts.append({"type": "text", "text": part.get("text") or part.get("refusal") or ""})
    return parts


def _check_reasoning(item: dict[str, Any], where: str, after: list[dict[str, Any]]) -> None:
    if "status" in item:
        raise Refused(f"Unknown parameter: '{where}.status'.", code="unknown_parameter")
    following = next((each for each in after if each.get("type") != "reasoning"), {"role": "nobody"})
    kind = following.get("type", "message")
    if kind == "function_call_output" or (kind == "message" and following.get("role") != "assistant"):
        raise Refused(f"Item '{item['id']}' of type 'reasoning' was provided without its required following item.")
    given = item.get("encrypted_content")
    if not given:
        if not item.get("content"):
            words = (
                "Items are not persisted when `store` is set to false. Try again with `store` set to true, or remove this item"
            )
            raise Refused(f"Item with id '{item['id']}' not found. {words} from your input.", status=404)
        return
    thought = given.partition(".")[0].encode()
    if given != _sealed(item["id"], item["summary"], thought, kind):
        words = f"The encrypted content for item {item['id']} could not be verified."
        raise Refused(words, code="invalid_encrypted_content")


def _sealed(name: str, summary: list[dict[str, Any]], thought: bytes, led_to: str) -> str:
    """Encrypted content, of base64 `thought`, that holds only for what it came with."""
    digest = hashlib.blake2b(b"\0".join((name.encode(), encode(summary), thought, led_to.encode())), digest_size=16)
    return f"{thought.decode()}.{digest.hexdigest()}"


def answer(completion: dict[str, Any], asked: Any, memory: Memory) -> dict[str, Any]:
    choice = completion["choices"][0]
    reason = _REASONS.get(choice["finish_reason"])
    number = len(asked["input"])
    return {
        **_response("incomplete" if reason else "completed", asked),
        "id": f"resp_mock_{number}",
        "incomplete_details": {"reason": reason} if reason else None,
        "provider": completion["provider"],
        "output": _output(choice["message"], asked, number),
        "usage": _usage(completion.get("usage"), asked, memory),
    }


def _response(status: str, asked: dict[str, Any]) -> dict[str, Any]:
    """What every response has; it repeats the request's tools."""
    return {
        "id": "resp_mock",
        "object": "response",
        "created_at": 0,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": asked.get("model", "mock"),
        "output": [],
        "parallel_tool_calls": True,
        "store": False,
        "tool_choice": "auto",
        "tools": asked.get("tools") or [],
        "usage": None,
    }


def _output(message: dict[str, Any], asked: dict[str, Any], number: int) -> list[dict[str, Any]]:
    text, parts_reasoning = split_content(message.get("content"))
    items: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}] if text else []
    if message.get("refusal"):
        parts.append({"type": "refusal", "refusal": message["refusal"]})
    if parts:
        said = {"id": f"msg_mock_{number}", "type": "message", "role": "assistant", "status": "completed"}
        items.append({**said, "content": parts})
    legacy = message.get("function_call")
    for at, call in enumerate(message.get("tool_calls") or ([{"id": "call_legacy", "function": legacy}] if legacy else [])):
        named = {"call_id": call["id"]} if "id" in call else {}
        item = {"id": f"fc_mock_{number}_{at}", "type": "function_call", "status": "completed"}
        items.append({**item, **named, **call["function"]})
    if thought := join_reasoning(parts_reasoning, native_reasoning(message)):
        led_to = items[0]["type"] if items else "nothing"
        items.insert(0, _reasoning(thought, asked, f"rs_mock_{number}", led_to))
    return items


def _reasoning(thought: str, asked: dict[str, Any], name: str, led_to: str) -> dict[str, Any]:
    item: dict[str, Any] = {"id": name, "type": "reasoning", "summary": []}
    if ENCRYPTED not in (asked.get("include") or ()):
        return {**item, "content": [{"type": "reasoning_text", "text": thought}], "encrypted_content": None, "status": None}
    if (asked.get("reasoning") or {}).get("summary"):
        item["summary"] = [{"type": "summary_text", "text": thought}]
    return {**item, "encrypted_content": _sealed(name, item["summary"], base64.b64encode(thought.encode()), led_to)}


def _usage(usage: dict[str, Any] | None, asked: dict[str, Any], memory: Memory) -> dict[str, Any] | None:
    if usage is None:
        return None
    given = usage.get("prompt_tokens", 0)
    found = {
        "input_tokens": given,
        "input_tokens_details": {
            "cache_write_tokens": 0,
            **usage.get("prompt_tokens_details", {}),
            **_cached(asked, given, memory),
        },
        "output_tokens": usage.get("completion_tokens", 0),
        "output_tokens_details": usage.get("completion_tokens_details", {}),
        "total_tokens": usage.get("total_tokens", 0),
    }
    return found | ({"cost": usage["cost"]} if "cost" in usage else {})


def _cached(asked: dict[str, Any], tokens: int, memory: Memory) -> dict[str, int]:
    """What of the prompt was there before, by requests with the same cache key; nothing without one."""
    if "prompt_cache_key" not in asked:
        return {}
    seen, digest = 0, hashlib.blake2b(encode([asked["prompt_cache_key"], asked.get("tools")]), digest_size=16)
    for item in asked["input"]:
        digest.update(encode(item))
        seen = memory.get(digest.digest(), seen)
    memory[digest.digest()] = tokens
    return {"cached_tokens": seen // CACHE_STEP * CACHE_STEP if seen >= LEAST_CACHED else 0}


def events(whole: dict[str, Any]) -> bytes:
    """The answer as a stream of server-sent events."""
    begun = {**whole, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None, "error": None}
    said: list[dict[str, Any]] = [{"type": f"response.{kind}", "response": begun} for kind in ("created", "in_progress")]
    for index, item in enumerate(whole["output"]):
        said += ({**event, "output_index": index, "item_id": item["id"]} for event in _item_events(item))
    said.append({"type": f"response.{whole['status']}", "response": whole})
    numbered = ({**event, "sequence_number": number} for number, event in enumerate(said))
    return b"".join(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode(event)) for event in numbered)


def _item_events(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    empty = {"content": [], "summary": [], "arguments": "", "encrypted_content": "", "status": "in_progress"}
    yield {"type": "response.output_item.added", "item": {name: empty.get(name, value) for name, value in item.items()}}
    for at, part in enumerate(item.get("summary") or ()):
        yield from _pieces("reasoning_summary_text", part["text"], "text", {"summary_index": at})
    for at, part in enumerate(item.get("content") or ()):
        kind = part["type"]
        name = "refusal" if kind == "refusal" else "text"
        yield {"type": "response.content_part.added", "content_index": at, "part": {**part, name: ""}}
        yield from _pieces(kind, part[name], name, {"content_index": at} | ({"logprobs": []} if kind == "output_text" else {}))
        yield {"type": "response.content_part.done", "content_index": at, "part": part}
    if isinstance(item.get("arguments"), str):
        yield from _pieces("function_call_arguments", item["arguments"], "arguments", {"name": item.get("name")})
    yield {"type": "response.output_item.done", "item": item}


def _pieces(kind: str, text: str, name: str, more: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for start in range(0, len(text), STREAM_PIECE):
        yield {"type": f"response.{kind}.delta", "delta": text[start : start + STREAM_PIECE], **more}
    yield {"type": f"response.{kind}.done", name: text, **more}


def _error(status: int, code: str, words: str) -> dict[str, Any]:
    kind = "invalid_request_error" if status < 500 and status != 429 else code
    return {"error": {"message": words, "type": kind, "param": None, "code": code}}


def _error_inside(words: str, stream: bool) -> bytes:
    failed = {**_response("failed", {}), "error": {"code": "server_error", "message": words}}
    return events(failed) if stream else encode(failed)


RESPONSES = MockDialect(
    path="/responses",
    read=read,
    answer=answer,
    events=events,
    error=_error,
    error_inside=_error_inside,
    rate_headers=CHAT.rate_headers,
)
