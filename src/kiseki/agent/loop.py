"""The agent: ask the model, run the tools that it calls, give it the results, until it answers or a limit ends it.

This module owns the conversation of one rollout and nothing else: it knows no sandbox, no batch and no file. What the model
gets wrong (an unknown tool, bad JSON, wrong types) goes back to it as that call's result; what the infrastructure gets
wrong (`ProviderError`, `SandboxError`) goes up to the caller, with the conversation so far still in the `Trace`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from kiseki.agent.context import NO_WINDOW, Context, Window
from kiseki.errors import ContextLengthExceeded
from kiseki.models.allowance import Allowance
from kiseki.models.base import NO_LIMIT, NOT_HELD, ChatModel, ChatReply, ChatRequest
from kiseki.tools.context import CallNotes, ToolContext
from kiseki.tools.toolbox import Toolbox
from kiseki.trajectory.sharegpt import is_json_object
from kiseki.trajectory.token_trace import share
from kiseki.trajectory.types import ContextCut, Message, ModelCall, Outcome, ToolCall, ToolRun

MAX_INVALID_TURNS = 3
"""So many turns in a row without one valid tool call, and the model is not going to find its way."""

CUT_OFF = {
    "timeout": "the time for this task was over",
    "budget": "the budget was spent",
    "prompt_budget": "the budget for this task was spent",
}
"""What a call that was not answered any more is told."""


class Trace:
    """What has happened so far: complete after every step, so that a limit or an error loses nothing."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.calls: list[ModelCall] = []
        self.tool_runs: list[ToolRun] = []
        self.cuts: Mapping[tuple[int, int], ContextCut] = {}
        """`Context.cuts`: what the model was not sent whole."""
        self._ids: set[str] = set()

    def add_reply(self, reply: ChatReply) -> Message:
        """Keep the model's message, with call ids that are unique in the rollout."""
        message = reply.message
        if message.tool_calls:
            calls = tuple(self._with_unique_id(call) for call in message.tool_calls)
            message = msgspec.structs.replace(message, tool_calls=calls)
        self.messages.append(message)
        self.calls.append(share(reply.call, self.calls))
        return message

    def _with_unique_id(self, call: ToolCall) -> ToolCall:
        number = len(self._ids)
        new = call.id
        while not new or new in self._ids:
            new = f"call_{number}"
            number += 1
        self._ids.add(new)
        return call if new == call.id else msgspec.structs.replace(call, id=new)

    def add_result(self, message: Message, run: ToolRun) -> None:
        self.messages.append(message)
        self.tool_runs.append(run)

    def answer_open_calls(self, reason: str, notes: Mapping[str, CallNotes]) -> None:
        """Give calls that were cut off a result that says so: a call without one would make the row unusable. `reason`: why the
        conversation ends, as in `Record`; `notes`: what they left beside a result."""
        why = f"not finished: {CUT_OFF.get(reason, 'the task was broken off')}"
        answered = {each.tool_call_id for each in self.messages if each.role == "tool"}
        for message in list(self.messages):
            for call in message.tool_calls:
                if call.id not in answered:
                    message, run = _not_run(call, why, invalid=False)
                    self.add_result(message, notes[call.id].add_to(run, reason) if call.id in notes else run)


async def run_agent(
    model: ChatModel,
    toolbox: Toolbox,
    context: ToolContext | None,
    trace: Trace,
    *,
    opening: Sequence[Message],
    max_turns: int,
    seed: int | None,
    allowance: Allowance = NO_LIMIT,
    on_hold: AbstractContextManager[Any] = NOT_HELD,
    window: Window = NO_WINDOW,
) -> tuple[Outcome, str]:
    """Run the loop, filling `trace`. Returns the outcome and its reason.

    `opening` is what precedes the rollout's own messages: system prompt, prefill and the prompt. `max_turns` bounds the
    model calls, which `allowance` pays; `on_hold` is entered while one waits to be let in. `window`: what the conversation has to
    keep to, and what is done where it cannot.
    Raises `ProviderError`, `SandboxError`, `NotAdmitted` and `PromptBudgetSpent`.
    """
    invalid_turns = 0
    sent = Context(opening, toolbox.schemas, window)
    trace.cuts = sent.cuts
    for _ in range(max_turns):
        room = sent.has_room(trace.messages)
        reply: ChatReply | None = None
        while room and reply is None:
            request = ChatRequest(sent.messages, toolbox.schemas, seed, allowance, sent.encoded)
            try:
                reply = await model.complete(request, on_hold)
            except ContextLengthExceeded:
                if not trace.messages:  # the prompt by itself is too long
                    raise
                room = sent.refused()
        if reply is None:
            return "partial", "context_full"
        sent.heard(reply.call)
        message = trace.add_reply(reply)
        finish = reply.call.finish_reason
        if not message.tool_calls:
            return _ending(message, finish)
        results: dict[str, tuple[Message, ToolRun]] = {}
        try:
            await _run_calls(toolbox, context, message.tool_calls, results, cut_off=finish == "length")
        finally:  # also when time is up: what has finished by then has happened
            for call in message.tool_calls:
                if call.id in results:
                    trace.add_result(*results[call.id])
        invalid_turns = invalid_turns + 1 if all(run.invalid for _, run in results.values()) else 0
        if invalid_turns == MAX_INVALID_TURNS:
            return "partial", "invalid_tool_calls"
    return "partial", "max_turns"


def _ending(message: Message, finish_reason: str) -> tuple[Outcome, str]:
    """What a reply without tool calls means."""
    if finish_reason in ("length", "content_filter"):
        return "partial", finish_reason
    return ("completed", "answered") if message.content.strip() else ("partial", "empty_answer")


async def _run_calls(
    toolbox: Toolbox,
    context: ToolContext | None,
    calls: Sequence[ToolCall],
    results: dict[str, tuple[Message, ToolRun]],
    *,
    cut_off: bool,
) -> None:
    """Run the calls of one turn side by side; each result goes into `results` under its call's id when it is there."""

    async def one(call: ToolCall) -> None:
        if cut_off and not is_json_object(call.arguments):
            why = "your reply was cut off at its token limit inside this call; make it shorter"
            results[call.id] = _not_run(call, why, invalid=True)
        else:
            results[call.id] = await toolbox.call(context, call)

    if len(calls) == 1:
        await one(calls[0])
        return
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(one(call))
    except BaseExceptionGroup as several:
        raise several.exceptions[0] from None  # the first says why; the rest were cancelled because of it


def _not_run(call: ToolCall, why: str, *, invalid: bool) -> tuple[Message, ToolRun]:
    content = msgspec.json.encode({"error": why}).decode()
    message = Message(role="tool", content=content, tool_call_id=call.id, name=call.name)
    return message, ToolRun(call_id=call.id, name=call.name, ok=False, invalid=invalid)
