"""A registry of images on loopback, as far as pulling goes (OCI distribution, https://github.com/opencontainers/distribution-spec),
with faults by order. Docker takes one at 127.0.0.0/8 without TLS, and Podman where it is told to (tests/engines.py does).
"""

from __future__ import annotations

import collections
import gzip
import hashlib
import json
import platform
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

HANG = 0
"""A `status` for `Registry.fail`: the request is not answered while the registry lives."""

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
_CODES = {401: "UNAUTHORIZED", 403: "DENIED", 404: "MANIFEST_UNKNOWN", 429: "TOOMANYREQUESTS"}
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Registry:
    """Serves while it is entered.

    with Registry() as registry:
        image = registry.add("made/here", "latest", busybox_root())      # "127.0.0.1:PORT/made/here:latest"
    """

    def __init__(self) -> None:
        self.pulls: collections.Counter[str] = collections.Counter()
        """How often each name's manifest was given, whichever tag: once per pull."""
        self.refusals: collections.Counter[str] = collections.Counter()
        """How often each name's manifest was not."""
        self._faults: dict[str, list[int]] = {}
        self._manifests: dict[tuple[str, str], bytes] = {}
        self._blobs: dict[str, bytes] = {}
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Registry:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def add(self, name: str, tag: str, root: bytes, *, unique: str = "") -> str:
        """Have an image of one layer; returns its full name. To an engine equal images are one: `unique` makes it another."""
        layer = gzip.compress(root, 1, mtime=0)
        config = {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                "Labels": {"unique": unique},
            },
            "rootfs": {"type": "layers", "diff_ids": [_digest(root)]},
            "history": [{"created_by": "tests"}],
        }
        encoded = json.dumps(config).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {"mediaType": _CONFIG, "size": len(encoded), "digest": self._keep(encoded)},
            "layers": [{"mediaType": _LAYER, "size": len(layer), "digest": self._keep(layer)}],
        }
        data = json.dumps(manifest).encode()
        self._manifests[name, tag] = self._manifests[name, _digest(data)] = data
        return f"{self.host}/{name}:{tag}"

    def digest(self, name: str, tag: str) -> str:
        """Of a manifest that was added."""
        return _digest(self._manifests[name, tag])

    def fail(self, name: str, times: int, status: int) -> None:
        """The next requests for this name's manifests fail with an HTTP status, or `HANG`."""
        with self._lock:
            self._faults[name] = [status] * times

    def _keep(self, data: bytes) -> str:
        self._blobs[_digest(data)] = data
        return _digest(data)

    def _answer(self, path: str) -> tuple[int, str, bytes]:
        """Status, content type, body."""
        if path == "/v2/":
            return 200, "application/json", b"{}"
        if found := re.fullmatch(r"/v2/(.+)/manifests/(.+)", path):
            name, reference = found.groups()
            with self._lock:
                faults = self._faults.get(name)
                status = faults.pop(0) if faults else 200
            if status == HANG:
                self._over.wait()
            manifest = self._manifests.get((name, reference))
            if status != 200 or manifest is None:
                status = status if status != 200 else 404
                self.refusals[name] += 1
                code = _CODES.get(status, "UNKNOWN")
                message = {"code": code, "message": f"{code.lower()} by order of the test"}
                return status, "application/json", json.dumps({"errors": [message]}).encode()
            return 200, _MANIFEST, manifest
        if found := re.fullmatch(r"/v2/(.+)/blobs/(.+)", path):
            blob = self._blobs.get(found[2])
            return (404, "application/json", b"{}") if blob is None else (200, "application/octet-stream", blob)
        return 404, "application/json", b"{}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._send(body=False)

            def do_GET(self) -> None:
                self._send(body=True)

            def _send(self, *, body: bool) -> None:
                path = self.path.partition("?")[0]
                status, kind, data = registry._answer(path)
                if body and status == 200 and (found := re.fullmatch(r"/v2/(.+)/manifests/.+", path)):
                    registry.pulls[found[1]] += 1
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
                self.send_header("Docker-Content-Digest", _digest(data))
                self.end_headers()
                if body:
                    self.wfile.write(data)

            def log_message(self, format: str, *arguments: object) -> None:
                """Nothing."""

        return Handler


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
