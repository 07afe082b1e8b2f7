"""A streamed answer put back together: bytes to events, events to the same `WireCompletion` that an unstreamed one is. Pure.

Events follow the SSE format (html.spec.whatwg.org, "Server-sent events") in any split of the bytes; comments (keep-alives)
are skipped. Tool call deltas are assembled by index, and servers that leave the index out, repeat it for every call, or send
whole calls are understood.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from kiseki.errors import BadResponse
from kiseki.models.reasoning import text_of
from kiseki.models.wire import (
    WireChoice,
    WireCompletion,
    WireFunction,
    WireMessage,
    WireToolCall,
    arguments_text,
    decode_completion,
)

DONE = b"[DONE]"
# Fields of a reasoning detail that come in pieces; of everything else the last value counts.
_GROWING = ("text", "summary")


class EventReader:
    """Server-sent events from bytes in any split. Only `data` matters in this API."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads of the events that `chunk` completes."""
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        return [payload for line in lines if (payload := self._line(line)) is not None]

    def close(self) -> list[bytes]:
        """The payload that the end of the stream completes: some servers leave the last blank line out."""
        last = [self._line(self._rest), self._line(b"")]
        self._rest = b""
        return [payload for payload in last if payload is not None]

    def _line(self, line: bytes) -> bytes | None:
        line = line.rstrip(b"\r")
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif not line and self._data:
            payload = b"\n".join(self._data)
            self._data.clear()
            return payload
        return None


class StreamedReply:
    """Collects the chunks of one reply; `error` is the first error chunk, after which nothing more is taken."""

    def __init__(self) -> None:
        self._events = EventReader()
        self.begun = False
        """Something of the reply came."""
        self.done = False
        """`[DONE]` came."""
        self.error: WireCompletion | None = None
        self._head = WireCompletion()
        self._texts: dict[str, list[str]] = {
            "content": [],
            "refusal": [],
            "reasoning": [],
            "reasoning_content": [],
            "thinking": [],
        }
        self._details: list[dict[str, Any]] = []
        self._calls: list[WireToolCall] = []
        self._by_index: dict[int, WireToolCall] = {}
        self._legacy: WireToolCall | None = None
        self._finish: Any = None
        self._message: WireMessage | None = None

    @property
    def ended(self) -> bool:
        """Nothing that follows counts."""
        return self.done or self.error is not None

    def feed(self, data: bytes) -> None:
        """Take bytes as they come. Raises BadResponse where they hold an event that is no chunk."""
        for payload in self._events.feed(data):
            self._event(payload)

    def _event(self, payload: bytes) -> None:
        if self.ended or not payload.strip():
            return
        self.begun = True
        if payload.strip() == DONE:
            self.done = True
            return
        chunk = decode_completion(payload)
        head = self._head
        head.id = head.id or chunk.id
        head.model = head.model or chunk.model
        head.provider = head.provider or chunk.provider
        head.usage = chunk.usage or head.usage
        if chunk.error:
            self.error = chunk
            return
        if not chunk.choices:
            return
        choice = chunk.choices[0]
        if choice.error or choice.finish_reason == "error":
            self.error = chunk
            return
        if choice.finish_reason:
            self._finish = choice.finish_reason
        if choice.message is not None:  # a whole message inside a stream: what a server sends that only pretends to stream
            self._message = choice.message
        if choice.delta is not None:
            self._take(choice.delta)

    def result(self) -> WireCompletion:
        """The whole answer after the last byte, or the error chunk.

        Raises BadResponse where the stream was torn: it ended with neither a finish_reason nor [DONE].
        """
        with contextlib.suppress(BadResponse):  # half an event is no event
            for payload in self._events.close():
                self._event(payload)
        if self.error is not None:
            return self.error
        if not self.done and self._finish is None:
            raise BadResponse("The stream was torn: it ended before the reply did.")
        message = self._message or WireMessage()
        for name, pieces in self._texts.items():
            if pieces:
                setattr(message, name, "".join(pieces))
        if self._details:
            message.reasoning_details = self._details
        if self._calls:
            message.tool_calls = self._calls
        if self._legacy is not None:
            message.function_call = self._legacy.function
        self._head.choices = [WireChoice(message=message, finish_reason=self._finish)]
        return self._head

    def _take(self, delta: WireMessage) -> None:
        if isinstance(delta.content, list):
            for part in delta.content:
                thinks = isinstance(part, dict) and part.get("type") in ("thinking", "reasoning")
                self._texts["thinking" if thinks else "content"].append(text_of(part))
        elif delta.content:
            self._texts["content"].append(text_of(delta.content))
        for name in ("refusal", "reasoning", "reasoning_content", "thinking"):
            if value := getattr(delta, name):
                self._texts[name].append(text_of(value))
        if isinstance(delta.reasoning_details, list):
            for item in delta.reasoning_details:
                if isinstance(item, dict):
                    self._take_detail(item)
        for call in delta.tool_calls or ():
            self._take_call(call)
        if delta.function_call is not None:
            if self._legacy is None:
                self._legacy = WireToolCall(function=WireFunction())
            _grow(self._legacy, WireToolCall(function=delta.function_call))

    def _take_detail(self, item: dict[str, Any]) -> None:
        """Reasoning details must go back whole and in order, so pieces of one are joined (same type, index and id)."""
        last = self._details[-1] if self._details else None
        if (
            last is None
            or not any(name in item for name in (*_GROWING, "signature"))
            or last.get("type") != item.get("type")
            or last.get("index") != item.get("index")
            or (last.get("id") and item.get("id") and last["id"] != item["id"])
        ):
            self._details.append(dict(item))
            return
        for name, value in item.items():
            if name in _GROWING and isinstance(value, str) and isinstance(last.get(name), str):
                last[name] += value
            elif value is not None:
                last[name] = value

    def _take_call(self, delta: WireToolCall) -> None:
        index = delta.index if isinstance(delta.index, int) else None
        current = self._by_index.get(index) if index is not None else (self._calls[-1] if self._calls else None)
        if current is None or _begins_another(current, delta):
            current = WireToolCall(function=WireFunction(), index=index)
            self._calls.append(current)
            if index is not None:
                self._by_index[index] = current
        _grow(current, delta)


def _begins_another(current: WireToolCall, delta: WireToolCall) -> bool:
    """Whether a delta that points at `current` is another call all the same: it is named, and `current` is someone else or
    already whole."""
    known, function = current.function, delta.function
    if known is None or function is None or not function.name or not known.name:
        return False
    if delta.id and current.id:
        return bool(delta.id != current.id)
    return _is_object(known.arguments)


def _is_object(arguments: Any) -> bool:
    try:
        return isinstance(msgspec.json.decode(arguments or ""), dict)
    except msgspec.DecodeError:
        return False


def _grow(call: WireToolCall, delta: WireToolCall) -> None:
    call.id = call.id or delta.id
    call.extra_content = call.extra_content or delta.extra_content
    if delta.function is None or call.function is None:
        return
    function, name = call.function, delta.function.name
    if name and name != function.name:  # a name comes whole, or in pieces, or again with every delta
        function.name = f"{function.name or ''}{name}"
    if delta.function.arguments is not None:
        function.arguments = (function.arguments or "") + arguments_text(delta.function.arguments)
