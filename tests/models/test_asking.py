"""A model that is asked through its admission: retries, limits and deadlines, against the mock server over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support import BREAKER_PATIENCE, FakeTime, until, with_client

from kiseki.errors import AuthError, ProviderTimeout, RateLimited, RunStopped, StreamStalled
from kiseki.models.asking import AskedModel
from kiseki.models.base import ChatReply, ChatRequest
from kiseki.models.mock_server import MockServer
from kiseki.trajectory.types import Message

PROMPT = (Message("user", "What time is it?"),)


def ask(server: MockServer, **fields: Any) -> ChatReply:
    return with_client(server.base_url, lambda client: client.complete(ChatRequest(PROMPT)), **fields)


def numbered(count: int) -> list[ChatRequest]:
    return [ChatRequest((Message("user", f"number {number}"),)) for number in range(count)]


def script(*turns: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"turns": list(turns)}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["rate_limit", "error_503", "reset", "torn", "html", "error_in_200", "not_json", "empty"])
def test_what_passes_is_retried(kind: str, stream: bool) -> None:
    with MockServer(script({"content": "hello", "fault": {"kind": kind, "times": 2}})) as server:
        reply = ask(server, stream=stream)
    assert (reply.message.content, reply.call.retries) == ("hello", 2)


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
    assert time.now >= 200.0


def test_where_no_call_is_served_any_more_the_run_is_stopped() -> None:
    time = FakeTime()
    with MockServer(fail_after=1, fail_kind="error_503") as server, pytest.raises(RunStopped, match=r"no model call.*HTTP 503"):
        ask(server, time=time, provider_patience=1000.0)
    assert BREAKER_PATIENCE <= time.now <= 2 * BREAKER_PATIENCE


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
        return await asyncio.gather(*(client.complete(request) for request in numbered(100)))

    with MockServer(script({"content": "{{prompt}}"}), max_in_flight=4, retry_after=0.0, latency=0.01) as server:
        replies = with_client(server.base_url, use, ceiling=100, max_retries=0)
        stats = server.stats()
    assert [reply.message.content for reply in replies] == [f"number {n}" for n in range(100)]
    assert stats["by_status"]["200"] == 100


def test_a_storm_of_faults_is_weathered() -> None:
    async def use(client: AskedModel) -> list[ChatReply]:
        return await asyncio.gather(*(client.complete(request) for request in numbered(100)))

    faults = {"rate_limit": 0.1, "error_503": 0.1, "torn": 0.1, "reset": 0.1, "html": 0.05, "empty": 0.05}
    with MockServer(script({"content": "{{prompt}}"}), faults=faults, seed=3) as server:
        replies = with_client(server.base_url, use, max_retries=30)
        stats = server.stats()
    assert [reply.message.content for reply in replies] == [f"number {n}" for n in range(100)]
    assert sum(reply.call.retries for reply in replies) == stats["calls"] - 100 == sum(stats["by_fault"].values()) > 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_stall_is_a_timeout(stream: bool) -> None:
    with MockServer(script({"fault": {"kind": "stall"}})) as server, pytest.raises(ProviderTimeout, match=r"0\.2 s") as caught:
        ask(server, call_timeout=0.2, max_retries=0, stream=stream)
    assert type(caught.value) is ProviderTimeout


LONG = {"content": "one two three four five six seven eight nine ten " * 3, "fault": {"kind": "stream_stall"}}


@pytest.mark.parametrize("fields", [{"stream_timeout": 0.2}, {"call_timeout": 0.2}])
def test_a_stream_that_stops_in_the_middle(fields: dict[str, Any]) -> None:
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
