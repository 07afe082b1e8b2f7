"""Every error class of Kiseki, by the boundary it comes from.

Code between boundaries does not catch. The rollout boundary (`agent/rollout.py`) turns whatever arrives into exactly one
outcome; the command boundary (`commands/main.py`) turns what is left into one line on stderr and an exit status.

`retryable` says whether the same rollout may succeed when tried again; `blame` says whose fault it is:
"user" (arguments, input), "provider" (the model's endpoint), "model", "sandbox", or "kiseki" (our own bug).
"""

from __future__ import annotations

from typing import Any


class KisekiError(Exception):
    """Base of all; never raised itself."""

    retryable = False
    blame = "kiseki"


class UsageError(KisekiError):
    """A flag, a setting or a combination of them cannot be used. Exit status 2."""

    blame = "user"


class DatasetError(UsageError):
    """A dataset that cannot be read or has no usable row. Exit status 2."""


class ProviderError(KisekiError):
    """The model's endpoint did not give a reply: a failed rollout, never a trajectory."""

    retryable = True
    blame = "provider"

    def __init__(self, message: str, *, status: int = 0, retry_after: float | None = None, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent
        """Whether the endpoint may have got the request, and so charge for it."""
        self.begun = False
        """Whether a part of a reply had come by then, which somebody may charge for."""
        self.status = status
        """HTTP status, or what an error inside an answer stands for; 0 when there was neither."""
        self.retry_after = retry_after
        """Seconds that the endpoint asked us to wait, None when it did not say."""
        self.rate: Any = None
        """What its `x-ratelimit-*` headers said (`models.base.RateInfo`), None when nothing."""


class RateLimited(ProviderError):
    """429: too many requests or tokens."""


class ProviderOverloaded(ProviderError):
    """5xx and the like: the endpoint is there but cannot answer now."""


class ProviderUnreachable(ProviderError):
    """No connection, a lost one, or none in time."""


class ProviderTimeout(ProviderError):
    """The endpoint took the request and did not answer in time."""


class StreamStalled(ProviderTimeout):
    """The endpoint began a streamed answer and stopped in the middle of it."""


class BadResponse(ProviderError):
    """An answer that is no chat completion: not JSON, torn stream, no choices, empty reply."""


class AuthError(ProviderError):
    """401, 402, 403: bad key, no credit, no permission."""

    retryable = False


class BadRequest(ProviderError):
    """The endpoint refuses the request itself (400, 404, 422)."""

    retryable = False


class ContextLengthExceeded(BadRequest):
    """The conversation no longer fits the model's context window."""


class SandboxError(KisekiError):
    """The sandbox could not be started, or died. Infrastructure, never the model's doing."""

    retryable = True
    blame = "sandbox"


class SandboxTimeout(SandboxError):
    """The sandbox did not start in time."""


class ImageError(SandboxError):
    """The prompt's image is not to be had."""

    retryable = False


class ToolError(KisekiError):
    """A tool could not do what the model asked; the message goes back to the model as the tool's result."""

    blame = "model"


class NotAdmitted(KisekiError):
    """A model call that the run does not make. A rollout that ends by it has no outcome yet: it stays as it was."""

    blame = "user"


class BudgetSpent(NotAdmitted):
    """The run's budget does not cover another call."""


class RunStopped(NotAdmitted):
    """The endpoint is no use any more (bad key, no credit, nothing but failures): the run has been stopped."""


NO_OUTCOME = (BudgetSpent.__name__, RunStopped.__name__, AuthError.__name__)
"""Error classes of rollouts that the run did not go on with (an `AuthError` stops it): they are as if they had not run."""


class PromptBudgetSpent(KisekiError):
    """One rollout's own budget does not cover its next call."""

    blame = "user"


class RolloutTimeout(KisekiError):
    """The rollout's deadline passed before the model said anything at all."""

    retryable = True
    blame = "provider"


class WorkerDied(KisekiError):
    """The worker process died with a rollout in it, and once more with that rollout alone."""


class WorkersFailed(KisekiError):
    """Worker processes die before they finish anything: the run cannot go on."""


class LedgerError(UsageError):
    """`run.db` cannot be opened, or is in use by another process. Exit status 2."""


class StorageError(KisekiError):
    """The disk does not take what is to be kept. What was committed before is safe."""

    blame = "user"


class HubError(KisekiError):
    """The Hub cannot be reached, fails, or turns requests away for now. What was sent before is not sent again."""

    retryable = True
    blame = "provider"
