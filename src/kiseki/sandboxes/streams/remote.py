"""A sandbox of a machine that is reached by streams of bytes alone (see machine.py), with no more than `sh` inside.

One stream is the session's shell. Others, opened when they are needed and kept, are runners: shells that run one script at a
time, for `Sandbox.run`, for files, and to kill what a command left; programs that are spoken to, or have much input, get a stream
of their own. Nothing is known of the machine's processes from outside, so they are found and killed from inside, by a script
(hunt.py).

What a program leaves in the background should let go of its stdout: it would stand in a later program's output.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import shlex
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from kiseki.errors import SandboxError
from kiseki.sandboxes.base import KILLED, NOT_STARTED, TIMED_OUT, TORN
from kiseki.sandboxes.programs import Program
from kiseki.sandboxes.python import PYTHON_VARIABLES
from kiseki.sandboxes.settling import settled
from kiseki.sandboxes.shell import ABORT_SIGNAL, ShellSandbox, below
from kiseki.sandboxes.streams import hunt
from kiseki.sandboxes.streams.jobs import Job, NoAnswerError, ask
from kiseki.sandboxes.streams.machine import Machine, Stream
from kiseki.sandboxes.streams.remote_program import RemoteProgram
from kiseki.sandboxes.streams.shells import BECOME, BOOT, CLOCK, FIND_BASH, HELLO, HOME, NO_PROCESS, Shell

OPEN_TIMEOUT = 60.0
"""Seconds for a shell in a running machine to be started, and as many to say that it is there."""
CHECK_TIMEOUT = 30.0
"""Seconds for a machine to say whether it runs."""
HUNT_TIMEOUT = 20.0
"""Seconds for a hunt: it takes milliseconds, but a machine full of processes at their limits is slow."""
INLINE_INPUT = 32_768
"""Bytes of a program's input that are part of its script: `sh` reads scripts from a pipe a byte at a time, one per 1 µs."""
IDLE_RUNNERS = 2
"""Runners that are kept for later."""
TICKS_PER_SECOND = 100
"""Of process start times in /proc: the same on every Linux, as far as programs are told."""


async def open_remote(
    machine: Machine,
    description: dict[str, str],
    place: Callable[[str, str], str] = below,
    watch: Callable[[Exceeded], None] | None = None,
) -> ShellSandbox:
    """A started sandbox. The machine is its own from here on, also when this raises SandboxError or is cancelled.

    `watch` gets what to call, until the machine is removed, whenever that has taken more of something than it may and still takes
    more, where nothing else holds it back (the disk).
    """
    supervisor = RemoteSupervisor(machine)
    sandbox = ShellSandbox(supervisor, description=description, remove=supervisor.remove, folder=machine.folder, place=place)
    try:
        await sandbox.start()
        if watch:
            watch(supervisor.exceeded)
    except BaseException:
        await settled(sandbox.close())
        raise
    return sandbox


Exceeded = Callable[[str], Awaitable[None]]
"""Ends all that runs in a sandbox, and tells the model why, in these words. Raises SandboxError."""


class RemoteSupervisor:
    """The `Supervisor` (see programs.py) of a machine."""

    def __init__(self, machine: Machine) -> None:
        self.shell = ""
        self.home = ""
        self.dead = ""
        self._machine = machine
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[Stream, Shell] = {}
        self._idle: list[Shell] = []
        self._busy: set[Shell] = set()
        self._programs: dict[RemoteProgram, Shell] = {}
        self._kills: set[asyncio.Task[None]] = set()  # under way
        self._gate = asyncio.Lock()  # no shell is opened while a hunt might take it for what it looks for
        self._died: asyncio.Future[None] = self._loop.create_future()
        self._clock = 0.0  # the machine's seconds since boot minus our clock, or less
        self._doubt = 0.0  # less by so much at most
        self._began = 0.0
        self._last_job = 0
        self._calling: Program | None = None  # the session in which a call runs

    # The session

    async def open_session(self) -> Program | None:
        await self._settled()
        try:
            session = await self._open_shell(["sh", "-c", BOOT], f"exec 2>&1; {self._prelude()}; {FIND_BASH}; {HELLO}; {BECOME}")
            if not self._clock:
                await self._set_clock(session.stream)
        except NoAnswerError as error:
            await self.check()
            if not self.shell:
                raise SandboxError(f"no shell starts in the sandbox: {error}") from error
            return None
        self._sessions[session.stream] = session
        self.shell, self.home = session.kind, session.home
        return session.stream

    async def _set_clock(self, stream: Stream) -> None:
        asked = time.monotonic()
        fields = (await ask(stream, CLOCK, OPEN_TIMEOUT, self._died)).rpartition(")")[2].split()
        answered = time.monotonic()
        started = int(fields[19]) / TICKS_PER_SECOND if len(fields) > 19 and fields[19].isdigit() else 0.0
        self._clock, self._doubt = started - answered, answered - asked

    def began(self, session: Program) -> None:
        self._began = time.monotonic()
        self._calling = session

    def ended(self, last_job: int) -> None:
        self._calling = None
        self._last_job = last_job

    async def interrupt(self, session: Program, number: int) -> None:
        await self._interrupt(session, number, self._began, self._last_job)

    async def _interrupt(self, session: Program, number: int, began: float, last_job: int) -> None:
        shell = self._sessions[_stream(session)]
        since, doubt = int((began + self._clock) * TICKS_PER_SECOND), int(self._doubt * TICKS_PER_SECOND)

        def find() -> str:
            runners, mark = self._runners(), self._machine.mark
            return hunt.of_call(shell.pid, since=since, doubt=doubt, last_job=last_job, runners=runners, mark=mark)

        # The signal first: the shell must know before its child is gone.
        await self._hunt(f"kill -{number} {shell.pid}\n", find)

    def kill_shell(self, session: Program) -> None:
        shell = self._sessions[_stream(session)]
        self._later(self._hunt(f"kill -KILL {shell.pid}\n"))
        shell.stream.ended(KILLED)

    def abandon(self, session: Program, number: int) -> None:
        stream, began, last_job = _stream(session), self._began, self._last_job

        async def end() -> None:
            await self._interrupt(session, number, began, last_job)
            await self._hunt(f"kill -KILL {self._sessions[stream].pid}\n")

        self._later(end())
        stream.ended(KILLED)

    async def kill_everything(self) -> None:
        await self._hunt("", lambda: hunt.of_everything(spared=self._runners(), mark=self._machine.mark))

    async def exceeded(self, words: str) -> None:
        sessions = [shell for stream, shell in self._sessions.items() if not stream.exited.done()]
        for shell in sessions[-1:]:
            shell.stream.received(f"\n[{words}]\n".encode())

        def find() -> str:
            spared = [*(shell.pid for shell in sessions), *self._runners()]
            return hunt.of_everything(spared=spared, mark=self._machine.mark)

        # A shell that waits for a command would die of the signal.
        abort = "".join(f"kill -{ABORT_SIGNAL:d} {shell.pid}\n" for shell in sessions if shell.stream is self._calling)
        await self._hunt(abort, find)

    def forget(self, session: Program) -> None:
        _stream(session).close()

    # Programs beside it

    def command(self, argv: list[str]) -> str:
        return f"G=; command -v setsid >/dev/null && G=setsid; exec $G {shlex.join(argv)}"

    async def run(self, script: str, stdin: bytes, max_output: int, timeout: float) -> tuple[int, bytes, bool]:
        if self.dead:
            raise SandboxError(self.dead)
        token = f"{hunt.RUN_COOKIE}={secrets.token_hex(8)}"
        job = Job(f"( export {token}\n{script}\n)", max_output)
        alone = len(stdin) > INLINE_INPUT
        try:
            runner = await (self._open_alone(job, len(stdin)) if alone else self._runner())
        except NoAnswerError:
            await self.check()
            return NOT_STARTED, b"", False
        self._busy.add(runner)
        stream = runner.stream
        try:
            job.follow(stream)
            stream.write(stdin if alone else job.text(stdin))
            await asyncio.wait([job.over, self._died], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            job.unfollow()
            self._busy.discard(runner)
            ended = stream.exited.done()  # by itself, not by what follows
            if job.status is None and not ended:
                self._later(self._end_program(runner, token))
            elif alone or job.status is None or len(self._idle) >= IDLE_RUNNERS:
                stream.close()
            else:
                runner.kept = True
                self._idle.append(runner)
        if job.status is None and not job.full:
            await self.check()
            if not ended:
                return TIMED_OUT, bytes(job.output), False
            if runner.kept and not job.begun:
                return await self.run(script, stdin, max_output, timeout)
            if stream.exited.result() == TORN:
                raise SandboxError("the connection to the sandbox broke off in the middle of a program")
            return KILLED, bytes(job.output), False
        return (KILLED if job.status is None else job.status), bytes(job.output[:max_output]), job.full

    async def open_program(self, script: str) -> Program | None:
        if self.dead:
            raise SandboxError(self.dead)
        program = RemoteProgram(script)
        try:
            runner = await self._open_shell(["sh", "-c", f"{self._given_line()}\n{program.script}"], HELLO)
        except NoAnswerError:
            await self.check()
            return None
        program.stream = runner.stream
        program.write(b"\n")
        self._busy.add(runner)
        self._programs[program] = runner
        return program

    async def end_program(self, program: Program) -> None:
        assert isinstance(program, RemoteProgram)
        runner = self._programs.pop(program)
        self._busy.discard(runner)
        gone = runner.stream.exited.done()
        if not self.dead:
            find = functools.partial(hunt.of_program, None if gone else runner.pid, program.token)
            killing = self._later(self._hunt("", find, gone=True))
            await asyncio.wait([killing])
        runner.stream.close()
        program.end(KILLED)

    async def _runner(self) -> Shell:
        while self._idle:
            runner = self._idle.pop()
            if not runner.stream.exited.done():
                return runner
            runner.stream.close()
        return await self._open_shell(["sh", "-c", BOOT], f"exec 2>/dev/null; {self._prelude()}; {HELLO}; exec sh")

    async def _open_alone(self, job: Job, size: int) -> Shell:
        """A stream for one job, whose input of `size` bytes follows."""
        # Input that the script leaves is read too: Podman drops the last of the output when a program ends before its input.
        script = f"{self._given_line()}\nhead -c {size} | {job.script}\n{job.mark}\nexec cat >/dev/null"
        return await self._open_shell(["sh", "-c", script], HELLO)

    def _given_line(self) -> str:
        """The start of a script that has the rest of its input for itself: it does what the first line says."""
        return f'IFS= read -r kiseki || exit\nexec 2>/dev/null; {self._prelude()}; eval "$kiseki"'

    async def _end_program(self, runner: Shell, token: str) -> None:
        """Kill a runner with all that its script started."""
        await self._hunt("", lambda: hunt.of_program(runner.pid, token))
        runner.stream.close()

    # Killing

    async def _hunt(self, first: str, find: Callable[[], str] | None = None, *, gone: bool = False) -> None:
        """Run the lines `first`, then kill all that `find` finds (of hunt.py; `gone` is its `script`'s). Raises SandboxError when
        that can't be done."""
        if self.dead:
            return
        try:
            runner = await self._runner()
        except NoAnswerError as error:
            await self._restart(str(error))
            return
        async with self._gate:
            await self._hunt_with(runner, Job(f"{first}{hunt.script(find(), gone=gone) if find else ':'}", 0))

    async def _hunt_with(self, runner: Shell, job: Job) -> None:
        try:
            job.follow(runner.stream)
            runner.stream.write(job.text(b""))
            await asyncio.wait([job.over, self._died], timeout=HUNT_TIMEOUT, return_when=asyncio.FIRST_COMPLETED)
        finally:
            job.unfollow()
            if job.status is None:
                runner.stream.close()
            else:
                self._idle.append(runner)
        if job.status is None:
            await self._restart("what runs in it cannot be killed")

    def _runners(self) -> list[int]:
        return [runner.pid for runner in (*self._idle, *self._busy)]

    async def _restart(self, why: str) -> None:
        """No process can be had inside: what is there must go."""
        await self.check()
        for stream in (*self._sessions, *(runner.stream for runner in self._busy)):
            stream.ended(KILLED)
        if not await self._machine.restart():
            await self.check()
            raise SandboxError(f"the sandbox takes no more commands: {why}")

    def _later(self, kill: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(kill)
        self._kills.add(task)
        task.add_done_callback(self._killed)
        return task

    def _killed(self, task: asyncio.Task[None]) -> None:
        self._kills.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self.stop(str(error))

    async def _settled(self) -> None:
        """Once no kill is under way that might take what comes next for what it looks for."""
        while self._kills:
            await asyncio.wait(self._kills)
        if self.dead:
            raise SandboxError(self.dead)

    # All of it

    async def check(self) -> None:
        if not self.dead:
            try:
                async with asyncio.timeout(CHECK_TIMEOUT):
                    why = await self._machine.why_dead()
            except TimeoutError:
                why = f"the sandbox's machine did not say within {CHECK_TIMEOUT:g} s whether it runs"
            if why:
                self.stop(why)
        if self.dead:
            raise SandboxError(self.dead)

    def stop(self, reason: str) -> None:
        if not self.dead:
            self.dead = reason
        if not self._died.done():
            self._died.set_result(None)
        for each in (*self._sessions, *(runner.stream for runner in self._programs.values())):
            each.ended(KILLED)

    async def remove(self) -> None:
        for task in self._kills:
            task.cancel()
        await self._machine.remove()

    def close(self) -> None:
        self.stop("the sandbox is closed")
        for stream in (*self._sessions, *(runner.stream for runner in (*self._idle, *self._busy))):
            stream.close()

    # Shells

    def _prelude(self) -> str:
        variables = {"TERM": "dumb", **PYTHON_VARIABLES, **self._machine.environment}
        exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in variables.items())
        return f"{exports}{HOME}"

    async def _open_shell(self, argv: list[str], line: str) -> Shell:
        """A program that waits for a line and, told so by `HELLO` in it, greets.

        Raises `NoAnswerError` where the machine runs and has no process to spare, SandboxError otherwise.
        """
        async with self._gate:
            try:
                async with asyncio.timeout(OPEN_TIMEOUT):
                    stream = await self._machine.open(argv)
            except TimeoutError as error:
                await self.check()
                raise SandboxError(f"no program was started in the sandbox within {OPEN_TIMEOUT:g} s") from error
            except SandboxError as error:
                await self.check()
                if NO_PROCESS.search(str(error)):
                    raise NoAnswerError(str(error)) from error
                raise
            said = ""
            try:
                said = await ask(stream, line, OPEN_TIMEOUT, self._died)
                return Shell(stream, said)
            except ValueError:
                raise NoAnswerError("it does not say that it is there") from None
            finally:
                if not said:
                    stream.close()


def _stream(program: Program) -> Stream:
    """A program that this module made."""
    assert isinstance(program, Stream)
    return program
