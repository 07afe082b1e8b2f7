"""Serper, results of Google (serper.dev)."""

from __future__ import annotations

import aiohttp

from kiseki.tools.web.providers.base import Hit, ask, hits

ENDPOINT = "https://google.serper.dev/search"


async def search(session: aiohttp.ClientSession, key: str, query: str, limit: int) -> list[Hit]:
    """Up to `limit` results (1 to 100). Raises `ToolError`."""
    answer = await ask(session, "serper", "POST", ENDPOINT, headers={"X-API-KEY": key}, body={"q": query, "num": limit})
    return hits(answer.get("organic"), url="link", snippet="snippet")
