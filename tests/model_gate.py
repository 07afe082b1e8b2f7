"""A door in front of a mock server that turns some requests away, in the words of another server."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from kiseki.models.mock_server import MockServer

Refusal = Callable[[dict[str, Any]], str | None]


@contextmanager
def gate(server: MockServer, refuses: Refusal) -> Iterator[str]:
    """A base URL where requests get a 400 with the words that `refuses` has for them; the others go on to `server`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._pass_on("GET", b"")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            words = refuses(json.loads(body))
            if words is None:
                self._pass_on("POST", body)
            else:
                self._answer(400, "application/json", json.dumps({"error": {"message": words}}).encode())

        def _pass_on(self, method: str, body: bytes) -> None:
            with closing(http.client.HTTPConnection(urlsplit(server.base_url).netloc)) as connection:
                connection.request(method, self.path, body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                self._answer(response.status, response.headers["Content-Type"], response.read())

        def _answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    door = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=door.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{door.server_port}/v1"
    finally:
        door.shutdown()
        thread.join()
        door.server_close()
