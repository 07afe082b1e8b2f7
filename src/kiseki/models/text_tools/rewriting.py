"""A conversation with tools written as one without: what an endpoint is sent that knows no tools.

The tools are told in the system prompt, calls are a part of what the assistant said, the results of one turn are one message of
the user. A turn that the model itself wrote in this way goes back as it wrote it (`SAID`), so that the next prompt goes on with
what was sampled; others, such as another model's, are written anew. Rewriting a longer conversation only adds to what rewriting
its beginning gave, as long as that was not cut between two results of one turn, so that `ChatRequest.encoded` still holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from kiseki.models.base import ToolSchema
from kiseki.trajectory.types import Message, ToolCall

SAID, SAID_REASONING = "said", "said_reasoning"
"""Keys in `provider_fields`, of a turn that would be written otherwise than the model wrote it: the reply's text as it came, and
the reasoning that came beside it, where there was any."""


class Reading(NamedTuple):
    """What a reply's text says."""

    content: str
    calls: tuple[ToolCall, ...] = ()
    format: str = ""
    """Of the calls, as `ModelCall.tool_calls_as` has it."""
    thought: str = ""


class Mode(NamedTuple):
    """One way to say in text what an API has fields for."""

    prompt: Callable[[tuple[ToolSchema, ...]], str]
    """What the system prompt says of the tools."""
    schema: Callable[[tuple[ToolSchema, ...]], msgspec.Raw]
    """What replies are held to; empty for nothing."""
    write_turn: Callable[[Message], str]
    """An assistant message with its calls."""
    write_results: Callable[[Sequence[Message]], str]
    """The results of one turn."""
    read: Callable[[str, tuple[ToolSchema, ...]], Reading]
    writes_answers: bool
    """Whether an answer without calls has a form too."""


def rewrite(messages: Sequence[Message], mode: Mode, prompt: str) -> tuple[Message, ...]:
    """The messages without tool calls and results. `prompt`: what is said of the tools; "" where there are none."""
    written: list[Message] = []
    results: list[Message] = []
    if prompt:
        own = messages[0].content if messages and messages[0].role == "system" else ""
        written.append(Message("system", f"{prompt}\n\n{own}" if own else prompt))
        messages = messages[1:] if messages and messages[0].role == "system" else messages
    for message in messages:
        if message.role == "tool":
            results.append(message)
            continue
        if results:
            written.append(_told(results, mode))
            results = []
        if message.role == "assistant" and (message.tool_calls or (prompt and mode.writes_answers)):
            message = _as_said(message) if SAID in message.provider_fields else _anew(message, mode)
        written.append(message)
    if results:
        written.append(_told(results, mode))
    return tuple(written)


def with_said(message: Message, said: Message, mode: Mode) -> Message:
    """The message that was read of `said`, a reply as it came; with its text, where writing the message would give another."""
    written = _anew(message, mode) if message.tool_calls or mode.writes_answers else message
    if (written.content, written.reasoning) == (said.content, said.reasoning):
        return message
    kept = {**message.provider_fields, SAID: said.content}
    if said.reasoning:
        kept[SAID_REASONING] = said.reasoning
    return msgspec.structs.replace(message, provider_fields=kept)


def _as_said(message: Message) -> Message:
    kept = message.provider_fields
    return msgspec.structs.replace(message, content=kept[SAID], reasoning=kept.get(SAID_REASONING, ""), tool_calls=())


def _anew(message: Message, mode: Mode) -> Message:
    kept = "" if mode.writes_answers else message.reasoning
    return msgspec.structs.replace(message, content=mode.write_turn(message), reasoning=kept, tool_calls=())


def _told(results: Sequence[Message], mode: Mode) -> Message:
    """As the user's words, but with the id of a call: what the user has asked is told from it."""
    return Message("user", mode.write_results(results), tool_call_id=results[0].tool_call_id)
