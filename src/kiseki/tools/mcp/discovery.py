"""Asks every MCP server of a run what it offers, once, before anything else begins."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from kiseki.errors import KisekiError, ToolError, UsageError
from kiseki.sandboxes import owners
from kiseki.sandboxes.base import Sandbox
from kiseki.sandboxes.factory import Sandboxes
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.tools.mcp.config import read_config
from kiseki.tools.mcp.connection import Connection, is_legacy, list_tools, say
from kiseki.tools.mcp.programs import start_in_sandbox, start_program
from kiseki.tools.mcp.schemas import MAX_TEXT, clean_schema, rename
from kiseki.tools.needs import missing_packages
from kiseki.tools.settings import McpServer, McpTool
from kiseki.tools.toolsets import MCP_PREFIX
from kiseki.trajectory.text import clean_text

T = TypeVar("T")

LIST_SECONDS = 30.0
"""For a server that has started to list all of its tools."""
MAX_NAME = 64
"""Characters of a tool's name that every provider takes."""
_HASH = 8


class _Listing(NamedTuple):
    tools: dict[str, Any]
    """By name, sorted."""
    legacy: bool


def discover(path: str, sandbox: SandboxSettings) -> tuple[tuple[McpServer, ...], dict[str, str]]:
    """The servers of the file `path` that could be asked, with their tools; and toolset (`mcp-<name>`) → why it could not.

    Starts all of them side by side, and ends them again. `sandbox`: where those of scope sandbox are asked.
    Raises `UsageError` for a file that cannot be used, and where the `mcp` package is missing.
    """
    if missing := missing_packages("mcp"):
        raise UsageError(f"--mcp_config needs what is missing here: {missing}")
    servers = read_config(path, os.environ)
    answers = _run(_ask_all(servers, sandbox))
    listed = {server.name: answer for server, answer in zip(servers, answers, strict=True) if not isinstance(answer, str)}
    names = tool_names({name: list(each.tools) for name, each in listed.items()})
    found = tuple(
        msgspec.structs.replace(
            server,
            legacy=listed[server.name].legacy,
            tools=tuple(_listed(names[server.name, name], each) for name, each in listed[server.name].tools.items()),
        )
        for server in servers
        if server.name in listed
    )
    lost = {
        f"{MCP_PREFIX}{server.name}": answer for server, answer in zip(servers, answers, strict=True) if isinstance(answer, str)
    }
    return found, lost


def tool_names(listed: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], str]:
    """(server, tool) → `mcp_<server>_<tool>` in letters that every provider takes. One that is too long, or that another tool
    would have too, ends in a hash: so no name hangs on the order in which servers list their tools."""
    plain = {
        (server, tool): re.sub(r"[^a-zA-Z0-9_-]", "_", f"mcp_{server}_{tool}", flags=re.ASCII)
        for server, tools in listed.items()
        for tool in tools
    }
    count = Counter(plain.values())
    return {key: name if count[name] == 1 and len(name) <= MAX_NAME else _hashed(name, key) for key, name in plain.items()}


def _hashed(name: str, key: tuple[str, str]) -> str:
    digest = hashlib.blake2b("\0".join(key).encode("utf-8", "replace"), digest_size=_HASH // 2).hexdigest()
    return f"{name[: MAX_NAME - _HASH - 1]}_{digest}"


def _listed(alias: str, tool: Any) -> McpTool:
    schema, renamed = rename(clean_schema(tool.input_schema))
    description = clean_text(tool.description or "").replace("\0", "").strip()
    if len(description) > MAX_TEXT:
        description = f"{description[:MAX_TEXT]}…"
    return McpTool(tool.name, description, msgspec.json.encode(schema).decode(), alias, renamed)


async def _ask_all(servers: Sequence[McpServer], settings: SandboxSettings) -> list[_Listing | str]:
    """For each what it offers, or why it offers nothing."""
    if not any(each.scope == "sandbox" for each in servers):
        return await asyncio.gather(*(_ask(each) for each in servers))
    label = owners.process_label("mcp")
    sandboxes: Sandboxes | None = None
    sandbox: Sandbox | None = None
    try:
        try:
            own = msgspec.structs.replace(settings, label=label, owner=owners.hold(label), warm=0)
            sandboxes = Sandboxes(own)
            sandbox = await sandboxes.open()
        except KisekiError as error:
            why = f"it runs in the sandbox, and none can be had: {error}"
            return await asyncio.gather(*(_given(why) if each.scope == "sandbox" else _ask(each) for each in servers))
        return await asyncio.gather(*(_ask(each, sandbox) for each in servers))
    finally:
        if sandbox is not None:
            await sandbox.close()
        if sandboxes is not None:
            await sandboxes.close()


async def _given(why: str) -> str:
    return why


async def _ask(server: McpServer, sandbox: Sandbox | None = None) -> _Listing | str:
    in_sandbox = partial(start_in_sandbox, server, sandbox) if sandbox is not None and server.scope == "sandbox" else None
    connection = Connection(server, None if server.url else in_sandbox or partial(start_program, server))
    try:
        client = await connection.ready()
        async with asyncio.timeout(LIST_SECONDS):
            tools, legacy = await list_tools(client), is_legacy(client)
    except TimeoutError:
        return f"it did not list its tools within {LIST_SECONDS:g} s"
    except ToolError as error:
        return str(error)
    except Exception as error:  # whatever the SDK raises for what a stranger sends
        return say(server, f"it does not list its tools: {str(error).partition(chr(10))[0] or type(error).__name__}")
    finally:
        await connection.close()
    found = {each.name: each for each in sorted(tools, key=lambda each: each.name)}
    return _Listing(found, legacy) if found else "it has no tools"


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Also from inside a running event loop, as in a notebook: then on a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1, "kiseki-mcp") as pool:
        return pool.submit(asyncio.run, work).result()
