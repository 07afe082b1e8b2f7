"""Who may ask the endpoint now: the one place through which every model call of a run goes, whatever worker makes it.

Holds the calls that wait and those that are under way, and asks three controllers, each pure and tested as such: the budget
(`budget.py`), the rate limit (`rate_limit.py`) and the breaker (`breaker.py`). Lives in the driver's process; a worker process
speaks to it over its socket (`batch/worker.py`), a rollout in the same process through `LocalDoor`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol

import msgspec

from kiseki.errors import BudgetSpent, NotAdmitted, RunStopped
from kiseki.models.breaker import Breaker
from kiseki.models.budget import Budget, Need
from kiseki.models.calls import DROPPED, NOT_SENT, CallEnd, Change
from kiseki.models.prices import Price
from kiseki.models.rate_limit import RateLimit

TURNED_DOWN = 10
"""Calls in a row that do not fit into the budget, and it is spent: fewer may be large ones, while others still fit."""
NO_TOKENS = (
    "the endpoint answers without token ids, or not with those of the whole prompt and reply: "
    "such calls are part of no sequence of the formats rl and atropos"
)
UNLIMITED = 1_000_000
"""A ceiling for calls that something else bounds."""


class Ask(msgspec.Struct, frozen=True):
    """A call that wants to be made."""

    prompt_tokens: int
    """Estimated."""
    again: bool = False
    """It was made before and is to be tried again: it goes ahead of others."""
    elsewhere: Need | None = None
    """What it may take at worst, where it goes to another endpoint: then only the budget is asked, and it says nothing about
    this one. Default: it goes to this one."""
    price: Price | None = None
    """Of the model that is asked, where that may be another than the run's. Default: the run's."""


class Admitted(msgspec.Struct, frozen=True):
    """It may be made."""

    probe: bool = False
    """To see whether the endpoint is there again; its failure is not the rollout's."""


Answer = Callable[[Admitted | NotAdmitted], None]


class Timer(Protocol):
    def cancel(self) -> None: ...


class _UnderWay(msgspec.Struct, frozen=True):
    ask: Ask
    need: Need
    number: int
    probe: bool


class Admission:
    """Of one run and endpoint. Belongs to one event loop."""

    def __init__(
        self,
        limit: RateLimit,
        breaker: Breaker,
        budget: Budget,
        *,
        clock: Callable[[], float] = time.monotonic,
        later: Callable[[float, Callable[[], None]], Timer] | None = None,
    ) -> None:
        """`clock` and `later` belong together, for tests: default the loop's."""
        self.limit = limit
        self.breaker = breaker
        self.budget = budget
        self.budget_spent = False
        """So many calls in a row were turned down for it that the run is at its end."""
        self.turned_down = 0
        """Calls that did not fit into the budget."""
        self.without_tokens = 0
        """Answers without the token ids that were asked for."""
        self.fell_back = False
        """A call failed for which a fallback was asked then."""
        self.told: set[str] = set()
        """Notices, each of which is told once."""
        self.changed: Callable[[Change], None] = lambda change: None
        """Gets each decision when it is made."""
        self._clock = clock
        self._later = later
        # those that are tried again, then the others, each in the order in which they came
        self._waiting: tuple[OrderedDict[Hashable, tuple[Ask, Answer]], ...] = (OrderedDict(), OrderedDict())
        self._elsewhere: OrderedDict[Hashable, tuple[Ask, Answer]] = OrderedDict()
        self._under_way: dict[Hashable, _UnderWay] = {}
        self._timer: Timer | None = None
        self._turned_down_in_row = 0
        self._fresh_probes = False

    def words(self) -> str:
        """What holds calls up at the moment, "" when nothing does."""
        if self.breaker.held:
            return "the endpoint fails, one call at a time tries"
        if self.limit.limit < self.limit.ceiling:
            return f"{self.limit.at_once} calls at once at most"
        return ""

    def ask(self, key: Hashable, ask: Ask, answer: Answer) -> None:
        """`answer` is called once, perhaps at once: with `Admitted`, or with `BudgetSpent` or `RunStopped`. `leave` must follow
        an `Admitted`, and may come before any answer, which then never comes."""
        queue = self._elsewhere if ask.elsewhere else self._waiting[0 if ask.again else 1]
        queue[key] = (ask, answer)
        self._let_in()

    def leave_all(self, keys: Iterable[Hashable]) -> None:
        """Whoever wanted these calls is gone, and nobody knows what became of those that were under way."""
        keys = list(keys)
        for waiting in (self._elsewhere, *self._waiting):
            for key in keys:
                waiting.pop(key, None)
        for key in keys:
            self.leave(key, DROPPED)
        self._let_in()

    def leave(self, key: Hashable, end: CallEnd = NOT_SENT) -> None:
        """A call is over, or nobody wants it any more. Unknown keys are no error: an answer and a leave may cross."""
        call = self._under_way.pop(key, None)
        if call is None:
            if any(waiting.pop(key, None) for waiting in (self._elsewhere, *self._waiting)):
                self._let_in()  # those behind it may need less
            return
        now = self._clock()
        self.budget.settle(call.need, end)
        if end.without_tokens:
            self.without_tokens += 1
            if self.without_tokens == 1:
                self.changed(Change("tokens", NO_TOKENS))
        if end.notice and end.notice not in self.told:
            self.told.add(end.notice)
            self.changed(Change("notice", end.notice))
        if call.ask.elsewhere is None:
            changes = self.limit.end(now, call.number, end)
            if end.falls_back and not self.fell_back:
                changes.append(Change("fallback", f"a fallback model is asked where the run's own fails, first: {end.words}"))
            self.fell_back |= end.falls_back
            if not end.falls_back:
                changes += self.breaker.end(now, end, again=call.ask.again, probe=call.probe, others=self.limit.in_flight)
            for change in changes:
                self.changed(change)
        self._let_in()

    def close(self) -> None:
        """Nobody is let in any more, and of what is under way nobody will say what it took."""
        self._stop_timer()
        for waiting in (self._elsewhere, *self._waiting):
            waiting.clear()
        for call in self._under_way.values():
            self.budget.settle(call.need, DROPPED)
        self._under_way.clear()

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _let_in(self) -> None:
        """Let in whoever may come, in order; the first that has to wait holds up those behind it."""
        while self._elsewhere and self._settle_first(self._elsewhere):
            pass
        while (waiting := self._next()) is not None and self._settle_first(waiting):
            pass

    def _settle_first(self, waiting: OrderedDict[Hashable, tuple[Ask, Answer]]) -> bool:
        """Answer the first of a queue; False where it has to wait."""
        key = next(iter(waiting))
        ask, answer = waiting[key]
        if self.breaker.stopped:
            del waiting[key]
            answer(RunStopped(self.breaker.stopped))
            return True
        need = ask.elsewhere or self.budget.worst_case(ask.prompt_tokens, ask.price)
        allowed = self.budget.ask(need)
        if allowed == "no":
            del waiting[key]
            self._turn_down(need)
            answer(BudgetSpent(f"the next call does not fit into the budget: {self.budget.words()} spent"))
            return True
        now = self._clock()
        seconds = math.inf if allowed == "wait" else 0.0
        if not ask.elsewhere and allowed == "yes":
            seconds = max(self.limit.wait(now, need.tokens), self.breaker.wait(now))
        if seconds > 0.0:
            self._look_again(seconds)
            return False
        del waiting[key]
        self.budget.reserve(need)
        self._turned_down_in_row = 0
        number, probe = (0, False) if ask.elsewhere else (self.limit.start(now, need.tokens), self.breaker.start())
        self._fresh_probes ^= probe
        self._under_way[key] = _UnderWay(ask, need, number, probe)
        answer(Admitted(probe))
        return True

    def _next(self) -> OrderedDict[Hashable, tuple[Ask, Answer]] | None:
        """The queue whose first is next. Of probes every other one is a fresh call, since those tried again may fail by
        themselves."""
        first = self.breaker.held and self._fresh_probes
        return self._waiting[first] or self._waiting[not first] or None

    def _turn_down(self, need: Need) -> None:
        if not self.turned_down:
            it = f"the first call that does not fit: it may take {need.tokens:,} tokens, ${need.cost:.4f}"
            self.changed(Change("budget", f"{it}; {self.budget.words()} spent"))
        self.turned_down += 1
        self._turned_down_in_row += 1
        if self._turned_down_in_row == TURNED_DOWN:
            self.budget_spent = True
            self.changed(Change("budget", f"no call fits any more: {self.budget.words()} spent"))

    def _look_again(self, seconds: float) -> None:
        """When something ends, anyway; and after so many seconds, unless that is never."""
        self._stop_timer()
        if seconds < math.inf:
            later = self._later or asyncio.get_running_loop().call_later
            self._timer = later(seconds, self._let_in)


class Door(Protocol):
    """The admission as a rollout sees it, near or far."""

    def ask(self, ask: Ask) -> tuple[int, asyncio.Future[Admitted]]:
        """Returns the call's key and the answer, which may be there already and may raise `BudgetSpent` or `RunStopped`."""
        ...

    def leave(self, key: int, end: CallEnd) -> None:
        """Must follow every `ask`, whatever came of it."""
        ...


class LocalDoor:
    """A `Door` to an admission on the same event loop."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._keys = 0

    def ask(self, ask: Ask) -> tuple[int, asyncio.Future[Admitted]]:
        self._keys += 1
        admitted: asyncio.Future[Admitted] = asyncio.get_running_loop().create_future()
        self._admission.ask(self._keys, ask, lambda answer: settle(admitted, answer))
        return self._keys, admitted

    def leave(self, key: int, end: CallEnd) -> None:
        self._admission.leave(key, end)


def settle(future: asyncio.Future[Admitted], answer: Admitted | NotAdmitted) -> None:
    """Give the answer to whoever waits, if someone still does."""
    if future.done():
        return
    if isinstance(answer, Admitted):
        future.set_result(answer)
    else:
        future.set_exception(answer)
