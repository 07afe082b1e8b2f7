"""A user's own tools: functions declared with `@tool(toolset=…)` in a Python file named on the command line (`--tools`).

The file is run once per process, with its folder at the end of the module search path, so that it can import its neighbours.
It runs on the host, not in a sandbox: what its functions do there is the user's choice.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from kiseki.errors import UsageError
from kiseki.tools.registry import Tool, tools_in
from kiseki.tools.toolsets import MODULES, built_in_tools

EXAMPLE = '@tool(toolset="mine") on a function with type hints, after `from kiseki import tool`'


def load_user_tools(path: str | Path) -> list[Tool]:
    """The tools that the file declares, in order. Raises `UsageError`: no such file, an error in it, no tools, a taken name."""
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"--tools {file}: there is no such file")
    found = tools_in(_namespace(file))
    if not found:
        raise UsageError(f"{file} declares no tools; a tool is declared by {EXAMPLE}")
    taken = {each.name: f"Kiseki's own toolset {name}" for name in MODULES for each in built_in_tools(name)}
    for each in found:
        if each.name in taken:
            raise UsageError(
                f'{file}: the tool name {each.name!r} is taken by {taken[each.name]}; @tool(…, name="…") gives another'
            )
        taken[each.name] = "another tool of this file"
    return found


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
