"""The screen as something that may go away: a run that costs money does not end because nobody looks any more."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


def go_dark(stream: TextIO) -> None:
    """Let everything written to `stream` from here on, and what it still holds, vanish."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class _Display:
    """stdout that goes dark when its reader is gone (`… | head`)."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = stream.encoding

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            go_dark(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            go_dark(self._stream)

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()


def make_console() -> Console:
    """Where a command shows things."""
    from typing import IO, cast

    from rich.console import Console

    return Console(file=cast(IO[str], _Display(sys.stdout)))
