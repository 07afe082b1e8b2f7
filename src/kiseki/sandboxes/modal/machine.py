"""An instance at Modal as a `Machine` (see machine.py), and its programs as streams.

Every `.aio` call hops to the SDK's own event loop, in its thread, and back. All streams of an instance share one connection.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from kiseki.errors import SandboxError
from kiseki.sandboxes.base import KILLED, Limits
from kiseki.sandboxes.modal.sdk import ANSWER_SECONDS, answer, asking, sdk, words
from kiseki.sandboxes.streams.machine import TORN, Stream

LIFETIME = 24 * 3600
"""Seconds that an instance may live: the most that Modal allows."""
SILENCE = 900
"""Seconds without a word from its owner after which an instance ends by itself, so that it isn't paid for when nobody reaps it.
Modal's own idle timeout does not count: a shell that was left running keeps an instance busy."""
PULSE = 120.0
"""Seconds between two words from the owner."""
REMOVE_SECONDS = 30.0
DETACH_SECONDS = 5.0
"""To let go of our side of an instance that is gone."""
EXIT_SECONDS = 10.0
"""From where a program's output breaks off to its exit status."""
QUIET_SECONDS = 2.0
"""A program is over, and something else still holds its stdout: after so long without output, nothing more of its own comes."""
HELD_BYTES = 1 << 20
"""Read ahead while nobody follows. Then the stream is left, to be taken up again at that place: data that nobody takes would
stop the connection in the end."""
SEND_BYTES = 1 << 20
"""Of input per message; Modal takes sixteen times as much."""


def first_program(silence: int = SILENCE) -> list[str]:
    """What an instance runs: it waits for words from the owner, and ends without them."""
    # With builtins alone, and deaf to signals: neither a fork bomb nor a `kill` inside ends it. dash's `read` has no limit, but
    # where dash is /bin/sh there is usually bash too. An stdin that was never open says nothing about the owner.
    last = "while sleep 3600; do :; done"
    listen = (
        f"began=$(date +%s); while read -r -t {silence} pulse; do :; done; [ $(($(date +%s)-began)) -lt {silence} ] || exit 0"
    )
    script = (
        "trap '' HUP INT QUIT ALRM TERM USR1 USR2\n"
        f"if command -v bash >/dev/null 2>&1; then exec bash -c '{listen}; {last}'; fi\n"
        f"if (echo | read -r -t 1 pulse) 2>/dev/null; then {listen}; fi\n{last}"
    )
    return ["sh", "-c", script]


class ModalMachine:
    """A `Machine` (see machine.py): an instance at Modal."""

    def __init__(self, instance: Any, limits: Limits) -> None:
        self.environment: dict[str, str] = {}
        self.folder = ""
        self.mark = ""
        self.status: int | None = None
        """Of its first program, once `why_dead` has found it ended."""
        self._instance = instance
        # `sh` counts blocks of 512 bytes. What a limit cannot be set for runs without.
        self._limited = f'{{ ulimit -c 0; ulimit -f {limits.disk_mb * 2048}; }} 2>/dev/null; exec "$@"'
        self._pulse = asyncio.ensure_future(self._beat())
        self._removed = False

    async def open(self, argv: list[str]) -> Stream:
        command = ["sh", "-c", self._limited, "sh", *argv]
        try:
            quiet = sdk().stream_type.StreamType.DEVNULL
            # What is started for nobody, after this was cancelled, waits for a word and takes nothing; it ends with the instance.
            return ModalStream(await answer(self._instance.exec.aio(*command, text=False, stderr=quiet)))
        except Exception as error:
            raise SandboxError(await self.why_dead() or f"Modal does not start a program: {words(error)}") from error

    async def why_dead(self) -> str:
        exception = sdk().exception
        try:
            self.status = await answer(self._instance.poll.aio(), ANSWER_SECONDS)
            if self.status is None:
                return ""
            await answer(self._instance.wait.aio(), ANSWER_SECONDS)
        except exception.SandboxTimeoutError:
            return f"the sandbox at Modal reached the end of its {LIFETIME // 3600} hours"
        except exception.SandboxTerminatedError:
            return "the sandbox at Modal was terminated from outside"
        except Exception as error:
            return f"the sandbox at Modal does not answer: {words(error)}"
        if self.status == 0:
            return f"the sandbox at Modal ended by itself: it heard nothing from here for {SILENCE // 60} minutes"
        likely = " (out of memory, or killed)" if self.status == KILLED else ""
        return f"the sandbox at Modal ended with status {self.status}{likely}"

    async def restart(self) -> bool:
        return False

    async def remove(self) -> None:
        self._pulse.cancel()
        if self._removed:
            return
        with asking("end a sandbox"), contextlib.suppress(sdk().exception.NotFoundError):
            await answer(self._instance.terminate.aio(wait=True), REMOVE_SECONDS)
        self._removed = True
        with contextlib.suppress(Exception):
            await answer(self._instance.detach.aio(), DETACH_SECONDS)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(PULSE)
            # Whether it lives is for those to find out who want something from it.
            with contextlib.suppress(Exception):
                self._instance.stdin.write(b"\n")
                await self._instance.stdin.drain.aio()


class ModalStream(Stream):
    """A program of an instance (the SDK's ContainerProcess)."""

    def __init__(self, process: Any) -> None:
        super().__init__()
        self._process = process
        self._input = bytearray()
        self._more = asyncio.Event()
        self._wanted = asyncio.Event()
        self._total = 0
        self._tasks = [asyncio.ensure_future(self._run()), asyncio.ensure_future(self._send())]

    def write(self, data: bytes) -> None:
        self._input += data
        self.sent.clear()
        self._more.set()

    def pause(self) -> None:
        self._wanted.clear()

    def resume(self) -> None:
        self._wanted.set()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._input.clear()
        self.sent.set()

    async def _run(self) -> None:
        exiting = asyncio.ensure_future(self._exit())
        reading = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait([exiting, reading], return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                # A program may close its stdout and run on.
                await asyncio.wait([exiting], timeout=None if reading.result() else EXIT_SECONDS)
            else:
                await self._quiet(reading)
            self.ended(exiting.result() if exiting.done() else TORN)
        finally:
            exiting.cancel()
            reading.cancel()

    async def _exit(self) -> int:
        with contextlib.suppress(Exception):
            return int(await self._process.wait.aio())
        return TORN

    async def _read(self) -> bool:
        """To its end, which it did not come to where this is false."""
        # A torn stream tells by its exit status, which nobody has then.
        with contextlib.suppress(Exception):
            while not await self._read_on():
                await self._wanted.wait()
            return True
        return False

    async def _read_on(self) -> bool:
        """Whether that was all; False when nobody follows and much is held."""
        output = self._process.stdout.__aiter__()
        try:
            async for data in output:
                self._total += len(data)
                self.received(data)
                if len(self._held) > HELD_BYTES and not self._wanted.is_set():
                    return False
            return True
        finally:
            await output.aclose()

    async def _quiet(self, reading: asyncio.Future[bool]) -> None:
        """Until the output ends, or nothing more of it comes."""
        before = -1
        while not reading.done() and before != self._total:
            if len(self._held) > HELD_BYTES:
                await self._wanted.wait()
            before = self._total
            await asyncio.wait([reading], timeout=QUIET_SECONDS)

    async def _send(self) -> None:
        with contextlib.suppress(Exception):  # The program is gone, or the instance is, which its output tells.
            while True:
                await self._more.wait()
                self._more.clear()
                while self._input:
                    part = bytes(self._input[:SEND_BYTES])
                    del self._input[:SEND_BYTES]
                    self._process.stdin.write(part)
                    await self._process.stdin.drain.aio()
                self.sent.set()
