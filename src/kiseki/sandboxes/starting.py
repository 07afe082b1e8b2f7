"""How many sandboxes a worker starts at once. A pure state machine: it is fed starts, ends and the time, and says the limit.

What starts them (a few cores, a daemon, a cloud) has its own number of starts that it works on side by side. What comes beyond
waits in there, and only adds to the time of all. So, as delay-based congestion control does, this watches how long starts take.

- It judges by rounds: as many starts as the limit, of those begun since the limit was set. A round's time is the median of its
  starts, since single ones vary.
- The shortest round's time is taken for that without queueing. Near it a limit that is in use grows: it doubles as long as no
  round ever took longer, later it grows by a fifth. Where a round takes longer, 1 − best / time of its starts were in a queue,
  and the limit is held back.
- Every now and then a limit that is held back is quartered for one round, and that round's time is the best from then on. It
  tells a queue from a machine that has become slower, and from a best that was measured under load: what was in the queue, by
  that best, is taken off the limit, but for a few. Workers share machine and clock, and do this at the same moments: else each
  would measure the load of the others.
- Where a fifth of a round fails, the limit is halved. Fewer may be a few prompts' doing (an image that doesn't work), and only
  keep it from growing.
"""

from __future__ import annotations

import math
import statistics
from typing import Literal

FIRST = 4.0
"""Small, since every worker of a run begins so, on the same machine; doubling finds 64 within four rounds."""
LEAST_ROUND = 4
"""Starts in a round at least: of fewer, chance decides."""
LONGER = 1.4
"""Times the best, up to which a round is near it. Starts whose time varies by a factor of two, for no reason of load, are."""
GROWTH = 0.2
"""Of the limit, by which one round lets it grow, once one was held back; by 1 at least."""
CHECK_SHARE = 0.25
"""Of the limit, in a round that measures the best anew."""
QUEUED = 2.0
"""Starts that stay in the queue after it: what is worked on must not run dry."""
CHECK_SECONDS = 32.0
CHECK_TIMES = 64.0
"""Between two such rounds: so many seconds, and times of a start, at least. They cost 1-3 % of what could be started."""
FAILING = 0.2
FAILING_STARTS = 2
"""Failures in a round, as share and number, that halve the limit."""
SHORTEST = 1e-6
"""Seconds of a start at least, as we count."""

StartEnd = Literal["ok", "failed", "nothing"]
"""How a start ended; "nothing" for what says nothing about load: cancelled, an image that is not to be had."""


class _Round:
    """What came of the starts since the limit was set."""

    def __init__(self, since: int) -> None:
        self.since = since
        """Starts up to this number belong to rounds before."""
        self.times: list[float] = []
        self.failed = 0
        self.peak = 0
        """Starts at once, when one of its own was added."""


class StartLimit:
    """The state of one worker."""

    def __init__(self) -> None:
        self.limit = FIRST
        self.in_flight = 0
        self._started = 0
        self._began: dict[int, float] = {}
        self._round = _Round(0)
        self._best = math.inf
        self._queue_seen = False
        self._held = 0.0  # time of the last round, where it kept the limit from growing
        self._last_check = 0.0
        self._checked: tuple[float, float] | None = None  # limit and time before the check that is this round

    @property
    def at_once(self) -> int:
        return int(self.limit)

    @property
    def free(self) -> bool:
        """Whether another one may start."""
        return self.in_flight < self.at_once

    def start(self, now: float) -> int:
        """One starts. Returns its number, to be given back at its end."""
        self.in_flight += 1
        self._started += 1
        self._began[self._started] = now
        self._round.peak = max(self._round.peak, self.in_flight)
        return self._started

    def end(self, now: float, number: int, end: StartEnd) -> None:
        self.in_flight -= 1
        seconds = max(now - self._began.pop(number), SHORTEST)
        if self._held and not self._checked and self._is_check_due(now):
            self._check(now)
        this, size = self._round, max(LEAST_ROUND, self.at_once)
        if number <= this.since or end == "nothing":
            return
        if end == "ok":
            this.times.append(seconds)
        else:
            this.failed += 1
            if this.failed >= max(FAILING_STARTS, FAILING * size):
                self._queue_seen = True
                self._set((self._checked[0] if self._checked else self.limit) / 2)
                return
        if this.times and len(this.times) + this.failed >= size:
            self._judge(statistics.median(this.times))

    def _judge(self, seconds: float) -> None:
        limit = self.limit
        if self._checked:
            limit, before = self._checked
            self._best, self._held = seconds, 0.0
            self._set(min(limit, limit * seconds / before + QUEUED))
            return
        self._best = min(self._best, seconds)
        self._held = seconds if seconds > LONGER * self._best else 0.0
        if self._held:
            self._queue_seen = True
        elif self._round.peak >= self.at_once and not self._round.failed:
            limit += max(1.0, limit * GROWTH) if self._queue_seen else limit
        self._set(limit)

    def _is_check_due(self, now: float) -> bool:
        """At multiples of a power of two, so that workers with times that differ still do it together."""
        every = max(CHECK_SECONDS, 2.0 ** math.ceil(math.log2(CHECK_TIMES * self._best)))
        return now // every > self._last_check // every

    def _check(self, now: float) -> None:
        checked = (self.limit, self._held)
        self._last_check = now
        self._set(self.limit * CHECK_SHARE)
        self._checked = checked

    def _set(self, limit: float) -> None:
        """A round begins."""
        self.limit = max(1.0, limit)
        self._checked = None
        self._round = _Round(self._started)
