"""Answers of the Messages API, whole and streamed: recorded shapes, torn and hostile ones."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiseki.errors import (
    AuthError,
    BadRequest,
    BadResponse,
    ContextLengthExceeded,
    ProviderError,
    ProviderOverloaded,
    RateLimited,
)
from kiseki.models.base import ChatReply
from kiseki.models.dialects.anthropic_reply import THINKING, decode_answer, reply_of
from kiseki.models.dialects.anthropic_stream import StreamedMessage
from kiseki.models.failures import error_of_status
from kiseki.models.mock_answer import completion
from kiseki.models.mock_anthropic import answer, events
from kiseki.models.mock_script import Asked, AskedMessage, MockConfig, ScriptedCall, Situation, Turn
from kiseki.trajectory.types import Usage

RECORDED: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent.parent / "recorded" / "anthropic.json").read_text())
TURN = Turn(
    "It is 20 °C — 晴れ 🌤, and a long enough text that it comes in several pieces.\r\n\n",
    reasoning="Let me see what the weather is, piece by piece, in more than one delta.",
    tool_calls=(ScriptedCall("terminal", {"command": "curl wttr.in/東京?format=3 --silent"}), ScriptedCall("read_file", '{"pa')),
)
MADE = answer(
    completion(MockConfig(), Asked([AskedMessage("user", "x")], "m"), Situation("x", 0, ""), TURN, "", 100), {"messages": []}, {}
)
WHOLE = events(MADE)


def read(body: bytes) -> ChatReply:
    return reply_of(decode_answer(body), started=1.0, seconds=2.0)


def reply_to(*content: dict[str, Any], stop_reason: Any = "end_turn", **top: Any) -> ChatReply:
    return read(msgspec.json.encode({"content": content, "stop_reason": stop_reason, **top}))


EXPECTED = read(msgspec.json.encode(MADE))


def streamed(*chunks: bytes) -> ChatReply:
    reply = StreamedMessage()
    for chunk in chunks:
        reply.feed(chunk)
    return reply.reply(1.0, 2.0)


def stream_of(*data: Any) -> bytes:
    return b"".join(b"data: %b\n\n" % msgspec.json.encode(each) for each in data)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_answers(name: str) -> None:
    recorded = RECORDED[name]
    reply = read(json.dumps(recorded["answer"]).encode())
    message, call = reply.message, reply.call
    assert (message.content, message.reasoning) == (recorded["content"], recorded["reasoning"])
    assert [[each.id, each.name, each.arguments] for each in message.tool_calls] == recorded["tool_calls"]
    assert call.finish_reason == recorded["finish_reason"]
    prompt, given, thought, read_back, written = recorded["usage"]
    assert call.usage == Usage(prompt, given, thought, read_back, cache_write_tokens=written)
    assert call.usage_reported and not call.cost_reported
    assert message.provider_fields.get(THINKING) == recorded["thinking"]
    assert (call.model, call.response_id) == (recorded["answer"]["model"], recorded["answer"]["id"])


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_answers_as_streams(name: str) -> None:
    message = dict(RECORDED[name]["answer"])
    message["content"] = [
        {**block, "input": msgspec.Raw(json.dumps(block["input"]).encode())} if "input" in block else block
        for block in message["content"]
    ]
    assert streamed(events(message)) == read(msgspec.json.encode(message))


@given(st.lists(st.integers(0, len(WHOLE)), max_size=30), st.sampled_from([b"\n", b"\r\n"]))
def test_any_split_of_the_bytes_gives_the_unstreamed_reply(cuts: list[int], newline: bytes) -> None:
    whole = WHOLE.replace(b"\n", newline)
    edges = [0, *sorted(cut for cut in cuts if cut <= len(whole)), len(whole)]
    assert streamed(*(whole[start:end] for start, end in itertools.pairwise(edges))) == EXPECTED


@given(st.integers(0, len(WHOLE) - len(b'"message_stop"}\n\n') - 1))
def test_a_cut_stream_is_torn(cut: int) -> None:
    with pytest.raises(BadResponse, match="torn"):
        streamed(WHOLE[:cut])


def test_a_redacted_block_comes_whole_and_unknown_things_are_skipped() -> None:
    block = {"type": "redacted_thinking", "data": "EmwK"}
    reply = streamed(
        stream_of(
            {"type": "message_start", "message": {"id": "i", "model": "n", "usage": {"input_tokens": 3, "output_tokens": 1}}},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_stop", "index": 0},
            {"type": "something_new", "index": 7},
            {"type": "content_block_delta", "index": 9, "delta": {"type": "text_delta", "text": "of no block"}},
            {"type": "content_block_delta", "index": [], "delta": {"type": "text_delta", "text": "of none"}},
            {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "a"}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "new_delta", "text": "x"}},
            {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "b"}},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 8, "input_tokens": None}},
            {"type": "message_stop"},
            {"type": "message_delta", "delta": {"stop_reason": "refusal"}},
        )
    )
    assert reply.message.content == "ab"
    assert reply.message.provider_fields == {THINKING: [block]}
    assert (reply.call.usage, reply.call.finish_reason) == (Usage(3, 8), "stop")
    assert (reply.call.model, reply.call.response_id) == ("n", "i")


def test_a_ping_is_no_beginning() -> None:
    reply = StreamedMessage()
    reply.feed(stream_of({"type": "ping"}))
    assert not reply.begun
    reply.feed(stream_of({"type": "message_start", "message": {}}))
    assert reply.begun


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"type": "overloaded_error", "message": "Overloaded"}, ProviderOverloaded),
        ({"type": "api_error", "message": "Internal server error"}, ProviderOverloaded),
        ({"type": "rate_limit_error", "message": "slow"}, RateLimited),
        ({"type": "timeout_error", "message": "too slow"}, ProviderOverloaded),
        ({"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8 maximum"}, ContextLengthExceeded),
    ],
)
def test_an_error_ends_a_stream_and_an_answer(error: dict[str, Any], kind: type[ProviderError]) -> None:
    half = WHOLE[: WHOLE.index(b"event: content_block_stop")]
    reply = StreamedMessage()
    reply.feed(half + stream_of({"type": "error", "error": error}))
    assert reply.ended
    with pytest.raises(ProviderError) as caught:
        reply.reply(0.0, 0.0)
    assert type(caught.value) is kind
    with pytest.raises(kind):
        read(msgspec.json.encode({"type": "error", "error": error}))


@pytest.mark.parametrize(
    ("status", "error", "kind"),
    [
        (
            400,
            {"type": "invalid_request_error", "message": "prompt is too long: 205000 tokens > 200000 maximum"},
            ContextLengthExceeded,
        ),
        (
            400,
            {"message": "input length and `max_tokens` exceed context limit: 190000 + 32000 > 200000, decrease"},
            ContextLengthExceeded,
        ),
        (400, {"type": "invalid_request_error", "message": "Your credit balance is too low to access the API."}, AuthError),
        (400, {"type": "invalid_request_error", "message": "max_tokens: Field required"}, BadRequest),
        (401, {"type": "authentication_error", "message": "invalid x-api-key"}, AuthError),
        (402, {"type": "billing_error", "message": "x"}, AuthError),
        (404, {"type": "not_found_error", "message": "model: claude-none"}, BadRequest),
        (413, {"type": "request_too_large", "message": "Request exceeds the maximum size"}, ContextLengthExceeded),
        (429, {"type": "rate_limit_error", "message": "slow"}, RateLimited),
        (
            429,
            {"type": "rate_limit_error", "message": "spent", "details": {"error_code": "enforced_spend_limit_reached"}},
            AuthError,
        ),
        (504, {"type": "timeout_error", "message": "x"}, ProviderOverloaded),
        (529, {"type": "overloaded_error", "message": "Overloaded"}, ProviderOverloaded),
    ],
)
def test_class_by_status(status: int, error: dict[str, Any], kind: type[ProviderError]) -> None:
    body = {"type": "error", "error": error, "request_id": "req_1"}
    assert type(error_of_status(status, {}, msgspec.json.encode(body), 0.0)) is kind


@pytest.mark.parametrize("reason", ["end_turn", "stop_sequence", None])
@pytest.mark.parametrize(
    "content", [[], [{"type": "text", "text": " \n"}], [{"type": "thinking", "thinking": "", "signature": "s"}]]
)
def test_an_empty_reply_is_none(content: list[dict[str, Any]], reason: str | None) -> None:
    with pytest.raises(BadResponse, match="empty"):
        reply_to(*content, stop_reason=reason)


@pytest.mark.parametrize(
    ("reason", "finish"), [("max_tokens", "length"), ("refusal", "content_filter"), ("pause_turn", "length")]
)
def test_an_empty_reply_that_says_why(reason: str, finish: str) -> None:
    assert reply_to(stop_reason=reason).call.finish_reason == finish


def test_texts_in_pieces_and_tags_in_them() -> None:
    text = [{"type": "text", "text": each} for each in ("<think>hm</think>Cited ", "and not.")]
    tool = {"type": "tool_use", "id": "a", "name": "f", "input": {"n": 1.0, "big": 12345678901234567890123}}
    reply = reply_to(*text, {"type": "new_block"}, {"type": "text", "text": "After."}, tool, stop_reason="tool_use")
    assert (reply.message.content, reply.message.reasoning) == ("Cited and not.\n\nAfter.", "hm")
    assert reply.message.tool_calls[0].arguments == '{"n":1.0,"big":12345678901234567890123}'
    assert reply.message.provider_fields == {}


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"[]",
        b"{}",
        b'{"content": 3}',
        b'{"content": [3]}',
        b'{"content": [{"type": "text"}], "usage": 3}',
        b'{"content": ' + b"[" * 100_000,
        b'{"content": [{"type": "tool_use", "input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
        b'{"content": [{"type": "thinking", "thinking": ' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
    ],
)
def test_what_is_no_answer(body: bytes) -> None:
    with pytest.raises(BadResponse):
        read(body)
    with pytest.raises(BadResponse):
        streamed(b"data: " + body + b"\n\n")


@pytest.mark.parametrize(
    "value", ["null", "3", '"x"', "[]", "{}", '{"type": 3}', '{"type": [], "text": {}, "id": {}, "name": []}']
)
@pytest.mark.parametrize("kind", ["text", "thinking", "redacted_thinking", "tool_use"])
def test_fields_of_any_type(kind: str, value: str) -> None:
    block = f'{{"type": "{kind}", "text": {value}, "thinking": {value}, "id": {value}, "name": {value}, "input": {value}}}'
    text = '{"type": "text", "text": "a"}'
    usage = f'{{"input_tokens": {value}, "output_tokens_details": {value}, "cost": {value}}}'
    body = f'{{"content": [{block}, {text}], "usage": {usage}, "id": {value}, "stop_details": {value}}}'
    assert read(body.encode()).message.content.endswith("a")


def test_surrogates_and_nan_are_read() -> None:
    reply = read(rb'{"content": [{"type": "text", "text": "a\ud800b"}], "usage": {"cost": NaN, "input_tokens": 4}}')
    assert reply.message.content == "a�b"
    assert reply.call.usage.prompt_tokens == 4


def test_blocks_without_end_are_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kiseki.models.dialects.anthropic_stream.MAX_ANSWER", 10_000)
    reply = StreamedMessage()
    with pytest.raises(BadResponse, match="more than"):
        for index in range(1000):
            reply.feed(stream_of({"type": "content_block_start", "index": index, "content_block": {}}))
