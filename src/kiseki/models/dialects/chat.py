"""The OpenAI chat completions API, as OpenAI, OpenRouter, vLLM, SGLang, llama.cpp, Ollama and most others have it: requests.

What goes back to the server of an assistant message: its content, its tool calls, what the provider wants back of it
(`provider_fields`), and its reasoning under the names that the host wants it back in (`Host.echo`). Arguments that are no JSON
object go back as `{"_invalid_arguments": "<raw text>"}`, since many servers' chat templates fail on anything but an object; the
record keeps the raw text. Answers are read in `chat_reply.py` and `chat_stream.py`.

`encode` is on the hot path: it encodes each message of a conversation once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kiseki.errors import UsageError
from kiseki.models.base import ChatReply, ChatRequest, ToolSchema
from kiseki.models.dialects.base import IMAGE_SIZE, PerTools, encode
from kiseki.models.dialects.chat_reply import CALL_EXTRAS, decode_completion, reply_of
from kiseki.models.dialects.chat_stream import StreamedChat
from kiseki.models.endpoints import PROVIDER_SORTS, ModelSettings, name_of
from kiseki.models.hosts import DETAILS, EFFORTS, OPENROUTER, PARTS, Extras, Host, host_of
from kiseki.trajectory.types import Message

INVALID_ARGUMENTS = "_invalid_arguments"
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class ChatDialect:
    """A `Dialect`."""

    def __init__(self, settings: ModelSettings) -> None:
        """Raises UsageError for values that are not valid and for flags that the host has no documented field for."""
        self._host = host_of(settings.base_url)
        self._capture_tokens = settings.capture_tokens
        self.takes_seed = bool(self._host.seed)
        self.url = settings.base_url.rstrip("/") + "/chat/completions"
        self.headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
        self._fixed = settings.extra_body.keys()
        fields = {"model": settings.model, **request_fields(settings), **settings.extra_body}
        self._head = encode(fields)[:-1] + b',"messages":'
        self._tools = PerTools(encode_tools)

    def encode(self, request: ChatRequest) -> tuple[bytes, int]:
        host, images = self._host, request.images
        encoded: list[bytes] = request.encoded
        messages = request.messages[:-1] if images else request.messages
        for message in messages[len(encoded) // 2 :]:  # each with what stands before it
            encoded += (b"," if encoded else b"[", encode(wire_message(message, host)))
        if images:  # asked once: nothing grows on it, and nothing of it is kept
            encoded = [*encoded, b"," if encoded else b"[", encode(wire_with_images(request.messages[-1], host, images))]
        parts = [self._head, *encoded, b"]"]
        if request.tools:
            parts += (b',"tools":', self._tools.of(request.tools))
        if request.seed is not None and self.takes_seed and host.seed not in self._fixed:
            parts.append(f',"{host.seed}":{request.seed}'.encode())
        if request.json_schema and host.json_schema and "response_format" not in self._fixed:
            parts += (b',"response_format":', _response_format(request.json_schema, host))
        parts.append(b"}")
        body = b"".join(parts)
        return body, len(body) - sum(map(len, images)) + IMAGE_SIZE * len(images)

    def reply(self, body: bytes, started: float, seconds: float) -> ChatReply:
        return reply_of(decode_completion(body), started=started, seconds=seconds, capture_tokens=self._capture_tokens)

    def stream(self) -> StreamedChat:
        return StreamedChat(capture_tokens=self._capture_tokens)


def encode_tools(tools: tuple[ToolSchema, ...]) -> bytes:
    """The JSON array of tool definitions."""
    return encode(
        [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            }
            for tool in tools
        ]
    )


def wire_message(message: Message, host: Host) -> dict[str, Any]:
    """One message as the request carries it."""
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": host.call_id(message.tool_call_id), "content": message.content}
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role != "assistant":
        return wire
    extras: list[Any] = []
    if kept := message.provider_fields:  # of this dialect's: another model may have answered before
        if DETAILS in kept and DETAILS in host.echo:
            wire[DETAILS] = kept[DETAILS]
        extras = kept.get(CALL_EXTRAS, extras)
    reasoning = message.reasoning or (" " if host.echo_blank else "")
    if reasoning and DETAILS not in wire:
        for name in host.echo:
            if name != DETAILS:
                wire[name] = _thinking_parts(message) if name == PARTS else reasoning
    if message.tool_calls:
        calls = wire["tool_calls"] = [
            {
                "id": host.call_id(call.id),
                "type": "function",
                "function": {"name": call.name, "arguments": object_text(call.arguments)},
            }
            for call in message.tool_calls
        ]
        if host.unsigned_call and not any(extras):  # of calls side by side only the first is signed
            extras = [host.unsigned_call]
        for call_wire, extra in zip(calls, extras, strict=False):
            if extra is not None:
                call_wire["extra_content"] = extra
        if not wire["content"]:
            wire["content"] = None
    return wire


def _thinking_parts(message: Message) -> list[dict[str, Any]]:
    """The content as Mistral has it where its model reasoned."""
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": message.reasoning}], "closed": True}
    return [thinking, {"type": "text", "text": message.content}] if message.content else [thinking]


def wire_with_images(message: Message, host: Host, images: tuple[str, ...]) -> dict[str, Any]:
    """A message with images (`data:` URIs) behind its text."""
    shown = [{"type": "image_url", "image_url": {"url": each}} for each in images]
    return {**wire_message(message, host), "content": [{"type": "text", "text": message.content}, *shown]}


def object_text(arguments: str) -> str:
    """`arguments` where they are a JSON object, else an object that holds them as text; none at all is an empty object."""
    try:
        _decode_object(arguments)
    except (msgspec.DecodeError, RecursionError):
        if not arguments.strip():
            return "{}"
        return encode({INVALID_ARGUMENTS: arguments}).decode()
    return arguments


def are_said(texts: Sequence[str], content: str) -> bool:
    """Whether these texts of one reply are a message's content, however they were put together. They are not, where calls were
    read in them, or written into it."""
    return bool(texts) and "".join("".join(texts).split()) == "".join(content.split())


def _response_format(schema: msgspec.Raw, host: Host) -> bytes:
    if host.json_schema == "json_object":  # it takes no schema: the prompt has to say it
        return b'{"type":"json_object"}'
    return b'{"type":"json_schema","json_schema":{"name":"reply","schema":%b}}' % bytes(schema)


def request_fields(settings: ModelSettings) -> Extras:
    """The body fields beyond model, messages and tools that say what `settings` say, as this host spells them.

    Raises UsageError for values that are not valid and for flags that the host has no documented field for.
    """
    host = host_of(settings.base_url)
    extras: Extras = {}
    if settings.max_tokens is not None:
        extras[host.max_tokens] = settings.max_tokens
    if settings.temperature is not None:
        extras["temperature"] = settings.temperature
    if settings.top_p is not None:
        extras["top_p"] = settings.top_p
    if settings.stream:
        extras["stream"] = True
        if host.stream_usage:
            extras["stream_options"] = {"include_usage": True}
    extras.update(routing_fields(host, settings))
    extras.update(_reasoning_fields(host, settings))
    if settings.capture_tokens:
        if host.token_ids is None:
            raise UsageError(
                f"--capture_tokens: no documented field gives token ids at {name_of(host, settings)}; "
                "a server of one's own does, vLLM or SGLang."
            )
        extras.update(host.token_ids)
    return extras | host.always


def routing_fields(host: Host, settings: ModelSettings) -> Extras:
    if settings.provider_sort and settings.provider_sort not in PROVIDER_SORTS:
        raise UsageError(f"--provider_sort {settings.provider_sort!r} is none of: {', '.join(PROVIDER_SORTS)}.")
    routing = {
        "only": settings.providers_allowed,
        "ignore": settings.providers_ignored,
        "order": settings.providers_order,
        "sort": settings.provider_sort,
    }
    routing = {field: value for field, value in routing.items() if value}
    if routing and host is not OPENROUTER:
        raise UsageError(
            "--providers_allowed, --providers_ignored, --providers_order and --provider_sort are OpenRouter's; "
            f"{name_of(host, settings)} has no provider routing."
        )
    return {"provider": routing} if routing else {}


def _reasoning_fields(host: Host, settings: ModelSettings) -> Extras:
    effort = settings.reasoning_effort
    if effort and effort not in EFFORTS:
        raise UsageError(f"--reasoning_effort {effort!r} is none of: {', '.join(EFFORTS)}.")
    if settings.reasoning_disabled or (effort == "none" and host.no_reasoning is not None):
        if host.no_reasoning is None:
            raise UsageError(f"--reasoning_disabled: no documented field switches reasoning off at {name_of(host, settings)}.")
        return host.no_reasoning
    if not effort:
        return {}
    if host.effort is None:
        raise UsageError(f"--reasoning_effort: no documented field sets it at {name_of(host, settings)}.")
    if effort not in host.efforts:
        raise UsageError(f"--reasoning_effort {effort!r}: {host.name} documents only {', '.join(host.efforts)}.")
    return host.effort(effort)
