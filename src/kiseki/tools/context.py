"""What a tool call may touch: the rollout's sandbox, its notes, and what its worker shares; never the host or another rollout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from kiseki.errors import ToolError
from kiseki.models.allowance import Allowance
from kiseki.models.base import NO_LIMIT, NOT_HELD, ToolSchema
from kiseki.sandboxes.base import Sandbox
from kiseki.tools.running import leave
from kiseki.tools.services import Services
from kiseki.tools.settings import ToolSettings
from kiseki.trajectory.types import InnerCall, Message, Record, ToolCall, ToolRun, Usage

CLOSE_SECONDS = 10.0
"""For all that the tools of one rollout keep open (a browser context, a server): usually milliseconds."""


class RolloutInfo(msgspec.Struct, frozen=True):
    """Which rollout a tool runs in; a user's tool gets it by a parameter of this type."""

    key: str
    prompt_index: int
    sample_index: int
    attempt: int
    seed: int
    prompt: str = ""
    """The user's text."""
    source: str = "{}"
    """The dataset row's other columns as one JSON object."""


class SubTask(msgspec.Struct, frozen=True):
    """What a sub-agent is to do."""

    goal: str
    context: str = ""
    toolsets: tuple[str, ...] = ()
    """Of the rollout's. Default: all of them, but delegation."""


class CallNotes:
    """What a call leaves beside its result, kept while it runs, so that a call that is cut off loses nothing either."""

    __slots__ = ("children", "inner", "running", "usage")

    def __init__(self) -> None:
        self.usage = Usage()
        self.inner: list[InnerCall] = []
        self.children: list[Record] = []
        self.running: list[Callable[[str], Record]] = []
        """Per sub-agent that has not ended: its record if it is cut off now, by what the parameter says (`Record.reason`)."""

    def add_to(self, run: ToolRun, reason: str = "timeout") -> ToolRun:
        """`reason`: what cuts off whatever still runs. Default: a time limit."""
        if not (self.inner or self.children or self.running or self.usage != Usage()):
            return run
        children = (*self.children, *(cut_off(reason) for cut_off in self.running))
        return msgspec.structs.replace(run, usage=self.usage, inner=tuple(self.inner), children=children)


class ToolContext:
    """One per rollout, and a view of it per call (`for_call`), which shares everything but `call_id`."""

    def __init__(
        self,
        sandbox: Sandbox | None,
        services: Services | None = None,
        rollout: RolloutInfo | None = None,
        *,
        on_hold: AbstractContextManager[Any] = NOT_HELD,
        allowance: Allowance = NO_LIMIT,
    ) -> None:
        """`services`: the worker's; default: some of its own, with default settings. `on_hold` is entered while a call waits
        for something that others have, so that the rollout's time stands still. `allowance` pays for the model calls of
        tools."""
        self._sandbox = sandbox
        self.services = services or Services(ToolSettings())
        self.rollout = rollout or RolloutInfo("", 0, 0, 1, 0)
        self.on_hold = on_hold
        self.allowance = allowance
        self.state: dict[str, Any] = {}
        """Per conversation: a sub-agent has its own. A tool keeps its things under its own name (the todo list, a browser)."""
        self.rollout_state: dict[str, Any] = {}
        """The same for what sub-agents share, as they do the sandbox: names of files given out, locks of them, servers."""
        self.call_id = ""
        """Of the call that is under way."""
        self.notes: dict[str, CallNotes] = {}
        """Of the calls under way, by id."""
        self.call_tool: Callable[[ToolContext, ToolCall], Awaitable[tuple[Message, ToolRun]]] | None = None
        """Runs another tool of this rollout, as the model could; None outside of a rollout. Set by the `Toolbox`."""
        self.tool_names: tuple[str, ...] = ()
        """What `call_tool` knows."""
        self.tool_schemas: tuple[ToolSchema, ...] = ()
        """Of the same tools."""
        self.delegate: Callable[[ToolContext, SubTask], Awaitable[Record]] | None = None
        """Runs a sub-agent to its end; None where none can be had (too deep, or no rollout)."""
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._closers_of_rollout = self._closers

    @property
    def sandbox(self) -> Sandbox:
        """Raises `ToolError` where the rollout has none: a tool that needs one says so where it is declared."""
        if self._sandbox is None:
            raise ToolError("there is no sandbox in this rollout")
        return self._sandbox

    @property
    def has_sandbox(self) -> bool:
        return self._sandbox is not None

    def for_call(self, call_id: str) -> ToolContext:
        view = ToolContext.__new__(ToolContext)  # a third of what copy.copy takes, once per call
        view.__dict__.update(self.__dict__, call_id=call_id)
        return view

    def for_sub_agent(self) -> ToolContext:
        """Another conversation's in the same rollout: same sandbox, services and money; its own state, notes and tools. It is
        closed with this one at the latest."""
        other = ToolContext(self._sandbox, self.services, self.rollout, on_hold=self.on_hold, allowance=self.allowance)
        other.rollout_state = self.rollout_state
        other._closers_of_rollout = self._closers_of_rollout
        self.on_close(other.close)
        return other

    def note(self) -> CallNotes:
        """Of this call."""
        return self.notes.setdefault(self.call_id, CallNotes())

    def pay(self, usage: Usage) -> None:
        """For a tool that asks an endpoint of its own: count what that took, in the row and in what the rollout may spend."""
        self.note().usage += usage
        self.allowance.spend(usage.cost)

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> None:
        """Have `closer` called when the conversation ends, before the sandbox closes; the last one added first."""
        self._closers.append(closer)

    def on_rollout_close(self, closer: Callable[[], Awaitable[None]]) -> None:
        """The same at the end of the whole rollout, also when a sub-agent asks for it."""
        self._closers_of_rollout.append(closer)

    async def close(self) -> None:
        """Call the closers, `CLOSE_SECONDS` at most. Never raises what they raise; what takes longer goes on by itself."""

        async def in_turn() -> None:
            while self._closers:
                closing = asyncio.ensure_future(self._closers.pop()())
                # in a task: a rollout's outcome does not hang on how its leftovers end, also when they cancel themselves
                await asyncio.wait([closing], timeout=CLOSE_SECONDS / 2)
                if not closing.done():
                    leave(closing)
                elif not closing.cancelled():
                    closing.exception()  # seen

        if self._closers:
            closing = asyncio.ensure_future(in_turn())
            try:
                await asyncio.wait([closing], timeout=CLOSE_SECONDS)
            finally:  # the others are still called when this is cancelled, or one takes all the time
                if not closing.done():
                    leave(closing)
