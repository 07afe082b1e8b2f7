"""The breaker by itself."""

from __future__ import annotations

import math
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from kiseki.models.breaker import HOLD_AFTER, LEAST_HELD, LONGEST_PROBE_PAUSE, REFUSED_AT_FIRST, REFUSED_LATER, Breaker
from kiseki.models.calls import CallEnd

Kind = Literal["ok", "limited", "transient", "refused", "denied", "dropped"]
PATIENCE = 300.0
kinds: st.SearchStrategy[Kind] = st.sampled_from(["ok", "limited", "transient", "transient", "transient", "dropped"])
# so many start, the so-and-so-many-th that is under way ends (again: it was tried before), or time passes
ended = st.tuples(st.integers(0, 50), kinds, st.booleans())
events = st.lists(st.one_of(st.integers(1, 20), ended, st.floats(0, 200)), max_size=120)


class Endpoint:
    """A breaker, the calls that are under way, and a clock."""

    def __init__(self, patience: float = PATIENCE, *, at_once: int = 100, works: bool = False) -> None:
        self.breaker = Breaker(patience, at_once=at_once, works=works)
        self.now = 0.0
        self.under_way: list[bool] = []
        """Of each whether it is a probe."""

    def start(self) -> float:
        """Start one if that may be. Returns how long it would have had to wait."""
        seconds = self.breaker.wait(self.now)
        if seconds == 0.0:
            self.under_way.append(self.breaker.start())
        return seconds

    def end(self, at: int, kind: Kind, again: bool = False) -> list[str]:
        """End one. Returns the kinds of what was decided."""
        end = CallEnd(kind, words=f"the words of {kind}")
        probe = self.under_way.pop(at)
        changes = self.breaker.end(self.now, end, again=again, probe=probe, others=len(self.under_way))
        return [change.kind for change in changes]

    def call(self, kind: Kind, again: bool = False) -> list[str]:
        assert self.start() == 0.0
        return self.end(-1, kind, again)

    def hold(self) -> None:
        for _ in range(HOLD_AFTER):
            self.call("transient")
        assert self.breaker.held


@given(events)
def test_whatever_happens(played: list[int | tuple[int, Kind, bool] | float]) -> None:
    endpoint = Endpoint()
    breaker = endpoint.breaker
    failing_since: float | None = None
    turned_away = 0
    for event in played:
        stopped = breaker.stopped
        if isinstance(event, int):
            for _ in range(event):
                endpoint.start()
        elif isinstance(event, float):
            endpoint.now += event
        elif endpoint.under_way:
            kind = event[1]
            changes = endpoint.end(event[0] % len(endpoint.under_way), kind, event[2])
            turned_away += kind == "limited" and not event[2]
            if kind == "ok":
                failing_since, turned_away = None, 0
                assert not breaker.held
            elif kind != "dropped" and failing_since is None:
                failing_since = endpoint.now
            lasts = endpoint.now - (failing_since or 0.0) >= PATIENCE
            fails = breaker.held if kind == "transient" else kind == "limited" and turned_away > 1 and not endpoint.under_way
            assert ("stop" in changes) == (not stopped and fails and lasts)
            assert bool(stopped or "stop" in changes) == bool(breaker.stopped)
        assert sum(endpoint.under_way) <= 1
        seconds = breaker.wait(endpoint.now)
        assert seconds == 0.0 or breaker.held
        if seconds == math.inf:
            assert sum(endpoint.under_way) == 1
        else:
            assert seconds <= LONGEST_PROBE_PAUSE


def test_denied_stops_at_once() -> None:
    endpoint = Endpoint()
    endpoint.call("ok")
    assert endpoint.call("denied") == ["stop"]
    assert endpoint.breaker.stopped == "the endpoint takes no call of ours: the words of denied"


def test_an_outage_is_probed_with_growing_pauses_and_over_with_the_first_success() -> None:
    endpoint = Endpoint()
    endpoint.call("ok")
    endpoint.start()
    for _ in range(HOLD_AFTER - 1):
        assert endpoint.call("transient") == []
    assert endpoint.call("transient") == ["hold"]
    pauses = []
    for _ in range(7):
        pauses.append(endpoint.start())
        endpoint.now += pauses[-1]
        assert endpoint.start() == 0.0
        assert endpoint.start() == math.inf  # one at a time
        assert endpoint.under_way[-1]
        endpoint.end(-1, "transient")
    assert pauses == [1.0, 2.0, 4.0, 8.0, LONGEST_PROBE_PAUSE, LONGEST_PROBE_PAUSE, LONGEST_PROBE_PAUSE]
    assert endpoint.end(0, "ok") == ["resume"]  # from before the outage
    assert endpoint.start() == 0.0
    assert not endpoint.under_way[-1]


def test_a_probe_that_outlives_its_outage_is_the_only_one_of_the_next() -> None:
    endpoint = Endpoint()
    endpoint.start()
    endpoint.hold()
    endpoint.now += 1.0
    endpoint.start()
    endpoint.end(0, "ok")
    endpoint.hold()
    endpoint.now += 1.0
    assert endpoint.start() == math.inf
    endpoint.end(0, "transient")
    endpoint.now += endpoint.start()
    assert endpoint.start() == 0.0


def test_a_probe_that_was_given_up_lets_the_next_one_try() -> None:
    endpoint = Endpoint()
    endpoint.hold()
    endpoint.now += 1.0
    endpoint.start()
    endpoint.end(0, "dropped")
    assert endpoint.start() == 0.0


def test_one_call_that_fails_again_and_again_holds_nobody() -> None:
    endpoint = Endpoint()
    endpoint.call("transient")
    for _ in range(50):
        endpoint.call("transient", again=True)
    assert not endpoint.breaker.held


def test_patience() -> None:
    endpoint = Endpoint()
    for _ in range(100):
        endpoint.now += PATIENCE - 1.0
        endpoint.call("limited")
        assert endpoint.call("ok") == []
    endpoint.call("limited")
    endpoint.now += PATIENCE - 1.0
    assert endpoint.call("limited") == []
    endpoint.now += 1.0
    assert endpoint.call("dropped") == []  # that nobody waited for it says nothing
    assert endpoint.call("limited") == ["stop"]
    assert endpoint.breaker.stopped == "no model call has succeeded for 300 s; the last said: the words of limited"


def test_one_call_that_fails_for_long_stops_nobody() -> None:
    """Two stalls of one prompt are farther apart than the patience, and so are two refusals between calls of ten minutes."""
    first: dict[Kind, list[str]] = {"transient": ["fault"], "limited": []}
    for kind, said in first.items():
        endpoint = Endpoint(at_once=1)
        assert endpoint.call(kind) == said
        endpoint.now += 10 * PATIENCE
        assert endpoint.call(kind, again=True) == []
    endpoint = Endpoint()
    endpoint.start()
    for _ in range(3):
        assert endpoint.call("limited") == []
        endpoint.now += PATIENCE
    assert endpoint.breaker.stopped == "", "the endpoint works on another"


def test_few_at_once_are_held_sooner() -> None:
    endpoint = Endpoint(at_once=5)
    assert [endpoint.call("transient") for _ in range(5)][-1] == ["hold"]
    endpoint = Endpoint(at_once=1)
    assert [endpoint.call("transient") for _ in range(LEAST_HELD)][-1] == ["hold"]


def test_refusals_stop_only_where_they_are_the_rule() -> None:
    endpoint = Endpoint()
    for _ in range(REFUSED_AT_FIRST - 1):
        assert endpoint.call("refused") == []
    assert endpoint.call("refused") == ["stop"]
    assert "has refused the last 20 calls" in endpoint.breaker.stopped
    assert "the words of refused" in endpoint.breaker.stopped

    answered = Endpoint()
    for number in range(1000):
        answered.call("ok" if number % 40 == 0 else "refused")
    before = Endpoint(works=True)
    for endpoint in (answered, before):
        assert endpoint.breaker.stopped == ""
        endpoint.call("ok")
        for _ in range(REFUSED_LATER - 1):  # the tail of a dataset may be so
            assert endpoint.call("refused") == []
        assert endpoint.call("refused") == ["stop"]
