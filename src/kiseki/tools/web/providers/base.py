"""What search providers have in common: what they give, and how they are asked."""

from __future__ import annotations

import asyncio
import random
import time
from asyncio import sleep
from collections.abc import Mapping
from typing import Any, NamedTuple

import aiohttp

from kiseki.errors import ToolError
from kiseki.models.retry import parse_retry_after
from kiseki.trajectory.json_rows import decode_row

TRIES = 4
ANSWER_SECONDS = 30.0
"""For one try."""
LONGEST_WAIT = 60.0
"""Seconds between two tries, whatever the provider asks for."""
MAX_ANSWER = 5_000_000
"""Bytes; a hundred results have far fewer."""


class Hit(NamedTuple):
    """One page found."""

    title: str
    url: str
    snippet: str


async def ask(
    session: aiohttp.ClientSession,
    provider: str,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The JSON object that a provider answers with. What may pass (429, 5xx, no connection) is tried again, `TRIES` times in all.

    Raises `ToolError` with the provider's name and the reason, and nothing of the request.
    """
    why, wait = "", 0.0
    for number in range(TRIES):
        if number:
            await sleep(max(wait, random.uniform(0.5, 1.0) * 2.0 ** (number - 1)))
        wait = 0.0
        try:
            async with (
                asyncio.timeout(ANSWER_SECONDS),
                session.request(method, url, headers=headers, params=params, json=body, allow_redirects=False) as response,
            ):
                data = await response.content.read(MAX_ANSWER + 1) if response.status != 200 else await _whole(response, provider)
                status = response.status
                wait = min(parse_retry_after(response.headers, time.time()) or 0.0, LONGEST_WAIT)
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            why = f"no answer within {ANSWER_SECONDS:g} seconds" if isinstance(error, TimeoutError) else "no connection"
            continue
        if status == 200:
            return _object(data, provider)
        why = f"HTTP {status}"
        if status != 429 and status < 500:
            raise ToolError(f"the search provider {provider} refuses the request: {why}")
    raise ToolError(f"the search provider {provider} does not answer ({why}), asked {TRIES} times")


async def _whole(response: aiohttp.ClientResponse, provider: str) -> bytes:
    data = bytearray()
    async for chunk in response.content.iter_chunked(2**16):
        data += chunk
        if len(data) > MAX_ANSWER:
            raise ToolError(f"the search provider {provider} answered with more than {MAX_ANSWER:,} bytes")
    return bytes(data)


def _object(data: bytes, provider: str) -> dict[str, Any]:
    try:
        found = decode_row(data)  # leniently: some cut snippets in the middle of a character
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ToolError(f"the search provider {provider} answered with something else than a JSON object")
    return found


def hits(results: Any, *, title: str = "title", url: str = "url", snippet: str) -> list[Hit]:
    """The results of an answer, by the names of their fields; what is missing is ""."""
    rows = [each for each in results if isinstance(each, dict)] if isinstance(results, list) else []
    return [Hit(_text(row.get(title)), _text(row.get(url)), _text(row.get(snippet))) for row in rows]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " … ".join(each for each in value if isinstance(each, str))
    return value if isinstance(value, str) else ""
