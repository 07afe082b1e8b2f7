"""Tavily (docs.tavily.com/api-reference/endpoint/search)."""

from __future__ import annotations

import aiohttp

from kiseki.tools.web.providers.base import Hit, ask, hits

ENDPOINT = "https://api.tavily.com/search"
MOST = 20
"""Results of one request."""


async def search(session: aiohttp.ClientSession, key: str, query: str, limit: int) -> list[Hit]:
    """Up to `MOST` results. Raises `ToolError`."""
    body = {"query": query, "max_results": min(limit, MOST), "search_depth": "basic"}
    answer = await ask(session, "tavily", "POST", ENDPOINT, headers={"Authorization": f"Bearer {key}"}, body=body)
    return hits(answer.get("results"), snippet="content")
