"""Messages between driver and worker: a 4-byte big-endian length, then msgpack.

The driver sends `RolloutSettings`, then `RolloutSpec`s and an `Answered` for each `Asks`. A worker sends `Attempt`s; `Asks` for
each model call that it wants to make, and `Leaves` when that is over or no longer wanted; and a `Beat` now and then.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec

from kiseki.agent.rollout import RolloutSettings
from kiseki.ledger.types import Attempt
from kiseki.models.admission import Admitted, Ask
from kiseki.models.calls import CallEnd
from kiseki.trajectory.types import RolloutSpec

MAX_FRAME = 1 << 30
"""A bound against a broken peer; a record is compressed, and the largest real ones are a few MB."""
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
ToWorker = RolloutSpec | Answered

_T = TypeVar("_T")
_encode = msgspec.msgpack.encode
SETTINGS = msgspec.msgpack.Decoder(RolloutSettings)
FROM_WORKER: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)
TO_WORKER: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)


def send(writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
    """Queue one message; `await writer.drain()` afterwards holds the sender back when the peer is slow."""
    data = _encode(message)
    writer.write(len(data).to_bytes(4) + data)


async def receive(reader: asyncio.StreamReader, decoder: msgspec.msgpack.Decoder[_T]) -> _T | None:
    """The next message, None when the peer has closed."""
    try:
        size = int.from_bytes(await reader.readexactly(4))
        return decoder.decode(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
