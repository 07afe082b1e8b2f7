"""Search engines that need no key, through the package `ddgs`. They turn away who asks often: for a few prompts."""

from __future__ import annotations

import asyncio
import random
from asyncio import sleep

import aiohttp

from kiseki.errors import ToolError
from kiseki.tools.web.providers.base import TRIES, Hit, hits

SECONDS = 10
"""That it waits for its engines."""
NOTHING = "No results found."


async def search(session: aiohttp.ClientSession, key: str, query: str, limit: int) -> list[Hit]:
    """Up to `limit` results; neither `session` nor `key` is used. Raises `ToolError`."""
    why = ""
    for number in range(TRIES):
        if number:
            await sleep(random.uniform(0.5, 1.0) * 2.0**number)
        found, why = await asyncio.to_thread(_ask, query, limit)
        if not why:
            return found
    raise ToolError(f"the search provider ddgs does not answer ({why}), asked {TRIES} times")


def _ask(query: str, limit: int) -> tuple[list[Hit], str]:
    """What was found, and why nothing was."""
    import ddgs
    from ddgs.exceptions import DDGSException, RatelimitException, TimeoutException

    try:
        found = ddgs.DDGS(timeout=SECONDS).text(query, max_results=limit)
    except RatelimitException:
        return [], "too many requests"
    except TimeoutException:
        return [], f"none of its engines answered within {SECONDS} seconds"
    except DDGSException as error:
        return [], "" if str(error) == NOTHING else "none of its engines answered"
    return hits(found, url="href", snippet="body"), ""
