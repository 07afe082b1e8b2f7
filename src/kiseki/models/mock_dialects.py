"""What the mock server has to know of an API to speak it: a request read as a chat request, a chat completion written as its
answer. Pure.

Scripts, faults, limits and counts are the server's, once for all APIs; each API is one `MockDialect`, listed in
`mock_http.DIALECTS`. The chat API is here, the others in files of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from kiseki.models.mock_answer import encode, events
from kiseki.models.mock_script import Asked, duration_text

Memory = dict[bytes, int]
"""What a dialect keeps of one server's requests, by keys of its own (a prompt cache's)."""


class Refused(Exception):
    """A request that the API does not take."""

    def __init__(self, words: str, status: int = 400, code: str = "invalid_request_error") -> None:
        super().__init__(words)
        self.words, self.status, self.code = words, status, code


class MockDialect(msgspec.Struct, frozen=True):
    """One API. Answers are dicts as they are sent; a chat completion is `mock_answer.completion`'s, its usage without a `cost`
    or with one, or absent (fault `no_usage`)."""

    path: str
    """End of the path that is posted to, whatever stands before it."""
    read: Callable[[bytes], tuple[Asked, Any]]
    """A body as a chat request, and as `answer` wants it again. Raises msgspec.DecodeError or `Refused` where the API would
    answer 4xx."""
    answer: Callable[[dict[str, Any], Any, Memory], dict[str, Any]]
    """A chat completion and what `read` gave with it, as this API's answer. Reply faults are in it already: ids may be absent or
    twice there, arguments no JSON, content empty."""
    events: Callable[[dict[str, Any]], bytes]
    """That answer as a stream, its end included."""
    error: Callable[[int, str, str], dict[str, Any]]
    """Status, code (`mock_script.HTTP_FAULTS`) and words as the body of an error."""
    error_inside: Callable[[str, bool], bytes]
    """An error that comes with status 200: its words; as the whole body, or (True) as a stream."""
    rate_headers: Callable[[str, float, int, float], dict[str, str]]
    """`requests` or `tokens`; how many a minute, how many are left, and seconds until all are there again."""


_decode_asked = msgspec.json.Decoder(Asked).decode


def asked_of(chat_request: dict[str, Any]) -> Asked:
    """A chat request in decoded JSON, for `MockDialect.read`. Raises msgspec.ValidationError where it is none."""
    return _decode_asked(encode(chat_request))  # not `convert`: schemas are kept as JSON


def _error(status: int, code: str, words: str) -> dict[str, Any]:
    return {"error": {"message": words, "type": code, "code": code}}


def _error_inside(words: str, stream: bool) -> bytes:
    error = {"error": {"code": 502, "message": "Provider returned error", "metadata": {"raw": words}}}
    return b"data: %b\n\n" % encode(error) if stream else encode(error)


def _rate_headers(what: str, limit: float, left: int, reset: float) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{what}": f"{limit:.0f}",
        f"x-ratelimit-remaining-{what}": str(left),
        f"x-ratelimit-reset-{what}": duration_text(reset),
    }


CHAT = MockDialect(
    path="/chat/completions",
    read=lambda body: (_decode_asked(body), None),
    answer=lambda completion, request, memory: completion,
    events=events,
    error=_error,
    error_inside=_error_inside,
    rate_headers=_rate_headers,
)
