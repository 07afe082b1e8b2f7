"""The tool that the engine calls in the benchmarks: runs in the process, needs no sandbox, answers about 1 KB."""

from __future__ import annotations

import random
from itertools import cycle

from kiseki import tool

_draw = random.Random(0)
_words = ["".join(_draw.choices("aeioulnrstdm", k=_draw.randint(2, 9))) for _ in range(500)]
entries = cycle([" ".join(_draw.choices(_words, k=150)) for _ in range(64)])
"""Ever different ones, so that records compress as real ones do."""


@tool(toolset="bench")
async def look_up(word: str) -> dict[str, str]:
    """Look a word up.

    Args:
        word: The word.
    """
    return {"word": word, "entry": next(entries)}
