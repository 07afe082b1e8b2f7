"""An instance of SearXNG, whose settings have to allow the format json (docs.searxng.org/dev/search_api.html)."""

from __future__ import annotations

import aiohttp

from kiseki.tools.web.providers.base import Hit, ask, hits

MAX_PAGES = 5
"""It says how many results a page has; usually ten or more."""


async def search(session: aiohttp.ClientSession, key: str, query: str, limit: int) -> list[Hit]:
    """Up to `limit` results from as many pages as that takes. `key`: the address of the instance. Raises `ToolError`."""
    found: dict[str, Hit] = {}
    for page in range(1, MAX_PAGES + 1):
        params = {"q": query, "format": "json", "pageno": str(page)}
        answer = await ask(session, "searxng", "GET", f"{key.rstrip('/')}/search", params=params)
        new = {each.url: each for each in hits(answer.get("results"), snippet="content") if each.url not in found}
        found |= new
        if len(found) >= limit or not new:
            break
    return list(found.values())
