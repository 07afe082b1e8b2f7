"""Replies as they are read behind an endpoint: in the modes `hermes` and `json`, and native ones with calls in the text."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import msgspec
import pytest

from kiseki.models.base import ChatReply, ChatRequest, RateInfo, ToolSchema
from kiseki.models.text_tools.client import TextTools
from kiseki.models.text_tools.rescue import rescue
from kiseki.trajectory.types import Message, ModelCall, ToolCall

TOOLS = (ToolSchema("weather", "", msgspec.Raw(b'{"type":"object","properties":{"city":{"type":"string"}}}')),)
PARIS = ToolCall("", "weather", '{"city": "Paris"}')
TAGGED = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
ENTRY = '{"name": "weather", "arguments": {"city": "Paris"}}'


def reply_of(content: str, finish: str = "stop", reasoning: str = "", calls: tuple[ToolCall, ...] = ()) -> ChatReply:
    return ChatReply(Message("assistant", content, reasoning, calls), ModelCall(1.0, 2.0, finish))


class Endpoint:
    def __init__(self, reply: ChatReply) -> None:
        self.reply = reply

    def encode(self, request: ChatRequest) -> tuple[Any, int]:
        return b"", 0

    async def send(self, encoded: Any) -> tuple[ChatReply, RateInfo | None]:
        return self.reply, None

    async def close(self) -> None:
        pass


def read(mode: Literal["hermes", "json"], reply: ChatReply, tools: tuple[ToolSchema, ...] = TOOLS) -> ChatReply:
    client = TextTools(Endpoint(reply), mode)
    return asyncio.run(client.send(client.encode(ChatRequest((Message("user", "?"),), tools))[0]))[0]


JSON_REPLIES = [
    (f'{{"thought": "Look.", "tool_calls": [{ENTRY}]}}', "", "Look.", (PARIS,)),
    (f'{{"thought": "", "tool_calls": [{ENTRY}, {ENTRY}]}}', "", "", (PARIS, PARIS)),
    ('{"thought": "Known.", "answer": "It is \\"clear\\"."}', 'It is "clear".', "Known.", ()),
    ('```json\n{"thought": "Known.", "answer": "Yes."}\n```', "Yes.", "Known.", ()),
    ('{"answer": {"a": [1]}}', '{"a": [1]}', "", ()),
    ('{"thought": "t", "more": [1], "answer": "Yes."} And so on.', "Yes.\nAnd so on.", "t", ()),
    # cut off
    ('{"thought": "I was think', "", "I was think", ()),
    ('{"thought": "t", "answer": "It is \\u00e9t\\u00', "It is ét", "t", ()),
    ('{"thought": "t", "answer": "ends in \\', "ends in ", "t", ()),
    ('{"thought": "t", "answer": "ends in \\ud83d\\ude', "ends in �", "t", ()),
    ('{"thought": "t", "tool_calls": [', "", "t", ()),
    (f'{{"thought": "t", "tool_calls": [{ENTRY}', "", "t", (PARIS,)),
    (f'{{"thought": "t", "tool_calls": [{ENTRY}\n,\n', "", "t", (PARIS,)),
    (
        f'{{"thought": "t", "tool_calls": [{ENTRY}, {{"name": "weather", "argum',
        "",
        "t",
        (PARIS, ToolCall("", "weather", '{"name": "weather", "argum')),
    ),
    # not of this form
    ("It is clear.", "It is clear.", "", ()),
    ("", "", "", ()),
    ('{"other": 1}', '{"other": 1}', "", ()),
    ("{", "{", "", ()),
    (TAGGED, "", "", (PARIS,)),
    (ENTRY, "", "", (PARIS,)),
]


@pytest.mark.parametrize(("content", "answer", "thought", "calls"), JSON_REPLIES)
def test_json(content: str, answer: str, thought: str, calls: tuple[ToolCall, ...]) -> None:
    message = (read("json", reply_of(content, finish="length"))).message
    assert (message.content, message.reasoning, message.tool_calls) == (answer, thought, calls)


def test_a_thought_follows_native_reasoning() -> None:
    message = (read("json", reply_of('{"thought": "Then this.", "answer": "Yes."}', reasoning="First this."))).message
    assert (message.content, message.reasoning) == ("Yes.", "First this.\n\nThen this.")


@pytest.mark.parametrize("mode", ["hermes", "json"])
@pytest.mark.parametrize(
    ("finish", "then"), [("stop", "tool_calls"), ("length", "length"), ("", ""), ("tool_calls", "tool_calls")]
)
def test_why_it_ended(mode: Literal["hermes", "json"], finish: str, then: str) -> None:
    reply = read(mode, reply_of(f"So.\n{TAGGED}", finish))
    assert (reply.message.content, reply.message.tool_calls) == ("So.", (PARIS,))
    assert (reply.call.finish_reason, reply.call.tool_calls_as) == (then, "hermes")


@pytest.mark.parametrize("mode", ["hermes", "json"])
def test_calls_that_the_endpoint_read_itself_stay(mode: Literal["hermes", "json"]) -> None:
    reply = reply_of(TAGGED, "tool_calls", calls=(PARIS,))
    assert read(mode, reply) is reply


@pytest.mark.parametrize("mode", ["hermes", "json"])
def test_without_tools_nothing_is_read(mode: Literal["hermes", "json"]) -> None:
    for content in (TAGGED, '{"answer": "Yes."}'):
        reply = reply_of(content)
        assert read(mode, reply, ()) is reply


RESCUED = [
    (TAGGED, "hermes"),
    (ENTRY, "llama3_json"),
    ('[TOOL_CALLS]weather[ARGS]{"city": "Paris"}', "mistral"),
    ("<function=weather><parameter=city>Paris</parameter></function>", "qwen3_coder"),
    ("<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>", "glm45"),
]


@pytest.mark.parametrize(("content", "name"), RESCUED)
def test_calls_in_the_text_of_a_native_reply(content: str, name: str) -> None:
    reply = rescue(reply_of(content), TOOLS)
    assert (reply.message.content, reply.message.tool_calls, reply.call.tool_calls_as) == ("", (PARIS,), name)
    assert reply.call.finish_reason == "tool_calls"


ORDINARY = [
    "It is clear.",
    "",
    "<b>bold</b> and {braces}",
    '{"name": "Ann", "parameters": {}}',
    f"Write `{ENTRY}`.",
    f"```\n{TAGGED}\n```",
]


@pytest.mark.parametrize("content", ORDINARY)
def test_any_other_reply_is_left_alone(content: str) -> None:
    reply = reply_of(content)
    assert rescue(reply, TOOLS) is reply


def test_a_native_call_or_no_tools_is_left_alone() -> None:
    for reply, tools in ((reply_of(TAGGED, calls=(PARIS,)), TOOLS), (reply_of(TAGGED), ())):
        assert rescue(reply, tools) is reply


def test_reasoning_that_only_the_call_ended() -> None:
    message = rescue(reply_of(f"<think>\nI should look.\n{TAGGED}"), TOOLS).message
    assert (message.content, message.reasoning, message.tool_calls) == ("", "I should look.", (PARIS,))


def test_what_is_read_can_be_written() -> None:
    message = rescue(reply_of('<tool_call>\n{"name": "weather", "arguments": {"city": "\\ud800"}}\n</tool_call>'), TOOLS).message
    assert json.loads(msgspec.json.encode(message))["tool_calls"][0]["name"] == "weather"
