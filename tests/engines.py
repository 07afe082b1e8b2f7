"""Real Docker and Podman for the tests: one engine of each kind for all processes of a test session, and images made here.

A keeper process (this file run as a script) starts the engine when a test first asks for it and ends it, with everything in it,
when the last process of the session that asked is gone, however that ended: those processes hold a lock that the kernel releases.
Nothing comes from the network: root filesystems are put together from the machine's own programs.

What the machine needs: root, and the programs `dockerd` or `podman`, and a static `busybox`. A test that finds less is skipped,
or fails where KISEKI_REQUIRE_ENGINES is set, as `.ci/run` does.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import pytest

BUSYBOX = "kiseki-test/busybox:latest"
"""Static busybox: `sh` (ash) and its applets."""
BASH = "kiseki-test/bash:latest"
"""bash, dash as `sh`, GNU coreutils and a few more."""
CONFIGURED = "kiseki-test/configured:latest"
"""busybox with USER agent (1000), WORKDIR /srv/code, ENV GREETING and PATH, an ENTRYPOINT that only fails and a VOLUME /data."""
NOSHELL = "kiseki-test/noshell:latest"
"""One program, /bin/true, and no shell."""

START_SECONDS = 60.0
"""For an engine to answer and to have its images; it takes 3 s on an idle machine."""
END_SECONDS = 20.0
"""For an engine to end after SIGTERM."""
PROGRAMS = """
    awk base64 basename bash cat chmod chown cp cut date dd df dirname du env expr false find grep head id kill ln ls mkdir mkfifo
    mktemp mv nohup nproc od printf ps pwd readlink realpath rm rmdir sed seq setsid sh sleep sort stat stty sync tail tar tee
    test timeout touch tr true truncate tty uname uniq wc yes
"""
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PR_SET_CHILD_SUBREAPER, _PR_SET_PDEATHSIG = 36, 1

_kept: dict[str, tuple[str, IO[str]]] = {}
"""Engines in use by this process: kind → its URL, and the lock that keeps it."""


def docker_host() -> str:
    """URL of a Docker engine with the images above, as for DOCKER_HOST; skips the test where there can be none."""
    return _host("docker", "dockerd")


def podman_host() -> str:
    """URL of a Podman service with the images above, as for CONTAINER_HOST; skips the test where there can be none."""
    return _host("podman", "podman")


def engine_host(kind: str) -> str:
    return docker_host() if kind == "docker" else podman_host()


def client(host: str) -> Any:
    """docker-py's low-level client of an engine."""
    import docker

    return docker.APIClient(base_url=host, version="auto", timeout=int(START_SECONDS))


def import_image(host: str, name: str, root: bytes, changes: Iterable[str] = ()) -> None:
    """Make an image of a root filesystem (tar), with Dockerfile instructions that `docker import` knows (CMD, ENV, USER, …)."""
    repository, _, tag = name.rpartition(":")
    api = client(host)
    try:
        api.import_image_from_data(root, repository=repository, tag=tag, changes=list(changes))
        api.inspect_image(name)  # Engines answer 200 also when the import failed.
    finally:
        api.close()


def busybox_root() -> bytes:
    """A root filesystem (tar) with a static busybox and links for its applets."""
    program = _program("busybox")
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    with _Root() as root:
        root.file("/bin/busybox", Path(program).read_bytes())
        for applet in listed:
            if applet != "busybox":
                root.link(f"/bin/{applet}", "busybox")
    return root.data


def bash_root() -> bytes:
    """A root filesystem (tar) with the machine's own bash, coreutils and the libraries that they need."""
    with _Root() as root:
        seen: set[str] = set()
        for name in PROGRAMS.split():
            program = _program(name)
            seen.update(_libraries(program))
            root.file(f"/bin/{name}", Path(program).read_bytes())
        for library in sorted(seen):
            root.file(library, Path(library).read_bytes())
    return root.data


def noshell_root() -> bytes:
    """A root filesystem (tar) with one program."""
    with _Root() as root:
        root.file("/bin/true", Path(_program("busybox")).read_bytes())
    return root.data


class _Root:
    """Builds a root filesystem as a tar, in memory."""

    def __init__(self) -> None:
        self.data = b""
        self._buffer = io.BytesIO()
        self._tar = tarfile.TarFile(fileobj=self._buffer, mode="w")
        self._folders: set[str] = set()

    def __enter__(self) -> _Root:
        for folder in ("/bin", "/dev", "/etc", "/proc", "/sys", "/var"):
            self.folder(folder)
        self.folder("/tmp", 0o1777)
        self.folder("/var/tmp", 0o1777)
        self.folder("/root", 0o700)
        self.folder("/home/agent", 0o755, 1000)
        self.folder("/srv/code", 0o755, 1000)
        self.file("/etc/passwd", b"root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:/bin/sh\n", 0o644)
        self.file("/etc/group", b"root:x:0:\nagent:x:1000:\n", 0o644)
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()
        self.data = self._buffer.getvalue()

    def folder(self, path: str, mode: int = 0o755, owner: int = 0) -> None:
        if path in self._folders or path == "/":
            return
        self._folders.add(path)
        self.folder(str(Path(path).parent))
        entry = tarfile.TarInfo(f".{path}")
        entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, mode, owner, owner
        self._tar.addfile(entry)

    def file(self, path: str, data: bytes, mode: int = 0o755) -> None:
        self.folder(str(Path(path).parent))
        entry = tarfile.TarInfo(f".{path}")
        entry.mode, entry.size = mode, len(data)
        self._tar.addfile(entry, io.BytesIO(data))

    def link(self, path: str, target: str) -> None:
        entry = tarfile.TarInfo(f".{path}")
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(entry)


def _program(name: str) -> str:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin")
    if not found:
        raise FileNotFoundError(f"the tests' images need the program {name}")
    return found


def _libraries(program: str) -> list[str]:
    said = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return re.findall(r"(/\S+) \(0x", said)


# The engines, as the tests see them


def _host(kind: str, program: str) -> str:
    if kind not in _kept:
        lacking = _lacking(program)
        if lacking and os.environ.get("KISEKI_REQUIRE_ENGINES"):
            pytest.fail(f"{lacking}, and KISEKI_REQUIRE_ENGINES is set")
        if lacking:
            pytest.skip(lacking)
        _kept[kind] = _keep(kind)
    return _kept[kind][0]


def _lacking(program: str) -> str:
    if os.getuid() != 0:
        return f"{program} needs root"
    for needed in (program, "busybox", "ldd"):
        try:
            _program(needed)
        except FileNotFoundError:
            return f"there is no {needed} on this machine"
    return ""


def _keep(kind: str) -> tuple[str, IO[str]]:
    """Have the session's engine: its URL, and a lock that has to be held as long as it is needed."""
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"pid{os.getpid()}")[:12]
    folder = Path(tempfile.gettempdir()) / f"kiseki-{kind}-{session}"
    while True:
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            users = (folder / "users").open("w")
        except FileNotFoundError:  # The keeper of an engine that nobody used any more has just removed it.
            continue
        fcntl.flock(users, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(users.fileno()), (folder / "users").stat()):
                break
        users.close()
    with (folder / "start").open("w") as start:
        fcntl.flock(start, fcntl.LOCK_EX)
        said = folder / "host"
        if not said.exists():
            with (folder / "keeper.log").open("ab") as log:
                command = [sys.executable, __file__, kind, str(folder)]
                keeper = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
            end = time.monotonic() + START_SECONDS
            while not said.exists():
                if time.monotonic() > end or keeper.poll() is not None:
                    keeper.terminate()
                    keeper.wait()
                    said_last = (folder / "keeper.log").read_text()[-4000:]
                    shutil.rmtree(folder, ignore_errors=True)
                    pytest.fail(f"{kind} does not start: {said_last}")
                time.sleep(0.05)
    return said.read_text(), users


# The keeper


def keep(kind: str, folder: Path) -> None:
    """Run an engine in `folder` until nobody holds its lock any more, and remove all of it then."""
    libc = ctypes.CDLL(None)
    # Whatever an engine leaves running becomes a child of the keeper's.
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    host = f"unix://{folder}/engine.sock"
    command, more = _docker(folder) if kind == "docker" else _podman(folder)
    with (folder / "engine.log").open("ab") as log:
        engine = subprocess.Popen(
            command,
            env={**os.environ, **more},
            cwd=folder,  # where what it starts leaves files of its own
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0),
        )
    try:
        _wait_ready(engine, folder, host)
        root = busybox_root()
        changes = ["USER agent", "WORKDIR /srv/code", "ENV GREETING=hello", f"ENV {PATH}:/opt/bin"]
        changes += ['ENTRYPOINT ["/bin/false"]', "VOLUME /data"]
        import_image(host, BUSYBOX, root, [f"ENV {PATH}"])
        import_image(host, CONFIGURED, root, changes)
        import_image(host, BASH, bash_root(), [f"ENV {PATH}"])
        import_image(host, NOSHELL, noshell_root(), [f"ENV {PATH}"])
        ready = folder / "ready"
        ready.write_text(host)
        ready.rename(folder / "host")
        with (folder / "users").open() as users:
            fcntl.flock(users, fcntl.LOCK_EX)
            _end(engine, folder, host)
    except BaseException:
        traceback.print_exc()
        _end(engine, folder, host, keep_log=True)
        raise


def _docker(folder: Path) -> tuple[list[str], dict[str, str]]:
    command = [
        _program("dockerd"),
        "--iptables=false",
        "--ip6tables=false",
        "--bridge=none",
        "--ip-forward=false",
        "--ip-masq=false",
    ]
    command += ["--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "-p", f"{folder}/pid"]
    (folder / "daemon.json").write_text("{}")
    return [*command, "--config-file", f"{folder}/daemon.json", "-H", f"unix://{folder}/engine.sock"], {}


def _podman(folder: Path) -> tuple[list[str], dict[str, str]]:
    runtime = "runc" if shutil.which("runc") else "crun"
    # The usual limits may be above what this machine's root may set; crun refuses hybrid cgroups.
    limits = '["nofile=20000:20000","nproc=30000:30000"]'
    (folder / "containers.conf").write_text(
        f"[containers]\ndefault_ulimits = {limits}\n"
        f'[engine]\nruntime = "{runtime}"\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n'
    )
    (folder / "registries.conf").write_text('[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n')
    command = [_program("podman"), "--root", f"{folder}/root", "--runroot", f"{folder}/run", "--tmpdir", f"{folder}/tmp"]
    more = {"CONTAINERS_CONF": f"{folder}/containers.conf", "CONTAINERS_REGISTRIES_CONF": f"{folder}/registries.conf"}
    return [*command, "system", "service", "--time", "0", f"unix://{folder}/engine.sock"], more


def _wait_ready(engine: subprocess.Popen[bytes], folder: Path, host: str) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            client(host).close()
            return
        except Exception as error:
            if engine.poll() is not None or time.monotonic() > end:
                raise RuntimeError((folder / "engine.log").read_text()[-4000:]) from error
        time.sleep(0.1)


def _end(engine: subprocess.Popen[bytes], folder: Path, host: str, *, keep_log: bool = False) -> None:
    with contextlib.suppress(Exception):
        api = client(host)
        with ThreadPoolExecutor(8) as pool:
            for found in api.containers(all=True):
                pool.submit(api.remove_container, found["Id"], v=True, force=True)
    engine.terminate()
    threading.Timer(END_SECONDS, engine.kill).start() if engine.poll() is None else None
    engine.wait()
    while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, 0)
    for _ in range(2):  # A mount below another.
        mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for mount in reversed(mounts):
            if mount.startswith(f"{folder}/"):
                subprocess.run(["umount", "-l", mount], capture_output=True)
    if keep_log:
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)  # Without waiting for the timer.


if __name__ == "__main__":
    keep(sys.argv[1], Path(sys.argv[2]))
