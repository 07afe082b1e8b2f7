"""The bytes of the OpenAI chat API: conversation to request body, answer to reply. Pure, no I/O.

What goes back to the server of an assistant message: its content, its tool calls, its `provider_fields` as they came, and its
reasoning under the names that the host wants it back in (`Host.echo`). Arguments that are no JSON object go back as
`{"_invalid_arguments": "<raw text>"}`, since many servers' chat templates fail on anything but an object; the record keeps
the raw text.

What comes back is read leniently (`Any` where servers differ), and everything textual is cleaned once, here.

Token ids stand where vLLM puts them (`prompt_token_ids` of the answer, `token_ids` of the choice), or SGLang (`prompt_token_ids`
and `response_token_ids` of the choice); logprobs, with both, where OpenAI has them (`logprobs.content[].logprob`).
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from kiseki.errors import BadResponse
from kiseki.models.base import ChatReply, ToolSchema
from kiseki.models.endpoints import Host
from kiseki.trajectory.reasoning import join_reasoning, native_reasoning, split_content, split_inline
from kiseki.trajectory.text import clean_text
from kiseki.trajectory.types import CallTokens, Message, ModelCall, ToolCall, Usage

INVALID_ARGUMENTS = "_invalid_arguments"
CALL_EXTRAS = "tool_call_extras"
"""Key in `provider_fields`: by position, what a tool call carried beyond OpenAI's fields (Gemini's thought signatures are
in `extra_content`) and must carry again."""

encode = msgspec.json.Encoder().encode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class WireFunction(msgspec.Struct):
    name: Any = None
    arguments: Any = None


class WireToolCall(msgspec.Struct):
    id: Any = None
    function: WireFunction | None = None
    index: Any = None
    extra_content: Any = None


class WireMessage(msgspec.Struct):
    """A whole message, or one delta of it."""

    content: Any = None
    refusal: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    reasoning_details: Any = None
    thinking: Any = None
    tool_calls: list[WireToolCall] | None = None
    function_call: WireFunction | None = None


class WireChoice(msgspec.Struct):
    message: WireMessage | None = None
    delta: WireMessage | None = None
    finish_reason: Any = None
    error: Any = None
    token_ids: Any = None
    logprobs: Any = None
    prompt_token_ids: Any = None
    response_token_ids: Any = None


class WireUsage(msgspec.Struct):
    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    completion_tokens_details: dict[str, Any] | None = None
    prompt_tokens_details: dict[str, Any] | None = None
    cost: Any = None


class WireCompletion(msgspec.Struct):
    """An answer, or one chunk of a streamed one."""

    id: Any = None
    model: Any = None
    provider: Any = None
    choices: list[WireChoice] | None = None
    usage: WireUsage | None = None
    error: Any = None
    prompt_token_ids: Any = None


_decode_completion = msgspec.json.Decoder(WireCompletion).decode


def decode_completion(body: bytes) -> WireCompletion:
    """`body` as an answer or a chunk. Raises BadResponse where it is none."""
    try:
        return _decode_completion(body)
    except msgspec.DecodeError as error:  # ValidationError included
        try:
            # Lone surrogates, NaN and broken UTF-8 are no JSON to msgspec, yet servers send them.
            loose = json.loads(body.decode("utf-8-sig", "replace"))
            return msgspec.convert(loose, WireCompletion)
        except (ValueError, RecursionError, msgspec.ValidationError):
            raise BadResponse(f"The answer is no chat completion ({error}): {excerpt(body)}") from None


IMAGE_SIZE = 4_500
"""Bytes that an image counts in place of its base64 where a request's tokens are estimated: about 1,500 tokens, as models with a
longest side of 2,048 pixels take (85 to 1,600, by tile or by area)."""
MAX_ANSWER = 64_000_000
"""Bytes of an answer, or characters of a streamed one: a hundred times what any model writes in one reply, so a server that sends
more does not end, and would take the other rollouts' memory."""
TOO_LARGE = f"The answer has more than {MAX_ANSWER // 1_000_000} MB."
EXCERPT_CHARS = 500
"""Of an endpoint's own words in an error message."""


def excerpt(body: bytes) -> str:
    """The beginning of an answer, to be shown (the client cuts it further, after it masked the key)."""
    text = clean_text(body[: EXCERPT_CHARS * 12].decode("utf-8", "replace")).strip()
    return text[: EXCERPT_CHARS * 3] or "(empty)"


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
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.content}
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role != "assistant":
        return wire
    extras: list[Any] = []
    if message.provider_fields:
        wire.update(message.provider_fields)
        extras = wire.pop(CALL_EXTRAS, extras)
    if message.reasoning and "reasoning_details" not in wire:
        for name in host.echo:
            wire[name] = message.reasoning
    if message.tool_calls:
        calls = wire["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": object_text(call.arguments)},
            }
            for call in message.tool_calls
        ]
        for call_wire, extra in zip(calls, extras, strict=False):
            if extra is not None:
                call_wire["extra_content"] = extra
        if not message.content:
            wire["content"] = None
    return wire


def wire_with_images(message: Message, host: Host, images: tuple[str, ...]) -> dict[str, Any]:
    """A message with images (`data:` URIs) behind its text."""
    shown = [{"type": "image_url", "image_url": {"url": each}} for each in images]
    return {**wire_message(message, host), "content": [{"type": "text", "text": message.content}, *shown]}


def object_text(arguments: str) -> str:
    """`arguments` where they are a JSON object, else an object that holds them as text; none at all is an empty object."""
    try:
        _decode_object(arguments)
    except msgspec.DecodeError:
        if not arguments.strip():
            return "{}"
        return encode({INVALID_ARGUMENTS: arguments}).decode()
    return arguments


def reply_of(answer: WireCompletion, *, started: float, seconds: float, capture_tokens: bool = False) -> ChatReply:
    """The reply that a whole answer carries, with its token ids where those are wanted. Raises BadResponse where it has no
    choice, or an empty one.

    Errors that the answer carries are the caller's (`failures.error_inside`).
    """
    if not answer.choices or answer.choices[0].message is None:
        raise BadResponse("The answer has no choices.")
    choice = answer.choices[0]
    wire = choice.message
    assert wire is not None
    finish = choice.finish_reason if isinstance(choice.finish_reason, str) else ""
    calls, extras = _tool_calls(wire)
    content, parts_reasoning = split_content(wire.content)
    native = parts_reasoning
    if wire.reasoning or wire.reasoning_content or wire.reasoning_details or wire.thinking:
        native = join_reasoning(parts_reasoning, native_reasoning(_reasoning_fields(wire)))
    content, inline = split_inline(content, cut_short=finish == "length" or bool(calls), has_native=bool(native))
    if not content and isinstance(wire.refusal, str):
        content = wire.refusal
    reasoning = join_reasoning(native, inline)
    if not calls and not reasoning and not content.strip() and finish not in ("length", "content_filter"):
        raise BadResponse(f"The reply is empty (finish_reason {finish or 'absent'}).")
    kept: dict[str, Any] = {}
    if isinstance(wire.reasoning_details, list) and wire.reasoning_details:
        kept["reasoning_details"] = wire.reasoning_details
    if extras:
        kept[CALL_EXTRAS] = extras
    return ChatReply(
        Message(
            "assistant",
            clean_text(content),
            clean_text(reasoning),
            calls,
            provider_fields=_cleaned(kept) if kept else {},
        ),
        ModelCall(
            started,
            seconds,
            clean_text(finish),
            _usage(answer.usage),
            answer.usage is not None,
            answer.usage is not None and isinstance(answer.usage.cost, int | float),
            _string(answer.model),
            _string(answer.provider),
            _string(answer.id),
            tokens=_tokens(answer) if capture_tokens else None,
        ),
    )


def _tokens(answer: WireCompletion) -> CallTokens | None:
    """The ids of a whole answer; None where it has none, or fewer than its usage counts: a part would be taken for the whole."""
    assert answer.choices
    choice = answer.choices[0]
    prompt = _ids(answer.prompt_token_ids) or _ids(choice.prompt_token_ids)
    completion = _ids(choice.token_ids if choice.token_ids is not None else choice.response_token_ids)
    if not prompt or completion is None or len(completion) < _usage(answer.usage).completion_tokens:
        return None
    return CallTokens(prompt, completion, _logprobs(choice.logprobs, len(completion)))


def _ids(value: Any) -> tuple[int, ...] | None:
    """Token ids as the server gave them; None for anything that is not a list of them."""
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        return None
    return tuple(value) if not value or (min(value) >= 0 and max(value) < 2**31) else None


def _logprobs(value: Any, count: int) -> tuple[float, ...]:
    """One for each of `count` ids; none at all where any is missing."""
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(content, list) or len(content) != count:
        return ()
    found = [each.get("logprob") if isinstance(each, dict) else None for each in content]
    numbers = tuple(float(each) for each in found if isinstance(each, int | float) and -MOST < each < MOST)
    return numbers if len(numbers) == count else ()


def _reasoning_fields(wire: WireMessage) -> dict[str, Any]:
    return {
        "reasoning": wire.reasoning,
        "reasoning_content": wire.reasoning_content,
        "thinking": wire.thinking,
        "reasoning_details": wire.reasoning_details,
    }


def _tool_calls(wire: WireMessage) -> tuple[tuple[ToolCall, ...], list[Any]]:
    """The calls, and what each carries beyond OpenAI's fields (an empty list where none does)."""
    if wire.tool_calls:
        calls = wire.tool_calls
    elif wire.function_call is not None and wire.function_call.name:
        calls = [WireToolCall(function=wire.function_call)]
    else:
        return (), []
    extras = [call.extra_content for call in calls]
    return tuple(_tool_call(call) for call in calls), extras if any(extras) else []


def _tool_call(call: WireToolCall) -> ToolCall:
    function = call.function or WireFunction()
    return ToolCall(_string(call.id), _string(function.name), arguments_text(function.arguments))


def arguments_text(arguments: Any) -> str:
    """Arguments as JSON text, however the server gave them."""
    if isinstance(arguments, str):
        return clean_text(arguments)
    return "" if arguments is None else encode(_cleaned(arguments)).decode()


def _string(value: Any) -> str:
    if isinstance(value, str):
        return clean_text(value)
    return "" if value is None else str(value)


def _cleaned(value: Any) -> Any:
    """`value` with every string in it cleaned."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean_text(key): _cleaned(item) for key, item in value.items()}
    return value


MOST = 2**53
"""Larger numbers are no counts, and no float holds them exactly."""


def _usage(wire: WireUsage | None) -> Usage:
    if wire is None:
        return Usage()
    return Usage(
        int(_number(wire.prompt_tokens)),
        int(_number(wire.completion_tokens)),
        int(_number((wire.completion_tokens_details or {}).get("reasoning_tokens"))),
        int(_number((wire.prompt_tokens_details or {}).get("cached_tokens"))),
        float(_number(wire.cost)),
    )


def _number(value: Any) -> int | float:
    """A count or an amount within what every store can hold; 0 for anything else."""
    return max(0, min(value, MOST)) if isinstance(value, int | float) else 0
