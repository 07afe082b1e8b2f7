"""The sandbox of every backend that can start programs: a persistent shell session, programs beside it, files.

A backend gives a `Supervisor` (how programs are started and ended in there: on this machine, or through streams to wherever it
is) and how to tear everything down; the rest is here.

The session is an interactive bash on two pipes, without a terminal; interactive, because then no error in a command ends it
and its command line can be aborted. Where there is no bash, `sh` does the same. A command is sent as two lines: `eval` of its
quoted text with stdin from /dev/null, and a `printf` of an end marker that holds a random number of this call, the exit status
and the current folder. Redirections of the eval are undone after it, so `exec >file` of a command ends with it, and so does an
unterminated quote.

At the time limit the shell gets a signal whose trap aborts the line before the next command in it begins, and the processes
started by this call are killed (the supervisor knows which); older background jobs stay. A shell that doesn't come back then is
replaced.

What background jobs write after a call's end stays in the pipe, and goes to the next call's output: nothing is read between
calls, so a job that writes much waits for the next call.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import secrets
import shlex
import signal
from collections.abc import Awaitable, Callable, Iterator

from kiseki.errors import KisekiError, SandboxError, ToolError, UsageError
from kiseki.sandboxes import files
from kiseki.sandboxes.base import KILLED, NOT_STARTED, TIMED_OUT, TORN, Channel, ExecResult
from kiseki.sandboxes.channel import ProgramChannel
from kiseki.sandboxes.folders import below_home, normal
from kiseki.sandboxes.pipes import Kept, LineDrop, MarkerSearch
from kiseki.sandboxes.programs import Program, Supervisor
from kiseki.trajectory.text import clean_text, cut_middle

ABORT_ROUNDS = 5
ABORT_WAIT = 0.2
"""Seconds for the shell to come back after an abort, in the first round, then twice as many, and so on; usually it takes under
one millisecond. After the last round it is replaced."""
SHELL_START_TIMEOUT = 30.0
"""Seconds; it takes 2 ms on an idle machine."""
HEALTH_TIMEOUT = 10.0
_PASSING = {os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EAGAIN)}
"""Reasons for which a folder may be had another time."""
_NO_PROCESS = "the sandbox cannot start another process: its limit is reached, or its programs are gone"

ABORT_SIGNAL = signal.SIGRTMAX
"""Traps run once a killed child is gone and before the shell goes on to the next command. No program uses this signal, and
users' traps don't either."""
# What the trap does must end the whole line. Bash does so on SIGINT, `sh` (dash, ash) on an error, which `command eval` catches.
_TRAP = {
    "bash": r"\builtin trap - INT; \builtin kill -INT $$",
    "sh": '{ : "${KISEKI_TIMEOUT?}"; } 2>/dev/null',
}
_SETUP = {
    "bash": f"PS1= PS2= PROMPT_COMMAND=; set +o history; unset HISTFILE; trap {shlex.quote(_TRAP['bash'])} {ABORT_SIGNAL:d}",
    "sh": f"PS1= PS2=; trap {shlex.quote(_TRAP['sh'])} {ABORT_SIGNAL:d}",
}
# The backslash evades aliases, `builtin` and `command` functions of the same name. stdout is redirected onto itself by a
# detour, so that the shell saves and restores it.
_EVAL = {
    "bash": r"\builtin eval {} </dev/null 250>&1 >&250 250>&- 2>&1",
    "sh": r"\command eval {} </dev/null 9>&1 >&9 9>&- 2>&1",
}
_MARK = {
    "bash": r"""\builtin printf '\036{}%s:%s:%.4096s\000' "$?" "${{!-}}" "${{PWD-}}" """,
    "sh": r"""kiseki_status=$? kiseki_stat=; \command read -r kiseki_stat </proc/self/stat; """
    r"""case $kiseki_stat in "$$ "*|"") ;; *) \command exit;; esac; """
    r"""\command printf '\036{}%s:%s:%.4096s\000' "$kiseki_status" "${{!-}}" "${{PWD-}}" """,
}
"""Of `sh`, a forked part of the shell may come to here, too: one that could not fork any further, in busybox. It ends then.
The line with its process number is read whole: the user's IFS says what words are."""
_TTY_NOISE = (b"bash: [", re.compile(rb"bash: \[\d+: \d+ \(\d+\)\] tcsetattr: Inappropriate ioctl for device\n"), 120)
"""What an interactive bash without terminal says when a child was killed by a signal: its start, all of it, most bytes."""


def below(cwd: str, home: str) -> str:
    """Where in a sandbox with its own file system the working folder `cwd` is."""
    return normal(cwd if cwd.startswith("/") else f"{home}/{below_home(cwd)}")


class ShellSandbox:
    """A `Sandbox` (see base.py) on top of a supervisor."""

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        description: dict[str, str],
        remove: Callable[[], Awaitable[None]],
        folder: str = "",
        place: Callable[[str, str], str] = below,
    ) -> None:
        """`remove` ends the supervisor and all it holds, and waits until that is gone. `folder`: where the first session starts,
        by default the home folder. `place`: (cwd, home) → path, or UsageError for one that may not be."""
        self._supervisor = supervisor
        self._folder = folder
        self._place = place
        self._description = description
        self._remove = remove
        self._lock = asyncio.Lock()
        self._session: Program | None = None
        self._leftover = b""
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the first session. Raises SandboxError."""
        await self._start_session()

    async def enter(self, cwd: str) -> None:
        """Make the working folder `cwd` and move the session there, before anything else runs in it.

        Raises SandboxError, and UsageError when there can be no such folder.
        """
        folder = self._place(cwd, self._supervisor.home)
        if folder == self._folder:
            return
        await self._make_folder(folder)
        await self.exec(f"cd -- {shlex.quote(folder)}; unset OLDPWD", timeout=SHELL_START_TIMEOUT)
        if self._folder != folder:
            raise UsageError(f"the working folder {folder[:200]!r} cannot be entered in the sandbox")

    async def _make_folder(self, path: str) -> None:
        # From inside: for the host, a path through /proc may lead out of the sandbox.
        try:
            script = f"exec mkdir -p -- {shlex.quote(path)} 2>&1"
            status, said, _ = await self._program(script, b"", 4096, SHELL_START_TIMEOUT)
        except ToolError as error:
            raise SandboxError(str(error)) from error
        if status:
            reason = files.reason(said) or f"status {status}"
            message = f"the working folder {path[:200]!r} cannot be made in the sandbox: {reason}"
            raise SandboxError(message) if status in (TIMED_OUT, KILLED) or reason in _PASSING else UsageError(message)

    async def exec(self, command: str, *, timeout: float, workdir: str | None = None, max_output: int = 50_000) -> ExecResult:
        command = clean_text(command)
        if "\0" in command or "\0" in (workdir or ""):
            raise ToolError("a command must not hold a NUL character")
        if workdir is not None:
            builtin = "\\builtin " if self._supervisor.shell == "bash" else ""
            command = f"{builtin}cd -- {shlex.quote(clean_text(workdir))} && {builtin}eval {shlex.quote(command)}"
        with _infrastructure():
            async with self._lock:
                restarted = await self._ensure_session()
                return await self._exec(command, timeout, max_output, restarted)

    async def run(
        self, argv: list[str], *, timeout: float, stdin: bytes = b"", max_output: int = 50_000_000
    ) -> tuple[int, bytes]:
        status, data, _ = await self._program(self._script(argv), stdin, max_output, timeout)
        return status, data

    async def open_channel(self, argv: list[str]) -> Channel:
        script = self._script(argv)
        with _infrastructure():
            program = await self._supervisor.open_program(script)
        if program is None:
            raise ToolError(_NO_PROCESS)
        return ProgramChannel(program, self._supervisor)

    async def read_file(self, path: str, *, max_bytes: int = 50_000_000) -> bytes:
        return await files.read(self._program, self._expand(path), self._folder, max_bytes)

    async def write_file(self, path: str, data: bytes) -> None:
        await files.write(self._program, self._expand(path), self._folder, data)

    async def healthy(self) -> bool:
        try:
            status, _ = await self.run(["true"], timeout=HEALTH_TIMEOUT)
        except (SandboxError, ToolError):
            return False
        return status == 0

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    def describe(self) -> dict[str, str]:
        return dict(self._description)

    async def _close(self) -> None:
        with contextlib.suppress(Exception):
            self._supervisor.stop("the sandbox is closed")
            await self._remove()
        self._supervisor.close()

    def _script(self, argv: list[str]) -> str:
        if not argv or any("\0" in word for word in argv):
            raise ToolError("a program's arguments must not be empty or hold a NUL character")
        return self._supervisor.command([clean_text(word) for word in argv])

    def _expand(self, path: str) -> str:
        path = clean_text(path)
        return self._supervisor.home + path[1:] if path == "~" or path.startswith("~/") else path

    # The session

    async def _ensure_session(self) -> bool:
        """Have a live shell; whether it had to be replaced."""
        if self._session and not self._session.exited.done() and not self._supervisor.dead:
            return False
        await self._start_session()
        return True

    async def _start_session(self) -> None:
        if self._session:
            self._supervisor.forget(self._session)
            self._session = None
        self._session = await self._try_session()
        if self._session is None:
            # No process or memory to be had: what the commands left running goes first.
            await self._supervisor.kill_everything()
            self._session = await self._try_session()
        if self._session is None:
            raise SandboxError(self._supervisor.dead or "the sandbox's shell does not start")
        self._leftover = b""

    async def _try_session(self) -> Program | None:
        """A session at its first prompt, in the last known folder; None when it doesn't get there."""
        session = await self._supervisor.open_session()
        if session is None:
            return None
        shell = self._supervisor.shell
        folder = self._folder or self._supervisor.home
        setup = f"{_SETUP[shell]}; cd -- {shlex.quote(folder)}; unset OLDPWD"
        call = _Call(session, f"{setup}\n", shell, Kept(4096), b"")
        started = False
        try:
            started = await call.wait(SHELL_START_TIMEOUT) and call.status() is not None
        finally:
            call.close()
            if not started:
                self._supervisor.kill_shell(session)
                self._supervisor.forget(session)
        if not started:
            return None
        self._folder = call.folder() or folder
        return session

    async def _exec(self, command: str, timeout: float, max_output: int, restarted: bool) -> ExecResult:
        assert self._session
        session, shell = self._session, self._supervisor.shell
        self._supervisor.began(session)
        line = _EVAL[shell].format(shlex.quote(command))
        call = _Call(session, f"{line}\n", shell, Kept(max_output), self._leftover)
        try:
            timed_out = not await call.wait(timeout)
            if timed_out:
                for number in range(ABORT_ROUNDS):
                    await self._supervisor.interrupt(session, ABORT_SIGNAL)
                    if await call.wait(ABORT_WAIT * (number + 1)):
                        break
                else:
                    self._supervisor.kill_shell(session)
        except BaseException:
            # Cancelled: nobody will read the rest, so the shell goes with its command.
            self._supervisor.abandon(session, ABORT_SIGNAL)
            raise
        finally:
            call.close()
        if self._supervisor.dead:
            raise SandboxError(self._supervisor.dead)
        status, lost = call.status(), False
        self._leftover = call.search.rest
        output = call.output()
        if status is None:
            status, lost = session.exited.result(), True
            if status == TORN:
                await self._supervisor.check()
                raise SandboxError("the connection to the sandbox broke off in the middle of a command")
            output = output.removesuffix(b"exit\n")  # An interactive shell's farewell.
            await self._start_session()
        else:
            self._folder = call.folder() or self._folder
        self._supervisor.ended(call.last_job())
        return ExecResult(
            output=output.decode(errors="replace"),
            exit_code=TIMED_OUT if timed_out else status,
            timed_out=timed_out,
            truncated=call.kept.total > call.kept.limit,
            session_restarted=restarted or lost,
        )

    async def _program(self, script: str, stdin: bytes, max_output: int, timeout: float) -> tuple[int, bytes, bool]:
        with _infrastructure():
            status, output, more = await self._supervisor.run(script, stdin, max_output, timeout)
        if status == NOT_STARTED:
            raise ToolError(_NO_PROCESS)
        return status, output, more


@contextlib.contextmanager
def _infrastructure() -> Iterator[None]:
    """Whatever else goes wrong with a sandbox is still infrastructure: no tool's result."""
    try:
        yield
    except (KisekiError, asyncio.CancelledError):
        raise
    except Exception as error:
        raise SandboxError(f"the sandbox failed: {type(error).__name__}: {error}") from error


class _Call:
    """One command in the session: sends it, collects its output up to the marker."""

    def __init__(self, session: Program, line: str, shell: str, kept: Kept, leftover: bytes) -> None:
        nonce = secrets.token_hex(8)
        self.search = MarkerSearch(b"\x1e" + nonce.encode())
        self.kept = kept
        self._noise = LineDrop(*_TTY_NOISE)
        self._session = session
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        kept.add(self._noise.feed(leftover))
        session.follow(self._take)
        session.exited.add_done_callback(self._end)
        session.write(f"{line}{_MARK[shell].format(nonce)}\n".encode(errors="surrogateescape"))

    async def wait(self, seconds: float) -> bool:
        """Whether the command ended, or the shell did."""
        if not self._ended.done():
            await asyncio.wait([self._ended], timeout=seconds)
        return self._ended.done()

    def status(self) -> int | None:
        """Of the command; None when the shell is gone."""
        return None if self.search.note is None else _number(self._note(0))

    def last_job(self) -> int:
        """Process number of the shell's youngest background job, 0 for none."""
        return _number(self._note(1))

    def folder(self) -> str:
        """The shell's, or "" where that is not known."""
        folder = self._note(2).decode(errors="surrogateescape")
        return folder if folder.startswith("/") else ""

    def output(self) -> bytes:
        self.kept.add(self._noise.feed(self.search.held()) + self._noise.held())
        return cut_middle(self.kept.data(), self.kept.limit, total=self.kept.total)

    def close(self) -> None:
        self._session.unfollow()
        self._session.exited.remove_done_callback(self._end)

    def _note(self, part: int) -> bytes:
        parts = (self.search.note or b"").split(b":", 2)
        return parts[part] if part < len(parts) else b""

    def _take(self, data: bytes) -> None:
        self.kept.add(self._noise.feed(self.search.feed(data)))
        if self.search.note is not None:
            self._session.unfollow()
            self._end()

    def _end(self, _: object = None) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) < 10 else 0
