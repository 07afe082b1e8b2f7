"""Kiseki (軌跡): prompts in, tool-using agent trajectories out.

The library's doors, each imported when it is first asked for: `AIAgent` (one prompt, one trajectory) and `tool` (declares a
function as a tool).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["AIAgent", "AgentResult", "ToolContext", "ToolError", "__version__", "tool"]

_HOMES = {
    "AIAgent": "kiseki.agent.agent",
    "AgentResult": "kiseki.agent.agent",
    "ToolContext": "kiseki.tools.registry",
    "ToolError": "kiseki.errors",
    "tool": "kiseki.tools.registry",
}

if TYPE_CHECKING:
    from kiseki.agent.agent import AgentResult, AIAgent
    from kiseki.errors import ToolError
    from kiseki.tools.registry import ToolContext, tool


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kiseki' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
