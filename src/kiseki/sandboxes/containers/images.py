"""Images of an engine: which are there, and pulling the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from kiseki.errors import ImageError, SandboxError
from kiseki.sandboxes.containers.engine import Engine, reason, status
from kiseki.sandboxes.settings import Pull

PULL_TIMEOUT = 600.0
"""Seconds without a word from the engine: it says how far each layer is several times a second, but is silent while a registry
hangs, and while Podman unpacks."""
_NO_NAME = ("invalid reference", "must be lowercase", "invalid tag")
"""In the words for what can be no image's name; Podman has them under status 500."""
_FINAL = (
    *_NO_NAME,
    "not found",
    "manifest unknown",
    "denied",
    "unauthorized",
    "does not exist",
    "no such image",
    "name unknown",
)
"""In the words of failures that another try does not mend."""
_PASSING = ("toomanyrequests", "too many requests", "rate limit", "timeout", "timed out", "connection re", "eof", "temporar")
"""In the words of failures that pass, also where one of the above stands beside it."""


class EngineImages:
    """An `ImageStore`."""

    def __init__(self, kind: str) -> None:
        self._engine = Engine(kind)

    def has(self, image: str) -> bool:
        from docker.errors import APIError

        try:
            self._engine.call("inspect_image", image)
        except APIError as error:
            said = reason(error)
            if status(error) == 404 or any(words in said for words in _NO_NAME):  # The pull says so.
                return False
            raise SandboxError(f"{self._engine.kind}: {said}") from error
        return True

    def pull(self, image: str, tell: Callable[[Pull], None]) -> None:
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException

        layers = _Layers()
        try:
            for event in self._events(image):
                if error := event.get("error") or (event.get("errorDetail") or {}).get("message"):
                    raise _failure(image, str(error))
                tell(layers.take(event))
        except APIError as error:
            raise _failure(image, reason(error), status(error)) from error
        except (DockerException, RequestException, OSError, msgspec.DecodeError) as error:
            raise _error(image, f"{self._engine.kind} broke off: {reason(error)}", retryable=True) from error
        if not self.has(image):
            raise _error(image, f"{self._engine.kind} pulled it, and it is not there", retryable=True)

    def _events(self, image: str) -> Iterator[dict[str, Any]]:
        """What the engine says while it pulls. docker-py's own `pull` would wait for a silent engine for ever."""
        from docker import auth
        from docker.errors import create_api_error_from_http_exception
        from docker.utils import parse_repository_tag
        from requests.exceptions import HTTPError

        repository, tag = parse_repository_tag(image)
        client = self._engine.client
        header = auth.get_config_header(client, auth.resolve_repository_name(repository)[0])
        url = f"{client.base_url}/v{client.api_version}/images/create"
        with client.post(
            url,
            params={"fromImage": repository, "tag": tag or "latest"},
            headers={"X-Registry-Auth": header} if header else {},
            stream=True,
            timeout=PULL_TIMEOUT,
        ) as response:
            try:
                response.raise_for_status()
            except HTTPError as error:
                create_api_error_from_http_exception(error)
            for line in response.iter_lines():
                if line.strip():
                    yield msgspec.json.decode(line, type=dict[str, Any])

    def close(self) -> None:
        self._engine.close()


class _Layers:
    """Adds up what the engine says of each layer."""

    def __init__(self) -> None:
        self._totals: dict[str, int] = {}
        self._done: dict[str, int] = {}

    def take(self, event: dict[str, Any]) -> Pull:
        name, status = str(event.get("id") or ""), str(event.get("status") or event.get("stream") or "")
        detail = event.get("progressDetail") or {}
        if status == "Downloading" and detail.get("total"):
            self._totals[name] = int(detail["total"])
            self._done[name] = int(detail.get("current") or 0)
        elif status in ("Download complete", "Extracting", "Pull complete") and name in self._totals:
            self._done[name] = self._totals[name]
        words = f"{name}: {status}" if name else status
        return Pull(done=sum(self._done.values()), total=sum(self._totals.values()), words=words)


def _failure(image: str, said: str, code: int = 0) -> ImageError:
    """`code`: the HTTP status of the refusal, 0 when it came in the middle."""
    said = " ".join(said.split())
    words = said.lower().replace(image.lower(), "")
    final = code in (400, 401, 403, 404) or any(word in words for word in _FINAL)
    return _error(image, said, retryable=not final or any(word in words for word in _PASSING))


def _error(image: str, said: str, *, retryable: bool) -> ImageError:
    error = ImageError(f"image {image!r}: {said}")
    error.retryable = retryable
    return error
