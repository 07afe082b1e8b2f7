"""What a refusal, a failure or a broken connection of an endpoint means: its words to the right `ProviderError`. Pure.

The message carries the HTTP status and the endpoint's own words; the client masks the key in it and cuts it.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from kiseki.errors import (
    AuthError,
    BadRequest,
    BadResponse,
    ContextLengthExceeded,
    ProviderError,
    ProviderOverloaded,
    RateLimited,
)
from kiseki.models.dialects.base import excerpt
from kiseki.models.rate_headers import parse_rate, time_there
from kiseki.models.retry import parse_retry_after
from kiseki.trajectory.text import clean_text

# Worth another try although 4xx: request timeout, conflict (OpenAI's "try again"), too early.
_RETRYABLE_4XX = (408, 409, 425)

# Codes and types that stand where a number is missing: in 200 bodies and streams of OpenAI, Anthropic, vLLM, llama.cpp.
_NAMED_STATUS = {
    "context_length_exceeded": 400,
    "exceed_context_size_error": 400,
    "invalid_request_error": 400,
    "badrequesterror": 400,
    "not_found_error": 404,
    "notfounderror": 404,
    "model_not_found": 404,
    "invalid_api_key": 401,
    "authentication_error": 401,
    "permission_error": 403,
    "insufficient_quota": 402,
    "billing_error": 402,
    "request_too_large": 413,
    "enforced_spend_limit_reached": 429,
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "too_many_requests": 429,
    "server_error": 500,
    "internal_server_error": 500,
    "internalservererror": 500,
    "internal_error": 500,
    "api_error": 500,
    "overloaded_error": 529,
    "unavailable_error": 503,
    "timeout": 504,
    "timeout_error": 504,
}

# As OpenAI, vLLM, SGLang, llama.cpp, OpenRouter, Anthropic, Google, Mistral, Groq, DeepSeek, Moonshot and Together word it.
_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|context_window_exceeded|model_context_window_exceeded"
    r"|maximum context length|maximum model length|maximum prompt length|maximum allowed (?:input )?length"
    r"|context (?:length|size|window)[^.]{0,60}exceed|exceed\w{0,4}[^.]{0,60}context (?:length|size|window|limit)"
    r"|(?:prompt|input|request) is too long|prompt too long|longer than the (?:model's )?(?:maximum )?context"
    r"|input token count[^.]{0,60}exceeds|exceeded model token limit|reduce the length of the (?:messages|input|prompt)"
    r"|too large for model with|greater than the context length|request_too_large"
    r"|`inputs` tokens \+ `max_new_tokens` must be",
    re.IGNORECASE,
)
# llama.cpp's words, with 500, for what no second try mends.
_NEVER = re.compile(r"requires --jinja|Unsupported param: tools|image input is not supported")
# As Anthropic words it, with 400.
_NO_CREDIT = re.compile(r"credit balance is too low", re.IGNORECASE)
_SPENT = ("insufficient_quota", "enforced_spend_limit_reached")

_HTML = re.compile(r"\s*(?:<!doctype html|<html|<head|<body)", re.IGNORECASE)
_HTML_DROPPED = re.compile(r"<(script|style|head)\b.*?(?:</\1>|\Z)|<!--.*?(?:-->|\Z)|<[^<>]*>", re.IGNORECASE | re.DOTALL)
WORDS_READ = 8_000
"""Characters of an error's words, and of an error page, that are looked at: its message stands at the beginning, and looking for
what it means takes longer than in proportion."""


def error_of_status(status: int, headers: Mapping[str, str], body: bytes, now: float) -> ProviderError:
    """The error that an answer with a status other than 200 means. `now` is Unix time by our clock."""
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        decoded = None
    words, code = _words_and_code(decoded) if decoded is not None else ("", "")
    if not words:
        words = _plain_text(body)
    if 300 <= status < 400:
        words = f"redirects to {headers.get('Location', 'nowhere')}; set --base_url to where the API is. {words}"
    error = _error(status, words, code, parse_retry_after(headers, time_there(headers, now)), decoded)
    error.rate = parse_rate(headers, now)
    return error


def error_of_object(error: Any) -> ProviderError:
    """What the error object (or text) of a 200 body, or of an event of a stream, means."""
    words, code = _words_and_code({"error": error})
    status = _status_named(error, code)
    if status is None:
        return BadResponse(f"The endpoint answered with an error: {words}", status=200)
    return _error(status, words, code, None, {"error": error})


def _error(status: int, words: str, code: str, retry_after: float | None, decoded: Any) -> ProviderError:
    words = words[:WORDS_READ]
    message = f"HTTP {status}: {clean_text(words)}"
    kind: type[ProviderError]
    if status == 429:
        # OpenAI says "no credit" with 429 too, Anthropic "the month's limit is spent"; waiting doesn't help.
        kind = AuthError if code in _SPENT else RateLimited
    elif status >= 500 or status in _RETRYABLE_4XX:
        kind = BadRequest if _NEVER.search(words) else ProviderOverloaded
    elif status in (401, 402, 403):
        # OpenRouter's 403 also means "moderation flagged this input": the prompt's fault, not the key's.
        kind = BadRequest if status == 403 and _flagged(decoded) else AuthError
    elif status == 400 and _NO_CREDIT.search(words):
        kind = AuthError
    elif status in (400, 413, 422) and _TOO_LONG.search(f"{code} {words}"):
        kind = ContextLengthExceeded
    elif status == 200:
        kind = BadResponse
    else:
        kind = BadRequest
    return kind(message, status=status, retry_after=retry_after)


def _words_and_code(decoded: Any) -> tuple[str, str]:
    """What an error body says, and its code or type in lower case. Shapes: {"error": {...}}, {"error": "..."},
    {"message": ...} (vLLM), {"detail": ...} (FastAPI), and a list of one of these (Gemini)."""
    if isinstance(decoded, list) and decoded:
        decoded = decoded[0]
    if not isinstance(decoded, dict):
        return "", ""
    error = decoded.get("error") or decoded
    if not isinstance(error, dict):
        return str(error), ""
    words = error.get("message") or error.get("detail") or error.get("msg")
    if words is None:
        words = msgspec.json.encode(error).decode()
    elif not isinstance(words, str):
        words = msgspec.json.encode(words).decode()
    metadata = error.get("metadata")
    if isinstance(metadata, dict):
        # OpenRouter: "Provider returned error", with what the provider said in `raw`.
        said = " ".join(str(metadata[name]) for name in ("provider_name", "raw") if metadata.get(name))
        words = f"{words} ({said})" if said else words
    details = error.get("details")
    codes = [error.get("code"), details.get("error_code") if isinstance(details, dict) else None, error.get("type")]
    named = [each.lower() for each in codes if isinstance(each, str)]
    return words, next((name for name in named if name in _NAMED_STATUS), named[0] if named else "")


def _status_named(error: Any, code: str) -> int | None:
    """The HTTP status that an error object stands for; None where it names none."""
    if isinstance(error, dict):
        for name in ("code", "status", "status_code"):
            value = error.get(name)
            if isinstance(value, str) and value.isdecimal():
                value = int(value)
            if isinstance(value, int) and 400 <= value < 600:
                return value
    return _NAMED_STATUS.get(code)


def _flagged(decoded: Any) -> bool:
    error = decoded.get("error") if isinstance(decoded, dict) else None
    metadata = error.get("metadata") if isinstance(error, dict) else None
    return isinstance(metadata, dict) and ("flagged_input" in metadata or "reasons" in metadata)


def _plain_text(body: bytes) -> str:
    """An error page's text, or the body as it is."""
    text = body.decode("utf-8", "replace")
    if not _HTML.match(text):
        return excerpt(body)
    text = text[:WORDS_READ]
    title = re.search(r"<title[^<>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
    shown = f"{title[1] if title else ''} {_HTML_DROPPED.sub(' ', text)}"
    return " ".join(html.unescape(shown).split()) or "(an empty HTML page)"
