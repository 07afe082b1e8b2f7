"""How many requests an endpoint gets at once, and how fast one after the other. A pure state machine: it is fed starts, ends and
the time, and asked how long the next request has to wait.

Limits belong to an endpoint and not to a process, so a run has one of these (`admission.py`), whatever number of workers.

- It judges by rounds: about as many answers as the limit, from the moment when the limit was last set. What counts is the share
  of a round's requests that was turned away (429, 503).
- A quiet round lets the limit grow: by 1, by 2 after the second in a row, by 3 after the third …, a small one by a fifth at
  most; and by doubling up to the last limit that is known to have been good.
- Another one cuts the limit to what the endpoint took of it. The round after that tells what kind of endpoint it is. Where it
  turns requests away because they are too many, a smaller limit has it turn away a smaller share: the cut stands. Where it turns
  away the same share (a router that does so whatever comes, somebody else's load), fewer requests help nobody: the limit is what
  it was before, and that share is usual and disturbs no more until it falls.
- When an endpoint takes nothing at all, one request at a time tries, with growing pauses; its first success brings back the
  limit that was good before, or half of it when that was tried in vain already.
- What `Retry-After` asks for is waited out by the call itself (`retry.py`), and by all where about half of the requests are
  turned away. What headers say is left holds for all.
- From the first cut on requests start evenly, as many in the time of one as the limit, never fewer: many endpoints count per
  minute or second, and turn away what comes in bursts.
- A passing failure (5xx, a lost connection) says nothing about how much is too much: a round with many of them grows nothing.
"""

from __future__ import annotations

import math

from kiseki.models.base import RateInfo
from kiseki.models.calls import CallEnd, Change

LEAST_ROUND = 10
SURE_ROUND = 20
"""Answers in a round at least: where the limit is 5 or more the latter, so that chance decides less; where it is smaller fewer,
so that a round does not last for ever. So many requests turned away and not one taken are a round, too."""
TOLERATED = 0.03
"""Share turned away in a quiet round where none is usual."""
CLEARLY = 0.25
"""Above the tolerated share, and a round need not be played to its end."""
MOST_USUAL = 0.6
"""Share turned away that is still looked at as perhaps usual. Half of all is what is kept as such at most."""
STEP = 0.75
"""What a first cut leaves at least of a limit that was good just now: an endpoint that counts evenly turns away every other
request when they come only slightly too fast."""
FLOOR = 0.25
"""What one cut leaves at least."""
GROWTH = 0.2
"""Of the limit, by which one round lets it grow at most."""
FAILING = 0.2
"""Share of passing failures in a round that may still grow."""
PACE = 0.9
"""Of an even distance between two starts: a little less, so that it is the limit that holds back and not the pace alone."""
NEWEST = 0.1
"""Weight of the newest success in the time that a request takes."""
RECENT = 20
"""Answers that count as the last ones: in as many as these, or as are under way."""
PAUSE_SHARE = 0.45
"""Share turned away of the last ones, above which `Retry-After` holds for all."""
BASE_SECONDS = 1.0
LONGEST_SECONDS = 60.0
"""Of a pause that the endpoint did not ask for: 1 s at first, and doubled as long as it takes nothing. Of the distance between
two starts, too."""
LONGEST_ASKED = 300.0
"""Of a pause that it did ask for; a daily quota's "come back tomorrow" is asked again after that."""
SAID_SECONDS = 60.0
"""After a pause, before another is worth a word: at some endpoints every answer tells of one."""
SAID_LIMIT_SECONDS = (10.0, 300.0)
"""The same for the limit: at first, and doubled each time up to the latter, since it may go up and down for days."""


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


class _Round:
    """What came of the requests since the limit was set."""

    def __init__(self, now: float, since: int, in_flight: int) -> None:
        self.began = now
        self.since = since
        """Requests up to this number belong to rounds before."""
        self.newest = since
        """The newest of its requests that was answered."""
        self.ok = 0
        """Successes, those of requests from before too."""
        self.failed = 0
        """Passing failures, likewise."""
        self.limited = 0
        """Of its requests, those turned away."""
        self.peak = in_flight

    @property
    def judged(self) -> int:
        """Its requests of which it is known whether they were turned away. That takes no time, so an older one than an answered
        one, still under way, was not."""
        return self.newest - self.since

    @property
    def in_vain(self) -> bool:
        """All of its requests were turned away."""
        return 0 < self.limited == self.judged


class RateLimit:
    """The state for one endpoint."""

    def __init__(self, ceiling: int) -> None:
        """`ceiling`: requests at once that the run wants at most, and begins with."""
        self.ceiling = ceiling
        self.limit = float(ceiling)
        self.in_flight = 0
        self._started = 0
        self._tokens_started = 0
        self._began: dict[int, tuple[float, int]] = {}  # of those in flight, in order: when, and the tokens of all up to then
        self._told_by = 0  # the newest request whose answer had headers
        self._round = _Round(0.0, 0, 0)
        self._quiet_rounds = 0  # in a row
        self._cut: tuple[float, float] | None = (
            None  # that is to be judged by this round: the share turned away, the limit before
        )
        self._in_vain_before = False  # the round before was
        self._usual = 0.0
        self._good = self.limit
        self._proved = False  # a quiet round was the last word on `_good`
        self._tries = 0  # of one request at a time, 0 when the endpoint takes some
        self._recent = 0.0  # share turned away of the last ones
        self._seconds = 0.0  # that a request takes
        self._evenly = False
        self._next_start = 0.0
        self._paused_until = 0.0
        self._requests = _Window()
        self._tokens = _Window()
        self._words = ""  # of the last one turned away
        self._why_less = self._why_more = ""
        self._said = ceiling
        self._say_limit_at = 0.0
        self._say_limit_every = SAID_LIMIT_SECONDS[0]
        self._say_pause_at = 0.0

    @property
    def at_once(self) -> int:
        # 1.2 is still one: that a second one may come every now and then is tried only after two quiet rounds
        return max(1, math.ceil(self.limit - 0.25))

    def wait(self, now: float, tokens: int) -> float:
        """Seconds that a request of so many tokens has to wait: 0.0 it may start, `math.inf` until another one ends."""
        trying = self._tries > 0 and self._started == self._round.since  # while those from before may take long to end
        if self.in_flight >= self.at_once and not trying:
            return math.inf
        until = max(self._paused_until, self._next_start)
        return max(0.0, until - now, self._requests.wait(now, 1), self._tokens.wait(now, tokens))

    def start(self, now: float, tokens: int) -> int:
        """A request starts. Returns its number, to be given back at its end."""
        self.in_flight += 1
        self._round.peak = max(self._round.peak, self.in_flight)
        self._started += 1
        self._tokens_started += tokens
        self._began[self._started] = (now, self._tokens_started)
        self._requests.left -= 1
        self._tokens.left -= tokens
        if self._evenly:
            seconds = self._seconds or now - next(iter(self._began.values()))[0]  # at least as long as the oldest has taken
            gap = PACE * seconds * (1.0 - self._usual) / self.limit
            self._next_start = max(self._next_start, now) + min(LONGEST_SECONDS, gap)
        return self._started

    def end(self, now: float, number: int, end: CallEnd) -> list[Change]:
        self.in_flight -= 1
        began, tokens_started = self._began.pop(number)
        changes: list[Change] = []
        if end.rate is not None and number > self._told_by:
            self._told_by = number
            changes += self._told(now, began, number, tokens_started, end.rate)
        if end.kind in ("ok", "limited", "transient"):
            changes += self._answered(now, began, number, end)
        return changes + self._say_limit(now)

    def _told(self, now: float, began: float, number: int, tokens_started: int, rate: RateInfo) -> list[Change]:
        before = max(self._requests.wait(now, 1), self._tokens.wait(now, 1))
        self._requests.told(began, rate.requests_left, rate.requests_reset, self._started - number)
        self._tokens.told(began, rate.tokens_left, rate.tokens_reset, self._tokens_started - tokens_started)
        seconds = max(self._requests.wait(now, 1), self._tokens.wait(now, 1))
        if seconds <= before:
            return []
        return self._say_pause(now, seconds, "the endpoint's x-ratelimit headers say that nothing is left until then")

    def _answered(self, now: float, began: float, number: int, end: CallEnd) -> list[Change]:
        this, mine, changes = self._round, number > self._round.since, []
        if mine:
            this.newest = max(this.newest, number)
        self._recent += ((end.kind == "limited") - self._recent) / max(RECENT, self.in_flight + 1)
        if end.kind == "limited":
            this.limited += mine
            self._words = end.words
            # of the round, too: after a pause those that are turned away are back before the first success
            many = self._recent > PAUSE_SHARE and this.limited > PAUSE_SHARE * this.judged
            if end.retry_after is not None and (self._tries or many):
                changes += self._pause(now, 0.0, end)
        elif end.kind == "transient":
            this.failed += 1
        else:
            this.ok += 1
            self._seconds += (now - began - self._seconds) * (NEWEST if self._seconds else 1.0)
            if mine and (self._tries or self._in_vain_before):
                self._cut, self._tries, self._in_vain_before, self._proved = None, 0, False, False
                self._set(now, self._good, "it takes requests again")
                return changes
        if self._is_over(now):
            changes += self._judge(now, end)
        return changes

    @property
    def _tolerated(self) -> float:
        """Share turned away in a quiet round: what is usual, and what chance adds to it."""
        return TOLERATED + self._usual * (1.7 - 0.7 * self._usual)

    @property
    def _reached(self) -> float:
        """The limit, as far as it was made use of: a ceiling may be any number."""
        return max(1.0, min(self.limit, float(self._round.peak))) if self.limit >= self.ceiling else self.limit

    def _is_over(self, now: float) -> bool:
        this, reached = self._round, self._reached
        if this.in_vain:
            soon = this.limited >= LEAST_ROUND / 2 and now - this.began > self._seconds
            return self._tries > 0 or this.limited >= LEAST_ROUND or soon
        if self.limit < self._good and self._cut is None and this.judged >= self.limit and not this.limited:
            return True
        size = max(LEAST_ROUND, min(SURE_ROUND, 4 * reached), reached)
        if this.judged >= reached and this.limited >= max(3, size * (self._tolerated + CLEARLY)):
            return True
        known = this.judged if this.limited else self._started - this.since
        return this.ok + this.failed + this.limited >= size and known >= size / 2

    def _judge(self, now: float, end: CallEnd) -> list[Change]:
        this = self._round
        share = this.limited / this.judged if this.limited else 0.0
        if this.in_vain:
            older = bool(self._began) and next(iter(self._began)) < this.newest
            if self._in_vain_before or not (this.ok or this.failed or older):
                return self._try_one(now, end)
        self._in_vain_before = this.in_vain
        cut, self._cut = self._cut, None
        if cut is not None and self._helped_nobody(share, *cut):
            self._usual = max(self._usual, min(0.5, (cut[0] + share) / 2))
            self._set(now, cut[1], f"{share:.0%} are turned away whatever their number")
        elif share <= self._tolerated:
            self._quiet(now, share)
        else:
            self._turned_away(now, share, first=cut is None)
        return []

    def _helped_nobody(self, share: float, share_before: float, limit_before: float) -> bool:
        """Whether a cut let the endpoint turn away as much as before. If not, the limit that it cut was too high."""
        if self.limit < limit_before and share_before <= MOST_USUAL and share <= 1.5 * share_before + 0.1:
            by_load = max(0.0, 1.0 - (1.0 - share_before) * limit_before / self.limit)
            if share > by_load + (share_before - by_load) / 3:
                return True
        if max(share, share_before) < 1.0:  # where nothing was taken nothing is known
            self._good = self.limit
            self._usual /= 2
        return False

    def _quiet(self, now: float, share: float) -> None:
        this = self._round
        if share < self._usual:
            self._usual += (share - self._usual) * min(0.5, this.judged / 100)
        self._good, self._proved = max(self._good, self.limit), True
        grown = self.limit
        if this.failed <= FAILING * (this.ok + this.failed):
            self._quiet_rounds += 1
            by = self.limit if self.limit < self._good else min(self._quiet_rounds, self.limit * GROWTH)
            grown = min(self.limit + by, self._good if self.limit < self._good else float(self.ceiling))
        self._set(now, grown, f"few or none were turned away for {self._quiet_rounds} rounds")

    def _turned_away(self, now: float, share: float, *, first: bool) -> None:
        self._quiet_rounds = 0
        if self.limit == 1.0 and share <= MOST_USUAL:  # one at a time is not too many at once
            self._usual = max(self._usual, min(0.5, share))
            self._set(now, 1.0, "")
            return
        if self.limit >= self.ceiling:
            self._start_from_reached()
        took = self.limit * (1.0 - share) / (1.0 - self._usual)
        least = max(1.0, FLOOR * self.limit)
        if first and self._proved:
            least = max(least, STEP * min(self._good, self.limit))
        if share == 1.0:
            least = max(least, self.in_flight)  # so many it has in work
        self._cut = (share, self.limit)
        self._set(now, min(self.limit, max(least, took)), f"{share:.0%} were turned away, the last with: {self._words}")

    def _try_one(self, now: float, end: CallEnd) -> list[Change]:
        """The endpoint takes nothing."""
        if not self._tries:
            if self.limit >= self.ceiling:
                self._start_from_reached()
            if not self._proved:
                self._good = max(1.0, self._good / 2)
            self._cut, self._quiet_rounds = None, 0
        own = min(LONGEST_SECONDS, BASE_SECONDS * 2.0 ** min(self._tries, 30))
        self._tries += 1
        self._set(now, 1.0, f"all are turned away, the last with: {self._words}")
        return self._pause(now, own, end)

    def _start_from_reached(self) -> None:
        self.limit = self._reached
        self._good = min(self._good, self.limit)
        self._said = min(self._said, self.at_once)
        self._evenly = True

    def _set(self, now: float, limit: float, why: str) -> None:
        """A round begins."""
        if limit < self.limit:
            self._why_less = why
        elif limit > self.limit:
            self._why_more = why
        self.limit = limit
        self._round = _Round(now, self._started, self.in_flight)

    def _pause(self, now: float, own: float, end: CallEnd) -> list[Change]:
        """For all: what the endpoint asks for, `own` where it names no time."""
        seconds = own if end.retry_after is None else min(end.retry_after, LONGEST_ASKED)
        self._paused_until = max(self._paused_until, now + seconds)
        return self._say_pause(
            now, seconds, f"{end.words} ({'it names no time' if end.retry_after is None else 'it asks for that'})"
        )

    def _say_pause(self, now: float, seconds: float, why: str) -> list[Change]:
        if seconds < 1.0 or now < self._say_pause_at:
            return []
        self._say_pause_at = now + seconds + SAID_SECONDS
        return [Change("pause", f"{seconds:.1f} s: {why}")]

    def _say_limit(self, now: float) -> list[Change]:
        """What differs by a third from what was said last, small steps to and fro left out; and the ceiling."""
        before, at_once = self._said, self.at_once
        less, more = sorted((before, at_once))
        much = more * 2 >= less * 3 and (more - less > 1 or more == self.ceiling)
        worth = much or before < at_once == self.ceiling
        if not worth or now < self._say_limit_at:
            return []
        self._said, self._say_limit_at = at_once, now + self._say_limit_every
        self._say_limit_every = min(SAID_LIMIT_SECONDS[1], 2 * self._say_limit_every)
        why = self._why_less if at_once < before else self._why_more
        return [Change("limit", f"{before} → {at_once} requests at once: {why}")]
