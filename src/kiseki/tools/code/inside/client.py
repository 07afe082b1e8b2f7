"""The tools of this task as functions. Each takes the tool's parameters and gives its result: a dict where that is JSON, else
text. A call that fails raises ToolFailed. Threads may call at the same time.

This is the module `kiseki_tools` of a program inside the sandbox; Python 3.6 and its standard library are all that it needs.
"""

import inspect as _inspect
import json as _json
import keyword as _keyword
import linecache as _linecache
import os as _os
import re as _re
import socket as _socket
import sys as _sys
import traceback as _traceback
from pathlib import Path as _Path
from typing import Any as _Any

__all__ = ["ToolFailed", "call_tool"]

_FOLDER = _Path(__file__).parent
_TYPES = {"string": str, "integer": int, "number": float, "boolean": bool, "array": list, "object": dict}
_MORE = "more_arguments"


class ToolFailed(Exception):
    """A tool call failed; the message says why. `result` is all that the tool gave."""

    def __init__(self, message: str, result: _Any = None) -> None:
        super().__init__(message)
        self.result = result


def call_tool(name: str, arguments: "dict[str, _Any]") -> _Any:
    """Call the tool with this name, whatever characters it has."""
    request = _json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    data = bytearray()
    line = _connect()
    try:
        line.sendall(request)
        while True:
            part = line.recv(65536)
            if not part:
                break
            data += part
    except OSError:
        pass
    finally:
        line.close()
    try:
        answer = _json.loads(bytes(data).decode())
    except ValueError:
        raise ToolFailed(f"the call of {name} was cut off") from None
    content = answer["content"]
    try:
        result = _json.loads(content)
    except ValueError:
        result = content
    if not answer["ok"]:
        message = result.get("error") if isinstance(result, dict) else None
        raise ToolFailed(message if isinstance(message, str) else content or f"{name} gave nothing", result)
    return result


def _connect() -> _socket.socket:
    line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        folder = _os.open(str(_FOLDER), _os.O_RDONLY)  # a socket's path may have 107 bytes, the temporary folder's more
        try:
            line.connect(f"/proc/self/fd/{folder}/line")
        finally:
            _os.close(folder)
    except OSError as error:
        line.close()
        raise ToolFailed(f"there is nobody to call tools any more: {error.strerror}") from None
    return line


def _function(name: str, description: str, schema: "dict[str, _Any]") -> _Any:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    required = schema.get("required") or ()
    parameters, lines, loose = [], [], False
    for key in sorted(properties, key=lambda key: key not in required):  # those without a default come first
        each = properties[key] if isinstance(properties[key], dict) else {}
        if not key.isidentifier() or _keyword.iskeyword(key) or key == _MORE:
            loose = True
            continue
        kind = each.get("type")
        default = _inspect.Parameter.empty if key in required else each.get("default")
        annotation = _TYPES.get(kind, _inspect.Parameter.empty) if isinstance(kind, str) else _inspect.Parameter.empty
        kinds = _inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(_inspect.Parameter(key, kinds, default=default, annotation=annotation))
        if isinstance(each.get("description"), str):
            lines.append(f"    {key}: {each['description']}")
    if loose or schema.get("additionalProperties"):
        parameters.append(_inspect.Parameter(_MORE, _inspect.Parameter.VAR_KEYWORD))
    signature = _inspect.Signature(parameters)

    def function(*args: _Any, **kwargs: _Any) -> _Any:
        arguments = dict(signature.bind(*args, **kwargs).arguments)
        arguments.update(arguments.pop(_MORE, {}))
        return call_tool(name, arguments)

    function.__name__ = function.__qualname__ = _re.sub(r"\W", "_", name)
    function.__doc__ = description + ("\n\nArgs:\n" + "\n".join(lines) if lines else "")
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def _add_tools(module: "dict[str, _Any]") -> None:
    for each in _json.loads((_FOLDER / "tools.json").read_text(encoding="utf-8")):
        function = _function(each["name"], each["description"], each["parameters"])
        if function.__name__ not in module and function.__name__.isidentifier():
            module[function.__name__] = function
            __all__.append(function.__name__)


def _run(path: str) -> None:
    """Be the program at `path`."""
    module = globals()
    program = _sys.modules["__main__"].__dict__
    builtin = program["__builtins__"].__dict__
    program.update({name: module[name] for name in __all__ if name not in builtin})
    program["__file__"] = path
    _sys.argv[:] = [path]

    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        source = file.read()
    # Not the path: it is another one each time, and a result is not to differ by it.
    name = _Path(path).name
    _linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    _sys.excepthook = _show
    exec(compile(source, name, "exec", dont_inherit=True), program)  # noqa: S102


def _show(kind: "type[BaseException]", error: BaseException, trace: _Any) -> None:
    """The usual traceback without the lines of this file."""
    told = _traceback.TracebackException(kind, error, trace)
    left = [told]
    while left:
        each = left.pop()
        each.stack[:] = [frame for frame in each.stack if frame.filename not in (__file__, "<string>")]
        left += [cause for cause in (each.__cause__, each.__context__) if cause is not None]
    _sys.stderr.write("".join(told.format()).replace(f"{_FOLDER}{_os.sep}", ""))  # another folder each time


if __name__ == "kiseki_tools":
    _add_tools(globals())
