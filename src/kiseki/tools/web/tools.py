"""The `web` toolset: search the web, and read pages of it. Both run outside of the sandbox, and nothing of it goes out."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec

from kiseki.errors import ToolError
from kiseki.tools.context import ToolContext
from kiseki.tools.registry import tool
from kiseki.tools.web.extracting import extract
from kiseki.tools.web.page_text import Page
from kiseki.tools.web.search import Searcher
from kiseki.trajectory.text import clean_text

MAX_QUERY = 1_000
"""Characters; providers take some hundreds."""
PAGE_BYTES = 30_000
"""Of UTF-8, shown of one page: about 8,000 tokens."""
ALL_BYTES = 60_000
"""Shown of all pages of one call."""
CALL_SECONDS = 900.0
"""Only a net: a fetch has its own limit, and first waits for its turn at the host."""


@tool(toolset="web", timeout=CALL_SECONDS, needs_sandbox=False)
async def web_search(context: ToolContext, query: str, limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 5) -> dict[str, Any]:
    """Search the web. Gives the title, URL and a snippet of each page found, the best first; read pages with web_extract where
    there is one.

    Args:
        query: What to search for.
        limit: How many results at most; some providers give 20 at most.
    """
    query = " ".join(clean_text(query).split())
    if not query:
        raise ToolError("query is empty")
    if len(query) > MAX_QUERY:
        raise ToolError(f"query has {len(query):,} characters, more than {MAX_QUERY:,}; a few words find more")
    found = await context.services.get(Searcher).search(query, limit, context.on_hold)
    results = [hit._asdict() | {"position": number} for number, hit in enumerate(found, 1)]
    return {"results": results} if results else {"results": [], "note": "nothing was found; try other words"}


@tool(toolset="web", timeout=CALL_SECONDS, needs_sandbox=False)
async def web_extract(
    context: ToolContext, urls: Annotated[list[str], msgspec.Meta(min_length=1, max_length=5)]
) -> dict[str, Any]:
    """Read web pages and PDF files: gives the title and the text of each as markdown, without menus and advertisements. Long ones
    are cut at their end ("truncated").

    Args:
        urls: One to five http or https URLs, or URLs as web_search gives them.
    """
    limit = min(PAGE_BYTES, ALL_BYTES // len(urls))
    found = await asyncio.gather(*(_extract(context, url, limit) for url in urls))
    if all("error" in each for each in found):
        raise ToolError("; ".join(f"{each['url']}: {each['error']}" for each in found))
    return {"results": found}


async def _extract(context: ToolContext, url: str, limit: int) -> dict[str, Any]:
    shown = clean_text(url)[:500]
    try:
        page = await extract(context.services, url, context.on_hold)
    except ToolError as error:
        return {"url": shown, "title": "", "content": "", "error": str(error)}
    return {"url": shown} | _fit(page, limit)


def _fit(page: Page, limit: int) -> dict[str, Any]:
    data = clean_text(page.text[:limit]).encode()
    content = data[:limit].decode("utf-8", "ignore")
    cut = len(data) > limit or len(page.text) > limit
    return {"title": clean_text(page.title), "content": content} | ({"truncated": True} if cut else {})
