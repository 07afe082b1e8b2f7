"""Calls that an endpoint left in the text of its reply: it has no parser for the model's format, or was started without."""

from __future__ import annotations

import msgspec

from kiseki.models.base import ChatReply, ToolSchema
from kiseki.models.text_tools.parsing import may_hold_calls, parse
from kiseki.models.text_tools.rewriting import Reading
from kiseki.trajectory.reasoning import join_reasoning, split_inline


def rescue(reply: ChatReply, tools: tuple[ToolSchema, ...]) -> ChatReply:
    """The reply with the calls that stand in its text, where it has no others; the same reply where there are none."""
    if not tools or reply.message.tool_calls or not may_hold_calls(reply.message.content):
        return reply
    return with_reading(reply, Reading(*parse(reply.message.content, tools)))


def with_reading(reply: ChatReply, reading: Reading) -> ChatReply:
    """The reply as its text was read."""
    message, call = reply.message, reply.call
    content, reasoning = reading.content, join_reasoning(message.reasoning, reading.thought)
    if reading.calls:
        # reasoning that no tag ended was ended by the calls
        content, inline = split_inline(content, cut_short=True, has_native=bool(reasoning))
        reasoning = join_reasoning(reasoning, inline)
        finish = "tool_calls" if call.finish_reason == "stop" else call.finish_reason
        call = msgspec.structs.replace(call, finish_reason=finish, tool_calls_as=reading.format)
    elif (content, reasoning) == (message.content, message.reasoning):
        return reply
    message = msgspec.structs.replace(message, content=content, reasoning=reasoning, tool_calls=reading.calls)
    return msgspec.structs.replace(reply, message=message, call=call)
