"""The client against llama.cpp's own server with a real model: what a reply holds beside words, which are the model's affair."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kiseki.errors import AuthError, BadRequest, ContextLengthExceeded
from kiseki.models.base import ChatReply, ChatRequest, ToolSchema
from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import open_client
from kiseki.models.listing import Listings
from kiseki.models.smollm2 import CONTEXT, KEY_PREFIX, SMOLLM2, Server
from kiseki.models.text_tools.reply_schema import reply_schema
from kiseki.tools.toolsets import TOOLSETS, load_tools
from kiseki.trajectory.types import Message

HELLO = (Message("user", "Say hello."),)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


def ask(server: Server, *requests: ChatRequest, key: str = "", **fields: Any) -> list[ChatReply]:
    """The replies to requests that are made at once."""
    settings = server.settings(ModelSettings(SMOLLM2, **{"max_tokens": 6, "temperature": 0.0, **fields}))
    settings = msgspec.structs.replace(settings, api_key=key or settings.api_key)

    async def run() -> list[ChatReply]:
        client = open_client(settings)
        try:
            return [reply for reply, _ in await asyncio.gather(*(client.send(client.encode(each)[0]) for each in requests))]
        finally:
            await client.close()

    return asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_has_text_usage_and_the_reason_of_its_end(server: Server, stream: bool) -> None:
    first, again = (ask(server, ChatRequest(HELLO, seed=1), stream=stream)[0] for _ in range(2))

    assert first.message.content
    assert first.call.model == SMOLLM2
    assert first.call.finish_reason == "length"
    assert first.call.usage_reported
    assert first.call.usage.completion_tokens == 6
    assert 20 < first.call.usage.prompt_tokens < 60
    assert again.call.usage.cached_tokens == first.call.usage.prompt_tokens - 1  # the last one is always computed


def test_two_are_answered_at_once(server: Server) -> None:
    replies = ask(server, *(ChatRequest((Message("user", f"Count to {number}."),)) for number in (3, 4, 5)))
    assert all(reply.message.content for reply in replies)


@pytest.mark.parametrize("stream", [False, True])
def test_output_is_held_to_a_schema(server: Server, stream: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["plant", "animal"]}, "legs": {"type": "integer", "maximum": 8, "minimum": 0}},
        "required": ["kind", "legs"],
        "additionalProperties": False,
    }
    request = ChatRequest((Message("user", "What is a cat?"),), json_schema=msgspec.Raw(json.dumps(schema).encode()))
    (reply,) = ask(server, request, max_tokens=60, stream=stream)

    said = json.loads(reply.message.content)
    assert said["kind"] in ("plant", "animal")
    assert 0 <= said["legs"] <= 8


def test_the_schema_of_all_tools_is_one_that_it_takes(server: Server) -> None:
    tools = tuple(tool.schema for tool in load_tools([name for name in TOOLSETS if name != "search"]))
    (reply,) = ask(server, ChatRequest(HELLO, json_schema=reply_schema(tools)), max_tokens=20)
    assert '"thought"' in reply.message.content


@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_called_in_json(server: Server, stream: bool) -> None:
    """Or it answers: which of the two is the model's affair."""
    parameters = {"type": "object", "properties": {"legs": {"type": "integer"}}, "required": ["legs"]}
    tool = ToolSchema("count_legs", "Say how many legs there are.", msgspec.Raw(json.dumps(parameters).encode()))
    request = ChatRequest((Message("user", "Count the legs of two cats with count_legs."),), (tool,), seed=3)
    (reply,) = ask(server, request, max_tokens=200, stream=stream, tool_call_mode="json")

    assert reply.message.content or reply.message.tool_calls
    for call in reply.message.tool_calls:
        assert call.name == "count_legs"
        assert isinstance(json.loads(call.arguments)["legs"], int)
    assert reply.call.tool_calls_as == ("json" if reply.message.tool_calls else "")


@pytest.mark.parametrize("words", ["Say hello.", "Repeat exactly: 🚀 日本語 軌跡"])
def test_token_ids_are_those_that_were_sampled(server: Server, words: str) -> None:
    """Characters of several tokens have no logprobs there: then none are kept, rather than those of other tokens."""
    (reply,) = ask(server, ChatRequest((Message("user", words),)), capture_tokens=True, max_tokens=12)

    tokens = reply.call.tokens
    assert tokens is not None
    assert len(tokens.completion) == reply.call.usage.completion_tokens
    assert len(tokens.logprobs) in (0, len(tokens.completion))
    assert all(value <= 0 for value in tokens.logprobs)
    assert not tokens.whole  # the prompt's are not to be had


def test_a_reply_in_plain_ascii_has_logprobs(server: Server) -> None:
    (reply,) = ask(server, ChatRequest(HELLO), capture_tokens=True)
    assert reply.call.tokens is not None
    assert len(reply.call.tokens.logprobs) == 6


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_does_not_fit(server: Server, stream: bool) -> None:
    with pytest.raises(ContextLengthExceeded, match="exceeds the available context size"):
        ask(server, ChatRequest((Message("user", "hello " * CONTEXT),)), stream=stream)


def test_a_request_that_is_refused(server: Server) -> None:
    with pytest.raises(BadRequest, match="nonsense") as caught:
        ask(server, ChatRequest(HELLO, json_schema=msgspec.Raw(b'{"type":"nonsense"}')))
    assert not isinstance(caught.value, ContextLengthExceeded)


def test_nobody_without_the_key_is_answered(server: Server) -> None:
    with pytest.raises(AuthError):
        ask(server, ChatRequest(HELLO), key=f"{KEY_PREFIX}another")


def test_its_list_says_how_much_a_conversation_may_have(server: Server) -> None:
    asked = msgspec.structs.replace(server.settings(ModelSettings(SMOLLM2)), model="as any other endpoint's")
    assert Listings().of(asked).context_length == CONTEXT
