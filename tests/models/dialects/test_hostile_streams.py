"""Streams that never end, or are made to be slow: each is left while what is kept of it, and the work for it, is bounded."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kiseki.errors import BadResponse
from kiseki.models.dialects import anthropic_stream, chat_stream, responses_stream, sse
from kiseki.models.dialects.base import StreamedReply
from kiseki.models.dialects.chat_stream import StreamedChat
from kiseki.models.dialects.opening import open_dialect
from kiseki.models.endpoints import ModelSettings
from kiseki.trajectory.sharegpt import is_json_object

Events = Callable[[int], Any]
MOST = 200_000


def stream_of(mode: str) -> StreamedReply:
    return open_dialect(ModelSettings("m", "http://127.0.0.1:1/v1", api_mode=mode)).stream()


def event(said: Any) -> bytes:
    return b"data: %b\n\n" % msgspec.json.encode(said)


def delta(**fields: Any) -> Any:
    return {"choices": [{"delta": fields}]}


def call(**fields: Any) -> Any:
    return delta(tool_calls=[fields])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bounds, three hundred times smaller."""
    for module in (anthropic_stream, chat_stream, responses_stream, sse):
        monkeypatch.setattr(module, "MAX_ANSWER", MOST)
    monkeypatch.setattr(sse, "MOST_FED", 4 * MOST)


def feed(reply: StreamedReply, chunks: Callable[[int], bytes], most: int) -> None:
    """Up to `most` bytes."""
    fed = 0
    for number in itertools.count():
        chunk = chunks(number)
        fed += len(chunk)
        if fed > most:
            return
        reply.feed(chunk)


KEPT: dict[str, tuple[str, Events]] = {
    "calls": ("chat", lambda n: call(index=n, id=f"a{n}", function={"name": "f"})),
    "calls without an index": ("chat", lambda n: call(id=f"a{n}", function={"name": "f"})),
    "what a call has beside": ("chat", lambda n: call(index=n, id=[n] * 200, extra_content=[n] * 200)),
    "details": ("chat", lambda n: delta(reasoning_details=[{"type": "a", "data": [n] * 200}])),
    "fields of a detail": ("chat", lambda n: delta(reasoning_details=[{"type": "a", "text": "", f"f{n}": [n] * 200}])),
    "items": ("responses", lambda n: {"type": "response.output_text.delta", "output_index": n, "delta": ""}),
    "items by id": ("responses", lambda n: {"type": "response.output_text.delta", "item_id": f"a{n}", "delta": ""}),
    "usage": ("anthropic", lambda n: {"type": "message_delta", "usage": {f"f{n}": [n] * 200}}),
    "first usage": ("anthropic", lambda n: {"type": "message_start", "message": {"usage": {f"f{n}": [n] * 200}}}),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("case", KEPT)
def test_what_is_kept_is_counted(case: str) -> None:
    """Whatever it is that a server goes on adding: before the bound of all bytes, which is four times as high."""
    mode, events = KEPT[case]
    with pytest.raises(BadResponse, match="more than"):
        feed(stream_of(mode), lambda n: event(events(n)), 3 * MOST)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "field",
    [
        {"logprobs": {"content": [{"token": "a", "logprob": -0.5, "id": 5}] * 10}},
        {"token_ids": list(range(300, 400))},
        {"token_ids": [[7] * 40] * 10, "logprobs": {"content": [[7] * 40] * 10}},
    ],
)
def test_captured_tokens_are_counted(field: Any) -> None:
    with pytest.raises(BadResponse, match="more than"):
        feed(StreamedChat(capture_tokens=True), lambda n: event({"choices": [{"delta": {}, **field}]}), 3 * MOST)


NOTHING: dict[str, tuple[str, bytes]] = {
    "comments": ("chat", b": keep-alive\n\n"),
    "chunks without a choice": ("chat", event({"choices": [], "usage": {"prompt_tokens": 1}})),
    "empty deltas": ("chat", event(delta(content=""))),
    "empty pieces of a call": ("chat", event(call(index=0, function={"arguments": ""}))),
    "progress": ("responses", event({"type": "response.in_progress", "response": {"status": "in_progress"}})),
    "empty pieces": ("responses", event({"type": "response.output_text.delta", "output_index": 0, "delta": ""})),
    "pings": ("anthropic", event({"type": "ping"})),
    "pieces of no block": ("anthropic", event({"type": "content_block_delta", "index": 9, "delta": {"type": "text_delta"}})),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("case", NOTHING)
def test_a_stream_that_says_nothing_without_end_is_left(case: str) -> None:
    mode, piece = NOTHING[case]
    with pytest.raises(BadResponse, match="more than"):
        feed(stream_of(mode), lambda _: piece * 20, 5 * MOST)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("mode", ["chat", "responses", "anthropic"])
@pytest.mark.parametrize("start", [b"data: ", b""])
@pytest.mark.parametrize("end", [b"\n", b""])
def test_an_event_without_end_is_left(mode: str, start: bytes, end: bytes) -> None:
    with pytest.raises(BadResponse, match="more than"):
        feed(stream_of(mode), lambda _: start + b"x" * 100 + end, 2 * MOST)


@pytest.mark.usefixtures("small")
def test_lines_of_an_event_cost_more_than_their_bytes() -> None:
    with pytest.raises(BadResponse, match="more than"):
        feed(stream_of("chat"), lambda _: b"data:\n" * 100, MOST)


def test_tokens_that_nobody_asked_for_are_not_kept() -> None:
    reply = StreamedChat()
    tokens = {"logprobs": {"content": [{"token": "a", "logprob": -0.5, "id": 5}]}, "token_ids": [5]}
    reply.feed(event({"choices": [{"delta": {"content": "a"}, "finish_reason": "stop", **tokens}]}))
    choice = (reply.result().choices or [])[0]
    assert (choice.logprobs, choice.token_ids) == (None, None)


@pytest.mark.parametrize("field", ["tool_calls", "function_call"])
def test_a_name_that_grows_without_end(field: str) -> None:
    def piece(number: int) -> bytes:
        function = {"name": "n" * (10 + number % 2)}
        return event(delta(**{field: [{"index": 0, "function": function}] if field == "tool_calls" else function}))

    with pytest.raises(BadResponse, match="name"):
        feed(StreamedChat(), piece, 100_000)


def test_arguments_whose_pieces_all_look_like_the_last_are_not_read_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Characters read are counted: for each piece all that came before would be thousands of times what came."""
    read: list[int] = []

    def counting(text: str) -> bool:
        read.append(len(text))
        return is_json_object(text)

    monkeypatch.setattr(chat_stream, "is_json_object", counting)
    reply = StreamedChat()
    pieces = ['{"a":"', *["x" * 20 + "}"] * 5_000, '"}']
    chunks = [event(call(index=0, function={"name": "f", "arguments": piece})) for piece in pieces]
    for chunk in chunks:
        reply.feed(chunk)
    assert sum(read) < 20 * sum(map(len, chunks))
    reply.feed(event({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}))
    assert [each.arguments for each in reply.reply(0.0, 0.0).message.tool_calls] == ["".join(pieces)]


def test_long_calls_that_are_whole_stay_apart() -> None:
    reply = StreamedChat()
    texts = ['{"a":"%s"}' % ("x" * length) for length in (30_000, 5, 31_000, 32_000)]
    for text in texts:
        reply.feed(event(call(index=0, function={"name": "f", "arguments": text})))
    reply.feed(event({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}))
    assert [each.arguments for each in reply.reply(0.0, 0.0).message.tool_calls] == texts
