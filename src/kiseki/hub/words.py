"""What goes wrong with the Hub, in one line each: whose fault it is, what to do, and never a token or a signed address."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kiseki.errors import HubError, KisekiError, UsageError
from kiseki.trajectory.hugging_face import one_line

HOW_TO_LOG_IN = (
    "there is no Hugging Face token: set HF_TOKEN to one that may write (the Hub's settings make them), or log in: hf auth login"
)
TRANSIENT = (408, 429, 500, 502, 503, 504)
"""Statuses that may be gone with the next try."""
CONFLICT = (409, 412)
"""Somebody else changed the repository meanwhile."""
_NETWORK_LIBRARIES = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")
_ADDRESS = re.compile(r"https?://[^\s'\")]+")


def status_of(error: BaseException) -> int:
    """The HTTP status that it is about; 0 where there was no answer, or it is about something else."""
    for each in _chain(error):
        status = getattr(getattr(each, "response", None), "status_code", None)
        if isinstance(status, int):
            return status
    return 0


def may_pass(error: BaseException) -> bool:
    """Whether the same request may go well when it is made again."""
    return status_of(error) in TRANSIENT or (not status_of(error) and _from_network(error))


def retry_after(error: BaseException) -> float | None:
    """Seconds that the Hub asked us to wait, None where it did not."""
    for each in _chain(error):
        headers = getattr(getattr(each, "response", None), "headers", None) or {}
        if str(headers.get("retry-after", "")).isdigit():
            return float(headers["retry-after"])
    return None


def in_words(error: BaseException, repository: str, endpoint: str) -> KisekiError:
    """As an error of ours: `UsageError` for what only the user can put right, `HubError` for what may pass."""
    if isinstance(error, KisekiError):
        return error
    status, said = status_of(error), _said(error)
    owner = repository.partition("/")[0]
    if status == 401:
        return UsageError(f"{endpoint} does not take the token (401{said}): set HF_TOKEN to a valid one, or hf auth login")
    if status == 403:
        return UsageError(f"the token may not write to {repository} (403{said}): it needs write access to what {owner} has")
    if status == 404:
        return UsageError(f"{endpoint} has no {repository}, or no organisation {owner}, that the token may see (404{said})")
    if status in CONFLICT:
        return HubError(f"{repository} was changed by somebody else meanwhile ({status}{said}); push once more")
    if status == 429:
        return HubError(f"{endpoint} lets no more requests through for now (429{said}); the same command goes on later")
    if status >= 500:
        return HubError(f"{endpoint} fails ({status}{said}); the same command goes on where it stopped")
    if status:
        return UsageError(f"{endpoint} refuses the push to {repository} ({status}{said})")
    if type(error).__name__ == "OfflineModeIsEnabled":
        return UsageError("HF_HUB_OFFLINE is set, so nothing can be pushed; unset it")
    if type(error).__name__ == "HFValidationError":
        return UsageError(f"{repository!r} is no name of a dataset: {_plain(error)}")
    if _from_network(error):
        return HubError(f"cannot reach {endpoint}: {_plain(error)}; what is there stays, the same command goes on")
    return HubError(f"the push to {repository} failed: {_plain(error)}")


def _said(error: BaseException) -> str:
    """What the Hub itself said, as `: words`."""
    for each in _chain(error):
        if message := getattr(each, "server_message", None):
            return f": {_ADDRESS.sub('…', one_line(ValueError(str(message))))}"
    return ""


def _plain(error: BaseException) -> str:
    """Its innermost words, without addresses: those of uploads are signed."""
    *_, last = _chain(error)
    return _ADDRESS.sub("…", one_line(last))


def _from_network(error: BaseException) -> bool:
    return any(
        isinstance(each, (ConnectionError, TimeoutError)) or type(each).__module__.partition(".")[0] in _NETWORK_LIBRARIES
        for each in _chain(error)
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those that it was made of."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__
