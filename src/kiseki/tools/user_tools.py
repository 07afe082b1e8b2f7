"""A user's own tools: functions declared with `@tool(toolset=…)`, in a Python file or an installed package (`--tools`).

A file is run once per process, with its folder at the end of the module search path, so that it can import its neighbours. A
package names a module, one such function, or a list of them in its entry points of the group `kiseki.tools`. Both run on the
host, not in a sandbox: what their functions do there is the user's choice.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from kiseki.errors import UsageError
from kiseki.tools.registry import Tool, tools_in
from kiseki.tools.toolsets import TOOLSETS

ENTRY_POINTS = "kiseki.tools"
"""Group in which an installed package names what holds its tools."""
EXAMPLE = '@tool(toolset="mine") on a function with type hints, after `from kiseki import tool`'


def load_user_tools(item: str | Path) -> list[Tool]:
    """The tools of a file, else of the installed entry point with that name, in order of declaration.

    Raises `UsageError`: neither is there, an error in it, no tools, a taken name.
    """
    file = Path(item)
    if file.is_file():
        where, found = str(file), tools_in(_namespace(file))
    else:
        point = _entry_point(str(item))
        where, found = _shown(point), _tools_of(point)
    if not found:
        raise UsageError(f"{where} declares no tools; a tool is declared by {EXAMPLE}")
    taken = {each: f"Kiseki's own toolset {name}" for name, toolset in TOOLSETS.items() for each in toolset.tools}
    for each in found:
        if each.name in taken:
            raise UsageError(
                f'{where}: the tool name {each.name!r} is taken by {taken[each.name]}; @tool(…, name="…") gives another'
            )
        taken[each.name] = f"another tool of {where}"
    return found


def installed_entry_points() -> list[str]:
    """Names of the installed `kiseki.tools` entry points, sorted."""
    return sorted({each.name for each in entry_points(group=ENTRY_POINTS)})


def wanted_entry_points(toolsets: Sequence[str], files: Sequence[str]) -> tuple[str, ...]:
    """Names of installed `kiseki.tools` entry points that are among `toolsets`, and not in `files` already."""
    there = installed_entry_points()
    return tuple(name for name in dict.fromkeys(toolsets) if name in there and name not in (*TOOLSETS, *files))


def _entry_point(name: str) -> EntryPoint:
    """Raises `UsageError` when there is none, or more than one."""
    points = {each.value: each for each in entry_points(group=ENTRY_POINTS) if each.name == name}
    if len(points) == 1:
        return next(iter(points.values()))
    if points:
        listed = "; ".join(_shown(each) for each in points.values())
        raise UsageError(f"--tools {name}: several installed packages have an entry point of that name ({listed}): remove one")
    there = installed_entry_points()
    close = get_close_matches(name, there, 1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(there)}" if there else "there are none"
    raise UsageError(
        f"--tools {name}: there is no such file, and no installed package has an entry point {name!r}"
        f" in the group {ENTRY_POINTS} ({hint})"
    )


def _tools_of(point: EntryPoint) -> list[Tool]:
    try:
        loaded = point.load()
    except (Exception, SystemExit) as error:  # whatever the package raises
        said = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        raise UsageError(f"{_shown(point)} cannot be loaded: {said}; reinstall that package, or leave it out") from error
    if isinstance(loaded, ModuleType):
        return tools_in(vars(loaded))
    return tools_in(dict(enumerate(loaded if isinstance(loaded, list | tuple) else [loaded])))


def _shown(point: EntryPoint) -> str:
    package = f" of {point.dist.name}" if point.dist is not None else ""
    return f"entry point {point.name}{package} ({point.value})"


def _namespace(file: Path) -> dict[str, object]:
    """What the file defines once it has run."""
    place = file.resolve()
    name = f"kiseki_user_tools_{place.stem}_{hashlib.blake2b(str(place).encode(), digest_size=4).hexdigest()}"
    spec = spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file} is not a Python file: its name must end in .py")
    if str(place.parent) not in sys.path:
        sys.path.append(str(place.parent))
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[name]
        raise UsageError(f"{error.filename or file}, line {error.lineno}: {error.msg}; correct it and start again") from error
    except (Exception, SystemExit) as error:  # whatever a user's file raises
        del sys.modules[name]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(place)]
        where = f"{file}, line {lines[-1]}" if lines else str(file)
        said = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        raise UsageError(f"{where}: {said}; correct it (try: {sys.executable} {file}) and start again") from error
    return vars(module)
