"""Where in a dataset a trainer is: prompts in order, epoch after epoch, from a place that can be saved and gone back to."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from kiseki.batch.prompts import BadRow, read_prompts
from kiseki.errors import DatasetError
from kiseki.trajectory.types import Prompt


class Item(msgspec.Struct, frozen=True):
    """A prompt in an epoch."""

    epoch: int
    prompt: Prompt


class Place(msgspec.Struct):
    """What is saved."""

    epoch: int = 0
    index: int = 0
    """The dataset row to go on with, in that epoch."""
    open: list[tuple[int, int]] = []
    """Epoch and row of prompts that were given out and not finished."""


class Prompts:
    """The prompts of a dataset. One caller at a time."""

    def __init__(self, dataset: str, epochs: int, place: Place, bad_row: Callable[[BadRow], None]) -> None:
        """`epochs`: 0 for no end. `bad_row` gets each unusable row, once."""
        self._dataset = dataset
        self._epochs = epochs
        self._bad_row = bad_row
        self._place = place
        self._items = self._stream(msgspec.structs.replace(place, open=list(place.open)))

    def next(self) -> Item | None:
        """The next prompt; None after the last epoch. Reads the dataset, and so blocks. Raises `DatasetError`, also where no row
        is usable."""
        item = next(self._items, None)
        if item is not None:
            here = (item.epoch, item.prompt.index)
            if here not in self._place.open:
                self._place.open.append(here)
        return item

    def finish(self, item: Item) -> None:
        """It need not be given out again."""
        here = (item.epoch, item.prompt.index)
        if here in self._place.open:
            self._place.open.remove(here)

    def place(self) -> Place:
        """From where to go on after a restart: nothing that is finished comes again, and nothing is left out."""
        return msgspec.structs.replace(self._place, open=sorted(self._place.open))

    def _stream(self, start: Place) -> Iterator[Item]:
        if start.open:
            rows = {index for _, index in start.open}
            again = {each.index: each for each in self._read(tell=False) if each.index in rows}
            yield from (Item(epoch, again[index]) for epoch, index in start.open if index in again)
        epoch = start.epoch
        while not self._epochs or epoch < self._epochs:
            usable = False
            for prompt in self._read(tell=epoch == 0):
                usable = True
                if epoch > start.epoch or prompt.index >= start.index:
                    self._place.epoch, self._place.index = epoch, prompt.index + 1
                    yield Item(epoch, prompt)
            if not usable:
                raise DatasetError(f"{self._dataset} has no usable row")
            epoch += 1

    def _read(self, *, tell: bool) -> Iterator[Prompt]:
        for row in read_prompts(self._dataset):
            if isinstance(row, Prompt):
                yield row
            elif tell:
                self._bad_row(row)
