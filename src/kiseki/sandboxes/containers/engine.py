"""A Docker or Podman engine as one process talks to it: where it is, the client, and errors in words.

Both speak Docker's API, so docker-py is the client for both. It blocks: calls from the event loop run in threads of the engine's
own, since asyncio's default pool has a handful and would let few containers start at once. Questions have threads apart, so that
none waits for what is made and removed.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kiseki.errors import SandboxError, UsageError
from kiseki.sandboxes.settling import settled

ANSWER_TIMEOUT = 30.0
"""Seconds in which an engine that is there says its version: milliseconds, unless it starts a hundred containers meanwhile."""
CALL_TIMEOUT = 120.0
"""Seconds for any other answer: an engine that starts a hundred containers at once answers late, one that hangs never does."""
QUESTION_TIMEOUT = 15.0
"""Seconds for what is only looked up, which takes milliseconds: whoever asks has something that went wrong on hand."""
THREADS = 32
"""Calls to the engine at once. More wait: engines serialize most of their work, and Docker creates no faster beyond 16."""
LOOKS = 8
"""Walks at once through all that a container wrote; each keeps a processor and the disk of the engine busy."""
CONNECTIONS = 2 * THREADS + LOOKS
"""That are kept open: one for each thread."""

PODMAN_START = "start its service with: podman system service --time 0 unix:///tmp/podman.sock & export CONTAINER_HOST=unix:///tmp/podman.sock"
DOCKER_START = "start dockerd, or name an engine with DOCKER_HOST"

T = TypeVar("T")


class UnreachableError(SandboxError):
    """Nobody listens at the engine's address, or who did broke off: it is down, and may be back soon."""


class Abilities(msgspec.Struct, frozen=True):
    """What an engine has not refused yet."""

    sizes: bool = True
    """To bound a container's disk."""
    own_nproc: bool = True
    """To set its own limit of a user's processes."""


class Engine:
    """Safe to use from several threads; connects when it is first needed."""

    def __init__(self, kind: str) -> None:
        """`kind` is "docker" or "podman"."""
        self.kind = kind
        self.abilities = Abilities()
        self._client: Any = None
        self._lock = threading.Lock()
        self._cpus: int | None = None
        self._cpus_lock = threading.Lock()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix=kind)
        self._questions = ThreadPoolExecutor(THREADS, thread_name_prefix=kind)
        self._looks = ThreadPoolExecutor(LOOKS, thread_name_prefix=kind)

    @property
    def client(self) -> Any:
        """docker-py's low-level one; blocks at first. Raises SandboxError where no engine answers, UsageError without it."""
        with self._lock:
            if self._client is None:
                self._client = _connect(self.kind)
            return self._client

    @property
    def cpus(self) -> int:
        """That its machine has, 0 where it does not say; asked once. Blocks. Raises SandboxError when it is silent."""
        from docker.errors import APIError

        with self._cpus_lock:
            if self._cpus is None:
                try:
                    self._cpus = int(self.call("info").get("NCPU") or 0)
                except APIError:
                    self._cpus = 0
            return self._cpus

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """A method of the client; blocks. Raises docker-py's APIError when the engine refuses, SandboxError when it is silent."""
        from docker.errors import APIError, DockerException
        from requests.exceptions import RequestException

        try:
            return getattr(self.client, method)(*arguments, **named)
        except APIError:
            raise
        except (DockerException, RequestException, OSError) as error:
            raise _silence(error)(f"{self.kind} does not answer: {reason(error)}") from error

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """A blocking function in a thread. Cancelled, it ends without its result, but not before the function does: what that
        made can be removed then."""
        job = self.begin(function, *arguments)
        future = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not job.cancel():
                await settled(future)
            raise

    def begin(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """A blocking function in a thread, for who does not wait for it until it is over."""
        return self._threads.submit(function, *arguments)

    async def ask(self, function: Callable[..., T], *arguments: Any) -> T:
        """A blocking function that makes nothing; left alone when cancelled. Raises SandboxError when the engine is silent."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(self._questions.submit(function, *arguments)), QUESTION_TIMEOUT)
        except TimeoutError:
            raise SandboxError(f"{self.kind}: the engine does not answer") from None

    async def look(self, function: Callable[..., T], *arguments: Any) -> T:
        """The same, without a limit of time but the call's own."""
        return await asyncio.wrap_future(self._looks.submit(function, *arguments))

    def close(self) -> None:
        """Let go of the connections. What is under way ends by itself."""
        for threads in (self._threads, self._questions, self._looks):
            threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            if self._client is not None:
                self._client.close()


def reason(error: BaseException) -> str:
    """An error of docker-py or below it in the engine's or the system's own words, in one line."""
    said = getattr(error, "explanation", None) or _innermost(error)
    return " ".join(str(said).split()) or type(error).__name__


def status(error: BaseException) -> int:
    """Of an engine's refusal; 0 where there is none."""
    return int(getattr(getattr(error, "response", None), "status_code", 0))


def not_there(error: BaseException) -> bool:
    """Whether the engine has no such thing. Podman says so of a container that is being removed with status 500."""
    return status(error) == 404 or "no such container" in reason(error).lower()


def _silence(error: BaseException) -> type[SandboxError]:
    """What an error is that is no answer of the engine's."""
    down = (ConnectionError, FileNotFoundError)
    return UnreachableError if any(isinstance(each, down) for each in _wrapped(error)) else SandboxError


def _innermost(error: BaseException) -> str:
    """The operating system's words."""
    for found in reversed(_wrapped(error)):
        if isinstance(found, OSError) and found.strerror:
            return found.strerror
        if isinstance(found, TimeoutError):
            return "it took too long"
    return str(error)


def _wrapped(error: BaseException) -> list[BaseException]:
    """The error and what is in it, from the outside in: requests and urllib3 wrap the operating system's four deep."""
    seen: list[BaseException] = []
    todo: list[object] = [error]
    while todo:
        found = todo.pop(0)
        if isinstance(found, tuple | list):
            todo += found
        elif isinstance(found, BaseException) and found not in seen:
            seen.append(found)
            todo += [*found.args, getattr(found, "reason", None), found.__cause__, found.__context__]
    return seen


def _connect(kind: str) -> Any:
    try:
        import docker
        from docker.errors import DockerException
        from requests.adapters import HTTPAdapter
        from requests.exceptions import RequestException
    except ImportError as error:
        raise UsageError(f"sandbox backend {kind!r} needs docker-py: pip install 'kiseki[docker]'") from error
    host = _podman_host() if kind == "podman" else os.environ.get("DOCKER_HOST", "")
    if host.startswith("ssh://"):
        raise UsageError(
            f"an engine at {host} cannot be used; forward its socket: ssh -nNT -L /tmp/engine.sock:/var/run/docker.sock HOST, "
            f"and set {'CONTAINER_HOST' if kind == 'podman' else 'DOCKER_HOST'}=unix:///tmp/engine.sock"
        )

    def make(version: str) -> Any:
        options = {"version": version, "timeout": ANSWER_TIMEOUT, "max_pool_size": CONNECTIONS}
        client = (docker.DockerClient(base_url=host, **options) if kind == "podman" else docker.from_env(**options)).api
        # A CA bundle that the environment names for the web must not stand in for the engine's own.
        client.trust_env = not isinstance(client.verify, str)
        return client

    try:
        client = make(docker.constants.DEFAULT_DOCKER_API_VERSION)
        version = client.version(api_version=False)["ApiVersion"]
        client.close()
        client = make(version)
    except (DockerException, RequestException, OSError, ValueError, KeyError) as error:
        start = PODMAN_START if kind == "podman" else DOCKER_START
        words = f"no {kind} engine answers at {host or 'the default socket'}: {reason(error)}; {start}"
        raise _silence(error)(words) from error
    client.timeout = CALL_TIMEOUT
    for scheme in ("http://", "https://"):  # docker-py sizes the pools of unix sockets alone.
        if scheme in client.adapters:
            client.mount(scheme, HTTPAdapter(pool_maxsize=CONNECTIONS))
    return client


def _podman_host() -> str:
    if host := os.environ.get("CONTAINER_HOST"):
        return host
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    candidates = [f"{runtime}/podman/podman.sock", "/run/podman/podman.sock"]
    if os.getuid() == 0:
        candidates.reverse()
    for candidate in candidates:
        if Path(candidate).is_socket():
            return f"unix://{candidate}"
    return f"unix://{candidates[0]}"
