"""What a format is: pure functions between an `Example` and the rows that one consumer reads. No I/O, and none knows another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from kiseki.trajectory.example import Example

Holds = Literal["system", "tools", "text", "reasoning", "calls", "parallel_calls", "ids", "results", "images", "masks"]
"""What of an example comes back when its rows are read again. `calls`: names and arguments. `ids`: of the calls, as they were."""
EVERYTHING: frozenset[Holds] = frozenset(
    {"system", "tools", "text", "reasoning", "calls", "parallel_calls", "ids", "results", "images", "masks"}
)

Row = dict[str, Any]
"""One row; every row of a format has the same keys in the same order, with values of the same types and no null. Where the
consumer wants it otherwise, the format's module says so."""


class Unfit(ValueError):
    """The format cannot hold this example; the message says why. The example is left out and counted under `reason`."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        """A word or two, the same for all of its kind: `ends on a tool turn`."""
        self.detail = detail


class Options(msgspec.Struct, frozen=True):
    """What a user chooses of how rows are written."""

    empty_think: Literal["keep", "drop"] | None = None
    """Whether a turn without reasoning gets an empty `<think>` block, where a format has reasoning in the text. None: as that
    format has it by itself (`sharegpt` keeps it, the others drop it)."""
    retokenize: str = ""
    """Tokenizer (`trajectory.tokens`) with which `rl` and `atropos` make token ids for rollouts that have none; "" refuses
    them."""


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer's."""

    name: str
    suffixes: tuple[str, ...]
    """Kinds of files that it can be written as: `.jsonl`, `.parquet`; the first is the default."""
    write: Callable[[Example, Options], Iterable[Row]]
    """The rows of one example: one, but for formats that part or gather. Raises `Unfit`."""
    holds: frozenset[Holds]
    read: Callable[[Row], Example] | None = None
    """An example of one row; None where `reading.read_row` reads it, or where it cannot be read back."""
    schema: Callable[[], Any] | None = None
    """The `pyarrow.Schema` of its rows, where it can be parquet."""
    ends_on_assistant: bool = False
    """The consumer takes no conversation that ends on results: those are cut off, and counted, before `write` is called."""
    packed: bool = True
    """The consumer reads `.gz` and `.zst` files."""
    beside: Callable[[Sequence[str]], dict[str, bytes]] | None = None
    """Other files that the consumer wants in the same folder, by name, from the names of the data files."""
    file_per_row: bool = False
    """Each row is a file of its own: a row is `{"name": …, "lines": […]}`, its lines the file's."""
    per_prompt: bool = False
    """A row is of the prompt alone: one is enough for all the examples of a prompt."""
