"""A model that is asked through its admission: retries, limits and deadlines, against the mock server over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Any

import pytest
from support import BREAKER_PATIENCE, FakeTime, until, with_client

from kiseki.errors import (
    AuthError,
    BadResponse,
    PromptBudgetSpent,
    ProviderError,
    ProviderOverloaded,
    ProviderTimeout,
    ProviderUnreachable,
    RateLimited,
    RunStopped,
    StreamStalled,
)
from kiseki.models.admission import Admission, LocalDoor
from kiseki.models.allowance import Allowance
from kiseki.models.asking import AskedModel
from kiseki.models.base import ChatReply, ChatRequest
from kiseki.models.breaker import Breaker
from kiseki.models.budget import Budget
from kiseki.models.endpoints import ModelSettings
from kiseki.models.mock_server import MockServer
from kiseki.models.prices import Price
from kiseki.models.rate_limit import LEAST_ROUND, RateLimit
from kiseki.trajectory.types import Message, ModelCall, Usage

PROMPT = (Message("user", "What time is it?"),)
REQUEST = ChatRequest(PROMPT)


def ask(server: MockServer, **fields: Any) -> ChatReply:
    return with_client(server.base_url, lambda client: client.complete(ChatRequest(PROMPT)), **fields)


def numbered(count: int) -> list[ChatRequest]:
    return [ChatRequest((Message("user", f"number {number}"),)) for number in range(count)]


STEPS = 5
"""Of the event loop that a `FakeClient`'s request takes."""


class FakeClient:
    """A `ChatClient` whose requests each end as told, the last one for ever; a request that is to end with None does not."""

    def __init__(self, *ends: ChatReply | ProviderError | None) -> None:
        self.ends = list(ends)
        self.asked: list[str] = []

    def encode(self, request: ChatRequest) -> tuple[str, int]:
        return request.messages[0].content, 300

    async def send(self, encoded: str) -> tuple[ChatReply, None]:
        self.asked.append(encoded)
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        for _ in range(STEPS):
            await asyncio.sleep(0)
        if end is None:
            await asyncio.Event().wait()
        elif isinstance(end, ProviderError):
            raise end
        assert isinstance(end, ChatReply)
        return end, None

    async def close(self) -> None: ...


def reply(**usage: Any) -> ChatReply:
    call = ModelCall(0.0, 1.0, usage=Usage(**usage), usage_reported=bool(usage), cost_reported="cost" in usage)
    return ChatReply(Message("assistant", "Noon."), call)


def asked(client: FakeClient, ceiling: int, **fields: Any) -> tuple[AskedModel, Budget]:
    """The model on an event loop that runs, and what its admission spends."""
    time, budget = FakeTime(), Budget(price=fields.get("price"), reply_tokens=100)
    admission = Admission(RateLimit(ceiling), Breaker(BREAKER_PATIENCE), budget, clock=time.clock, later=time.later)
    return AskedModel(client, LocalDoor(admission), ModelSettings("m", **fields), sleep=time.sleep), budget


WORST = 101 + 100
"""Tokens of a `FakeClient`'s call: 300 bytes sent, and the reply."""


@pytest.mark.parametrize(
    ("end", "tokens", "unknown"),
    [
        (reply(prompt_tokens=20, completion_tokens=5), 25, 0),
        (reply(), WORST, WORST),
        (RateLimited("x", status=429), 0, 0),
        (ProviderOverloaded("x", status=500), 0, 0),
        (AuthError("x", status=401), 0, 0),
        (ProviderTimeout("x"), WORST, WORST),
        (StreamStalled("x"), WORST, WORST),
        (BadResponse("x"), WORST, WORST),
        (ProviderUnreachable("x"), WORST, WORST),
        (ProviderUnreachable("x", sent=False), 0, 0),
    ],
)
def test_what_a_request_is_taken_to_have_cost(end: ChatReply | ProviderError, tokens: int, unknown: int) -> None:
    async def scenario() -> None:
        model, budget = asked(FakeClient(end, reply(prompt_tokens=1)), 1, max_retries=0)
        try:
            await model.complete(REQUEST)
        except ProviderError:
            pass
        else:
            budget.tokens -= isinstance(end, RateLimited)  # of the request that was answered
        assert (budget.tokens, budget.unknown.tokens, budget.reserved_tokens) == (tokens, unknown, 0)

    asyncio.run(scenario())


def test_a_call_that_nobody_wants_any_more() -> None:
    """Under way it may cost all that it can; while it waits, nothing."""

    async def scenario() -> None:
        client = FakeClient(None)
        model, budget = asked(client, 1)
        calls = [asyncio.create_task(model.complete(request)) for request in numbered(3)]
        await asyncio.sleep(0)
        assert client.asked == ["number 0"]
        calls[1].cancel()
        await asyncio.sleep(0)
        assert (budget.tokens, budget.reserved_tokens) == (0, WORST)
        calls[0].cancel()
        while len(client.asked) < 2:
            await asyncio.sleep(0)
        assert client.asked == ["number 0", "number 2"]
        assert (budget.tokens, budget.unknown.tokens, budget.reserved_tokens) == (WORST, WORST, WORST)
        calls[2].cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(scenario())


def test_a_call_that_is_given_up_at_the_moment_when_it_is_let_in() -> None:
    async def scenario() -> None:
        client = FakeClient(None)
        model, budget = asked(client, 1)
        calls = [asyncio.create_task(model.complete(request)) for request in numbered(2)]
        for call in calls:  # the first one's end lets the second in
            await asyncio.sleep(0)
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert client.asked == ["number 0"]
        assert (budget.tokens, budget.reserved_tokens) == (WORST, 0)

    asyncio.run(scenario())


def test_a_call_that_is_tried_again_goes_ahead() -> None:
    async def scenario() -> None:
        client = FakeClient(ProviderOverloaded("x", status=500), reply(prompt_tokens=1))
        model, _ = asked(client, 1)
        await asyncio.gather(*(model.complete(request) for request in numbered(4)))
        assert client.asked == ["number 0", "number 1", "number 0", "number 2", "number 3"]  # the 2nd came while it paused

    asyncio.run(scenario())


class Held(contextlib.AbstractContextManager[None]):
    """Counts how often it was entered, and is."""

    def __init__(self) -> None:
        self.times = self.now = 0

    def __enter__(self) -> None:
        self.times += 1
        self.now += 1

    def __exit__(self, *error: object) -> None:
        self.now -= 1


def test_waiting_to_be_let_in_is_put_on_hold() -> None:
    async def scenario() -> None:
        client = FakeClient(reply(prompt_tokens=1))
        model, _ = asked(client, 1)
        holds = [Held(), Held()]
        calls = [asyncio.create_task(model.complete(request, hold)) for request, hold in zip(numbered(2), holds, strict=True)]
        await asyncio.sleep(0)
        assert (holds[0].now, holds[1].now) == (0, 1)
        await asyncio.gather(*calls)
        assert [(hold.now, hold.times) for hold in holds] == [(0, 0), (0, 1)]

    asyncio.run(scenario())


def test_a_pause_before_another_try_is_put_on_hold() -> None:
    async def scenario() -> None:
        model, _ = asked(FakeClient(ProviderOverloaded("x", status=500), reply(prompt_tokens=1)), 1)
        hold = Held()
        await model.complete(REQUEST, hold)
        assert (hold.now, hold.times) == (0, 1)

    asyncio.run(scenario())


def test_the_price_says_what_the_endpoint_does_not() -> None:
    async def scenario() -> None:
        price = Price(input=0.5, output=2.0)
        client = FakeClient(reply(prompt_tokens=2, completion_tokens=3), reply(prompt_tokens=2, completion_tokens=3, cost=5.0))
        model, budget = asked(client, 1, price=price)
        assert (await model.complete(REQUEST)).call.usage.cost == 7.0
        assert (await model.complete(REQUEST)).call.usage.cost == 5.0
        assert budget.cost == 12.0

    asyncio.run(scenario())


def test_a_rollout_s_own_budget() -> None:
    async def scenario() -> None:
        client = FakeClient(reply(prompt_tokens=2))
        model, _ = asked(client, 1, price=Price(input=0.5, output=2.0), max_tokens=100)
        worst = 101 * 0.5 + 100 * 2.0
        await model.complete(ChatRequest(PROMPT, allowance=Allowance(worst)))
        with pytest.raises(PromptBudgetSpent, match=r"may cost \$250\.5000, and \$250\.0000 are left"):
            await model.complete(ChatRequest(PROMPT, allowance=Allowance(worst - 0.5)))
        assert len(client.asked) == 1

    asyncio.run(scenario())


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


@pytest.mark.parametrize(("before", "waited"), [(0, 0.0), (LEAST_ROUND, 40.0)])
def test_retry_after_holds_others_back_where_it_is_not_one_call_s_own(before: int, waited: float) -> None:
    time = FakeTime()
    rules = [
        {"match": "limited", "turns": [{"content": "a", "fault": {"kind": "rate_limit", "retry_after": 40}}]},
        {"turns": [{"content": "b"}]},
    ]

    async def use(client: AskedModel) -> None:
        for _ in range(before // 2):
            with pytest.raises(RateLimited):
                await client.complete(ChatRequest((Message("user", "limited"),)))
        began = time.now
        await client.complete(ChatRequest((Message("user", "free"),)))
        assert time.now - began == waited

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
    with MockServer(fail_after=1, fail_kind="error_503") as server:

        async def use(client: AskedModel) -> None:
            calls = [client.complete(ChatRequest((Message("user", text),))) for text in ("one", "two")]
            for error in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(error, RunStopped | ProviderOverloaded)
                if isinstance(error, RunStopped):
                    assert re.match("no model call.*HTTP 503", str(error))

        with_client(server.base_url, use, time=time, provider_patience=1000.0)
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
    assert stats["by_status"] == {"200": 3, "429": 2}
    assert time.now >= 2 * 59.0


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
