"""Rollouts for a trainer's own process: everything that they share, and one of them from prompt to reward.

Knows no trainer. The model comes with each rollout; which toolsets a prompt has is drawn once for all of its samples, since
rollouts that are compared with each other must have had the same means.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from kiseki.agent.conversation import opening_messages
from kiseki.agent.rollout import run_rollout
from kiseki.agent.settings import RolloutSettings, ToolsOfRollout
from kiseki.batch.config import BatchConfig
from kiseki.batch.plan import draw_seed, prompt_key
from kiseki.batch.prepare import Toolsets, prepare_toolsets
from kiseki.batch.prompts import check_dataset
from kiseki.errors import KisekiError, UsageError
from kiseki.models.base import ChatModel
from kiseki.models.factory import open_model
from kiseki.sandboxes import owners
from kiseki.sandboxes.base import Sandbox
from kiseki.sandboxes.factory import Sandboxes, with_backend
from kiseki.sandboxes.reaper import reap_orphans
from kiseki.tools.gather import extra_tools
from kiseki.tools.services import Services
from kiseki.trajectory.record import own_messages
from kiseki.trajectory.text import printable
from kiseki.trajectory.types import Message, Prompt, Record, RolloutSpec

ERROR_CHARS = 500


class Rollout(msgspec.Struct, frozen=True):
    """What a reward function gets: a rollout that has ended, with its sandbox still open."""

    record: Record
    """All of it: `outcome` (`completed` or `partial`), `reason`, `messages`, `tool_runs`, …"""
    prompt: Prompt
    row: dict[str, Any]
    """The prompt row's other columns."""
    opened: Sandbox | None

    @property
    def messages(self) -> tuple[Message, ...]:
        """The prompt, then everything that the model and its tools said."""
        return self.record.messages

    @property
    def final_response(self) -> str:
        """The model's last text, "" when it gave none."""
        texts = [each.content for each in own_messages(self.record) if each.role == "assistant"]
        return texts[-1] if texts else ""

    @property
    def sandbox(self) -> Sandbox:
        """As the model left it. `exec` goes on with the model's shell session; `run` and `read_file` know nothing of that. Raises
        `UsageError` where no tool of the rollout needed one."""
        if self.opened is None:
            raise UsageError("the rollout has no sandbox: none of its toolsets needs one")
        return self.opened


Reward = Callable[[Rollout], float | Awaitable[float]]


class RewardFailed(KisekiError):
    """The reward function raised, took too long, or gave no finite number. What it raised is the cause."""


class Prepared(msgspec.Struct, frozen=True):
    """Settings that are known to work."""

    settings: RolloutSettings
    toolsets: Toolsets
    seed: int


def prepare(config: BatchConfig) -> Prepared:
    """Check all that can be checked. Blocks. Raises `UsageError`, `DatasetError`, and `SandboxError` where no lock can be had."""
    check_dataset(config.dataset_file)
    label = owners.process_label("atropos")
    sandbox = msgspec.structs.replace(with_backend(config.sandbox_settings), label=label)
    reap_orphans(sandbox)
    toolsets = prepare_toolsets(config, sandbox)
    settings = RolloutSettings(
        model=config.model,
        sandbox=msgspec.structs.replace(sandbox, owner=owners.hold(label)),
        max_turns=config.max_turns,
        prompt_timeout=config.prompt_timeout,
        ephemeral_system_prompt=config.ephemeral_system_prompt,
        tools=toolsets.settings,
        tool_files=toolsets.tool_files,
        stand_ins=toolsets.stand_ins,
        run_tools=tuple(tool.name for tool in toolsets.tools),
        redact=config.redact,
        unavailable=tuple(toolsets.unavailable),
    )
    return Prepared(settings, toolsets, config.seed or 0)


class Runner:
    """Belongs to the event loop that it is made on; `close` it there."""

    def __init__(self, prepared: Prepared) -> None:
        settings = prepared.settings
        self.settings = settings
        self._toolsets, self._seed = prepared.toolsets, prepared.seed
        self._sandboxes = Sandboxes(settings.sandbox)
        # of tools that ask a model themselves; what it says to them is no part of a rollout's sequence
        self._model = open_model(settings.model)
        self._services = Services(settings.tools, self._model, settings.model, None, os.environ)
        self._extra = extra_tools(settings.tool_files, settings.tools)
        self._combinations: dict[tuple[str, ...], ToolsOfRollout] = {}

    def spec(self, prompt: Prompt, epoch: int, sample: int, attempt: int) -> RolloutSpec:
        """One rollout. Key, seed and toolsets depend on the prompt's content, its place, the epoch and the run's seed alone."""
        of_prompt = prompt_key(prompt, prompt.index).hex() + f"-{epoch}"
        key = f"{of_prompt}-{sample}"
        seed = draw_seed(self._seed, key)
        toolsets = self._toolsets.draw(self._seed, of_prompt)
        return RolloutSpec(key, prompt, sample, epoch, attempt, seed, toolsets)

    def opening(self, prompt: Prompt) -> tuple[Message, ...]:
        """What the model sees before its own messages."""
        return opening_messages(self.settings.ephemeral_system_prompt, self.settings.prefill, prompt)

    async def run(self, spec: RolloutSpec, model: ChatModel, reward: Reward, seconds: float) -> tuple[Record, float | None]:
        """One rollout and its reward, for which there are so many `seconds`; None for one that failed, of which there is no
        outcome to judge. Raises `RewardFailed`, and this project's own errors where they come out of `reward` (a sandbox that
        died under it).
        """
        found: list[float] = []

        async def judge(record: Record, sandbox: Sandbox | None) -> None:
            if record.outcome != "failed":
                row = msgspec.json.decode(spec.prompt.source)
                try:
                    async with asyncio.timeout(seconds) as limit:
                        found.append(await ask(reward, Rollout(record, spec.prompt, row, sandbox)))
                except UsageError as error:
                    raise RewardFailed(str(error)) from None
                except KisekiError:
                    raise
                except Exception as error:
                    if limit.expired():
                        raise RewardFailed(f"the reward took longer than {seconds:g} s (reward_timeout)") from None
                    raise RewardFailed(f"the reward raised {raised_words(error)}") from error

        tools = self._tools(spec.toolsets)
        record = await run_rollout(spec, self.settings, model, tools, self._sandboxes, self._services, judge)
        return record, found[0] if found else None

    def _tools(self, toolsets: tuple[str, ...]) -> ToolsOfRollout:
        if toolsets not in self._combinations:
            self._combinations[toolsets] = ToolsOfRollout(toolsets, self._extra, self.settings)
        return self._combinations[toolsets]

    async def close(self) -> None:
        """What rollouts share; they have ended before. Never raises."""
        await self._services.close()
        await self._sandboxes.close()
        await self._model.close()


def raised_words(error: BaseException) -> str:
    """`ValueError: words (file.py:12)`, on one line."""
    words = f"{type(error).__name__}: {printable(str(error), ERROR_CHARS)}".removesuffix(": ")
    last = traceback.extract_tb(error.__traceback__)[-1:]
    return f"{words} ({Path(last[0].filename).name}:{last[0].lineno})" if last else words


async def ask(reward: Reward, rollout: Rollout) -> float:
    """What the function says. One that is not `async` runs on a thread of its own, so that it holds nobody up. Raises what it
    raises, and `RewardFailed` for what is no finite number."""
    if inspect.iscoroutinefunction(reward):
        said: Any = await reward(rollout)
    else:
        said = await asyncio.to_thread(reward, rollout)
        said = await said if inspect.isawaitable(said) else said
    try:
        value = float(said)
    except (TypeError, ValueError):
        raise RewardFailed(f"the reward must be a number, not {printable(repr(said), 200)}") from None
    if not math.isfinite(value):
        raise RewardFailed(f"the reward must be a finite number, not {value}")
    return value
