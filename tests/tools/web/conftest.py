"""A web site on loopback, and the web tools driven as the agent drives them."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import pytest

from kiseki.tools.context import ToolContext
from kiseki.tools.services import Services
from kiseki.tools.settings import ToolSettings
from kiseki.tools.toolbox import Toolbox
from kiseki.tools.toolsets import load_tools
from kiseki.trajectory.types import ToolCall, ToolRun


class Reply(msgspec.Struct, frozen=True):
    """What the site answers."""

    body: bytes = b""
    content_type: str = "text/html; charset=utf-8"
    status: int = 200
    headers: dict[str, str] = {}


class Request(msgspec.Struct, frozen=True):
    """What it was asked."""

    method: str
    path: str
    headers: dict[str, str]
    """By names in lower case."""
    body: bytes


class Site:
    """Answers by path (without its query); anything else is 404."""

    def __init__(self) -> None:
        self.pages: dict[str, Reply | Callable[[Request], Reply]] = {}
        self.asked: list[Request] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, self.path, headers, self.rfile.read(length))
                site.asked.append(request)
                page = site.pages.get(self.path.partition("?")[0], Reply(status=404))
                reply = page if isinstance(page, Reply) else page(request)
                self.send_response(reply.status)
                for name, value in ({"Content-Length": str(len(reply.body))} | reply.headers).items():
                    if value:
                        self.send_header(name, value)
                if reply.content_type:
                    self.send_header("Content-Type", reply.content_type)
                self.end_headers()
                self.wfile.write(reply.body)

            do_POST = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self.place = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.place}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def times(self) -> Counter[str]:
        """How often each path was asked for."""
        return Counter(request.path for request in self.asked)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.stop()


def article(title: str, text: str) -> bytes:
    """A page with a menu around its text, which is repeated until it is long enough to be told from the menu."""
    text = " ".join([text] * (500 // len(text) + 1))
    return (
        f"<!doctype html><html><head><title>{title}</title></head><body><nav><a href='/'>Home</a> <a href='/all'>All</a></nav>"
        f"<article><h1>{title}</h1><p>{text}</p></article><footer>Imprint</footer></body></html>"
    ).encode()


class Web:
    """One rollout's web tools; calling it calls one and gives the result's JSON."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.context = ToolContext(None, services)
        self.toolbox = Toolbox(load_tools(["web"]))
        self.run: ToolRun | None = None
        """Of the last call."""

    async def __call__(self, name: str, **arguments: Any) -> dict[str, Any]:
        message, self.run = await self.toolbox.call(self.context, ToolCall("c", name, msgspec.json.encode(arguments).decode()))
        answer = msgspec.json.decode(message.content)
        assert isinstance(answer, dict)
        return answer

    async def error(self, name: str, **arguments: Any) -> str:
        answer = await self(name, **arguments)
        assert self.run and not self.run.ok, answer
        return str(answer["error"])


Scenario = Callable[[Web], Awaitable[None]]


def with_web(scenario: Scenario, *, environ: Mapping[str, str] | None = None, **settings: Any) -> None:
    """Run a scenario with a worker's services of its own."""

    async def run() -> None:
        services = Services(ToolSettings(**settings), environ=environ)
        try:
            await scenario(Web(services))
        finally:
            await services.close()

    asyncio.run(run())
