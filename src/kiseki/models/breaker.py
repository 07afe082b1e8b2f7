"""When an endpoint is given a rest, and when the run is stopped because of it. A pure state machine.

- Denied (401, 402, 403: a bad key, no credit): every further call would be, too. The run stops at once.
- Refused (400, 404, 422): the request's own fault as a rule, and the rollout fails. Where all are refused it is the set-up that
  is wrong (a model that is not there), and the run stops: soon where the endpoint has never answered a call of the run.
- An outage: calls of many rollouts fail one after the other and none succeeds. All others then wait, one probes with growing
  pauses, and the first success lets all go on, so that an outage costs time and no rollout. Only when nothing has succeeded
  for as long as the user has patience does the run stop.
"""

from __future__ import annotations

import math

from kiseki.models.calls import CallEnd, Change

HOLD_AFTER = 10
"""First requests of calls that fail in a row, none succeeding in between: fewer may be a few prompts' doing. In a run with fewer
calls at once, as many as those, `LEAST_HELD` at least."""
LEAST_HELD = 4
LONGEST_PROBE_PAUSE = 15.0
"""Seconds between two probes at most; the first pause is 1 s, and each is twice the one before."""
REFUSED_AT_FIRST = 20
"""Calls refused in a row, and the set-up is wrong."""
REFUSED_LATER = 50
"""The same where the endpoint has answered before: there it may be the tail of a dataset."""


class Breaker:
    """The state for one endpoint. `stopped` says why the run is over, "" as long as it is not."""

    def __init__(self, patience: float, *, at_once: int = HOLD_AFTER, works: bool = False) -> None:
        """`patience`: seconds without one success, while calls fail or are turned away, after which the run stops. `at_once`:
        calls at once that the run wants. `works`: the endpoint has answered calls of this run before."""
        self.stopped = ""
        self.held = False
        self._patience = patience
        self._failing_since: float | None = None
        self._row = 0
        self._turned_away = 0  # calls
        self._probing = False
        self._probe_pause = 0.0
        self._probe_at = 0.0
        self._hold_after = min(HOLD_AFTER, max(LEAST_HELD, at_once))
        self._works = works
        self._answered = False  # a call of this session
        self._refused = 0  # in a row

    def wait(self, now: float) -> float:
        """Seconds that the next request has to wait: 0.0 it may start, `math.inf` until the probe ends."""
        if not self.held:
            return 0.0
        return math.inf if self._probing else max(0.0, self._probe_at - now)

    def start(self) -> bool:
        """A request starts. Returns whether it is a probe; a probe's failure is not its rollout's."""
        self._probing |= self.held
        return self.held

    def end(self, now: float, end: CallEnd, *, again: bool, probe: bool, others: int) -> list[Change]:
        """`again`: it was not its call's first request. `others`: requests that are still under way."""
        if probe:
            self._probing = False
        changes: list[Change] = []
        if end.kind in ("ok", "refused"):
            self._refused = self._refused + 1 if end.kind == "refused" else 0
            self._works |= end.kind == "ok"
            self._answered = True
            self._failing_since, self._row, self._turned_away = None, 0, 0
            if self.held:
                self.held = False
                changes.append(Change("resume", "the endpoint answers again"))
        elif end.kind in ("limited", "transient"):
            changes += self._failed(now, end, again=again, probe=probe)
        if not self.stopped and (why := self._why_stop(now, end, others)):
            self.stopped = why
            changes.append(Change("stop", why))
        return changes

    def _failed(self, now: float, end: CallEnd, *, again: bool, probe: bool) -> list[Change]:
        first = self._failing_since is None
        if self._failing_since is None:
            self._failing_since = now
        self._row += end.kind == "transient" and not again
        self._turned_away += end.kind == "limited" and not again
        if probe:
            self._probe_pause = min(LONGEST_PROBE_PAUSE, self._probe_pause * 2)
            self._probe_at = min(now + self._probe_pause, max(now, self._failing_since + self._patience))
        elif not self.held and self._row >= self._hold_after:
            self.held, self._probe_pause = True, 1.0
            self._probe_at = now + self._probe_pause
            words = f"{self._row} calls in a row failed, the last with: {end.words}"
            return [Change("hold", f"{words}; the others wait while one at a time tries")]
        if first and not self._answered and end.kind == "transient":
            return [Change("fault", f"the first call failed: {end.words}; it is tried again, for {self._patience:g} s at most")]
        return []

    def _why_stop(self, now: float, end: CallEnd, others: int) -> str:
        if end.kind == "denied":
            return f"the endpoint takes no call of ours: {end.words}"
        if end.kind == "refused" and self._refused >= (REFUSED_LATER if self._works else REFUSED_AT_FIRST):
            return f"the endpoint has refused the last {self._refused} calls, this one with: {end.words}"
        # a call that fails may be one prompt's doing, and one that is turned away says nothing while the endpoint works on others
        lasting = self.held if end.kind == "transient" else end.kind == "limited" and self._turned_away > 1 and not others
        if lasting and self._failing_since is not None and now - self._failing_since >= self._patience:
            return f"no model call has succeeded for {now - self._failing_since:.0f} s; the last said: {end.words}"
        return ""
