"""The OpenAI Responses API, as OpenAI, Azure, OpenRouter, xAI, vLLM, llama.cpp, Ollama and LM Studio have it: requests.

It is asked without its memory: nothing is stored there (`store: false`), and every request carries the whole conversation as
input items. System texts are items too, not `instructions`: they keep their place, and each message is encoded once. What a reply
was made of beside text and calls goes back as it came, in its order, to the model and host that made it (`provider_fields`,
written by `responses_reply.py`); what a reasoning item led to must follow it, or the API refuses the request.

Two forms of what has been said: OpenAI and Azure want it without ids, since an id makes the API look for the items around it;
others demand them (openrouter.ai/docs, "Responses API": `id` and `status` of assistant messages, `id` of function calls and
outputs; vLLM's `ResponsesRequest` reads no other assistant message that has parts), and llama.cpp reads no text but in parts.

`encode` is on the hot path: it encodes each message of a conversation once.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from typing import Any
from urllib.parse import urlsplit

from kiseki.errors import UsageError
from kiseki.models.base import ChatReply, ChatRequest, ToolSchema
from kiseki.models.dialects.base import IMAGE_SIZE, PerTools, encode
from kiseki.models.dialects.chat import are_said, object_text, routing_fields
from kiseki.models.dialects.responses_reply import ITEMS, SOURCE, Asked, decode_response, reply_of
from kiseki.models.dialects.responses_stream import StreamedResponse
from kiseki.models.endpoints import ModelSettings
from kiseki.models.hosts import EFFORTS, LOCAL, Extras, Host, host_of
from kiseki.trajectory.types import Message, ToolCall

OWN_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Of `reasoning.effort`; which of them a model takes, it says itself."""
LEAST_TOKENS = 16
"""OpenAI refuses a smaller `max_output_tokens`."""
_ENCRYPTED = ("OpenRouter", "xAI")
"""Further hosts that document `include: ["reasoning.encrypted_content"]`; vLLM refuses such content."""
_PLAIN = ("gpt-3", "gpt-4", "chatgpt-4")
"""OpenAI's models that do not reason refuse `reasoning`, and to include its encrypted form."""
_REASONER = re.compile(r"o\d|gpt-(?P<major>\d+)(?:\.(?P<minor>\d+))?(?!.*-chat)")
_REASONS_UNASKED = (5, 6)
"""From this version on."""


class ResponsesDialect:
    """A `Dialect`."""

    def __init__(self, settings: ModelSettings) -> None:
        """Raises UsageError for values that are not valid and for flags that the API has no field for."""
        host = host_of(settings.base_url)
        self.takes_seed = False
        self.url = settings.base_url.rstrip("/") + "/responses"
        self.headers = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
        self._openai = is_openai(host)
        self._cache_key = self._openai and "prompt_cache_key" not in settings.extra_body
        fields = {"model": settings.model, **request_fields(settings), **settings.extra_body}
        source = f"{settings.model} at {urlsplit(settings.base_url).netloc}"
        self._asked = Asked(source, is_openai(host), fields.get("max_output_tokens"))
        self._text: Any = fields.pop("text", {})
        self._head = encode(fields)[:-1] + b',"input":'
        self._tools = PerTools(encode_tools)

    def encode(self, request: ChatRequest) -> tuple[bytes, int]:
        encoded, images = request.encoded, request.images
        messages = request.messages[:-1] if images else request.messages
        for at in range(len(encoded) // 2, len(messages)):  # each with what stands before it
            encoded += (b"," if encoded else b"[", encode(self._items(messages[at], at))[1:-1])
        parts = [self._head, *encoded]
        if images:  # asked once: nothing grows on it, and nothing of it is kept
            parts += (b"," if encoded else b"[", encode(_with_images(request.messages[-1], images)))
        parts.append(b"]")
        if request.tools:
            parts += (b',"tools":', self._tools.of(request.tools))
        if self._cache_key and not images:
            parts += (b',"prompt_cache_key":"', _cache_key(messages, encoded), b'"')
        if request.json_schema and isinstance(self._text, dict):
            form = {"type": "json_schema", "name": "reply", "schema": request.json_schema}
            parts += (b',"text":', encode({"format": form, **self._text}))
        elif self._text != {}:
            parts += (b',"text":', encode(self._text))
        parts.append(b"}")
        body = b"".join(parts)
        return body, len(body) - sum(map(len, images)) + IMAGE_SIZE * len(images)

    def _items(self, message: Message, at: int) -> list[dict[str, Any]]:
        kept = message.provider_fields
        made = kept[ITEMS] if kept and kept.get(SOURCE) == self._asked.source else ()
        return wire_items(message, made, None if self._openai else at)

    def reply(self, body: bytes, started: float, seconds: float) -> ChatReply:
        return reply_of(decode_response(body), self._asked, started, seconds)

    def stream(self) -> StreamedResponse:
        return StreamedResponse(self._asked)


def encode_tools(tools: tuple[ToolSchema, ...]) -> bytes:
    """The JSON array of tool definitions. `strict` is the API's default, and refuses any schema with an optional argument."""
    return encode(
        [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "strict": False,
            }
            for tool in tools
        ]
    )


def wire_items(message: Message, made: Any, at: int | None) -> list[dict[str, Any]]:
    """The input items that one message is, at least one. `made`: what the reply that it was consisted of, where this model may
    see that, as `responses_reply.py` keeps it. `at`: the message's place, where the host wants ids. None: it wants none."""
    if message.role == "tool":
        output = {"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}
        return [output if at is None else {**output, "id": f"fco_{message.tool_call_id}"}]
    if message.role != "assistant":
        return [{"type": "message", "role": message.role, "content": message.content}]
    items: list[dict[str, Any]] = []
    calls = iter(message.tool_calls)
    apart = are_said([item["text"] for item in made if item.get("type") == "message" and "text" in item], message.content)
    left = message.content
    for item in made or ({"type": "message"},):
        kind = item.get("type")
        if kind == "function_call":
            items += (_called(call, item, at) for call in itertools.islice(calls, 1))
        elif kind == "message":
            if text := item["text"] if apart else left:
                items.append(_said(text, item, None if at is None else f"msg_{at}_{len(items)}"))
            left = ""
        else:
            items.append(item)
    if left:  # calls that were items have become its text
        items.append(_said(left, {}, None if at is None else f"msg_{at}_{len(items)}"))
    items += (_called(call, {}, at) for call in calls)
    while items and items[-1].get("type") == "reasoning":  # what it led to is not there to be sent
        items.pop()
    return items or [_said(message.content, {}, None if at is None else f"msg_{at}")]


def _said(text: str, item: dict[str, Any], name: str | None) -> dict[str, Any]:
    said: dict[str, Any] = {"type": "message", "role": "assistant", "content": text}
    if name is not None:
        said |= {"id": name, "status": "completed", "content": [{"type": "output_text", "text": text, "annotations": []}]}
    return {**said, "phase": item["phase"]} if "phase" in item else said


def _called(call: ToolCall, item: dict[str, Any], at: int | None) -> dict[str, Any]:
    called = {**item, "type": "function_call", "call_id": call.id, "name": call.name, "arguments": object_text(call.arguments)}
    return called if at is None else {**called, "id": f"fc_{call.id}"}


def _with_images(message: Message, images: tuple[str, ...]) -> dict[str, Any]:
    """A message with images (`data:` URIs) behind its text."""
    shown = [{"type": "input_image", "image_url": each, "detail": "auto"} for each in images]
    parts = [{"type": "input_text", "text": message.content}, *shown]
    return {"type": "message", "role": message.role, "content": parts}


def _cache_key(messages: tuple[Message, ...], encoded: list[bytes]) -> bytes:
    """Names the prompt: the calls of all its rollouts go to where its beginning is cached, and those of other prompts, which
    begin with the same system text and tools, do not crowd that place (it takes some 15 calls a minute)."""
    asked = (at for at in range(len(messages) - 1, -1, -1) if messages[at].role == "user" and not messages[at].tool_call_id)
    at = next(asked, 0)  # the user's words with a call's id are results, told in the text
    return hashlib.blake2b(encoded[2 * at + 1], digest_size=8).hexdigest().encode()


def is_openai(host: Host) -> bool:
    """Whether it is a host whose own API this is."""
    return host.api_mode == "responses"


def request_fields(settings: ModelSettings) -> Extras:
    """The body fields beyond model, input and tools that say what `settings` say.

    Raises UsageError for values that are not valid and for flags that the API has no field for.
    """
    host = host_of(settings.base_url)
    openai = is_openai(host)
    reasons = not (openai and settings.model.removeprefix("ft:").startswith(_PLAIN))
    extras: Extras = {"store": False}
    if host.name in _ENCRYPTED or (openai and reasons):
        extras["include"] = ["reasoning.encrypted_content"]
    if settings.max_tokens is not None:
        if openai and settings.max_tokens < LEAST_TOKENS:
            raise UsageError(f"--max_tokens {settings.max_tokens}: {host.name}'s Responses API takes {LEAST_TOKENS} or more.")
        extras["max_output_tokens"] = settings.max_tokens
    extras.update(_sampling_fields(settings, openai=openai))
    if settings.stream:
        extras["stream"] = True
        if openai:  # else each delta is filled up to hide its length
            extras["stream_options"] = {"include_obfuscation": False}
    extras.update(routing_fields(host, settings))
    extras.update(_reasoning_fields(host, settings, reasons=reasons))
    if settings.capture_tokens:
        raise UsageError(
            "--capture_tokens: the Responses API has no field for token ids; "
            "servers of one's own give them in the chat API (--api_mode=chat)."
        )
    return extras


def _sampling_fields(settings: ModelSettings, *, openai: bool) -> Extras:
    """OpenAI's models take none while they reason, but for the 1 that they have anyway (developers.openai.com/api/docs, "Using
    GPT-5.4", parameter compatibility). By their names: a deployment on Azure may have any other."""
    fields = {name: value for name in ("temperature", "top_p") if (value := getattr(settings, name)) is not None}
    if openai and set(fields.values()) - {1} and _reasons(settings):
        flags = " and ".join(f"--{name}" for name in fields)
        raise UsageError(f"{flags}: {settings.model} takes no sampling settings while it reasons; leave them out.")
    return fields


def _reasons(settings: ModelSettings) -> bool:
    """Whether an OpenAI model is known to reason with these settings."""
    found = _REASONER.match(settings.model.removeprefix("ft:"))
    if not found or "reasoning" in settings.extra_body:
        return False
    if not found["major"]:
        return True
    version = (int(found["major"]), int(found["minor"] or 0))
    if version <= (5, 0):  # it cannot be switched off
        return version == (5, 0)
    off = settings.reasoning_disabled or settings.reasoning_effort == "none"
    return not off and (bool(settings.reasoning_effort) or version >= _REASONS_UNASKED)


def _reasoning_fields(host: Host, settings: ModelSettings, *, reasons: bool) -> Extras:
    """`reasoning`, a field of the API itself. At OpenAI with a summary of it: nothing else of it is ever shown."""
    effort = settings.reasoning_effort
    if effort and effort not in EFFORTS:
        raise UsageError(f"--reasoning_effort {effort!r} is none of: {', '.join(EFFORTS)}.")
    if settings.reasoning_disabled or effort == "none":
        off: Extras = {"reasoning": {"effort": "none"}} if reasons else {}
        return {**off, **(host.no_reasoning or {})} if host is LOCAL else off  # llama.cpp takes what its chat API does
    if effort and effort not in OWN_EFFORTS:
        raise UsageError(f"--reasoning_effort {effort!r}: the Responses API documents only {', '.join(OWN_EFFORTS)}.")
    reasoning = {"effort": effort} if effort else {}
    if is_openai(host) and reasons:
        reasoning["summary"] = "auto"
    return {"reasoning": reasoning} if reasoning else {}
