"""Instances of the stand-in for Modal (modal_server.py): real namespaces on this machine, and programs that run in them.

bubblewrap makes the namespaces, with an image's root filesystem below a layer of the instance's own; nsenter goes in.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, NamedTuple

import engines
from grpclib import GRPCError, Status
from modal_proto import api_pb2 as api
from modal_proto import task_command_router_pb2 as router

from kiseki.sandboxes import bubblewrap

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
AHEAD_BYTES = 1 << 20
"""Of a program's output that are kept before anybody asks for them; then it waits."""
READ_BYTES = 1 << 16
START_SECONDS = 20.0
SUCCESS = api.GenericResult.GENERIC_STATUS_SUCCESS
FAILURE = api.GenericResult.GENERIC_STATUS_FAILURE
TERMINATED = api.GenericResult.GENERIC_STATUS_TERMINATED


class Image(NamedTuple):
    root: Callable[[], bytes]
    """Makes its root filesystem, as a tar."""
    environment: Mapping[str, str] = MappingProxyType({})
    folder: str = "/root"
    """Its WORKDIR."""


IMAGES = {
    engines.BUSYBOX: Image(engines.busybox_root),
    engines.BASH: Image(engines.bash_root),
    engines.CONFIGURED: Image(engines.busybox_root, {"GREETING": "hello", "PATH": f"{SYSTEM_PATH}:/opt/bin"}, "/srv/code"),
    engines.NOSHELL: Image(engines.noshell_root),
}


class Program:
    """One that was started in an instance."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.written = 0
        """Bytes of its stdin that were taken."""
        self._spool: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self.size = 0
        """Bytes of its output so far."""
        self._asked = 0
        self._ended = False
        self._changed = asyncio.Event()
        self._pump = asyncio.ensure_future(self._fill())

    async def _fill(self) -> None:
        assert self.process.stdout
        while data := await self.process.stdout.read(READ_BYTES):
            self._spool.seek(self.size)
            self._spool.write(data)
            self.size += len(data)
            self._changed.set()
            while self.size - self._asked > AHEAD_BYTES and self.process.returncode is None:
                await asyncio.sleep(0.002)
        self._ended = True
        self._changed.set()

    async def read(self, offset: int) -> bytes:
        """What there is from there on, at least a byte; b"" at the end."""
        while offset >= self.size and not self._ended:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._changed.wait()
        self._asked = max(self._asked, offset)
        if self._spool.closed:
            raise GRPCError(Status.NOT_FOUND, "the task is gone")
        self._spool.seek(offset)
        return self._spool.read(READ_BYTES)

    async def write(self, offset: int, data: bytes) -> None:
        stdin = self.process.stdin
        assert stdin
        stdin.write(data[self.written - offset :])
        self.written = max(self.written, offset + len(data))
        await stdin.drain()

    async def exit(self) -> int:
        """asyncio's own `wait` goes on while somebody else holds the program's stdout."""
        while self.process.returncode is None:
            await asyncio.sleep(0.005)
        return self.process.returncode

    async def close(self) -> None:
        """After its instance is gone."""
        await self.process.wait()
        await self._pump
        self._spool.close()


class Instance:
    """A Modal sandbox."""

    def __init__(self, request: api.SandboxCreateV2Request, image: Image) -> None:
        self.id = f"sb-{secrets.token_hex(12)}"
        self.task = f"ta-{secrets.token_hex(10)}V"
        self.app = request.app_id
        self.tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        self.created = time.time()
        self.result = api.GenericResult()
        self.ended = asyncio.Event()
        self.programs: dict[str, Program] = {}
        self.pulses = 0
        self._image = image
        self._environment = {"PATH": SYSTEM_PATH, "HOME": "/root", "MODAL_SANDBOX_ID": self.id, **image.environment}
        self._pid = 0
        self._first: asyncio.subprocess.Process | None = None
        self._watched: asyncio.Future[None]

    async def start(self, root: Path, definition: api.Sandbox) -> None:
        network = definition.network_access.network_access_type != api.NetworkAccess.BLOCKED
        options = ["--unshare-all", *(["--share-net"] if network else []), "--unshare-user", "--uid", "0", "--gid", "0"]
        options += ["--die-with-parent", "--new-session", "--as-pid-1", "--overlay-src", str(root), "--tmp-overlay", "/"]
        options += ["--proc", "/proc", "--dev", "/dev", "--clearenv", "--dir", self._image.folder, "--chdir", self._image.folder]
        for name, value in self._environment.items():
            options += ["--setenv", name, value]
        said, info = os.pipe()
        started = ["sh", "-c", 'echo; exec "$@"', "sh", *definition.entrypoint_args]
        self._first = await asyncio.create_subprocess_exec(
            *[bubblewrap.programs()[-1], *options, "--info-fd", str(info), *started],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[info],
        )
        os.close(info)
        assert self._first.stdout
        async with asyncio.timeout(START_SECONDS):
            up = await self._first.stdout.readline()
        with os.fdopen(said) as file:
            self._pid = json.loads(file.read() or "{}").get("child-pid", 0)
        self._watched = asyncio.ensure_future(self._watch())
        if not up:
            self.end(api.GenericResult(status=FAILURE, exitcode=127, exception="exec: sh: executable file not found in $PATH"))

    async def _watch(self) -> None:
        assert self._first
        status = await self._first.wait()
        self.end(api.GenericResult(status=SUCCESS if status == 0 else FAILURE, exitcode=status if status >= 0 else 128 - status))
        for program in list(self.programs.values()):
            await program.close()

    def end(self, result: api.GenericResult) -> None:
        """Over, with this result; the first one counts."""
        if not self.ended.is_set():
            self.result = result
            self.ended.set()
            if self._pid and self._first and self._first.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)

    async def close(self) -> None:
        self.end(api.GenericResult(status=TERMINATED))
        await self._watched

    async def run(self, request: router.TaskExecStartRequest) -> None:
        if request.exec_id in self.programs:
            return
        entered = ["--user", "--preserve-credentials", "-m", "-p", "-n", "-i", "-u", "--wd"]
        process = await asyncio.create_subprocess_exec(
            *["nsenter", "-t", str(self._pid), *entered, "--", *request.command_args],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.programs[request.exec_id] = Program(process)

    def info(self) -> api.SandboxInfo:
        return api.SandboxInfo(id=self.id, created_at=self.created, app_id=self.app, task_info=api.TaskInfo(result=self.result))

    async def stdin(self, data: bytes) -> None:
        self.pulses += 1
        assert self._first and self._first.stdin
        self._first.stdin.write(data)
        await self._first.stdin.drain()
