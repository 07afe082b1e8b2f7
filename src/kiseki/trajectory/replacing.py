"""Files that are complete or not there: written under a temporary name, synced, renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from kiseki.errors import StorageError

TEMPORARY = ".tmp"


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write that takes `path`'s place when the block ends well, and leaves it alone when not.

    Raises `StorageError` when the disk does not take it.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):  # a folder that is read-only by now; what was in the way goes with the next try
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):  # one of a write does not know its file
            raise StorageError(f"cannot write {path}: {error.strerror or error}") from error
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself
    finally:
        os.close(folder)
