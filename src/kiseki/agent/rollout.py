"""One rollout from spec to record: open the sandbox, run the agent, close the sandbox, say how it ended.

This is the rollout boundary: whatever goes wrong in here becomes exactly one outcome. Only cancellation passes through, and
leaves no record.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import time
from collections.abc import Iterable

import msgspec

from kiseki import __version__
from kiseki.agent.loop import Trace, run_agent
from kiseki.errors import BudgetSpent, KisekiError, PromptBudgetSpent, RolloutTimeout
from kiseki.models.base import ChatModel
from kiseki.models.deadline import Deadline
from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import is_builtin
from kiseki.sandboxes.base import Sandbox
from kiseki.sandboxes.factory import Sandboxes
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.tools.redact import redact, secrets_of
from kiseki.tools.registry import Tool, Toolbox, ToolContext, is_cancelled
from kiseki.tools.running import leave
from kiseki.trajectory.text import clean_text
from kiseki.trajectory.types import Message, Outcome, Prompt, Record, RolloutSpec

ERROR_CHARS = 2000
"""Of an error's message that is kept; enough for any engine's own words."""
CLOSE_SECONDS = 30.0
"""What closing a sandbox may take of a rollout's time; usually it is milliseconds."""


class RolloutSettings(msgspec.Struct, frozen=True, tag=True):
    """Everything that the rollouts of a run have in common. Goes to worker processes as it is."""

    model: ModelSettings
    sandbox: SandboxSettings
    max_turns: int = 10
    """Model calls per rollout at most."""
    prompt_timeout: float = 3600.0
    """Seconds for one rollout, sandbox start included."""
    ephemeral_system_prompt: str = ""
    prefill: tuple[Message, ...] = ()
    tool_files: tuple[str, ...] = ()
    """Python files with a user's own tools."""
    run_tools: tuple[str, ...] = ()
    """Names of every tool of the run; a call to any other is recorded as unknown."""
    pass_seed: bool = False
    """Send each rollout's seed to the model's endpoint."""
    unavailable: tuple[str, ...] = ()
    """Toolsets of the distribution that this run does without."""
    max_cost: float | None = None
    """US dollars for one rollout, its earlier attempts included. Default: no limit."""
    config: str = ""
    """Hash of the configuration, kept in each record."""
    redact: bool = True
    """Take secrets out of tool results. Errors never hold any."""


class ToolsOfRollout:
    """The tools of one combination of toolsets: made once per worker and combination, shared by its rollouts."""

    def __init__(self, tools: Iterable[Tool], settings: RolloutSettings) -> None:
        tools = list(tools)
        self.secrets = secrets_of(settings.model.api_key, os.environ)
        """The run's own: the model's key and what this process has in its environment."""
        self.toolbox = Toolbox(tools, self.secrets if settings.redact else None)
        self.needs_sandbox = any(each.takes_context for each in tools)
        self.json = tools_json(tools)
        self.hash = hashlib.blake2b(self.json.encode(), digest_size=16).hexdigest()


def tools_json(tools: Iterable[Tool]) -> str:
    """The schemas as they are sent and kept: a JSON list of OpenAI-style function tools."""
    listed = [{"type": "function", "function": each.schema} for each in tools]
    return msgspec.json.encode(listed).decode()


async def run_rollout(
    spec: RolloutSpec, settings: RolloutSettings, model: ChatModel, tools: ToolsOfRollout, sandboxes: Sandboxes
) -> Record:
    """Run one rollout to its outcome. Raises nothing but `CancelledError`."""
    started, clock = time.time(), time.monotonic()
    trace = Trace()
    sandbox: Sandbox | None = None
    outcome: Outcome = "failed"
    reason = ""
    error: BaseException | None = None
    deadline = Deadline(settings.prompt_timeout)
    described: dict[str, str] = {}
    try:
        async with deadline.running():
            if tools.needs_sandbox:
                sandbox = await sandboxes.open(image=spec.prompt.image, cwd=spec.prompt.cwd, on_hold=deadline)
                described = sandbox.describe()
            outcome, reason = await run_agent(
                model,
                tools.toolbox,
                ToolContext(sandbox) if sandbox else None,
                trace,
                opening=opening_messages(settings.ephemeral_system_prompt, settings.prefill, spec.prompt),
                max_turns=settings.max_turns,
                allowance=None if settings.max_cost is None else settings.max_cost - spec.spent,
                on_hold=deadline,
                seed=spec.seed if settings.pass_seed or is_builtin(settings.model.model) else None,
            )
    except BaseException as caught:  # the rollout boundary: from here on it is an outcome
        if is_cancelled(caught):
            raise
        if isinstance(caught, BudgetSpent | PromptBudgetSpent) and trace.messages:
            outcome, reason = "partial", "budget" if isinstance(caught, BudgetSpent) else "prompt_budget"
        elif isinstance(caught, TimeoutError) and deadline.expired():
            if trace.messages:
                trace.answer_open_calls("not finished: the time for this task was over")
                outcome, reason = "partial", "timeout"
            else:
                error = RolloutTimeout(f"no reply within the rollout's {settings.prompt_timeout:g} seconds")
        else:
            error = caught
    finally:
        if sandbox:
            await _close(sandbox)
    called = {call.name for message in trace.messages for call in message.tool_calls}
    return Record(
        key=spec.key,
        sample_index=spec.sample_index,
        attempt=spec.attempt,
        seed=spec.seed,
        messages=(*spec.prompt.messages, *trace.messages),
        prompt_messages=len(spec.prompt.messages),
        outcome=outcome,
        reason=reason if error is None else type(error).__name__,
        model=settings.model.model,
        toolsets=spec.toolsets,
        tools_hash=tools.hash,
        calls=tuple(trace.calls),
        tool_runs=tuple(trace.tool_runs),
        unknown_tools=tuple(sorted(called.difference(settings.run_tools))),
        error_class="" if error is None else type(error).__name__,
        error="" if error is None else redact(clean_text(str(error)), tools.secrets)[0][:ERROR_CHARS],
        # a bug of ours is tried again too: most that get this far are races, and attempts are bounded
        retryable=error is not None and (error.retryable if isinstance(error, KisekiError) else True),
        started=started,
        seconds=time.monotonic() - clock,
        config=settings.config,
        sandbox=described,
        unavailable_toolsets=settings.unavailable,
        versions={"kiseki": __version__, "python": platform.python_version()},
    )


async def _close(sandbox: Sandbox) -> None:
    """Close it, in `CLOSE_SECONDS` or by itself later: what does not get done by the end of the run is left to the reaper.

    Goes on, too, when this is cancelled.
    """
    closing = asyncio.ensure_future(sandbox.close())
    done, _ = await asyncio.wait([closing], timeout=CLOSE_SECONDS)
    if not done:
        leave(closing)


def opening_messages(ephemeral: str, prefill: tuple[Message, ...], prompt: Prompt) -> tuple[Message, ...]:
    """What the model sees before its own messages.

    The ephemeral prompt and a system message of the dataset become one, since many chat templates refuse two.
    """
    own = [each.content for each in prompt.messages if each.role == "system"]
    system = "\n\n".join(text for text in (ephemeral, *own) if text)
    rest = [each for each in prompt.messages if each.role != "system"]
    return (*((Message(role="system", content=system),) if system else ()), *prefill, *rest)
