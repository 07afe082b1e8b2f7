"""What a rollout and its sub-agents have in common: how a conversation begins, how it ended, and the record of it."""

from __future__ import annotations

import platform
import time

import msgspec

from kiseki import __version__
from kiseki.agent.context import Window
from kiseki.agent.loop import Trace, run_agent
from kiseki.agent.settings import RolloutSettings, ToolsOfRollout
from kiseki.errors import BudgetSpent, KisekiError, PromptBudgetSpent, RolloutTimeout
from kiseki.models.base import ChatModel
from kiseki.models.factory import is_builtin
from kiseki.tools.context import CallNotes, ToolContext
from kiseki.tools.redact import Secrets, redact
from kiseki.trajectory.text import clean_text
from kiseki.trajectory.types import Message, Outcome, Prompt, Record, RolloutSpec

ERROR_CHARS = 2000
"""Of an error's message that is kept; enough for any engine's own words."""


class Ending(msgspec.Struct, frozen=True):
    """How a conversation ended. The fields are those of `Record`."""

    outcome: Outcome
    reason: str
    error_class: str = ""
    error: str = ""
    retryable: bool = False


class Conversation:
    """One under way: what has happened, and the record of it at any time."""

    def __init__(self, spec: RolloutSpec, settings: RolloutSettings, tools: ToolsOfRollout) -> None:
        self.trace = Trace()
        self.notes: dict[str, CallNotes] = {}
        """Of tool calls under way; those of the context, once there is one."""
        self.sandbox: dict[str, str] = {}
        """What the tools run in."""
        self._spec = spec
        self._settings = settings
        self._tools = tools
        self._started, self._clock = time.time(), time.monotonic()

    async def run(self, model: ChatModel, context: ToolContext, prefill: tuple[Message, ...]) -> Ending:
        """To its end. Raises what `run_agent` does."""
        settings, spec = self._settings, self._spec
        self.notes = context.notes
        outcome, reason = await run_agent(
            model,
            self._tools.toolbox,
            context,
            self.trace,
            opening=opening_messages(settings.ephemeral_system_prompt, prefill, spec.prompt),
            max_turns=settings.max_turns,
            allowance=context.allowance,
            on_hold=context.on_hold,
            window=Window(settings.model.context_length, settings.model.max_tokens, settings.on_context_full),
            seed=spec.seed if settings.pass_seed or is_builtin(settings.model.model) else None,
        )
        return Ending(outcome, reason)

    def break_off(self, error: BaseException, *, out_of_time: bool) -> Ending:
        """What an error makes of it. A limit leaves it as far as it got."""
        ending = self._ending(error, out_of_time)
        self.trace.answer_open_calls(ending.reason, self.notes)
        return ending

    def cut_off(self, reason: str) -> Ending:
        """The same for one that is ended from outside, with another."""
        self.trace.answer_open_calls(reason, self.notes)
        return Ending("partial", reason)

    def _ending(self, error: BaseException, out_of_time: bool) -> Ending:
        if self.trace.messages:
            if out_of_time:
                return Ending("partial", "timeout")
            if isinstance(error, BudgetSpent):
                return Ending("partial", "budget")
            if isinstance(error, PromptBudgetSpent):
                return Ending("partial", "prompt_budget")
        elif out_of_time:
            error = RolloutTimeout(f"no reply within the rollout's {self._settings.prompt_timeout:g} seconds")
        return _failed(error, self._tools.secrets)

    def record(self, ending: Ending) -> Record:
        spec, settings, trace = self._spec, self._settings, self.trace
        prompt_messages = len(spec.prompt.messages)
        called = {call.name for message in trace.messages for call in message.tool_calls}
        return Record(
            key=spec.key,
            sample_index=spec.sample_index,
            attempt=spec.attempt,
            seed=spec.seed,
            messages=(*spec.prompt.messages, *trace.messages),
            prompt_messages=prompt_messages,
            outcome=ending.outcome,
            reason=ending.reason,
            model=settings.model.model,
            toolsets=self._tools.toolsets,
            tools_hash=self._tools.hash,
            calls=tuple(trace.calls),
            tool_runs=tuple(trace.tool_runs),
            unknown_tools=tuple(sorted(called.difference(settings.run_tools))),
            error_class=ending.error_class,
            error=ending.error,
            retryable=ending.retryable,
            started=self._started,
            seconds=time.monotonic() - self._clock,
            config=settings.config,
            sandbox=self.sandbox,
            unavailable_toolsets=settings.unavailable,
            context_cuts=tuple(
                msgspec.structs.replace(each, message=prompt_messages + each.message)
                for each in trace.cuts.values()
                if each.call < len(trace.calls)  # else nobody has answered to it
            ),
            versions={"kiseki": __version__, "python": platform.python_version()},
        )


def _failed(error: BaseException, secrets: Secrets) -> Ending:
    name = type(error).__name__
    # a bug of ours is tried again too: most that get this far are races, and attempts are bounded
    retryable = error.retryable if isinstance(error, KisekiError) else True
    return Ending("failed", name, name, redact(clean_text(str(error)), secrets)[0][:ERROR_CHARS], retryable)


def opening_messages(ephemeral: str, prefill: tuple[Message, ...], prompt: Prompt) -> tuple[Message, ...]:
    """What the model sees before its own messages.

    The ephemeral prompt and a system message of the prompt's become one, since many chat templates refuse two.
    """
    own = [each.content for each in prompt.messages if each.role == "system"]
    system = "\n\n".join(text for text in (ephemeral, *own) if text)
    rest = [each for each in prompt.messages if each.role != "system"]
    return (*((Message(role="system", content=system),) if system else ()), *prefill, *rest)
