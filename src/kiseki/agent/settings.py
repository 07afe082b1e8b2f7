"""What the rollouts of a run have in common: their settings, and the tools of each combination of toolsets."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence

import msgspec

from kiseki.agent.context import OnContextFull
from kiseki.models.endpoints import ModelSettings
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.tools.extra_body import secrets_in_body
from kiseki.tools.mcp.given import secrets_given
from kiseki.tools.redact import Secrets, secrets_of
from kiseki.tools.registry import Tool
from kiseki.tools.settings import ToolSettings
from kiseki.tools.toolbox import Toolbox
from kiseki.tools.toolsets import load_set_ups, load_tools
from kiseki.trajectory.types import Message


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
    tools: ToolSettings = ToolSettings()
    tool_files: tuple[str, ...] = ()
    """Python files and entry points with a user's own tools."""
    stand_ins: tuple[str, ...] = ()
    """Built-in toolsets that are there by a user's tools alone."""
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
    on_context_full: OnContextFull = "stop"
    """What is done where a conversation no longer fits the model's context window, see `agent/context.py`."""
    redact: bool = True
    """Take secrets out of tool results. Errors never hold any."""


class ToolsOfRollout:
    """The tools of one combination of toolsets: made once per worker and combination, shared by its rollouts.

    Raises `UsageError` as `load_tools` does.
    """

    def __init__(self, toolsets: Sequence[str], extra: Sequence[Tool], settings: RolloutSettings) -> None:
        """`extra`: tools that are not built in, a user's own and MCP servers'."""
        tools = load_tools(toolsets, extra, stand_ins=settings.stand_ins)
        self._extra, self._settings = extra, settings
        self._subsets: dict[tuple[str, ...], ToolsOfRollout] = {}
        self.toolsets = tuple(toolsets)
        self.secrets = secrets_of_run(settings)
        self.toolbox = Toolbox(tools, self.secrets if settings.redact else None, load_set_ups(toolsets))
        self.needs_sandbox = any(each.needs_sandbox for each in tools)
        self.json = tools_json(tools)
        self.hash = hashlib.blake2b(self.json.encode(), digest_size=16).hexdigest()
        self.schemas = {self.hash: self.json}
        """By hash, those of every subset that was asked for included."""

    def subset(self, toolsets: tuple[str, ...]) -> ToolsOfRollout:
        """The tools of some of its toolsets, for a sub-agent."""
        if toolsets not in self._subsets:
            found = self._subsets[toolsets] = ToolsOfRollout(toolsets, self._extra, self._settings)
            self.schemas |= found.schemas
        return self._subsets[toolsets]


def secrets_of_run(settings: RolloutSettings) -> Secrets:
    """The run's own: the model's key and what its extra body says is secret, what this process has in its environment, and what
    MCP servers are given."""
    keys = {f"FALLBACK_{number}_API_KEY": each.api_key for number, each in enumerate(settings.model.fallback)}
    given = {**secrets_in_body(settings.model.extra_body), **secrets_given(settings.tools.mcp_servers)}
    return secrets_of(settings.model.api_key, {**os.environ, **keys, **given})


def tools_json(tools: Iterable[Tool]) -> str:
    """The schemas as they are sent and kept: a JSON list of OpenAI-style function tools."""
    listed = [{"type": "function", "function": each.schema} for each in tools]
    return msgspec.json.encode(listed).decode()
