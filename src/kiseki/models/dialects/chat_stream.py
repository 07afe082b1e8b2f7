"""A streamed answer put back together: bytes to events, events to the same `WireCompletion` that an unstreamed one is. Pure.

Tool call deltas are assembled by index, and servers that leave the index out, repeat it for every call, or send
whole calls are understood.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

import msgspec

from kiseki.errors import BadResponse
from kiseki.models.base import ChatReply
from kiseki.models.dialects.base import MAX_ANSWER, TOO_LARGE, arguments_text
from kiseki.models.dialects.chat_reply import (
    WireChoice,
    WireCompletion,
    WireFunction,
    WireMessage,
    WireToolCall,
    decode_completion,
    reply_of,
)
from kiseki.models.dialects.sse import PART_SIZE, EventReader
from kiseki.trajectory.reasoning import text_of
from kiseki.trajectory.sharegpt import is_json_object

DONE = b"[DONE]"
# Fields of a reasoning detail that come in pieces; of everything else the last value counts.
_GROWING = ("text", "summary")
MOST_NAME = 256
"""Characters of a tool's name that comes in pieces: no API takes longer ones, and each piece copies it."""
SHORT = 10_000
"""Characters of arguments that may be read again for each piece of them."""
_TOKEN_SIZE = 16
_LOGPROB_SIZE = 200
"""About what one takes."""


class _Call(msgspec.Struct):
    """A tool call so far. Whatever comes in pieces goes into a buffer: adding to a string would copy it for every piece."""

    index: int | None = None
    id: Any = None
    name: str = ""
    arguments: io.StringIO | None = None
    end: str = ""
    """The last piece of them."""
    read: int = 0
    """How long they were when they were last looked at, and were not whole."""
    extra_content: Any = None

    def whole(self) -> WireToolCall:
        function = WireFunction(self.name or None, None if self.arguments is None else self.arguments.getvalue())
        return WireToolCall(self.id, function, self.index, self.extra_content)


class StreamedChat:
    """Collects the chunks of one reply; `error` is the first error chunk, after which nothing more is taken."""

    def __init__(self, *, capture_tokens: bool = False) -> None:
        self._capture_tokens = capture_tokens
        self._events = EventReader()
        self.begun = False
        """Something of the reply came."""
        self.done = False
        """`[DONE]` came."""
        self.error: WireCompletion | None = None
        self._head = WireCompletion()
        self._size = 0
        self._texts: dict[str, io.StringIO] = {}
        self._details: list[dict[str, Any]] = []
        self._last_detail: dict[str, io.StringIO] = {}
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._legacy: _Call | None = None
        self._finish: Any = None
        self._message: WireMessage | None = None
        self._token_ids: list[Any] = []
        self._logprobs: list[Any] = []

    @property
    def ended(self) -> bool:
        """Nothing that follows counts."""
        return self.done or self.error is not None

    def feed(self, data: bytes) -> None:
        """Take bytes as they come. Raises BadResponse where they hold an event that is no chunk, or when it is too much."""
        for payload in self._events.feed(data):
            self._event(payload)
        if self._size > MAX_ANSWER:
            raise BadResponse(TOO_LARGE)

    def _event(self, payload: bytes) -> None:
        if self.ended or not payload.strip():
            return
        if payload.strip() == DONE:
            self.done = True
            return
        chunk = decode_completion(payload)
        head = self._head
        head.id = head.id or chunk.id
        head.model = head.model or chunk.model
        head.provider = head.provider or chunk.provider
        head.usage = chunk.usage or head.usage
        if chunk.prompt_token_ids is not None:
            head.prompt_token_ids = chunk.prompt_token_ids
        if chunk.error:
            self.error = chunk
            return
        self.begun = True
        if not chunk.choices:
            return
        choice = chunk.choices[0]
        if choice.error or choice.finish_reason == "error":
            self.error = chunk
            return
        if choice.finish_reason:
            self._finish = choice.finish_reason
        if self._capture_tokens and (choice.token_ids or choice.logprobs):
            self._take_tokens(choice)
        if choice.message is not None:  # a whole message inside a stream: what a server sends that only pretends to stream
            self._message = choice.message
        if choice.delta is not None:
            self._take(choice.delta)

    def reply(self, started: float, seconds: float) -> ChatReply:
        """The whole, after the last byte. Raises as `reply_of` and `result` do."""
        return reply_of(self.result(), started=started, seconds=seconds, capture_tokens=self._capture_tokens)

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
        for name, text in self._texts.items():
            setattr(message, name, text.getvalue())
        if self._details:
            self._end_detail()
            message.reasoning_details = self._details
        if self._calls:
            message.tool_calls = [call.whole() for call in self._calls]
        if self._legacy is not None:
            message.function_call = self._legacy.whole().function
        choice = WireChoice(message=message, finish_reason=self._finish)
        if self._token_ids:
            choice.token_ids = self._token_ids
        if self._logprobs:
            choice.logprobs = {"content": self._logprobs}
        self._head.choices = [choice]
        return self._head

    def _take_tokens(self, choice: WireChoice) -> None:
        """Those of one chunk. What is no list of them makes the whole no list of ids, so that a part is not taken for all."""
        given = [] if choice.token_ids is None else choice.token_ids if isinstance(choice.token_ids, list) else [None]
        ids = [each if type(each) is int else None for each in given]
        content = choice.logprobs.get("content") if isinstance(choice.logprobs, dict) else None
        logprobs = [_numbers(each) for each in content] if isinstance(content, list) else []
        self._token_ids += ids
        self._logprobs += logprobs
        self._size += _TOKEN_SIZE * len(ids) + _LOGPROB_SIZE * len(logprobs)

    def _take(self, delta: WireMessage) -> None:
        if isinstance(delta.content, list):
            for part in delta.content:
                thinks = isinstance(part, dict) and part.get("type") in ("thinking", "reasoning")
                self._add("thinking" if thinks else "content", text_of(part))
        elif delta.content:
            self._add("content", text_of(delta.content))
        for name in ("refusal", "reasoning", "reasoning_content", "thinking"):
            if value := getattr(delta, name):
                self._add(name, text_of(value))
        if isinstance(delta.reasoning_details, list):
            for item in delta.reasoning_details:
                if isinstance(item, dict):
                    self._take_detail(item)
        for call in delta.tool_calls or ():
            self._take_call(call)
        if delta.function_call is not None:
            if self._legacy is None:
                self._legacy = _Call()
            self._grow(self._legacy, WireToolCall(function=delta.function_call))

    def _add(self, name: str, text: str) -> None:
        self._write(self._texts.setdefault(name, io.StringIO()), text)

    def _write(self, buffer: io.StringIO, text: str) -> None:
        buffer.write(text)
        self._size += len(text)

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
            self._end_detail()
            self._details.append(dict(item))
            self._size += PART_SIZE + len(str(item))
            return
        for name, value in item.items():
            if name in _GROWING and isinstance(value, str) and isinstance(last.get(name), str):
                if name not in self._last_detail:
                    self._last_detail[name] = io.StringIO()
                    self._last_detail[name].write(last[name])
                self._write(self._last_detail[name], value)
            elif value is not None and value != last.get(name):
                last[name] = value
                self._size += len(str(value)) + len(name)

    def _end_detail(self) -> None:
        """The last detail gets its texts: nothing more comes for it."""
        for name, text in self._last_detail.items():
            self._details[-1][name] = text.getvalue()
        self._last_detail.clear()

    def _take_call(self, delta: WireToolCall) -> None:
        index = delta.index if isinstance(delta.index, int) else None
        current = self._by_index.get(index) if index is not None else (self._calls[-1] if self._calls else None)
        if current is None or _begins_another(current, delta):
            current = _Call(index)
            self._size += PART_SIZE
            self._calls.append(current)
            if index is not None:
                self._by_index[index] = current
        self._grow(current, delta)

    def _grow(self, call: _Call, delta: WireToolCall) -> None:
        if delta.id and not call.id:
            call.id = delta.id
            self._size += len(str(delta.id))
        if delta.extra_content and not call.extra_content:
            call.extra_content = delta.extra_content
            self._size += len(str(delta.extra_content))
        function = delta.function
        if function is None:
            return
        if function.name and function.name != call.name:  # a name comes whole, or in pieces, or again with every delta
            if len(call.name) > MOST_NAME:
                raise BadResponse(f"The answer has a tool call whose name goes on after {MOST_NAME} characters.")
            call.name = f"{call.name}{function.name}"
            self._size += len(call.name)
        if function.arguments is not None:
            if call.arguments is None:
                call.arguments = io.StringIO()
            text = arguments_text(function.arguments)
            self._write(call.arguments, text)
            call.end = text.strip() or call.end


def _begins_another(current: _Call, delta: WireToolCall) -> bool:
    """Whether a delta that points at `current` is another call all the same: it is named, and `current` is someone else or
    already whole."""
    if delta.function is None or not delta.function.name or not current.name:
        return False
    if delta.id and current.id:
        return bool(delta.id != current.id)
    # the end first: some servers name the call in each of its pieces
    if current.arguments is None or not current.end.endswith("}"):
        return False
    size = current.arguments.tell()
    if size > SHORT and size < 2 * current.read:  # long ones as often as they have doubled, not for every piece
        return False
    current.read = size
    return is_json_object(current.arguments.getvalue())


def _numbers(entry: Any) -> dict[str, Any]:
    """What is read of a token's logprobs; the rest is larger by far. An id that is none stays one that fits nothing."""
    if not isinstance(entry, dict):
        return {"id": None}
    found: dict[str, Any] = {}
    if "id" in entry:
        found["id"] = entry["id"] if type(entry["id"]) is int else None
    if isinstance(entry.get("logprob"), int | float):
        found["logprob"] = entry["logprob"]
    return found
