"""The tool whose results are far too large, each kind in its own way; runs in the process, needs no sandbox."""

from __future__ import annotations

from typing import Any

from benchmarks.large import KINDS, huge
from kiseki import ToolError, tool


@tool(toolset="large")
async def result(kind: str) -> Any:
    """Give a result.

    Args:
        kind: Of what kind.
    """
    if kind == "error":
        raise ToolError(huge("text"))
    if kind == "exception":
        raise ValueError(huge("text"))
    return huge(kind) if kind in KINDS else "that is long"
