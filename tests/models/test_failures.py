"""What endpoints say when they refuse, and the class that it becomes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kiseki.errors import (
    AuthError,
    BadRequest,
    BadResponse,
    ContextLengthExceeded,
    ProviderError,
    ProviderOverloaded,
    RateLimited,
)
from kiseki.models.dialects.chat_reply import decode_completion, reply_of
from kiseki.models.failures import error_of_status

OPENAI_LENGTH = {
    "error": {"message": "This model's maximum context length is 8192 tokens.", "type": "x", "code": "context_length_exceeded"}
}
LLAMA_LENGTH = {
    "error": {"code": 400, "message": "the request exceeds the available context size", "type": "exceed_context_size_error"}
}
VLLM_LENGTH = {
    "object": "error",
    "message": "This model's maximum context length is 8 tokens. However",
    "type": "BadRequestError",
}
FLAGGED = {"error": {"code": 403, "message": "flagged", "metadata": {"reasons": ["violence"], "flagged_input": "…"}}}


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, {"error": {"message": "bad key"}}, AuthError),
        (402, {"error": {"message": "no credit"}}, AuthError),
        (403, {"error": {"message": "no"}}, AuthError),
        (403, FLAGGED, BadRequest),
        (429, {"error": {"message": "slow"}}, RateLimited),
        (429, {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}, AuthError),
        (408, {}, ProviderOverloaded),
        (500, {"error": "boom"}, ProviderOverloaded),
        (502, {}, ProviderOverloaded),
        (529, {"error": {"type": "overloaded_error", "message": "Overloaded"}}, ProviderOverloaded),
        (400, {"error": {"message": "bad tools"}}, BadRequest),
        (404, {"detail": "Not Found"}, BadRequest),
        (422, {"detail": [{"loc": ["body"], "msg": "extra fields"}]}, BadRequest),
        (307, {}, BadRequest),
        (400, OPENAI_LENGTH, ContextLengthExceeded),
        (400, LLAMA_LENGTH, ContextLengthExceeded),
        (400, VLLM_LENGTH, ContextLengthExceeded),
        (400, {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}, ContextLengthExceeded),
        (400, [{"error": {"message": "The input token count (1200000) exceeds the maximum"}}], ContextLengthExceeded),
    ],
)
def test_class_by_status(status: int, body: Any, kind: type[ProviderError]) -> None:
    error = error_of_status(status, {}, msgspec.json.encode(body), 0.0)
    assert type(error) is kind
    assert error.status == status
    assert f"HTTP {status}" in str(error)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"error": {"code": 429, "message": "slow"}}, RateLimited),
        ({"error": {"code": "502", "message": "down"}}, ProviderOverloaded),
        ({"error": {"code": 402, "message": "no credit"}}, AuthError),
        ({"error": {"type": "rate_limit_error", "message": "slow"}}, RateLimited),
        ({"error": {"type": "overloaded_error", "message": "Overloaded"}}, ProviderOverloaded),
        ({"error": {"code": "context_length_exceeded", "message": "too long"}}, ContextLengthExceeded),
        ({"error": {"message": "BadRequest", "type": "BadRequestError", "code": 400}}, BadRequest),
        ({"error": "it broke"}, BadResponse),
        ({"error": {"message": "it broke"}}, BadResponse),
        ({"choices": [{"message": {"content": ""}, "error": {"code": 502, "message": "upstream"}}]}, ProviderOverloaded),
        ({"choices": [{"message": {"content": "half"}, "finish_reason": "error"}]}, ProviderOverloaded),
    ],
)
def test_class_of_an_error_inside_a_200(answer: dict[str, Any], kind: type[ProviderError]) -> None:
    with pytest.raises(ProviderError) as raised:
        reply_of(decode_completion(msgspec.json.encode(answer)), started=0.0, seconds=0.0)
    assert type(raised.value) is kind


def test_no_error_inside() -> None:
    answer = decode_completion(b'{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}],"error":null}')
    assert reply_of(answer, started=0.0, seconds=0.0).message.content == "a"


def test_the_words_of_the_upstream_are_told() -> None:
    body = {
        "error": {"code": 502, "message": "Provider returned error", "metadata": {"provider_name": "Acme", "raw": "GPU fire"}}
    }
    error = error_of_status(502, {}, msgspec.json.encode(body), 0.0)
    assert "Acme" in str(error)
    assert "GPU fire" in str(error)


def test_an_html_page_is_told_by_its_text() -> None:
    page = b"<!DOCTYPE html><html><head><title>504 Time-out</title><style>x{}</style></head><p>nginx &amp; co</html>"
    assert str(error_of_status(504, {}, page, 0.0)) == "HTTP 504: 504 Time-out nginx & co"
    assert "(empty)" in str(error_of_status(500, {}, b"", 0.0))
    assert "plain words" in str(error_of_status(500, {}, b"plain words", 0.0))


def test_a_redirect_says_where_to() -> None:
    error = error_of_status(301, {"Location": "https://elsewhere/v1"}, b"", 0.0)
    assert "https://elsewhere/v1" in str(error)


def test_retry_after_is_kept() -> None:
    assert error_of_status(429, {"Retry-After": "7"}, b"{}", 0.0).retry_after == 7.0
    assert error_of_status(503, {}, b"{}", 0.0).retry_after is None


def test_a_date_to_wait_for_is_by_the_endpoints_clock() -> None:
    headers = {"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}
    wrong = 0.0  # our clock, decades off
    assert error_of_status(503, headers, b"{}", wrong).retry_after == 30.0
    headers["Date"] = "nonsense"
    there = 1792567700.0
    assert error_of_status(503, headers, b"{}", there).retry_after == 10.0
