"""What one rollout may spend. Pure, no I/O; belongs to one event loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kiseki.errors import PromptBudgetSpent


class Allowance:
    """US dollars that one rollout may spend, its tools and sub-agents included.

    What is under way is held back at its worst, so that calls side by side cannot count on the same dollar.
    """

    def __init__(self, limit: float | None = None) -> None:
        """`limit`: default none."""
        self._limit = limit
        self._spent = 0.0
        self._held = 0.0

    def left(self) -> float | None:
        """None where there is no limit."""
        return None if self._limit is None else self._limit - self._spent - self._held

    def spend(self, dollars: float) -> None:
        self._spent += dollars

    @contextmanager
    def holding(self) -> Iterator[Hold]:
        """A block in which something is held back for what it may cost; what it did cost it says by `spend`."""
        hold = Hold(self)
        try:
            yield hold
        finally:
            self._held -= hold.dollars

    def hold(self, hold: Hold, dollars: float, what: str) -> None:
        left = self.left()
        if left is not None and dollars > left + hold.dollars:
            left = max(left + hold.dollars, 0.0)
            raise PromptBudgetSpent(f"{what} may cost ${dollars:.4f}, and ${left:.4f} are left for it")
        self._held += dollars - hold.dollars
        hold.dollars = dollars


class Hold:
    """What one of them holds back at the moment."""

    __slots__ = ("_allowance", "dollars")

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self.dollars = 0.0

    def set(self, dollars: float, what: str = "the next call") -> None:
        """Hold back so much instead. Raises `PromptBudgetSpent` where that is more than what is left."""
        self._allowance.hold(self, dollars, what)
