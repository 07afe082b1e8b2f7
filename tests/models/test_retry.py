"""When a call is tried again: the policy by itself. What it does in a call is in `test_asking.py`."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiseki.errors import (
    AuthError,
    BadRequest,
    ProviderError,
    ProviderOverloaded,
    ProviderTimeout,
    ProviderUnreachable,
    RateLimited,
)
from kiseki.models.rate_limit import LONGEST_ASKED
from kiseki.models.retry import Retries, parse_retry_after

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
    tries = Retries(1000, 300.0, random.Random(seed))
    for made in range(retries + 1):
        delay = tries.next_delay(ProviderOverloaded("x"), probe=False)
        assert delay is not None
        assert 0.0 <= delay <= min(60.0, 2.0**made)
        assert tries.made == made + 1


def test_no_retry_for_what_cannot_succeed_or_was_tried_enough() -> None:
    tries = Retries(2, 300.0, random.Random(0))
    assert tries.next_delay(AuthError("x"), probe=False) is None
    assert tries.next_delay(BadRequest("x"), probe=False) is None
    assert tries.next_delay(ProviderOverloaded("x", status=500), probe=False) is not None
    assert tries.next_delay(ProviderUnreachable("x"), probe=False) is not None
    assert tries.next_delay(ProviderTimeout("x"), probe=False) is None


def test_a_probe_costs_nothing() -> None:
    tries = Retries(0, 300.0, random.Random(0))
    for _ in range(50):
        assert tries.next_delay(ProviderOverloaded("x"), probe=True) is not None
    assert tries.next_delay(ProviderOverloaded("x"), probe=False) is None


@pytest.mark.parametrize("error", [RateLimited("x", status=429), ProviderOverloaded("x", status=503)])
@given(seed=st.integers(), patience=st.floats(0, 1000))
def test_being_turned_away_costs_patience_and_no_retry(error: ProviderError, seed: int, patience: float) -> None:
    tries = Retries(0, patience, random.Random(seed))
    waited = last = 0.0
    while (delay := tries.next_delay(error, probe=False)) is not None:
        waited, last = waited + delay, delay
    assert waited > patience
    assert waited - last <= patience


@given(st.integers(), st.floats(1, 100))
def test_what_it_asks_for_is_waited_at_least(seed: int, asked: float) -> None:
    tries = Retries(0, 300.0, random.Random(seed))
    waited = 0.0
    while (delay := tries.next_delay(RateLimited("x", retry_after=asked), probe=False)) is not None:
        assert delay >= asked
        waited += delay
    assert 300.0 < waited <= 300.0 + max(60.0, asked)


def test_a_day_is_not_waited_at_once() -> None:
    tries = Retries(0, 300.0, random.Random(0))
    assert tries.next_delay(RateLimited("x", retry_after=86_400.0), probe=False) == LONGEST_ASKED
