"""The rollout boundary: what ends with a rollout, whatever cuts it short."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, suppress
from typing import Any

from kiseki.agent.rollout import run_rollout
from kiseki.agent.settings import RolloutSettings, ToolsOfRollout
from kiseki.models.base import NOT_HELD, ChatReply, ChatRequest
from kiseki.models.endpoints import ModelSettings
from kiseki.sandboxes.factory import Sandboxes
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.tools.context import ToolContext
from kiseki.tools.registry import make_tool
from kiseki.tools.services import Services
from kiseki.trajectory.types import Message, ModelCall, Prompt, RolloutSpec, ToolCall

SETTINGS = RolloutSettings(ModelSettings("m"), SandboxSettings(backend="local", label="rollout-tests"))
SPEC = RolloutSpec("k", Prompt(0, (Message(role="user", content="go"),)), 0, 0, 1, 0, ("mine",))


class Calling:
    """Calls `keep` once, then answers."""

    async def complete(self, request: ChatRequest, on_hold: AbstractContextManager[Any] = NOT_HELD) -> ChatReply:
        calls = () if request.messages[-1].role == "tool" else (ToolCall("c", "keep", "{}"),)
        return ChatReply(Message("assistant", "" if calls else "done", tool_calls=calls), ModelCall(0.0, 0.0))

    async def close(self) -> None:
        pass


class Watched:
    """A sandbox that only knows whether it was closed."""

    closed = False

    def describe(self) -> dict[str, str]:
        return {}

    async def close(self) -> None:
        self.closed = True


def test_a_rollout_that_is_cancelled_while_its_tools_close_closes_its_sandbox() -> None:
    closing = asyncio.Event()

    async def hang() -> None:
        closing.set()
        await asyncio.sleep(60)

    async def keep(context: ToolContext) -> str:
        """Keep something open."""
        context.on_close(hang)
        return "kept"

    async def main() -> bool:
        sandbox, sandboxes = Watched(), Sandboxes(SETTINGS.sandbox)

        async def open_it(**_: Any) -> Watched:
            return sandbox

        sandboxes.open = open_it  # type: ignore[method-assign,assignment]
        tools = ToolsOfRollout(("mine",), [make_tool(keep, "mine", "keep")], SETTINGS)
        rollout = run_rollout(SPEC, SETTINGS, Calling(), tools, sandboxes, Services(SETTINGS.tools))
        task = asyncio.create_task(rollout)
        await asyncio.wait_for(closing.wait(), 10)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return sandbox.closed

    assert asyncio.run(main())
