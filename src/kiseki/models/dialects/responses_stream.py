"""A streamed answer of the Responses API put back together: bytes to events, events to the same `WireResponse` that an unstreamed
one is. Pure.

The last event (`response.completed`, `.incomplete` or `.failed`) carries the whole answer, and is all that counts. Servers that
leave its output out have said it before: whole items in `response.output_item.done`, or their pieces in deltas.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

import msgspec

from kiseki.errors import BadResponse
from kiseki.models.base import ChatReply
from kiseki.models.dialects.base import MAX_ANSWER, TOO_LARGE
from kiseki.models.dialects.responses_reply import Asked, WireResponse, decode_loosely, reply_of
from kiseki.models.dialects.sse import PART_SIZE, EventReader

DONE = b"[DONE]"
"""Not of this API, but sent by some servers after the last event."""
_LAST = ("response.completed", "response.incomplete", "response.failed")
_DELTAS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.function_call_arguments.delta": "arguments",
    "response.reasoning_text.delta": "content",
    "response.reasoning_summary_text.delta": "summary",
}


class WireEvent(msgspec.Struct):
    """What is read of an event, whatever its type."""

    type: Any = None
    response: WireResponse | None = None
    item: Any = None
    output_index: Any = None
    item_id: Any = None
    delta: Any = None
    error: Any = None
    code: Any = None
    message: Any = None


class _Item(msgspec.Struct):
    """An output item so far. Pieces go into buffers: adding to a string would copy it for every piece."""

    item: dict[str, Any] = {}
    whole: bool = False
    pieces: dict[str, io.StringIO] = {}

    def result(self) -> dict[str, Any]:
        if self.whole:
            return self.item
        texts = {name: piece.getvalue() for name, piece in self.pieces.items()}
        if "arguments" in texts:
            return {"type": "function_call", **self.item, "arguments": texts["arguments"]}
        if "content" in texts or "summary" in texts:
            kinds = {"content": "reasoning_text", "summary": "summary_text"}
            thought = {name: [{"type": kind, "text": texts[name]}] for name, kind in kinds.items() if name in texts}
            return {"type": "reasoning", **self.item, **thought}
        said = [{"type": "output_text", "text": texts["text"]}] if "text" in texts else []
        said += [{"type": "refusal", "refusal": texts["refusal"]}] if "refusal" in texts else []
        return {"type": "message", **self.item, "content": said} if said else self.item


_decode_event = msgspec.json.Decoder(WireEvent).decode


class StreamedResponse:
    """Collects the events of one reply."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._events = EventReader()
        self.begun = False
        """Something of the reply came: not only word that it was accepted, since a model may think long before anything else."""
        self._done = False
        self._last: WireResponse | None = None
        self._size = 0
        self._items: dict[Any, _Item] = {}

    @property
    def ended(self) -> bool:
        """Nothing that follows counts."""
        return self._done or self._last is not None

    def feed(self, data: bytes) -> None:
        """Take bytes as they come. Raises BadResponse where they hold what is no event, or when it is too much."""
        for payload in self._events.feed(data):
            self._event(payload)
        if self._size > MAX_ANSWER:
            raise BadResponse(TOO_LARGE)

    def _event(self, payload: bytes) -> None:
        if self.ended or not payload.strip():
            return
        if payload.strip() == DONE:
            self._done = True
            return
        try:
            event = _decode_event(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            event = decode_loosely(payload, WireEvent, error)
        kind = event.type
        if kind == "error" or (event.error and event.response is None):
            said = event.error or {"code": event.code, "message": event.message}
            self._last = WireResponse(status="failed", error=said)
        elif kind in _LAST:
            self._last = event.response or WireResponse()
            self._last.status = kind.removeprefix("response.")
        elif kind in ("response.output_item.added", "response.output_item.done") and isinstance(event.item, dict):
            whole = kind.endswith("done")
            item = self._item(event)
            item.item, item.whole = event.item, whole
            self.begun = self.begun or whole or event.item.get("type") != "reasoning"
            self._size += len(payload)
        elif kind in _DELTAS and isinstance(event.delta, str):
            self.begun = True
            self._item(event).pieces.setdefault(_DELTAS[kind], io.StringIO()).write(event.delta)
            self._size += len(event.delta)

    def _item(self, event: WireEvent) -> _Item:
        key = event.output_index
        if not isinstance(key, int):
            key = str(event.item_id or (event.item.get("id") if isinstance(event.item, dict) else ""))
        item = self._items.get(key)
        if item is None:
            item = self._items[key] = _Item()
            self._size += PART_SIZE
        return item

    def reply(self, started: float, seconds: float) -> ChatReply:
        """The whole, after the last byte. Raises as `reply_of` and `result` do."""
        return reply_of(self.result(), self._asked, started, seconds)

    def result(self) -> WireResponse:
        """The whole answer after the last byte. Raises BadResponse where the stream was torn: its last event did not come."""
        with contextlib.suppress(BadResponse):  # half an event is no event
            for payload in self._events.close():
                self._event(payload)
        if self._last is None:
            raise BadResponse("The stream was torn: it ended before the reply did.")
        answer = self._last
        if not answer.output:
            answer.output = [item.result() for item in self._items.values()]
        return answer
