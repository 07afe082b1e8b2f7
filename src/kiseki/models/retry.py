"""When a failed model call is tried again, and how long it waits by itself: a pure policy.

Full jitter: the wait before retry n is uniform in [0, min(cap, base * 2^n)], so that many calls that failed together do not
come back together (aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter). What the endpoint asks for
(`Retry-After`) is waited out at least, 300 s of it at a time; whether it holds for other calls, too, is `rate_limit.py`'s.
"""

from __future__ import annotations

import email.utils
import random
from collections.abc import Mapping

from kiseki.errors import ProviderError
from kiseki.models.calls import is_limited
from kiseki.models.rate_limit import LONGEST_ASKED

BASE_SECONDS = 1.0
LIMITED_BASE_SECONDS = 0.25
"""Of a call that was turned away: what the endpoint can take is kept to by the rate limit, and many turn away a share of all
calls, whatever they can take."""
CAP_SECONDS = 60.0


class Retries:
    """Of one call. A turned away one (429, 503) waits as long as the user has patience; another failure may pass or not, and
    is tried a few times."""

    def __init__(self, max_retries: int, patience: float, rng: random.Random) -> None:
        """`max_retries`: requests after the first that failures may cost. `patience`: seconds that being turned away may."""
        self.made = 0
        self._failures_left = max_retries
        self._patience = patience
        self._turned_away = 0.0
        self._rng = rng

    def next_delay(self, error: ProviderError, *, probe: bool) -> float | None:
        """Seconds to wait before the next try, None to give up. `probe`: it tried for all, so it costs this call nothing."""
        if not error.retryable:
            return None
        base = LIMITED_BASE_SECONDS if is_limited(error) else BASE_SECONDS
        delay = self._rng.uniform(0.0, min(CAP_SECONDS, base * 2.0 ** min(self.made, 30)))
        delay = max(delay, min(error.retry_after or 0.0, LONGEST_ASKED))
        if is_limited(error):
            if self._turned_away > self._patience:
                return None
            self._turned_away += delay
        elif not probe:
            if self._failures_left == 0:
                return None
            self._failures_left -= 1
        self.made += 1
        return delay


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
