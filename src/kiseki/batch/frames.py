"""Messages between driver and worker: a 4-byte big-endian length, then msgpack."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec

MAX_FRAME = 1 << 30
"""A bound against a broken peer; a record is compressed, and the largest real ones are a few MB."""

_T = TypeVar("_T")
_encode = msgspec.msgpack.encode


def send(writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
    """Queue one message; `await writer.drain()` afterwards holds the sender back when the peer is slow."""
    data = _encode(message)
    writer.write(len(data).to_bytes(4) + data)


async def receive(reader: asyncio.StreamReader, kind: type[_T]) -> _T | None:
    """The next message, None when the peer has closed."""
    try:
        size = int.from_bytes(await reader.readexactly(4))
        return msgspec.msgpack.decode(await reader.readexactly(size), type=kind)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
