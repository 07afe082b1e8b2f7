"""What one rollout may spend. Pure, no I/O; belongs to one event loop."""

from __future__ import annotations

from typing import Self

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

    def holding(self) -> Hold:
        """A block in which something is held back for what it may cost; what it did cost it says by `spend`."""
        return Hold(self)

    def hold(self, dollars: float) -> None:
        self._held += dollars


class Hold:
    """What one of those under way holds back at the moment; at the end of its block nothing any more."""

    __slots__ = ("_allowance", "_dollars")

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._dollars = 0.0

    def set(self, dollars: float, what: str = "the next call") -> None:
        """Hold back so much instead. Raises `PromptBudgetSpent` where that is more than what is left."""
        left = self._allowance.left()
        if left is not None and dollars > left + self._dollars:
            left = max(left + self._dollars, 0.0)
            raise PromptBudgetSpent(f"{what} may cost ${dollars:.4f}, and ${left:.4f} are left for it")
        self._allowance.hold(dollars - self._dollars)
        self._dollars = dollars

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._allowance.hold(-self._dollars)
        self._dollars = 0.0
