"""Another door to an engine's socket, for what an engine in the tests does not have by itself: TCP, TLS, and going away."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from pathlib import Path


class Forward:
    """Listens while it is entered, and passes bytes on to the unix socket of `host`."""

    def __init__(self, host: str, *, path: Path | None = None, tls: ssl.SSLContext | None = None) -> None:
        """Listens on the unix socket `path`, else on a free port of loopback."""
        self._target = host.removeprefix("unix://")
        self._tls = tls
        self._open: set[socket.socket] = set()
        self._flow = threading.Event()
        self._flow.set()
        self._listener = socket.socket(socket.AF_UNIX) if path else socket.socket()
        self._listener.bind(str(path) if path else ("127.0.0.1", 0))
        self._listener.listen(64)
        self.host = f"unix://{path}" if path else f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Forward:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def hold(self) -> None:
        """Pass nothing on any more, as an engine that hangs."""
        self._flow.clear()

    def release(self) -> None:
        """Pass on again, also what was held."""
        self._flow.set()

    def cut(self) -> None:
        """Break every connection off and take no more."""
        self.release()
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client: socket.socket) -> None:
        try:
            if self._tls:
                client = _Duplex(self._tls, client).plain
            engine = socket.socket(socket.AF_UNIX)
            engine.connect(self._target)
        except OSError:
            client.close()
            return
        self._open |= {client, engine}
        back = threading.Thread(target=_pump, args=(engine, client, self._flow), daemon=True)
        back.start()
        _pump(client, engine, self._flow)
        back.join()
        for one in (client, engine):
            self._open.discard(one)
            one.close()


class _Duplex:
    """A TLS connection as a plain socket: two threads must not be in OpenSSL at once, so it is given no socket."""

    def __init__(self, context: ssl.SSLContext, client: socket.socket) -> None:
        self._client = client
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._lock = threading.Lock()
        self._shaken = threading.Event()
        self.plain, self._inner = socket.socketpair()
        threading.Thread(target=self._decrypt, daemon=True).start()
        threading.Thread(target=self._encrypt, daemon=True).start()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._client.sendall(self._outgoing.read())

    def _decrypt(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(65536):
                plain = b""
                with self._lock:
                    self._incoming.write(data)
                    try:
                        if not self._shaken.is_set():
                            self._tls.do_handshake()
                            self._shaken.set()
                        while True:
                            plain += self._tls.read(65536)
                    except ssl.SSLWantReadError:
                        self._flush()
                self._inner.sendall(plain)
        self._shaken.set()
        with contextlib.suppress(OSError):
            self._inner.shutdown(socket.SHUT_WR)

    def _encrypt(self) -> None:
        self._shaken.wait()
        with contextlib.suppress(OSError):
            while data := self._inner.recv(65536):
                with self._lock:
                    self._tls.write(data)
                    self._flush()
        with contextlib.suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)
        self._client.close()
        self._inner.close()


def _pump(source: socket.socket, target: socket.socket, flow: threading.Event) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            flow.wait()
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def certificates(folder: Path) -> ssl.SSLContext:
    """Have ca.pem, cert.pem and key.pem in the folder, as DOCKER_CERT_PATH wants them; returns the server's side of it."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca-key.pem", "-out", "ca.pem", "-subj", "/CN=ca", "-days", "2")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        openssl("req", *key, "-keyout", f"{name}-key.pem", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signing = ("-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-days", "2", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing)
    (folder / "client.pem").rename(folder / "cert.pem")
    (folder / "client-key.pem").rename(folder / "key.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server-key.pem")
    context.load_verify_locations(folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context
