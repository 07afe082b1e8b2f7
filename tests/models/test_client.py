"""The client against the mock server, over real sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from models.answers import answered
from support import until, with_client

from kiseki.errors import (
    AuthError,
    BadRequest,
    BadResponse,
    ContextLengthExceeded,
    ProviderError,
    ProviderOverloaded,
    ProviderUnreachable,
    RateLimited,
    UsageError,
)
from kiseki.models.asking import AskedModel
from kiseki.models.base import ChatReply, ChatRequest, ToolSchema
from kiseki.models.calls import end_of_error
from kiseki.models.client import HttpClient
from kiseki.models.dialects.opening import open_dialect
from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import open_client
from kiseki.models.mock_script import REASONING_FIELDS
from kiseki.models.mock_server import MockServer
from kiseki.trajectory.types import Message, ToolCall

KEY = "sk-or-v1-0123456789abcdef"
SCHEMA = msgspec.Raw(b'{"type":"object","properties":{"command":{"type":"string"}},"required":["command"]}')
TOOLS = (ToolSchema("terminal", "Run a command.", SCHEMA),)
PROMPT = (Message("user", "What time is it?"),)


def ask(server: MockServer, messages: tuple[Message, ...] = PROMPT, **fields: Any) -> ChatReply:
    return with_client(server.base_url, lambda client: client.complete(ChatRequest(messages, TOOLS)), **fields)


def script(*turns: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"turns": list(turns)}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("field", REASONING_FIELDS)
def test_reasoning_from_every_source(field: str, stream: bool) -> None:
    turn = {
        "content": "It is noon, and the answer is long enough to be cut.",
        "reasoning": "I look at the sun, for a long while.",
    }
    with MockServer(script(turn), reasoning_field=field) as server:
        message = ask(server, stream=stream).message
    assert (message.content, message.reasoning) == (turn["content"], turn["reasoning"])
    assert ("reasoning_details" in message.provider_fields) == (field == "reasoning_details")


TURNS: list[dict[str, Any]] = [
    {"content": "plain 日本語 🙂"},
    {
        "content": "",
        "tool_calls": [{"name": "terminal", "arguments": {"command": "date +%H"}}, {"name": "x", "arguments": "{bad"}],
    },
    {"content": "both", "reasoning": "r", "tool_calls": [{"name": "terminal", "arguments": "{}", "id": "mine"}]},
    {"content": "cut", "finish_reason": "length"},
    {"content": None, "message": {"refusal": "no"}},
    {"content": None, "message": {"function_call": {"name": "f", "arguments": "{}"}}},
    {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"content": "x", "usage": {"prompt_tokens": 1, "completion_tokens": 2, "cost": 0.5}},
]


@pytest.mark.parametrize("turn", TURNS)
def test_streamed_or_not_the_reply_is_the_same(turn: dict[str, Any]) -> None:
    with MockServer(script(turn)) as server:
        whole, streamed = ask(server), ask(server, stream=True)
    assert streamed.message == whole.message
    assert streamed.call.finish_reason == whole.call.finish_reason
    assert (streamed.call.model, streamed.call.provider, streamed.call.response_id) == ("m", "mock", whole.call.response_id)
    if "usage" in turn:
        assert streamed.call.usage == whole.call.usage


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("rate_limit", RateLimited),
        ("error_500", ProviderOverloaded),
        ("error_502", ProviderOverloaded),
        ("error_503", ProviderOverloaded),
        ("auth", AuthError),
        ("no_credit", AuthError),
        ("bad_request", BadRequest),
        ("context_length", ContextLengthExceeded),
        ("reset", ProviderUnreachable),
        ("torn", BadResponse),
        ("html", ProviderOverloaded),
        ("error_in_200", ProviderOverloaded),
        ("not_json", BadResponse),
        ("empty", BadResponse),
    ],
)
def test_every_fault_has_its_class(kind: str, expected: type[ProviderError], stream: bool) -> None:
    with MockServer(script({"content": "hello", "fault": {"kind": kind}})) as server:
        with pytest.raises(ProviderError) as caught:
            ask(server, stream=stream, max_retries=1, provider_patience=0.0)
        assert type(caught.value) is expected
        assert server.stats()["calls"] == (2 if expected.retryable else 1)


@pytest.mark.parametrize(
    ("kind", "check"),
    [
        ("malformed_arguments", lambda reply: reply.message.tool_calls[0].arguments.endswith(', "')),
        ("unknown_tool", lambda reply: reply.message.tool_calls[0].name == "no_such_tool"),
        ("duplicate_ids", lambda reply: {call.id for call in reply.message.tool_calls} == {"call_duplicate"}),
        ("missing_ids", lambda reply: {call.id for call in reply.message.tool_calls} == {""}),
        ("length", lambda reply: reply.call.finish_reason == "length" and not reply.message.tool_calls),
        ("content_filter", lambda reply: reply.call.finish_reason == "content_filter"),
        ("no_usage", lambda reply: not reply.call.usage_reported),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_model_gets_wrong_is_a_reply(kind: str, check: Callable[[ChatReply], bool], stream: bool) -> None:
    calls = [{"name": "terminal", "arguments": {"command": "a"}}, {"name": "terminal", "arguments": {"command": "b"}}]
    with MockServer(script({"content": "some text", "tool_calls": calls, "fault": {"kind": kind}})) as server:
        assert check(ask(server, stream=stream, max_retries=0))


def body_and_headers(server: MockServer) -> tuple[dict[str, Any], dict[str, str]]:
    entry = server.stats(log=True)["log"][-1]
    return entry["body"], entry["headers"]


def test_the_request_to_a_local_server() -> None:
    conversation = (
        Message("system", "Be brief."),
        *PROMPT,
        Message("assistant", "", "hm", (ToolCall("c1", "terminal", "{bad"),)),
        Message("tool", "12:00", tool_call_id="c1", name="terminal"),
    )
    with MockServer(record=1) as server:
        request = ChatRequest(conversation, TOOLS, seed=7)
        settings: dict[str, Any] = {"max_tokens": 100, "temperature": 0.0, "top_p": 0.5, "reasoning_disabled": True}
        with_client(server.base_url, lambda client: client.complete(request), **settings)
        body, headers = body_and_headers(server)
    assert body == {
        "model": "m",
        "max_tokens": 100,
        "temperature": 0.0,
        "top_p": 0.5,
        "chat_template_kwargs": {"enable_thinking": False, "thinking": False},
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What time is it?"},
            {
                "role": "assistant",
                "content": None,
                "reasoning": "hm",
                "reasoning_content": "hm",
                "tool_calls": [
                    {
                        "id": "c1",
                        "type": "function",
                        "function": {"name": "terminal", "arguments": '{"_invalid_arguments":"{bad"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "12:00"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "terminal",
                    "description": "Run a command.",
                    "parameters": msgspec.json.decode(SCHEMA),
                },
            }
        ],
        "seed": 7,
    }
    assert "authorization" not in headers


@pytest.fixture
def behind_proxy(monkeypatch: pytest.MonkeyPatch) -> Callable[[MockServer], None]:
    """Sends requests for any remote host to the mock server, as an HTTP proxy gets them."""

    def use(server: MockServer) -> None:
        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)
        monkeypatch.setenv("http_proxy", server.root_url)

    return use


def test_the_request_to_openrouter(behind_proxy: Callable[[MockServer], None]) -> None:
    with MockServer(record=1) as server:
        behind_proxy(server)
        with_client(
            "http://openrouter.ai/api/v1",
            lambda client: client.complete(ChatRequest(PROMPT)),
            api_key=KEY,
            providers_allowed=("acme",),
            provider_sort="price",
            reasoning_effort="high",
            stream=True,
        )
        body, headers = body_and_headers(server)
    assert body == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "provider": {"only": ["acme"], "sort": "price"},
        "reasoning": {"enabled": True, "effort": "high"},
        "usage": {"include": True},
        "messages": [{"role": "user", "content": "What time is it?"}],
    }
    assert headers["host"] == "openrouter.ai"
    assert headers["authorization"].endswith(KEY[-4:])


def test_the_request_to_openai(behind_proxy: Callable[[MockServer], None]) -> None:
    with MockServer(record=1) as server:
        behind_proxy(server)
        fields: dict[str, Any] = {"api_key": KEY, "api_mode": "chat", "max_tokens": 50, "reasoning_effort": "minimal"}
        with_client("http://api.openai.com/v1", lambda client: client.complete(ChatRequest(PROMPT, seed=1)), **fields)
        body, _ = body_and_headers(server)
    messages = [{"role": "user", "content": "What time is it?"}]
    assert body == {"model": "m", "max_completion_tokens": 50, "reasoning_effort": "minimal", "messages": messages, "seed": 1}


@pytest.mark.parametrize("stream", [False, True])
def test_the_key_is_never_told(stream: bool) -> None:
    with MockServer(script({"fault": {"kind": "auth"}})) as server, pytest.raises(AuthError) as caught:
        ask(server, api_key=KEY, stream=stream)
    assert "HTTP 401: Incorrect API key provided: Bearer ***" in str(caught.value)
    assert KEY not in repr(caught.value)


def test_no_part_of_the_key_is_left_where_words_are_cut() -> None:
    settings = ModelSettings("m", "http://127.0.0.1:1/v1", api_key=KEY)
    client = HttpClient(settings, open_dialect(settings))
    for padding in range(470, 500):
        assert "sk-" not in client._shown("x" * padding + KEY + "y" * 100)


def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(ProviderUnreachable, match="No connection"):
            with_client(url, lambda client: client.complete(ChatRequest(PROMPT)), max_retries=1)


def test_bad_settings_are_refused_before_any_request() -> None:
    with pytest.raises(UsageError):
        open_client(ModelSettings("m", "http://127.0.0.1:1/v1", provider_sort="price"))


def test_many_calls_at_once() -> None:
    async def use(client: AskedModel) -> list[ChatReply]:
        requests = [ChatRequest((Message("user", f"number {n}"),)) for n in range(200)]
        return await asyncio.gather(*(client.complete(request) for request in requests))

    with MockServer(script({"content": "{{prompt}}"}), latency=0.2, jitter=0.2) as server:
        replies = with_client(server.base_url, use)
        stats = server.stats()
    assert [reply.message.content for reply in replies] == [f"number {n}" for n in range(200)]
    assert stats["calls"] == 200
    assert stats["peak_in_flight"] > 1


@pytest.mark.parametrize("stream", [False, True])
def test_connections_are_used_again(stream: bool) -> None:
    async def use(client: AskedModel) -> int:
        for _ in range(20):
            await client.complete(ChatRequest(PROMPT))
        return int(server.stats()["connections"])

    with MockServer(script({"content": "a"})) as server:
        assert with_client(server.base_url, use, stream=stream) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_cancelled_call_leaves_no_connection(stream: bool) -> None:
    async def use(client: AskedModel) -> None:
        call = asyncio.create_task(client.complete(ChatRequest(PROMPT)))
        await until(lambda: server.stats()["in_flight"] == 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: server.stats()["connections"] == 0)
        assert server.stats()["in_flight"] == 0

    with MockServer(script({"fault": {"kind": "stall"}})) as server:
        with_client(server.base_url, use, stream=stream)


@pytest.mark.filterwarnings("error")
def test_a_conversation_of_megabytes() -> None:
    with MockServer(script({"content": "read"}), record=1) as server:
        ask(server, (Message("user", "x" * 3_000_000),))
        body, _ = body_and_headers(server)
    assert len(body["messages"][0]["content"]) == 3_000_000


def test_a_client_can_be_closed_and_used_again() -> None:
    async def use(client: AskedModel) -> None:
        await client.close()
        await client.complete(ChatRequest(PROMPT))
        await client.close()
        await client.complete(ChatRequest(PROMPT))

    with MockServer(script({"content": "a"})) as server:
        with_client(server.base_url, use)
        assert server.stats()["calls"] == 2


EVENTS = {
    "chat": (b'{"choices":[{"delta":{"content":"half"}}]}', b'{"error":{"code":529,"message":"overloaded"}}'),
    "anthropic": (
        b'{"type":"message_start","message":{"usage":{"input_tokens":90000}}}',
        b'{"type":"error","error":{"type":"overloaded_error","message":"overloaded"}}',
    ),
    "responses": (
        b'{"type":"response.output_text.delta","output_index":0,"content_index":0,"delta":"half"}',
        b'{"type":"error","code":"server_error","message":"overloaded"}',
    ),
}


@pytest.mark.parametrize("api_mode", EVENTS)
@pytest.mark.parametrize("begun", [True, False])
def test_what_an_error_in_the_midst_of_a_reply_has_cost_is_not_known(api_mode: str, begun: bool) -> None:
    part, error = EVENTS[api_mode]
    with pytest.raises(ProviderOverloaded, match="overloaded") as caught:
        answered(api_mode, part + b"\n\ndata: " + error if begun else error, streamed=True)
    assert end_of_error(caught.value).known is not begun
