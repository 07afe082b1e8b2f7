"""One line appended to a file that several processes may append to at once."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import msgspec


def append_line(path: Path, value: Any) -> None:
    """Append `value` as one JSON line, whole or not at all, after a torn last line also on a line of its own."""
    data = msgspec.json.encode(value)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # given up when the file closes
        size = file.seek(0, os.SEEK_END)
        if size and os.pread(file.fileno(), 1, size - 1) != b"\n":
            data = b"\n" + data
        file.write(data + b"\n")
        file.flush()
        os.fsync(file.fileno())
