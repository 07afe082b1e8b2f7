"""Which rollout runs next, and what follows from how one ended: a pure state machine, fed by the driver.

A rollout flies from its start until it lands with a result. It runs again after a passing failure, up to a number of attempts
in the session; one whose worker died runs again alone, and is given up when it kills that one too. A batch ends with the last
of its rollouts.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

import msgspec

from kiseki.ledger.types import OpenRollout

RETRY_SECONDS = (2.0, 10.0, 30.0)
"""Pause before the 2nd, 3rd, … attempt: what failed for a passing reason should find it gone."""


class Flight(msgspec.Struct, frozen=True):
    """One attempt at a rollout, about to run or running."""

    rollout: OpenRollout
    tries: int = 1
    """Attempts in this session, this one included."""
    alone: bool = False
    """Its worker died; this attempt shows whether because of it."""


class Schedule:
    """Of one session. `now` is a monotonic time in seconds throughout."""

    def __init__(self, batches: Mapping[int, int], max_attempts: int) -> None:
        """`batches`: rollouts to run per batch."""
        self.stopping = False
        """Nothing is to run again."""
        self._left_in_batch = dict(batches)
        self._max_attempts = max_attempts
        self._flying: dict[str, Flight] = {}
        self._again: list[tuple[float, int, Flight]] = []  # heap: (due, order, flight)
        self._order = 0

    @property
    def flying(self) -> int:
        return len(self._flying)

    def first(self, rollout: OpenRollout) -> Flight:
        """The first attempt of this session at a rollout."""
        return Flight(rollout, alone=rollout.suspect)

    def due(self, now: float) -> Flight | None:
        """One that is to run again now, taken off the list."""
        return heapq.heappop(self._again)[2] if self._again and self._again[0][0] <= now else None

    def next_due(self) -> float | None:
        """When the next one is to run again, None when none is."""
        return self._again[0][0] if self._again else None

    def depart(self, key: str, flight: Flight) -> None:
        self._flying[key] = flight

    def land(self, key: str) -> Flight:
        return self._flying.pop(key)

    def ended(self, now: float, flight: Flight, *, retry: bool, cost: float) -> tuple[bool, int | None]:
        """An attempt is on the disk. `retry`: it failed for a reason that may pass. `cost`: US dollars that it took.

        Returns whether the rollout runs again, and the batch that has ended with it.
        """
        if retry and flight.tries < self._max_attempts and not self.stopping:
            rollout = msgspec.structs.replace(flight.rollout, spent=flight.rollout.spent + cost)
            self.again(now, Flight(rollout, flight.tries + 1, flight.alone))
            return True, None
        batch = flight.rollout.batch_num
        self._left_in_batch[batch] -= 1
        return False, batch if self._left_in_batch[batch] == 0 else None

    def again(self, now: float, flight: Flight) -> None:
        """To be run after a pause: the next attempt, or one more try at an attempt that was lost with its worker."""
        pause = RETRY_SECONDS[min(max(flight.tries - 2, 0), len(RETRY_SECONDS) - 1)]
        self._order += 1
        heapq.heappush(self._again, (now + pause, self._order, flight))
