"""What an answer of the OpenAI chat API says, as a reply. Pure, no I/O.

It is read leniently (`Any` where servers differ), and everything textual is cleaned once, here.

Token ids stand where vLLM puts them (`prompt_token_ids` of the answer, `token_ids` of the choice), or SGLang (`prompt_token_ids`
and `response_token_ids` of the choice); logprobs, with both, where OpenAI has them (`logprobs.content[].logprob`). llama.cpp
gives no ids of the prompt; the reply's are in `__verbose.tokens`, and in each entry of its logprobs.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from kiseki.errors import BadResponse, ProviderError, ProviderOverloaded
from kiseki.models.base import ChatReply
from kiseki.models.dialects.base import MOST, arguments_text, cleaned, excerpt, number, string
from kiseki.models.failures import error_of_object
from kiseki.models.hosts import DETAILS
from kiseki.trajectory.reasoning import join_reasoning, native_reasoning, split_content, split_inline
from kiseki.trajectory.text import clean_text
from kiseki.trajectory.types import CallTokens, Message, ModelCall, ToolCall, Usage

CALL_EXTRAS = "tool_call_extras"
"""Key in `provider_fields`: by position, what a tool call carried beyond OpenAI's fields (Gemini's thought signatures are
in `extra_content`) and must carry again."""


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
    total_tokens: Any = None
    completion_tokens_details: dict[str, Any] | None = None
    prompt_tokens_details: dict[str, Any] | None = None
    cost: Any = None
    cached_tokens: Any = None
    """Moonshot's place for them."""
    prompt_cache_hit_tokens: Any = None
    """DeepSeek's place for them."""
    reasoning_tokens: Any = None
    """SGLang's place for them."""


class WireCompletion(msgspec.Struct):
    """An answer, or one chunk of a streamed one."""

    id: Any = None
    model: Any = None
    provider: Any = None
    choices: list[WireChoice] | None = None
    usage: WireUsage | None = None
    error: Any = None
    prompt_token_ids: Any = None
    verbose: Any = msgspec.field(default=None, name="__verbose")


_decode_completion = msgspec.json.Decoder(WireCompletion).decode


def decode_completion(body: bytes) -> WireCompletion:
    """`body` as an answer or a chunk. Raises BadResponse where it is none."""
    try:
        return _decode_completion(body)
    except (msgspec.DecodeError, RecursionError) as error:  # ValidationError included
        try:
            # Lone surrogates, NaN and broken UTF-8 are no JSON to msgspec, yet servers send them.
            loose = json.loads(body.decode("utf-8-sig", "replace"))
            return msgspec.convert(loose, WireCompletion)
        except (ValueError, RecursionError, msgspec.ValidationError):
            raise BadResponse(f"The answer is no chat completion ({error}): {excerpt(body)}") from None


def reply_of(answer: WireCompletion, *, started: float, seconds: float, capture_tokens: bool = False) -> ChatReply:
    """The reply that a whole answer carries, with its token ids where those are wanted. Raises the error that it carries
    instead, and BadResponse where it has no choice, or an empty one."""
    if (error := _error_inside(answer)) is not None:
        raise error
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
        kept[DETAILS] = wire.reasoning_details
    if extras:
        kept[CALL_EXTRAS] = extras
    return ChatReply(
        Message(
            "assistant",
            clean_text(content),
            clean_text(reasoning),
            calls,
            provider_fields=cleaned(kept) if kept else {},
        ),
        ModelCall(
            started,
            seconds,
            clean_text(finish),
            _usage(answer.usage),
            answer.usage is not None,
            answer.usage is not None and isinstance(answer.usage.cost, int | float),
            string(answer.model),
            string(answer.provider),
            string(answer.id),
            tokens=_tokens(answer) if capture_tokens else None,
        ),
    )


def _error_inside(answer: WireCompletion) -> ProviderError | None:
    """The error at its top or in its first choice; None if it carries none."""
    error = answer.error
    if not error and answer.choices:
        choice = answer.choices[0]
        error = choice.error
        if not error and choice.finish_reason == "error":
            return ProviderOverloaded("The endpoint ended the reply with finish_reason error and no words.", status=200)
    return error_of_object(error) if error else None


def _tokens(answer: WireCompletion) -> CallTokens | None:
    """The ids of a whole answer, the prompt's where they are there too; None where those of the reply are not, or are fewer than
    its usage counts: a part would be taken for the whole."""
    assert answer.choices
    choice = answer.choices[0]
    prompt = _ids(answer.prompt_token_ids) or _ids(choice.prompt_token_ids) or ()
    completion = _ids(choice.token_ids if choice.token_ids is not None else choice.response_token_ids)
    if completion is None:
        completion = _ids_of_llama_cpp(answer.verbose, choice.logprobs)
    if completion is None or len(completion) < _usage(answer.usage).completion_tokens:
        return None
    return CallTokens(prompt, completion, _logprobs(choice.logprobs, completion))


def _ids_of_llama_cpp(verbose: Any, logprobs: Any) -> tuple[int, ...] | None:
    """Where the answer was not streamed all that was sampled, else what has logprobs: no part of a character, and no end."""
    found = _ids(verbose.get("tokens")) if isinstance(verbose, dict) else None
    return found or _ids([each.get("id") if isinstance(each, dict) else None for each in _entries(logprobs)]) or None


def _ids(value: Any) -> tuple[int, ...] | None:
    """Token ids as the server gave them; None for anything that is not a list of them."""
    if not isinstance(value, list) or not all(type(each) is int for each in value):
        return None
    return tuple(value) if not value or (min(value) >= 0 and max(value) < 2**31) else None


def _logprobs(value: Any, ids: tuple[int, ...]) -> tuple[float, ...]:
    """One for each of `ids`; none at all where any is missing, or is another's (where entries have an id)."""
    content = _entries(value)
    if len(content) != len(ids):
        return ()
    found = [each if isinstance(each, dict) else {} for each in content]
    if any(each.get("id", token) != token for each, token in zip(found, ids, strict=True)):
        return ()
    numbers = tuple(float(n) for each in found if isinstance(n := each.get("logprob"), int | float) and -MOST < n < MOST)
    return numbers if len(numbers) == len(ids) else ()


def _entries(logprobs: Any) -> list[Any]:
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return content if isinstance(content, list) else []


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
    return ToolCall(string(call.id), string(function.name), arguments_text(function.arguments))


def _usage(wire: WireUsage | None) -> Usage:
    if wire is None:
        return Usage()
    prompt, completion = int(number(wire.prompt_tokens)), int(number(wire.completion_tokens))
    reasoning = int(number((wire.completion_tokens_details or {}).get("reasoning_tokens") or wire.reasoning_tokens))
    cached = (wire.prompt_tokens_details or {}).get("cached_tokens") or wire.cached_tokens or wire.prompt_cache_hit_tokens
    # xAI and Gemini count reasoning beside the completion, Gemini only within the total.
    beside = int(number(wire.total_tokens)) - prompt - completion
    if beside > 0 and reasoning in (0, beside):
        reasoning, completion = beside, completion + beside
    return Usage(prompt, completion, reasoning, int(number(cached)), float(number(wire.cost)))
