"""Sandboxes that are ordinary processes of this machine: own HOME, TMPDIR and folders, a clean environment, nothing more.

No security boundary: commands can read and change what the user who started the run can, and a literal /tmp is the host's own
(TMPDIR leads elsewhere). An absolute `cwd` is made below the private folder, and a relative one must stay in the home folder. On
close all processes of the sandbox are killed and its folder is removed. A sandbox's processes are those in its cgroup where
there is one; else those below its first process or with its folder in their environment, so a daemon that cleared its
environment survives.
"""

from __future__ import annotations

import shutil

from kiseki.errors import SandboxError, UsageError
from kiseki.sandboxes import cgroup, folders
from kiseki.sandboxes.launch import Blueprint, fifo_folder, launch
from kiseki.sandboxes.programs import INTERACTIVE, QUIET
from kiseki.sandboxes.python import PYTHON_VARIABLES, STANDARD_PATH, python_folder
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.sandboxes.shell import ShellSandbox

LOCAL_WARNING = (
    "Sandbox 'local' keeps rollouts apart but does not protect this machine: commands run on it directly, as the current "
    "user, and can read and change everything that this user can."
)


class Local:
    """The `Backend`. It keeps nothing."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings

    async def open(self, image: str) -> ShellSandbox:
        return await _open(self._settings)

    async def close(self) -> None:
        """Nothing is held."""


def why_unavailable(settings: SandboxSettings) -> str:
    return ""


def open_backend(settings: SandboxSettings) -> Local:
    return Local(settings)


def private_place(cwd: str, home: str) -> str:
    """Where the working folder `cwd` is when the sandbox is a folder that holds `home`: never outside of it.

    Raises UsageError for a relative one that leads out.
    """
    folder = home.removesuffix("/home")
    if cwd.startswith("/"):
        return f"{folder}/root{folders.normal(cwd)}".rstrip("/")
    work = folders.normal(f"/home/{folders.below_home(cwd)}")
    if not f"{work}/".startswith("/home/"):
        raise UsageError(f"the working folder {cwd!r} leads out of the sandbox's home folder")
    return f"{folder}{work}"


async def _open(settings: SandboxSettings) -> ShellSandbox:
    limits = settings.limits
    folder = folders.make(settings.label)
    home, temporary = folder / "home", folder / "tmp"
    try:
        for path in (home, temporary):
            path.mkdir(mode=0o700)
    except OSError as error:
        folders.remove(folder)
        raise SandboxError(f"cannot make the sandbox's folders: {error}") from error
    prefix = python_folder()
    path_variable = f"{STANDARD_PATH}:{prefix}/bin" if prefix else STANDARD_PATH
    shell = "bash" if shutil.which("bash", path=path_variable) else "sh"
    blueprint = Blueprint(
        argv=INTERACTIVE[shell],
        environment={
            "PATH": path_variable,
            "HOME": str(home),
            "TMPDIR": str(temporary),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "USER": "user",
            **PYTHON_VARIABLES,
        },
        setup=QUIET[shell],
        home=str(home),
        shell=shell,
        fifos_inside=str(fifo_folder(folder)),
        own_namespace=False,
        description={
            "backend": "local",
            "isolation": "own folders and environment, no protection of the host",
            "network": "the host's",
            "disk": f"{limits.disk_mb} MB per file",
        },
        place=private_place,
    )
    return await launch(blueprint, folder, cgroup.make(folders.group_name(folder), limits), limits)
