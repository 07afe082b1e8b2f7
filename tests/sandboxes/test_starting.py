"""The limit of starts by itself: any order of starts and ends, and what it does where starts take different turns."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiseki.sandboxes.starting import FIRST, LEAST_ROUND, StartEnd, StartLimit

ends: st.SearchStrategy[StartEnd] = st.sampled_from(["ok", "ok", "ok", "failed", "nothing"])
# start so many if that may be, end the so-and-so-many-th that is under way, or let time pass
events = st.lists(st.one_of(st.integers(1, 40), st.tuples(st.integers(0, 50), ends), st.floats(0, 100)), max_size=150)


@given(events)
def test_whatever_happens(played: list[int | tuple[int, StartEnd] | float]) -> None:
    limit, now, under_way, most = StartLimit(), 0.0, list[int](), 0
    for event in played:
        if isinstance(event, int):
            for _ in range(event):
                if limit.free:
                    under_way.append(limit.start(now))
            most = max(most, len(under_way))
        elif isinstance(event, float):
            now += event
        elif under_way:
            limit.end(now, under_way.pop(event[0] % len(under_way)), event[1])
        assert limit.in_flight == len(under_way)
        assert 1 <= limit.at_once <= max(FIRST, 2 * most)
        assert limit.free == (len(under_way) < limit.at_once)


class Service:
    """What starts sandboxes: works on `side_by_side` at full speed, and on more at the same time all the slower."""

    def __init__(self, side_by_side: float, seconds: Callable[[random.Random], float]) -> None:
        self.side_by_side = side_by_side
        self.seconds = seconds
        self.now = 1000.0
        self._random = random.Random(1)
        self._work = 0.0  # done so far for each of those under way
        self._jobs: list[tuple[float, int, StartLimit, int, float]] = []
        self._count = 0

    def run(self, *limits: StartLimit, starts: int, demand: int = 10**9) -> Played:
        """So many starts one after the other, of each worker `demand` at once at most."""
        began, times, most, least = self.now, list[float](), 0, 10**9
        for _ in range(starts):
            for limit in limits:
                while limit.free and limit.in_flight < demand:
                    self._count += 1
                    done = self._work + self.seconds(self._random)
                    heapq.heappush(self._jobs, (done, self._count, limit, limit.start(self.now), self.now))
            at_once = len(self._jobs)
            most, least = max(most, at_once), min(least, at_once)
            done, _, limit, number, since = heapq.heappop(self._jobs)
            self.now += (done - self._work) * max(1.0, at_once / self.side_by_side)
            self._work = done
            times.append(self.now - since)
            limit.end(self.now, number, "ok")
        return Played(starts / (self.now - began), sum(times) / starts, least, most)


class Played(NamedTuple):
    rate: float
    """Starts per second."""
    seconds: float
    """Of one start, on average."""
    least: int
    most: int
    """At once."""


def exactly(seconds: float) -> Callable[[random.Random], float]:
    return lambda _: seconds


def up_to_twice(seconds: float) -> Callable[[random.Random], float]:
    return lambda rng: seconds * rng.uniform(1, 2)


@pytest.mark.parametrize("seconds", [exactly(0.02), up_to_twice(0.02), up_to_twice(3.0)], ids=["even", "uneven", "slow"])
@pytest.mark.parametrize("side_by_side", [1, 2, 16, 100])
def test_it_finds_how_many_are_worked_on_side_by_side(side_by_side: int, seconds: Callable[[random.Random], float]) -> None:
    service, limit = Service(side_by_side, seconds), StartLimit()
    mean = sum(seconds(random.Random(n)) for n in range(1000)) / 1000
    service.run(limit, starts=200 + 40 * side_by_side)
    played = service.run(limit, starts=500 + 40 * side_by_side)
    assert played.rate > 0.85 * side_by_side / mean
    assert played.most <= 2 * side_by_side + 4
    assert played.seconds < mean * (2 + 4 / side_by_side)


@pytest.mark.parametrize("seconds", [exactly(3.0), up_to_twice(3.0)], ids=["even", "uneven"])
def test_where_starts_do_not_hold_each_other_up_as_many_start_as_are_wanted(
    seconds: Callable[[random.Random], float],
) -> None:
    service, limit = Service(math.inf, seconds), StartLimit()
    service.run(limit, starts=1500, demand=300)
    assert service.run(limit, starts=1500, demand=300).least == 300


def test_what_is_not_made_use_of_does_not_grow() -> None:
    service, limit = Service(math.inf, exactly(1.0)), StartLimit()
    service.run(limit, starts=500, demand=3)
    assert limit.at_once == FIRST
    service.run(limit, starts=500, demand=10)
    assert limit.at_once == 16


def test_the_first_rounds_double() -> None:
    service, limit = Service(math.inf, exactly(1.0)), StartLimit()
    service.run(limit, starts=500)
    assert service.now <= 1000 + 2 * 5 + 1  # 5 times, each after those from before have ended
    assert limit.at_once >= 128


@pytest.mark.parametrize("side_by_side", [2, 16])
def test_a_service_that_becomes_slower_is_not_taken_for_a_queue_for_long(side_by_side: int) -> None:
    service, limit = Service(side_by_side, up_to_twice(0.1)), StartLimit()
    service.run(limit, starts=1000)
    service.seconds = up_to_twice(0.4)
    played = service.run(limit, starts=40 * side_by_side)
    assert played.rate > 0.5 * side_by_side / 0.6
    assert service.run(limit, starts=1000).rate > 0.85 * side_by_side / 0.6


def test_a_service_that_gets_fewer_cores_is_given_fewer_starts() -> None:
    service, limit = Service(64, up_to_twice(0.1)), StartLimit()
    assert service.run(limit, starts=3000).most > 64
    service.side_by_side = 4
    service.run(limit, starts=4000)
    assert service.run(limit, starts=1000).most <= 12


def test_a_service_that_gets_more_is_given_more() -> None:
    service, limit = Service(4, up_to_twice(0.1)), StartLimit()
    service.run(limit, starts=1000)
    service.side_by_side = 64
    service.run(limit, starts=3000)
    assert service.run(limit, starts=1000).rate > 0.85 * 64 / 0.15


def test_workers_that_share_a_machine_all_hold_back() -> None:
    """None of them can tell the load of the others from a slow machine but by their common checks."""
    service, limits = Service(16, up_to_twice(0.27)), [StartLimit() for _ in range(4)]
    service.run(*limits, starts=4000)
    played = service.run(*limits, starts=4000)
    assert played.rate > 0.9 * 16 / (1.5 * 0.27)
    assert played.most < 5 * 16
    assert min(limit.at_once for limit in limits) > 1


def burst(limit: StartLimit, *, now: float = 0.0) -> list[int]:
    """As many starts as may be."""
    numbers = []
    while limit.free:
        numbers.append(limit.start(now))
    return numbers


def grown() -> StartLimit:
    limit = StartLimit()
    while limit.at_once < 32:
        for number in burst(limit):
            limit.end(1.0, number, "ok")
    return limit


def test_a_burst_that_fails_halves_it_once() -> None:
    limit = grown()
    numbers = burst(limit)
    for number in numbers:
        limit.end(2.0, number, "failed")
    assert limit.at_once == 16


def test_where_nothing_starts_one_at_a_time_tries() -> None:
    limit = grown()
    for _ in range(10):
        for number in burst(limit):
            limit.end(2.0, number, "failed")
    assert limit.at_once == 1
    for _ in range(10 * LEAST_ROUND):
        for number in burst(limit):
            limit.end(1.0, number, "ok")
    assert limit.at_once > 4


def test_a_few_failures_only_keep_it_from_growing() -> None:
    limit = grown()
    for _ in range(20):
        numbers = burst(limit)
        for number in numbers[:3]:
            limit.end(1.0, number, "failed")
        for number in numbers[3:]:
            limit.end(1.0, number, "ok")
    assert limit.at_once == 32


def test_what_says_nothing_about_load_changes_nothing() -> None:
    limit = grown()
    for _ in range(20):
        for number in burst(limit):
            limit.end(100.0, number, "nothing")
    assert limit.at_once == 32


def round_of(limit: StartLimit, now: float, seconds: float, end: StartEnd = "ok") -> float:
    """A burst that ends after so many seconds. Returns when."""
    for number in burst(limit, now=now):
        limit.end(now + seconds, number, end)
    return now + seconds


def test_a_limit_that_is_held_back_is_checked_and_a_failed_check_is_not_held_against_it_twice() -> None:
    limit, now = grown(), 1000.0
    while limit.at_once == 32:
        now = round_of(limit, now, 3.0)
    assert limit.at_once == 8
    round_of(limit, now, 1.0, "failed")
    assert limit.at_once == 16


def test_a_check_takes_off_what_was_in_the_queue_however_long_it_takes() -> None:
    limit, now = grown(), 1000.0
    while limit.at_once == 32:
        now = round_of(limit, now, 3.0)
    round_of(limit, now + 1000.0, 1.0)
    assert limit.at_once == 32 // 3 + 2


def test_a_limit_that_is_not_held_back_is_never_checked() -> None:
    limit = grown()
    now = round_of(limit, 10.0, 3.0)
    for _ in range(20):
        before, now = limit.at_once, round_of(limit, now, 1.0)
        assert limit.at_once > before
    for _ in range(300):
        before = limit.at_once
        numbers = burst(limit, now=now)[:40]
        now += 1.0
        for number in numbers:
            limit.end(now, number, "ok")
        assert limit.at_once >= before
