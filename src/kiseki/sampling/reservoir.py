"""The rows of one dataset that are in the draw: those with the smallest priorities so far.

Rows lie in a file that only grows, and an index beside it has one short record for each; what is in memory is where they
are. Replaying the index gives the same reservoir again, so that saving it means to remember how long the two files are.
"""

from __future__ import annotations

import heapq
import os
import struct
from pathlib import Path
from typing import IO

import msgspec

EVERY_PRIORITY = 2**128
"""Above all of them."""
_RECORD = struct.Struct("<16sQQQ")
"""Priority, offset, length, tokens."""


class Entry(msgspec.Struct, frozen=True):
    """Where a row is."""

    offset: int
    length: int
    """In bytes."""
    tokens: int


class Reservoir:
    """The `capacity` rows with the smallest priorities of all that were added. Reach, and so the result, does not depend on
    their order."""

    def __init__(self, path: Path, capacity: int, records: int = 0) -> None:
        """`path`: the file of rows, without its suffix. `records`: how many rows were added when it was last saved; what was
        written after that is cut off. Raises `ValueError` where the files do not have them."""
        self.entries: dict[int, Entry] = {}
        """By priority."""
        self.records = 0
        """Rows that were ever added."""
        self.tokens = 0
        """Of the rows that are in it."""
        self._capacity = capacity
        self._heap: list[int] = []  # negative priorities: the largest is on top
        self._rows = _open(path.with_suffix(".rows"))
        self._index = _open(path.with_suffix(".index"))
        self._end = 0
        index = os.pread(self._index.fileno(), records * _RECORD.size, 0)
        if len(index) != records * _RECORD.size:
            raise ValueError(f"{self._index.name} is not whole")
        for priority, offset, length, tokens in _RECORD.iter_unpack(index):
            self._enter(int.from_bytes(priority, "big"), Entry(offset, length, tokens))
        if os.fstat(self._rows.fileno()).st_size < self._end:
            raise ValueError(f"{self._rows.name} is not whole")
        self._index.truncate(len(index))
        self._rows.truncate(self._end)

    @property
    def reach(self) -> int:
        """A row is taken up if its priority is below this."""
        return -self._heap[0] if len(self._heap) == self._capacity else EVERY_PRIORITY

    def add(self, priority: int, row: bytes, tokens: int) -> None:
        """Take up a row that is within reach and not there yet."""
        entry = Entry(self._end, len(row), tokens)
        self._rows.write(row)
        self._index.write(_RECORD.pack(priority.to_bytes(16, "big"), entry.offset, entry.length, tokens))
        self._enter(priority, entry)

    def row(self, priority: int) -> bytes:
        """As it was added."""
        entry = self.entries[priority]
        return os.pread(self._rows.fileno(), entry.length, entry.offset)

    def sync(self) -> None:
        """Everything that was added is on the disk."""
        for file in (self._rows, self._index):  # in this order: a record never lacks its row
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        self._rows.close()
        self._index.close()

    def _enter(self, priority: int, entry: Entry) -> None:
        self.entries[priority] = entry
        self.tokens += entry.tokens
        heapq.heappush(self._heap, -priority)
        if len(self._heap) > self._capacity:
            self.tokens -= self.entries.pop(-heapq.heappop(self._heap)).tokens
        self._end = entry.offset + entry.length
        self.records += 1


def _open(path: Path) -> IO[bytes]:
    return path.open("a+b")
