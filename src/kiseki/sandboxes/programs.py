"""What a `ShellSandbox` stands on: programs in a sandbox, and who starts and ends them.

`supervisor.py` does so for sandboxes on this machine, `remote.py` for those that are reached by streams alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

INTERACTIVE = {"bash": ["bash", "--noprofile", "--norc", "--noediting", "+H", "-i"], "sh": ["sh", "-i"]}
"""Shells that no error ends, by their kind. They talk on pipes, not on a terminal."""
SESSION = {"bash": INTERACTIVE["bash"], "sh": ["sh"]}
"""A session shell, by its kind. `sh` is not interactive: busybox's would read its lines through stdio, so that a job's end counts
as the end of its input, and the applets that it runs find its next line in their stdin. Under `command eval` no error ends it
either."""
QUIET = {"bash": "set +o history", "sh": ":"}
"""A line that keeps an interactive shell from remembering its lines."""


class Program(Protocol):
    """A running program: bytes in, bytes out."""

    exited: asyncio.Future[int]
    """Its exit status, or `base.TORN`, once everything that it wrote has been handed to whoever follows."""

    @property
    def sent(self) -> asyncio.Event:
        """Set while nothing that was written to it waits for room."""
        ...

    def write(self, data: bytes) -> None:
        """Send to its stdin, in order, without waiting."""
        ...

    def follow(self, take: Callable[[bytes], None]) -> None:
        """Give `take` its output as it comes; of a program that has ended, at once what there is left. One follower at a time;
        without one the program waits when it has written much."""
        ...

    def unfollow(self) -> None: ...


class Supervisor(Protocol):
    """Starts and ends programs in one sandbox."""

    shell: str
    """ "bash" or "sh": what sessions are; set by the first `open_session`."""
    home: str
    """The home folder inside; set likewise."""
    dead: str
    """Why nothing can run any more; empty while it can."""

    async def open_session(self) -> Program | None:
        """A session shell (`SESSION`), in any folder; None when no process is to be had. Raises SandboxError when dead."""
        ...

    def began(self, session: Program) -> None:
        """A call begins in the session: from here on its processes can be told from older ones."""
        ...

    def ended(self, last_job: int) -> None:
        """The call is over. `last_job`: process number of the session's youngest background job, 0 for none."""
        ...

    async def interrupt(self, session: Program, number: int) -> None:
        """Abort the session's command line by signal `number`, and kill what was started by the call that began last.

        That is: what the shell started since, with all below it, and processes of that age that have left every tree.
        Older background jobs and other programs' processes stay.
        """
        ...

    def kill_shell(self, session: Program) -> None:
        """End the session shell alone, without waiting for it; its jobs go on."""
        ...

    def abandon(self, session: Program, number: int) -> None:
        """As `interrupt` and `kill_shell`, without waiting for it."""
        ...

    async def kill_everything(self) -> None:
        """End every process but those that the supervisor itself needs."""
        ...

    def forget(self, session: Program) -> None:
        """Let go of a session that is over."""
        ...

    async def check(self) -> None:
        """Raise SandboxError when dead."""
        ...

    def command(self, argv: list[str]) -> str:
        """The script that is this program, in a process group of its own where the sandbox can do that."""
        ...

    async def run(self, script: str, stdin: bytes, max_output: int, timeout: float) -> tuple[int, bytes, bool]:
        """Run a shell script in the home folder, outside the session; see `base.Sandbox.run`.

        Returns status (`TIMED_OUT`, `KILLED` beyond `max_output`, `NOT_STARTED`), stdout, and whether there was more.
        Raises SandboxError when dead, or when it broke off.
        """
        ...

    async def open_program(self, script: str) -> Program | None:
        """Start a shell script in the home folder, outside the session, with its stdin and stdout for us.

        Its status is `KILLED` or `TORN` where the sandbox may have died; else it says nothing. None when no process is to be had.
        Raises SandboxError.
        """
        ...

    async def end_program(self, program: Program) -> None:
        """Kill what `open_program` gave, with all that it started, whether or not it has ended, wait some seconds at most until
        that is gone, and let go of it. Once only."""
        ...

    def stop(self, reason: str) -> None:
        """Be dead, for this reason: whatever waits for a program comes back."""
        ...

    def close(self) -> None:
        """Let go of everything, after `stop`."""
        ...
