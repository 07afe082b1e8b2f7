"""Starts programs inside a sandbox of this machine that is one shell on two pipes, and ends them from outside.

The supervisor is an interactive shell that reads lines from us: the first process of the sandbox, started by the backend
through whatever isolates it. Interactive, so that no error ends it; without a terminal, so that it shows nothing. For each
program it forks a reporter that runs the program and then tells its exit status. The program's stdin and stdout are FIFOs in
a folder of the host that the sandbox sees read-only: both sides can open them, and nothing there can be replaced by a link.
This needs neither root nor any tool in the sandbox but `sh`, and a program costs one fork and exec.

What comes back through the status pipe is forgeable from inside; a sandbox that does so only deceives itself. Owns the
supervisor's process, its pipes and the FIFOs; not the folder, which the backend made.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kiseki.errors import SandboxError
from kiseki.sandboxes import processes
from kiseki.sandboxes.base import KILLED, NOT_STARTED, TIMED_OUT
from kiseki.sandboxes.host_program import HostProgram, own
from kiseki.sandboxes.pipes import Writer, read_some
from kiseki.sandboxes.programs import SESSION, Program
from kiseki.sandboxes.settling import settled
from kiseki.sandboxes.streams.hunt import RUN_COOKIE

STATUS_LINE_LIMIT = 4096
"""A longer line in the status pipe is a forgery."""
OPEN_SECONDS = 60.0
"""For a program to be started; it takes milliseconds, unless the supervisor is stopped."""
GONE_SECONDS = 5.0
"""For what a program's end has killed to be gone; milliseconds, too. What is in uninterruptible I/O is left then."""


class HostSupervisor:
    """The `Supervisor` (see programs.py) of a sandbox on this machine."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        *,
        fifos: Path,
        fifos_inside: str,
        home: str,
        shell: str,
        list_processes: Callable[[], dict[int, processes.Process]],
    ) -> None:
        """`process` has pipes for stdin, stdout and stderr. `list_processes` gives all of the sandbox but its first one."""
        assert process.stdin and process.stdout and process.stderr
        self.process = process
        self.shell = shell
        self.home = home
        self.dead = ""
        self._fifos = fifos
        self._fifos_inside = fifos_inside
        self._list = list_processes
        self._loop = asyncio.get_running_loop()
        self._setsid = "setsid " if shutil.which("setsid", path="/usr/bin:/bin") else ""
        self._numbers = itertools.count(1)
        self._programs: dict[int, HostProgram] = {}
        self._since = 0  # the last call of the session: when it began, what was there, when it ended
        self._known: set[int] = set()
        self._last_end = 0
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._status = process.stdout.fileno()
        self._buffer = b""
        for stream in (process.stdin, process.stdout):
            os.set_blocking(stream.fileno(), False)
        self._input = Writer(os.dup(process.stdin.fileno()))
        process.stdin.close()
        self._loop.add_reader(self._status, self._on_status)

    async def start(self, setup: str) -> None:
        """Run the shell line `setup` as the first one. Raises SandboxError with the program's own words when it fails."""
        self._input.write(f"PS1= PS2=; exec 3>&1 >/dev/null 2>/dev/null; {setup}\necho ready >&3\n".encode())
        await self._ready
        assert self.process.stderr
        if self.dead:
            os.set_blocking(self.process.stderr.fileno(), False)
            words = (read_some(self.process.stderr.fileno()) or b"").decode(errors="replace").strip()
            raise SandboxError(f"the sandbox did not start: {words[-2000:] or self.dead}")
        self.process.stderr.close()

    async def open_session(self) -> Program | None:
        return self._spawn(self.command(SESSION[self.shell]), stdin=True, cookie=False)

    async def run(self, script: str, stdin: bytes, max_output: int, timeout: float) -> tuple[int, bytes, bool]:
        program = self._spawn(script, stdin=bool(stdin))
        output = bytearray()
        full = self._loop.create_future()

        def take(data: bytes) -> None:
            output.extend(data)
            if len(output) > max_output and not full.done():
                full.set_result(None)
                program.unfollow()

        program.follow(take)
        try:
            if stdin:
                program.give_input(stdin)
            await asyncio.wait([program.exited, full], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if not program.exited.done():
                self._kill(program)
                status = TIMED_OUT if not full.done() else KILLED
            else:
                status = program.exited.result()
        except BaseException:
            self._kill(program)
            raise
        finally:
            program.unfollow()
            if program.exited.done():
                self.forget(program)
            else:
                program.exited.add_done_callback(lambda _: self.forget(program))
        if self.dead:
            raise SandboxError(self.dead)
        return status, bytes(output[:max_output]), len(output) > max_output

    async def open_program(self, script: str) -> Program | None:
        program = self._spawn(script, stdin=True)
        try:
            news: list[asyncio.Future[Any]] = [program.opened, program.exited]
            await asyncio.wait(news, timeout=OPEN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not self.dead and not program.opened.done() and not program.exited.done():
                raise SandboxError(f"no program was started in the sandbox within {OPEN_SECONDS:g} s")
        except BaseException:
            await settled(self.end_program(program))
            raise
        if program.exited.done() and program.exited.result() == NOT_STARTED:
            self.forget(program)
            return None
        return program

    async def end_program(self, program: Program) -> None:
        mine = own(program)
        mine.unfollow()
        if not self.dead:
            self._kill(mine)
            if not mine.exited.done():  # It is not there yet.
                await asyncio.wait([mine.exited], timeout=GONE_SECONDS)
            await processes.wait_gone(mine.ending, GONE_SECONDS)
        if mine.exited.done():
            self.forget(mine)
        else:
            mine.exited.add_done_callback(lambda _: self.forget(mine))

    def _spawn(self, script: str, *, stdin: bool, cookie: bool = True) -> HostProgram:
        """Start a shell script in the home folder, with a pipe for its stdin or none.

        Raises SandboxError when the sandbox is dead. That there was no process to be had is told by its status.
        """
        if self.dead:
            raise SandboxError(self.dead)
        number = next(self._numbers)
        fifo = f"{self._fifos_inside}/{number}"
        try:
            reading = self._fifo(number, "out", os.O_RDONLY)
            writing = self._fifo(number, "in", os.O_RDWR) if stdin else None
        except OSError as error:
            raise SandboxError(f"cannot make a pipe into the sandbox: {error}") from error
        program = HostProgram(number, writing, reading, f"{RUN_COOKIE}={number}" if cookie else "")
        self._programs[number] = program
        source = f"{fifo}.in" if stdin else "/dev/null"
        mark = f"export {program.cookie}; " if cookie else ""
        self._input.write(
            f"( exec <{source} >{fifo}.out; echo o {number} >&3; cd {shlex.quote(self.home)}; {mark}\n( {script}\n) 3>&-\n"
            f"echo x {number} $? >&3 ) & echo p {number} $! >&3\necho q {number} >&3\n".encode(errors="surrogateescape")
        )
        return program

    def command(self, argv: list[str]) -> str:
        return f"exec {self._setsid}{shlex.join(argv)}"

    def _fifo(self, number: int, name: str, flags: int) -> int:
        path = self._fifos / f"{number}.{name}"
        os.mkfifo(path, 0o600)
        return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)

    def began(self, session: Program) -> None:
        self._since = processes.now_ticks()
        # The clock is coarse: what a call before started within the same tick is known by its pid.
        close = self._since <= self._last_end
        self._known = set(processes.descendants(self._shell_pid(own(session)))) if close else set()

    def ended(self, last_job: int) -> None:
        self._last_end = processes.now_ticks()

    async def interrupt(self, session: Program, number: int) -> None:
        self._interrupt(session, number)

    def abandon(self, session: Program, number: int) -> None:
        self._interrupt(session, number)
        self.kill_shell(session)

    def _interrupt(self, session: Program, number: int) -> None:
        host_pid = self._shell_pid(own(session))
        if host_pid:
            # First: it must know before its child is gone.
            processes.send([host_pid], number)
        processes.end_all(lambda: self._started_by_call(host_pid))

    def _kill(self, program: HostProgram) -> None:
        """End a program outside the session and everything it started."""
        program.killed = True
        if not program.inner_pid and not program.exited.done():
            return  # When the supervisor tells its pid, it is killed.
        program.ending |= processes.end_all(lambda: self._started_by_program(program))
        program.end(KILLED)

    def kill_shell(self, session: Program) -> None:
        shell = own(session)
        reporter = self._reporter(shell, self._list())
        processes.send([pid for pid in (reporter, self._shell_pid(shell)) if pid], signal.SIGKILL)
        shell.end(KILLED)

    async def kill_everything(self) -> None:
        processes.end_all(lambda: [pid for pid, process in self._list().items() if process.running])

    def _shell_pid(self, shell: HostProgram) -> int:
        """The host pid of the session shell; 0 where it is not there yet."""
        if not shell.shell_pid and not shell.exited.done():
            reporter = self._reporter(shell, self._list())
            below = processes.children(reporter) if reporter else []
            shell.shell_pid = below[0] if below else 0
        return shell.shell_pid

    def forget(self, session: Program) -> None:
        """Close our side and remove its FIFOs."""
        program = own(session)
        program.release()
        self._programs.pop(program.number, None)
        for name in ("in", "out"):
            (self._fifos / f"{program.number}.{name}").unlink(missing_ok=True)

    async def check(self) -> None:
        if self.dead:
            raise SandboxError(self.dead)

    def stop(self, reason: str) -> None:
        """Close every descriptor; programs still waited for end as killed."""
        if not self.dead:
            self.dead = reason
        if not self._loop.is_closed():
            self._loop.remove_reader(self._status)
        self._input.close()
        for program in list(self._programs.values()):
            program.end(KILLED)
        if not self._ready.done():
            self._ready.set_result(None)

    def close(self) -> None:
        self.stop("the sandbox is closed")
        for program in list(self._programs.values()):
            self.forget(program)
        for stream in (self.process.stdout, self.process.stderr):
            if stream:
                stream.close()

    def _reporter(self, program: HostProgram, table: dict[int, processes.Process]) -> int:
        if not program.host_pid and program.inner_pid:
            tops = [pid for pid, process in table.items() if process.parent not in table]
            program.host_pid = next((pid for pid in tops if processes.inner_pid(pid) == program.inner_pid), 0)
        return program.host_pid if program.host_pid in table else 0

    def _started_by_call(self, shell: int) -> set[int]:
        table = self._list()
        programs = {self._reporter(program, table) for program in self._programs.values()}
        found: set[int] = set()
        for pid, process in table.items():
            child_of_shell = process.parent == shell and shell in table
            orphan = process.parent not in table and pid not in programs and pid != shell
            if (child_of_shell or orphan) and process.started >= self._since and pid not in self._known:
                if orphan and f"{RUN_COOKIE}=".encode() in processes.environment(pid):
                    continue
                found |= processes.below(table, pid)
        return {pid for pid in found if table[pid].running}

    def _started_by_program(self, program: HostProgram) -> set[int]:
        table = self._list()
        # Once it has ended, another may have its reporter's number.
        reporter = 0 if program.exited.done() else self._reporter(program, table)
        found = processes.below(table, reporter) if reporter else set()
        if program.cookie:
            cookie = program.cookie.encode()
            found |= {pid for pid in table if pid not in found and cookie in processes.environment(pid).split(b"\0")}
        return {pid for pid in found if table[pid].running}

    def _on_status(self) -> None:
        data = read_some(self._status)
        if data is None:
            return
        if not data:
            self.stop("the sandbox has died")
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        self._buffer = self._buffer[:STATUS_LINE_LIMIT]
        for line in lines:
            self._take(line.split())

    def _take(self, words: list[bytes]) -> None:
        if words == [b"ready"]:
            if not self._ready.done():
                self._ready.set_result(None)
            return
        if len(words) < 2 or not all(word.isdigit() and len(word) < 10 for word in words[1:]):
            return
        program = self._programs.get(int(words[1]))
        if program is None:
            return
        match words[0], len(words):
            case b"p", 3:
                program.inner_pid = int(words[2])
                if program.killed:
                    self._kill(program)
            case b"q", 2 if not program.inner_pid:
                program.end(NOT_STARTED)
            case b"o", 2 if not program.opened.done():
                program.opened.set_result(None)
            case b"x", 3:
                program.end(int(words[2]))
