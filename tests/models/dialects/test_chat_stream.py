"""A streamed answer is the same in any split of its bytes, and however a server cuts up its tool calls."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiseki.errors import BadResponse, RateLimited
from kiseki.models.dialects.chat_reply import decode_completion, reply_of
from kiseki.models.dialects.chat_stream import StreamedChat
from kiseki.models.mock_answer import completion, events
from kiseki.models.mock_script import Asked, AskedMessage, MockConfig, ScriptedCall, Situation, Turn
from kiseki.trajectory.types import Message

TURN = Turn(
    "It is 20 °C — 晴れ 🌤, and a long enough text that it comes in several pieces.\r\n\n",
    reasoning="Let me see what the weather is, piece by piece, in more than one delta.",
    reasoning_field="reasoning_details",
    tool_calls=(ScriptedCall("terminal", {"command": "curl wttr.in/東京?format=3 --silent"}), ScriptedCall("read_file", '{"pa')),
)


def answer_of(turn: Turn, field: str = "reasoning") -> dict[str, Any]:
    asked = Asked([AskedMessage("user", "x")], "m")
    return completion(MockConfig(reasoning_field=field), asked, Situation("x", 0, ""), turn, "", 100)


def assemble(chunks: list[bytes]) -> StreamedChat:
    reply = StreamedChat()
    for chunk in chunks:
        reply.feed(chunk)
    return reply


def message_of(*deltas: dict[str, Any], finish: str | None = "stop") -> Message:
    """The message that these deltas make."""
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"delta": {}, "finish_reason": finish}]})
    body = b"".join(b"data: %b\n\n" % msgspec.json.encode(chunk) for chunk in chunks)
    return reply_of(assemble([body]).result(), started=0.0, seconds=0.0).message


WHOLE = events(answer_of(TURN))
EXPECTED = reply_of(decode_completion(msgspec.json.encode(answer_of(TURN))), started=0.0, seconds=0.0)


@given(st.lists(st.integers(0, len(WHOLE)), max_size=30), st.sampled_from([b"\n", b"\r\n"]))
def test_any_split_of_the_bytes_gives_the_unstreamed_reply(cuts: list[int], newline: bytes) -> None:
    whole = WHOLE.replace(b"\n", newline)
    edges = [0, *sorted(cut for cut in cuts if cut <= len(whole)), len(whole)]
    chunks = [whole[start:end] for start, end in itertools.pairwise(edges)]
    assert reply_of(assemble(chunks).result(), started=0.0, seconds=0.0) == EXPECTED


def test_byte_by_byte() -> None:
    chunks = [WHOLE[at : at + 1] for at in range(len(WHOLE))]
    assert reply_of(assemble(chunks).result(), started=0.0, seconds=0.0) == EXPECTED


@given(st.integers(0, len(WHOLE)))
def test_a_cut_stream_is_torn_unless_it_said_why_it_finished(cut: int) -> None:
    reply = assemble([WHOLE[:cut]])
    if b'"finish_reason":"' in WHOLE[:cut].rpartition(b"}\n")[0] or WHOLE[:cut].endswith(b'"finish_reason":"tool_calls"}]}'):
        assert reply_of(reply.result(), started=0.0, seconds=0.0).message == EXPECTED.message
    else:
        with pytest.raises(BadResponse, match="torn"):
            reply.result()


def test_comments_other_fields_and_missing_last_blank_line() -> None:
    body = (
        b": keep-alive\n\nevent: x\nid: 3\nretry: 5\n\n"
        b'data:{"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"choices":[\ndata: {"delta":{"content":"b"}}]}\n\ndata: [DONE]'
    )
    reply = assemble([body])
    assert reply_of(reply.result(), started=0.0, seconds=0.0).message.content == "ab"


def test_tool_calls_without_an_index() -> None:
    message = message_of(
        {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"function": {"arguments": '{"x"'}}]},
        {"tool_calls": [{"function": {"arguments": ":1}"}}]},
        {"tool_calls": [{"id": "b", "function": {"name": "g", "arguments": "{}"}}]},
    )
    assert [(c.id, c.name, c.arguments) for c in message.tool_calls] == [("a", "f", '{"x":1}'), ("b", "g", "{}")]


def test_whole_calls_that_all_say_index_0() -> None:
    message = message_of(
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "id": "b", "function": {"name": "f", "arguments": '{"x":2}'}}]},
    )
    assert [(c.id, c.arguments) for c in message.tool_calls] == [("a", "{}"), ("b", '{"x":2}')]


def test_whole_calls_with_neither_id_nor_index() -> None:
    message = message_of(
        {"tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}, {"function": {"name": "f", "arguments": {"x": 2}}}]}
    )
    assert [c.arguments for c in message.tool_calls] == ['{"x":1}', '{"x":2}']


def test_id_and_name_repeated_with_every_delta() -> None:
    message = message_of(
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x":'}}]},
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "1}"}}]},
    )
    assert [(c.id, c.name, c.arguments) for c in message.tool_calls] == [("a", "f", '{"x":1}')]


def test_interleaved_calls_and_null_fields() -> None:
    message = message_of(
        {"content": None, "tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": None}}]},
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}]},
        {"tool_calls": [{"index": 1, "id": None, "function": {"name": None, "arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]},
    )
    assert {(c.id, c.name, c.arguments) for c in message.tool_calls} == {("a", "f", "{}"), ("b", "g", "{}")}


def test_legacy_function_call() -> None:
    message = message_of({"function_call": {"name": "f", "arguments": '{"a"'}}, {"function_call": {"arguments": ":1}"}})
    assert [(c.id, c.name, c.arguments) for c in message.tool_calls] == [("", "f", '{"a":1}')]


def test_reasoning_deltas_under_every_name() -> None:
    for name in ("reasoning", "reasoning_content", "thinking"):
        assert message_of({name: "a "}, {name: "b"}, {"content": "c"}).reasoning == "a b"
    parts = message_of({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}]}]}, {"content": "b"})
    assert (parts.content, parts.reasoning) == ("b", "a")


def test_reasoning_details_are_put_back_together() -> None:
    message = message_of(
        {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "a", "format": "f"}]},
        {"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "b"}]},
        {"reasoning_details": [{"type": "reasoning.text", "index": 0, "signature": "s", "text": None}]},
        {"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "x"}]},
        {"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "y"}]},
        {"content": "c"},
    )
    assert message.reasoning == "ab"
    assert message.provider_fields["reasoning_details"] == [
        {"type": "reasoning.text", "index": 0, "text": "ab", "format": "f", "signature": "s"},
        {"type": "reasoning.encrypted", "index": 1, "data": "x"},
        {"type": "reasoning.encrypted", "index": 1, "data": "y"},
    ]


def test_an_error_chunk_ends_the_reply() -> None:
    body = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: {"error":{"code":429,"message":"slow"},"choices":[]}\n\n'
    reply = assemble([body])
    assert reply.ended
    with pytest.raises(RateLimited, match="slow"):
        reply.reply(0.0, 0.0)


def test_what_is_no_chunk() -> None:
    with pytest.raises(BadResponse, match="no chat completion"):
        assemble([b"data: hello\n\n"])
    with pytest.raises(BadResponse, match="torn"):
        assemble([b""]).result()
