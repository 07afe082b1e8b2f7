"""When a failed model call is tried again, and how long to wait: a pure policy and the small driver that follows it.

Full jitter: the wait before retry n is uniform in [0, min(cap, base * 2^n)], so that many calls that failed together do not
come back together (aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter). What the endpoint asks for
(`Retry-After`) is waited out in full, with jitter on top, and holds back every call that shares the `Pause`.
"""

from __future__ import annotations

import asyncio
import email.utils
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec

from kiseki.errors import ProviderError

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]

BASE_SECONDS = 1.0
CAP_SECONDS = 60.0
RETRY_AFTER_CAP = 300.0
"""No endpoint holds a call back longer than this at a time: a daily quota's "come back tomorrow" is asked again instead."""


class RetryPolicy(msgspec.Struct, frozen=True):
    max_retries: int = 5
    """Requests after the first."""
    base: float = BASE_SECONDS
    cap: float = CAP_SECONDS
    retry_after_cap: float = RETRY_AFTER_CAP


def next_delay(policy: RetryPolicy, error: ProviderError, retries: int, rng: random.Random) -> float | None:
    """Seconds to wait before trying again after `error`, None to give up. `retries` were already made."""
    if not error.retryable or retries >= policy.max_retries:
        return None
    jitter = rng.uniform(0.0, min(policy.cap, policy.base * 2.0 ** min(retries, 30)))
    if error.retry_after is None:
        return jitter
    return min(error.retry_after, policy.retry_after_cap) + min(jitter, policy.base)


def parse_retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that the answer asks us to wait: `retry-after-ms`, or `Retry-After` as seconds or HTTP date; None if neither.

    `now` is Unix time. Negative, infinite and unreadable values count as absent.
    """
    for name, unit in (("retry-after-ms", 0.001), ("Retry-After", 1.0)):
        value = headers.get(name, "").strip()
        if not value:
            continue
        try:
            seconds = float(value) * unit
        except ValueError:
            try:
                seconds = max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
            except (ValueError, OverflowError):
                continue
        if 0.0 <= seconds < float("inf"):
            return seconds
    return None


class Pause:
    """The time until which an endpoint asked to be left alone, shared by every call to it in this process.

    Clock and sleep belong together, so that a test can replace both.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, sleep: Sleep = asyncio.sleep) -> None:
        self._clock = clock
        self._until = 0.0
        self.sleep = sleep

    def extend(self, seconds: float) -> None:
        """No call before `seconds` from now."""
        self._until = max(self._until, self._clock() + seconds)

    def remaining(self) -> float:
        """Seconds still to wait; 0.0 when the endpoint may be asked."""
        return max(0.0, self._until - self._clock())


async def with_retries(
    attempt: Callable[[], Awaitable[T]], policy: RetryPolicy, rng: random.Random, pause: Pause
) -> tuple[T, int]:
    """What `attempt` returns, and how many attempts failed before it. Raises the last ProviderError when retries are spent."""
    retries = 0
    while True:
        # A loop, since another call may have extended the pause meanwhile. Jitter, so that not all calls start at its end.
        while (remaining := pause.remaining()) > 0.0:
            await pause.sleep(remaining + rng.uniform(0.0, policy.base))
        try:
            return await attempt(), retries
        except ProviderError as error:
            if error.retryable and error.retry_after is not None:
                pause.extend(min(error.retry_after, policy.retry_after_cap))
            delay = next_delay(policy, error, retries, rng)
            if delay is None:
                raise
        retries += 1
        await pause.sleep(delay)
