"""One rollout from spec to record: open the sandbox, run the agent, close the sandbox, say how it ended.

This is the rollout boundary: whatever goes wrong in here becomes exactly one outcome. Only cancellation passes through, and
leaves no record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from kiseki.agent.conversation import Conversation
from kiseki.agent.delegation import SubAgents
from kiseki.agent.settings import RolloutSettings, ToolsOfRollout
from kiseki.models.allowance import Allowance
from kiseki.models.base import ChatModel
from kiseki.models.deadline import Deadline
from kiseki.sandboxes.base import Sandbox
from kiseki.sandboxes.factory import Sandboxes
from kiseki.tools.context import RolloutInfo, ToolContext
from kiseki.tools.running import leave
from kiseki.tools.services import Services
from kiseki.tools.toolbox import is_cancelled
from kiseki.trajectory.types import Record, RolloutSpec

CLOSE_SECONDS = 30.0
"""What closing a sandbox may take of a rollout's time; usually it is milliseconds."""
Judge = Callable[[Record, Sandbox | None], Awaitable[None]]
"""Looks at a rollout that has ended, and at its sandbox as the model left it."""


async def run_rollout(
    spec: RolloutSpec,
    settings: RolloutSettings,
    model: ChatModel,
    tools: ToolsOfRollout,
    sandboxes: Sandboxes,
    services: Services,
    judge: Judge | None = None,
) -> Record:
    """Run one rollout to its outcome. `judge` is called before its sandbox and what its tools keep open are closed, outside of
    the rollout's time. Raises nothing but `CancelledError`, and what `judge` raises.
    """
    allowance = Allowance(None if settings.max_cost is None else settings.max_cost - spec.spent)
    conversation = Conversation(spec, settings, tools)
    sandbox: Sandbox | None = None
    context: ToolContext | None = None
    deadline = Deadline(settings.prompt_timeout)
    try:
        try:
            async with deadline.running():
                if tools.needs_sandbox:
                    sandbox = await sandboxes.open(image=spec.prompt.image, cwd=spec.prompt.cwd, on_hold=deadline)
                    conversation.sandbox = sandbox.describe()
                info = rollout_info(spec)
                context = ToolContext(sandbox, services, info, on_hold=deadline, allowance=allowance)
                if "delegation" in tools.toolsets:
                    context.delegate = SubAgents(spec, settings, model, tools).run
                await tools.toolbox.open(context)
                ending = await conversation.run(model, context, settings.prefill)
        except BaseException as error:  # the rollout boundary: from here on it is an outcome
            if is_cancelled(error):
                raise
            ending = conversation.break_off(error, out_of_time=isinstance(error, TimeoutError) and deadline.expired())
        if judge is not None:
            await judge(conversation.record(ending), sandbox)
    finally:
        try:
            if context:
                await context.close()
        finally:  # whatever cuts that short
            if sandbox:
                await _close(sandbox)
    return conversation.record(ending)


def rollout_info(spec: RolloutSpec) -> RolloutInfo:
    """What tools are told of it."""
    prompt = spec.prompt
    return RolloutInfo(spec.key, prompt.index, spec.sample_index, spec.attempt, spec.seed, prompt.text, prompt.source)


async def _close(sandbox: Sandbox) -> None:
    """Close it, in `CLOSE_SECONDS` or by itself later: what does not get done by the end of the run is left to the reaper.

    Goes on, too, when this is cancelled.
    """
    closing = asyncio.ensure_future(sandbox.close())
    done, _ = await asyncio.wait([closing], timeout=CLOSE_SECONDS)
    if not done:
        leave(closing)
