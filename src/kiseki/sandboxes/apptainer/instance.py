"""One sandbox's instance of Apptainer: started, entered, stopped. What it is for is in backend.py, which chooses the way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import time
from pathlib import Path
from typing import NamedTuple

import msgspec

from kiseki.errors import SandboxError
from kiseki.sandboxes import cgroup, folders, processes
from kiseki.sandboxes.apptainer import images as apptainer_images
from kiseki.sandboxes.base import OPEN_FILES, TIMED_OUT
from kiseki.sandboxes.bubblewrap import PROC_READ_ONLY
from kiseki.sandboxes.launch import EXIT_TIMEOUT, REMOVE_PAUSE, REMOVE_ROUNDS
from kiseki.sandboxes.python import PYTHON_VARIABLES, STANDARD_PATH
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.sandboxes.settling import settled
from kiseki.sandboxes.streams.piped import PipedStream, run_client

HOME = "/home/user"
"""Made in the writable layer, whoever the user is; the same as in bubblewrap's sandboxes."""
FAILED = 255
"""Apptainer's status for its own failures."""
NOT_ENTERED = 254
"""Status of `_GATE` where it could not enter the control group; Apptainer has no such status."""
CALL_TIMEOUT = 120.0
"""Seconds for one call of the program. Starting takes a fraction of one, but without FUSE it unpacks the image first."""
START_GRACE = 10.0
"""Seconds for a start under way that nobody wants any more: killed half-way, it may leave an instance that no list has yet."""
STOP_TIMEOUT = 20.0
"""Seconds for `instance stop --force`, which takes less than one."""
DEATH_ROUNDS = 10
DEATH_PAUSE = 0.02
"""Seconds between looks whether the instance is gone: its first process is the last in it to go, after those that we hear of."""
LEAST_OVERLAY_MB = 64
"""`overlay create` refuses less."""
ROOT_CAPABILITIES = (
    "CAP_CHOWN",  # packages' files belong to many users
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",  # services run as other users, and go with their command
    "CAP_SETGID",  # apt fetches as a user of its own
    "CAP_SETUID",
)
"""For root alone: as Docker's default, without what no package installation needs."""
PASSED_ON = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
"""By these Apptainer reaches systemd, which makes an ordinary user's control groups. They don't come inside."""
ULIMIT_BLOCK = 512
"""Bytes in which POSIX's `ulimit -f` counts."""
CONFIGURATION = "apptainer"
"""Apptainer's own folder in a sandbox's, by which `reap` knows it."""
# Runs its arguments from the fourth on, with limits that are inherited, in the control group whose folders come before "--".
_GATE = (
    f"ulimit -c 0; ulimit -n $1; ulimit -f $2; shift 2; "
    f'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit {NOT_ENTERED}; shift; done; shift; exec "$@"'
)


class Way(NamedTuple):
    """One way to start instances, of those that an installation may or may not allow."""

    image_layer: bool
    """The writable layer is a file system in a file, which bounds it; otherwise a folder, which nothing does."""
    fakeroot: bool
    """A user is root inside. Apptainer can't set limits then."""
    engine_limits: bool
    """Apptainer sets the limits; otherwise we do, where we may make control groups."""


class Instance:
    """The `Machine` (see machine.py): one running instance, with the folder and control group that are its own."""

    def __init__(self, program: str, image: Path, settings: SandboxSettings, way: Way) -> None:
        """Raises SandboxError."""
        self._program = program
        self._image = image
        self._limits = settings.limits
        self._way = way
        self._disk_mb = max(settings.limits.disk_mb, LEAST_OVERLAY_MB) if way.image_layer else settings.limits.disk_mb
        self._folder = folders.make(settings.label)
        self._name = instance_name(self._folder)
        self._group = None if way.engine_limits else cgroup.make(folders.group_name(self._folder), settings.limits)
        self._streams: set[PipedStream] = set()
        self._begun = False
        self._starting: asyncio.Task[str] | None = None
        self._first = 0
        self._started = 0
        self._logs: list[Path] = []
        self.environment = {"HOME": HOME, "TERM": "dumb", **PYTHON_VARIABLES}
        self.folder = ""
        self.mark = ""

    async def start(self) -> None:
        """Raises SandboxError with Apptainer's own words, and OSError."""
        for part in (CONFIGURATION, "tmp"):
            (self._folder / part).mkdir(mode=0o700)
        await self._make_layer()
        await self._start()

    def describe(self) -> dict[str, str]:
        held = {"memory", "cpu", "pids"} if self._way.engine_limits else set(self._group.folders if self._group else ())
        limits = self._limits
        own = "processes" if limits.network else "processes, network"
        return {
            "backend": "apptainer",
            "isolation": f"own file system, {own}" + (", users" if os.getuid() else ""),
            "network": "the host's" if limits.network else "none",
            "disk": f"{self._disk_mb} MB" + ("" if self._way.image_layer else " per file"),
            "memory": f"{limits.memory_mb} MB" if "memory" in held else "not limited",
            "cpus": f"{limits.cpus:g}" if "cpu" in held else "not limited",
            "processes": f"{limits.processes}" if "pids" in held else "not limited",
        }

    # As a machine

    async def open(self, argv: list[str]) -> PipedStream:
        words = [self._program, "--silent", "exec", *self._privileges(), "--cleanenv", "--pwd", "/"]
        try:
            stream = PipedStream(
                self._gated([*words, f"instance://{self._name}", *argv]), environment_of(self._folder), fails_with=FAILED
            )
        except OSError as error:
            raise SandboxError(f"{self._program} cannot be run: {error.strerror}") from error
        self._streams.add(stream)
        stream.exited.add_done_callback(lambda _: self._streams.discard(stream))
        return stream

    async def why_dead(self) -> str:
        for _ in range(DEATH_ROUNDS):
            if not self._runs():
                return "the instance is gone: its first process was killed, or somebody stopped it"
            await asyncio.sleep(DEATH_PAUSE)
        return ""

    async def restart(self) -> bool:
        try:
            await self._stop()
            await self._start()
        except (SandboxError, OSError):
            return False
        return True

    async def remove(self) -> None:
        await self._stop()
        for _ in range(REMOVE_ROUNDS):
            if self._group is None or self._group.remove():
                break
            await asyncio.sleep(REMOVE_PAUSE)
        for log in self._logs:
            log.unlink(missing_ok=True)
        await asyncio.to_thread(folders.remove, self._folder)

    async def abandon(self) -> None:
        """Take down what `start` had made when it failed. Never raises."""
        with contextlib.suppress(Exception):
            await self.remove()

    # The instance

    async def _make_layer(self) -> None:
        layer = self._folder / "layer"
        if not self._way.image_layer:
            (layer / "upper" / HOME.strip("/")).mkdir(parents=True)
            (layer / "work").mkdir()
            return
        words = [self._program, "--silent", "overlay", "create", "--size", str(self._disk_mb), "--sparse"]
        words += ["--fakeroot"] if self._way.fakeroot else []
        await self._call([*words, "--create-dir", HOME, str(layer)])

    async def _start(self) -> None:
        words = [self._program, "--silent", "instance", "start", *self._privileges(), *self._view(), *self._flag_limits()]
        words += [str(self._image), self._name]
        try:
            await self._begin(words)
        except _NotEnteredError:  # The group could be made but not entered, as with a partly delegated version 2.
            assert self._group
            self._group.remove()
            self._group = None
            await self._begin(words)
        said = await self._call([self._program, "--silent", "instance", "list", "--json", self._name])
        self._first, self._logs = _listed(said, self._name)
        first = processes.look(self._first)
        if not first:
            raise SandboxError("its first process ended at once")
        self._started = first.started

    async def _begin(self, words: list[str]) -> None:
        self._begun = True
        self._starting = asyncio.get_running_loop().create_task(self._call(self._gated(words)))
        await asyncio.shield(self._starting)  # If it is cancelled, `_stop` sees to it.

    def _view(self) -> list[str]:
        """Options for what there is to be seen inside."""
        # --containall: own processes and IPC, few devices. Its /tmp and home are a memory file system of a fixed size that all
        # installations set as they like (64 MB by default), so those are part of the writable layer instead.
        options = ["--containall", "--cleanenv", "--no-home", "--no-mount", "home,tmp,cwd,hostfs,bind-paths,sys"]
        options += ["--overlay", str(self._folder / "layer")]
        options += ["--fakeroot"] if self._way.fakeroot else []
        options += [] if self._limits.network else ["--net", "--network", "none"]
        if os.getuid() == 0:
            # The kernel guards these files by the owner's number alone, which is that of the sandbox's root.
            for path in PROC_READ_ONLY:
                options += ["--bind", f"{path}:{path}:ro"] if Path(path).exists() else []
        return options

    def _privileges(self) -> list[str]:
        """Options that both `start` and `exec` need: each sets them anew. Users never have any on the host."""
        return ["--no-privs", "--add-caps", ",".join(ROOT_CAPABILITIES)] if os.getuid() == 0 else []

    def _flag_limits(self) -> list[str]:
        if not self._way.engine_limits:
            return []
        memory = f"{self._limits.memory_mb}M"
        flags = ["--memory", memory, "--cpus", f"{min(self._limits.cpus, os.cpu_count() or 1):g}"]
        flags += ["--pids-limit", str(self._limits.processes + cgroup.OWN_PROCESSES)]
        # Kernels without accounting of swap refuse the flag; without swap there is nothing to limit.
        return flags + (["--memory-swap", memory] if _has_swap() else [])

    def _gated(self, argv: list[str]) -> list[str]:
        limits = []
        for kind, value, unit in (
            (resource.RLIMIT_NOFILE, OPEN_FILES, 1),
            (resource.RLIMIT_FSIZE, self._disk_mb * cgroup.MEGABYTE, ULIMIT_BLOCK),
        ):
            hard = resource.getrlimit(kind)[1]
            limits.append(str((value if hard == resource.RLIM_INFINITY else min(value, hard)) // unit))
        group = sorted({str(folder) for folder in self._group.folders.values()}) if self._group else []
        return ["/bin/sh", "-c", _GATE, "sh", *limits, *group, "--", *argv]

    async def _call(self, argv: list[str], seconds: float = CALL_TIMEOUT) -> str:
        """Run it to its end; its stdout. Raises SandboxError with its own words."""
        status, said, words = await run_client(argv, environment_of(self._folder), seconds=seconds)
        if status == NOT_ENTERED:
            raise _NotEnteredError
        if status == TIMED_OUT:
            raise SandboxError(f"{Path(self._program).name} did not answer within {seconds:g} s")
        if status:
            raise SandboxError(apptainer_images.cleaned(words) or f"{Path(self._program).name} ended with status {status}")
        return said

    def _runs(self) -> bool:
        first = processes.look(self._first) if self._first else None
        return first is not None and first.running and first.started == self._started

    async def _stop(self) -> None:
        """End the instance with every process in it."""
        if self._starting:
            await asyncio.wait([self._starting], timeout=START_GRACE)
            self._starting.cancel()
            await settled(self._starting)
            self._starting = None
        if self._begun:
            with contextlib.suppress(SandboxError, OSError):
                await self._call([self._program, "--silent", "instance", "stop", "--force", self._name], STOP_TIMEOUT)
        self._begun, self._first = False, 0
        await asyncio.to_thread(self._end_left)
        await asyncio.gather(*(stream.end() for stream in list(self._streams)))

    def _end_left(self) -> None:
        processes.end_all(self._left)
        end = time.monotonic() + EXIT_TIMEOUT
        while self._left() and time.monotonic() < end:
            time.sleep(REMOVE_PAUSE)

    def _left(self) -> set[int]:
        """Processes of this sandbox that still run."""
        pids = {*processes.marked(f"{self._folder}/".encode()), *(self._group.pids() if self._group else ())}
        return {pid for pid in pids if (process := processes.look(pid)) and process.running}


class _NotEnteredError(SandboxError):
    """The control group can't be entered."""


def instance_name(folder: Path) -> str:
    return f"kiseki-{folder.parent.name}-{folder.name}"


def _listed(said: str, name: str) -> tuple[int, list[Path]]:
    """Of `instance list --json`: number of the instance's first process, its log files. Raises SandboxError."""
    try:
        listed = msgspec.json.decode(said, type=_List).instances
    except msgspec.DecodeError as error:
        raise SandboxError(f"the list of instances cannot be read: {error}") from error
    mine = next((each for each in listed if each.instance == name), None)
    if mine is None or mine.pid <= 1:
        raise SandboxError("it ended at once")
    return mine.pid, [Path(log) for log in (mine.out, mine.err) if log]


class _Listed(msgspec.Struct):
    instance: str
    pid: int
    out: str = msgspec.field(default="", name="logOutPath")
    err: str = msgspec.field(default="", name="logErrPath")


class _List(msgspec.Struct):
    instances: list[_Listed]


def _has_swap() -> bool:
    try:
        return len(Path("/proc/swaps").read_text().splitlines()) > 1
    except OSError:
        return False


def environment_of(folder: Path) -> dict[str, str]:
    """Of Apptainer's own processes for the sandbox with this folder. The folder's path in it is what tells whose they are."""
    own = {
        "PATH": STANDARD_PATH,
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "APPTAINER_CONFIGDIR": str(folder / CONFIGURATION),
        "APPTAINER_TMPDIR": str(folder / "tmp"),
        "SINGULARITY_CONFIGDIR": str(folder / CONFIGURATION),
        "SINGULARITY_TMPDIR": str(folder / "tmp"),
    }
    return own | {name: os.environ[name] for name in PASSED_ON if name in os.environ}
