"""Keeps secrets from leaving: every line that is to be pushed passes a `Guard`, which says where it found any, never what."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable

import msgspec

from kiseki.errors import UsageError
from kiseki.tools.redact import redact, secrets_of
from kiseki.trajectory.text import printable

SHOWN = 10
"""Places named in the message; the others are counted."""
_MARKER = re.compile(r"\[redacted: ([^\]\n]{1,40})\]")


class Found(msgspec.Struct, frozen=True):
    """Secrets in one line."""

    file: str
    line: int
    """From 1; 0 where there are no lines."""
    kinds: tuple[str, ...]
    """In words; what was found itself is nowhere."""


class Guard:
    """Looks for API keys by their shape and for the environment's own secrets by their value (see `tools/redact.py`)."""

    def __init__(self, secrets: Iterable[str], *, replaces: bool) -> None:
        """`secrets`: those that may be in no variable, "" for none. `replaces`: they are replaced by markers, not reported."""
        named = {f"SECRET_{number}": value for number, value in enumerate(secrets)}
        self._secrets = secrets_of("", {**os.environ, **named})
        self._replaces = replaces
        self.found: list[Found] = []
        self.count = 0
        """Secrets in all lines so far."""

    @property
    def replaces(self) -> bool:
        return self._replaces

    def passed(self, line: bytes, file: str, number: int) -> bytes:
        """The line, without its secrets where those are replaced. `file` and `number` say where it is."""
        text = line.decode("utf-8", "surrogateescape")
        cleaned, count = redact(text, self._secrets)
        if not count:
            return line
        self.count += count
        self.found.append(Found(file, number, _kinds(cleaned, text)))
        return cleaned.encode("utf-8", "surrogateescape") if self._replaces else line

    def kinds(self, text: str) -> tuple[str, ...]:
        """Of the secrets in something else than the data, in words."""
        cleaned, count = redact(text, self._secrets)
        return _kinds(cleaned, text) if count else ()

    def check(self) -> None:
        """Raises `UsageError` where secrets were found that are not replaced."""
        if not self.found or self._replaces:
            return
        places = "; ".join(
            f"{printable(each.file, 200)}{f' line {each.line}' if each.line else ''}: {', '.join(each.kinds)}"
            for each in self.found[:SHOWN]
        )
        more = f"; and {len(self.found) - SHOWN:,} more lines" if len(self.found) > SHOWN else ""
        raise UsageError(
            f"nothing was pushed, there are {self.count:,} secrets in it ({places}{more}); --redact replaces them by markers in"
            " what is pushed, and leaves the run as it is"
        )


def _kinds(cleaned: str, text: str) -> tuple[str, ...]:
    return tuple(Counter(_MARKER.findall(cleaned)) - Counter(_MARKER.findall(text))) or ("a secret",)
