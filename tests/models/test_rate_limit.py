"""The rate limit by itself: any order of starts, ends and time, and what it does at endpoints of several kinds."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from typing import Literal, Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiseki.models.base import RateInfo
from kiseki.models.calls import CallEnd
from kiseki.models.rate_limit import CUT, GROWTH_PAUSE, LEAST, LONGEST_ASKED, LONGEST_SECONDS, RateLimit

Kind = Literal["ok", "limited", "transient", "refused", "denied", "dropped"]
amounts = st.none() | st.floats(0, 1e6)
rates = st.none() | st.builds(RateInfo, amounts, amounts, amounts, amounts)
ends = st.builds(
    CallEnd,
    st.sampled_from(["ok", "ok", "limited", "limited", "transient", "refused", "denied", "dropped"]),
    retry_after=st.none() | st.floats(0, 1e6),
    rate=rates,
)
starts = st.integers(0, 5000)
# start one of so many tokens; end the so-and-so-many-th that is under way; or let time pass
events = st.lists(st.one_of(starts, st.tuples(st.integers(0, 50), ends), st.floats(0, 100)), max_size=80)


class Endpoint:
    """A limit, the requests that are under way, and a clock."""

    def __init__(self, ceiling: int) -> None:
        self.limit = RateLimit(ceiling)
        self.now = 0.0
        self.under_way: list[int] = []
        self.newest = 0

    def start(self, tokens: int = 1) -> float:
        """Start one if that may be. Returns how long it would have had to wait."""
        seconds = self.limit.wait(self.now, tokens)
        if seconds == 0.0:
            assert len(self.under_way) < self.limit.at_once
            self.newest = self.limit.start(self.now, tokens)
            self.under_way.append(self.newest)
        return seconds

    def end(self, number: int, end: CallEnd) -> None:
        self.under_way.remove(number)
        self.limit.end(self.now, number, end)

    def succeed(self, times: int) -> None:
        """One request after the other, each as soon as it may be."""
        for _ in range(times):
            self.now += self.start()
            self.start()
            while self.under_way:
                self.end(self.under_way[0], CallEnd("ok"))

    def fill(self) -> None:
        """Start as many as may be."""
        while self.start() == 0.0:
            pass

    def play(self, event: int | tuple[int, CallEnd] | float) -> None:
        if isinstance(event, int):
            self.start(event)
        elif isinstance(event, float):
            self.now += event
        elif self.under_way:
            self.end(self.under_way[event[0] % len(self.under_way)], event[1])


@given(st.integers(1, 40), events)
def test_whatever_happens(ceiling: int, played: list[int | tuple[int, CallEnd] | float]) -> None:
    endpoint = Endpoint(ceiling)
    limit, cut_at = endpoint.limit, 0
    for event in played:
        before, number = limit.limit, 0
        if isinstance(event, tuple) and endpoint.under_way:
            number = endpoint.under_way[event[0] % len(endpoint.under_way)]
        endpoint.play(event)
        assert LEAST <= limit.limit <= ceiling
        assert 1 <= limit.at_once <= ceiling
        assert limit.in_flight == len(endpoint.under_way)
        seconds = limit.wait(endpoint.now, 1)
        assert seconds >= 0.0
        if seconds == math.inf:
            assert endpoint.under_way
        else:
            assert limit.wait(endpoint.now + max(seconds, LONGEST_ASKED), 1) == 0.0
        if not (number and isinstance(event, tuple)):
            assert limit.limit == before
        elif event[1].kind == "limited" and number > cut_at:
            cut_at = endpoint.newest
            assert limit.limit < before or before == LEAST
        elif event[1].kind != "limited":
            assert limit.limit >= before
    endpoint.under_way, waiting = [], list(endpoint.under_way)
    for number in waiting:
        limit.end(endpoint.now, number, CallEnd("dropped"))
    endpoint.now += LONGEST_ASKED + GROWTH_PAUSE
    for _ in range(3000):
        if limit.limit < ceiling:
            endpoint.succeed(1)
    assert limit.limit == ceiling


def test_one_cut_for_all_that_were_on_their_way() -> None:
    endpoint = Endpoint(100)
    endpoint.fill()
    assert len(endpoint.under_way) == 100
    endpoint.end(1, CallEnd("limited"))
    assert endpoint.limit.limit == 75.0
    for number in range(2, 21):
        endpoint.end(number, CallEnd("limited"))
    assert endpoint.limit.limit == 75.0  # 80 still have not been turned away
    for number in range(21, 41):
        endpoint.end(number, CallEnd("limited"))
    assert endpoint.limit.limit == 60.0  # so many it has in work
    for number in range(41, 101):
        endpoint.end(number, CallEnd("limited"))
    assert endpoint.limit.limit == 25.0  # a quarter, whatever they say
    endpoint.now += 1.0
    endpoint.start()
    endpoint.end(101, CallEnd("limited"))
    assert endpoint.limit.limit == 25.0 * CUT


def test_a_ceiling_that_was_never_reached_says_nothing() -> None:
    endpoint = Endpoint(1_000_000)
    for _ in range(8):
        endpoint.start()
    endpoint.end(1, CallEnd("limited"))
    assert endpoint.limit.limit == 8 * CUT


def test_growth_quickens() -> None:
    endpoint = Endpoint(100)
    endpoint.fill()
    endpoint.end(1, CallEnd("limited"))
    for number in range(2, 101):
        endpoint.end(number, CallEnd("dropped"))
    seen = [endpoint.limit.limit]
    while endpoint.limit.limit < 100:
        endpoint.succeed(1)
        if endpoint.limit.limit != seen[-1]:
            seen.append(endpoint.limit.limit)
    assert seen == [75.0, 76.0, 78.0, 81.0, 85.0, 90.0, 96.0, 100.0]


def test_a_passing_failure_stops_growth_for_a_while() -> None:
    endpoint = Endpoint(4)
    endpoint.start()
    endpoint.end(1, CallEnd("limited", retry_after=0.0))
    small = endpoint.limit.limit
    endpoint.start()
    endpoint.end(2, CallEnd("transient"))
    endpoint.succeed(100)
    assert endpoint.limit.limit == small
    endpoint.now += GROWTH_PAUSE
    endpoint.succeed(100)
    assert endpoint.limit.limit == 4


@pytest.mark.parametrize(("asked", "waited"), [(7.5, 7.5), (0.0, 0.0), (90_000.0, LONGEST_ASKED)])
def test_what_it_asks_for_is_waited_out(asked: float, waited: float) -> None:
    endpoint = Endpoint(9)
    endpoint.fill()
    endpoint.end(1, CallEnd("limited", retry_after=asked))
    for number in range(2, 10):
        endpoint.end(number, CallEnd("dropped"))
    assert endpoint.limit.wait(endpoint.now, 1) == waited


def test_pauses_of_our_own_double_until_something_succeeds() -> None:
    endpoint = Endpoint(4)
    pauses = []
    for _ in range(9):
        endpoint.start()
        endpoint.end(endpoint.newest, CallEnd("limited"))
        pauses.append(endpoint.limit.wait(endpoint.now, 1))
        endpoint.now += pauses[-1]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_SECONDS, LONGEST_SECONDS, LONGEST_SECONDS]
    endpoint.succeed(1)
    endpoint.now += 1000.0
    endpoint.start()
    endpoint.end(endpoint.newest, CallEnd("limited"))
    assert endpoint.limit.wait(endpoint.now, 1) == 1.0


def test_nothing_left_holds_until_the_reset() -> None:
    endpoint = Endpoint(10)
    endpoint.start(100)
    endpoint.end(1, CallEnd("ok", rate=RateInfo(2, 30.0, 5000, 10.0)))
    assert endpoint.start(4000) == 0.0
    assert endpoint.start(2000) == 10.0  # 1000 tokens are left
    assert endpoint.start(1000) == 0.0
    assert endpoint.start(0) == 30.0  # and no request is
    endpoint.now += 30.0
    assert endpoint.start(2000) == 0.0


def test_pauses_that_every_answer_tells_of_are_said_now_and_then() -> None:
    limit, said = RateLimit(4), []
    for second in range(200):
        assert limit.wait(second, 1) == 0.0
        changes = limit.end(second, limit.start(second, 1), CallEnd("ok", rate=RateInfo(0, 1)))
        said += [(second, change.kind) for change in changes]
    assert said == [(0, "pause"), (61, "pause"), (122, "pause"), (183, "pause")]


def test_headers_count_from_the_request_that_they_answer() -> None:
    """They are made when a request comes in; its answer may take minutes more, and be overtaken."""
    endpoint = Endpoint(10)
    for _ in range(4):
        endpoint.start()
    endpoint.now += 20.0
    endpoint.end(2, CallEnd("ok", rate=RateInfo(2, 60.0)))
    assert endpoint.start() == 40.0  # 2 of these were left, and 2 have been started since
    endpoint.end(1, CallEnd("ok", rate=RateInfo(300, 60.0)))  # older news
    assert endpoint.start() == 40.0
    endpoint.end(3, CallEnd("ok", rate=RateInfo(1, 15.0)))  # over by now
    assert endpoint.start() == 0.0


def test_below_the_ceiling_starts_are_spread() -> None:
    endpoint = Endpoint(20)
    endpoint.fill()
    endpoint.now += 10.0
    for number in range(1, 11):
        endpoint.end(number, CallEnd("ok"))
    endpoint.end(11, CallEnd("limited", retry_after=0.0))
    for number in range(12, 21):
        endpoint.end(number, CallEnd("dropped"))
    started = []
    for _ in range(5):
        endpoint.now += endpoint.start()
        endpoint.start()
        started.append(endpoint.now)
    gaps = {round(later - earlier, 6) for earlier, later in itertools.pairwise(started)}
    assert len(gaps) == 1
    assert 0.8 * 10.0 / endpoint.limit.limit <= gaps.pop() <= 10.0 / endpoint.limit.limit


class Server(Protocol):
    """How a kind of endpoint decides."""

    capacity: float
    """Requests per second, with any number of them at once."""

    def takes(self, now: float, busy: int) -> bool: ...

    def retry_after(self, now: float) -> float | None: ...

    def rate(self, now: float) -> RateInfo | None: ...


class AtOnce:
    """Takes so many at once."""

    def __init__(self, most: int, latency: float) -> None:
        self.most = most
        self.capacity = most / latency

    def takes(self, now: float, busy: int) -> bool:
        return busy < self.most

    def retry_after(self, now: float) -> float | None:
        return None

    def rate(self, now: float) -> RateInfo | None:
        return None


class TokenBucket:
    """Takes so many per minute, refilled continuously, `burst` of them at once."""

    def __init__(self, per_minute: float, burst: float, tells: str = "") -> None:
        self.capacity = per_minute / 60.0
        self._burst = self._level = burst
        self._tells = tells
        self._at = 0.0

    def takes(self, now: float, busy: int) -> bool:
        self._level, self._at = min(self._burst, self._level + (now - self._at) * self.capacity), now
        if self._level < 1.0 - 1e-6:
            return False
        self._level -= 1.0
        return True

    def retry_after(self, now: float) -> float | None:
        return (1.0 - self._level) / self.capacity if self._tells else None

    def rate(self, now: float) -> RateInfo | None:
        return RateInfo(int(self._level), (self._burst - self._level) / self.capacity) if self._tells == "headers" else None


REFUSAL_SECONDS = 0.1
WARM_UP, WARM_UP_SECONDS = 60, 300.0
"""Before it counts: so many times the latency, and so many seconds at least. As long again, and it is over."""


def simulate(server: Server, ceiling: int, latency: float) -> tuple[float, float, float]:
    """As many requests as the limit lets through. Returns, of the second half: the mean number at once that it allowed, the
    share of requests that were turned away, and the work done as a share of what was possible."""
    rng, limit = random.Random(1), RateLimit(ceiling)
    now, busy = 0.0, 0
    under_way: list[tuple[float, int, CallEnd]] = []
    begin = max(WARM_UP_SECONDS, WARM_UP * latency)
    over = 2 * begin
    allowed, ended = 0.0, {"ok": 0, "limited": 0}
    while now < over:
        seconds = limit.wait(now, 1)
        if seconds == 0.0:
            number = limit.start(now, 1)
            if server.takes(now, busy):
                busy += 1
                takes = latency * (0.5 + rng.expovariate(2.0))
                heapq.heappush(under_way, (now + takes, number, CallEnd("ok", rate=server.rate(now))))
            else:
                end = CallEnd("limited", retry_after=server.retry_after(now))
                heapq.heappush(under_way, (now + REFUSAL_SECONDS, number, end))
            continue
        then = min(now + seconds, under_way[0][0] if under_way else math.inf)
        if now >= begin:
            allowed += limit.at_once * (then - now)
        now = then
        while under_way and under_way[0][0] <= now:
            _, number, end = heapq.heappop(under_way)
            busy -= end.kind == "ok"
            if now >= begin:
                ended[end.kind] += 1
            limit.end(now, number, end)
    possible = min(server.capacity, ceiling / latency) * (over - begin)
    return allowed / (over - begin), ended["limited"] / sum(ended.values()), ended["ok"] / possible


@pytest.mark.parametrize("ceiling", [8, 64, 512])
@pytest.mark.parametrize("most", [1, 4, 10, 50])
@pytest.mark.parametrize("latency", [1.0, 20.0])
def test_it_settles_at_what_an_endpoint_takes_at_once(most: int, ceiling: int, latency: float) -> None:
    at_once, turned_away, work = simulate(AtOnce(most, latency), ceiling, latency)
    assert min(most, ceiling) / 3 <= at_once <= 1.5 * most
    assert turned_away < 0.15
    assert work > 0.6


@pytest.mark.parametrize("tells", ["", "retry_after", "headers"])
@pytest.mark.parametrize("burst", [1.0, 60.0])
@pytest.mark.parametrize(("per_minute", "latency"), [(30, 1.0), (30, 20.0), (600, 5.0)])
@pytest.mark.parametrize("ceiling", [8, 64, 512])
def test_it_settles_at_what_an_endpoint_takes_per_minute(
    per_minute: int, latency: float, burst: float, ceiling: int, tells: str
) -> None:
    _, turned_away, work = simulate(TokenBucket(per_minute, burst, tells), ceiling, latency)
    assert turned_away < 0.15
    assert work > 0.6
