"""The retry policy, its driver and the shared pause, on a clock of their own: nothing here sleeps."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import FakeTime

from kiseki.errors import AuthError, BadRequest, ProviderError, ProviderOverloaded, RateLimited
from kiseki.models.retry import Pause, RetryPolicy, next_delay, parse_retry_after, with_retries

NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "Retry-After": "7"}, 0.25),
        ({"Retry-After": "Tue, 14 Nov 2023 22:13:30 GMT"}, 10.0),
        ({"Retry-After": "Tue, 14 Nov 2023 22:13:00 GMT"}, 0.0),
        ({"retry-after-ms": "soon", "Retry-After": "7"}, 7.0),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({}, None),
    ],
)
def test_retry_after(headers: dict[str, str], seconds: float | None) -> None:
    assert parse_retry_after(headers, NOW) == seconds


@given(st.integers(0, 200), st.integers())
def test_jitter_stays_within_the_exponential_cap(retries: int, seed: int) -> None:
    delay = next_delay(RetryPolicy(max_retries=1000), ProviderOverloaded("x"), retries, random.Random(seed))
    assert delay is not None
    assert 0.0 <= delay <= min(60.0, 2.0**retries)


@given(st.floats(0, 10_000), st.integers(0, 20), st.integers())
def test_what_the_endpoint_asks_for_is_waited_out_up_to_the_cap(asked: float, retries: int, seed: int) -> None:
    policy = RetryPolicy(max_retries=1000)
    delay = next_delay(policy, RateLimited("x", retry_after=asked), retries, random.Random(seed))
    assert delay is not None
    assert min(asked, policy.retry_after_cap) <= delay <= policy.retry_after_cap + policy.base


def test_no_retry_for_what_cannot_succeed_or_was_tried_enough() -> None:
    policy, rng = RetryPolicy(max_retries=2), random.Random(0)
    assert next_delay(policy, AuthError("x"), 0, rng) is None
    assert next_delay(policy, BadRequest("x"), 0, rng) is None
    assert next_delay(policy, RateLimited("x"), 1, rng) is not None
    assert next_delay(policy, RateLimited("x"), 2, rng) is None


def run_with(errors: list[ProviderError], fake: FakeTime, pause: Pause, retries: int = 5) -> tuple[str, int]:
    left = list(errors)

    async def attempt() -> str:
        if left:
            raise left.pop(0)
        return "reply"

    return asyncio.run(with_retries(attempt, RetryPolicy(max_retries=retries), random.Random(1), pause))


def test_the_driver_retries_and_counts() -> None:
    fake = FakeTime()
    assert run_with([RateLimited("a"), ProviderOverloaded("b")], fake, fake.pause()) == ("reply", 2)
    assert len(fake.slept) == 2


def test_the_driver_gives_up_with_the_last_error() -> None:
    fake = FakeTime()
    with pytest.raises(ProviderOverloaded, match="b"):
        run_with([RateLimited("a"), ProviderOverloaded("b")], fake, fake.pause(), retries=1)
    with pytest.raises(AuthError):
        run_with([AuthError("no")], fake, fake.pause())


def test_a_retry_after_holds_every_call_back() -> None:
    async def scenario() -> None:
        fake = FakeTime()
        pause = fake.pause()
        asked_at: list[float] = []
        first = True

        async def attempt() -> str:
            nonlocal first
            asked_at.append(fake.now)
            if first:
                first = False
                raise RateLimited("slow down", retry_after=100.0)
            return "reply"

        policy = RetryPolicy()
        await with_retries(attempt, policy, random.Random(1), pause)
        pause.extend(50.0)
        await with_retries(attempt, policy, random.Random(2), pause)
        assert asked_at[0] == 0.0
        assert asked_at[1] >= 100.0
        assert asked_at[2] >= asked_at[1] + 50.0

    asyncio.run(scenario())


def test_a_refusal_for_good_pauses_nobody() -> None:
    fake = FakeTime()
    pause = fake.pause()
    with pytest.raises(AuthError):
        run_with([AuthError("no", retry_after=60.0)], fake, pause)
    assert pause.remaining() == 0.0
