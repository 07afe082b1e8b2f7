"""A streamed answer of the Messages API put back together: events to the same `Answer` that an unstreamed one is. Pure.

A block begins with what it is, grows by deltas of its index (text, thinking, a signature, JSON of a tool's input in pieces), and
ends; usage counts stand in the first event and again, grown, in the last but one. Events and deltas of unknown kinds are skipped.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

import msgspec

from kiseki.errors import BadResponse
from kiseki.models.base import ChatReply
from kiseki.models.dialects.anthropic_reply import Answer, reply_of, strict
from kiseki.models.dialects.base import MAX_ANSWER, TOO_LARGE, encode, excerpt
from kiseki.models.dialects.sse import PART_SIZE, EventReader
from kiseki.trajectory.sharegpt import is_json_object

_GROWING = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
"""Kind of delta → its field; the block's field has the same name, but for a tool's input."""
_INPUT = "partial_json"


class _Event(msgspec.Struct):
    type: Any = None
    index: Any = None
    message: Any = None
    content_block: Any = None
    delta: Any = None
    usage: Any = None
    error: Any = None


_decode_event = msgspec.json.Decoder(_Event).decode


class _Growing(msgspec.Struct):
    """A block so far."""

    begun: dict[str, Any]
    parts: dict[str, io.StringIO]
    """By field: adding to a string would copy it for every piece."""

    def whole(self) -> msgspec.Raw:
        block = {**self.begun}
        for name, buffer in self.parts.items():
            if name != _INPUT:
                block[name] = buffer.getvalue()
        if _INPUT in self.parts:
            text = self.parts[_INPUT].getvalue()
            block["input"] = msgspec.Raw(text.encode()) if is_json_object(text) else text if text.strip() else {}
        return msgspec.Raw(encode(block))


class StreamedMessage:
    """A `StreamedReply`. The first error event is the last thing that is taken."""

    def __init__(self) -> None:
        self._events = EventReader()
        self.begun = False
        """Something of the reply came: a ping is none of it."""
        self.done = False
        """`message_stop` came."""
        self._answer = Answer()
        self._usage: dict[str, Any] | None = None
        self._blocks: dict[int, _Growing] = {}
        self._size = 0

    @property
    def ended(self) -> bool:
        return self.done or bool(self._answer.error)

    def feed(self, data: bytes) -> None:
        """Take bytes as they come. Raises BadResponse where they hold an event that is no JSON, or when it is too much."""
        for payload in self._events.feed(data):
            self._event(payload)
        if self._size > MAX_ANSWER:
            raise BadResponse(TOO_LARGE)

    def reply(self, started: float, seconds: float) -> ChatReply:
        """Raises as `reply_of` does, and BadResponse where the stream was torn: it ended without `message_stop`."""
        with contextlib.suppress(BadResponse):  # half an event is no event
            for payload in self._events.close():
                self._event(payload)
        answer = self._answer
        if not answer.error and not self.done:
            raise BadResponse("The stream was torn: it ended before the reply did.")
        answer.content = [self._blocks[index].whole() for index in sorted(self._blocks)]
        answer.usage = self._usage
        return reply_of(answer, started=started, seconds=seconds)

    def _event(self, payload: bytes) -> None:
        if self.ended or not payload.strip():
            return
        event = _read(payload)
        kind = event.type
        if event.error:
            self._answer.error = event.error
        elif kind == "message_stop":
            self.done = True
        elif kind == "message_start" and isinstance(event.message, dict):
            head = self._answer
            head.id, head.model, head.provider = (event.message.get(name) for name in ("id", "model", "provider"))
            self._take_usage(event.message.get("usage"), len(payload))
        elif kind == "message_delta":
            delta = event.delta if isinstance(event.delta, dict) else {}
            self._answer.stop_reason = delta.get("stop_reason") or self._answer.stop_reason
            self._answer.stop_details = delta.get("stop_details") or self._answer.stop_details
            self._take_usage(event.usage, len(payload))
        elif kind == "content_block_start" and isinstance(event.content_block, dict) and type(event.index) is int:
            self._blocks[event.index] = _Growing(event.content_block, {})
            self._size += PART_SIZE + len(payload)
        elif kind == "content_block_delta" and isinstance(event.delta, dict) and type(event.index) is int:
            self._grow(self._blocks.get(event.index), event.delta)
        self.begun = self.begun or kind not in ("ping", "error")

    def _take_usage(self, usage: Any, size: int) -> None:
        if isinstance(usage, dict):
            if self._usage is None:
                self._usage = {}
            self._usage.update((name, value) for name, value in usage.items() if value is not None)
            self._size += size

    def _grow(self, block: _Growing | None, delta: dict[str, Any]) -> None:
        name = _GROWING.get(str(delta.get("type")), "")
        piece = delta.get(name)
        if block is None or not isinstance(piece, str):
            return
        if name not in block.parts:
            block.parts[name] = io.StringIO()
            begun = block.begun.get(name)
            block.parts[name].write(begun if isinstance(begun, str) else "")
        block.parts[name].write(piece)
        self._size += len(piece)


def _read(payload: bytes) -> _Event:
    try:
        return _decode_event(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        try:
            return _decode_event(strict(payload))
        except (ValueError, RecursionError):
            raise BadResponse(f"The answer has an event that is none ({error}): {excerpt(payload)}") from None
