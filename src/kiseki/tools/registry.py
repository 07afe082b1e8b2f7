"""How a typed function becomes a tool.

A tool is declared by `@tool(toolset=…)` on a function whose signature gives the JSON schema of its arguments and whose
docstring gives the descriptions (first paragraph: the tool; an `Args:` section: one `name: text` per parameter, unless its hint
has one, as `Annotated[str, "text"]`; types: `parameters.py`). Parameters annotated `ToolContext`, `Sandbox` or `RolloutInfo` are
not the model's: they receive the rollout's context, its sandbox, and which rollout it is. Functions may be async or plain (those
run in a thread). They return text or anything that JSON can hold, bytes and images included (`results.py`); `ToolError` carries
a message back to the model. How a call runs: `toolbox.py`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

import msgspec

from kiseki.errors import UsageError
from kiseki.models.base import ToolSchema
from kiseki.sandboxes.base import Sandbox
from kiseki.tools.context import RolloutInfo, ToolContext
from kiseki.tools.parameters import REQUIRED, Parameter, description_in, make_parameters

DEFAULT_TIMEOUT = 300.0
"""Seconds for one call of a tool that does not say otherwise."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What endpoints take as the name of a function."""
_GIVEN: dict[Any, Callable[[ToolContext], Any]] = {
    ToolContext: lambda context: context,
    Sandbox: lambda context: context.sandbox,
    RolloutInfo: lambda context: context.rollout,
}
"""Types of parameters that are not the model's."""


class Tool(msgspec.Struct, frozen=True):
    """A function, its schema, and what turns the model's arguments into its own."""

    schema: ToolSchema
    toolset: str
    read_arguments: Callable[[str], Mapping[str, Any]]
    """JSON text → the function's keyword arguments. Raises `msgspec.DecodeError`."""
    function: Callable[..., Any]
    is_async: bool = True
    given: dict[str, Callable[[ToolContext], Any]] = {}
    """Keyword arguments that come from the rollout."""
    needs_sandbox: bool = False
    timeout: float = DEFAULT_TIMEOUT
    concurrency: int | None = None
    """Calls at once in a worker process at most. Default: no limit."""

    @property
    def name(self) -> str:
        return self.schema.name


def tool(
    *,
    toolset: str,
    name: str = "",
    timeout: float = DEFAULT_TIMEOUT,
    concurrency: int | None = None,
    needs_sandbox: bool | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare the function below as a tool of `toolset`.

    `timeout`: seconds for one call, then the call counts as failed. `concurrency`: calls at once in each worker process at most
    (default: no limit); a call that waits for its turn loses no time, and one in a thread that runs out of time gives up its
    turn. `needs_sandbox`: default by whether the function asks for a `Sandbox` or a `ToolContext`.
    """

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        made = make_tool(function, toolset, name or getattr(function, "__name__", ""), timeout, concurrency, needs_sandbox)
        try:
            function.__kiseki_tool__ = made  # type: ignore[attr-defined]
        except AttributeError as error:
            raise UsageError(f"tool {made.name!r}: {function!r} cannot be declared; declare a function that calls it") from error
        return function

    return declare


def tools_in(namespace: Mapping[Any, Any]) -> list[Tool]:
    """The tools among the values of a module's namespace, in order of declaration."""
    found = (getattr(value, "__kiseki_tool__", None) for value in namespace.values())
    return list({id(each): each for each in found if isinstance(each, Tool)}.values())


def make_tool(
    function: Callable[..., Any],
    toolset: str,
    name: str,
    timeout: float = DEFAULT_TIMEOUT,
    concurrency: int | None = None,
    needs_sandbox: bool | None = None,
) -> Tool:
    """The `Tool` of a function. Raises `UsageError` for one that cannot be a tool, and says why."""
    where = f"tool {name!r} ({getattr(function, '__module__', '?')})"
    if not _NAME.fullmatch(name):
        raise UsageError(f'{where}: a tool\'s name is 1 to 64 letters, digits, _ and -; @tool(…, name="…") gives it one')
    if concurrency is not None and concurrency < 1:
        raise UsageError(f"{where}: concurrency must be at least 1, not {concurrency}")
    if not timeout > 0:
        raise UsageError(f"{where}: timeout must be above 0 seconds, not {timeout:g}")
    code = _code_of(function, where)
    if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
        raise UsageError(f"{where}: it yields; a tool returns its whole result")
    hints = _hints(code, where)
    description, of_parameter = _read_docstring(inspect.getdoc(code) or "")
    given: dict[str, Callable[[ToolContext], Any]] = {}
    asks_for_sandbox = False
    asked: list[Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in (function.keywords if isinstance(function, partial) else ()):
            continue
        hint = hints.get(parameter.name)
        bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if isinstance(bare, type) and bare in _GIVEN:
            given[parameter.name] = _GIVEN[bare]
            asks_for_sandbox |= bare is not RolloutInfo
            continue
        if parameter.name in ("self", "cls") and hint is None:
            raise UsageError(f"{where}: a method is no tool by itself; declare a function that calls it")
        if hint is None or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise UsageError(
                f"{where}: parameter {parameter.name!r} needs a type hint and may not be *args, **kwargs or before a /"
            )
        if text := of_parameter.get(parameter.name):
            hint = Annotated[hint, text] if not description_in(hint) else hint
        asked.append(Parameter(parameter.name, hint, REQUIRED if parameter.default is parameter.empty else parameter.default))
    try:
        schema, read = make_parameters(name, asked)
        encoded = msgspec.json.encode(schema)
    except (TypeError, ValueError) as error:
        said = " ".join(str(error).split())
        raise UsageError(f"{where}: its parameters cannot be turned into a JSON schema: {said}") from error
    return Tool(
        schema=ToolSchema(name=name, description=description, parameters=msgspec.Raw(encoded)),
        toolset=toolset,
        read_arguments=read,
        function=function,
        is_async=inspect.iscoroutinefunction(code),
        given=given,
        needs_sandbox=asks_for_sandbox if needs_sandbox is None else needs_sandbox,
        timeout=timeout,
        concurrency=concurrency,
    )


def _code_of(function: Callable[..., Any], where: str) -> Callable[..., Any]:
    """The function or method that runs when `function` is called: that of a `partial`, or of an object that can be called."""
    while isinstance(function, partial):
        function = function.func
    if inspect.isclass(function) or not callable(function):
        raise UsageError(f"{where}: it is no function")
    return function if inspect.isroutine(function) else cast(Callable[..., Any], type(function).__call__.__get__(function))


def _hints(code: Callable[..., Any], where: str) -> dict[str, Any]:
    try:
        return get_type_hints(code, include_extras=True)
    except NameError as error:
        raise UsageError(f"{where}: the type hints use {error.name!r}, which its module does not define when it runs") from error
    except TypeError as error:  # a hint that is none, or a callable without any
        raise UsageError(f"{where}: its type hints cannot be read: {error}") from error


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description, and the text of each parameter in the `Args:` section."""
    head, _, args = text.partition("\nArgs:\n")
    args = re.split(r"\n(?=\S)", args, maxsplit=1)[0]  # up to the next section
    found = re.findall(r"^ {4}(\w+)\s*(?:\([^)]*\))?:\s*(.*(?:\n {5,}.*)*)", args, re.MULTILINE)
    return " ".join(head.split()), {name: " ".join(value.split()) for name, value in found}
