"""The schedule as a state machine: whatever the order of events, every rollout runs until it has an outcome, and no more."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kiseki.batch.schedule import RETRY_SECONDS, Flight, Schedule
from kiseki.ledger.types import OpenRollout
from kiseki.trajectory.types import Message, Prompt

PROMPT = Prompt(index=0, messages=(Message(role="user", content="p"),))


def rollout(number: int, *, batch: int = 0, suspect: bool = False) -> OpenRollout:
    return OpenRollout(number, b"", PROMPT, 0, batch, 0, suspect)


ENDS = st.sampled_from(["done", "refused", "passing", "lost"])


@given(
    st.lists(st.tuples(st.integers(0, 3), st.lists(ENDS, max_size=12)), min_size=1, max_size=12),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_every_rollout_ends_once_and_every_batch_with_its_last(
    plan: list[tuple[int, list[str]]], max_attempts: int, choose: object
) -> None:
    """`plan`: per rollout its batch, and how its attempts end one after the other (well, once the list is over)."""
    rollouts = [rollout(number, batch=batch) for number, (batch, _) in enumerate(plan)]
    ends = [list(each) for _, each in plan]
    schedule = Schedule(Counter(batch for batch, _ in plan), max_attempts)
    fresh, now = list(rollouts), 0.0
    flying: dict[str, Flight] = {}
    outcomes: Counter[int] = Counter()
    attempts: Counter[int] = Counter()
    lost_alone: set[int] = set()
    ended_batches: list[int] = []

    def depart(flight: Flight) -> None:
        key = f"{flight.rollout.rollout_id}"
        assert key not in flying, "never twice at once"
        schedule.depart(key, flight)
        flying[key] = flight

    while fresh or flying or schedule.next_due() is not None:
        if (flight := schedule.due(now)) is not None:
            depart(flight)
        elif fresh and getattr(choose, "random")() < 0.7:  # noqa: B009
            depart(schedule.first(fresh.pop(0)))
        elif flying:
            key = getattr(choose, "choice")(sorted(flying))  # noqa: B009
            flight = flying.pop(key)
            assert schedule.land(key) is flight
            number = flight.rollout.rollout_id
            end = ends[number].pop(0) if ends[number] else "done"
            if end == "lost" and not flight.alone:
                schedule.again(now, msgspec.structs.replace(flight, alone=True))
                continue
            if end == "lost":
                lost_alone.add(number)
            attempts[number] += 1
            again, batch = schedule.ended(now, flight, retry=end == "passing", cost=1.0)
            if not again:
                outcomes[number] += 1
            if batch is not None:
                ended_batches.append(batch)
        elif fresh:
            depart(schedule.first(fresh.pop(0)))
        else:
            due = schedule.next_due()
            assert due is not None
            assert now < due <= now + max(RETRY_SECONDS)
            now = due
    assert outcomes == Counter(range(len(plan)))
    assert all(count <= max_attempts for count in attempts.values())
    assert Counter(ended_batches) == Counter({batch for batch, _ in plan}), "each batch ends once"
    assert schedule.flying == 0


def test_a_suspect_runs_alone_from_the_first() -> None:
    schedule = Schedule({0: 1}, 3)
    assert schedule.first(rollout(0, suspect=True)).alone
    assert not schedule.first(rollout(0)).alone


def test_what_attempts_have_cost_goes_with_the_next() -> None:
    schedule = Schedule({0: 1}, 3)
    schedule.ended(0.0, Flight(rollout(0)), retry=True, cost=0.25)
    flight = schedule.due(RETRY_SECONDS[0])
    assert flight is not None
    assert (flight.rollout.spent, flight.tries) == (0.25, 2)


def test_nothing_runs_again_when_the_run_stops() -> None:
    schedule = Schedule({0: 1}, 3)
    schedule.stopping = True
    assert schedule.ended(0.0, Flight(rollout(0)), retry=True, cost=0.0) == (False, 0)
    assert schedule.next_due() is None
