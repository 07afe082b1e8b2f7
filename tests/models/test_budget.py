"""The budget by itself."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiseki.models.budget import REPLY_TOKENS, Budget, Need
from kiseki.models.calls import DROPPED, NOT_SENT, CallEnd
from kiseki.models.prices import Price

# In prices that floats hold exactly, so that sums are exact whatever their order.
PRICE = Price(input=2.0**-12, output=2.0**-10)
How = Literal["part", "all", "unknown", "not_sent", "error"]
calls = st.tuples(st.just("call"), st.integers(1, 5000), st.integers(0, 100))
ended = st.tuples(st.sampled_from(["part", "all", "unknown", "not_sent", "error"]), st.integers(0, 50), st.integers(0, 100))
events = st.lists(st.one_of(calls, ended), max_size=80)
# dollars
costs = st.none() | st.integers(1, 200).map(lambda quarters: quarters / 4)
totals = st.none() | st.integers(1, 100_000)


def end_of(how: str, need: Need, prompt_tokens: int, reply_tokens: int) -> CallEnd:
    """A call that ended so, `reply_tokens` long where it was whole."""
    if how in ("part", "all"):
        tokens = prompt_tokens + reply_tokens
        return CallEnd("ok", tokens, PRICE.of(prompt_tokens, reply_tokens), completion_tokens=reply_tokens)
    return {"unknown": DROPPED, "not_sent": NOT_SENT, "error": CallEnd("limited")}[how]


@given(costs, totals, st.integers(1, 5000), events)
def test_never_more_than_the_maximum(
    max_cost: float | None, max_tokens: int | None, reply_tokens: int, played: list[tuple[str, int, int]]
) -> None:
    """With a fixed length of replies the worst case is exact."""
    budget = Budget(max_cost=max_cost, max_tokens=max_tokens, price=PRICE, reply_tokens=reply_tokens)
    under_way: list[tuple[Need, int]] = []
    spent = unknown = Need()
    for what, number, share in played:
        if what == "call":
            need = budget.worst_case(number)
            allowed = budget.ask(need)
            if allowed == "yes":
                budget.reserve(need)
                under_way.append((need, number))
            elif allowed == "wait":
                assert under_way
            else:
                assert max_cost is not None or max_tokens is not None
                assert budget.cost + need.cost > (max_cost or 1e9) or budget.tokens + need.tokens > (max_tokens or 1e9)
        elif under_way:
            need, prompt_tokens = under_way.pop(number % len(under_way))
            end = end_of(what, need, prompt_tokens, reply_tokens if what == "all" else reply_tokens * share // 100)
            budget.settle(need, end)
            took = Need(end.cost, end.tokens) if end.known else need
            spent = Need(spent.cost + took.cost, spent.tokens + took.tokens)
            if not end.known:
                unknown = Need(unknown.cost + need.cost, unknown.tokens + need.tokens)
        assert Need(budget.cost, budget.tokens) == spent
        assert budget.unknown == unknown
        reserved = Need(sum(need.cost for need, _ in under_way), sum(need.tokens for need, _ in under_way))
        assert Need(budget.reserved_cost, budget.reserved_tokens) == reserved
        assert max_cost is None or budget.cost + budget.reserved_cost <= max_cost
        assert max_tokens is None or budget.tokens + budget.reserved_tokens <= max_tokens


@given(st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=30))
def test_reservations_return_to_zero(prices: list[float]) -> None:
    """Also where rounding would leave something of them."""
    budget = Budget(max_cost=1e6)
    needs = [Need(cost, 10) for cost in prices]
    for need in needs:
        budget.reserve(need)
    for need in needs:
        budget.settle(need, NOT_SENT)
    assert (budget.reserved_cost, budget.reserved_tokens) == (0.0, 0)
    assert (budget.cost, budget.tokens) == (0.0, 0)


def test_what_is_under_way_may_take_less() -> None:
    budget = Budget(max_cost=10.0, price=PRICE, reply_tokens=4096)
    need = budget.worst_case(4096)
    assert need == Need(5.0, 8192)
    for allowed in ("yes", "yes", "wait"):
        assert budget.ask(need) == allowed
        if allowed == "yes":
            budget.reserve(need)
    budget.settle(need, CallEnd("ok", tokens=4100, cost=1.0, completion_tokens=4))
    assert budget.ask(need) == "wait"
    budget.settle(need, CallEnd("ok", tokens=4100, cost=1.0, completion_tokens=4))
    assert budget.ask(need) == "yes"
    budget.reserve(need)
    budget.settle(need, DROPPED)
    assert budget.ask(need) == "no"
    assert (budget.cost, budget.unknown.cost) == (7.0, 5.0)


def test_a_reply_is_taken_to_be_as_long_as_the_longest_so_far() -> None:
    budget = Budget(max_tokens=100_000)
    assert budget.worst_case(1000).tokens == 1000 + REPLY_TOKENS
    need = budget.worst_case(1000)
    budget.reserve(need)
    budget.settle(need, CallEnd("ok", tokens=21_000, completion_tokens=20_000))
    assert budget.worst_case(1000).tokens == 21_000


@pytest.mark.parametrize(
    ("fields", "need", "allowed"),
    [
        ({}, Need(1e9, 10**12), "yes"),
        ({"max_cost": 2.0}, Need(2.0, 10**12), "yes"),
        ({"max_cost": 2.0}, Need(2.5, 1), "no"),
        ({"max_tokens": 100}, Need(1e9, 100), "yes"),
        ({"max_tokens": 100}, Need(0.0, 101), "no"),
        ({"max_cost": 2.0, "spent": Need(1.5, 0)}, Need(1.0, 1), "no"),
        ({"max_cost": 0.0}, Need(0.0, 100), "yes"),  # what costs nothing
    ],
)
def test_what_fits(fields: dict[str, Any], need: Need, allowed: str) -> None:
    assert Budget(**fields).ask(need) == allowed


def test_words() -> None:
    budget = Budget(max_cost=2.5, max_tokens=2_000_000, spent=Need(1.23456, 1_234_567))
    assert budget.words() == "$1.2346 of --max_cost=$2.5 and 1,234,567 of --max_total_tokens=2,000,000"
