"""Brave Search (api-dashboard.search.brave.com/api-reference/web/search/get)."""

from __future__ import annotations

import aiohttp

from kiseki.tools.web.providers.base import Hit, ask, hits

ENDPOINT = "https://api.search.brave.com/res/v1/web/search"
MOST = 20
"""Results of one request."""
MAX_QUERY = 400
"""Characters that it takes."""


async def search(session: aiohttp.ClientSession, key: str, query: str, limit: int) -> list[Hit]:
    """Up to `MOST` results. Raises `ToolError`."""
    params = {"q": query[:MAX_QUERY], "count": str(min(limit, MOST)), "text_decorations": "false"}
    headers = {"X-Subscription-Token": key, "Accept": "application/json"}
    answer = await ask(session, "brave", "GET", ENDPOINT, headers=headers, params=params)
    web = answer.get("web")  # is left out where nothing was found
    return hits(web.get("results") if isinstance(web, dict) else None, snippet="description")
