"""What the contract suite has to know of each backend: how a sandbox of it is opened, looked at and killed from outside, and the
facts in which backends may differ. What all must do is in the tests.

Everything is real but Modal, and Apptainer where the machine has none: stand-ins (`modal_server.py`, `apptainer_standin.py`).
All sandboxes are on this machine, so their processes are in this process table.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import engines
import msgspec
import pytest
from apptainer_standin import apptainer, unpacked
from ssh_server import Server, sshd

from kiseki.sandboxes import bubblewrap, cgroup, folders, processes
from kiseki.sandboxes.apptainer import images as apptainer_images
from kiseki.sandboxes.apptainer.instance import environment_of
from kiseki.sandboxes.factory import BACKENDS, HAS_IMAGES

ALL = BACKENDS
READ_ONLY = "Read-only file system"
LEADS_OUT = {"../../x": "leads out", "~/../x": "leads out", "..": "leads out"}
"""Working folders that a sandbox cannot have whose files are the host's."""
APPTAINERS_OWN = frozenset(
    f"{name}_{part}" for name in ("APPTAINER", "SINGULARITY") for part in ("BIND", "COMMAND", "CONTAINER", "ENVIRONMENT", "NAME")
)
"""Variables that Apptainer sets in every container."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A backend as it is tested on this machine."""

    backend: str
    traces: Callable[[str], list[str]]
    """What there is of the sandboxes with this label or one below it."""
    kill: Callable[[str], None]
    """End the machine of the only sandbox with this label as something outside would."""
    host: str = ""
    image: str = ""
    """Of the tests: bash and coreutils."""
    small_image: str = ""
    """Another one, without bash."""
    lost_image: str = ""
    """One that cannot be had."""
    bare_image: str = ""
    """One without a shell."""
    apart: bool = True
    """Files and processes of the host and of other sandboxes are not to be seen, whatever the command. Otherwise a sandbox is a
    private folder, and a command that kills everything would."""
    bad_folders: dict[str, str] = {}
    """Working folders that cannot be had, each with words of the error."""
    variables: frozenset[str] = frozenset()
    """What there is in the environment beside the usual."""
    host_network: bool = False
    """With the network on, the host's loopback is reached: it is the host's network."""
    enforced: bool = True
    """The limits that it says are in force. False of a stand-in that only records them."""
    many: int = 10
    """Sandboxes that open at once where a test wants to see races: as many as take about a second."""
    long_line: int = 200_000_000
    """Bytes of a line: what takes some seconds; a gigabyte on two."""
    held_bytes: int = 40_000_000
    """Most that this process holds of a command's output, whatever its size."""
    bash: bool = True
    """There is one, and it is the session's shell."""
    cannot_enter: int = 1
    """Status of a `cd` that fails."""
    death_notice: int = 0
    """Bytes in the output with which the shell says that a command was killed."""
    mute: frozenset[str] = frozenset()
    """Commands after which the shell says nothing more: they run to their limit, and it is replaced."""


@contextlib.contextmanager
def tested(backend: str) -> Iterator[Place]:
    """The backend, ready; skips where this machine cannot have it, and fails then if it must (KISEKI_REQUIRE_ENGINES)."""
    with contextlib.ExitStack() as stack:
        try:
            place = stack.enter_context(_PLACES[backend]())
        except pytest.skip.Exception as why:
            if os.environ.get("KISEKI_REQUIRE_ENGINES"):
                pytest.fail(f"{why}, and KISEKI_REQUIRE_ENGINES is set")
            raise
        yield place


def on_this_machine(label: str) -> list[str]:
    """Folders, control groups and processes: what every sandbox on this machine may leave."""
    groups = [str(path) for group in cgroup.left_over(folders.group_prefix(label)) for path in group.folders.values()]
    marked = [f"process {pid}" for pid in processes.marked(*folders.cookies(label)) if _runs(pid)]
    return groups + marked + [str(folder) for folder in folders.left_over(label)]


def _runs(pid: int) -> bool:
    process = processes.look(pid)
    return process is not None and process.running


def _kill_all(label: str) -> None:
    """The oldest first, so that none is left to tell of another's death as if it were a command's."""
    found = {pid: process for pid in processes.marked(*folders.cookies(label)) if (process := processes.look(pid))}
    processes.send(sorted(found, key=lambda pid: (found[pid].started, pid)), signal.SIGKILL)


@contextlib.contextmanager
def _local() -> Iterator[Place]:
    yield Place(backend="local", traces=on_this_machine, kill=_kill_all, apart=False, bad_folders=LEADS_OUT, host_network=True)


@contextlib.contextmanager
def _bubblewrap() -> Iterator[Place]:
    if reason := bubblewrap.working_program()[1]:
        pytest.skip(reason)
    yield Place(
        backend="bubblewrap",
        traces=on_this_machine,
        kill=_kill_all,
        bad_folders={"/usr/newdir": f"'/usr/newdir' cannot be made in the sandbox: {READ_ONLY}", "/etc/passwd": "File exists"},
        host_network=True,
        long_line=1_000_000_000,
    )


@contextlib.contextmanager
def _engine(kind: str) -> Iterator[Place]:
    _need("docker")
    host = engines.engine_host(kind)
    with mock.patch.dict(os.environ, {"DOCKER_HOST" if kind == "docker" else "CONTAINER_HOST": host}):
        api = engines.client(host)

        def containers(label: str) -> list[Any]:
            found = api.containers(all=True, filters={"label": "kiseki.label"})
            return [each for each in found if _below(each["Labels"]["kiseki.label"], label)]

        def kill(label: str) -> None:
            for each in containers(label):
                api.kill(each["Id"])

        yield Place(
            backend=kind,
            traces=lambda label: [*on_this_machine(label), *(each["Id"] for each in containers(label))],
            kill=kill,
            image=engines.BASH,
            small_image=engines.BUSYBOX,
            lost_image="kiseki-test/nosuch:1",
            bare_image=engines.NOSHELL,
            bad_folders={"/proc/newdir": "cannot be made in the sandbox", "/etc/passwd": "File exists"},
            variables=frozenset({"HOSTNAME", "container"}),
            many=3,
            long_line=1_000_000_000 if kind == "docker" else 200_000_000,
        )
        api.close()


@contextlib.contextmanager
def _busybox() -> Iterator[Place]:
    """Docker with an image that has no bash and none of GNU's programs."""
    with _engine("docker") as place:
        yield msgspec.structs.replace(
            place,
            image=engines.BUSYBOX,
            bash=False,
            cannot_enter=2,
            death_notice=len("Killed\n"),
            mute=frozenset({"set -n"}),  # A shell that is not interactive does as it is told.
            long_line=100_000_000,
        )


@contextlib.contextmanager
def _apptainer() -> Iterator[Place]:

    def kill(label: str) -> None:
        for folder in folders.left_over(label):
            words = [apptainer_images.program(), "instance", "list", "--json"]
            listed = subprocess.run(words, env=environment_of(folder), capture_output=True, check=True).stdout
            processes.send([each["pid"] for each in json.loads(listed)["instances"]], signal.SIGKILL)

    with apptainer() as installed, tempfile.TemporaryDirectory(prefix="kiseki-images-") as folder:
        yield Place(
            backend="apptainer",
            traces=on_this_machine,
            kill=kill,
            image=unpacked(engines.bash_root(), Path(folder, "bash")),
            small_image=installed.image,
            lost_image=f"{folder}/nosuch.sif",
            bare_image=unpacked(engines.noshell_root(), Path(folder, "bare")),
            bad_folders={"/proc/newdir": "cannot be made in the sandbox", "/etc/passwd": "File exists"},
            variables=APPTAINERS_OWN,
            host_network=True,
            many=2,
        )


@contextlib.contextmanager
def _modal() -> Iterator[Place]:
    _need("modal")
    from modal_proto import api_pb2
    from modal_server import modal_server

    with modal_server() as server:

        def running(label: str) -> list[Any]:
            return [each for each in server.running() if label in each.tags.values()]

        def kill(label: str) -> None:
            for each in running(label):
                server.end(each, api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_TERMINATED))

        yield Place(
            backend="modal",
            traces=lambda label: [*on_this_machine(label), *(each.id for each in running(label))],
            kill=kill,
            image=engines.BASH,
            small_image=engines.BUSYBOX,
            lost_image="kiseki-test/nosuch:1",
            bare_image=engines.NOSHELL,
            bad_folders={"/proc/newdir": "cannot be made in the sandbox", "/etc/passwd": "File exists"},
            variables=frozenset({"MODAL_SANDBOX_ID"}),
            enforced=False,
            held_bytes=150_000_000,  # Both ends of the SDK's HTTP/2 connection, which lets 64 MiB be on their way, are here.
            host_network=True,
            many=4,
        )


@contextlib.contextmanager
def _ssh() -> Iterator[Place]:
    _need("asyncssh")
    with sshd() as server, mock.patch.dict(os.environ, HOME=str(server.home)):
        os.environ.pop("SSH_AUTH_SOCK", None)
        yield Place(
            backend="ssh",
            host=server.host,
            traces=lambda label: [*on_this_machine(label), *_left_on(server, label)],
            kill=lambda label: server.signal_connections(signal.SIGKILL),
            apart=False,
            bad_folders=LEADS_OUT,
            variables=frozenset({"KISEKI_SANDBOX"}),
            host_network=True,
        )


def _left_on(server: Server, label: str) -> list[str]:
    top = server.sandboxes
    paths = [path for pattern in (label, f"{label}/*", f"{label}.*/*", ".new/*") for path in top.glob(pattern)]
    marked = processes.marked(f"{top}/{label}/".encode(), f"{top}/{label}.".encode())
    return [*map(str, paths), *(f"process {pid}" for pid in marked if _runs(pid))]


def _below(theirs: str, label: str) -> bool:
    return theirs == label or theirs.startswith(f"{label}.")


def _need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"the Python package {package} is not installed")


_PLACES: dict[str, Callable[[], contextlib.AbstractContextManager[Place]]] = {
    "local": _local,
    "bubblewrap": _bubblewrap,
    "docker": lambda: _engine("docker"),
    "podman": lambda: _engine("podman"),
    "apptainer": _apptainer,
    "modal": _modal,
    "ssh": _ssh,
    "busybox": _busybox,
}

SHELLS = (*ALL, "busybox")
"""All, and one where the shell is no bash: for what depends on the shell."""
PYTHON = ("local", "bubblewrap", "ssh")
"""Those with a python3 inside."""
WITH_IMAGES = HAS_IMAGES
WITHOUT_IMAGES = tuple(name for name in ALL if name not in HAS_IMAGES)
APART = tuple(name for name in ALL if name not in ("local", "ssh"))
"""Those whose commands cannot reach the host's processes and files."""


def places(*backends: str) -> Callable[..., Iterator[Place]]:
    """A fixture that is each of them."""

    @pytest.fixture(scope="module", params=backends)
    def place(request: pytest.FixtureRequest) -> Iterator[Place]:
        with tested(request.param) as place:
            yield place

    return place


def only(*backends: str) -> pytest.MarkDecorator:
    """For a test that is by nature about some backends."""
    return pytest.mark.parametrize("place", backends, indirect=True, scope="module")
