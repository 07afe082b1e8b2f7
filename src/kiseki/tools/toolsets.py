"""The built-in toolsets by name: what each has, and whether it can be had. Imports a toolset's code only when it is loaded."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING

from kiseki.errors import UsageError

if TYPE_CHECKING:
    from kiseki.tools.registry import Tool

MODULES: dict[str, tuple[str, ...]] = {
    "terminal": ("kiseki.tools.terminal",),
    "file": ("kiseki.tools.file", "kiseki.tools.search"),
    "todo": ("kiseki.tools.todo",),
}
"""Where the tools of each built-in toolset are declared."""
NOT_IN_THIS_VERSION = (
    "web",
    "search",
    "vision",
    "image_gen",
    "browser",
    "code_execution",
    "delegation",
    "memory",
    "skills",
)
"""Names that distributions use and that are reserved, so that a run says plainly what it lacks."""
NOT_BUILT = "not in this version; tools of your own can stand in (--tools)"
MCP_PREFIX = "mcp-"


def available_toolsets() -> tuple[str, ...]:
    """Names of the built-in toolsets that can be used here."""
    return tuple(name for name in MODULES if not why_unavailable(name))


def why_unavailable(name: str) -> str:
    """Why the toolset `name` cannot be used and what would help, without a full stop; "" when it can."""
    if name in MODULES:
        return ""
    if name in NOT_IN_THIS_VERSION or name.startswith(MCP_PREFIX):
        return NOT_BUILT
    close = get_close_matches(name, [*MODULES, *NOT_IN_THIS_VERSION], 1)
    return f"there is no toolset {name!r}" + (f"; did you mean {close[0]}?" if close else f"; there are {', '.join(MODULES)}")


def built_in_tools(name: str) -> list[Tool]:
    """The tools of one built-in toolset."""
    from kiseki.tools.registry import tools_in

    return [each for module in MODULES[name] for each in tools_in(vars(import_module(module))) if each.toolset == name]


def load_tools(toolset_names: Iterable[str], extra: Iterable[Tool] = ()) -> list[Tool]:
    """The tools of the named toolsets, in that order: the built-in ones, and those of `extra` that declare such a toolset.

    Raises `UsageError` for a toolset that is neither available nor declared in `extra`, and for two tools of one name.
    """
    extra = list(extra)
    declared = {each.toolset for each in extra}
    found: dict[str, Tool] = {}
    for name in dict.fromkeys(toolset_names):
        if name not in MODULES and name not in declared:
            raise UsageError(f"toolset {name}: {why_unavailable(name)}")
        built_in = built_in_tools(name) if name in MODULES else []
        for each in (*built_in, *(own for own in extra if own.toolset == name)):
            if each.name in found:
                raise UsageError(
                    f"two tools are named {each.name!r} (toolsets {found[each.name].toolset} and {each.toolset}): rename one"
                )
            found[each.name] = each
    return list(found.values())
