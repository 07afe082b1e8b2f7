"""Text as words, for what compares texts: contamination, near duplicates, loops."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from kiseki.trajectory.example import Example

_ALONE = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Kana and Han characters: written without blanks, so each counts as a word."""
_WORD = re.compile(rf"[{_ALONE}]|[^\W{_ALONE}]+")


def words(text: str) -> list[str]:
    """Runs of letters, digits and `_`, in lower case and Unicode's form NFKC; kana and Han characters each for itself."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def texts(example: Example) -> Iterator[str]:
    """Everything that is said in it but by the system, in order: contents, reasoning, names and arguments of calls, results."""
    for message in example.messages:
        if message.role != "system":
            yield from (text for text in (message.reasoning, message.content) if text)
            for call in message.tool_calls:
                yield f"{call.name} {call.arguments}"
