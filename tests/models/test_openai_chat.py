"""The client against the mock server, over real sockets."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
import pytest
from support import FakeTime

from kiseki.errors import (
    AuthError,
    BadRequest,
    BadResponse,
    ContextLengthExceeded,
    ProviderError,
    ProviderOverloaded,
    ProviderTimeout,
    ProviderUnreachable,
    RateLimited,
    RunStopped,
    StreamStalled,
    UsageError,
)
from kiseki.models.admission import UNLIMITED, Admission, LocalDoor
from kiseki.models.asking import AskedModel
from kiseki.models.base import ChatReply, ChatRequest, ToolSchema
from kiseki.models.breaker import Breaker
from kiseki.models.budget import Budget
from kiseki.models.endpoints import ModelSettings
from kiseki.models.mock_script import REASONING_FIELDS
from kiseki.models.mock_server import MockServer
from kiseki.models.openai_chat import OpenAIChat
from kiseki.models.rate_limit import RateLimit
from kiseki.trajectory.types import Message, ToolCall

T = TypeVar("T")
KEY = "sk-or-v1-0123456789abcdef"
PATIENCE = 300.0
"""Of the breaker; a call's own is the setting `provider_patience`."""
SCHEMA = msgspec.Raw(b'{"type":"object","properties":{"command":{"type":"string"}},"required":["command"]}')
TOOLS = (ToolSchema("terminal", "Run a command.", SCHEMA),)
PROMPT = (Message("user", "What time is it?"),)


def with_client(
    base_url: str, use: Callable[[AskedModel], Awaitable[T]], *, time: FakeTime | None = None, ceiling: int = UNLIMITED, **fields: Any
) -> T:
    """What `use` gives, with a client that is closed after it and never really waits: not between tries, not to be let in."""
    time = time or FakeTime()

    async def run() -> T:
        settings = ModelSettings("m", base_url, **fields)
        admission = Admission(RateLimit(ceiling), Breaker(PATIENCE), Budget(), clock=time.clock, later=time.later)
        client = AskedModel(OpenAIChat(settings), LocalDoor(admission), settings, rng=random.Random(1), sleep=time.sleep)
        try:
            return await use(client)
        finally:
            admission.close()
            await client.close()

    return asyncio.run(run())


def ask(server: MockServer, messages: tuple[Message, ...] = PROMPT, **fields: Any) -> ChatReply:
    return with_client(server.base_url, lambda client: client.complete(ChatRequest(messages, TOOLS)), **fields)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that another process does; the test's own timeout ends a wait in vain."""
    while not condition():
        await asyncio.sleep(0.01)


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


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["rate_limit", "error_503", "reset", "torn", "html", "error_in_200", "not_json", "empty"])
def test_what_passes_is_retried(kind: str, stream: bool) -> None:
    with MockServer(script({"content": "hello", "fault": {"kind": kind, "times": 2}})) as server:
        reply = ask(server, stream=stream)
    assert (reply.message.content, reply.call.retries) == ("hello", 2)


@pytest.mark.parametrize("stream", [False, True])
def test_a_stall_is_a_timeout(stream: bool) -> None:
    with MockServer(script({"fault": {"kind": "stall"}})) as server, pytest.raises(ProviderTimeout, match=r"0\.2 s") as caught:
        ask(server, call_timeout=0.2, max_retries=0, stream=stream)
    assert type(caught.value) is ProviderTimeout


LONG = {"content": "one two three four five six seven eight nine ten " * 3, "fault": {"kind": "stream_stall"}}


@pytest.mark.parametrize("fields", [{"stream_timeout": 0.2}, {"call_timeout": 0.2}])
def test_a_stream_that_stops_in_the_middle(fields: dict[str, float]) -> None:
    with MockServer(script(LONG)) as server:

        async def use(client: AskedModel) -> None:
            with pytest.raises(StreamStalled):
                await client.complete(ChatRequest(PROMPT))
            await until(lambda: server.stats()["connections"] == 0)

        with_client(server.base_url, use, stream=True, max_retries=0, **fields)


def test_a_body_that_stops_in_the_middle() -> None:
    with MockServer(script(LONG)) as server:

        async def use(client: AskedModel) -> None:
            with pytest.raises(ProviderTimeout, match=r"0\.2 s") as caught:
                await client.complete(ChatRequest(PROMPT))
            assert type(caught.value) is ProviderTimeout
            await until(lambda: server.stats()["connections"] == 0)

        with_client(server.base_url, use, call_timeout=0.2, max_retries=0)


def test_a_stream_that_stalled_is_tried_again() -> None:
    turn = {**LONG, "fault": {"kind": "stream_stall", "times": 1}}
    with MockServer(script(turn)) as server:
        reply = ask(server, stream=True, stream_timeout=0.2)
    assert (reply.message.content, reply.call.retries) == (turn["content"], 1)


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


def test_retry_after_is_honoured() -> None:
    time = FakeTime()
    turn = {"content": "hello", "fault": {"kind": "rate_limit", "times": 1, "retry_after": 40}}
    with MockServer(script(turn), record=9) as server:
        assert ask(server, time=time).call.retries == 1
        assert [entry["status"] for entry in server.stats(log=True)["log"]] == [429, 200]
    assert 40.0 <= time.now <= 42.0


def test_one_call_s_retry_after_holds_the_others_back() -> None:
    time = FakeTime()
    rules = [
        {"match": "limited", "turns": [{"content": "a", "fault": {"kind": "rate_limit", "times": 2, "retry_after": 40}}]},
        {"turns": [{"content": "b"}]},
    ]

    async def use(client: AskedModel) -> None:
        with pytest.raises(RateLimited):
            await client.complete(ChatRequest((Message("user", "limited"),)))
        assert 40.0 <= time.now <= 42.0
        await client.complete(ChatRequest((Message("user", "free"),)))
        assert 80.0 <= time.now <= 84.0

    with MockServer(rules) as server:
        with_client(server.base_url, use, time=time, provider_patience=0.0)


def test_being_turned_away_costs_no_retry() -> None:
    turn = {"content": "hello", "fault": {"kind": "rate_limit", "times": 8}}
    with MockServer(script(turn)) as server:
        assert ask(server, max_retries=0).call.retries == 8


def test_a_call_that_is_turned_away_for_too_long_fails() -> None:
    time = FakeTime()
    turn = {"content": "hello", "fault": {"kind": "rate_limit", "retry_after": 30}}
    with MockServer([{"match": "limited", "turns": [turn]}]) as server:

        async def use(client: AskedModel) -> None:
            limited = asyncio.create_task(client.complete(ChatRequest((Message("user", "limited"),))))
            while not limited.done():
                await client.complete(ChatRequest(PROMPT))  # others are served
            with pytest.raises(RateLimited):
                await limited

        with_client(server.base_url, use, time=time, provider_patience=200.0)
    assert 200.0 <= time.now <= 300.0


def test_where_no_call_is_served_any_more_the_run_is_stopped() -> None:
    time = FakeTime()
    with MockServer(fail_after=1, fail_kind="error_503") as server, pytest.raises(RunStopped, match=r"no model call.*HTTP 503"):
        ask(server, time=time, provider_patience=1000.0)
    assert PATIENCE <= time.now <= 2 * PATIENCE


@pytest.mark.parametrize("kind", ["auth", "no_credit", "forbidden"])
def test_a_call_that_is_denied_is_the_last(kind: str) -> None:
    async def use(client: AskedModel) -> None:
        with pytest.raises(AuthError):
            await client.complete(ChatRequest(PROMPT))
        with pytest.raises(RunStopped):
            await client.complete(ChatRequest(PROMPT))

    with MockServer(script({"fault": {"kind": kind}})) as server:
        with_client(server.base_url, use)
        assert server.stats()["calls"] == 1


def test_what_the_headers_say_is_left_is_kept_to() -> None:
    """The endpoint's clock is a real one that hardly moves here: it lets 3 requests through, and says when there are more."""
    time = FakeTime()

    async def use(client: AskedModel) -> None:
        for _ in range(3):
            await client.complete(ChatRequest(PROMPT))
        assert time.now == 0.0
        await client.complete(ChatRequest(PROMPT))

    with MockServer(requests_per_minute=3) as server:
        # that it then turns the fourth away is because only our clock has moved
        with pytest.raises(RateLimited):
            with_client(server.base_url, use, time=time, provider_patience=0.0)
        stats = server.stats()
    assert stats["by_status"]["200"] == 3
    assert time.now >= 59.0


def test_an_endpoint_that_takes_few_at_once_gets_few() -> None:
    async def use(client: AskedModel) -> list[ChatReply]:
        requests = [ChatRequest((Message("user", f"number {n}"),)) for n in range(100)]
        return await asyncio.gather(*(client.complete(request) for request in requests))

    with MockServer(script({"content": "{{prompt}}"}), max_in_flight=4, retry_after=0.0, latency=0.01) as server:
        replies = with_client(server.base_url, use, ceiling=100, max_retries=0)
        stats = server.stats()
    assert [reply.message.content for reply in replies] == [f"number {n}" for n in range(100)]
    assert stats["by_status"]["200"] == 100


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
        "chat_template_kwargs": {"enable_thinking": False},
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
        fields: dict[str, Any] = {"api_key": KEY, "max_tokens": 50, "reasoning_effort": "minimal"}
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
    client = OpenAIChat(ModelSettings("m", "http://127.0.0.1:1/v1", api_key=KEY))
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
        OpenAIChat(ModelSettings("m", "http://127.0.0.1:1/v1", provider_sort="price"))


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


def test_a_storm_of_faults_is_weathered() -> None:
    async def use(client: AskedModel) -> list[ChatReply]:
        requests = [ChatRequest((Message("user", f"number {n}"),)) for n in range(100)]
        return await asyncio.gather(*(client.complete(request) for request in requests))

    faults = {"rate_limit": 0.1, "error_503": 0.1, "torn": 0.1, "reset": 0.1, "html": 0.05, "empty": 0.05}
    with MockServer(script({"content": "{{prompt}}"}), faults=faults, seed=3) as server:
        replies = with_client(server.base_url, use, max_retries=30)
        stats = server.stats()
    assert [reply.message.content for reply in replies] == [f"number {n}" for n in range(100)]
    assert sum(reply.call.retries for reply in replies) == stats["calls"] - 100 == sum(stats["by_fault"].values()) > 0


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
