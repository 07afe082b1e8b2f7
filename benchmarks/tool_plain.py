"""The same as `tool_async`, as a plain function, which the engine runs in a thread."""

from __future__ import annotations

from benchmarks.tool_async import entries
from kiseki import tool


@tool(toolset="bench")
def look_up(word: str) -> dict[str, str]:
    """Look a word up.

    Args:
        word: The word.
    """
    return {"word": word, "entry": next(entries)}
