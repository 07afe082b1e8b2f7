"""How one request to an endpoint ended, as those see it who decide about the next: plain types that also travel between
worker and driver. Knows no dialect."""

from __future__ import annotations

from typing import Literal

import msgspec

from kiseki.errors import AuthError, ContextLengthExceeded, ProviderError, RateLimited
from kiseki.models.base import ChatReply, RateInfo

BUSY_STATUS = (503, 529)
"""Service unavailable, and Anthropic's "overloaded": the endpoint has too much to do, as with 429."""


class CallEnd(msgspec.Struct, frozen=True):
    """One request, over."""

    kind: Literal["ok", "limited", "transient", "refused", "denied", "dropped"]
    """`ok`: the endpoint did its part (that the conversation is too long for the model is not its fault). `limited`: it has
    too much to do (429, 503). `transient`: it failed for a reason that may pass. `refused`: it does not take this request.
    `denied`: it takes none of ours (401, 402, 403). `dropped`: we did not wait for the answer."""
    tokens: int = 0
    """Prompt and completion tokens; 0 where not `known`."""
    cost: float = 0.0
    """US dollars."""
    known: bool = True
    """Whether `tokens` and `cost` are what it took; False where the request was sent and nobody said what it cost."""
    completion_tokens: int = 0
    retry_after: float | None = None
    """Seconds that the endpoint asks us to wait."""
    rate: RateInfo | None = None
    words: str = ""
    """What the endpoint said, without secrets."""
    without_tokens: bool = False
    """It did not give the token ids of prompt and reply though they were asked for."""
    notice: str = ""
    """What the run is to be told once."""
    falls_back: bool = False
    """It failed, and another model is asked in its place: no reason to hold up the run's other calls, or to stop it."""


class Change(msgspec.Struct, frozen=True):
    """A decision, for whoever wants to know why a run slows down."""

    kind: str
    """`limit`, `pause`, `fault`, `hold`, `resume`, `budget`, `tokens`, `fallback`, `notice` or `stop`."""
    detail: str


DROPPED = CallEnd("dropped", known=False)
NOT_SENT = CallEnd("dropped")


def end_of_reply(reply: ChatReply, rate: RateInfo | None, *, wants_tokens: bool = False) -> CallEnd:
    usage = reply.call.usage
    return CallEnd(
        "ok",
        tokens=usage.prompt_tokens + usage.completion_tokens,
        cost=usage.cost,
        known=reply.call.usage_reported,
        completion_tokens=usage.completion_tokens,
        rate=rate,
        notice=reply.notice,
        without_tokens=wants_tokens and not (reply.call.tokens and reply.call.tokens.whole),
    )


def end_of_error(error: ProviderError, *, falls_back: bool = False) -> CallEnd:
    if is_limited(error):
        kind: Literal["ok", "limited", "transient", "refused", "denied"] = "limited"
    elif isinstance(error, AuthError):
        kind = "denied"
    elif error.retryable:
        kind = "transient"
    else:
        kind = "ok" if isinstance(error, ContextLengthExceeded) else "refused"
    # an error status costs nothing; no answer to what was sent, or a torn one, may have cost a whole reply
    unknown = error.sent and (error.begun or error.status in (0, 200))
    return CallEnd(
        kind,
        known=not unknown,
        retry_after=error.retry_after,
        rate=error.rate,
        words=str(error),
        falls_back=falls_back and kind != "denied",
    )


def is_limited(error: ProviderError) -> bool:
    """Whether waiting, and nothing else, is what the endpoint wants."""
    return isinstance(error, RateLimited) or error.status in BUSY_STATUS
