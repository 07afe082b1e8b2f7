"""Sandboxes on another machine, reached over SSH: own HOME, TMPDIR and folders there, a clean environment, nothing more.

No protection of that host, as with `local` of this one: commands run as the user who logs in, and can read and change what that
user can; memory, processors and processes are not limited. Give it a machine, or a user, of its own. Nothing of this machine
goes there.

A sandbox is a folder `${TMPDIR:-/tmp}/kiseki-ssh-<uid>/<label>/<random>` of the host, closed to other users, with its owner
written in it. Its processes are those with the folder's name in their environment, and those below them, so a daemon that
cleared its environment survives. Both outlive a connection, and our death; whoever closes or reaps comes by another one.

The host needs Linux with coreutils or busybox, grep and awk. PATH in there is what a login by SSH gives.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import re
import secrets
import shlex
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

import msgspec

from kiseki.errors import KisekiError, SandboxError, UsageError
from kiseki.sandboxes import folders, owners
from kiseki.sandboxes.base import OPEN_FILES
from kiseki.sandboxes.local import private_place
from kiseki.sandboxes.owners import LeftOver, Owner
from kiseki.sandboxes.python import PYTHON_VARIABLES, STANDARD_PATH
from kiseki.sandboxes.settings import SandboxSettings
from kiseki.sandboxes.settling import settled
from kiseki.sandboxes.shell import ShellSandbox
from kiseki.sandboxes.streams import hunt
from kiseki.sandboxes.streams.machine import Stream
from kiseki.sandboxes.streams.remote import open_remote

if TYPE_CHECKING:
    from kiseki.sandboxes.ssh.connections import Connection, Pool, SSHStream
    from kiseki.sandboxes.ssh.login import Address

T = TypeVar("T")

MARK = "KISEKI_SANDBOX"
SCRIPT_TIMEOUT = 30.0
"""Seconds for a script that makes a folder or looks for some; it takes some hundredths."""
REMOVE_TIMEOUT = 120.0
"""Seconds for the end of all processes and files: a hundred thousand files take one or two."""
PROBE_TIMEOUT = 90.0
"""Seconds to find out whether the host will do, which includes the login."""
FILE_BLOCKS = 2048
"""Of a megabyte, as `ulimit -f` counts in a shell that is called `sh`."""

_BASE = """base=${TMPDIR:-/tmp}; base=$(cd "$base" && pwd -P); base=${base%/}/kiseki-ssh-$(id -u)
is_ours() { [ -d "$base" ] && [ ! -L "$base" ] && [ -O "$base" ]; }"""
# The folder is moved to its place when its owner stands in it. Another sandbox's end may remove the empty ones in between.
_MAKE = """
exec 2>&1; umask 077
[ -r /proc/self/environ ] || { echo 'it has no /proc; only Linux will do'; exit 1; }
for need in grep awk; do command -v $need >/dev/null || { echo "it has no $need"; exit 1; }; done
{base}; new=$base/.new/{name}
for round in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  said=$(mkdir -p "$base" 2>&1); [ -e "$base" ] || [ -L "$base" ] || continue
  is_ours || { echo "${said:-$base belongs to someone else}"; exit 1; }
  chmod 700 "$base" 2>/dev/null
  said=$({ mkdir -p "$new/home" "$new/tmp" && printf %s {owner} >"$new/owner" && mkdir -p "$base/{label}" &&
    mv "$new" "$base/{label}/{name}"; } 2>&1) && { cd "$base/{label}/{name}" && pwd -P; exit; }
  rm -rf "$new"
done
echo "${said:-its folder cannot be made}"; exit 1
"""
# Waits until what was killed is gone: before that, a process may still write to its folder.
_AWAIT_END = """
round=0
while [ $round -lt 100 ]; do
  round=$((round + 1)) goal=
  kiseki_find
  [ -n "$goal" ] || break
  sleep 0.05 2>/dev/null || sleep 1
done 2>/dev/null
"""
_RM = 'remove() { rm -rf -- "$1" 2>/dev/null || { chmod -R u+rwx -- "$1"; rm -rf -- "$1"; } 2>/dev/null; [ ! -e "$1" ]; }'
_REMOVE = """
{base}; folder=$base/{label}/{name}
{end_all}
{rm}
is_ours || exit 0
remove "$folder" || { echo "$folder cannot be removed"; exit 1; }
rmdir "$base/{label}" "$base/.new" "$base" 2>/dev/null; exit 0
"""
_REAP = """
{base}; count=0 failed=
{end_all}
{rm}
is_ours || { echo 0; exit; }
for folder in "$base/{label}"/* "$base/{label}".*/*; do
  [ -d "$folder" ] || continue
  if remove "$folder"; then count=$((count + 1)); else failed=$folder; fi
done
rmdir "$base/{label}" "$base/{label}".* "$base/.new" "$base" 2>/dev/null
[ -z "$failed" ] || { echo "$failed cannot be removed"; exit 1; }
echo $count
"""
_LIST = """
{base}
is_ours || exit 0
for folder in "$base"/*/*; do
  [ -d "$folder" ] || continue
  name=${folder#"$base/"}
  case $name in *[!A-Za-z0-9_./-]*) continue; esac
  since=$(stat -c %Y "$folder") || continue
  printf '%s\\n' "${name%/*} $since $([ ! -f "$folder/owner" ] || head -c 4096 "$folder/owner" | tr -d '\\n')"
done
"""


class SSH:
    """The `Backend`: sandboxes on one host, over connections that they share."""

    def __init__(self, settings: SandboxSettings) -> None:
        """Raises UsageError."""
        self._address = _address(settings)
        self._settings = settings
        self._pool: Pool | None = None

    async def open(self, image: str) -> ShellSandbox:
        pool = self._pool = self._pool or _pool(self._address)
        machine = SSHMachine(pool, self._settings)
        try:
            await machine.make()
        except BaseException:
            await settled(machine.abandon())
            raise
        description = {
            "backend": "ssh",
            "isolation": "own folders and environment on another host, no protection of that host",
            "network": "the host's",
            "disk": f"{self._settings.limits.disk_mb} MB per file",
            "memory": "not limited",
            "cpus": "not limited",
            "processes": "not limited",
        }
        return await open_remote(machine, description, private_place)

    async def close(self) -> None:
        if self._pool:
            await self._pool.close()
            self._pool = None


class SSHMachine:
    """The `Machine`: a folder on the host, and programs with a mark."""

    folder = ""

    def __init__(self, pool: Pool, settings: SandboxSettings) -> None:
        self.environment: dict[str, str] = {}
        self.mark = ""
        self._pool = pool
        self._settings = settings
        self._names = {"label": folders.clean_label(settings.label), "name": secrets.token_hex(8)}
        self._making: asyncio.Task[tuple[int, str]] | None = None
        self._near: Connection | None = None
        self._dead = ""

    async def make(self) -> None:
        """Make its folder. Raises SandboxError."""
        owner = msgspec.json.encode(Owner(owners.machine_id(), self._settings.owner)).decode()
        script = _fill(_MAKE, **self._names, owner=shlex.quote(owner))
        self._making = asyncio.get_running_loop().create_task(self._pool.run(script, SCRIPT_TIMEOUT))
        status, said = await asyncio.shield(self._making)
        folder = said.strip()
        if status or not re.fullmatch("/.*/{label}/{name}".format(**self._names), folder):
            reason = " ".join(folder.split())[-500:] or f"status {status}"
            raise SandboxError(f"no sandbox can be made on {self._pool.address}: {reason}")
        self.mark = f"{MARK}={folder}"
        self.environment = {
            "HOME": f"{folder}/home",
            "TMPDIR": f"{folder}/tmp",  # noqa: S108
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "USER": "user",
            **PYTHON_VARIABLES,
            MARK: folder,
        }

    async def open(self, argv: list[str]) -> Stream:
        if self._dead:
            raise SandboxError(self._dead)
        variables = " ".join(shlex.quote(f"{name}={value}") for name, value in self.environment.items())
        limits = {"c": 0, "n": OPEN_FILES, "f": self._settings.limits.disk_mb * FILE_BLOCKS}
        setup = "".join(f"ulimit -{name} {value}; " for name, value in limits.items())
        script = f'{{ {setup}}} 2>/dev/null; exec env -i PATH="${{PATH:-{STANDARD_PATH}}}" {variables} {shlex.join(argv)}'
        stream = await self._pool.start(script, near=self._near)
        self._near = stream.connection
        stream.exited.add_done_callback(functools.partial(self._ended, stream))
        return stream

    def _ended(self, stream: SSHStream, _: asyncio.Future[int]) -> None:
        if stream.connection.lost and not stream.closed:
            self._dead = self._dead or stream.connection.lost

    async def why_dead(self) -> str:
        return self._dead

    async def restart(self) -> bool:
        status, _ = await self._pool.run(_end_all(shlex.quote(self.mark)), SCRIPT_TIMEOUT)
        return status == 0

    async def remove(self) -> None:
        status, said = await self._pool.run(_fill(_REMOVE, **self._names, end_all=_end_all(f'"{MARK}=$folder"')), REMOVE_TIMEOUT)
        if status:
            raise SandboxError(f"a sandbox on {self._pool.address} stays: {said.strip() or f'status {status}'}")

    async def abandon(self) -> None:
        """Remove what `make` made, or is still making. Never raises."""
        if self._making:
            await asyncio.wait([self._making])
            with contextlib.suppress(SandboxError):
                await self.remove()


def why_unavailable(settings: SandboxSettings) -> str:
    """Tries it: logs in, and opens a sandbox."""
    label = owners.process_label("probe")

    async def probe() -> str:
        backend = SSH(msgspec.structs.replace(settings, label=label, owner=owners.hold(label)))
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                sandbox = await backend.open("")
                await sandbox.close()
        except TimeoutError:
            return f"{settings.host}: no sandbox opened within {PROBE_TIMEOUT:g} s"
        finally:
            await backend.close()
        return ""

    try:
        return _from_outside(probe)
    except KisekiError as error:
        return str(error)


def open_backend(settings: SandboxSettings) -> SSH:
    """Raises UsageError."""
    return SSH(settings)


def reap(settings: SandboxSettings) -> int:
    label = folders.clean_label(settings.label)
    end_all = _end_all(*(f'"{MARK}=$base/{label}{end}"' for end in ("/", ".")))
    return int(_ask(settings, _fill(_REAP, label=label, end_all=end_all), REMOVE_TIMEOUT))


def left_over(settings: SandboxSettings) -> list[LeftOver]:
    return [
        _left_over(*parts)
        for line in _ask(settings, _fill(_LIST), SCRIPT_TIMEOUT).split("\n")
        if len(parts := line.split(" ", 2)) == 3
    ]


def _left_over(label: str, seconds: str, owner: str) -> LeftOver:
    created = float(seconds) if seconds.isascii() and seconds.isdigit() else 0.0
    try:
        return LeftOver(label, msgspec.json.decode(owner, type=Owner), created)
    except ValueError:  # Commands in there can write what they like.
        return LeftOver(label, Owner(), created)


def _ask(settings: SandboxSettings, script: str, timeout: float) -> str:
    """What a script on the host prints. Raises SandboxError."""
    try:
        address = _address(settings)
    except UsageError as error:
        raise SandboxError(str(error)) from None

    async def ask() -> str:
        pool = _pool(address)
        try:
            status, said = await pool.run(script, timeout)
        finally:
            await pool.close()
        if status:
            raise SandboxError(f"{address}: {said.strip() or f'status {status}'}")
        return said

    return _from_outside(ask)


def _end_all(*marks: str) -> str:
    """A script that ends every process with one of these, given as words of a shell, at the beginning of its mark."""
    return hunt.script(hunt.of_marked(*marks), listed=False) + _AWAIT_END


def _fill(script: str, **values: str) -> str:
    for name, value in {**values, "base": _BASE, "rm": _RM}.items():
        script = script.replace(f"{{{name}}}", value)
    return script


def _address(settings: SandboxSettings) -> Address:
    """Raises UsageError when something is missing that does not need the host to be asked."""
    if importlib.util.find_spec("asyncssh") is None:
        raise UsageError("asyncssh is not installed: pip install 'kiseki[ssh]'")
    if not settings.host:
        raise UsageError("no host is named; ssh_host (--ssh_host=[user@]host[:port]) does")
    from kiseki.sandboxes.ssh.login import parse_address

    return parse_address(settings.host)


def _pool(address: Address) -> Pool:
    """Belongs to the running event loop."""
    from kiseki.sandboxes.ssh.connections import Pool

    return Pool(address)


def _from_outside(work: Callable[[], Awaitable[T]]) -> T:
    """The result, on an event loop of its own in a thread, since the caller may be on one."""

    async def run() -> T:
        return await work()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(run())).result()
