"""A rollout with some toolsets in a sandbox of its own, driven as the agent drives it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from support import open_sandbox

from kiseki.sandboxes.settings import SandboxSettings
from kiseki.tools.context import RolloutInfo, ToolContext
from kiseki.tools.registry import Tool
from kiseki.tools.services import Services
from kiseki.tools.settings import ToolSettings
from kiseki.tools.toolbox import Toolbox
from kiseki.tools.toolsets import load_set_ups, load_tools
from kiseki.trajectory.types import ToolCall

Ask = Callable[..., Awaitable[dict[str, Any]]]
"""`await ask("tool", argument=…)`: the result's JSON."""


def play(
    toolsets: Sequence[str],
    settings: ToolSettings,
    *scenarios: Callable[[Ask, ToolContext], Awaitable[None]],
    own: Sequence[Tool] = (),
) -> None:
    """Play each scenario in a rollout of its own, all of one worker."""

    async def one(services: Services, scenario: Callable[[Ask, ToolContext], Awaitable[None]]) -> None:
        sandbox = await open_sandbox(SandboxSettings(backend="local", label="tool-tests"))
        context = ToolContext(sandbox, services, RolloutInfo("key", 3, 1, 2, 7, "the prompt", '{"level":"hard"}'))
        box = Toolbox(load_tools(toolsets, own), set_ups=load_set_ups(toolsets))

        async def ask(name: str, /, **arguments: Any) -> dict[str, Any]:
            message, run = await box.call(context, ToolCall("c", name, msgspec.json.encode(arguments).decode()))
            answer = msgspec.json.decode(message.content)
            assert isinstance(answer, dict)
            assert run.ok == ("error" not in answer)
            return answer

        try:
            await box.open(context)
            await scenario(ask, context)
        finally:
            await context.close()
            await sandbox.close()

    async def all_of_them() -> None:
        services = Services(settings)
        try:
            for scenario in scenarios:
                await one(services, scenario)
        finally:
            await services.close()

    asyncio.run(all_of_them())
