"""A Docker engine by its answers alone, for what no real one says when it is asked to."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec

API_VERSION = "1.41"


class EngineStandin:
    def __init__(self) -> None:
        self.host = ""
        self.answers: list[tuple[str, int, bytes]] = []
        """Method and path as a pattern, HTTP status, body. The first that fits answers; where none does, it is 200 and `{}`."""
        self.asked: list[tuple[str, bytes]] = []
        """Method and path, body; in their order."""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        asked = f"{method} {path.partition('?')[0].removeprefix(f'/v{API_VERSION}')}"
        self.asked.append((asked, body))
        if asked.endswith("/version"):
            return 200, msgspec.json.encode({"ApiVersion": API_VERSION})
        return next(((status, said) for pattern, status, said in self.answers if re.fullmatch(pattern, asked)), (200, b"{}"))


def refusal(words: str) -> bytes:
    return msgspec.json.encode({"message": words})


@contextmanager
def engine_standin() -> Iterator[EngineStandin]:
    """One that listens; `host` is as for DOCKER_HOST."""
    engine = EngineStandin()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            self.raw_requestline = self.rfile.readline()
            if not self.raw_requestline or not self.parse_request():
                self.close_connection = True
                return
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, said = engine.answer(self.command, self.path, body)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    engine.host = f"tcp://127.0.0.1:{server.server_address[1]}"
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    try:
        yield engine
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
