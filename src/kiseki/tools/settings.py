"""What the toolsets of a run are told. One struct, so that it goes to worker processes as it is."""

from __future__ import annotations

from typing import Literal

import msgspec

SEARCH_PROVIDERS = ("brave", "tavily", "exa", "serper", "searxng", "ddgs", "corpus")
Scope = Literal["worker", "rollout", "sandbox"]


class McpTool(msgspec.Struct, frozen=True):
    """A tool as its server listed it before the run."""

    name: str
    """As the server knows it."""
    description: str
    parameters: str
    """JSON schema of the arguments, as it is sent to the model. No `Raw`: what goes to workers is no JSON."""
    alias: str = ""
    """Its name here, `mcp_<server>_<tool>`: one that every provider takes, and no other tool has."""
    renamed: dict[str, str] = {}
    """Arguments whose names no provider would take: as the model knows them → as the server does."""


class McpServer(msgspec.Struct, frozen=True):
    """One entry of `mcpServers`, with what it offers. Either `command` or `url` is given."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str = ""
    url: str = ""
    """Of a streamable HTTP endpoint."""
    headers: dict[str, str] = {}
    scope: Scope = "worker"
    """Whose a running server is. Default: every rollout's of a worker process."""
    timeout: float = 60.0
    """Seconds for one call."""
    secrets: tuple[str, ...] = ()
    """What the `${…}` in all of this stood for: in no message, and taken out of results."""
    legacy: bool = False
    """It introduces itself as servers did up to 2025: found out before the run, so that no start tries the newer way first."""
    tools: tuple[McpTool, ...] = ()


class ToolSettings(msgspec.Struct, frozen=True):
    """The flags of the toolsets, and what was found out from them before the run."""

    search_provider: str = ""
    """`brave`, `tavily`, `exa`, `serper`, `searxng`, `ddgs` or `corpus`. Default: corpus with `corpus`, else the first whose key
    is in the environment, else ddgs."""
    corpus: str = ""
    """Folder, JSONL or parquet file that `web_search` searches. Default: none."""
    corpus_index: str = ""
    """Path of its index. Set by the run; "" has it looked for, and made where there is none."""
    web_allow: tuple[str, ...] = ()
    """Hosts, host:port pairs and networks (CIDR) that tools may reach though they are private. Default: none."""
    web_record: str = ""
    """File that keeps every search and fetch. Default: none is kept beyond the run."""
    web_replay: str = ""
    """File that answers every search and fetch. Default: the network does."""
    web_cache: str = ""
    """File in which the workers of one run share what they fetched. Set by the run; "" keeps it in memory."""
    vision_model: str = ""
    """Model id that looks at images. Default: the run's model."""
    vision_base_url: str = ""
    """Default: the run's `base_url`."""
    image_model: str = ""
    """Model id that draws. Default: by the host of `image_base_url`."""
    image_base_url: str = ""
    """Default: by which key there is."""
    skills_dir: str = ""
    """Folder of skills, one folder with a SKILL.md each. Default: none."""
    memory_dir: str = ""
    """Folder that each rollout's memory begins with. Default: an empty one."""
    mcp_config: str = ""
    """JSON file with `mcpServers`. Default: none."""
    mcp_servers: tuple[McpServer, ...] = ()
    """What `mcp_config` names, with the tools that each listed before the run. Set by the run."""
