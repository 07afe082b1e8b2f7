"""Exa (docs.exa.ai/reference/search)."""

from __future__ import annotations

import aiohttp

from kiseki.tools.web.providers.base import Hit, ask, hits

ENDPOINT = "https://api.exa.ai/search"


async def search(session: aiohttp.ClientSession, key: str, query: str, limit: int) -> list[Hit]:
    """Up to `limit` results (1 to 100). Raises `ToolError`."""
    body = {"query": query, "type": "auto", "numResults": limit, "contents": {"highlights": True}}
    answer = await ask(session, "exa", "POST", ENDPOINT, headers={"x-api-key": key}, body=body)
    return hits(answer.get("results"), snippet="highlights")
