"""Messages between driver and worker: a 4-byte big-endian length, then msgpack.

The driver sends `RolloutSettings`, then `RolloutSpec`s and an `Answered` for each `Asks`. A worker sends `Attempt`s; `Asks` for
each model call that it wants to make, and `Leaves` when that is over or no longer wanted; and a `Beat` now and then.
"""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

import msgspec

from kiseki.agent.settings import RolloutSettings
from kiseki.ledger.types import Attempt
from kiseki.models.admission import Admitted, Ask
from kiseki.models.calls import CallEnd
from kiseki.trajectory.types import RolloutSpec

CHUNK = 1 << 18
"""Bytes read at a time."""
BEAT_SECONDS = 2.0
"""Between two signs of life of a worker."""


class Asks(msgspec.Struct, frozen=True, tag=True):
    """A model call wants to be let in (`models/admission.py`)."""

    key: int
    ask: Ask


class Answered(msgspec.Struct, frozen=True, tag=True):
    key: int
    admitted: Admitted | None
    refusal: str = ""
    """Where it is not admitted: the class of the error, and its words."""
    words: str = ""


class Leaves(msgspec.Struct, frozen=True, tag=True):
    key: int
    end: CallEnd


class Beat(msgspec.Struct, frozen=True, tag=True):
    """The worker's event loop still runs."""


FromWorker = Attempt | Asks | Leaves | Beat
ToWorker = RolloutSettings | RolloutSpec | Answered

_T = TypeVar("_T")
_encode = msgspec.msgpack.encode
FROM_WORKER: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
TO_WORKER: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)


class Link(Generic[_T]):
    """One end of the connection between driver and worker; `_T` is what the other end sends.

    Messages sent in one turn of the event loop go out together, and those that arrive together are read together: a model call
    takes three, and each one's way through the sockets would cost as much as all the rest of the admission.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, decoder: msgspec.msgpack.Decoder[_T]) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = decoder
        self._to_send: list[bytes] = []
        self._buffer = bytearray()
        self._at = 0

    def send(self, message: msgspec.Struct) -> None:
        """Queue one message. A peer that is gone gets none, and is not missed here."""
        data = _encode(message)
        if not self._to_send:
            asyncio.get_running_loop().call_soon(self._flush)
        self._to_send += (len(data).to_bytes(4), data)

    async def drain(self) -> None:
        """Wait while the peer is slow. Raises `ConnectionError` when it is gone."""
        self._flush()
        await self._writer.drain()

    def _flush(self) -> None:
        if self._to_send and not self._writer.is_closing():
            self._writer.write(b"".join(self._to_send))
        self._to_send.clear()

    async def receive(self) -> _T | None:
        """The next message, None when the peer has closed."""
        while True:
            start = self._at + 4
            if len(self._buffer) >= start:
                end = start + int.from_bytes(self._buffer[self._at : start])
                if len(self._buffer) >= end:
                    with memoryview(self._buffer) as view:
                        message = self._decoder.decode(view[start:end])
                    self._at = end
                    return message
            del self._buffer[: self._at]
            self._at = 0
            try:
                chunk = await self._reader.read(CHUNK)
            except ConnectionError:
                return None
            if not chunk:
                return None
            self._buffer += chunk

    def close(self) -> None:
        """Send what is queued, then close."""
        self._flush()
        self._writer.close()
