"""Answers that no model gives, in each dialect: an error of the provider, whatever it is."""

from __future__ import annotations

import pytest

from kiseki.errors import ProviderError
from kiseki.models.dialects.base import Dialect
from kiseki.models.dialects.opening import open_dialect
from kiseki.models.endpoints import ModelSettings

DEEP = b"[" * 100_000 + b"]" * 100_000
BODIES = {
    "chat": [
        b'{"choices":[{"message":{"content":%b}}]}',
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
CASES = [(mode, body) for mode, bodies in BODIES.items() for body in (*bodies, b"%b", b'{"usage":%b}')]


def dialect(mode: str) -> Dialect:
    return open_dialect(ModelSettings("m", "http://127.0.0.1:1/v1", api_mode=mode))


@pytest.mark.parametrize(("mode", "body"), CASES)
@pytest.mark.parametrize("streamed", [False, True])
def test_json_that_is_nested_without_end(mode: str, body: bytes, streamed: bool) -> None:
    answer = body.replace(b"%b", DEEP)
    with pytest.raises(ProviderError):
        if not streamed:
            dialect(mode).reply(answer, 0.0, 0.0)
        reply = dialect(mode).stream()
        reply.feed(b"data: " + answer + b"\n\n")
        reply.reply(0.0, 0.0)


@pytest.mark.parametrize("mode", BODIES)
@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{}", b"1", b'"text"', b"\xff\xfe", b'{"a":1e999}', b"<html>", b"NaN"])
def test_what_is_no_answer(mode: str, body: bytes) -> None:
    with pytest.raises(ProviderError):
        dialect(mode).reply(body, 0.0, 0.0)
