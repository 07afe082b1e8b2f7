"""A fault-injecting model server on loopback, for tests, benchmarks and first tries without a key: chat completions, Responses,
Anthropic's Messages.

    with MockServer(turns=2, faults={"rate_limit": 0.1}) as server:
        ... server.base_url ...
        server.stats()["calls"]

It runs in a thread of its own with its own event loop; `process=True` runs it in a child process instead, so that its CPU
(`stats()["cpu_seconds"]`) is not that of what is measured. `serve` is the same without either, for the command line.
Loopback only: it takes no bind address. Endpoints: POST /v1/chat/completions, POST /v1/responses, POST /v1/messages,
POST /generate, POST /v1/images/generations, POST /fal/MODEL, GET /v1/models, GET /images/NAME.png, GET /health, GET /stats
(`?log=1`).
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from kiseki.models.mock_http import MockConnection
from kiseki.models.mock_script import MockConfig, script_of
from kiseki.models.mock_state import MockState

LOOPBACK = "127.0.0.1"
BACKLOG = 4096  # connections that may wait at once: a whole run's rollouts start together
START_SECONDS = 30.0


async def serve(config: MockConfig, port: int, started: Callable[[int], None]) -> None:
    """Serve until cancelled; `started` is told the port (a free one for 0). Raises OSError where the port is taken."""
    state = MockState(config)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: MockConnection(state), LOOPBACK, port, backlog=BACKLOG)
    try:
        started(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()
    finally:
        server.close()
        for connection in list(state.connections):
            connection.abort()


class MockServer:
    """A running mock server as a context manager, or by `start` and `stop`."""

    def __init__(self, script: Any = (), *, process: bool = False, port: int = 0, **config: Any) -> None:
        """`script`: rules as decoded JSON or as `Rule`s; `config`: the other fields of `MockConfig`.

        Raises msgspec.ValidationError or ValueError where they are none.
        """
        self._config = MockConfig(script=script_of(msgspec.to_builtins(script)), **config)
        self._process_wanted = process
        self._port = port
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._failure: BaseException | None = None

    @property
    def root_url(self) -> str:
        return f"http://{LOOPBACK}:{self._port}"

    @property
    def base_url(self) -> str:
        """What `--base_url` takes."""
        return f"{self.root_url}/v1"

    def __enter__(self) -> MockServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Return when it answers. Raises OSError where the port is taken, RuntimeError where the child process fails."""
        if self._process_wanted:
            self._start_child()
            return
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="kiseki-mock-server", daemon=True)
        self._thread.start()
        ready.wait(START_SECONDS)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Close every connection and end. Does nothing when it isn't running."""
        if self._child is not None:
            self._child.communicate()  # closes its stdin, at whose end it exits
            self._child = None
        if self._thread is not None:
            if self._loop is not None and self._task is not None and self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(START_SECONDS)
            self._thread = None

    def stats(self, *, log: bool = False) -> dict[str, Any]:
        """What GET /stats says; with `log`, the last `record` requests too (oldest first)."""
        connection = http.client.HTTPConnection(LOOPBACK, self._port, timeout=START_SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", "/stats?log=1" if log else "/stats")
            stats: dict[str, Any] = msgspec.json.decode(connection.getresponse().read())
            return stats

    def _run(self, ready: threading.Event) -> None:
        def started(port: int) -> None:
            self._port = port
            ready.set()

        async def run() -> None:
            self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
            await serve(self._config, self._port, started)

        try:
            asyncio.run(run())
        except asyncio.CancelledError:
            pass
        except OSError as error:
            self._failure = error
        finally:
            ready.set()

    def _start_child(self) -> None:
        config = msgspec.json.encode({"port": self._port, "config": self._config})
        self._child = subprocess.Popen(
            [sys.executable, "-m", "kiseki.models.mock_server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(config + b"\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"The mock server's process ended with status {self._child.wait()}.")
        self._port = int(line)


def _child_main() -> None:
    """Serve what the first line of stdin says, until stdin ends: a child never outlives its parent."""
    asked = msgspec.json.decode(sys.stdin.buffer.readline())
    config = msgspec.convert(asked["config"], MockConfig)

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), task.cancel)
        await serve(config, asked["port"], lambda port: print(port, flush=True))  # noqa: T201

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(run())


if __name__ == "__main__":
    _child_main()
