"""What a run may spend: reserved before each call at its worst case, settled after it at what it took. A pure state machine.

Hard, as far as the worst case is one: with `--max_tokens` given a call cannot take more than was reserved for it, apart from
the estimate of its prompt's tokens. Without, a reply is taken to be as long as the longest so far, `REPLY_TOKENS` at least, so
that a run can overshoot by what is in flight at the time.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from kiseki.models.calls import CallEnd
from kiseki.models.prices import Price

REPLY_TOKENS = 4096
"""Of a reply, where neither the user nor an earlier reply says more."""
BYTES_PER_TOKEN = 3
"""Of a request's body: fewer than tokenizers need for prose or code, so that the estimate is rather too high."""


class Need(msgspec.Struct, frozen=True):
    """What a call may take, or took."""

    cost: float = 0.0
    """US dollars."""
    tokens: int = 0
    """Of prompt and reply together."""


class Budget:
    """The state of one run, all its sessions included."""

    def __init__(
        self,
        *,
        max_cost: float | None = None,
        max_tokens: int | None = None,
        price: Price | None = None,
        reply_tokens: int | None = None,
        spent: Need = Need(),  # noqa: B008  (frozen)
    ) -> None:
        """`reply_tokens`: the longest reply, where the user has set it. `spent`: by earlier sessions."""
        self.max_cost = max_cost
        self.max_tokens = max_tokens
        self.cost = spent.cost
        self.tokens = spent.tokens
        self.reserved_cost = 0.0
        self.reserved_tokens = 0
        self.unknown = Need()
        """Part of `cost` and `tokens`: reserved for calls of which nobody said what they took (no answer, a torn one)."""
        self._price = price or Price()
        self._fixed_reply = reply_tokens
        self._longest_reply = REPLY_TOKENS

    @property
    def at_worst(self) -> Need:
        """What is spent, and what is reserved for calls under way."""
        return Need(self.cost + self.reserved_cost, self.tokens + self.reserved_tokens)

    def worst_case(self, prompt_tokens: int, price: Price | None = None) -> Need:
        """`price`: of the model that is asked; default the run's."""
        return worst_case(price or self._price, prompt_tokens, self._fixed_reply or self._longest_reply)

    def ask(self, need: Need) -> Literal["yes", "wait", "no"]:
        """Whether a call may be made. `wait`: it can be, if one that is under way takes less than was reserved for it."""
        if self._exceeds(need, self.cost, self.tokens):
            return "no"
        if self._exceeds(need, self.cost + self.reserved_cost, self.tokens + self.reserved_tokens):
            return "wait"
        return "yes"

    def _exceeds(self, need: Need, cost: float, tokens: int) -> bool:
        too_dear = self.max_cost is not None and cost + need.cost > self.max_cost
        return too_dear or (self.max_tokens is not None and tokens + need.tokens > self.max_tokens)

    def reserve(self, need: Need) -> None:
        self.reserved_cost += need.cost
        self.reserved_tokens += need.tokens

    def settle(self, need: Need, end: CallEnd) -> None:
        """A call for which `need` was reserved has ended."""
        self.reserved_cost -= need.cost
        self.reserved_tokens -= need.tokens
        if not self.reserved_tokens:  # so that the rounding of many additions does not pile up
            self.reserved_cost = 0.0
        if end.known:
            self.cost += end.cost
            self.tokens += end.tokens
            self._longest_reply = max(self._longest_reply, end.completion_tokens)
        else:
            self.cost += need.cost
            self.tokens += need.tokens
            self.unknown = Need(self.unknown.cost + need.cost, self.unknown.tokens + need.tokens)

    def words(self) -> str:
        """What is set and what of it is spent."""
        parts = []
        if self.max_cost is not None:
            parts.append(f"${self.cost:.4f} of --max_cost=${self.max_cost:g}")
        if self.max_tokens is not None:
            parts.append(f"{self.tokens:,} of --max_total_tokens={self.max_tokens:,}")
        unanswered = f" (${self.unknown.cost:.4f}, {self.unknown.tokens:,} tokens of it for calls without an answer)"
        return " and ".join(parts) + (unanswered if self.unknown.tokens else "")


def worst_case(price: Price, prompt_tokens: int, reply_tokens: int) -> Need:
    cost = price.of(prompt_tokens, reply_tokens)
    if price.cache_write is not None:
        cost = max(cost, price.of(prompt_tokens, reply_tokens, cache_write_tokens=prompt_tokens))
    return Need(cost, prompt_tokens + reply_tokens)
