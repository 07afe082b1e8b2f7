"""A machine's stream (see machine.py) that is a program on this one, talked to on pipes: a client that passes everything on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from typing import NamedTuple

from kiseki.sandboxes import processes
from kiseki.sandboxes.base import NOT_STARTED, TIMED_OUT
from kiseki.sandboxes.pipes import Writer, read_some, waiting_bytes
from kiseki.sandboxes.streams.machine import Stream

WORDS_KEPT = 4096
"""Bytes of the client's first complaints: they name why there is no program."""
EXIT_TIMEOUT = 5.0
"""Seconds for a killed client to be gone; it takes milliseconds."""


class PipedStream(Stream):
    """Its exit status is the client's: 128 and more for one that was killed.

    The client's stderr is dropped, but for a client that fails without a word on stdout: its words are the output then.
    """

    def __init__(self, argv: list[str], environment: dict[str, str], *, fails_with: int) -> None:
        """`fails_with`: the client's own status where it starts nothing. Raises OSError."""
        super().__init__()
        self._fails_with = fails_with
        self._loop = asyncio.get_running_loop()
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
        self._exit = os.pidfd_open(self.process.pid)
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self._stdin, self._stdout, self._stderr = (
            _own(pipe.fileno()) for pipe in (self.process.stdin, self.process.stdout, self.process.stderr)
        )
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            pipe.close()
        self._writer = Writer(self._stdin)
        self.sent = self._writer.sent
        self.words = b""
        """What it has said on stderr, the beginning."""
        self._spoke = False
        self._reading = False
        self._loop.add_reader(self._exit, self._on_exit)
        self._loop.add_reader(self._stderr, self._on_words)

    def write(self, data: bytes) -> None:
        if self._writer.descriptor >= 0:
            self._writer.write(data)

    def pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._stdout)

    def resume(self) -> None:
        if not self._reading and self._stdout >= 0:
            self._reading = True
            self._loop.add_reader(self._stdout, self._on_output)

    def close(self) -> None:
        self._writer.close()
        self.pause()
        if self._stdout >= 0:
            os.close(self._stdout)
            self._stdout = -1
        self._close_words()

    async def end(self) -> None:
        """Close, and end the client with its process group where it still runs."""
        if not self.exited.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.close()
        await asyncio.shield(processes.wait_exit(self.process, EXIT_TIMEOUT))

    def received(self, data: bytes) -> None:
        self._spoke = True
        super().received(data)

    def _on_output(self) -> None:
        data = read_some(self._stdout)
        if data:
            self.received(data)
        elif data is not None:
            self.pause()

    def _on_words(self) -> None:
        data = read_some(self._stderr)
        if data:
            self.words += data[: WORDS_KEPT - len(self.words)]
        elif data is not None:
            self._close_words()

    def _on_exit(self) -> None:
        """The client has ended. What it passed on before lies in the pipe; others may hold that open for longer."""
        self._loop.remove_reader(self._exit)
        os.close(self._exit)
        status = self.process.wait()
        if self._stdout >= 0:
            left = waiting_bytes(self._stdout)
            while left > 0 and self._stdout >= 0 and (data := read_some(self._stdout)):
                left -= len(data)
                self.received(data)
            if self._stderr >= 0 and waiting_bytes(self._stderr):
                self._on_words()
            if status == self._fails_with and not self._spoke:
                self.received(self.words)
        self.ended(status if status >= 0 else 128 - status)

    def _close_words(self) -> None:
        if self._stderr >= 0:
            self._loop.remove_reader(self._stderr)
            os.close(self._stderr)
            self._stderr = -1


def _own(descriptor: int) -> int:
    """A copy that no garbage collection closes."""
    copy = os.dup(descriptor)
    os.set_blocking(copy, False)
    return copy


class Answer(NamedTuple):
    """What a client that ran to its end gave."""

    status: int
    output: str
    words: str
    """Of its stderr the beginning."""


async def run_client(argv: list[str], environment: dict[str, str], *, seconds: float) -> Answer:
    """Run a client to its end; `TIMED_OUT` is the status of one that took longer. Then, and when cancelled, it is killed with its
    process group. Raises OSError."""
    stream = PipedStream(argv, environment, fails_with=NOT_STARTED)
    output = bytearray()
    stream.follow(output.extend)
    try:
        await asyncio.wait([stream.exited], timeout=seconds)
        status = stream.exited.result() if stream.exited.done() else TIMED_OUT
        return Answer(status, output.decode(errors="replace"), stream.words.decode(errors="replace"))
    finally:
        await stream.end()
