"""Answers that no model gives, in each dialect, over a real connection: a reply or an error of the provider, whatever it is."""

from __future__ import annotations

import contextlib

import pytest
from models.answers import PROMPT, answered

from kiseki.errors import ProviderError
from kiseki.models.base import ChatRequest
from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import open_client
from kiseki.trajectory.types import Message, ToolCall

BODIES = {
    "chat": [
        b'{"choices":[{"message":{"content":%b}}]}',
        b'{"choices":[{"message":{"content":"a","reasoning_details":[%b]}}]}',
        b'{"choices":[{"message":{"tool_calls":[{"function":{"name":"f","arguments":%b}}]}}]}',
        b'{"error":%b}',
    ],
    "anthropic": [
        b'{"type":"message","content":[{"type":"tool_use","id":"a","name":"f","input":%b}],"stop_reason":"tool_use"}',
        b'{"type":"message","content":[{"type":"redacted_thinking","data":%b}],"stop_reason":"end_turn"}',
        b'{"type":"error","error":%b}',
    ],
    "responses": [
        b'{"status":"completed","output":[{"type":"message","content":%b}]}',
        b'{"status":"completed","output":[{"type":"function_call","call_id":"a","name":"f","arguments":%b}]}',
        b'{"status":"failed","error":%b}',
    ],
}
EVENTS = {
    "chat": [
        b'{"choices":[{"delta":{"content":%b}}]}',
        b'{"choices":[{"delta":{"reasoning_details":[%b]}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":%b}}]},"finish_reason":"stop"}]}',
    ],
    "anthropic": [
        b'{"type":"content_block_start","index":0,"content_block":{"type":"redacted_thinking","data":%b}}',
        b'{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"a","name":"f","input":%b}}',
        b'{"type":"error","error":%b}',
    ],
    "responses": [
        b'{"type":"response.completed","response":{"status":"completed","output":[{"type":"message","content":%b}]}}',
        b'{"type":"response.output_item.done","output_index":0,"item":{"type":"reasoning","summary":%b}}',
        b'{"type":"error","error":%b}',
    ],
}
CASES = [(mode, body, False) for mode, bodies in BODIES.items() for body in (*bodies, b"%b", b'{"usage":%b}')]
CASES += [(mode, event, True) for mode, events in EVENTS.items() for event in (*events, b"%b")]


@pytest.mark.parametrize(("mode", "body", "streamed"), CASES)
def test_json_that_is_nested_deeply(mode: str, body: bytes, streamed: bool) -> None:
    for depth in (300, 600, 950, 100_000):
        deep = body.replace(b"%b", b"[" * depth + b"]" * depth)
        with contextlib.suppress(ProviderError):
            reply = answered(mode, deep, streamed=streamed)
            assert depth < 100_000
            client = open_client(ModelSettings("m", "http://127.0.0.1:1/v1", api_mode=mode))
            client.encode(ChatRequest((*PROMPT, reply.message, *PROMPT)))  # what was read can go back


@pytest.mark.parametrize("mode", BODIES)
@pytest.mark.parametrize("status", [400, 500])
def test_errors_that_are_nested_deeply(mode: str, status: int) -> None:
    for depth in (600, 100_000):
        deep = b"[" * depth + b"]" * depth
        for body in (deep, b'{"error":%b}' % deep, b'{"error":{"message":%b}}' % deep):
            with pytest.raises(ProviderError):
                answered(mode, body, streamed=False, status=status)


@pytest.mark.parametrize("mode", BODIES)
@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{}", b"1", b'"text"', b"\xff\xfe", b'{"a":1e999}', b"<html>", b"NaN"])
@pytest.mark.parametrize("streamed", [False, True])
def test_what_is_no_answer(mode: str, body: bytes, streamed: bool) -> None:
    with pytest.raises(ProviderError):
        answered(mode, body, streamed=streamed)


def test_arguments_that_are_nested_deeply_go_back_as_text() -> None:
    deep = '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"
    for mode in BODIES:
        client = open_client(ModelSettings("m", "http://127.0.0.1:1/v1", api_mode=mode))
        said = Message("assistant", tool_calls=(ToolCall("a", "f", deep),))
        assert client.encode(ChatRequest((*PROMPT, said, Message("tool", "x", tool_call_id="a"))))[1] > len(deep)


@pytest.mark.parametrize("words", ["exceed" * 20_000, "<" * 100_000, "<title " * 20_000, "<script>" * 20_000, "model " * 20_000])
@pytest.mark.parametrize("page", [False, True])
@pytest.mark.timeout(20)  # looked for what they mean in all of them, each took minutes
def test_words_without_end(words: str, page: bool) -> None:
    body = f"<html>{words}".encode() if page else b'{"error":{"message":"%b"}}' % words.encode()
    with pytest.raises(ProviderError):
        answered("chat", body, streamed=False, status=400)
