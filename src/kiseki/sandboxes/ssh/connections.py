"""SSH connections to one host, shared by the sandboxes of one process, and the programs that run over them.

A server takes so many programs per connection, so there are as many connections as programs need. They stay until the pool is
closed. A program has neither terminal nor environment of ours. Knows nothing of sandboxes. Imports asyncssh, as `login.py`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
import signal
from collections.abc import Callable
from typing import cast

import asyncssh

from kiseki.errors import SandboxError
from kiseki.sandboxes.ssh.login import Address, log_in
from kiseki.sandboxes.streams.machine import TORN, Stream

PROGRAMS_PER_CONNECTION = 10
"""The default of sshd's MaxSessions. Where it is less, the server refuses and another connection is made."""
CONNECTING_AT_ONCE = 4
"""Per process. sshd begins to drop connections when 10 wait for their authentication (MaxStartups), whoever they come from."""
STARTS = 10
"""Connections that a program is tried on; the second or third has room, unless others are quicker."""
STATUS_GRACE = 0.2
"""Seconds from a program's exit status to its end, in which the rest of its output arrives; longer when a background process
holds its stdout open."""
WORDS_LIMIT = 2000
"""Bytes kept of what a program says that doesn't start."""


class SSHStream(Stream):
    """A program on the host. asyncssh calls it as the session of its channel."""

    def __init__(self, connection: Connection, mark: str) -> None:
        super().__init__()
        self.connection = connection
        self.started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the program runs. Fails with SandboxError, in the host's own words, when it doesn't come to that."""
        self._mark = f"{mark}\n".encode()
        self._before = bytearray()
        """What came before the mark: what the user's start-up files say."""
        self._words = bytearray()
        self._channel: asyncssh.SSHClientChannel[bytes] | None = None
        self._status = TORN
        self._has_status = False
        self._paused = False
        self.opened = False
        """Its channel was; from then on, the channel's end gives the place on the connection back."""
        self.closed = False
        """By us."""
        self._timer: asyncio.TimerHandle | None = None

    # Of a stream

    def write(self, data: bytes) -> None:
        if self._channel and not self.closed:
            with contextlib.suppress(OSError):
                self._channel.write(data)

    def pause(self) -> None:
        self._paused = True
        if self._channel:
            self._channel.pause_reading()

    def resume(self) -> None:
        self._paused = False
        if self._channel:
            self._channel.resume_reading()
        self._await_rest()

    def close(self) -> None:
        self.closed = True
        self._stop_timer()
        if self._channel:
            self._channel.abort()

    # Called by asyncssh

    def connection_made(self, channel: asyncssh.SSHClientChannel[bytes]) -> None:
        self._channel, self.opened = channel, True

    def session_started(self) -> None:
        """The server has said yes; whether the program runs, the mark will tell."""

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if self.closed:
            return
        if datatype is not None:
            self._words += data[: WORDS_LIMIT - len(self._words)]
        elif self.started.done():
            self.received(data)
        else:
            self._before += data
            before, found, rest = bytes(self._before).partition(self._mark)
            if found:
                self._before.clear()
                self.started.set_result(None)
                self.pause()  # Until it is followed.
                if rest:
                    self.received(rest)
            else:
                self._before[:] = before[-WORDS_LIMIT:]

    def eof_received(self) -> bool:
        return True  # The other direction stays open.

    def exit_status_received(self, status: int) -> None:
        self._exited(status)

    def exit_signal_received(self, name: str, core_dumped: bool, message: str, language: str) -> None:
        number = getattr(signal, f"SIG{name}", signal.SIGKILL)
        self._exited(128 + number)

    def pause_writing(self) -> None:
        self.sent.clear()

    def resume_writing(self) -> None:
        self.sent.set()

    def connection_lost(self, error: Exception | None) -> None:
        """The channel is closed on both sides, all that came has been handed on; with an error, the connection went with it."""
        self._channel = None
        self._stop_timer()
        if error:
            self.connection.lose(error)
        self.connection.released()
        if not self.started.done():
            words = self.connection.lost or _words(self._words, self._before)
            self.started.set_exception(SandboxError(words))
            self.started.exception()  # Whoever waited for it may be gone.
        self.ended(self._status)

    def _exited(self, status: int) -> None:
        self._status, self._has_status = status, True
        self._await_rest()

    def _await_rest(self) -> None:
        """A program has ended when its channel is closed, or a little after it exited: a job of its may hold the channel open."""
        if self._has_status and not self._paused and not self._timer and not self.exited.done():
            self._timer = self.exited.get_loop().call_later(STATUS_GRACE, self._at_grace)

    def _at_grace(self) -> None:
        self._timer = None
        if not self._paused:
            self.ended(self._status)

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None


class Connection:
    """One connection, from when it is wanted: a place on it can be taken before it stands."""

    def __init__(self, pool: Pool) -> None:
        self.programs = 0
        """That run on it, or are about to."""
        self.full = False
        """The server refused another one."""
        self.lost = ""
        """Why it is of no use any more."""
        self._pool = pool
        self._useful = False  # a program ran on it
        self._ssh: asyncssh.SSHClientConnection | None = None
        self._connecting = asyncio.get_running_loop().create_task(self._connect())

    def has_room(self) -> bool:
        return not self.lost and not self.full and self.programs < PROGRAMS_PER_CONNECTION

    async def start(self, command: str, mark: str) -> SSHStream | None:
        """Run a command, in the place taken on it; None when another connection may take it. Raises SandboxError.

        Must not be cancelled: asyncssh would lose the channel that the server is about to open.
        """
        await asyncio.wait([self._connecting])
        if not self._connecting.cancelled():
            self._connecting.result()
        stream = SSHStream(self, mark)
        try:
            if self.lost or self._ssh is None:
                raise SandboxError(self.lost or "the SSH connection is closed")
            # The cast: it is a session by its methods, and asyncssh wants the class.
            factory = cast("Callable[[], asyncssh.SSHClientSession[bytes]]", lambda: stream)
            await self._ssh.create_session(
                factory,
                command,
                subsystem=None,
                env=None,
                send_env=None,
                request_pty=False,
                x11_forwarding=False,
                encoding=None,
            )
        except (SandboxError, asyncssh.Error, OSError) as error:
            if stream.opened:
                stream.close()  # Its end gives the place back.
            else:
                self.released()
            if self.lost and self._ssh and not stream.opened:
                return None
            if self.lost:
                raise SandboxError(self.lost) from error
            if stream.opened or not isinstance(error, asyncssh.ChannelOpenError) or not (self.programs or self._useful):
                raise SandboxError(f"{self._pool.address} runs no program: {error}") from error
            self.full = True
            if self._ssh and not self.programs:  # Programs that we let go of still run, and their places don't come back.
                self._ssh.abort()
            return None
        self._useful = True
        return stream

    def released(self) -> None:
        """A program's place is free."""
        self.programs -= 1
        self.full = False

    def lose(self, error: Exception | None) -> None:
        if not self.lost:
            reason = str(error) if error and str(error) else "closed by the host"
            self.lost = f"the SSH connection to {self._pool.address} was lost: {reason}"

    async def close(self) -> None:
        self._connecting.cancel()
        await asyncio.wait([self._connecting])
        self.lost = self.lost or "the SSH connection is closed"
        if self._ssh:
            self._ssh.abort()
            await self._ssh.wait_closed()

    async def _connect(self) -> None:
        try:
            self._ssh = await self._pool.connect(self.lose)
        except SandboxError as error:
            self.lost = str(error)


class Pool:
    """Connections to one host. Belongs to one event loop."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._connections: list[Connection] = []
        self._gate = asyncio.Semaphore(CONNECTING_AT_ONCE)
        self._failures = 0
        self._failure = ""

    async def start(self, script: str, *, near: Connection | None = None) -> SSHStream:
        """Run a script by the host's `sh`, on the connection `near` where that has room. Returns when it runs.

        The stream is its stdin and stdout. Raises SandboxError.
        """
        mark = f"kiseki-{secrets.token_hex(8)}"
        command = _command(f"echo {mark}; {script}")
        for _ in range(STARTS):
            starting = asyncio.get_running_loop().create_task(self._take_place(near).start(command, mark))
            try:
                stream = await asyncio.shield(starting)
            except asyncio.CancelledError:
                starting.add_done_callback(_close_late)
                raise
            if stream:
                break
        else:
            raise SandboxError(f"{self.address} refuses programs, or drops connections, again and again")
        try:
            await asyncio.shield(stream.started)
        except BaseException:
            stream.close()
            raise
        return stream

    async def run(self, script: str, timeout: float) -> tuple[int, str]:
        """Run a script to its end. Exit status and stdout. Raises SandboxError."""
        output = bytearray()
        stream: SSHStream | None = None
        try:
            async with asyncio.timeout(timeout):
                stream = await self.start(script)
                stream.follow(output.extend)
                status = await asyncio.shield(stream.exited)
        except TimeoutError:
            raise SandboxError(f"{self.address} did not answer within {timeout:g} s") from None
        finally:
            if stream:
                stream.close()
        if status == TORN:
            raise SandboxError(stream.connection.lost or f"{self.address} ended a program without a word on how")
        return status, output.decode(errors="replace")

    async def close(self) -> None:
        connections, self._connections = self._connections, []
        await asyncio.gather(*(connection.close() for connection in connections), return_exceptions=True)

    async def connect(self, lost: Callable[[Exception | None], None]) -> asyncssh.SSHClientConnection:
        """A connection that stands. Raises SandboxError."""
        before = self._failures
        async with self._gate:
            if self._failures != before:  # Of what we waited behind: the host would not answer us any better.
                raise SandboxError(self._failure)
            try:
                return await log_in(self.address, lost)
            except SandboxError as error:
                self._failures += 1
                self._failure = str(error)
                raise

    def _take_place(self, near: Connection | None) -> Connection:
        self._connections = [connection for connection in self._connections if not connection.lost]
        candidates = [*([near] if near else []), *self._connections]
        found = next((connection for connection in candidates if connection.has_room()), None)
        if found is None:
            found = Connection(self)
            self._connections.append(found)
        found.programs += 1
        return found


def _close_late(starting: asyncio.Task[SSHStream | None]) -> None:
    """For a start that nobody waits for any more."""
    if not starting.cancelled() and not starting.exception() and (stream := starting.result()):
        stream.close()


def _command(script: str) -> str:
    """For the user's login shell, whichever that is: it has no quotes but these, and no line ends."""
    encoded = base64.b64encode(script.encode()).decode()
    return f"""exec /bin/sh -c 'eval "$(echo {encoded} | base64 -d)"'"""


def _words(*parts: bytes | bytearray) -> str:
    said = " ".join(b" ".join(bytes(part) for part in parts).decode(errors="replace").split())
    return f"the host runs no program for us: {said or 'it ends at once'}"
