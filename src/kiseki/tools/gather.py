"""What a run has beside the built-in tools: a user's own and those of MCP servers, found out once, before it begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from kiseki.sandboxes.settings import SandboxSettings
from kiseki.tools.registry import Tool
from kiseki.tools.settings import ToolSettings
from kiseki.tools.user_tools import load_user_tools


class Gathered(msgspec.Struct, frozen=True):
    """What there is."""

    settings: ToolSettings
    """With the MCP servers and what each offers, and the index of the corpus."""
    tools: tuple[Tool, ...]
    lost: dict[str, str]
    """Toolsets of MCP servers that do not start → why."""


def gather(
    files: Sequence[str],
    settings: ToolSettings,
    sandbox: SandboxSettings,
    indexed: Callable[[int], None] = lambda count: None,
) -> Gathered:
    """Load a user's own tools, index the corpus where it is not yet, and ask every MCP server what it has; `sandbox` is where
    those with that scope are asked, `indexed` is told now and then how many documents of the corpus are done.

    Raises `UsageError` for files that cannot be used. A server that does not start is `lost`.
    """
    lost: dict[str, str] = {}
    if settings.web_record or settings.web_replay or settings.web_allow:
        from kiseki.tools.web.recording import check_recording

        settings = check_recording(settings)
    if settings.corpus:
        from kiseki.tools.web.corpus_index import ensure_index

        settings = msgspec.structs.replace(settings, corpus_index=str(ensure_index(settings.corpus, indexed)))
    if settings.mcp_config:
        from kiseki.tools.mcp.discovery import discover

        servers, lost = discover(settings.mcp_config, sandbox)
        settings = msgspec.structs.replace(settings, mcp_servers=servers)
    return Gathered(settings, tuple(extra_tools(files, settings)), lost)


def extra_tools(files: Sequence[str], settings: ToolSettings) -> list[Tool]:
    """The same tools again, in a worker: nothing is asked of any server."""
    own = [each for file in files for each in load_user_tools(file)]
    if not settings.mcp_servers:
        return own
    from kiseki.tools.mcp.tools import mcp_tools

    return [*own, *mcp_tools(settings.mcp_servers)]
