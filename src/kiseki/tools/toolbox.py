"""The tools of one rollout: gives their schemas, checks calls and runs them, one way for every tool.

What the model got wrong, and what a tool could not do, is a result; what the infrastructure got wrong goes through.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from kiseki.errors import NotAdmitted, PromptBudgetSpent, ProviderError, SandboxError, ToolError
from kiseki.tools.context import ToolContext
from kiseki.tools.redact import Secrets
from kiseki.tools.registry import Tool
from kiseki.tools.results import finish, settle
from kiseki.tools.running import OutOfTime, run_within
from kiseki.trajectory.types import Message, ToolCall, ToolRun

SetUp = Callable[[ToolContext], Awaitable[None]]
GOES_THROUGH = (SandboxError, ProviderError, NotAdmitted, PromptBudgetSpent)
"""What is no result: the rollout ends by it."""


class Toolbox:
    """Made once per combination of toolsets, and shared by its rollouts."""

    def __init__(self, tools: Iterable[Tool], secrets: Secrets | None = None, set_ups: Iterable[SetUp] = ()) -> None:
        """`secrets` are taken out of every result, and keys of known shapes with them; None: results are left as they are.
        `set_ups`: what the toolsets do when a rollout begins."""
        self._tools = {each.name: each for each in tools}
        self.schemas = tuple(each.schema for each in self._tools.values())
        self._secrets = secrets
        self._set_ups = tuple(set_ups)

    async def open(self, context: ToolContext) -> None:
        """Prepare a rollout for these tools. Raises `SandboxError`."""
        self.attach(context)
        for set_up in self._set_ups:
            await set_up(context)

    def attach(self, context: ToolContext) -> None:
        """Let tools call each other there. Enough for a rollout that is prepared already: a sub-agent's."""
        context.call_tool, context.tool_names = self.call, tuple(self._tools)
        context.tool_schemas = self.schemas

    async def call(self, context: ToolContext | None, call: ToolCall) -> tuple[Message, ToolRun]:
        """Run one call; `context` may be None where no tool takes one. Raises what `GOES_THROUGH` names."""
        started = time.monotonic()
        known = self._tools.get(call.name)
        arguments: Mapping[str, Any] | None = None
        content: Any = None
        if known is None:
            content = _error(f"there is no tool named {call.name!r}; the tools are: {', '.join(self._tools) or 'none'}")
        else:
            try:
                arguments = known.read_arguments(call.arguments.strip() or "{}")
            except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
                wrong = _why_no_json(call.arguments) if isinstance(error, msgspec.ValidationError) else str(error)
                words = f"are not valid JSON: {wrong}" if wrong else f"have wrong values: {error}"
                content = _error(f"the arguments of {call.name} {words}") | {"expected": known.schema.parameters}
        invalid = raised = known is None or arguments is None
        timed_out = False
        if context is not None:
            context = context.for_call(call.id)
        if known is not None and arguments is not None:
            content, raised, timed_out = await _run(known, context, arguments)
            # a tool says so itself when it was its command that was cut off
            timed_out = timed_out or (isinstance(content, dict) and content.get("timed_out") is True)
        try:
            done = finish(content, self._secrets)
        except BaseException as error:  # the result's own __str__ may raise anything, SystemExit too
            raised = True
            done = finish(_error(f"the result of {call.name} cannot be written as JSON: {_words(error)}"), self._secrets)
        run = ToolRun(
            call_id=call.id,
            name=call.name,
            ok=not raised and done.ok,
            seconds=time.monotonic() - started,
            invalid=invalid,
            truncated=done.cut,
            exit_code=done.exit_code,
            timed_out=timed_out,
            redacted=done.redacted,
        )
        if context is not None and (notes := context.notes.pop(call.id, None)):
            run = notes.add_to(run)
        return Message(role="tool", content=done.text, tool_call_id=call.id, name=call.name), run


def _why_no_json(arguments: str) -> str:
    """ "" where they are JSON: a wrong name may stand before the place where the text ends too soon."""
    try:
        msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        return str(error)
    return ""


async def _run(known: Tool, context: ToolContext | None, arguments: Mapping[str, Any]) -> tuple[Any, bool, bool]:
    """The result, whether the tool raised, and whether it was cut off at its limit."""
    try:
        if known.given and context is None:
            raise ToolError(f"{known.name} can only be called in a rollout")
        given = {name: get(context) for name, get in known.given.items()} if context is not None else {}
        work = partial(known.function, **given, **arguments)
        if known.concurrency is None or context is None:
            content = await run_within(known.timeout, work, is_async=known.is_async)
        else:
            slots = context.services.slots(known.name, known.concurrency)
            with context.on_hold:
                await slots.acquire()
            try:
                content = await run_within(known.timeout, work, is_async=known.is_async)
            finally:
                slots.release()
        return await settle(content, context), False, False
    except OutOfTime:
        return _error(f"{known.name} did not finish within {known.timeout:g} seconds"), True, True
    except GOES_THROUGH:
        raise
    except ToolError as error:
        return _error(str(error)), True, False
    except BaseException as error:  # a tool is a boundary: whatever it raises, sys.exit too, is that call's result
        if is_cancelled(error):
            raise
        return _error(_words(error)), True, False


def is_cancelled(error: BaseException) -> bool:
    """Whether `error` is the cancellation of the running task, and not one that came up from inside what it called."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def _words(error: BaseException) -> str:
    name = type(error).__name__
    try:
        return f"{name}: {error}".removesuffix(": ")
    except BaseException:  # also that is the user's code
        return f"{name}: (its message cannot be shown)"


def _error(message: str) -> dict[str, Any]:
    return {"error": message}
