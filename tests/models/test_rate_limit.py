"""The rate limit by itself: any order of starts, ends and time, and what it does at endpoints of several kinds."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiseki.models.base import RateInfo
from kiseki.models.calls import CallEnd, Change
from kiseki.models.rate_limit import LEAST_ROUND, LONGEST_ASKED, LONGEST_SECONDS, RECENT, RateLimit

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
        self.said: list[Change] = []

    def start(self, tokens: int = 1) -> float:
        """Start one if that may be. Returns how long it would have had to wait."""
        seconds = self.limit.wait(self.now, tokens)
        if seconds == 0.0:
            assert len(self.under_way) < self.limit.ceiling
            self.newest = self.limit.start(self.now, tokens)
            self.under_way.append(self.newest)
        return seconds

    def end(self, number: int, end: CallEnd) -> None:
        self.under_way.remove(number)
        self.said += self.limit.end(self.now, number, end)

    def succeed(self, times: int) -> None:
        """One request after the other, each as soon as it may be."""
        for _ in range(times):
            self.now += self.start()
            self.start()
            while self.under_way:
                self.end(self.under_way[0], CallEnd("ok"))

    def turn_away(self, times: int, retry_after: float | None = None) -> None:
        """One request after the other, each as soon as it may be."""
        for _ in range(times):
            while seconds := self.start():
                self.now += seconds
            self.end(self.newest, CallEnd("limited", retry_after=retry_after, words="HTTP 429"))

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
    limit = endpoint.limit
    for event in played:
        before = limit.limit
        endpoint.play(event)
        assert 1.0 <= limit.limit <= ceiling
        assert 1 <= limit.at_once <= ceiling
        assert limit.in_flight == len(endpoint.under_way)
        seconds = limit.wait(endpoint.now, 1)
        assert seconds >= 0.0
        if seconds == math.inf:
            assert endpoint.under_way
        else:
            assert limit.wait(endpoint.now + max(seconds, LONGEST_ASKED), 1) == 0.0
        if not isinstance(event, tuple):
            assert limit.limit == before
    endpoint.under_way, waiting = [], list(endpoint.under_way)
    for number in waiting:
        limit.end(endpoint.now, number, CallEnd("dropped"))
    endpoint.now += LONGEST_ASKED
    for _ in range(3000):
        if limit.limit < ceiling:
            endpoint.succeed(1)
    assert limit.limit == ceiling


def test_a_cut_leaves_what_the_endpoint_took() -> None:
    endpoint = Endpoint(100)
    endpoint.fill()
    for number in range(41, 101):
        endpoint.end(number, CallEnd("limited"))
    assert endpoint.limit.limit == 40.0
    assert endpoint.limit.wait(endpoint.now, 1) == math.inf


def test_a_cut_leaves_a_quarter_at_least() -> None:
    endpoint = Endpoint(100)
    endpoint.fill()
    for number in range(2, 101):
        endpoint.end(number, CallEnd("limited"))
    assert endpoint.limit.limit == 25.0


def test_one_of_many_turned_away_changes_nothing() -> None:
    endpoint = Endpoint(100)
    for _ in range(3):
        endpoint.fill()
        endpoint.end(endpoint.under_way[10], CallEnd("limited", retry_after=60.0))
        while endpoint.under_way:
            endpoint.end(endpoint.under_way[0], CallEnd("ok"))
        assert endpoint.limit.limit == 100.0
    assert endpoint.start() == 0.0
    assert endpoint.said == []


def test_a_ceiling_that_was_never_reached_says_nothing() -> None:
    endpoint = Endpoint(1_000_000)
    for _ in range(20):
        endpoint.start()
    for number in range(11, 21):
        endpoint.end(number, CallEnd("limited"))
    assert endpoint.limit.limit == 10.0


def test_growth_quickens() -> None:
    endpoint = Endpoint(100)
    endpoint.fill()
    for number in range(71, 101):
        endpoint.end(number, CallEnd("limited"))
    seen = [endpoint.limit.limit]
    while endpoint.limit.limit < 100:
        endpoint.succeed(1)
        if endpoint.limit.limit != seen[-1]:
            seen.append(endpoint.limit.limit)
    assert seen == [70.0, 71.0, 73.0, 76.0, 80.0, 85.0, 91.0, 98.0, 100.0]


def test_a_round_with_many_passing_failures_does_not_grow() -> None:
    endpoint = Endpoint(100)
    endpoint.fill()
    for number in range(71, 101):
        endpoint.end(number, CallEnd("limited"))
    small = endpoint.limit.limit
    while endpoint.under_way:
        endpoint.end(endpoint.under_way[0], CallEnd("transient"))
    for count in range(200):
        endpoint.now += endpoint.start()
        endpoint.start()
        endpoint.end(endpoint.newest, CallEnd("transient" if count % 3 == 0 else "ok"))
    assert endpoint.limit.limit == small
    endpoint.succeed(200)
    assert endpoint.limit.limit > small


@pytest.mark.parametrize(("asked", "waited"), [(7.5, 7.5), (0.0, 0.0), (90_000.0, LONGEST_ASKED)])
def test_what_it_asks_for_is_waited_out_by_all_where_many_are_turned_away(asked: float, waited: float) -> None:
    endpoint = Endpoint(RECENT)
    for number in range(1, RECENT + 1):
        endpoint.start()
        if endpoint.limit.wait(endpoint.now, 1):
            break
        endpoint.end(number, CallEnd("limited", retry_after=asked))
    assert endpoint.limit.wait(endpoint.now, 1) == waited or endpoint.under_way


def test_pauses_of_our_own_double_until_something_succeeds() -> None:
    endpoint = Endpoint(4)
    endpoint.turn_away(LEAST_ROUND - 1)
    assert endpoint.limit.wait(endpoint.now, 1) == 0.0
    pauses = []
    for _ in range(9):
        endpoint.turn_away(1)
        pauses.append(endpoint.limit.wait(endpoint.now, 1))
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_SECONDS, LONGEST_SECONDS, LONGEST_SECONDS]
    endpoint.succeed(1)
    endpoint.now += 1000.0  # a round that has lasted so long is over with half as many
    endpoint.turn_away(LEAST_ROUND // 2)
    assert endpoint.limit.wait(endpoint.now, 1) == 1.0


def test_after_an_outage_the_limit_is_what_it_was_and_half_of_it_when_that_brought_the_next() -> None:
    endpoint = Endpoint(64)
    endpoint.fill()
    while endpoint.under_way:
        endpoint.end(endpoint.under_way[0], CallEnd("ok"))
    for limit in (64.0, 32.0, 16.0):
        endpoint.fill()
        while endpoint.under_way:
            endpoint.end(endpoint.under_way[0], CallEnd("limited"))
        assert endpoint.limit.limit == 1.0
        endpoint.now += 1.0
        endpoint.start()
        endpoint.end(endpoint.newest, CallEnd("ok"))
        assert endpoint.limit.limit == limit


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


def test_after_a_cut_starts_are_spread() -> None:
    endpoint = Endpoint(20)
    endpoint.fill()
    endpoint.now += 10.0
    for number in range(1, 11):
        endpoint.end(number, CallEnd("ok"))
    for number in range(11, 21):
        endpoint.end(number, CallEnd("limited"))
    assert endpoint.limit.limit < 20
    started = []
    for _ in range(5):
        endpoint.now += endpoint.start()
        endpoint.start()
        started.append(endpoint.now)
    gaps = {round(later - earlier, 6) for earlier, later in itertools.pairwise(started)}
    assert len(gaps) == 1
    assert 0.8 * 10.0 / endpoint.limit.limit <= gaps.pop() <= 10.0 / endpoint.limit.limit


# ---- endpoints of several kinds ----------------------------------------------------------------------------------------------


class Server:
    """How a kind of endpoint decides. This one takes all."""

    capacity = math.inf
    """Requests per second, with any number of them at once."""

    def answer(self, now: float, busy: int) -> Kind:
        return "ok"

    def retry_after(self) -> float | None:
        return None

    def rate(self) -> RateInfo | None:
        return None


class AtOnce(Server):
    """Takes so many at once; as many as `changed` says from moments on."""

    def __init__(self, most: int, latency: float, changed: dict[float, int] | None = None) -> None:
        self.capacity = most / latency
        self._most = {0.0: most, **(changed or {})}

    def answer(self, now: float, busy: int) -> Kind:
        most = [most for since, most in self._most.items() if since <= now][-1]
        return "ok" if busy < most else "limited"


class TokenBucket(Server):
    """Takes so many per minute, refilled continuously, `burst` of them at once."""

    def __init__(self, per_minute: float, burst: float, tells: str) -> None:
        self.capacity = per_minute / 60.0
        self._burst = self._level = burst
        self._tells = tells
        self._at = 0.0

    def answer(self, now: float, busy: int) -> Kind:
        self._level, self._at = min(self._burst, self._level + (now - self._at) * self.capacity), now
        if self._level < 1.0 - 1e-6:
            return "limited"
        self._level -= 1.0
        return "ok"

    def retry_after(self) -> float | None:
        return (1.0 - self._level) / self.capacity if self._tells else None

    def rate(self) -> RateInfo | None:
        return RateInfo(int(self._level), (self._burst - self._level) / self.capacity) if self._tells == "headers" else None


class Whatever(Server):
    """Turns away or fails a share, whatever comes."""

    def __init__(self, turned_away: float, failed: float = 0.0, asks: float | None = None) -> None:
        self._turned_away, self._failed, self._asks = turned_away, failed, asks
        self._rng = random.Random(2)

    def answer(self, now: float, busy: int) -> Kind:
        drawn = self._rng.random()
        return "limited" if drawn < self._turned_away else "transient" if drawn < self._turned_away + self._failed else "ok"

    def retry_after(self) -> float | None:
        return self._asks


class Outage(Server):
    """Takes nothing between two moments."""

    def __init__(self, begins: float, ends: float, asks: float | None) -> None:
        self._begins, self._ends, self._asks = begins, ends, asks

    def answer(self, now: float, busy: int) -> Kind:
        return "limited" if self._begins <= now < self._ends else "ok"

    def retry_after(self) -> float | None:
        return self._asks


FAILURE_SECONDS = 0.1


class Simulated:
    """What comes of as many requests as the limit lets through, in simulated seconds."""

    def __init__(
        self, server: Server, ceiling: int, latency: float, seconds: float, failure_seconds: float = FAILURE_SECONDS
    ) -> None:
        rng, limit = random.Random(1), RateLimit(ceiling)
        self.possible = min(server.capacity, ceiling / latency)
        """Successes per second."""
        self.ended: list[tuple[float, str]] = []
        self.said: list[tuple[float, Change]] = []
        now, busy = 0.0, 0
        under_way: list[tuple[float, int, CallEnd]] = []
        while now < seconds:
            wait = limit.wait(now, 1)
            if wait == 0.0:
                number, kind = limit.start(now, 1), server.answer(now, busy)
                busy += kind == "ok"
                takes = latency * (0.5 + rng.expovariate(2.0)) if kind == "ok" else failure_seconds
                asks = server.retry_after() if kind == "limited" else None
                end = CallEnd(kind, retry_after=asks, rate=server.rate() if kind == "ok" else None, words="HTTP 503")
                heapq.heappush(under_way, (now + takes, number, end))
                continue
            now = min(now + wait, under_way[0][0] if under_way else math.inf)
            while under_way and under_way[0][0] <= now:
                _, number, end = heapq.heappop(under_way)
                busy -= end.kind == "ok"
                self.ended.append((now, end.kind))
                self.said += [(now, change) for change in limit.end(now, number, end)]

    def work(self, since: float, until: float) -> float:
        """Successes, as a share of what was possible."""
        return sum(kind == "ok" and since <= at < until for at, kind in self.ended) / self.possible / (until - since)

    def turned_away(self, since: float, until: float) -> float:
        """Share of the requests."""
        kinds = [kind for at, kind in self.ended if since <= at < until]
        return kinds.count("limited") / len(kinds)


@pytest.mark.parametrize("ceiling", [8, 64, 256])
@pytest.mark.parametrize("most", [1, 4, 10, 50])
@pytest.mark.parametrize("latency", [0.2, 20.0])
def test_it_settles_at_what_an_endpoint_takes_at_once(most: int, ceiling: int, latency: float) -> None:
    half = max(30.0, 60 * latency)
    run = Simulated(AtOnce(most, latency), ceiling, latency, 2 * half)
    assert run.work(half, 2 * half) > 0.6
    assert run.turned_away(half, 2 * half) < 0.15


@pytest.mark.parametrize("tells", ["", "retry_after", "headers"])
@pytest.mark.parametrize("evenly", [False, True])
@pytest.mark.parametrize(("per_minute", "latency"), [(6, 5.0), (30, 1.0), (30, 20.0), (600, 0.2), (600, 5.0)])
@pytest.mark.parametrize("ceiling", [8, 64])
def test_it_settles_at_what_an_endpoint_takes_per_minute(
    per_minute: int, latency: float, evenly: bool, ceiling: int, tells: str
) -> None:
    half = max(300.0, 20 * latency)
    run = Simulated(TokenBucket(per_minute, 1 if evenly else per_minute, tells), ceiling, latency, 2 * half)
    assert run.work(half, 2 * half) > (0.55 if tells else 0.4)


@pytest.mark.parametrize("asks", [None, 1.0])
@pytest.mark.parametrize("latency", [0.2, 5.0])
@pytest.mark.parametrize("ceiling", [8, 64])
@pytest.mark.parametrize(
    ("turned_away", "failed", "work"), [(0.02, 0.0, 0.7), (0.1, 0.0, 0.7), (0.3, 0.0, 0.5), (0.15, 0.15, 0.5)]
)
def test_what_is_turned_away_whatever_comes_slows_nothing_down(
    turned_away: float, failed: float, work: float, ceiling: int, latency: float, asks: float | None
) -> None:
    over = 40.0 + 40 * latency
    run = Simulated(Whatever(turned_away, failed, asks), ceiling, latency, over)
    assert run.work(0.0, over) > work * (1.0 - turned_away - failed)


@pytest.mark.parametrize("turned_away", [0.1, 0.3])
@pytest.mark.parametrize("ceiling", [2, 8, 32])
def test_nor_does_it_where_a_rejection_takes_as_long_as_a_success(ceiling: int, turned_away: float) -> None:
    run = Simulated(Whatever(turned_away), ceiling, 1.0, 400.0, failure_seconds=1.0)
    assert run.work(0.0, 400.0) > 0.5 * (1.0 - turned_away)


@pytest.mark.parametrize("asks", [None, 5.0])
@pytest.mark.parametrize("latency", [0.2, 1.0, 20.0])
@pytest.mark.parametrize("ceiling", [8, 64])
def test_an_outage_is_over_soon_after_its_end(ceiling: int, latency: float, asks: float | None) -> None:
    begins, length = 30.0 + 4 * latency, 60.0
    back, measured = begins + length + 3 * latency + 30.0, 20.0 + 3 * latency
    run = Simulated(Outage(begins, begins + length, asks), ceiling, latency, back + measured)
    assert run.work(back, back + measured) > 0.75


@pytest.mark.parametrize("latency", [0.2, 5.0])
def test_a_capacity_that_changes_is_followed(latency: float) -> None:
    less, more, over = 40 * latency, 80 * latency, 120 * latency
    run = Simulated(AtOnce(50, latency, {less: 5, more: 50}), 64, latency, over)
    assert run.work(less + 20 * latency, more) > 0.6 * 5 / 50
    assert run.work(more + 20 * latency, over) > 0.6


@pytest.mark.parametrize(
    "server", [AtOnce(10, 1.0), TokenBucket(600, 600, "retry_after"), Whatever(0.3), Outage(100.0, 200.0, None)]
)
def test_what_is_said_can_be_read(server: Server) -> None:
    run = Simulated(server, 64, 1.0, 600.0)
    times: dict[str, list[float]] = {"limit": [], "pause": []}
    for at, change in run.said:
        times[change.kind].append(at)
        if change.kind == "limit":
            before, after = (int(number) for number in change.detail.split(" requests")[0].split(" → "))
            assert abs(after - before) * 3 >= min(before, after) or after == 64
            assert before != after
    for each in times.values():
        assert all(later - earlier >= 10.0 for earlier, later in itertools.pairwise(each))
    assert 0 < len(run.said) < 20
