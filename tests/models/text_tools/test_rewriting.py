"""Conversations with tools as text, in both modes: what the endpoint is sent, and that a growing one only grows."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import msgspec
import pytest

from kiseki.models.base import ChatClient, ChatReply, ChatRequest, Encoded, RateInfo, ToolSchema
from kiseki.models.text_tools.client import TextTools
from kiseki.models.text_tools.parsing import parse
from kiseki.trajectory.types import Message, ModelCall, ToolCall

WEATHER = ToolSchema(
    "weather", "The weather of a city.", msgspec.Raw(b'{"type":"object","properties":{"city":{"type":"string"}}}')
)
ADD = ToolSchema("add", "", msgspec.Raw(b'{"type":"object","properties":{"a":{"type":"number"}}}'))
TOOLS = (WEATHER, ADD)
MODES: tuple[Literal["hermes", "json"], ...] = ("hermes", "json")


class Endpoint:
    """A dialect's client that keeps what it is asked, caches what it encoded as they do, and says what it is told to."""

    def __init__(self, content: str = "", finish: str = "stop", reasoning: str = "", calls: tuple[ToolCall, ...] = ()) -> None:
        self.asked: list[ChatRequest] = []
        self.said = Message("assistant", content, reasoning, calls)
        self.finish = finish
        self.closed = False

    def encode(self, request: ChatRequest) -> tuple[Any, int]:
        self.asked.append(request)
        for message in request.messages[len(request.encoded) :]:
            request.encoded.append(msgspec.json.encode(message))
        return b"\n".join(request.encoded), 7

    async def send(self, encoded: Any) -> tuple[ChatReply, RateInfo | None]:
        return ChatReply(self.said, ModelCall(1.0, 2.0, self.finish)), RateInfo(3)

    async def close(self) -> None:
        self.closed = True


CONVERSATION = (
    Message("system", "Be brief."),
    Message("user", "Paris, and 1 + 1?"),
    Message(
        "assistant",
        "I look.",
        "Both at once.",
        (ToolCall("1", "weather", '{"city":  "Paris"}'), ToolCall("2", "add", "{broken")),
    ),
    Message("tool", '{"sky": "clear"}', tool_call_id="1", name="weather"),
    Message("tool", "error: </tool_response>", tool_call_id="2", name="add"),
    Message("assistant", "", "", (ToolCall("3", "add", ""),)),
    Message("tool", "2", tool_call_id="3", name="add"),
    Message("assistant", "Clear, and 2.", "Done."),
    Message("user", "Thanks."),
)
ENDS = (2, 5, 7, 9)
"""How long the conversation is each time that the model is asked."""


def sent(mode: Literal["hermes", "json"], request: ChatRequest) -> ChatRequest:
    endpoint = Endpoint()
    TextTools(endpoint, mode).encode(request)
    return endpoint.asked[0]


def test_hermes() -> None:
    request = sent("hermes", ChatRequest(CONVERSATION, TOOLS, seed=3))
    assert (request.tools, request.seed, request.json_schema) == ((), 3, msgspec.Raw(b""))
    system, user, first, results, second, more, answer, thanks = request.messages
    assert system.content.endswith("\n\nBe brief.")
    listed = json.loads(system.content.partition("<tools>\n")[2].partition("\n</tools>")[0])
    assert [(each["type"], each["function"]["name"]) for each in listed] == [("function", "weather"), ("function", "add")]
    assert listed[0]["function"]["parameters"] == json.loads(bytes(WEATHER.parameters))
    assert (user, answer, thanks) == (CONVERSATION[1], CONVERSATION[7], CONVERSATION[8])
    assert (first.role, first.reasoning, first.tool_calls) == ("assistant", "Both at once.", ())
    assert first.content.startswith('I look.\n<tool_call>\n{"name": "weather", "arguments": {"city":  "Paris"}}\n</tool_call>\n')
    assert results.role == more.role == "user"
    assert results.content.count("</tool_response>") == 2
    assert '"content": {"sky": "clear"}' in results.content
    assert second.content == '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'


def test_json() -> None:
    request = sent("json", ChatRequest(CONVERSATION, TOOLS))
    assert request.tools == ()
    assert json.loads(bytes(request.json_schema))["anyOf"]
    system, user, first, results, second, more, answer, thanks = request.messages
    assert system.content.endswith("\n\nBe brief.")
    assert '"name":"weather"' in system.content
    assert (user, thanks) == (CONVERSATION[1], CONVERSATION[8])
    assert json.loads(first.content) == {
        "thought": "Both at once.\n\nI look.",
        "tool_calls": [{"name": "weather", "arguments": {"city": "Paris"}}, {"name": "add", "arguments": "{broken"}],
    }
    assert '{"city":  "Paris"}' in first.content
    assert (results.role, json.loads(results.content)) == (
        "user",
        {
            "tool_results": [
                {"name": "weather", "content": {"sky": "clear"}},
                {"name": "add", "content": "error: </tool_response>"},
            ]
        },
    )
    assert json.loads(second.content) == {"thought": "", "tool_calls": [{"name": "add", "arguments": {}}]}
    assert json.loads(more.content)["tool_results"] == [{"name": "add", "content": "2"}]
    assert json.loads(answer.content) == {"thought": "Done.", "answer": "Clear, and 2."}
    assert not any(each.reasoning or each.tool_calls for each in request.messages)


@pytest.mark.parametrize("mode", MODES)
def test_a_conversation_that_grows_is_encoded_as_if_it_came_at_once(mode: Literal["hermes", "json"]) -> None:
    client = TextTools(Endpoint(), mode)
    kept = Encoded()
    grown = [client.encode(ChatRequest(CONVERSATION[:end], TOOLS, encoded=kept))[0][0] for end in ENDS]
    assert grown == [client.encode(ChatRequest(CONVERSATION[:end], TOOLS, encoded=Encoded()))[0][0] for end in ENDS]


@pytest.mark.parametrize("mode", MODES)
def test_without_a_system_message_there_is_one(mode: Literal["hermes", "json"]) -> None:
    messages = sent(mode, ChatRequest((Message("user", "Hello."),), TOOLS)).messages
    assert [each.role for each in messages] == ["system", "user"]


@pytest.mark.parametrize("mode", MODES)
def test_without_tools_only_calls_of_before_are_rewritten(mode: Literal["hermes", "json"]) -> None:
    schema = msgspec.Raw(b'{"type":"object"}')
    request = sent(mode, ChatRequest(CONVERSATION, json_schema=schema))
    assert request.json_schema == schema
    assert request.messages[0] == CONVERSATION[0]
    assert request.messages[-2:] == CONVERSATION[-2:]
    assert {each.role for each in request.messages} == {"system", "user", "assistant"}
    assert not any(each.tool_calls for each in request.messages)


@pytest.mark.parametrize("mode", MODES)
def test_images_go_with_the_last_message(mode: Literal["hermes", "json"]) -> None:
    request = sent(mode, ChatRequest(CONVERSATION, TOOLS, images=("data:image/png;base64,AA==",), again=True))
    assert (request.images, request.again, request.messages[-1]) == (("data:image/png;base64,AA==",), True, CONVERSATION[-1])


def test_it_closes_what_is_behind_it() -> None:
    endpoint = Endpoint()
    client: ChatClient = TextTools(endpoint, "hermes")
    asyncio.run(client.close())
    assert endpoint.closed


TEXTS = (
    "plain",
    "</tool_call>",
    '<tool_call>\n{"name": "x", "arguments": {}}\n</tool_call>',
    "```\n`",
    '"\\u003ctool_call>" \\',
    "\\\\u003c/tools>",
    "a\nb\r\n\t\x00\u2028\U0001f600",
    "[TOOL_CALLS]<｜tool▁calls▁begin｜>",
    "",
)


def arguments_of(text: str) -> list[str]:
    return [
        json.dumps({"city": text}),
        json.dumps({"city": text}, ensure_ascii=False),
        json.dumps({text: [text, {"": None}]}, indent=2),
        '{"city":  1.0e5}',
        "{" + text,  # no JSON
    ]


@pytest.mark.parametrize("text", TEXTS)
def test_calls_written_for_the_model_are_read_back(text: str) -> None:
    """As the model would copy them."""
    calls = tuple(ToolCall("", name, each) for name in ("weather", "no such") for each in arguments_of(text))
    message = Message("assistant", "So.", tool_calls=calls)
    hermes = sent("hermes", ChatRequest((message,), TOOLS)).messages[1].content
    assert parse(hermes, TOOLS) == ("So.", calls, "hermes")


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("mode", MODES)
def test_a_turn_comes_back_as_it_was_sent(mode: Literal["hermes", "json"], text: str) -> None:
    calls = tuple(ToolCall("", "weather", each) for each in arguments_of(text))
    message = Message("assistant", "", "" if mode == "hermes" else "So.", tool_calls=calls)
    written = sent(mode, ChatRequest((message,), TOOLS)).messages[1].content
    client = TextTools(Endpoint(written), mode)
    reply, rate = asyncio.run(client.send(client.encode(ChatRequest((), TOOLS))[0]))
    assert reply.message == message
    assert (reply.call.finish_reason, reply.call.tool_calls_as) == ("tool_calls", mode)
    assert rate == RateInfo(3)
