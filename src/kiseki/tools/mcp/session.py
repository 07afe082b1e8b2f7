"""Calls to MCP servers: each server is started when it is first called, and again when it has died.

Whose a running server is, its `scope` says: the worker's (`McpServers`), or one rollout's, on this machine or in its sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from kiseki.errors import ToolError
from kiseki.tools.context import ToolContext
from kiseki.tools.mcp.connection import START_SECONDS, Connection, Start, list_tools, say
from kiseki.tools.mcp.programs import start_in_sandbox, start_program
from kiseki.tools.services import Services
from kiseki.tools.settings import McpServer

if TYPE_CHECKING:
    from mcp.client import Client
    from mcp_types import CallToolResult

MAX_STARTS = 3
"""In a row, without any call that it answered."""
PAUSE_SECONDS = 60.0
"""After these, until the next: an endpoint that was away comes back, a program that always dies costs little."""
PROBE_SECONDS = 5.0
"""For a server that did not answer a call in time to say that it is still there."""
STATE = "mcp"
"""The key of a rollout's own servers in its `state`."""
_LOST_SESSION = re.compile(
    r"session (?:id )?(?:was )?(?:terminated|not found|expired|unknown)|no valid session|unknown session", re.I
)
"""What endpoints say that were restarted. They have not run the call."""


class Server:
    """One server as its callers know it, whether or not it runs right now."""

    def __init__(self, server: McpServer, start: Start | None) -> None:
        self._server = server
        self._start = start
        self._connection: Connection | None = None
        self._starts = 0
        self._next_start = 0.0

    async def call(self, tool: str, arguments: dict[str, Any], on_hold: AbstractContextManager[Any]) -> CallToolResult:
        """What the server answers. `on_hold` is entered while it starts.

        Raises `ToolError` when it gives none, or does not start; `SandboxError` when the sandbox that it runs in has died.
        """
        lost = await self._try(tool, arguments, on_hold)
        if isinstance(lost, str):
            lost = await self._try(tool, arguments, on_hold)
        if isinstance(lost, str):
            raise ToolError(lost)
        return lost

    async def close(self) -> None:
        """Never raises."""
        if self._connection is not None:
            await self._connection.close()

    async def _try(self, tool: str, arguments: dict[str, Any], on_hold: AbstractContextManager[Any]) -> CallToolResult | str:
        """The answer; or, as text, why the server has surely not begun with the call."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED
        from pydantic import ValidationError

        connection = self._connected()
        with on_hold:
            client = await connection.ready()
        try:
            async with asyncio.timeout(self._server.timeout):
                result = await _request(client, tool, arguments)
        except TimeoutError:
            raise ToolError(await self._too_slow(connection, client)) from None
        except MCPError as error:
            words = say(self._server, error.message)
            if connection.refused and error.message == "Server returned an error response":
                words += f" (HTTP status {connection.refused[0]})"
            if self._server.url and _LOST_SESSION.search(error.message):
                await connection.close()
                return f"the MCP server {self._server.name} said: {words}"
            if connection.over or error.code == CONNECTION_CLOSED:
                await connection.close()
                if connection.broken is not None:
                    raise connection.broken from None
                why = f": {connection.why}" if connection.why else ""
                raise ToolError(f"the MCP server {self._server.name} was lost during the call{why}") from None
            self._starts = 0
            raise ToolError(words or "the MCP server refused the call without a word") from None
        except (ValidationError, RuntimeError) as error:
            self._starts = 0
            first = str(error).partition("\n")[0]
            raise ToolError(f"the answer of the MCP server does not follow the protocol: {say(self._server, first)}") from None
        self._starts = 0
        return result

    def _connected(self) -> Connection:
        """The connection, a new one where there is none that lives."""
        if self._connection is not None and not self._connection.over:
            return self._connection
        now = asyncio.get_running_loop().time()
        if self._starts >= MAX_STARTS and now < self._next_start:
            why = f": {self._connection.why}" if self._connection is not None and self._connection.why else ""
            raise ToolError(f"the MCP server {self._server.name} is not available, it was lost {MAX_STARTS} times in a row{why}")
        self._starts += 1
        self._next_start = now + PAUSE_SECONDS
        self._connection = Connection(self._server, self._start)
        return self._connection

    async def _too_slow(self, connection: Connection, client: Client) -> str:
        """What the model is told. A server that is busy with this call alone stays; one that does not answer at all is ended."""
        words = f"the MCP server {self._server.name} did not answer within {self._server.timeout:g} s"
        with contextlib.suppress(Exception):
            async with asyncio.timeout(PROBE_SECONDS):
                await list_tools(client)
                return words
        await connection.close()
        return f"{words}, and was stopped"


async def _request(client: Client, tool: str, arguments: dict[str, Any]) -> CallToolResult:
    """Not by `Client.call_tool`: that judges results by schemas of the server's own making."""
    from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult, InputRequiredResult
    from pydantic import TypeAdapter

    answers: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)
    params = CallToolRequestParams(name=tool, arguments=arguments)
    answer = await client.session.send_request(CallToolRequest(params=params), answers)
    if isinstance(answer, InputRequiredResult):
        raise ToolError("the MCP server wants to ask its user something, and there is nobody to ask")
    return answer


class McpServers:
    """The servers that all rollouts of a worker share. A `Service`."""

    def __init__(self, services: Services) -> None:
        self._servers: dict[str, Server] = {}

    def get(self, server: McpServer) -> Server:
        if server.name not in self._servers:
            self._servers[server.name] = Server(server, None if server.url else partial(start_program, server))
        return self._servers[server.name]

    async def close(self) -> None:
        await _close_all(self._servers)


def server_of(context: ToolContext, server: McpServer) -> Server:
    """The one whose `scope` this rollout is in."""
    if server.scope == "worker":
        return context.services.get(McpServers).get(server)
    if STATE not in context.rollout_state:
        context.rollout_state[STATE] = {}
        context.on_rollout_close(partial(_close_all, context.rollout_state[STATE]))
    own: dict[str, Server] = context.rollout_state[STATE]
    if server.name not in own:
        in_sandbox = partial(start_in_sandbox, server, context.sandbox) if server.scope == "sandbox" else None
        own[server.name] = Server(server, None if server.url else in_sandbox or partial(start_program, server))
    return own[server.name]


def call_seconds(server: McpServer) -> float:
    """What a call may take with all that can come with it: two starts, the call, and a last question."""
    return 2 * max(START_SECONDS, server.timeout) + 2 * server.timeout + PROBE_SECONDS + 30.0


async def _close_all(servers: dict[str, Server]) -> None:
    await asyncio.gather(*(each.close() for each in servers.values()))
