"""The sandbox as the tools see it: small, so that a new backend is one file."""

from __future__ import annotations

import signal
from typing import Protocol

import msgspec

TIMED_OUT = 124
"""Exit status of what was killed at its time limit, as of coreutils' `timeout`."""
KILLED = 128 + signal.SIGKILL
NOT_STARTED = -1
"""Status of a program for which there was no process to be had."""
OPEN_FILES = 4096
"""Per process, whatever the backend. Enough for servers and compilers; a program that asks for more gets told."""
TORN = -2
"""Status of a program whose stream broke off, where nobody can tell its own: infrastructure, and no program's doing."""


class Limits(msgspec.Struct, frozen=True):
    """What one sandbox may use. A backend enforces what its platform can and names in `describe()` what it does not."""

    memory_mb: int = 2048
    cpus: float = 1.0
    processes: int = 256
    disk_mb: int = 4096
    """Largest file, and where the backend can, the whole of the private folders."""
    network: bool = False


class ExecResult(msgspec.Struct, frozen=True):
    """What a command gave. Output is decoded as UTF-8 with replacement, stdout and stderr in the order written."""

    output: str
    exit_code: int
    """Of the command; 124 when it was killed at its time limit."""
    timed_out: bool = False
    truncated: bool = False
    """The middle of the output was dropped (a line in it says how much)."""
    session_restarted: bool = False
    """The shell was lost (the command ended it, or it could not be stopped otherwise) and a new one stands, in the folder of
    before the command; variables and functions are reset."""


class Channel(Protocol):
    """A running program in the sandbox, outside the session, spoken to through its stdin and stdout. Its stderr is dropped."""

    async def write(self, data: bytes) -> None:
        """Returns when it is on its way. For a program that has ended it is dropped: `read` tells. Raises `SandboxError`."""
        ...

    async def read(self) -> bytes:
        """What it has written since, as soon as there is anything; b"" once it has ended and all was read. A program that
        writes faster than it is read waits. Raises `SandboxError` when the sandbox has died."""
        ...

    async def close(self) -> None:
        """Kill it with all that it started. Never raises; may be called twice."""
        ...


class Sandbox(Protocol):
    """One rollout's private machine. Raises `SandboxError` when the sandbox itself is broken, never for a command's failure."""

    async def exec(self, command: str, *, timeout: float, workdir: str | None = None, max_output: int = 50_000) -> ExecResult:
        """Run `command` in the rollout's shell session: `cd`, `export`, functions and background jobs persist between calls.

        `timeout` in seconds; `max_output` in bytes kept (head and tail). Its stdin is empty. One call at a time: a second
        waits for the first. With `workdir` the session moves there first, as with `cd`, and does nothing else when it cannot.
        """
        ...

    async def run(
        self, argv: list[str], *, timeout: float, stdin: bytes = b"", max_output: int = 50_000_000
    ) -> tuple[int, bytes]:
        """Run a program outside the session (its variables, functions, folder and `exit` cannot touch it), in the home folder.

        Returns exit status and stdout. At the time limit it is killed with all that it started, and the status is 124; output
        beyond `max_output` bytes is dropped and the program killed. Calls may overlap. Raises `ToolError` when the sandbox
        has no process to spare. File tools and background processes use it.
        """
        ...

    async def open_channel(self, argv: list[str]) -> Channel:
        """Start a program to be spoken to, in the home folder; it is killed with the sandbox at the latest. Raises `ToolError`
        when the sandbox has no process to spare."""
        ...

    async def read_file(self, path: str, *, max_bytes: int = 50_000_000) -> bytes:
        """Whole content. Relative paths start at the session's current folder.

        Raises `ToolError`: no such file, a folder, larger than `max_bytes`.
        """
        ...

    async def write_file(self, path: str, data: bytes) -> None:
        """Create or replace, making parent folders; keeps the mode of an existing file. Raises `ToolError`."""
        ...

    async def healthy(self) -> bool:
        """Whether a command could run now."""
        ...

    async def close(self) -> None:
        """End every process and remove every file of the sandbox. Never raises; may be called twice."""
        ...

    def describe(self) -> dict[str, str]:
        """Backend, isolation and limits as recorded in the trajectory's metadata."""
        ...
