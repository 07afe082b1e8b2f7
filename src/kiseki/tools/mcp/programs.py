"""MCP servers that are programs: on this machine, or in a sandbox. Either is a `Channel`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal

from kiseki.errors import ToolError
from kiseki.sandboxes import processes
from kiseki.sandboxes.base import Channel, Sandbox
from kiseki.tools.mcp.watchdog import mark
from kiseki.tools.settings import McpServer

KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
"""Of the host's environment. Not the proxies: their addresses may hold passwords."""
CHUNK = 65_536
TAIL_BYTES = 8000
"""Of what a server wrote to stderr: the last lines say why it did not start. Far more than is shown, so that what is shown never
begins within a secret."""
END_SECONDS = 1.0
"""For a server to end by itself once its stdin is closed, as the protocol says; then as much again after SIGTERM."""
POLL_SECONDS = 0.02

_IN_SANDBOX = r"""
while IFS= read -r line && [ -n "$line" ]; do export "$line"; done
folder=$0 end=$(printf '\036')
run() { [ -z "$folder" ] || cd -- "$folder" || exit 126; exec "$@"; }
{
  { (run "$@") 2>&1 >&3 3>&-; printf '\n%s\n' "$end"; } | {
    while IFS= read -r line && [ "$line" != "$end" ]; do [ -z "$line" ] || { first=$second second=$last last=$line; }; done
    printf '%s\n' "$first" "$second" "$last" >&3
  }
} 3>&1"""
"""`$0`: the folder. The environment comes on stdin: on a command line every user of the host could read it. When the program has
ended, the last lines of its stderr follow on stdout, where they are no messages: they say why. Whoever else holds its stderr is
not waited for."""


class HostProgram:
    """The `Channel` of a program on this machine, in a process group of its own. Its stderr goes nowhere but to `tail`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._tail = b""
        self._closing: asyncio.Task[None] | None = None
        self._errors = asyncio.create_task(self._read_errors())

    async def write(self, data: bytes) -> None:
        assert self._process.stdin
        with contextlib.suppress(ConnectionError):
            self._process.stdin.write(data)
            await self._process.stdin.drain()

    async def read(self) -> bytes:
        assert self._process.stdout
        return await self._process.stdout.read(CHUNK)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    @property
    def tail(self) -> str:
        """The end of what it wrote to stderr."""
        return self._tail.decode("utf-8", "replace").strip()

    async def _read_errors(self) -> None:
        assert self._process.stderr
        while data := await self._process.stderr.read(CHUNK):
            self._tail = (self._tail + data)[-TAIL_BYTES:]

    async def _close(self) -> None:
        process = self._process
        assert process.stdin
        # before it ends: afterwards nothing tells whose child one was that has left the group
        below = processes.descendants(process.pid) if process.returncode is None else {}
        process.stdin.close()
        if not await self._ended():
            self._send(signal.SIGTERM)
            await self._ended()
        self._send(signal.SIGKILL)  # also those that it started, when it has ended itself
        still = (pid for pid, old in below.items() if (now := processes.look(pid)) and now.started == old.started)
        processes.send(still, signal.SIGKILL)
        await self._ended()
        self._errors.cancel()
        await asyncio.wait([self._errors])
        # pipes that somebody outside of the group holds open would keep the transport, and warn when it is dropped
        process._transport.close()  # type: ignore[attr-defined]

    async def _ended(self) -> bool:
        """Not by `wait`, which waits for everybody who holds the pipes, too."""
        until = asyncio.get_running_loop().time() + END_SECONDS
        while self._process.returncode is None and asyncio.get_running_loop().time() < until:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
        return self._process.returncode is not None

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


async def start_program(server: McpServer) -> HostProgram:
    """Start it on this machine, with nothing of the environment but what programs need to run, and its own `env`.

    Raises `ToolError` when it cannot be started.
    """
    environment = {name: os.environ[name] for name in KEPT if name in os.environ} | server.env
    if not shutil.which(server.command, path=environment.get("PATH")):
        hint = "; what follows the program belongs in args" if " " in server.command else ""
        raise ToolError(f"there is no program {server.command!r} here{hint}")
    try:
        process = await asyncio.create_subprocess_exec(
            server.command,
            *server.args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment | mark(),
            cwd=server.cwd or None,
            start_new_session=True,
        )
    except OSError as error:
        raise ToolError(f"{server.command} cannot be started: {error.strerror}") from error
    return HostProgram(process)


async def start_in_sandbox(server: McpServer, sandbox: Sandbox) -> Channel:
    """Start it in a sandbox, which has an environment of its own; `env` is added to that. Raises `SandboxError`, `ToolError`."""
    channel = await sandbox.open_channel(["sh", "-c", _IN_SANDBOX, server.cwd, server.command, *server.args])
    lines = [f"{name}={value}" for name, value in server.env.items()]
    await channel.write("\n".join((*lines, "", "")).encode())
    return channel
