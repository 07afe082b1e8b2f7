"""Models that are asked where the run's own is gone or refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from kiseki.errors import AuthError, BadRequest, ContextLengthExceeded, ProviderError
from kiseki.models.admission import Admission, LocalDoor
from kiseki.models.asking import AskedModel
from kiseki.models.base import ChatModel, ChatReply, ChatRequest, Encoded
from kiseki.models.breaker import Breaker
from kiseki.models.budget import Budget
from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import open_client, open_model, own_door
from kiseki.models.fallback import AWAY_SECONDS, FallbackModel
from kiseki.models.mock_server import MockServer
from kiseki.models.prices import Price
from kiseki.models.rate_limit import RateLimit
from kiseki.trajectory.record import usage_of
from kiseki.trajectory.types import Message, ModelCall, Record, ToolCall, Usage

PROMPT = (Message("user", "hi"),)
ANSWER: list[dict[str, Any]] = [{"turns": [{"content": "from {{model}}"}]}]


def failing(kind: str) -> list[dict[str, Any]]:
    usage = {"prompt_tokens": 40, "completion_tokens": 2, "total_tokens": 42}
    return [{"turns": [{"content": "from {{model}}", "usage": usage, "fault": {"kind": kind}}]}]


def ask(first: MockServer, *others: MockServer, requests: Sequence[ChatRequest] = (ChatRequest(PROMPT),)) -> list[ChatReply]:
    """The replies of the model "own", which falls back to "other-0", "other-1", … in one process."""
    fallback = tuple(ModelSettings(f"other-{at}", each.base_url, max_retries=0) for at, each in enumerate(others))
    settings = ModelSettings("own", first.base_url, max_retries=0, fallback=fallback)

    async def run() -> list[ChatReply]:
        model: ChatModel = open_model(settings)
        try:
            return [await model.complete(request) for request in requests]
        finally:
            await model.close()

    return asyncio.run(run())


def test_a_model_that_answers_is_the_only_one_asked() -> None:
    with MockServer(ANSWER) as own, MockServer(ANSWER) as other:
        (reply,) = ask(own, other)
        assert (reply.message.content, reply.call.fallback) == ("from own", "")
        assert other.stats()["calls"] == 0


def test_a_model_that_is_gone_is_asked_once() -> None:
    with MockServer(failing("no_model")) as own, MockServer(ANSWER) as other:
        replies = ask(own, other, requests=[ChatRequest(PROMPT)] * 3)
        assert [(each.message.content, each.call.fallback) for each in replies] == [("from other-0", "other-0")] * 3
        assert own.stats()["calls"] == 1


def test_one_that_has_answered_is_not_gone_for_what_it_says_of_one_prompt() -> None:
    rules = [{"match": "odd", "turns": [{"fault": {"kind": "no_model"}}]}, *ANSWER]
    with MockServer(rules) as own, MockServer(ANSWER) as other:
        odd = ChatRequest((Message("user", "odd"),))
        replies = ask(own, other, requests=[ChatRequest(PROMPT), odd, ChatRequest(PROMPT)])
    assert [each.call.fallback for each in replies] == ["", "other-0", ""]


@pytest.mark.parametrize("kind", ["bad_request", "content_filter"])
def test_one_that_refuses_is_asked_again_next_time(kind: str) -> None:
    with MockServer(failing(kind)) as own, MockServer(ANSWER) as other:
        replies = ask(own, other, requests=[ChatRequest(PROMPT)] * 2)
        assert [each.call.fallback for each in replies] == ["other-0"] * 2
        assert own.stats()["calls"] == 2


@pytest.mark.parametrize("kind", ["error_500", "not_json", "reset"])
def test_one_that_fails_is_left_alone_for_a_while(kind: str) -> None:
    async def run() -> list[str]:
        now = 0.0
        models = [(each.model, AskedModel(open_client(each), own_door(each), each, falls_back=True)) for each in (own, other)]
        model = FallbackModel(models, clock=lambda: now)
        replies = []
        for moment in (0.0, 1.0, AWAY_SECONDS - 1, AWAY_SECONDS + 1):
            now = moment
            replies.append(await model.complete(ChatRequest(PROMPT)))
        await model.close()
        return [each.call.fallback for each in replies]

    with MockServer(failing(kind)) as first, MockServer(ANSWER) as second:
        own = ModelSettings("own", first.base_url, max_retries=0)
        other = ModelSettings("other", second.base_url)
        assert asyncio.run(run()) == ["other"] * 4
        assert first.stats()["calls"] == 2


def test_an_outage_of_a_model_with_a_fallback_holds_up_and_stops_nothing() -> None:
    with MockServer(failing("error_500")) as own, MockServer(ANSWER) as other:
        fallback = (ModelSettings("other", other.base_url, max_retries=0),)
        settings = ModelSettings("own", own.base_url, max_retries=0, provider_patience=0.01, fallback=fallback)

        async def run() -> tuple[list[ChatReply], str]:
            admission = Admission(RateLimit(50), Breaker(0.01), Budget())
            model = open_model(settings, LocalDoor(admission))
            try:
                replies = await asyncio.gather(*(model.complete(ChatRequest(PROMPT)) for _ in range(30)))
            finally:
                await model.close()
            return replies, admission.breaker.stopped or admission.words()

        replies, holds = asyncio.run(run())
    assert {each.call.fallback for each in replies} == {"other"} and holds == ""


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_fallback_at_the_same_place_keeps_to_its_limits(elsewhere: bool) -> None:
    with MockServer(failing("no_model"), latency=0.02) as own, MockServer(ANSWER, latency=0.02) as other:
        there = other.base_url if elsewhere else own.base_url
        settings = ModelSettings("own", own.base_url, fallback=(ModelSettings("m", there, max_retries=0),))

        async def run() -> None:
            model = open_model(settings, LocalDoor(Admission(RateLimit(2), Breaker(300), Budget())))
            try:
                await asyncio.gather(*(model.complete(ChatRequest(PROMPT)) for _ in range(20)), return_exceptions=True)
            finally:
                await model.close()

        asyncio.run(run())
        assert own.stats()["peak_in_flight"] <= 2
        assert other.stats()["calls"] == (20 if elsewhere else 0)


def test_what_a_refusal_took_is_counted_once_and_apart() -> None:
    with MockServer(failing("content_filter"), report_cost=False) as own, MockServer(ANSWER) as other:
        (reply,) = ask(own, other)
    assert reply.call.refused == Usage(prompt_tokens=40, completion_tokens=2)
    assert reply.call.usage.prompt_tokens < 40
    record = Record("k", 0, 1, 0, PROMPT, 1, "completed", "answered", "own", (), "", calls=(reply.call,))
    assert usage_of(record).prompt_tokens == reply.call.usage.prompt_tokens + 40


@pytest.mark.parametrize(
    ("kind", "error"), [("auth", AuthError), ("no_credit", AuthError), ("context_length", ContextLengthExceeded)]
)
def test_what_the_next_model_would_meet_too_is_no_reason(kind: str, error: type[ProviderError]) -> None:
    with MockServer(failing(kind)) as own, MockServer(ANSWER) as other:
        with pytest.raises(error):
            ask(own, other)
        assert other.stats()["calls"] == 0


def test_each_in_its_order_and_the_last_ones_word_counts() -> None:
    with MockServer(failing("no_model")) as own, MockServer(failing("content_filter")) as second, MockServer(ANSWER) as third:
        assert ask(own, second, third)[0].call.fallback == "other-1"
    with MockServer(failing("no_model")) as own, MockServer(failing("content_filter")) as second:
        (reply,) = ask(own, second)
        assert (reply.call.finish_reason, reply.call.fallback) == ("content_filter", "other-0")
    with MockServer(failing("bad_request")) as own, MockServer(failing("bad_request")) as second, pytest.raises(BadRequest):
        ask(own, second)


def test_where_all_fail_each_is_named() -> None:
    with answering("own is odd") as own, answering("other is odd") as other, pytest.raises(BadRequest) as caught:
        ask(own, other)
    assert str(caught.value) == "other-0: HTTP 400: other is odd (before it, own: HTTP 400: own is odd)"


def test_a_filtered_reply_that_was_paid_for_is_the_reply_where_no_other_is() -> None:
    with MockServer(failing("content_filter")) as own, MockServer(failing("bad_request")) as second:
        (reply,) = ask(own, second)
    assert (reply.call.finish_reason, reply.call.fallback, reply.call.usage.prompt_tokens) == ("content_filter", "", 40)
    with (
        MockServer(failing("content_filter")) as own,
        MockServer(failing("content_filter")) as second,
        MockServer(failing("bad_request")) as third,
    ):
        (reply,) = ask(own, second, third)
    assert (reply.call.fallback, reply.call.usage.prompt_tokens, reply.call.refused.prompt_tokens) == ("other-0", 40, 40)


def test_refusals_of_a_model_with_a_fallback_do_not_stop_a_run() -> None:
    with MockServer(failing("bad_request")) as own, MockServer(ANSWER) as other:
        replies = ask(own, other, requests=[ChatRequest(PROMPT)] * 60)
    assert {each.call.fallback for each in replies} == {"other-0"}


def test_what_one_model_signed_goes_back_to_it_alone() -> None:
    details = [{"type": "reasoning.text", "text": "hm", "signature": "mine"}]
    turn = {"tool_calls": [{"name": "look", "arguments": {}}], "message": {"reasoning_details": details}}
    refusing = [{"turns": [turn, {"content": "done", "fault": {"kind": "content_filter"}}]}]
    answering = [{"turns": [turn, {"content": "done"}]}]
    with MockServer(refusing, record=9) as own, MockServer(answering, record=9) as other:
        encoded = Encoded()
        (first,) = ask(own, other, requests=[ChatRequest(PROMPT, encoded=encoded)])
        assert first.message.provider_fields["reasoning_details"] == details
        call = ToolCall("c1", "look", "{}")
        said = Message("assistant", provider_fields=first.message.provider_fields, tool_calls=(call,), reasoning="hm")
        messages = (*PROMPT, said, Message("tool", "seen", tool_call_id="c1", name="look"))
        (second,) = ask(own, other, requests=[ChatRequest(messages, encoded=encoded)])
        assert second.call.fallback == "other-0"
        sent_own = own.stats(log=True)["log"][-1]["body"]["messages"][1]
        sent_other = other.stats(log=True)["log"][-1]["body"]["messages"][1]
    assert sent_own["reasoning_details"] == details
    assert "reasoning_details" not in sent_other and "answered_by" not in sent_other | sent_own
    assert sent_other["reasoning"] == "hm"


def answering(words: str) -> Any:
    """A server that refuses everything with these words."""
    return MockServer([{"turns": [{"fault": {"kind": "bad_request", "words": words}}]}])


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("my-model is not a valid model ID", 1),
        ("The model `llama-2` has been decommissioned and is no longer supported.", 1),
        ("Model Not Exist: no such model", 1),
        ("Invalid value for 'messages'.", 3),
        ("this model does not support tools", 3),
    ],
)
def test_words_for_a_model_that_is_gone(words: str, asked: int) -> None:
    with answering(words) as own, MockServer(ANSWER) as other:
        ask(own, other, requests=[ChatRequest(PROMPT)] * 3)
        assert own.stats()["calls"] == asked


def test_where_all_calls_are_turned_away_the_fallback_is_asked_after_a_while() -> None:
    with MockServer(rate_limit_every=1, retry_after=0.01) as own, MockServer(ANSWER) as other:
        fallback = (ModelSettings("other", other.base_url, max_retries=0),)
        settings = ModelSettings("own", own.base_url, provider_patience=0.5, fallback=fallback)

        async def run() -> list[ChatReply]:
            model = open_model(settings, LocalDoor(Admission(RateLimit(8), Breaker(0.5), Budget())))
            try:
                return await asyncio.gather(*(model.complete(ChatRequest(PROMPT)) for _ in range(8)))
            finally:
                await model.close()

        replies = asyncio.run(run())
    assert [each.call.fallback for each in replies] == ["other"] * 8


def test_a_fallbacks_calls_are_priced_by_its_own_price() -> None:
    with MockServer(failing("no_model")) as own, MockServer(ANSWER, report_cost=False) as other:
        price = Price(input=1.0, output=2.0)
        fallback = (ModelSettings("dear", other.base_url, price=price),)
        settings = ModelSettings("own", own.base_url, price=Price(), fallback=fallback)

        async def run() -> ModelCall:
            model = open_model(settings)
            try:
                return (await model.complete(ChatRequest(PROMPT))).call
            finally:
                await model.close()

        call = asyncio.run(run())
    assert call.usage.cost == price.of_usage(call.usage) > 0
