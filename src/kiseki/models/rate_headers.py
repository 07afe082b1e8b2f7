"""`x-ratelimit-*` and `anthropic-ratelimit-*` headers of an answer: what is left, and for how long. Pure.

OpenAI's names (platform.openai.com/docs/guides/rate-limits, "Rate limits in headers"; vLLM gateways, Groq, Mistral and others
copy them): `x-ratelimit-remaining-requests`, `x-ratelimit-reset-requests` and the same for tokens, a reset as "6m0s", "1.5s" or
"20ms". OpenRouter's: `X-RateLimit-Remaining` and `X-RateLimit-Reset`, the latter a Unix time in milliseconds; others give that
in seconds, or the seconds that are left. Anthropic's (platform.claude.com/docs, "Rate limits", "Response headers"):
`anthropic-ratelimit-requests-remaining`, `anthropic-ratelimit-requests-reset` and the same for tokens (the tightest of its limits
of tokens), a reset as an RFC 3339 time.
"""

from __future__ import annotations

import datetime
import email.utils
import re
from collections.abc import Mapping

from kiseki.models.base import RateInfo

_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
EPOCH_SECONDS = 1e9
"""A number above this is a Unix time, above a thousand times this one in milliseconds."""


def parse_rate(headers: Mapping[str, str], now: float) -> RateInfo | None:
    """What the headers say, None where they say nothing. `now` is Unix time, for endpoints that do not tell theirs."""
    plain = headers.get("x-ratelimit-remaining")
    requests = headers.get("x-ratelimit-remaining-requests", plain)
    tokens = headers.get("x-ratelimit-remaining-tokens")
    if requests is None and tokens is None:
        return _of_anthropic(headers, now)
    reset = headers.get("x-ratelimit-reset")
    return RateInfo(
        requests_left=_number(requests),
        requests_reset=_duration(headers.get("x-ratelimit-reset-requests", reset), headers, now),
        tokens_left=_number(tokens),
        tokens_reset=_duration(headers.get("x-ratelimit-reset-tokens", reset), headers, now),
    )


def _of_anthropic(headers: Mapping[str, str], now: float) -> RateInfo | None:
    requests, tokens = (headers.get(f"anthropic-ratelimit-{each}-remaining") for each in ("requests", "tokens"))
    if requests is None and tokens is None:
        return None
    resets = (_until(headers.get(f"anthropic-ratelimit-{each}-reset"), headers, now) for each in ("requests", "tokens"))
    requests_reset, tokens_reset = resets
    return RateInfo(_number(requests), requests_reset, _number(tokens), tokens_reset)


def _until(text: str | None, headers: Mapping[str, str], now: float) -> float | None:
    """Seconds until an RFC 3339 time."""
    try:
        then = datetime.datetime.fromisoformat((text or "").strip())
    except ValueError:
        return None
    if then.tzinfo is None:
        return None
    return max(0.0, then.timestamp() - time_there(headers, now))


def time_there(headers: Mapping[str, str], now: float) -> float:
    """Unix time by the endpoint's clock where it tells it: a time that it names is meant by that one, and ours may be off."""
    try:
        return email.utils.parsedate_to_datetime(headers.get("Date", "")).timestamp()
    except (ValueError, OverflowError):
        return now


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if number >= 0 else None


def _duration(text: str | None, headers: Mapping[str, str], now: float) -> float | None:
    """Seconds from now."""
    text = (text or "").strip()
    if (number := _number(text)) is not None:
        if number <= EPOCH_SECONDS:
            return number
        return max(0.0, (number / 1000 if number > EPOCH_SECONDS * 1000 else number) - time_there(headers, now))
    parts = _PART.findall(text)
    if not parts or "".join(value + unit for value, unit in parts) != text:
        return None
    return sum(float(value) * _SECONDS[unit] for value, unit in parts)
