"""The screen as something that may go away: a run that costs money does not end because nobody looks any more."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console


MOST_WORDS = 10_000
"""Characters of an error's line."""


def open_missing_streams() -> None:
    """Give standard streams that the process was started without (`>&-`) a place where everything vanishes.

    Else the next file that is opened gets the number of one of them, and with it what is meant for the screen.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def go_dark(stream: TextIO) -> None:
    """Let everything written to `stream` from here on, and what it still holds, vanish."""
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # none of the system's: somebody's who holds the output in memory
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


class _Display:
    """stdout that goes dark when it takes no more: its reader is gone (`… | head`), its terminal, or the room on its disk."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = stream.encoding

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            go_dark(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
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


def complain(error: Exception) -> None:
    """The one line on stderr. It may hold words of a file, an engine or another machine."""
    from kiseki.trajectory.text import printable

    try:
        print(f"kiseki: {printable(str(error), MOST_WORDS)}", file=sys.stderr, flush=True)  # noqa: T201
    except OSError:  # the exit status says it too
        go_dark(sys.stderr)
