"""A conversation with tools written as one without: what an endpoint is sent that knows no tools.

The tools are told in the system prompt, calls are a part of what the assistant said, the results of one turn are one message of
the user. Rewriting a longer conversation only adds to what rewriting its beginning gave, as long as that was not cut between two
results of one turn, so that `ChatRequest.encoded` still holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from kiseki.models.base import ToolSchema
from kiseki.trajectory.types import Message, ToolCall


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
            written.append(Message("user", mode.write_results(results)))
            results = []
        if message.role == "assistant" and (message.tool_calls or (prompt and mode.writes_answers)):
            kept = "" if mode.writes_answers else message.reasoning
            message = msgspec.structs.replace(message, content=mode.write_turn(message), reasoning=kept, tool_calls=())
        written.append(message)
    if results:
        written.append(Message("user", mode.write_results(results)))
    return tuple(written)
