"""One running MCP server with the SDK's session on it, from start to end.

The SDK's contexts have to be left in the task that entered them, so each connection is a task of its own. Requests may come from
any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from kiseki import __version__
from kiseki.errors import SandboxError, ToolError
from kiseki.sandboxes.base import Channel
from kiseki.tools.mcp.given import secrets_given
from kiseki.tools.mcp.programs import TAIL_BYTES, HostProgram
from kiseki.tools.mcp.transport import over_channel, over_http
from kiseki.tools.redact import redact, secrets_of
from kiseki.tools.running import leave
from kiseki.tools.settings import McpServer
from kiseki.trajectory.text import clean_text, printable

if TYPE_CHECKING:
    from mcp.client import Client

START_SECONDS = 60.0
"""For a server to start and to introduce itself, or its `timeout` where that is longer: npx and uvx download first."""
CLOSE_SECONDS = 8.0
"""Above what ending a program takes (`programs.END_SECONDS`, three times) and a last HTTP request."""
MAX_WORDS = 600
MAX_TAIL = 400
"""Characters of a message about a server, and of what it wrote itself, at its end."""
MAX_PAGES = 100
MAX_TOOLS = 1000
"""Of one server; far more than any model is offered."""
_SILENT = logging.NullHandler()
"""For the loggers of the SDK: else what they warn of goes to stderr, with words of the server in it."""

Start = Callable[[], Awaitable[Channel]]


class Connection:
    """Starts at once. `ready` says when it can be asked, `over` when it cannot any more."""

    def __init__(self, server: McpServer, start: Start | None) -> None:
        """`start` gives the server's program; None for one that is an HTTP endpoint."""
        self._server = server
        self._start = start
        self._ended = asyncio.Event()
        self._stop = asyncio.Event()
        self.refused: list[int] = []
        """HTTP status of the last request that an endpoint refused."""
        self._others = bytearray()
        """The last that its program wrote to stdout and was no message."""
        self._client: Client | None = None
        self._answered = asyncio.Event()
        self.broken: SandboxError | None = None
        """Why no server can run there any more."""
        self.why = ""
        """Why it is over, for the model and the user: no secret is in it."""
        self._task = asyncio.create_task(self._serve())
        seconds = max(START_SECONDS, server.timeout)
        self._clock = asyncio.get_running_loop().call_later(seconds, self._give_up, seconds)

    @property
    def over(self) -> bool:
        return self._task.done() or self._ended.is_set() or self._stop.is_set()

    async def ready(self) -> Client:
        """The session. Raises `ToolError` when the server did not start, `SandboxError` when its sandbox is the reason."""
        await self._answered.wait()
        if self._client is not None:
            return self._client
        if self.broken is not None:
            raise self.broken
        raise ToolError(f"the MCP server {self._server.name} did not start: {self.why}")

    async def close(self) -> None:
        """End it, in `CLOSE_SECONDS` at most. Never raises, and may be called twice."""
        self._stop.set()
        if not self._answered.is_set():
            self._task.cancel()
        done, _ = await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
        if not done:
            self._task.cancel()
            done, _ = await asyncio.wait([self._task], timeout=1.0)
        if not done:
            leave(self._task)

    def _give_up(self, seconds: float) -> None:
        if not self._answered.is_set():
            self.why = f"no answer within {seconds:g} s"
            self._task.cancel()

    async def _serve(self) -> None:
        program: Channel | None = None
        try:
            if self._start is not None:
                program = await self._start()
            async with self._session(program) as client:
                self._client = client
                self.refused.clear()
                self._answered.set()
                await _first(self._stop, self._ended)
        except BaseException as error:  # whatever it is ends this connection, and nothing else
            causes = list(_causes(error))
            self.broken = next((each for each in causes if isinstance(each, SandboxError)), None)
            self.why = self.why or self._words(causes)
        finally:
            self._clock.cancel()
            self._ended.set()
            if program is not None:
                await _to_its_end(program.close())
            self.why = say(self._server, self.why or "it has ended")
            tail = program.tail if isinstance(program, HostProgram) else ""
            if wrote := tail or self._others.decode("utf-8", "replace").strip():
                self.why += f"; it wrote: {say(self._server, wrote, TAIL_BYTES)[-MAX_TAIL:]}"
            self._answered.set()

    @contextlib.asynccontextmanager
    async def _session(self, program: Channel | None) -> AsyncIterator[Client]:
        from mcp.client import Client
        from mcp_types import Implementation

        for name in ("mcp", "client", "httpx2"):
            logging.getLogger(name).addHandler(_SILENT)
        streams: Any = (
            over_channel(program, self._ended, self._others) if program else over_http(self._server, self._ended, self.refused)
        )
        mode = "legacy" if self._server.legacy else "auto"
        info = Implementation(name="kiseki", version=__version__)
        async with Client(streams, mode=mode, client_info=info, cache=None) as client:
            if program is None and not is_legacy(client):
                # arguments that go into headers too are only known from a listing
                await list_tools(client)
            yield client

    def _words(self, causes: list[BaseException]) -> str:
        said = [str(each) or type(each).__name__ for each in causes if not isinstance(each, asyncio.CancelledError)]
        if self.refused:
            said.append(f"HTTP status {self.refused[0]}")
        if any(each == "Connection closed" for each in said):
            said = ["it ended before it answered"]
        return "; ".join(dict.fromkeys(said))


async def list_tools(client: Client) -> list[Any]:
    """All pages of a server's tools, `MAX_TOOLS` at most. Raises what the SDK raises."""
    found: list[Any] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        if page.next_cursor is None or page.next_cursor == cursor or len(found) >= MAX_TOOLS:
            break
        cursor = page.next_cursor
    return found[:MAX_TOOLS]


def is_legacy(client: Client) -> bool:
    from mcp_types.version import MODERN_PROTOCOL_VERSIONS

    return client.protocol_version not in MODERN_PROTOCOL_VERSIONS


def say(server: McpServer, words: str, limit: int = MAX_WORDS) -> str:
    """What is told about a server, in one line, without any of its secrets."""
    return printable(redact(clean_text(words), secrets_of("", secrets_given([server])))[0], limit)


def _causes(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [cause for each in error.exceptions for cause in _causes(each)]
    return [error]


async def _first(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(each.wait()) for each in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()


async def _to_its_end(work: Awaitable[None]) -> None:
    """Also when this task is cancelled meanwhile: nothing else would end the program."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])
