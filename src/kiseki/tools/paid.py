"""Money that tools spend at endpoints beside the run's own: counted in the run's budget, without a word about its endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kiseki.models.admission import Ask
from kiseki.models.budget import Need
from kiseki.models.calls import DROPPED, NOT_SENT, CallEnd
from kiseki.tools.context import ToolContext
from kiseki.trajectory.types import Usage


class Bill:
    """What a call has taken; `worst` until its caller says."""

    def __init__(self, worst: Need) -> None:
        self.end = DROPPED
        self.cost = worst.cost
        """US dollars, as far as it is known by now."""

    def is_nothing(self) -> None:
        """It was refused, or never sent."""
        self.end, self.cost = NOT_SENT, 0.0

    def is_usage(self, usage: Usage, cost: float) -> None:
        """`cost`: US dollars; that of `usage` may be less than what is to be counted."""
        self.end = CallEnd("dropped", tokens=usage.prompt_tokens + usage.completion_tokens, cost=cost)
        self.cost = cost


@asynccontextmanager
async def in_budget(context: ToolContext, worst: Need) -> AsyncIterator[Bill]:
    """A block that pays for a call to another endpoint, `worst` at most: reserved in the run's budget, and settled at its end
    at what its `Bill` says then. Raises `BudgetSpent` and `RunStopped`. Without a run there is nothing to settle."""
    bill = Bill(worst)
    door = context.services.door
    if door is None:
        yield bill
        return
    key, admitted = door.ask(Ask(worst.tokens, elsewhere=worst))
    end = NOT_SENT
    try:
        if not admitted.done():
            with context.on_hold:
                await admitted
        admitted.result()
        try:
            yield bill
        finally:
            end = bill.end
    finally:
        door.leave(key, end)
