"""What is done of a job, on the disk: an append-only file of results, so that a killed job goes on where it was.

The first line is JSON: what the job is (input files, settings). Then records: a CRC of what follows, the row's number, the length
of the payload, and the payload (a `Result`). The last record of a number counts. A record that is torn, zeroed or damaged was
never made, and neither was what stands after it. Nothing in it depends on the order in which rows are finished.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kiseki.compress.metrics import Metrics
from kiseki.errors import UsageError

_CRC = struct.Struct("<I")
_HEAD = struct.Struct("<QI")
_START = _CRC.size + _HEAD.size
_WRITTEN = 2**64 - 1
"""Number of the record that says: the output is being put in its place, nothing here is needed for another job."""
SYNC_SECONDS = 1.0
"""How much finished work a power cut may take; a killed process loses none of it."""


class Result(msgspec.Struct, frozen=True, array_like=True):
    """What became of one input row."""

    file: int
    """Which of the job's files."""
    line: int
    rows: tuple[bytes, ...] = ()
    metrics: tuple[Metrics, ...] = ()
    assistant_tokens: tuple[int, int] = (0, 0)
    rejected: str = ""
    """Why the row is no trajectory; then `rows` has it as it is."""
    spent: tuple[float, int] = (0.0, 0)
    """US dollars and tokens that summaries had taken when this one was there, in all sessions, those under way at their worst."""
    failed: bool = False
    """It has no summary because asking for it failed: it is tried again when the job is run again."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Result).decode


class Spool:
    """A context. Raises `UsageError` when another process has it open, or when it is another job's and has summaries in it."""

    def __init__(self, path: Path, job: dict[str, Any]) -> None:
        self.path = path
        self.resumed = 0
        """Rows that an earlier session had done."""
        self.has_summaries = False
        self.spent = (0.0, 0)
        """US dollars and tokens that summaries took, failed ones too."""
        self._job = job
        self._offsets = array("q")  # by row number; 0 where there is none
        self._failed: set[int] = set()
        self._synced = time.monotonic()

    def __enter__(self) -> Spool:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise UsageError(f"another process is writing this output ({self.path} is locked)") from None
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def failed(self) -> int:
        return len(self._failed)

    def has(self, number: int) -> bool:
        """Whether the row is done, and needs not be tried again."""
        return number < len(self._offsets) and self._offsets[number] != 0 and number not in self._failed

    def put(self, number: int, result: Result) -> None:
        offset = self._end
        self._append(number, result)
        self._note(number, offset, result)

    def flush(self) -> None:
        """To the operating system, where it survives this process; now and then to the disk."""
        self._file.flush()
        if time.monotonic() - self._synced > SYNC_SECONDS:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def results(self) -> Iterator[Result]:
        """Every row's, in the order of the input."""
        self._file.flush()
        for offset in self._offsets:
            if offset:
                self._file.seek(offset + _CRC.size)
                _, length = _HEAD.unpack(self._file.read(_HEAD.size))
                yield _decode(self._file.read(length))

    def writing(self) -> None:
        """The output is about to be put in its place: where that is the input's, this is no unfinished job any more."""
        self._append(_WRITTEN, Result(0, 0))
        self._file.flush()
        os.fsync(self._file.fileno())

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    # ---- opening ----------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        line = msgspec.json.encode(self._job) + b"\n"
        self._file.seek(0)
        if (before := self._file.readline()) == line:
            self._read(len(line))
            return
        if summaries := self._summaries(len(before)) if before else 0:
            raise UsageError(
                f"{self.path} holds {summaries:,} summaries of a job with other settings or input: run it as it was to finish"
                " it, or delete that file"
            )
        self._file.truncate(0)
        self._file.write(line)
        self._file.flush()
        self._end = len(line)

    def _read(self, start: int) -> None:
        self._end = start
        for number, offset, end, result in self._records(start):
            if number != _WRITTEN:
                self._note(number, offset, result)
            self._end = end
        self._file.truncate(self._end)
        self.resumed = sum(1 for offset in self._offsets if offset) - len(self._failed)

    def _summaries(self, start: int) -> int:
        """Rows of another job that a model has summed up; none where its output has been written."""
        found: set[int] = set()
        for number, _, _, result in self._records(start):
            if number == _WRITTEN:
                return 0
            if _is_summed_up(result):
                found.add(number)
        return len(found)

    def _records(self, start: int) -> Iterator[tuple[int, int, int, Result]]:
        """(number, offset, end, result) of every whole record."""
        offset = start
        self._file.seek(offset)
        while len(head := self._file.read(_START)) == _START:
            number, length = _HEAD.unpack(head[_CRC.size :])
            payload = self._file.read(length)
            if len(payload) < length or _CRC.pack(zlib.crc32(payload, zlib.crc32(head[_CRC.size :]))) != head[: _CRC.size]:
                return
            try:
                result = _decode(payload)
            except msgspec.DecodeError:  # a version whose results were others
                return
            end = offset + _START + length
            yield number, offset, end, result
            offset = end

    def _append(self, number: int, result: Result) -> None:
        payload = _encode(result)
        head = _HEAD.pack(number, len(payload))
        record = _CRC.pack(zlib.crc32(payload, zlib.crc32(head))) + head + payload
        self._file.write(record)
        self._end += len(record)

    def _note(self, number: int, offset: int, result: Result) -> None:
        if number >= len(self._offsets):
            self._offsets.extend([0] * (number + 1 - len(self._offsets)))
        self._offsets[number] = offset
        self.has_summaries = self.has_summaries or _is_summed_up(result)
        self.spent = (max(self.spent[0], result.spent[0]), max(self.spent[1], result.spent[1]))
        if result.failed:
            self._failed.add(number)
        else:
            self._failed.discard(number)


def _is_summed_up(result: Result) -> bool:
    return not result.failed and any(each.summarization_api_calls for each in result.metrics)
