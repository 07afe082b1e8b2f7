"""The admission with its three controllers, on a clock that the test moves; and a door of it, on an event loop."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import FakeTime

from kiseki.errors import BudgetSpent, NotAdmitted, RunStopped
from kiseki.models.admission import TURNED_DOWN, Admission, Admitted, Ask, LocalDoor
from kiseki.models.base import RateInfo
from kiseki.models.breaker import HOLD_AFTER, Breaker
from kiseki.models.budget import Budget, Need
from kiseki.models.calls import DROPPED, NOT_SENT, CallEnd
from kiseki.models.rate_limit import LEAST_ROUND, RateLimit

PATIENCE = 100.0
REPLY = 100
asks = st.tuples(st.just("ask"), st.integers(1, 300), st.booleans())
ends = st.builds(
    CallEnd,
    st.sampled_from(["ok", "ok", "limited", "transient", "transient", "dropped"]),
    tokens=st.integers(0, 400),
    known=st.booleans(),
    retry_after=st.none() | st.floats(0, 50),
    rate=st.none() | st.builds(RateInfo, st.floats(0, 3), st.floats(0, 60), st.floats(0, 300), st.floats(0, 60)),
)
events = st.lists(
    st.one_of(
        asks,
        asks,
        st.tuples(st.just("end"), st.integers(0, 50), ends),
        st.tuples(st.just("withdraw"), st.integers(0, 50), st.booleans()),
        st.tuples(st.just("pass"), st.floats(0, 30), st.none()),
    ),
    max_size=100,
)


class Run:
    """An admission, who waits in which order, who is under way, and who got which answer."""

    def __init__(self, ceiling: int = 4, **budget: Any) -> None:
        self.time = FakeTime(by_hand=True)
        limit, breaker = RateLimit(ceiling), Breaker(PATIENCE)
        self.budget = Budget(reply_tokens=REPLY, **budget)
        self.admission = Admission(limit, breaker, self.budget, clock=self.time.clock, later=self.time.later)
        self.decided: list[str] = []
        self.admission.changed = lambda change: self.decided.append(change.kind)
        self.waiting: list[tuple[int, Ask]] = []
        self.under_way: list[int] = []
        self.answers: dict[int, Admitted | NotAdmitted] = {}
        self.asked = 0

    def ask(self, tokens: int = 1, again: bool = False) -> int:
        """Returns the call's key."""
        self.asked += 1
        key, ask = self.asked, Ask(tokens, again)
        self.waiting.append((key, ask))
        self.admission.ask(key, ask, lambda answer: self.answer(key, answer))
        return key

    def answer(self, key: int, answer: Admitted | NotAdmitted) -> None:
        assert key not in self.answers
        queues = ([each for each in self.waiting if each[1].again == again] for again in (True, False))
        firsts = [queue[0] for queue in queues if queue]
        ask = dict(firsts if self.admission.breaker.held else firsts[:1])[key]  # of probes a fresh call may be next, too
        self.waiting.remove((key, ask))
        self.answers[key] = answer
        if isinstance(answer, Admitted):
            self.under_way.append(key)
        elif isinstance(answer, BudgetSpent):
            assert self.budget.max_tokens is not None
            assert self.budget.tokens + ask.prompt_tokens + REPLY > self.budget.max_tokens

    def end(self, key: int, end: CallEnd) -> None:
        self.under_way.remove(key)
        self.admission.leave(key, end)

    def call(self, kind: Literal["ok", "limited", "transient", "denied"], **fields: Any) -> None:
        self.end(self.ask(), CallEnd(kind, words="its words", **fields))

    def withdraw(self, key: int) -> None:
        self.waiting = [each for each in self.waiting if each[0] != key]
        self.admission.leave(key)

    def play(self, what: str, value: Any, more: Any) -> None:
        if what == "ask":
            self.ask(value, more)
        elif what == "pass":
            self.time.advance(value)
        elif what == "end" and self.under_way:
            self.end(self.under_way[value % len(self.under_way)], more)
        elif what == "withdraw" and more and self.waiting:
            self.withdraw(self.waiting[value % len(self.waiting)][0])
        elif what == "withdraw" and not more and self.under_way:
            self.end(self.under_way[value % len(self.under_way)], NOT_SENT)

    def finish(self) -> None:
        """Let everything under way succeed, and time pass, until nobody waits."""
        while self.waiting or self.under_way:
            waiting = len(self.waiting)
            for key in list(self.under_way):
                self.end(key, CallEnd("ok"))
            if len(self.waiting) < waiting or not self.waiting:
                continue
            assert self.time.due is not None, "they wait for nothing"
            self.time.advance(self.time.due - self.time.now)


@given(st.integers(1, 20), st.none() | st.integers(100, 5000), events)
def test_whatever_happens(ceiling: int, max_tokens: int | None, played: list[tuple[str, Any, Any]]) -> None:
    run = Run(ceiling, max_tokens=max_tokens)
    withdrawn: set[int] = set()
    for what, value, more in played:
        waiting = {key for key, _ in run.waiting}
        run.play(what, value, more)
        if what == "withdraw":
            withdrawn |= waiting - {key for key, _ in run.waiting} - set(run.answers)
        assert run.admission.limit.in_flight == len(run.under_way) <= ceiling
        assert not (run.waiting and run.admission.breaker.stopped)
        if run.waiting and not run.under_way:
            assert run.time.due is not None
    run.finish()
    assert withdrawn.isdisjoint(run.answers)
    assert len(run.answers) + len(withdrawn) == run.asked
    assert (run.budget.reserved_cost, run.budget.reserved_tokens) == (0.0, 0)
    if run.admission.breaker.stopped:
        assert isinstance(run.answers[run.ask()], RunStopped)
    elif not run.admission.budget_spent:
        run.ask()
        run.finish()
        assert isinstance(run.answers[run.asked], Admitted) or max_tokens is not None
    run.admission.close()
    assert run.time.due is None


def test_first_come_first_served_and_those_tried_again_before() -> None:
    run = Run(ceiling=1)
    first = run.ask()
    for again in (False, True, False, True):
        run.ask(again=again)
    served = []
    while run.under_way:
        served += run.under_way
        run.end(run.under_way[0], CallEnd("ok"))
    assert served == [first, 3, 5, 2, 4]


def test_a_stop_is_for_everybody() -> None:
    run = Run(ceiling=2)
    for _ in range(5):
        run.ask()
    run.end(1, CallEnd("denied", words="HTTP 401: bad key"))
    assert [str(run.answers[key]) for key in (3, 4, 5)] == ["the endpoint takes no call of ours: HTTP 401: bad key"] * 3
    run.end(2, CallEnd("ok"))
    assert isinstance(run.answers[run.ask()], RunStopped)
    assert run.decided == ["stop"]


def test_the_budget_holds_back_and_turns_down() -> None:
    run = Run(max_tokens=500)
    for _ in range(5):
        run.ask(tokens=100)
    assert run.under_way == [1, 2]  # 400 are reserved
    run.end(1, CallEnd("ok", tokens=150))
    assert run.under_way == [2]
    run.end(2, CallEnd("ok", tokens=150))
    assert run.under_way == [3]
    run.end(3, DROPPED)
    assert isinstance(run.answers[4], BudgetSpent)
    assert isinstance(run.answers[5], BudgetSpent)
    assert run.budget.tokens == 500
    assert run.decided == ["budget"]
    assert "500 of --max_total_tokens=500" in str(run.answers[4])


def test_calls_that_do_not_fit_are_turned_down_and_only_many_in_a_row_end_the_run() -> None:
    run = Run(max_tokens=500)
    for fits in (True, False):
        for _ in range(TURNED_DOWN - 1):
            assert isinstance(run.answers[run.ask(tokens=450)], BudgetSpent)
        assert not run.admission.budget_spent
        if fits:
            run.call("ok")
    assert isinstance(run.answers[run.ask(tokens=450)], BudgetSpent)
    assert run.admission.budget_spent
    assert run.admission.turned_down == 2 * TURNED_DOWN - 1
    assert run.decided == ["budget", "budget"]


def test_who_leaves_makes_room_for_those_behind() -> None:
    run = Run(max_tokens=500)
    run.ask(tokens=100)
    large = run.ask(tokens=350)
    small = run.ask(tokens=100)
    assert run.under_way == [1]
    run.withdraw(large)
    assert run.under_way == [1, small]


def test_a_pause_is_over_by_itself() -> None:
    run = Run()
    for _ in range(LEAST_ROUND):
        run.call("limited", retry_after=20.0)
    key = run.ask()
    run.time.advance(19.0)
    assert not run.under_way
    run.time.advance(1.0)
    assert run.under_way == [key]
    assert run.decided == ["pause"]


def test_closed_it_looks_no_more() -> None:
    run = Run()
    for _ in range(LEAST_ROUND):
        run.call("limited", retry_after=20.0)
    run.ask()
    assert run.time.due is not None
    run.admission.close()
    assert run.time.due is None


def test_closed_it_lets_nobody_in_and_what_was_under_way_is_taken_to_have_cost_all_that_it_could() -> None:
    run = Run(ceiling=2, max_tokens=10_000)
    for _ in range(5):
        run.ask(tokens=50)
    assert run.under_way == [1, 2]
    run.admission.close()
    assert (run.budget.tokens, run.budget.unknown.tokens, run.budget.reserved_tokens) == (300, 300, 0)
    run.end(1, CallEnd("ok", tokens=60))  # too late to say so
    assert run.under_way == [2]
    assert run.budget.tokens == 300


def test_the_calls_of_whoever_is_gone_make_room_for_others_and_not_for_one_another() -> None:
    run = Run(ceiling=2, max_tokens=10_000)
    gone = [run.ask(tokens=50) for _ in range(6)]
    other = run.ask(tokens=50)
    run.waiting = [each for each in run.waiting if each[0] == other]
    run.admission.leave_all(gone)
    assert run.under_way == [1, 2, other]
    assert run.admission.limit.in_flight == 1
    assert (run.budget.tokens, run.budget.reserved_tokens) == (300, 150), "what was under way, and nothing that waited"


def test_in_an_outage_one_at_a_time_tries() -> None:
    run = Run(ceiling=20)
    for _ in range(HOLD_AFTER):
        run.call("transient")
    for _ in range(5):
        run.ask()
    assert not run.under_way
    assert run.admission.words() == "the endpoint fails, one call at a time tries"
    run.time.advance(1.0)
    assert run.under_way == [HOLD_AFTER + 1]
    assert run.answers[HOLD_AFTER + 1] == Admitted(probe=True)
    run.end(HOLD_AFTER + 1, CallEnd("ok"))
    assert len(run.under_way) == 4
    assert run.decided == ["fault", "hold", "resume"]
    assert run.admission.words() == ""


def test_of_probes_every_other_one_is_a_fresh_call() -> None:
    """Those that are tried again may fail by themselves, as many as they are."""
    run = Run(ceiling=20)
    for _ in range(HOLD_AFTER):
        run.call("transient")
    for again in (True, False):
        for _ in range(4):
            run.ask(again=again)
    probes = []
    for _ in range(4):
        assert run.time.due is not None
        run.time.advance(run.time.due - run.time.now)
        probes += run.under_way
        run.end(run.under_way[0], CallEnd("transient"))
    assert probes == [HOLD_AFTER + number for number in (1, 5, 2, 6)]


def test_an_endpoint_that_only_fails_stops_the_run_when_patience_ends() -> None:
    run = Run()
    for _ in range(50):
        run.ask()
    while run.under_way or run.time.due is not None:
        for key in list(run.under_way):
            run.end(key, CallEnd("transient", words="HTTP 500: boom"))
        if run.time.due is not None:
            run.time.advance(run.time.due - run.time.now)
    assert run.decided == ["fault", "hold", "stop"]
    assert PATIENCE <= run.time.now <= PATIENCE + 15.0
    assert not run.waiting


def test_a_leave_may_cross_an_answer() -> None:
    run = Run()
    run.admission.leave(99)
    run.call("ok")
    run.admission.leave(1)
    assert run.admission.limit.in_flight == 0


def test_a_call_elsewhere_asks_the_budget_and_nothing_else() -> None:
    run = Run(1, max_tokens=1000)
    admission, answers = run.admission, run.answers

    def elsewhere(key: int, tokens: int) -> None:
        admission.ask(key, Ask(1, elsewhere=Need(0.0, tokens)), lambda answer: answers.__setitem__(key, answer))

    first = run.ask()
    waiting = run.ask()
    elsewhere(-1, 300)
    assert isinstance(answers[-1], Admitted) and waiting not in answers
    assert (admission.limit.in_flight, run.budget.reserved_tokens) == (1, 401)
    elsewhere(-2, 700)  # waits for what is reserved, and holds up nobody
    assert -2 not in answers
    run.end(first, CallEnd("ok", tokens=10))
    assert isinstance(answers[waiting], Admitted) and -2 not in answers
    for _ in range(LEAST_ROUND):
        admission.leave(-1, CallEnd("denied", tokens=100))  # whatever it says of its endpoint
    assert not admission.breaker.stopped and isinstance(answers[-2], Admitted)
    elsewhere(-3, 1000)
    assert isinstance(answers[-3], BudgetSpent)
    admission.leave_all([-2])
    assert (run.budget.tokens, run.budget.unknown.tokens, run.budget.reserved_tokens) == (10 + 100 + 700, 700, 101)


def test_what_waits_for_the_budget_elsewhere_can_leave() -> None:
    run = Run(4, max_tokens=500)
    first = run.ask()
    run.admission.ask(-1, Ask(1, elsewhere=Need(0.0, 450)), lambda answer: run.answers.__setitem__(-1, answer))
    run.admission.leave(-1)
    run.end(first, CallEnd("ok"))
    assert -1 not in run.answers
    run.call("denied")
    run.admission.ask(-2, Ask(1, elsewhere=Need()), lambda answer: run.answers.__setitem__(-2, answer))
    assert isinstance(run.answers[-2], RunStopped)


def test_a_door() -> None:
    async def scenario() -> None:
        time = FakeTime()
        admission = Admission(RateLimit(1), Breaker(PATIENCE), Budget(), clock=time.clock, later=time.later)
        door = LocalDoor(admission)
        key, answer = door.ask(Ask(1))
        assert answer.result() == Admitted()
        gone, never = door.ask(Ask(1))
        next_key, waits = door.ask(Ask(1))
        door.leave(gone, NOT_SENT)
        door.leave(key, CallEnd("ok", rate=RateInfo(requests_left=0, requests_reset=30.0)))
        assert not waits.done()
        assert await waits == Admitted()
        assert time.now == 30.0
        assert not never.done()
        door.leave(next_key, CallEnd("ok"))
        assert admission.limit.in_flight == 0

        key, _ = door.ask(Ask(1))
        door.leave(key, CallEnd("denied", words="no"))
        with pytest.raises(RunStopped, match="takes no call of ours: no"):
            door.ask(Ask(1))[1].result()

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["ok", "denied"])
def test_an_answer_for_a_caller_who_is_just_leaving(kind: Literal["ok", "denied"]) -> None:
    """Admitted or stopped and cancelled at the same moment: nothing stays taken, and nothing is said about it."""
    said: list[dict[str, Any]] = []

    async def scenario() -> int:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: said.append(context))
        admission = Admission(RateLimit(1), Breaker(PATIENCE), Budget())
        door = LocalDoor(admission)
        first, _ = door.ask(Ask(1))

        async def call() -> None:
            key, answer = door.ask(Ask(1))
            try:
                await answer
            finally:
                door.leave(key, NOT_SENT)

        waits = asyncio.create_task(call())
        await asyncio.sleep(0)
        door.leave(first, CallEnd(kind))
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        del waits
        gc.collect()
        await asyncio.sleep(0)
        return admission.limit.in_flight

    assert asyncio.run(scenario()) == 0
    assert not said
