"""The built-in toolsets by name: what each has, and whether it can be had. Imports a toolset's code only when it is loaded."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from kiseki.errors import UsageError
from kiseki.tools.settings import ToolSettings

if TYPE_CHECKING:
    from kiseki.models.endpoints import ModelSettings
    from kiseki.tools.registry import Tool
    from kiseki.tools.toolbox import SetUp


class Toolset(NamedTuple):
    """A built-in toolset. Names of functions are written `module:function`."""

    modules: tuple[str, ...]
    """Where its tools are declared."""
    tools: tuple[str, ...]
    check: str = ""
    """`(settings, model, environ) -> str`: why it cannot be had and what would help, without a full stop; "" when it can. It
    opens no connection and starts nothing. Default: it always can."""
    set_up: str = ""
    """`async (context) -> None`: what it does when a rollout begins that has it. Default: nothing."""


_WEB = "kiseki.tools.web.tools"
_BROWSER = (
    *("browser_navigate", "browser_snapshot", "browser_click", "browser_type", "browser_scroll", "browser_back"),
    *("browser_press", "browser_get_images", "browser_vision", "browser_console"),
)
TOOLSETS: dict[str, Toolset] = {
    "terminal": Toolset(("kiseki.tools.terminal",), ("terminal", "process")),
    "file": Toolset(("kiseki.tools.file", "kiseki.tools.search"), ("read_file", "write_file", "patch", "search_files")),
    "web": Toolset((_WEB,), ("web_search", "web_extract"), "kiseki.tools.web.needs:why_no_web"),
    "search": Toolset((_WEB,), ("web_search",), "kiseki.tools.web.needs:why_no_search"),
    "vision": Toolset(("kiseki.tools.vision.tool",), ("vision_analyze",), "kiseki.tools.vision.needs:why_no_vision"),
    "image_gen": Toolset(("kiseki.tools.image_gen.tool",), ("image_generate",), "kiseki.tools.image_gen.needs:why_no_images"),
    "browser": Toolset(("kiseki.tools.browser.tools",), _BROWSER, "kiseki.tools.browser.needs:why_no_browser"),
    "code_execution": Toolset(("kiseki.tools.code.tool",), ("execute_code",)),
    "delegation": Toolset(("kiseki.tools.delegation",), ("delegate_task",)),
    "todo": Toolset(("kiseki.tools.todo",), ("todo",)),
    "memory": Toolset(
        ("kiseki.tools.memory",), ("memory",), "kiseki.tools.folders:why_no_memory", "kiseki.tools.memory:set_up_memory"
    ),
    "skills": Toolset(
        ("kiseki.tools.skills",),
        ("skills_list", "skill_view"),
        "kiseki.tools.folders:why_no_skills",
        "kiseki.tools.skills:set_up_skills",
    ),
}
MCP_PREFIX = "mcp-"


def available_toolsets(
    settings: ToolSettings, model: ModelSettings | None = None, environ: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Names of the built-in toolsets that can be used here."""
    return tuple(name for name in TOOLSETS if not why_unavailable(name, settings, model, environ))


def why_unavailable(
    name: str, settings: ToolSettings, model: ModelSettings | None = None, environ: Mapping[str, str] = os.environ
) -> str:
    """Why the toolset `name` cannot be used and what would help, without a full stop; "" when it can. `model`: the run's."""
    if name in TOOLSETS:
        check = TOOLSETS[name].check
        return str(_named(check)(settings, model, environ)) if check else ""
    if name.startswith(MCP_PREFIX):
        server = name.removeprefix(MCP_PREFIX)
        there = ", ".join(each.name for each in settings.mcp_servers)
        if not settings.mcp_config:
            return f"--mcp_config names the file whose mcpServers has {server!r}"
        return f"{settings.mcp_config} has no server {server!r}" + (f"; it has {there}" if there else "")
    close = get_close_matches(name, TOOLSETS, 1)
    return f"there is no toolset {name!r}" + (f"; did you mean {close[0]}?" if close else f"; there are {', '.join(TOOLSETS)}")


def built_in_tools(name: str) -> list[Tool]:
    """The tools of one built-in toolset."""
    from kiseki.tools.registry import tools_in

    toolset = TOOLSETS[name]
    found = {each.name: each for module in toolset.modules for each in tools_in(vars(import_module(module)))}
    return [found[tool] for tool in toolset.tools]


def load_tools(toolset_names: Iterable[str], extra: Iterable[Tool] = (), *, stand_ins: Collection[str] = ()) -> list[Tool]:
    """The tools of the named toolsets, in that order: the built-in ones, and those of `extra` (a user's own, MCP servers') that
    declare such a toolset. Of the built-in toolsets among `stand_ins` only the latter: they stand in for what cannot be had, or
    was not asked for. A built-in tool that two toolsets have is there once.

    Raises `UsageError` for a toolset that is neither built in nor declared in `extra`, and for two tools of one name.
    """
    extra = list(extra)
    declared = {each.toolset for each in extra}
    found: dict[str, Tool] = {}
    for name in dict.fromkeys(toolset_names):
        if name not in TOOLSETS and name not in declared:
            raise UsageError(f"toolset {name}: {why_unavailable(name, ToolSettings())}")
        built_in = built_in_tools(name) if name in TOOLSETS and name not in stand_ins else []
        for each in (*built_in, *(own for own in extra if own.toolset == name)):
            if each.name in found and found[each.name] is not each:
                raise UsageError(
                    f"two tools are named {each.name!r} (toolsets {found[each.name].toolset} and {each.toolset}): rename one"
                )
            found[each.name] = each
    return list(found.values())


def find_stand_ins(extra: Iterable[Tool], usable: Callable[[str], bool]) -> tuple[str, ...]:
    """The built-in toolsets that are there by the tools of `extra` alone: all that those declare, but for the `usable` ones."""
    return tuple(sorted({each.toolset for each in extra if each.toolset in TOOLSETS and not usable(each.toolset)}))


def load_set_ups(toolset_names: Iterable[str]) -> list[SetUp]:
    """What the named toolsets do when a rollout begins."""
    names = (TOOLSETS[name].set_up for name in toolset_names if name in TOOLSETS)
    return [_named(name) for name in names if name]


def _named(function: str) -> Any:
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)
