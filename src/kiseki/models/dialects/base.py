"""What a dialect is: the bytes of one model API, from request to body and from answer to reply. Pure, no I/O.

The connection, its errors and the key's masking are the client's (`models/client.py`); a dialect only knows how its API spells
what `ModelSettings` and a `ChatRequest` say, and how to read what comes back. What comes back is read leniently, since servers
differ, and everything textual in it is cleaned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from kiseki.models.base import ChatReply, ChatRequest, ToolSchema
from kiseki.trajectory.text import clean_text

encode = msgspec.json.Encoder().encode
T = TypeVar("T")

IMAGE_SIZE = 4_500
"""Bytes that an image counts in place of its base64 where a request's tokens are estimated: about 1,500 tokens, as models with a
longest side of 2,048 pixels take (85 to 1,600, by tile or by area)."""
MAX_ANSWER = 64_000_000
"""Bytes of an answer, or characters of a streamed one: a hundred times what any model writes in one reply, so a server that sends
more does not end, and would take the other rollouts' memory."""
TOO_LARGE = f"The answer has more than {MAX_ANSWER // 1_000_000} MB."
EXCERPT_CHARS = 500
"""Of an endpoint's own words in an error message."""
TOOLSETS_KEPT = 64
"""Tuples of tools of which something is kept; a run has a handful of toolset combinations."""
MOST = 2**53
"""Larger numbers are no counts, and no float holds them exactly."""


class StreamedReply(Protocol):
    """Puts the pieces of one streamed answer together."""

    begun: bool
    """Something of the reply came."""

    @property
    def ended(self) -> bool:
        """Nothing more of it will come, whatever the server still sends."""
        ...

    def feed(self, data: bytes) -> None:
        """Take the next bytes, however they are split. Raises BadResponse."""
        ...

    def reply(self, started: float, seconds: float) -> ChatReply:
        """The whole, after the last byte. Raises `ProviderError` where it is torn, empty, or says what went wrong."""
        ...


class Dialect(Protocol):
    """One API, for one run's settings. Safe for any number of calls at once: it keeps nothing of them."""

    url: str
    """What is posted to."""
    headers: dict[str, str]
    """Of each request: the key, and what else the API wants."""
    takes_seed: bool
    """Whether a request's seed goes out: where the API, or the host, has no field for one it does not."""

    def encode(self, request: ChatRequest) -> tuple[bytes, int]:
        """The body, and its length, in which an image counts as `IMAGE_SIZE`."""
        ...

    def reply(self, body: bytes, started: float, seconds: float) -> ChatReply:
        """What a whole answer says. Raises `ProviderError` where it says what went wrong, or nothing."""
        ...

    def stream(self) -> StreamedReply:
        """Takes an answer that is streamed."""
        ...


class PerTools(Generic[T]):
    """What is made of a tuple of tools, once: by identity, since the same one is sent on every turn of many rollouts."""

    def __init__(self, make: Callable[[tuple[ToolSchema, ...]], T]) -> None:
        self._make = make
        self._known: dict[int, tuple[tuple[ToolSchema, ...], T]] = {}  # with the tuple, so that no other gets its id

    def of(self, tools: tuple[ToolSchema, ...]) -> T:
        known = self._known.get(id(tools))
        if known is None:
            if len(self._known) >= TOOLSETS_KEPT:
                self._known.clear()
            known = self._known[id(tools)] = (tools, self._make(tools))
        return known[1]


def excerpt(body: bytes) -> str:
    """The beginning of an answer, to be shown (the client cuts it further, after it masked the key)."""
    text = clean_text(body[: EXCERPT_CHARS * 12].decode("utf-8", "replace")).strip()
    return text[: EXCERPT_CHARS * 3] or "(empty)"


def cleaned(value: Any) -> Any:
    """`value` with every string in it cleaned."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean_text(key): cleaned(item) for key, item in value.items()}
    return value


def string(value: Any) -> str:
    """Clean text of what should be some."""
    if isinstance(value, str):
        return clean_text(value)
    return "" if value is None else str(value)


def number(value: Any) -> int | float:
    """A count or an amount within what every store can hold; 0 for anything else."""
    if type(value) is int and 0 <= value <= MOST:  # nearly always
        return value
    return max(0, min(value, MOST)) if isinstance(value, int | float) else 0


def arguments_text(arguments: Any) -> str:
    """Arguments as JSON text, however the server gave them."""
    if isinstance(arguments, str):
        return clean_text(arguments)
    return "" if arguments is None else encode(cleaned(arguments)).decode()
