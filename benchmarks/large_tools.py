"""Tools whose results are far too large, each in another way; all run in the process but the terminal's."""

from __future__ import annotations

from typing import Any

from kiseki import ToolError, tool

SIZE = 50_000_000
_LINE = "line of an ordinary log, with some words in it and a number: {}\n"


def _text(size: int = SIZE) -> str:
    block = "".join(_LINE.format(number) for number in range(1000))
    return (block * (size // len(block) + 1))[:size]


@tool(toolset="large")
async def result(kind: str) -> Any:
    """Give a result.

    Args:
        kind: Of what kind.
    """
    if kind == "text":
        return _text()
    if kind == "object":
        return {"output": _text(), "exit_code": 0}
    if kind == "list":
        return [f"{number:100}" for number in range(SIZE // 100)]
    if kind == "surrogates":
        return {"output": _text(SIZE // 2) + "\udcff\x00é€" * (SIZE // 16)}
    if kind == "error":
        raise ToolError(_text())
    if kind == "exception":
        raise ValueError(_text())
    raise ToolError(f"no kind {kind}")
