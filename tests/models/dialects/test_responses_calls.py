"""The Responses dialect and the mock server, over real sockets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import kiseki, light_tools, read_rows, with_client, write_dataset

from kiseki.errors import ProviderError, ProviderOverloaded
from kiseki.models.asking import AskedModel
from kiseki.models.base import ChatReply, ChatRequest, Encoded, ToolSchema
from kiseki.models.mock_script import FAULT_KINDS
from kiseki.models.mock_server import MockServer
from kiseki.trajectory.types import Message

OPENAI, KEY = "http://api.openai.com/v1", "sk-0123456789abcdef"
SCHEMA = msgspec.Raw(b'{"type":"object","properties":{"command":{"type":"string"},"timeout":{"type":"integer"}}}')
TOOLS = (ToolSchema("terminal", "Run a command.", SCHEMA),)
PROMPT = (Message("system", "Be brief."), Message("user", "What time is it?"))


def ask(server: MockServer, messages: tuple[Message, ...] = PROMPT, **fields: Any) -> ChatReply:
    fields = {"api_mode": "responses", **fields}
    return with_client(server.base_url, lambda client: client.complete(ChatRequest(messages, TOOLS)), **fields)


def bodies(server: MockServer) -> list[dict[str, Any]]:
    return [entry["body"] for entry in server.stats(log=True)["log"]]


async def converse(client: AskedModel) -> list[Message]:
    """A conversation with the script to its end, as the agent has it."""
    messages, encoded = list(PROMPT), Encoded()
    while True:
        reply = await client.complete(ChatRequest(tuple(messages), TOOLS, 1, encoded=encoded))
        messages.append(reply.message)
        if not reply.message.tool_calls:
            return messages
        messages += (Message("tool", f"of {call.id}", tool_call_id=call.id) for call in reply.message.tool_calls)


CALLS = [{"name": "terminal", "arguments": {"command": "date"}}, {"name": "terminal", "arguments": "{bad"}]
LONG = "I think about it for some while, which is more than one piece of a stream."
SCRIPT = [
    {
        "turns": [
            {"reasoning": LONG, "tool_calls": CALLS},
            {"content": "One more.", "reasoning": LONG, "tool_calls": CALLS[:1]},
            {"content": "{{last_tool_result}}", "reasoning": "done"},
        ]
    }
]


@pytest.fixture
def behind_proxy(monkeypatch: pytest.MonkeyPatch) -> Callable[[MockServer], None]:
    """Sends requests for any remote host to the mock server, as an HTTP proxy gets them."""

    def use(server: MockServer) -> None:
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)
        monkeypatch.setenv("http_proxy", server.root_url)

    return use


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_with_openai(behind_proxy: Callable[[MockServer], None], stream: bool) -> None:
    with MockServer(SCRIPT, record=9) as server:
        behind_proxy(server)
        messages = with_client(OPENAI, converse, api_mode="responses", api_key=KEY, stream=stream)
        asked = bodies(server)
    assert messages[-1].content == "of call_5_0"
    assert [message.reasoning for message in messages if message.role == "assistant"] == [LONG, LONG, "done"]
    kinds = [item["type"] for item in asked[-1]["input"]]
    outputs = ["function_call_output"] * 2
    turns = ["reasoning", "function_call", "function_call", *outputs, "reasoning", "message", "function_call", outputs[0]]
    assert kinds == ["message", "message", *turns]
    thoughts = [item for item in asked[-1]["input"] if item["type"] == "reasoning"]
    assert all(thought["encrypted_content"] for thought in thoughts)
    assert not any("id" in item for item in asked[-1]["input"] if item["type"] != "reasoning")
    assert asked[-1]["input"][: len(asked[-2]["input"])] == asked[-2]["input"]
    assert len({body["prompt_cache_key"] for body in asked}) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_with_a_local_server(stream: bool) -> None:
    with MockServer(SCRIPT, record=9) as server:
        messages = with_client(server.base_url, converse, api_mode="responses", stream=stream)
        items = bodies(server)[-1]["input"]
    assert [message.reasoning for message in messages if message.role == "assistant"] == [LONG, LONG, "done"]
    named = [item["id"] for item in items if item["type"] != "message" or item["role"] == "assistant"]
    assert len(named) == len(set(named)) == len(items) - len(PROMPT)


TURNS: list[dict[str, Any]] = [
    {"content": "plain 日本語 🙂"},
    {"content": "", "tool_calls": CALLS},
    {"content": "both", "reasoning": LONG, "tool_calls": [{"name": "terminal", "arguments": "{}", "id": "mine"}]},
    {"content": "<think>inline</think>said"},
    {"content": "said", "reasoning": "inline", "reasoning_field": "think_unopened"},
    {"content": "cut", "finish_reason": "length"},
    {"content": None, "message": {"refusal": "no"}},
    {"content": "x", "usage": {"prompt_tokens": 1, "completion_tokens": 2, "cost": 0.5}},
]


@pytest.mark.parametrize("turn", TURNS)
def test_streamed_or_not_and_in_whatever_api_the_reply_is_the_same(turn: dict[str, Any]) -> None:
    with MockServer([{"turns": [turn]}]) as server:
        whole, pieces, chat = ask(server), ask(server, stream=True), ask(server, api_mode="chat")
    assert pieces.message == msgspec.structs.replace(whole.message, provider_fields=pieces.message.provider_fields)
    assert pieces.call.finish_reason == whole.call.finish_reason == chat.call.finish_reason
    assert msgspec.structs.replace(whole.message, provider_fields={}) == msgspec.structs.replace(chat.message, provider_fields={})
    assert whole.call.cost_reported
    if "usage" in turn:
        assert pieces.call.usage == whole.call.usage == chat.call.usage


def outcome(server: MockServer, **fields: Any) -> Any:
    """The class of what a call ends in, or what the reply is."""
    try:
        reply = ask(server, max_retries=1, provider_patience=0.0, call_timeout=0.5, stream_timeout=0.2, **fields)
    except ProviderError as error:
        return type(error), error.status
    return msgspec.structs.replace(reply.message, provider_fields={}), reply.call.finish_reason, reply.call.usage_reported


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_every_fault_is_what_it_is_in_the_chat_api(kind: str, stream: bool) -> None:
    turn = {"content": "some text", "reasoning": LONG, "tool_calls": CALLS[:1] * 2, "fault": {"kind": kind}}
    with MockServer([{"turns": [turn]}]) as server:
        chat = outcome(server, api_mode="chat", stream=stream)
        before = server.stats()["calls"]
        assert outcome(server, stream=stream) == (chat if kind != "error_in_200" else (ProviderOverloaded, 500))
        assert server.stats()["calls"] == 2 * before


def test_a_whole_run(tmp_path: Path) -> None:
    write_dataset(tmp_path / "prompts.jsonl", ({"prompt": f"Number {number}"} for number in range(6)))
    with MockServer(turns=2) as server:
        flags = (f"--base_url={server.base_url}", "--model=m", "--api_mode=responses", "--batch_size=3", "--run_name=run")
        kiseki("batch", "--dataset_file=prompts.jsonl", *flags, *light_tools(tmp_path), cwd=tmp_path)
        stats = server.stats()
    rows = read_rows(tmp_path / "data/run/trajectories.jsonl")
    assert [row["completed"] for row in rows] == [True] * 6
    assert all("<think>\nI call shout." in row["conversations"][2]["value"] for row in rows)
    assert stats["by_status"] == {"200": 18}
