"""A sandbox of each backend with the built-in tools, driven as the agent drives them: through `Toolbox.call`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from support import open_sandbox

from kiseki.sandboxes import bubblewrap
from kiseki.sandboxes.base import Sandbox
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.tools.context import ToolContext
from kiseki.tools.toolbox import Toolbox
from kiseki.tools.toolsets import load_tools
from kiseki.trajectory.types import ToolCall, ToolRun


class Box:
    """One rollout's tools. Calling it calls a tool and gives the result's JSON."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.context = ToolContext(sandbox)
        self.toolbox = Toolbox(load_tools(["terminal", "file"]))
        self.run: ToolRun | None = None
        """Of the last call."""

    async def __call__(self, name: str, **arguments: Any) -> dict[str, Any]:
        call = ToolCall("c", name, msgspec.json.encode(arguments).decode())
        message, self.run = await self.toolbox.call(self.context, call)
        message.content.encode()  # what cannot be encoded cannot be stored
        answer = msgspec.json.decode(message.content)
        assert isinstance(answer, dict)
        return answer

    async def sh(self, command: str) -> str:
        """A command's output, for preparing and looking."""
        result = await self.sandbox.exec(command, timeout=60)
        return result.output

    async def error(self, name: str, **arguments: Any) -> str:
        """The error of a call that has to fail."""
        answer = await self(name, **arguments)
        assert self.run and not self.run.ok, answer
        return str(answer["error"])


@pytest.fixture(params=["local", "bubblewrap"])
def play(request: pytest.FixtureRequest) -> Callable[[Callable[[Box], Awaitable[None]]], None]:
    """Runs a scenario with a fresh sandbox, and closes it."""
    backend: str = request.param
    if backend == "bubblewrap" and (why := bubblewrap.working_program()[1]):
        pytest.skip(f"bubblewrap does not work here: {why}")

    def run(scenario: Callable[[Box], Awaitable[None]]) -> None:
        async def in_sandbox() -> None:
            sandbox = await open_sandbox(SandboxSettings(backend=backend, label="tool-tests"))
            try:
                await scenario(Box(sandbox))
            finally:
                await sandbox.close()

        asyncio.run(in_sandbox())

    return run
