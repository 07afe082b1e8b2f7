"""`--tool_call_mode=auto` and the others over a real connection: what is sent, and what becomes of the reply."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from kiseki.errors import BadRequest
from kiseki.models.base import ChatClient, ChatReply, ChatRequest, Encoded, ToolSchema
from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import open_client
from kiseki.models.failures import error_of_status
from kiseki.models.mock_server import MockServer
from kiseki.models.text_tools.auto import refuses_tools
from kiseki.trajectory.types import Message, ToolCall

LOOK = ToolSchema("look", "Looks.", msgspec.Raw(b'{"type":"object","properties":{"at":{"type":"string"}},"required":["at"]}'))
TOOLS = (LOOK,)
PROMPT = (Message("system", "Be brief."), Message("user", "Look at the sky."))
AS_TEXT = 'I look.\n<tool_call>\n{"name": "look", "arguments": {"at": "sky"}}\n</tool_call>'


def converse(
    script: list[dict[str, Any]], *, takes_tools: bool = True, **fields: Any
) -> tuple[list[ChatReply], list[dict[str, Any]]]:
    """Two turns of a conversation: the replies, and every body that was sent."""

    async def run(base_url: str) -> list[ChatReply]:
        client: ChatClient = open_client(ModelSettings("m", base_url, **fields))
        try:
            encoded = Encoded()
            first = (await client.send(client.encode(ChatRequest(PROMPT, TOOLS, encoded=encoded))[0]))[0]
            call = ToolCall("c1", "look", first.message.tool_calls[0].arguments)
            said = msgspec.structs.replace(first.message, tool_calls=(call,))
            messages = (*PROMPT, said, Message("tool", "blue", tool_call_id="c1", name="look"))
            return [first, (await client.send(client.encode(ChatRequest(messages, TOOLS, encoded=encoded))[0]))[0]]
        finally:
            await client.close()

    with MockServer(script, record=9, takes_tools=takes_tools) as server:
        return asyncio.run(run(server.base_url)), [each["body"] for each in server.stats(log=True)["log"]]


def test_native_calls_stay_as_they_are() -> None:
    turns = [{"content": "no <tool_call>", "tool_calls": [{"name": "look", "arguments": {"at": "sky"}}]}, {"content": "Blue."}]
    (first, second), bodies = converse([{"turns": turns}])
    assert first.message.content == "no <tool_call>" and first.call.tool_calls_as == ""
    assert second.message.content == "Blue."
    assert all("tools" in body for body in bodies)


def test_calls_in_the_text_of_a_reply_are_read() -> None:
    (first, _), bodies = converse([{"turns": [{"content": AS_TEXT}, {"content": "Blue."}]}])
    assert first.message.tool_calls == (ToolCall("", "look", '{"at": "sky"}'),)
    assert (first.message.content, first.call.finish_reason, first.call.tool_calls_as) == ("I look.", "tool_calls", "hermes")
    assert bodies[1]["messages"][2]["tool_calls"][0]["function"]["name"] == "look"  # told natively, as the rest


def test_native_alone_reads_no_text() -> None:
    async def run(base_url: str) -> ChatReply:
        client = open_client(ModelSettings("m", base_url, tool_call_mode="native"))
        try:
            return (await client.send(client.encode(ChatRequest(PROMPT, TOOLS))[0]))[0]
        finally:
            await client.close()

    with MockServer([{"turns": [{"content": AS_TEXT}]}]) as server:
        reply = asyncio.run(run(server.base_url))
    assert reply.message.tool_calls == () and reply.message.content == AS_TEXT


def test_where_tools_are_refused_they_are_told_in_the_text_from_there_on() -> None:
    # results are the user's words there, so it is they by which the second turn is known
    rules: list[dict[str, Any]] = [{"match": "blue", "turns": [{"content": "Blue."}]}, {"turns": [{"content": AS_TEXT}]}]
    (first, second), bodies = converse(rules, takes_tools=False)
    assert first.message.tool_calls[0].name == "look" and first.call.tool_calls_as == "hermes"
    assert second.message.content == "Blue."
    assert ["tools" in body for body in bodies] == [True, False, False]
    system = bodies[1]["messages"][0]
    assert system["role"] == "system" and '"look"' in system["content"] and system["content"].endswith("Be brief.")
    assert bodies[2]["messages"][: len(bodies[1]["messages"])] == bodies[1]["messages"]
    assert "<tool_response>" in bodies[2]["messages"][-1]["content"] and bodies[2]["messages"][-1]["role"] == "user"


CALLS: dict[str, Any] = {"tool_calls": [{"name": "look", "arguments": {"at": "sky"}}]}
REFUSES: dict[str, Any] = {"match": "refuse", "turns": [{"fault": {"kind": "no_tools", "times": 1}, "content": "No."}]}
SAID = Message("assistant", tool_calls=(ToolCall("c1", "look", '{"at":"sky"}'),))
GOES_ON = (*PROMPT, SAID, Message("tool", "blue", tool_call_id="c1", name="look"))


def test_a_conversation_under_way_when_tools_are_first_refused_is_told_them_too() -> None:
    async def run(base_url: str) -> None:
        client = open_client(ModelSettings("m", base_url))
        try:
            under_way = Encoded()
            first = client.encode(ChatRequest(PROMPT, TOOLS, encoded=under_way))[0]
            with contextlib.suppress(BadRequest):  # in the text, too, since the mock goes by the prompt
                await client.send(client.encode(ChatRequest((Message("user", "refuse"),), TOOLS))[0])
            await client.send(first)
            await client.send(client.encode(ChatRequest(GOES_ON, TOOLS, encoded=under_way))[0])
        finally:
            await client.close()

    with MockServer([REFUSES, {"turns": [CALLS]}], record=9) as server:
        asyncio.run(run(server.base_url))
        first, last = (each["body"] for each in server.stats(log=True)["log"][-2:])
    assert "tools" in first and "tools" not in last
    assert '"look"' in last["messages"][0]["content"] and "<tool_response>" in last["messages"][-1]["content"]


def test_one_request_that_is_refused_where_others_were_answered_changes_nothing() -> None:
    """Its own words, or a router's choice, may have brought that about."""

    async def run(base_url: str) -> None:
        client = open_client(ModelSettings("m", base_url))
        try:
            await client.send(client.encode(ChatRequest(PROMPT, TOOLS))[0])
            with pytest.raises(BadRequest, match="does not support tools"):
                await client.send(client.encode(ChatRequest((Message("user", "refuse"),), TOOLS))[0])
            await client.send(client.encode(ChatRequest(GOES_ON, TOOLS))[0])
        finally:
            await client.close()

    with MockServer([REFUSES, {"turns": [CALLS]}], record=9) as server:
        asyncio.run(run(server.base_url))
        assert all("tools" in each["body"] for each in server.stats(log=True)["log"])


def test_json_mode_holds_the_reply_to_a_schema() -> None:
    call = {"thought": "The sky.", "tool_calls": [{"name": "look", "arguments": {"at": "sky"}}]}
    answer = {"thought": "Seen.", "answer": "Blue."}
    texts = [msgspec.json.encode(each).decode() for each in (answer, call)]
    rules: list[dict[str, Any]] = [{"match": "blue", "turns": [{"content": texts[0]}]}, {"turns": [{"content": texts[1]}]}]
    (first, second), bodies = converse(rules, tool_call_mode="json")
    assert (first.message.reasoning, first.message.tool_calls[0].name) == ("The sky.", "look")
    assert first.call.tool_calls_as == "json"
    assert (second.message.reasoning, second.message.content) == ("Seen.", "Blue.")
    schema = bodies[0]["response_format"]["json_schema"]["schema"]
    assert "look" in msgspec.json.encode(schema).decode() and "tools" not in bodies[0]
    assert msgspec.json.decode(bodies[1]["messages"][-2]["content"]) == call


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        ("HTTP 400: registry.ollama.ai/library/gemma:2b does not support tools", True),
        ('HTTP 400: "auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', True),
        ("HTTP 404: No endpoints found that support tool use. To learn more about provider routing, visit …", True),
        ("HTTP 400: tools param requires --jinja flag", True),
        ("HTTP 400: `tool calling` is not supported with this model", True),
        ("HTTP 400: Function calling is not enabled for models/gemma-3-27b-it", True),
        ("HTTP 500: Unsupported param: tools", True),
        ("HTTP 400: Invalid value for 'messages'.", False),
        ("HTTP 400: tool_call_id c1 is not known", False),
        ("HTTP 400: This model does not support image input.", False),
    ],
)
def test_words_of_endpoints_that_take_no_tools(words: str, refused: bool) -> None:
    assert refuses_tools(BadRequest(words, status=400)) is refused


def test_llama_cpp_says_with_500_that_it_takes_no_tools() -> None:
    error = error_of_status(500, {}, b'{"error":{"code":500,"message":"tools param requires --jinja flag"}}', 0.0)
    assert isinstance(error, BadRequest) and refuses_tools(error)


@pytest.mark.parametrize("api_mode", ["anthropic", "responses"])
def test_apis_whose_models_call_tools_by_them_have_no_calls_in_their_text(api_mode: str) -> None:
    async def run(base_url: str) -> ChatReply:
        client = open_client(ModelSettings("m", base_url, api_mode=api_mode))
        try:
            return (await client.send(client.encode(ChatRequest(PROMPT, TOOLS))[0]))[0]
        finally:
            await client.close()

    with MockServer([{"turns": [{"content": AS_TEXT}]}]) as server:
        reply = asyncio.run(run(server.base_url))
    assert (reply.message.content, reply.message.tool_calls) == (AS_TEXT, ())
