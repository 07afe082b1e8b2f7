"""How a typed function becomes a tool, and how one call is checked and run.

A tool is declared by `@tool(toolset=…)` on a function whose signature gives the JSON schema of its arguments and whose
docstring gives the descriptions (first paragraph: the tool; an `Args:` section: one `name: text` per parameter). A first
parameter annotated `ToolContext` receives the rollout's sandbox and state. Functions may be async or plain (those run in a
thread). They return text or anything that JSON can hold; `ToolError` carries a message back to the model.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, get_type_hints

import msgspec

from kiseki.errors import SandboxError, ToolError, UsageError
from kiseki.models.base import ToolSchema
from kiseki.sandboxes.base import Sandbox
from kiseki.tools.outcome import result_ok
from kiseki.tools.redact import Secrets, redact
from kiseki.tools.running import OutOfTime, run_within
from kiseki.trajectory.text import clean_text, cut_middle, shorten
from kiseki.trajectory.types import Message, ToolCall, ToolRun

MAX_RESULT_BYTES = 100_000
"""No tool result is longer: about 25,000 tokens, a large part of a context window already. Built-in tools stay well below."""
_LOOKED_AT = 2 * MAX_RESULT_BYTES
"""Characters of a longer result that anything is done with, so that one of 50 MB holds nobody up. As much again as is shown is
room for what cleaning it needs to see: half a key at the edge would not be known for one."""
DEFAULT_TIMEOUT = 300.0
"""Seconds for one call of a tool that does not say otherwise."""


class ToolContext:
    """What a tool may touch: this rollout's sandbox and its own notes; never the host or another rollout."""

    __slots__ = ("sandbox", "state")

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.state: dict[str, Any] = {}
        """Per rollout; a tool keeps its things under its own name (the todo list, background sessions)."""


class Tool(msgspec.Struct, frozen=True):
    """A function, its schema, and what turns the model's arguments into its own."""

    schema: ToolSchema
    toolset: str
    read_arguments: msgspec.json.Decoder[Any]
    """JSON text → a struct with a field per parameter; raises `msgspec.DecodeError`."""
    function: Callable[..., Any]
    is_async: bool
    takes_context: bool
    timeout: float

    @property
    def name(self) -> str:
        return self.schema.name


def tool(*, toolset: str, name: str = "", timeout: float = DEFAULT_TIMEOUT) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare the function below as a tool of `toolset`. `timeout`: seconds for one call, then the call counts as failed."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__kiseki_tool__ = make_tool(function, toolset, name or function.__name__, timeout)  # type: ignore[attr-defined]
        return function

    return declare


def tools_in(namespace: Mapping[str, Any]) -> list[Tool]:
    """The tools declared in a module's namespace, in order of declaration."""
    found = (getattr(value, "__kiseki_tool__", None) for value in namespace.values())
    return [each for each in found if isinstance(each, Tool)]


def make_tool(function: Callable[..., Any], toolset: str, name: str, timeout: float) -> Tool:
    """The `Tool` of a function. Raises `UsageError` for a signature that has no JSON schema."""
    where = f"tool {name!r} ({getattr(function, '__module__', '?')})"
    hints = get_type_hints(function, include_extras=True)
    parameters = list(inspect.signature(function).parameters.values())
    takes_context = bool(parameters) and hints.get(parameters[0].name) is ToolContext
    description, of_parameter = _read_docstring(inspect.getdoc(function) or "")
    fields: list[Any] = []
    for parameter in parameters[1 if takes_context else 0 :]:
        if parameter.name not in hints or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UsageError(f"{where}: parameter {parameter.name!r} needs a type hint and may not be *args or **kwargs")
        text = of_parameter.get(parameter.name)
        kind = Annotated[hints[parameter.name], msgspec.Meta(description=text)] if text else hints[parameter.name]
        default = () if parameter.default is parameter.empty else (parameter.default,)
        fields.append((parameter.name, kind, *default))
    try:
        arguments = msgspec.defstruct(f"{name}_arguments", fields, forbid_unknown_fields=True, kw_only=True)
        schema = _inline(*msgspec.json.schema_components([arguments]))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: its parameter types cannot be turned into a JSON schema: {error}") from error
    return Tool(
        schema=ToolSchema(name=name, description=description, parameters=msgspec.Raw(msgspec.json.encode(schema))),
        toolset=toolset,
        read_arguments=msgspec.json.Decoder(arguments),
        function=function,
        is_async=inspect.iscoroutinefunction(function),
        takes_context=takes_context,
        timeout=timeout,
    )


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description, and the text of each parameter in the `Args:` section."""
    head, _, args = text.partition("\nArgs:\n")
    args = re.split(r"\n(?=\S)", args, maxsplit=1)[0]  # up to the next section
    found = re.findall(r"^ {4}(\w+)\s*(?:\([^)]*\))?:\s*(.*(?:\n {5,}.*)*)", args, re.MULTILINE)
    return " ".join(head.split()), {name: " ".join(value.split()) for name, value in found}


def _inline(roots: tuple[dict[str, Any], ...], definitions: dict[str, Any]) -> dict[str, Any]:
    """One self-contained schema: some providers do not follow `$ref`."""

    def walk(node: Any) -> Any:
        if isinstance(node, dict):
            if "$ref" in node:
                node = {**definitions[node["$ref"].rsplit("/", 1)[1]], **{k: v for k, v in node.items() if k != "$ref"}}
            return {key: walk(value) for key, value in node.items() if key != "title" or not isinstance(value, str)}
        return [walk(each) for each in node] if isinstance(node, list) else node

    schema = walk(roots[0])
    assert isinstance(schema, dict)
    schema.setdefault("properties", {})
    return schema


class Toolbox:
    """The tools of one rollout: gives their schemas, checks and runs calls."""

    def __init__(self, tools: Iterable[Tool], secrets: Secrets | None = None) -> None:
        """`secrets` are taken out of every result, and keys of known shapes with them; None: results are left as they are."""
        self._tools = {each.name: each for each in tools}
        self.schemas = tuple(each.schema for each in self._tools.values())
        self._secrets = secrets

    async def call(self, context: ToolContext | None, call: ToolCall) -> tuple[Message, ToolRun]:
        """Run one call; `context` may be None where no tool takes one.

        What the model got wrong, or the tool could not do, is the result; `SandboxError` goes through.
        """
        started = time.monotonic()
        known = self._tools.get(call.name)
        arguments: msgspec.Struct | None = None
        content: Any = None
        if known is None:
            content = _error(f"there is no tool named {call.name!r}; the tools are: {', '.join(self._tools) or 'none'}")
        else:
            try:
                arguments = known.read_arguments.decode(call.arguments.strip() or "{}")
            except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
                kind = "have wrong values" if isinstance(error, msgspec.ValidationError) else "are not valid JSON"
                content = _error(f"the arguments of {call.name} {kind}: {error}") | {"expected": known.schema.parameters}
        invalid = raised = known is None or arguments is None
        timed_out = False
        if known is not None and arguments is not None:
            content, raised, timed_out = await _run(known, context, arguments)
            # a tool says so itself when it was its command that was cut off
            timed_out = timed_out or (isinstance(content, dict) and content.get("timed_out") is True)
        try:
            content, code, cut, redacted = _finish(content, self._secrets)
        except Exception as error:  # the result's own __str__ may raise anything
            raised = True
            content = _error(f"the result of {call.name} cannot be written as JSON: {_words(error)}")
            content, code, cut, redacted = _finish(content, self._secrets)
        run = ToolRun(
            call_id=call.id,
            name=call.name,
            ok=not raised and result_ok(content),
            seconds=time.monotonic() - started,
            invalid=invalid,
            truncated=cut,
            exit_code=code,
            timed_out=timed_out,
            redacted=redacted,
        )
        return Message(role="tool", content=content, tool_call_id=call.id, name=call.name), run


async def _run(known: Tool, context: ToolContext | None, arguments: msgspec.Struct) -> tuple[Any, bool, bool]:
    """The result, whether the tool raised, and whether it was cut off at its limit."""
    values = {field: getattr(arguments, field) for field in arguments.__struct_fields__}
    positional = (context,) if known.takes_context else ()
    try:
        work = partial(known.function, *positional, **values)
        return await run_within(known.timeout, work, is_async=known.is_async), False, False
    except OutOfTime:
        return _error(f"{known.name} did not finish within {known.timeout:g} seconds"), True, True
    except SandboxError:
        raise
    except ToolError as error:
        return _error(str(error)), True, False
    except BaseException as error:  # a tool is a boundary: whatever it raises, sys.exit too, is that call's result
        if is_cancelled(error):
            raise
        return _error(f"{type(error).__name__}: {_words(error)}"), True, False


def is_cancelled(error: BaseException) -> bool:
    """Whether `error` is the cancellation of the running task, and not one that came up from inside what it called."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # also that is the user's code
        return "(its message cannot be shown)"


def _error(message: str) -> dict[str, Any]:
    return {"error": message}


def _clean(value: Any) -> Any:
    """Plain data with `clean_text` applied to every text in it."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {_clean(key): _clean(each) for key, each in value.items()}
    return [_clean(each) for each in value] if isinstance(value, list | tuple) else value


def _finish(content: Any, secrets: Secrets | None) -> tuple[str, int | None, bool, int]:
    """The result as text within the size limit, the exit code that it names, whether anything was cut from it, and how many
    secrets were taken out."""
    code = content.get("exit_code") if isinstance(content, dict) else None
    code = code if type(code) is int and abs(code) < 2**31 else None
    cut = isinstance(content, dict) and content.get("truncated") is True
    lost = 0
    if isinstance(content, dict) and any(isinstance(each, str) and len(each) > _LOOKED_AT for each in content.values()):
        shortened = {key: shorten(each, _LOOKED_AT) for key, each in content.items() if isinstance(each, str)}
        content = content | {key: text for key, (text, _) in shortened.items()}
        lost = sum(bytes_lost for _, bytes_lost in shortened.values())
    if not isinstance(content, str):
        try:
            content = msgspec.json.encode(content, enc_hook=str).decode()
        except UnicodeEncodeError:  # lone surrogates, as in file names that are no UTF-8
            content = msgspec.json.encode(_clean(msgspec.to_builtins(content, enc_hook=str))).decode()
    content, more_lost = shorten(content, _LOOKED_AT)
    lost += more_lost
    text, redacted = (clean_text(content), 0) if secrets is None else redact(clean_text(content), secrets)
    if len(text) > MAX_RESULT_BYTES // 4 and len(data := text.encode()) > MAX_RESULT_BYTES:
        text = cut_middle(data, MAX_RESULT_BYTES, total=len(data) + lost).decode("utf-8", "replace")
        cut = True
    return text, code, cut or lost > 0, redacted
