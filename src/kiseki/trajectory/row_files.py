"""Files of rows, read: JSON lines (plain, .gz, .zst) and parquet as a stream of JSON texts. `row_writers` is the other way.

Nothing is held but the row at hand, or one bounded batch where the file is parquet.

What JSON has no word for comes out of parquet as text, and goes back into a column of its type: dates and times in ISO 8601,
binary in base64, decimals in digits. NaN and infinity become null.
"""

from __future__ import annotations

import gzip
import io
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import zstandard

from kiseki.errors import DatasetError
from kiseki.trajectory.json_rows import encode_row
from kiseki.trajectory.parquet_rows import read_batches

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")
COMPRESSED = (".gz", ".zst")
READ_BYTES = 2**20
PACKED_BYTES = 2**12
"""Of a .zst file that are unpacked at once: a few of them can be a thousand times as much text."""

_BOM = b"\xef\xbb\xbf"


def is_row_file(path: Path) -> bool:
    """Whether its name says that it holds rows in one of the formats of `SUFFIXES`."""
    return path.name.endswith(SUFFIXES)


def format_of(path: Path) -> str:
    """The suffix that says what a file holds, whatever it is compressed with: ".jsonl", ".parquet", ".csv", …"""
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


def check_file(path: Path) -> None:
    """Raises `DatasetError` when the file is plainly not there or not to be read; opens nothing (it may be a pipe)."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last for a name with a NUL
        raise DatasetError(f"dataset file not found: {path}") from None
    except OSError as error:
        raise DatasetError(f"cannot read {path}: {error.strerror}") from error
    if stat.S_ISDIR(mode):
        raise DatasetError(f"dataset is a folder, not a file: {path}")
    if path.suffix in COMPRESSED and format_of(path) == ".parquet":
        raise DatasetError(f"a parquet file is read as it is, not inside {path.suffix}: unpack {path} first")


# ---- rows as JSON -----------------------------------------------------------------------------------------------------


class RowReader:
    """The rows of one file, from the first each time that it is iterated over."""

    def __init__(self, path: Path) -> None:
        check_file(path)
        self.path = path
        self.size = path.stat().st_size
        """Bytes of the file on disk; 0 for a pipe."""
        self.position = 0
        """Bytes of it that the iteration has consumed, at most a buffer ahead of the rows."""

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        self.position = 0
        return self._parquet_rows() if format_of(self.path) == ".parquet" else self._text_lines()

    def _text_lines(self) -> Iterator[tuple[int, bytes]]:
        with open_bytes(self.path, self._advance) as stream:
            for number, line in enumerate(stream, 1):
                text = (line.removeprefix(_BOM) if number == 1 else line).rstrip(b"\r\n")
                if text and not text.isspace():
                    yield number, text

    def _parquet_rows(self) -> Iterator[tuple[int, bytes]]:
        number = 0
        for rows, position in read_batches(self.path):
            self.position = position
            for row in rows:
                number += 1
                yield number, encode_row(row)
        self.position = self.size

    def _advance(self, count: int) -> None:
        self.position += count


def read_lines(path: Path) -> RowReader:
    """(line number, row as JSON text without line end) of each row of a file; the row number, from 1, where it is parquet.

    A file that is not parquet by its name is JSON lines, which end at "\\n" only; blank ones are left out, and a byte order
    mark at the start. The texts are not checked. Raises `DatasetError` when the file itself cannot be read, also while it
    is iterated over (a torn .gz).
    """
    return RowReader(path)


@contextmanager
def open_bytes(path: Path, took: Callable[[int], None] = lambda count: None) -> Iterator[IO[bytes]]:
    """What a file holds, unpacked by its suffix. `took` is told of each read from the disk how many bytes it gave.

    Raises `DatasetError` when it cannot be read or unpacked.
    """
    try:
        with ExitStack() as stack:
            raw = stack.enter_context(io.BufferedReader(_Watched(path, took), READ_BYTES))
            if path.suffix == ".gz":
                unpacked: Any = gzip.GzipFile(fileobj=raw)
            elif path.suffix == ".zst":
                unpacked = _Unzstd(raw)
            else:
                yield raw
                return
            yield stack.enter_context(io.BufferedReader(unpacked, READ_BYTES))
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise DatasetError(f"cannot read {path}: {error}") from error


class _Watched(io.FileIO):
    def __init__(self, path: Path, took: Callable[[int], None]) -> None:
        super().__init__(path)
        self._took = took

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        self._took(count or 0)
        return count


class _Unzstd(io.RawIOBase):
    """zstd frames, one after the other. zstandard's own reader takes a torn file for a whole one."""

    def __init__(self, packed: IO[bytes]) -> None:
        self._packed = packed
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame: Any = None
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            over = self._frame is None or self._frame.eof
            data = self._frame.unused_data if over and self._frame else b""
            data = data or self._packed.read(PACKED_BYTES)
            if not data and over:
                return 0
            if not data:
                raise EOFError("the file ends in the middle of a zstd frame")
            if over:
                self._frame = self._decompressor.decompressobj()
            self._ready = memoryview(self._frame.decompress(data))
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count
