"""What `x-ratelimit-*` headers say."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiseki.models.base import RateInfo
from kiseki.models.rate_headers import parse_rate

NOW = 1_700_000_000.0
REQUESTS, TOKENS = "x-ratelimit-remaining-requests", "x-ratelimit-remaining-tokens"


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [
        ("1s", 1.0),
        ("20ms", 0.02),
        ("6m0s", 360.0),
        ("1m30.5s", 90.5),
        ("2h", 7200.0),
        ("1d2h3m4s", 93784.0),
        ("0s", 0.0),
        ("59", 59.0),
        (" 1.5 ", 1.5),
        (str(NOW + 12), 12.0),
        (str((NOW + 12) * 1000), 12.0),
        (str(NOW - 12), 0.0),
        ("-3", None),
        ("nan", None),
        ("soon", None),
        ("1x", None),
        ("6m 0s", None),
        ("2023-11-14T22:13:30Z", None),
        ("", None),
    ],
)
def test_reset(reset: str, seconds: float | None) -> None:
    rate = parse_rate({REQUESTS: "0", "x-ratelimit-reset-requests": reset}, NOW)
    assert rate is not None
    assert rate.requests_reset == (None if seconds is None else pytest.approx(seconds))


def test_as_openai_names_them() -> None:
    headers = {
        "x-ratelimit-limit-requests": "60",
        REQUESTS: "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "150000",
        TOKENS: "149984",
        "x-ratelimit-reset-tokens": "6m0s",
    }
    assert parse_rate(headers, NOW) == RateInfo(59.0, 1.0, 149984.0, 360.0)


def test_as_openrouter_names_them() -> None:
    headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": str(int(NOW + 60) * 1000)}
    assert parse_rate(headers, NOW) == RateInfo(0.0, 60.0, tokens_reset=60.0)


@pytest.mark.parametrize("unit", [1, 1000])
def test_a_time_is_meant_by_the_endpoint_s_clock(unit: int) -> None:
    """Where it tells it: ours is an hour off. One that cannot be read is none."""
    headers = {REQUESTS: "0", "x-ratelimit-reset": str(int(NOW + 60) * unit)}
    assert parse_rate({**headers, "Date": "Tue, 14 Nov 2023 22:13:20 GMT"}, NOW - 3600) == RateInfo(0.0, 60.0, tokens_reset=60.0)
    assert parse_rate({**headers, "Date": "today"}, NOW) == RateInfo(0.0, 60.0, tokens_reset=60.0)


def test_only_what_is_said() -> None:
    assert parse_rate({}, NOW) is None
    assert parse_rate({"x-ratelimit-limit-requests": "60", "x-ratelimit-reset-requests": "1s"}, NOW) is None
    assert parse_rate({TOKENS: "7"}, NOW) == RateInfo(tokens_left=7.0)
    assert parse_rate({TOKENS: "many", REQUESTS: "-1"}, NOW) == RateInfo()


@given(
    st.dictionaries(st.sampled_from([REQUESTS, TOKENS, "x-ratelimit-reset", "x-ratelimit-reset-tokens"]), st.text(max_size=30))
)
def test_any_text_is_a_sensible_number_or_none(headers: dict[str, str]) -> None:
    rate = parse_rate(headers, NOW)
    if rate is not None:
        for value in (rate.requests_left, rate.requests_reset, rate.tokens_left, rate.tokens_reset):
            assert value is None or (value >= 0.0 and not math.isnan(value))


def test_as_anthropic_names_them() -> None:
    headers = {
        "anthropic-ratelimit-requests-limit": "4000",
        "anthropic-ratelimit-requests-remaining": "3999",
        "anthropic-ratelimit-requests-reset": "2023-11-14T22:13:35Z",
        "anthropic-ratelimit-input-tokens-remaining": "2000000",
        "anthropic-ratelimit-tokens-remaining": "49000",
        "anthropic-ratelimit-tokens-reset": "2023-11-14T23:13:22.5+01:00",
    }
    assert parse_rate(headers, NOW) == RateInfo(3999.0, 15.0, 49000.0, 2.5)
    there = {**headers, "Date": "Tue, 14 Nov 2023 22:13:30 GMT"}
    assert parse_rate(there, 0.0) == RateInfo(3999.0, 5.0, 49000.0, 0.0)
    for wrong in ("", "soon", "2023-11-14T22:13:35", "60"):
        assert parse_rate({**headers, "anthropic-ratelimit-requests-reset": wrong}, NOW) == RateInfo(3999.0, None, 49000.0, 2.5)
    assert parse_rate({"anthropic-ratelimit-requests-limit": "4000"}, NOW) is None
