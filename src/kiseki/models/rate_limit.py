"""How many requests an endpoint gets at once, and how fast one after the other: additive increase, multiplicative decrease,
pauses, and what its headers say is left. A pure state machine: it is fed starts, ends and the time, and asked how long the next
request has to wait.

Limits belong to an endpoint and not to a process, so a run has one of these (`admission.py`), whatever number of workers.

- A request that is turned away (429, 503) cuts the limit by a quarter, once for all that were on their way at that moment.
  Each further one of these lowers it to what the endpoint still has of them in work, to a quarter of the old limit at most:
  those that it did not turn away are what it can take.
- It grows by 1 after a round of successes (as many as the limit, 10 at least), by 2 after the second round without a cut, by 3
  after the third …: slowly where a cut was just now, and soon back to the ceiling when the reason for it is gone. A small
  limit grows by a quarter at most.
- Below the ceiling requests start evenly, as many in the time of one as the limit: many endpoints count per minute or second,
  and turn away what comes in bursts. A limit below 1 is one request at once, with a rest between two.
- A passing failure (5xx, a lost connection) says nothing about how much is too much: growth stops for a while, no more.
"""

from __future__ import annotations

import math

from kiseki.models.base import RateInfo
from kiseki.models.calls import CallEnd, Change

LEAST = 1 / 16
"""Of the limit: one request, then a rest 15 times as long as it took."""
CUT = 0.75
"""What one cut leaves of the limit: near enough to the old one that little is lost where the limit was only just too high."""
FLOOR = 0.25
"""What all the requests turned away of one round leave of it at least."""
ROUND = 10
"""Successes in a round at least: where the limit is small, few requests find out that it grew too far."""
GROWTH = 0.25
"""Of the limit, by which one round lets it grow at most."""
PACE = 0.9
"""Of an even distance between two starts: a little less, so that it is the limit that holds back and not the pace alone."""
NEWEST = 0.1
"""Weight of the newest success in the time that a request takes."""
BASE_SECONDS = 1.0
LONGEST_SECONDS = 60.0
"""Of a pause that the endpoint did not ask for: 1 s after the first cut without a success, doubled with each further one. Of the
distance between two starts, too."""
LONGEST_ASKED = 300.0
"""Of a pause that it did ask for; a daily quota's "come back tomorrow" is asked again after that."""
SAID_SECONDS = 60.0
"""After a pause that headers told of, before another is worth a word: at some endpoints every answer tells of one."""
GROWTH_PAUSE = 10.0
"""Seconds without growth after a passing failure."""


class _Window:
    """What the endpoint says is left of one kind (requests or tokens) until a moment."""

    def __init__(self) -> None:
        self.left = math.inf
        self.until = 0.0

    def wait(self, now: float, need: float) -> float:
        return self.until - now if now < self.until and self.left < need else 0.0

    def told(self, at: float, left: float | None, reset: float | None, since: int) -> None:
        """`since`: what has been taken since `at`."""
        if left is not None and reset is not None:
            self.left, self.until = left - since, at + min(reset, LONGEST_ASKED)


class RateLimit:
    """The state for one endpoint."""

    def __init__(self, ceiling: int) -> None:
        """`ceiling`: requests at once that the run wants at most, and begins with."""
        self.ceiling = ceiling
        self.limit = float(ceiling)
        self.in_flight = 0
        self._started = 0
        self._tokens_started = 0
        self._began: dict[int, tuple[float, int]] = {}  # of those in flight: when, and the tokens of all up to then
        self._cut_at = 0  # requests up to this number were under way at the last cut
        self._told_by = 0  # the newest request whose answer had headers
        self._floor = 0.0
        self._good = 0  # successes of this round
        self._quiet_rounds = 0
        self._fruitless_cuts = 0  # since the last success
        self._seconds = 0.0  # that a request takes
        self._next_start = 0.0
        self._paused_until = 0.0
        self._growth_from = 0.0
        self._said_until = 0.0
        self._requests = _Window()
        self._tokens = _Window()

    @property
    def at_once(self) -> int:
        return max(1, round(self.limit))

    def wait(self, now: float, tokens: int) -> float:
        """Seconds that a request of so many tokens has to wait: 0.0 it may start, `math.inf` until another one ends."""
        if self.in_flight >= self.at_once:
            return math.inf
        until = max(self._paused_until, self._next_start)
        return max(0.0, until - now, self._requests.wait(now, 1), self._tokens.wait(now, tokens))

    def start(self, now: float, tokens: int) -> int:
        """A request starts. Returns its number, to be given back at its end."""
        self.in_flight += 1
        self._started += 1
        self._tokens_started += tokens
        self._began[self._started] = (now, self._tokens_started)
        self._requests.left -= 1
        self._tokens.left -= tokens
        if self.limit < self.ceiling:
            gap = min(LONGEST_SECONDS, PACE * self._seconds / self.limit)
            self._next_start = max(self._next_start, now) + gap
        return self._started

    def end(self, now: float, number: int, end: CallEnd) -> list[Change]:
        self.in_flight -= 1
        began, tokens_started = self._began.pop(number)
        changes: list[Change] = []
        if end.rate is not None and number > self._told_by:
            self._told_by = number
            changes += self._told(now, began, number, tokens_started, end.rate)
        if end.kind == "limited":
            changes += self._turned_away(now, number, end)
        elif end.kind == "transient":
            self._growth_from = now + GROWTH_PAUSE
        elif end.kind == "ok":
            self._fruitless_cuts = 0
            self._seconds += (now - began - self._seconds) * (NEWEST if self._seconds else 1.0)
            self._good += 1
            if self._good >= max(self.limit, ROUND):
                changes += self._round(now)
        return changes

    def _told(self, now: float, began: float, number: int, tokens_started: int, rate: RateInfo) -> list[Change]:
        before = max(self._requests.wait(now, 1), self._tokens.wait(now, 1))
        self._requests.told(began, rate.requests_left, rate.requests_reset, self._started - number)
        self._tokens.told(began, rate.tokens_left, rate.tokens_reset, self._tokens_started - tokens_started)
        seconds = max(self._requests.wait(now, 1), self._tokens.wait(now, 1))
        if seconds <= before or now < self._said_until:
            return []
        self._said_until = now + seconds + SAID_SECONDS
        return [Change("pause", f"{seconds:.1f} s: the endpoint's x-ratelimit headers say that nothing is left until then")]

    def _turned_away(self, now: float, number: int, end: CallEnd) -> list[Change]:
        before, changes = self.at_once, []
        self._good = self._quiet_rounds = 0
        if number > self._cut_at:
            if self.limit >= self.ceiling:  # which may be any number
                self.limit = min(self.limit, self.in_flight + 1.0)
            self._floor = max(LEAST, self.limit * FLOOR)
            self.limit = max(LEAST, self.limit * CUT)
            self._cut_at = self._started
            self._fruitless_cuts += 1
            asked = f"it asks for {end.retry_after:g} s" if end.retry_after is not None else "it names no time"
            changes.append(Change("limit", f"{before} → {self.at_once} requests at once: {end.words} ({asked})"))
            own = min(LONGEST_SECONDS, BASE_SECONDS * 2.0 ** min(self._fruitless_cuts - 1, 30))
        else:
            self.limit = max(self._floor, min(self.limit, float(self.in_flight)))
            own = 0.0
        pause = own if end.retry_after is None else min(end.retry_after, LONGEST_ASKED)
        self._paused_until = max(self._paused_until, now + pause)
        return changes

    def _round(self, now: float) -> list[Change]:
        """As many successes as the limit."""
        self._good = 0
        if now < self._growth_from or self.limit >= self.ceiling:
            return []
        self._quiet_rounds += 1
        self.limit = min(float(self.ceiling), self.limit + min(self._quiet_rounds, self.limit * GROWTH))
        if self.limit < self.ceiling:
            return []
        return [
            Change("limit", f"{self.ceiling} requests at once again: nothing was turned away for {self._quiet_rounds} rounds")
        ]
