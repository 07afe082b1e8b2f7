"""When an endpoint is given a rest, and when the run is stopped because of it. A pure state machine.

- Denied (401, 402, 403: a bad key, no credit): every further call would be, too. The run stops at once.
- Refused (400, 404, 422): the request's own fault as a rule, and the rollout fails. Where nearly all are refused it is the
  set-up that is wrong (a model that is not there), and the run stops.
- An outage: calls of many rollouts fail one after the other and none succeeds. All others then wait, one probes with growing
  pauses, and the first success lets all go on, so that an outage costs time and no rollout. Only when nothing has succeeded
  for as long as the user has patience does the run stop.
"""

from __future__ import annotations

import math
from collections import deque

from kiseki.models.calls import CallEnd
from kiseki.models.rate_limit import Change

HOLD_AFTER = 10
"""First requests of calls that fail in a row, none succeeding in between: fewer may be one prompt's doing."""
LONGEST_PROBE_PAUSE = 15.0
"""Seconds between two probes at most; the first pause is 1 s, and each is twice the one before."""
REFUSALS = (20, 0.8)
"""So many answers at least, and so large a share of the last `WINDOW` refused, and the set-up is wrong."""
WINDOW = 50


class Breaker:
    """The state for one endpoint. `stopped` says why the run is over, "" as long as it is not."""

    def __init__(self, patience: float) -> None:
        """`patience`: seconds without one success, while calls fail or are turned away, after which the run stops."""
        self.stopped = ""
        self.held = False
        self._patience = patience
        self._failing_since: float | None = None
        self._row = 0
        self._probing = False
        self._probe_pause = 0.0
        self._probe_at = 0.0
        self._refused: deque[bool] = deque(maxlen=WINDOW)

    def wait(self, now: float) -> float:
        """Seconds that the next request has to wait: 0.0 it may start, `math.inf` until the probe ends."""
        if not self.held:
            return 0.0
        return math.inf if self._probing else max(0.0, self._probe_at - now)

    def start(self) -> bool:
        """A request starts. Returns whether it is a probe; a probe's failure is not its rollout's."""
        self._probing |= self.held
        return self.held

    def end(self, now: float, end: CallEnd, *, again: bool, probe: bool) -> list[Change]:
        """`again`: it was not its call's first request."""
        if probe:
            self._probing = False
        changes: list[Change] = []
        if end.kind in ("ok", "refused"):
            self._refused.append(end.kind == "refused")
            self._failing_since, self._row = None, 0
            if self.held:
                self.held = False
                changes.append(Change("resume", "the endpoint answers again"))
        elif end.kind in ("limited", "transient"):
            changes += self._failed(now, end, again=again, probe=probe)
        if not self.stopped and (why := self._why_stop(now, end)):
            self.stopped = why
            changes.append(Change("stop", why))
        return changes

    def _failed(self, now: float, end: CallEnd, *, again: bool, probe: bool) -> list[Change]:
        if self._failing_since is None:
            self._failing_since = now
        self._row += end.kind == "transient" and not again
        if probe:
            self._probe_pause = min(LONGEST_PROBE_PAUSE, self._probe_pause * 2)
            self._probe_at = now + self._probe_pause
        elif not self.held and self._row >= HOLD_AFTER:
            self.held, self._probe_pause = True, 1.0
            self._probe_at = now + self._probe_pause
            words = f"{self._row} calls in a row failed, the last with: {end.words}"
            return [Change("hold", f"{words}; the others wait while one at a time tries")]
        return []

    def _why_stop(self, now: float, end: CallEnd) -> str:
        if end.kind == "denied":
            return f"the endpoint takes no call of ours: {end.words}"
        if end.kind == "refused":
            least, share = REFUSALS
            refused = sum(self._refused)
            if len(self._refused) >= least and refused >= share * len(self._refused):
                return f"the endpoint refuses {refused} of the last {len(self._refused)} calls, this one with: {end.words}"
        elif end.kind in ("limited", "transient") and self._failing_since is not None:
            seconds = now - self._failing_since
            if seconds >= self._patience:
                return f"no model call has succeeded for {seconds:.0f} s; the last said: {end.words}"
        return ""
