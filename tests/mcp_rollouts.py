"""Rollouts with the tools of MCP servers, driven as the agent drives them: found by `discover`, called through `Toolbox`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from mcp_servers import config

from kiseki.sandboxes.base import Sandbox
from kiseki.sandboxes.factory import Sandboxes
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.tools.context import ToolContext
from kiseki.tools.mcp.discovery import discover
from kiseki.tools.mcp.tools import mcp_tools
from kiseki.tools.services import Services
from kiseki.tools.settings import McpServer, ToolSettings
from kiseki.tools.toolbox import Toolbox
from kiseki.trajectory.types import ToolCall, ToolRun

SANDBOX = SandboxSettings(backend="local", label="mcp-tests")
"""Unless said otherwise."""


class Rollout:
    """Calling it calls a tool and gives the text of its result."""

    def __init__(self, servers: tuple[McpServer, ...], services: Services, sandbox: Sandbox | None = None) -> None:
        self.sandbox = sandbox
        self.context = ToolContext(sandbox, services)
        self.toolbox = Toolbox(mcp_tools(servers))
        self.run: ToolRun | None = None
        """Of the last call."""

    async def __call__(self, name: str, **arguments: Any) -> str:
        call = ToolCall("c", name, msgspec.json.encode(arguments).decode())
        message, self.run = await self.toolbox.call(self.context, call)
        return message.content

    async def json(self, name: str, **arguments: Any) -> Any:
        return msgspec.json.decode(await self(name, **arguments))

    async def error(self, name: str, **arguments: Any) -> str:
        """The error of a call that has to fail."""
        answer = await self.json(name, **arguments)
        assert self.run and not self.run.ok, answer
        return str(answer["error"])


class Play:
    """Finds servers, and runs scenarios in which a worker has them."""

    def __init__(self, folder: Path, settings: SandboxSettings = SANDBOX) -> None:
        self._folder = folder
        self._settings = settings
        self.servers: tuple[McpServer, ...] = ()

    def find(self, **servers: Any) -> None:
        """All of these have to start."""
        self.servers, lost = discover(config(self._folder, **servers), self._settings)
        assert not lost

    def __call__(self, scenario: Callable[..., Awaitable[None]], *, rollouts: int = 1, sandbox: bool = False) -> None:
        """`scenario` gets so many rollouts of one worker, each with a sandbox of its own if need be."""

        async def run() -> None:
            services = Services(ToolSettings())
            sandboxes = Sandboxes(self._settings)
            opened = [await sandboxes.open() if sandbox else None for _ in range(rollouts)]
            ours = [Rollout(self.servers, services, each) for each in opened]
            try:
                await scenario(*ours)
            finally:
                for rollout, each in zip(ours, opened, strict=True):
                    await rollout.context.close()
                    if each is not None:
                        await each.close()
                await services.close()
                await sandboxes.close()

        asyncio.run(run())
