"""A real sshd on loopback, with keys, config and known hosts of its own, for tests of what goes over SSH."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiseki.sandboxes import processes

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/local/sbin") or ""
PRIVILEGE_SEPARATION = Path("/run/sshd")
"""Debian's sshd wants it; its service makes it."""
NO_STARTUP_FILES = "SHLVL=1 PATH=/usr/local/bin:/usr/bin:/bin"
"""Bash, when sshd starts it, reads the user's ~/.bashrc unless another shell stands above it."""
READY_SECONDS = 30.0


class Server:
    """A running sshd. `host` is for `--ssh_host`, `home` for HOME: its `.ssh` is what a user of that host has."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.host = ""
        self.sandboxes = folder / "tmp" / f"kiseki-ssh-{os.getuid()}"
        """Where the folders of all sandboxes are."""
        self._folder = folder
        self._options = ""
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, options: str = "") -> None:
        """`options` are further lines of sshd_config."""
        self._folder.chmod(0o700)
        self.sandboxes.parent.mkdir()
        ssh = self.home / ".ssh"
        ssh.mkdir(parents=True, mode=0o700)
        for key in (self._folder / "host_key", ssh / "id_ed25519"):
            make_key(key)
        shutil.copy(ssh / "id_ed25519.pub", self._folder / "authorized_keys")
        self._options = options
        self._port = free_port()
        self.host = f"{pwd.getpwuid(os.getuid()).pw_name}@127.0.0.1:{self._port}"
        self.trust(self._folder / "host_key.pub")
        self.write_config()
        self._run()

    def write_config(self, *lines: str) -> None:
        """The user's ~/.ssh/config, with these lines before the others."""
        ssh = self.home / ".ssh"
        text = [*lines, f"IdentityFile {ssh}/id_ed25519", "UserKnownHostsFile ~/.ssh/hosts", "IdentitiesOnly yes"]
        (ssh / "config").write_text("".join(f"{line}\n" for line in text))

    def trust(self, public_key: Path | None) -> None:
        """Have this key as the server's in the user's known hosts, or none."""
        line = f"[127.0.0.1]:{self._port} {public_key.read_text()}" if public_key else ""
        (self.home / ".ssh" / "hosts").write_text(line)

    def left(self) -> list[Path]:
        """What is there of sandboxes: folders, and processes that live."""
        found = list(self.sandboxes.parent.rglob("*"))
        for pid in processes.marked(str(self.sandboxes).encode()):
            if (process := processes.look(pid)) and process.running:
                found.append(Path(f"/proc/{pid}"))
        return found

    def signal_connections(self, number: int) -> None:
        """Send a signal to what serves the connections; the server itself goes on, and so do programs that were started."""
        assert self._process
        for pid in processes.descendants(self._process.pid):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().startswith("sshd"):
                    os.kill(pid, number)

    def connections(self) -> int:
        """How many are served now."""
        assert self._process
        return len(processes.children(self._process.pid))

    def stop(self) -> None:
        """Kill it, with what serves connections and what sandboxes run."""
        if self._process:
            self.signal_connections(signal.SIGKILL)
            processes.end_all(lambda: processes.marked(str(self.sandboxes).encode()))
            self._process.kill()
            self._process.wait()
            self._process = None

    def _run(self) -> None:
        folder = self._folder
        config = folder / "sshd_config"
        config.write_text(
            f"Port {self._port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nPasswordAuthentication no\n"
            f"PermitRootLogin prohibit-password\nPrintMotd no\nSetEnv {NO_STARTUP_FILES} TMPDIR={folder}/tmp\n{self._options}"
        )
        if os.geteuid() == 0:
            PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
        with (folder / "sshd.log").open("ab") as log:
            command = [SSHD, "-D", "-e", "-f", str(config)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1) as client:
                if client.recv(4).startswith(b"SSH-"):
                    return
            time.sleep(0.02)
        said = (folder / "sshd.log").read_text(errors="replace")
        raise AssertionError(f"sshd does not start: {said[-2000:]}")


@contextlib.contextmanager
def sshd(options: str = "") -> Iterator[Server]:
    """A server, gone after that. Skips the test where there is no sshd, unless KISEKI_REQUIRE_ENGINES says that there must be."""
    if not SSHD:
        if os.environ.get("KISEKI_REQUIRE_ENGINES"):
            raise AssertionError("no sshd on this machine: install openssh-server")
        pytest.skip("no sshd on this machine: install openssh-server")
    folder = Path(tempfile.mkdtemp(prefix="kiseki-sshd-"))
    server = Server(folder)
    try:
        server.start(options)
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def make_key(path: Path) -> Path:
    """A new key without passphrase, where there is none yet. Returns the file of its public half."""
    if not path.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", path], check=True)
    return path.with_name(f"{path.name}.pub")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
