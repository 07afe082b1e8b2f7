"""The Anthropic Messages API (platform.claude.com/docs, "Messages"), as Anthropic has it and others beside their own: requests.

What goes back of an assistant message: its thinking exactly as it came (`THINKING` in `provider_fields`), its text, its tool
calls. Reasoning of other models does not: the API takes none without its signature.
Results of tools, and whatever else the user says after one another, are one message. A system message in the midst of a
conversation goes as the user's text, since there is no place for it. Images stand behind the text. Answers are read in
`anthropic_reply.py` and `anthropic_stream.py`; what each model documents stands in `anthropic_models.py`.

Marks for the prompt cache stand on the tools and the system prompt, which all rollouts share, on the last block, up to which the
next turn reads from the cache, and on the last block of the user's turn before, since a lookup goes only 20 blocks back.

`encode` is on the hot path: it encodes each message of a conversation once, as the blocks that it adds, with what ends the
message before it where the role changes; the end of the body and the marks are put on at each call.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any
from urllib.parse import urlsplit

import msgspec

from kiseki.errors import UsageError
from kiseki.models.base import ChatReply, ChatRequest, ToolSchema
from kiseki.models.dialects.anthropic_models import (
    ANTHROPIC,
    BINDING,
    INTERLEAVED,
    max_tokens_of,
    sampling_fields,
    thinking_fields,
    thinking_of,
)
from kiseki.models.dialects.anthropic_reply import THINKING, decode_answer, reply_of
from kiseki.models.dialects.anthropic_stream import StreamedMessage
from kiseki.models.dialects.base import IMAGE_SIZE, PerTools, encode
from kiseki.models.dialects.chat import are_said, object_text
from kiseki.models.endpoints import ModelSettings, name_of
from kiseki.models.hosts import LOCAL, OPENROUTER, Host, host_of
from kiseki.trajectory.types import Message

VERSION = "2023-06-01"
"""Of the API: the one that every host takes, and under which models that can still be given a temperature are."""
MARK = b',"cache_control":{"type":"ephemeral"}}'
"""Put over the `}` that ends a block."""
_CACHES_ITSELF = ("DeepSeek", "Moonshot", "Z.ai")
"""Hosts that ignore marks, or document none."""
_NOTHING_SAID = "(no message)"
"""The user's, before a conversation that begins with the assistant."""
_SYSTEM = b',"system":['
MOST_NAME = 64
"""Characters of a tool's name."""
_WRONG_IN_ID = re.compile(r"[^a-zA-Z0-9_-]")


class AnthropicDialect:
    """A `Dialect`."""

    def __init__(self, settings: ModelSettings) -> None:
        """Raises UsageError for values that are not valid and for flags that the host has no documented field for."""
        host = host_of(settings.base_url)
        _refuse_foreign(host, settings)
        thinking = thinking_of(host, settings.model)
        ours = host.name == ANTHROPIC
        self.takes_seed = False
        self.url = messages_url(settings.base_url)
        self._mark = b"}" if host.name in _CACHES_ITSELF else MARK
        most = max_tokens_of(host, settings)
        reasoning = thinking_fields(thinking, settings, most, controls=ours)
        thinks = reasoning.get("thinking", {}).get("type") in ("adaptive", "enabled")
        fields = {"model": settings.model, "max_tokens": most, **sampling_fields(host, thinking, settings, thinks=thinks)}
        if settings.stream:
            fields["stream"] = True
        fields |= {**reasoning, **settings.extra_body}
        self._head = encode(fields)[:-1]
        by_budget = fields.get("thinking", {}).get("type") == "enabled" and ours
        self._head_unthinking = encode({**fields, "thinking": {"type": "disabled"}})[:-1] if by_budget else b""
        # the effort and the schema stand in one object
        self._output_config = fields.pop("output_config", {})
        self._head_for_schema = encode(fields)[:-1]
        self._sends_schema = thinking.schema and (ours or host in (OPENROUTER, LOCAL)) and isinstance(self._output_config, dict)
        betas = [INTERLEAVED] if ours and thinks and not thinking.interleaves else []
        betas += [BINDING] if "block_binding" in reasoning.get("thinking", {}) else []
        self.headers = _headers(settings.api_key, ours, betas)
        self._tools = PerTools(self._encoded_tools)

    def encode(self, request: ChatRequest) -> tuple[bytes, int]:
        encoded, images, messages = request.encoded, request.images, request.messages
        for at in range(len(encoded), len(messages) - bool(images)):
            encoded.append(self._piece(messages[at], _open_role(messages, encoded)))
        pieces = list(encoded)
        if images:  # asked once: nothing grows on it, and nothing of it is kept
            pieces.append(self._piece(messages[-1], _open_role(messages, pieces), images))
        elif self._mark is MARK and request.tools:  # else it is asked once, and writing to the cache costs more than reading
            _mark_ends(messages, pieces)
        if (role := _open_role(messages, pieces)) in ("", "system"):
            pieces.append(self._piece(Message("user", _NOTHING_SAID), role))
        parts = [self._head_of(messages)]
        if request.json_schema and self._sends_schema:
            parts = [self._head_for_schema, b',"output_config":', self._with_schema(request.json_schema)]
        if request.tools:
            parts += (b',"tools":', self._tools.of(request.tools)[not pieces[0].startswith(_SYSTEM)])
        body = b"".join((*parts, *pieces, b"]}]}"))
        return body, len(body) - sum(map(len, images)) + IMAGE_SIZE * len(images)

    def _piece(self, message: Message, open_role: str, images: tuple[str, ...] = ()) -> bytes:
        """The blocks of `message`, with what must stand between them and the pieces before; nothing where it has no block."""
        if message.role == "system" and open_role in ("", "system"):
            if not message.content.strip():
                return b""
            start = b"}," if open_role else _SYSTEM
            return b'%b{"type":"text","text":%b' % (start, encode(message.content))  # its end is the next piece's
        blocks = b",".join(self._blocks(message, images))
        if not blocks:
            return b""
        role = _wire_role(message)
        if role == open_role:
            return b",%b" % blocks
        start = b"]},"
        if open_role in ("", "system"):
            start = (b"%b]" % self._mark if open_role else b"") + b',"messages":['
            if role == "assistant":
                start += b'{"role":"user","content":[%b]},' % _text(_NOTHING_SAID)
        return b'%b{"role":"%b","content":[%b' % (start, role.encode(), blocks)

    def _blocks(self, message: Message, images: tuple[str, ...]) -> list[bytes]:
        if message.role == "assistant":
            return self._assistant_blocks(message)
        if message.role == "tool":
            result = {"type": "tool_result", "tool_use_id": wire_id(message.tool_call_id)}
            if message.content.strip():
                result["content"] = message.content
            return [encode(result)]
        return [*([_text(message.content)] if message.content.strip() else ()), *map(_image, images)]

    def _assistant_blocks(self, message: Message) -> list[bytes]:
        thinking = message.provider_fields.get(THINKING, ())
        calls = [_call(call.id, call.name, call.arguments) for call in message.tool_calls]
        apart = are_said([block["text"] for block in thinking if block["type"] == "text"], message.content)
        left = [_text(message.content)] if message.content.strip() else []
        blocks: list[bytes] = []
        for block in thinking:
            if block["type"] == "tool_use":
                blocks += calls[:1]
                del calls[:1]
            elif block["type"] == "text":
                blocks += [encode(block)] if apart else left
                left = []
            else:
                blocks.append(encode(block))
        rest = left + calls
        if not rest and thinking and thinking[-1]["type"] not in ("text", "tool_use"):
            rest.append(_text(_NOTHING_SAID))  # thinking must not be the last
        return blocks + rest

    def _with_schema(self, schema: msgspec.Raw) -> bytes:
        taken = _without_limits(msgspec.json.decode(schema))
        return encode({"format": {"type": "json_schema", "schema": taken}, **self._output_config})

    def _head_of(self, messages: tuple[Message, ...]) -> bytes:
        """Where a model thinks by a budget, a turn that goes on after tool calls must have begun with thinking: without it where
        another model began it."""
        if self._head_unthinking and _goes_on_without_thinking(messages):
            return self._head_unthinking
        return self._head

    def _encoded_tools(self, tools: tuple[ToolSchema, ...]) -> tuple[bytes, bytes]:
        """Without a mark, and with one."""
        array = encode([{"name": t.name, "description": t.description, "input_schema": t.parameters} for t in tools])
        return array, array[:-2] + self._mark + b"]"

    def reply(self, body: bytes, started: float, seconds: float) -> ChatReply:
        return reply_of(decode_answer(body), started=started, seconds=seconds)

    def stream(self) -> StreamedMessage:
        return StreamedMessage()


def messages_url(base_url: str) -> str:
    """Where messages are posted: `/v1` is put in where the base is a host alone, or the `/anthropic` of another API's host."""
    base = base_url.rstrip("/")
    path = urlsplit(base).path
    return base + ("/v1/messages" if not path or path.endswith("/anthropic") else "/messages")


def wire_id(call_id: str) -> str:
    """A tool call's id as this API takes it: the same for the call and its result, and of no other."""
    if call_id and not _WRONG_IN_ID.search(call_id):
        return call_id
    return f"{_WRONG_IN_ID.sub('_', call_id)}_{blake2b(call_id.encode(), digest_size=6).hexdigest()}"


def _refuse_foreign(host: Host, settings: ModelSettings) -> None:
    name = name_of(host, settings)
    if settings.capture_tokens:
        raise UsageError(
            f"--capture_tokens: the Messages API of {name} gives no token ids; --api_mode=chat of vLLM or SGLang does."
        )
    if settings.providers_allowed or settings.providers_ignored or settings.providers_order or settings.provider_sort:
        raise UsageError(
            "--providers_allowed, --providers_ignored, --providers_order and --provider_sort are of OpenRouter's chat API; "
            f"the Messages API of {name} has no provider routing."
        )


def _headers(key: str, ours: bool, betas: list[str]) -> dict[str, str]:
    """Anthropic takes the key as `x-api-key`; of the others some document that, some a bearer token, some both."""
    headers = {"anthropic-version": VERSION}
    if key:
        headers["x-api-key"] = key
        if not ours:
            headers["Authorization"] = f"Bearer {key}"
    if betas:
        headers["anthropic-beta"] = ",".join(betas)
    return headers


def _wire_role(message: Message) -> str:
    return "assistant" if message.role == "assistant" else "user"


def _open_role(messages: tuple[Message, ...], pieces: list[bytes]) -> str:
    """Whose message the pieces leave open: `user` or `assistant`, `system` for that list of blocks, "" for nothing."""
    for at in range(len(pieces) - 1, -1, -1):
        if piece := pieces[at]:
            if messages[at].role == "system" and piece.startswith((_SYSTEM, b"},")):
                return "system"
            return _wire_role(messages[at])
    return ""


def _goes_on_without_thinking(messages: tuple[Message, ...]) -> bool:
    """Whether the turn under way has an answer with tool calls and without thinking of its own."""
    for message in reversed(messages):
        if message.role in ("user", "system"):
            return False
        if message.role == "assistant" and message.tool_calls and THINKING not in message.provider_fields:
            return True
    return False


def _without_limits(schema: Any) -> Any:
    """A schema without what structured outputs refuse: a greatest number of items, and objects that say nothing of further
    properties (platform.claude.com, "Structured outputs", "JSON Schema limitations")."""
    if isinstance(schema, list):
        return [_without_limits(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: _without_limits(each) for name, each in schema.items() if name != "maxItems"}
    if schema.get("type") == "object" and "properties" in schema:
        made.setdefault("additionalProperties", False)
    return made


def _mark_ends(messages: tuple[Message, ...], pieces: list[bytes]) -> None:
    """Mark the last block, and the last one that the user had said before the assistant's last message."""
    assistant_seen, marked = False, False
    for at in range(len(pieces) - 1, -1, -1):
        piece = pieces[at]
        if not piece or not piece.endswith(b"}"):
            continue
        assistant = messages[at].role == "assistant"
        if not marked or (assistant_seen and not assistant):
            pieces[at] = piece[:-1] + MARK
            if marked:
                return
            marked = True
        assistant_seen = assistant_seen or assistant


def _text(text: str) -> bytes:
    return encode({"type": "text", "text": text})


def _call(call_id: str, name: str, arguments: str) -> bytes:
    name = _WRONG_IN_ID.sub("_", name)[:MOST_NAME] or "unknown"  # another model may have made it up
    arguments = object_text(arguments)
    return encode({"type": "tool_use", "id": wire_id(call_id), "name": name, "input": msgspec.Raw(arguments.encode())})


def _image(uri: str) -> bytes:
    head, _, data = uri.partition(",")
    media_type = head.removeprefix("data:").partition(";")[0]
    return encode({"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}})
