"""The tools of MCP servers as the model sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from kiseki.models.base import ToolSchema
from kiseki.tools.context import ToolContext
from kiseki.tools.mcp.answers import to_result
from kiseki.tools.mcp.session import call_seconds, server_of
from kiseki.tools.registry import Tool
from kiseki.tools.settings import McpServer, McpTool
from kiseki.tools.toolsets import MCP_PREFIX
from kiseki.trajectory.text import clean_text

MAX_DEPTH = 100
"""Of arguments. From about 250 on a message cannot be written, and the connection would be lost, with all of its calls."""


def mcp_tools(servers: Sequence[McpServer]) -> list[Tool]:
    """What the servers listed before the run, each in the toolset `mcp-<server>`. Starts nothing."""
    return [_tool(server, each) for server in servers for each in server.tools]


def _tool(server: McpServer, listed: McpTool) -> Tool:
    async def call(context: ToolContext, arguments: dict[str, Any]) -> Any:
        answer = await server_of(context, server).call(listed.name, arguments, context.on_hold)
        return await to_result(answer, context)

    return Tool(
        schema=ToolSchema(listed.alias, listed.description, msgspec.Raw(listed.parameters.encode())),
        toolset=f"{MCP_PREFIX}{server.name}",
        read_arguments=_reader(listed),
        function=call,
        given={"context": lambda context: context},
        needs_sandbox=server.scope == "sandbox",
        timeout=call_seconds(server),
    )


def _reader(listed: McpTool) -> Callable[[str], Mapping[str, Any]]:
    """Checks that the arguments are an object with what is required; the rest is for the server to judge."""
    schema = msgspec.json.decode(listed.parameters)
    required: list[str] = schema.get("required", [])
    decode = msgspec.json.Decoder(dict[str, Any]).decode

    def read(text: str) -> Mapping[str, Any]:
        arguments = decode(clean_text(text))
        for name in required:
            if name not in arguments:
                raise msgspec.ValidationError(f"Object missing required field `{name}`")
        if _is_deeper(arguments, MAX_DEPTH):
            raise msgspec.ValidationError(f"Object nested deeper than {MAX_DEPTH} levels")
        return {"arguments": {listed.renamed.get(name, name): value for name, value in arguments.items()}}

    return read


def _is_deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    return levels == 0 or any(_is_deeper(each, levels - 1) for each in (value.values() if isinstance(value, dict) else value))
