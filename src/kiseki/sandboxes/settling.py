"""Waiting for what has to be over before the caller goes on, whatever happens to the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


async def settled(work: Awaitable[Any]) -> None:
    """Wait until it is done, and be cancelled only then: for clearing up. Its result or error is left alone.

    `asyncio.shield` is not enough for that: it lets the work go on, but without anybody who waits for it.
    """
    future = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if not future.cancelled():
        future.exception()
    if cancelled:
        raise cancelled
