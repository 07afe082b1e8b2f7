"""Kiseki (軌跡): prompts in, tool-using agent trajectories out.

The library's doors, each imported when it is first asked for: `AIAgent` (one prompt, one trajectory), and for
tools of one's own `tool` (declares a function as a tool) with the types of what it may ask for, return and raise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "AIAgent",
    "AgentResult",
    "Image",
    "RolloutInfo",
    "Sandbox",
    "ToolContext",
    "ToolError",
    "ToolSettings",
    "Usage",
    "__version__",
    "tool",
]

_HOMES = {
    "AIAgent": "kiseki.agent.agent",
    "AgentResult": "kiseki.agent.agent",
    "Image": "kiseki.tools.results",
    "RolloutInfo": "kiseki.tools.context",
    "Sandbox": "kiseki.sandboxes.base",
    "ToolContext": "kiseki.tools.context",
    "ToolError": "kiseki.errors",
    "ToolSettings": "kiseki.tools.settings",
    "Usage": "kiseki.trajectory.types",
    "tool": "kiseki.tools.registry",
}

if TYPE_CHECKING:
    from kiseki.agent.agent import AgentResult, AIAgent
    from kiseki.errors import ToolError
    from kiseki.sandboxes.base import Sandbox
    from kiseki.tools.context import RolloutInfo, ToolContext
    from kiseki.tools.registry import tool
    from kiseki.tools.results import Image
    from kiseki.tools.settings import ToolSettings
    from kiseki.trajectory.types import Usage


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kiseki' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
