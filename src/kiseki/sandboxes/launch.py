"""Opens a sandbox from a backend's blueprint: folder, cgroup, first process, session; and takes all of it down again.

What a blueprint does not say is the same for every backend on this machine. On any failure, and on cancellation, everything
made so far is gone before the error leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from kiseki.errors import SandboxError
from kiseki.sandboxes import cgroup, folders, processes
from kiseki.sandboxes.base import OPEN_FILES, Limits
from kiseki.sandboxes.settling import settled
from kiseki.sandboxes.shell import ShellSandbox, below
from kiseki.sandboxes.supervisor import HostSupervisor

EXIT_TIMEOUT = 10.0
"""Seconds for killed processes to be gone; one in uninterruptible I/O may take longer, and is left."""
REMOVE_ROUNDS = 40
REMOVE_PAUSE = 0.005
"""Seconds before the second attempt to remove a cgroup whose last process is still on its way out, then twice as many, and so
on: 4 seconds in all, for a machine under load."""
NPROC_KERNEL = (5, 14)
"""From here on RLIMIT_NPROC counts per user namespace; before, the user's other sandboxes would count too."""


class Blueprint(NamedTuple):
    """What a backend says about a sandbox that is to be started."""

    argv: list[str]
    """Ends in an interactive `sh`: the supervisor's shell."""
    environment: dict[str, str]
    """Holds the path of the sandbox's folder somewhere, by which `folders.cookies` finds what a killed worker left."""
    setup: str
    """A line for that shell, before anything else."""
    home: str
    shell: str
    """ "bash" or "sh"."""
    fifos_inside: str
    """Where the sandbox sees the host's folder of FIFOs."""
    own_namespace: bool
    """Whether the supervisor's shell is the first process of a pid namespace: a child of the process started here, with every
    process of the sandbox below it."""
    description: dict[str, str]
    place: Callable[[str, str], str] = below
    """(cwd, home) → path of a prompt's working folder."""


def fifo_folder(folder: Path) -> Path:
    """Where in a sandbox's folder the FIFOs lie."""
    return folder / "pipes"


async def launch(blueprint: Blueprint, folder: Path, group: cgroup.Group | None, limits: Limits) -> ShellSandbox:
    """A started sandbox. `folder` and `group` are its own from here on, also when this raises SandboxError."""
    machine = _Parts(blueprint, folder, group)
    try:
        fifo_folder(folder).mkdir(mode=0o700)
        supervisor = machine.start()
        await supervisor.start(blueprint.setup)
        machine.find_first()
        in_force = await machine.limit(limits)
        sandbox = ShellSandbox(
            supervisor,
            description={**blueprint.description, **in_force},
            remove=machine.remove,
            place=blueprint.place,
        )
        await sandbox.start()
    except BaseException as error:
        await settled(machine.abandon())
        if isinstance(error, OSError):
            raise SandboxError(f"the sandbox did not start: {error}") from error
        raise
    return sandbox


class _Parts:
    """The parts of one sandbox on the host."""

    def __init__(self, blueprint: Blueprint, folder: Path, group: cgroup.Group | None) -> None:
        self._blueprint = blueprint
        self._folder = folder
        self._group = group
        self._process: subprocess.Popen[bytes] | None = None
        self._supervisor: HostSupervisor | None = None
        self._first = 0

    def start(self) -> HostSupervisor:
        self._process = subprocess.Popen(
            self._blueprint.argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._blueprint.environment,
            cwd=self._folder,
            start_new_session=True,
        )
        self._supervisor = HostSupervisor(
            self._process,
            fifos=fifo_folder(self._folder),
            fifos_inside=self._blueprint.fifos_inside,
            home=self._blueprint.home,
            shell=self._blueprint.shell,
            list_processes=self._list,
        )
        return self._supervisor

    def find_first(self) -> None:
        """Learn the supervisor's pid, once it runs."""
        assert self._process
        below = processes.children(self._process.pid) if self._blueprint.own_namespace else [self._process.pid]
        if not below:
            raise SandboxError("the sandbox died while it started")
        self._first = below[0]

    async def limit(self, limits: Limits) -> dict[str, str]:
        """Put the limits in force; says which ones are."""
        if self._group:
            try:
                await asyncio.to_thread(self._group.enter, self._first)
            except OSError:  # The group could be made but not entered, as with a partly delegated version 2.
                await self._remove_group()
                self._group = None
        held = set(self._group.folders) if self._group else set()
        said = {
            "memory": f"{limits.memory_mb} MB" if "memory" in held else "not limited",
            "cpus": f"{limits.cpus:g}" if "cpu" in held else "not limited",
            "processes": f"{limits.processes}" if "pids" in held else "not limited",
        }
        wanted = {
            resource.RLIMIT_FSIZE: limits.disk_mb * cgroup.MEGABYTE,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_NOFILE: OPEN_FILES,
        }
        if "pids" not in held and self._blueprint.own_namespace and os.getuid() != 0 and _kernel() >= NPROC_KERNEL:
            wanted[resource.RLIMIT_NPROC] = limits.processes + cgroup.OWN_PROCESSES
            said["processes"] = f"{limits.processes}"
        for kind, value in wanted.items():
            hard = resource.prlimit(self._first, kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.prlimit(self._first, kind, (value, value))
        return said

    async def remove(self) -> None:
        """End every process, wait for that, remove cgroup and folder."""
        if self._process:
            killed: set[int] = set()
            if self._blueprint.own_namespace and self._first:
                # With its first process the whole namespace dies; the process started here waits for that and ends.
                processes.send([self._first], signal.SIGKILL)
            else:
                # Also while it opens: the isolating program's child does not yet die with its parent.
                killed = processes.end_all(self._all_running)
            await processes.wait_exit(self._process, EXIT_TIMEOUT)
            await processes.wait_gone(killed, EXIT_TIMEOUT)
        await self._remove_group()
        if self._blueprint.own_namespace:
            folders.remove(self._folder)  # Holds a few FIFOs.
        else:
            await asyncio.to_thread(folders.remove, self._folder)

    async def abandon(self) -> None:
        """Take down what `launch` had made when it failed. Never raises."""
        with contextlib.suppress(Exception):
            await self.remove()
        if self._supervisor:
            self._supervisor.close()

    def _list(self) -> dict[int, processes.Process]:
        if self._blueprint.own_namespace and self._first:
            return processes.descendants(self._first)
        if self._group and not self._blueprint.own_namespace:
            pids = set(self._group.pids())
        else:
            assert self._process
            top = self._first or self._process.pid
            pids = {*processes.descendants(top), *processes.marked(str(self._folder).encode())}
        return {pid: found for pid in pids - {self._first} if (found := processes.look(pid))}

    def _all_running(self) -> list[int]:
        assert self._process
        return [self._process.pid, *(pid for pid, process in self._list().items() if process.running)]

    async def _remove_group(self) -> None:
        for number in range(1, REMOVE_ROUNDS + 1):
            if self._group is None or self._group.remove():
                return
            await asyncio.sleep(REMOVE_PAUSE * number)


def _kernel() -> tuple[int, ...]:
    return tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
