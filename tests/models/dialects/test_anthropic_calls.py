"""The Anthropic dialect and the mock server, over real sockets."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import kiseki, light_tools, read_rows, with_client, write_dataset

from kiseki.errors import AuthError, ProviderError, ProviderOverloaded
from kiseki.models.asking import AskedModel
from kiseki.models.base import ChatReply, ChatRequest, Encoded, RateInfo, ToolSchema
from kiseki.models.dialects.anthropic_reply import THINKING
from kiseki.models.mock_images import data_uri, draw_png
from kiseki.models.mock_script import FAULT_KINDS, REASONING_FIELDS
from kiseki.models.mock_server import MockServer
from kiseki.trajectory.types import Message

HOST, KEY = "http://api.anthropic.com/v1", "sk-ant-0123456789abcdef"
SCHEMA = msgspec.Raw(b'{"type":"object","properties":{"command":{"type":"string"}}}')
TOOLS = (ToolSchema("terminal", "Run a command.", SCHEMA),)
PROMPT = (Message("system", "Be brief. " * 50), Message("user", "What time is it?"))
LONG = "I think about it for some while, which is more than one piece of a stream."
CALLS = [{"name": "terminal", "arguments": {"command": "date +%H"}}, {"name": "terminal", "arguments": "{bad"}]
SCRIPT = [
    {
        "turns": [
            {"reasoning": LONG, "tool_calls": CALLS},
            {"content": "One more.", "reasoning": LONG, "tool_calls": CALLS[:1]},
            {"content": "{{last_tool_result}}", "reasoning": "done"},
        ]
    }
]


def ask(server: MockServer, messages: tuple[Message, ...] = PROMPT, **fields: Any) -> ChatReply:
    fields = {"api_mode": "anthropic", **fields}
    return with_client(server.base_url, lambda client: client.complete(ChatRequest(messages, TOOLS)), **fields)


def bodies(server: MockServer) -> list[dict[str, Any]]:
    return [entry["body"] for entry in server.stats(log=True)["log"]]


async def converse(client: AskedModel) -> list[ChatReply]:
    """A conversation with the script to its end, as the agent has it."""
    messages, encoded, replies = list(PROMPT), Encoded(), list[ChatReply]()
    while True:
        reply = await client.complete(ChatRequest(tuple(messages), TOOLS, 1, encoded=encoded))
        replies.append(reply)
        messages.append(reply.message)
        if not reply.message.tool_calls:
            return replies
        messages += (Message("tool", f"of {call.id}", tool_call_id=call.id) for call in reply.message.tool_calls)


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
@pytest.mark.parametrize("effort", ["", "low"])
def test_a_conversation_carries_its_thinking(behind_proxy: Callable[[MockServer], None], stream: bool, effort: str) -> None:
    with MockServer(SCRIPT, record=9) as server:
        behind_proxy(server)
        fields: dict[str, Any] = {"api_key": KEY, "stream": stream, "reasoning_effort": effort}
        # the mock server refuses thinking that is not what it gave, and with effort a call without any
        replies = with_client(HOST, lambda client: converse(client), **fields)
        asked, entry = bodies(server), server.stats(log=True)["log"][-1]
    assert [reply.message.reasoning for reply in replies] == [LONG, LONG, "done"]
    assert [reply.call.finish_reason for reply in replies] == ["tool_calls", "tool_calls", "stop"]
    assert replies[-1].message.content == "of call_5_0"
    kinds = [[block["type"] for block in turn["content"]] for turn in asked[-1]["messages"]]
    first, second = ["thinking", "tool_use", "tool_use"], ["thinking", "text", "tool_use"]
    assert kinds == [["text"], first, ["tool_result"] * 2, second, ["tool_result"]]
    assert asked[-1]["messages"][1]["content"][:1] == replies[0].message.provider_fields[THINKING]
    assert entry["headers"]["x-api-key"] == f"...{KEY[-4:]}"
    assert "authorization" not in entry["headers"]


def test_the_next_turn_is_read_from_the_cache() -> None:
    with MockServer(SCRIPT) as server:
        usages = [reply.call.usage for reply in with_client(server.base_url, converse, api_mode="anthropic")]
        again = [reply.call.usage for reply in with_client(server.base_url, converse, api_mode="anthropic")]
    assert [usage.cached_tokens > 0 for usage in usages] == [False, True, True]
    assert all(usage.cache_write_tokens > 0 for usage in usages)
    for before, after in itertools.pairwise(usages):
        assert after.cached_tokens == before.cached_tokens + before.cache_write_tokens
    assert all(usage.cached_tokens > 0 and usage.cache_write_tokens == 0 for usage in again)


TURNS: list[dict[str, Any]] = [
    {"content": "plain 日本語 🙂"},
    {"content": "", "tool_calls": CALLS},
    {"content": "both", "reasoning": LONG, "tool_calls": [{"name": "terminal", "arguments": "{}", "id": "mine"}]},
    {"content": "<think>inline</think>said"},
    {"content": "cut", "finish_reason": "length"},
    {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"content": "x", "usage": {"prompt_tokens": 1, "completion_tokens": 2, "cost": 0.5}},
]


@pytest.mark.parametrize("turn", TURNS)
def test_streamed_or_not_and_in_whatever_api_the_reply_is_the_same(turn: dict[str, Any]) -> None:
    with MockServer([{"turns": [turn]}]) as server:
        chat, whole, pieces = ask(server, api_mode="chat"), ask(server), ask(server, stream=True)
    assert pieces.message == whole.message
    assert pieces.call.finish_reason == whole.call.finish_reason == chat.call.finish_reason
    assert msgspec.structs.replace(whole.message, provider_fields={}) == chat.message
    assert (whole.call.model, whole.call.response_id) == (pieces.call.model, pieces.call.response_id)
    assert whole.call.cost_reported
    if "usage" in turn:
        assert (chat.call.usage.prompt_tokens, chat.call.usage.cost) == (whole.call.usage.prompt_tokens, whole.call.usage.cost)


@pytest.mark.parametrize("field", REASONING_FIELDS)
def test_reasoning_of_every_script(field: str) -> None:
    with MockServer([{"turns": [{"content": "It is noon.", "reasoning": LONG}]}], reasoning_field=field) as server:
        message = ask(server).message
    assert (message.content, message.reasoning) == ("It is noon.", LONG)


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


@pytest.mark.parametrize("stream", [False, True])
def test_the_key_is_never_told(stream: bool) -> None:
    with MockServer([{"turns": [{"fault": {"kind": "auth"}}]}]) as server, pytest.raises(AuthError) as caught:
        ask(server, api_key=KEY, stream=stream)
    assert "HTTP 401: Incorrect API key provided" in str(caught.value)
    assert KEY not in repr(caught.value)


def test_what_is_left_of_the_limits_is_read() -> None:
    async def use(client: AskedModel) -> RateInfo | None:
        return (await client.client.send(client.client.encode(ChatRequest(PROMPT))[0]))[1]

    fields: dict[str, Any] = {"requests_per_minute": 60, "tokens_per_minute": 1_000_000}
    with MockServer([{"turns": [{"content": "a"}]}], **fields) as server:
        rate = with_client(server.base_url, use, api_mode="anthropic")
    assert rate is not None
    assert rate.requests_left == 59.0
    assert rate.requests_reset is not None and 0.0 <= rate.requests_reset <= 3.0  # `Date` has whole seconds
    assert rate.tokens_left is not None and 0 < rate.tokens_left < 1_000_000


def test_images_are_shown() -> None:
    with MockServer() as server:
        picture = data_uri(draw_png("cat", 8, 8))
        request = ChatRequest((Message("user", "What is this?"),), images=(picture,))
        chat, here = (
            with_client(server.base_url, lambda client: client.complete(request), api_mode=mode) for mode in ("chat", "anthropic")
        )
        assert server.stats()["images_shown"] == 2
    assert here.message.content == chat.message.content


@pytest.mark.parametrize("base", ["/anthropic", "/v1"])
def test_a_whole_run(tmp_path: Path, base: str) -> None:
    write_dataset(tmp_path / "prompts.jsonl", ({"prompt": f"Number {number}"} for number in range(6)))
    with MockServer(turns=2, rate_limit_every=5, retry_after=0.01) as server:
        flags = [f"--base_url={server.root_url}{base}", "--model=m", "--batch_size=3", "--run_name=run"]
        if base == "/v1":
            flags.append("--api_mode=anthropic")
        kiseki("batch", "--dataset_file=prompts.jsonl", *flags, *light_tools(tmp_path), cwd=tmp_path)
        stats = server.stats()
    rows = read_rows(tmp_path / "data/run/trajectories.jsonl")
    assert [row["completed"] for row in rows] == [True] * 6
    assert all("<think>\nI call shout." in row["conversations"][2]["value"] for row in rows)
    assert all(row["metadata"]["cached_tokens"] > 0 for row in rows)
    totals = json.loads((tmp_path / "data/run/statistics.json").read_text())["tokens"]
    assert totals["cached"] == sum(row["metadata"]["cached_tokens"] for row in rows)
    assert totals["cache_write"] == sum(row["metadata"]["cache_write_tokens"] for row in rows) > 0
    assert stats["by_status"]["200"] == 18
