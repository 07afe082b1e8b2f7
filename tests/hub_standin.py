"""A stand-in for the hub of Hugging Face: serves folders as repositories, as far as downloading files goes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any


@contextmanager
def hub(repositories: dict[str, Path]) -> Iterator[tuple[str, list[str]]]:
    """A stand-in for Hugging Face: its address, and the paths that were asked for."""
    sha = "0123456789abcdef0123456789abcdef01234567"
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            asked.append(path)
            for name, folder in repositories.items():
                files = sorted(folder.iterdir())
                if path == f"/api/models/{name}/tree/{sha}":
                    entries = [
                        {"type": "file", "path": each.name, "size": each.stat().st_size, "oid": each.name} for each in files
                    ]
                    return self.answer(200, json.dumps(entries).encode(), Content_Type="application/json")
                if path.startswith(f"/api/models/{name}"):
                    siblings = [{"rfilename": each.name} for each in files]
                    about = {"id": name, "sha": sha, "siblings": siblings}
                    return self.answer(200, json.dumps(about).encode(), Content_Type="application/json")
                if path.startswith(f"/{name}/resolve/{sha}/"):
                    file = folder / path.rpartition("/")[2]
                    return self.answer(200, file.read_bytes(), ETag=f'"{file.name}"', X_Repo_Commit=sha)
            return self.answer(404, b"", X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")

        do_HEAD = do_GET

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
