"""A trajectory while a strategy works on it: its turns, and what each of them counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kiseki.compress.turns import Layout, Role, Turn
from kiseki.trajectory.tokens import TokenCounter


class Draft:
    """Mutable. `total` is the sum of `tokens`, always."""

    def __init__(self, turns: Iterable[Turn], layout: Layout, counter: TokenCounter) -> None:
        self.turns = list(turns)
        self.layout = layout
        self.counter = counter
        self.tokens = [counter.count(turn.text) for turn in self.turns]
        self.total = sum(self.tokens)

    def copy(self) -> Draft:
        """The same turns, to be worked on apart; nothing is counted again."""
        copied = object.__new__(Draft)
        copied.turns, copied.tokens = list(self.turns), list(self.tokens)
        copied.layout, copied.counter, copied.total = self.layout, self.counter, self.total
        return copied

    def become(self, other: Draft) -> None:
        """Take the turns of another draft of the same row in the place of its own."""
        self.turns, self.tokens, self.total = list(other.turns), list(other.tokens), other.total

    def take(self, other: Draft, start: int, end: int) -> None:
        """Append the turns from `start` to `end` of another draft; nothing is counted again."""
        self.turns += other.turns[start:end]
        self.tokens += other.tokens[start:end]
        self.total += sum(other.tokens[start:end])

    def of_role(self, role: Role) -> int:
        """Tokens of all turns of that role."""
        return sum(tokens for turn, tokens in zip(self.turns, self.tokens, strict=True) if turn.role == role)

    def put(self, at: int, turn: Turn) -> bool:
        """Replace a turn, if that makes it smaller; whether it did."""
        tokens = self.counter.count(turn.text)
        if tokens >= self.tokens[at]:
            return False
        self.total += tokens - self.tokens[at]
        self.turns[at], self.tokens[at] = turn, tokens
        return True

    def splice(self, start: int, end: int, turns: Sequence[Turn]) -> None:
        """Put `turns` in the place of those from `start` to `end`, whatever they count."""
        self.turns[start:end] = turns
        self.tokens[start:end] = [self.counter.count(turn.text) for turn in turns]
        self.total = sum(self.tokens)
