"""Servers over streamable HTTP: headers, lost sessions, answers without bounds, and endpoints that refuse."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from mcp.server import MCPServer
from mcp_rollouts import SANDBOX, Play, Rollout
from mcp_servers import config, everything_over_http

from kiseki.tools.mcp import transport
from kiseki.tools.mcp.discovery import discover

KEY = "abcdefgh-0123456789"


class Endpoint(ThreadingHTTPServer):
    """An MCP endpoint with sessions that wants a key."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.connections: list[socket.socket] = []
        self.sessions: set[str] = set()
        self.begun = 0
        self.calls = 0
        self.zipped = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/mcp"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Endpoint

    def setup(self) -> None:
        super().setup()
        self.server.connections.append(self.connection)

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_GET(self) -> None:
        self.answer(405)

    do_DELETE = do_GET

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers["Authorization"] != f"Bearer {KEY}":
            return self.answer(401)
        if self.path != "/mcp":
            return self.answer(302, Location=f"http://127.0.0.1:{self.server.server_port + 1}/{KEY}")
        number, method = message.get("id"), message["method"]
        more = {}
        result: dict[str, Any]
        if method == "initialize":
            self.server.begun += 1
            more["Mcp-Session-Id"] = session = f"session-{self.server.begun}"
            self.server.sessions.add(session)
            result = {"protocolVersion": message["params"]["protocolVersion"], "capabilities": {"tools": {}}}
            result["serverInfo"] = {"name": "endpoint", "version": "1"}
        elif number is None:
            return self.answer(202)
        elif method not in ("tools/list", "tools/call"):
            return self.say({"id": number, "error": {"code": -32601, "message": "Method not found"}})
        elif self.headers["Mcp-Session-Id"] not in self.server.sessions:
            return self.answer(404)
        elif method == "tools/list":
            result = {"tools": [{"name": "give", "inputSchema": None}]}
        else:
            self.server.calls += 1
            result = {"content": [{"type": "text", "text": "x" * message["params"]["arguments"]["size"]}]}
        return self.say({"id": number, "result": result}, **more)

    def say(self, message: dict[str, Any], **headers: str) -> None:
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        zipped = {"Content-Encoding": "gzip"} if self.server.zipped else {}
        self.answer(200, gzip.compress(data) if zipped else data, **{"Content-Type": "application/json"}, **zipped, **headers)

    def answer(self, status: int, data: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def serving(port: int = 0) -> Endpoint:
    server = Endpoint(port)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    return server


def stop(server: Endpoint) -> None:
    server.shutdown()
    server.server_close()
    for connection in server.connections:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    server = serving()
    yield server
    stop(server)


@pytest.fixture
def entry(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("ENDPOINT_KEY", KEY)
    return {"type": "http", "url": endpoint.url, "headers": {"Authorization": "Bearer ${ENDPOINT_KEY}"}}


def test_a_lost_session_is_begun_again_and_nobody_notices(play: Play, endpoint: Endpoint, entry: dict[str, Any]) -> None:
    play.find(far=entry)

    async def scenario(rollout: Rollout) -> None:
        assert await rollout("mcp_far_give", size=3) == "xxx"
        endpoint.sessions.clear()
        assert await rollout("mcp_far_give", size=4) == "xxxx"

    play(scenario)
    assert (endpoint.begun, endpoint.calls) == (3, 2), "one for the listing, two for the worker"


def test_answers_are_bounded(play: Play, endpoint: Endpoint, entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MAX_MESSAGE_BYTES", 1_000_000)
    play.find(far=entry)

    async def scenario(rollout: Rollout) -> None:
        assert "the server's answer has more than" in await rollout.error("mcp_far_give", size=2_000_000)
        assert await rollout("mcp_far_give", size=1) == "x"
        endpoint.zipped = True
        assert "the server compresses its answers" in await rollout.error("mcp_far_give", size=1)

    play(scenario)


def test_an_endpoint_that_was_away_is_found_again(play: Play, entry: dict[str, Any], endpoint: Endpoint) -> None:
    play.find(far=entry)

    async def scenario(rollout: Rollout) -> None:
        assert await rollout("mcp_far_give", size=1) == "x"
        port = endpoint.server_port
        await asyncio.to_thread(stop, endpoint)
        assert "the MCP server far was lost during the call" in await rollout.error("mcp_far_give", size=1)
        assert "the MCP server far did not start" in await rollout.error("mcp_far_give", size=1)
        again = serving(port)
        assert await rollout("mcp_far_give", size=1) == "x"
        await asyncio.to_thread(stop, again)

    play(scenario)


def test_why_an_endpoint_cannot_be_had(tmp_path: Path, endpoint: Endpoint, entry: dict[str, Any]) -> None:
    servers = {
        "closed": {"url": "http://127.0.0.1:9/mcp"},
        "refusing": {"url": endpoint.url},
        "elsewhere": {**entry, "url": f"{endpoint.url}x?key=${{ENDPOINT_KEY}}"},
    }
    found, lost = discover(config(tmp_path, **servers), SANDBOX)
    assert not found
    assert lost["mcp-closed"] == "the MCP server closed did not start: All connection attempts failed"
    assert lost["mcp-refusing"].endswith("Server returned an error response; HTTP status 401")
    assert "Redirect to" in lost["mcp-elsewhere"] and KEY not in lost["mcp-elsewhere"]


def test_server_everything_over_http(play: Play) -> None:
    with everything_over_http() as url:
        play.find(every={"type": "streamable-http", "url": url, "headers": {"X-Own": "1"}})

        async def scenario(rollout: Rollout) -> None:
            assert await rollout("mcp_every_echo", message="hello") == "Echo: hello"
            assert await rollout("mcp_every_get-sum", a=2, b=3) == "The sum of 2 and 3 is 5."
            answer = await rollout.json("mcp_every_get-tiny-image")
            assert answer["attachments"][0]["format"] == "png"
            words = await rollout("mcp_every_trigger-long-running-operation", duration=0.2, steps=2)
            assert words.startswith("Long running operation completed")

        play(scenario)


def test_a_server_of_the_sdk_of_today(play: Play) -> None:
    server = MCPServer("modern")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    app = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), port=0, log_level="critical", lifespan="on"))
    thread = threading.Thread(target=app.run, daemon=True)
    thread.start()
    while not app.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = app.servers[0].sockets[0].getsockname()[1]
    play.find(modern={"url": f"http://127.0.0.1:{port}/mcp"})
    assert not play.servers[0].legacy

    async def scenario(rollout: Rollout) -> None:
        assert await rollout("mcp_modern_add", a=2, b=3) == "5"
        assert "validation error" in await rollout.error("mcp_modern_add", a="x", b=3)

    play(scenario)
    app.should_exit = True
    thread.join()
