"""What every sandbox must do with programs that are spoken to."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest
from contract.backends import SHELLS, Place, only, places
from contract.opening import LABEL, alive_with, out, sandbox, sh, until, within

from kiseki.errors import SandboxError, ToolError
from kiseki.sandboxes.base import Channel, Limits, Sandbox
from kiseki.sandboxes.channel import HELD_BYTES

place = places(*SHELLS)

ECHO = ["sh", "-c", 'while read line; do echo "got $line"; done']


async def heard(channel: Channel, size: int) -> bytes:
    """The next `size` bytes, or less where it ends before."""
    data = bytearray()
    while len(data) < size and (more := await channel.read()):
        data += more
    return bytes(data)


async def rest(channel: Channel) -> bytes:
    return await heard(channel, 1 << 40)


def test_a_conversation(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        await sh(box, "cd /; X=1; export Y=2")
        first, second = await asyncio.gather(box.open_channel(ECHO), box.open_channel(ECHO))
        for number in range(3):
            await second.write(b"2.%d\n" % number)
            await first.write(b"1.%d\n" % number)
            assert await heard(first, 8) == b"got 1.%d\n" % number
        assert await heard(second, 24) == b"got 2.0\ngot 2.1\ngot 2.2\n"
        await first.close()
        await first.close()
        assert await first.read() == b""
        await first.write(b"nobody\n")
        await second.write(b"on\n")
        assert await heard(second, 7) == b"got on\n"
        third = await box.open_channel(["sh", "-c", 'echo "$PWD|$HOME|$X$Y"; echo no >&2; printf %s "$1"', "sh", "a 'b"])
        home = (await out(box, "echo ~")).strip()
        assert await rest(third) == f"{home}|{home}|\na 'b".encode()
        assert await out(box, "echo $X$Y; pwd") == "12\n/\n"

    within(place, body)


def test_bytes_go_through_as_they_are(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        data = bytes(range(256)) * 20_000
        channel = await box.open_channel(["cat"])
        _, got = await asyncio.gather(channel.write(data), heard(channel, len(data)))
        assert got == data
        await channel.close()

    within(place, body)


def test_the_end_of_a_program(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        channel = await box.open_channel(["sh", "-c", "read line; sleep 3210 & echo $line; exit 3"])
        await channel.write(b"last\n")
        assert await rest(channel) == b"last\n"
        assert await channel.read() == b""
        await channel.write(b"x" * 3_000_000)  # it goes nowhere, and nobody waits for that
        await channel.close()
        ended = await box.open_channel(["nosuchprogram"])
        assert await ended.read() == b""
        killed = await box.open_channel(["sh", "-c", "kill -9 $$"])
        assert await killed.read() == b""
        writer = await box.open_channel(["sleep", "3211"])
        writing = asyncio.create_task(writer.write(b"x" * 20_000_000))
        await asyncio.sleep(0.05)
        await writer.close()
        await writing
        assert await out(box, "echo ok") == "ok\n"

    within(place, body)


def test_a_program_that_writes_much_waits(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        script = "i=0; while [ $i -lt 30 ]; do head -c 1000000 /dev/zero; i=$((i+1)); echo $i >count; done"
        channel = await box.open_channel(["sh", "-c", script])
        assert len(await channel.read())
        await asyncio.sleep(0.3)
        assert len(await channel.read()) < HELD_BYTES + 500_000
        await channel.close()
        finite = await box.open_channel(["sh", "-c", "head -c 5000000 /dev/zero; echo end"])
        await asyncio.sleep(0.1)
        assert await rest(finite) == b"\0" * 5_000_000 + b"end\n"

    within(place, body)


def test_closing_kills_all_that_it_started(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        mark = f"2{os.getpid() % 10_000:04}"
        script = f"(setsid sleep {mark}.1 &); sleep {mark}.2 & echo up; sleep {mark}.3"
        await sh(box, f"sleep {mark}.9 &")
        channel = await box.open_channel(["sh", "-c", script])
        assert await heard(channel, 3) == b"up\n"
        assert await until(lambda: len(alive_with(f"sleep\0{mark}.")) == 4)
        reading = asyncio.create_task(channel.read())
        await asyncio.sleep(0)
        await channel.close()
        assert await reading == b""
        assert len(alive_with(f"sleep\0{mark}.")) == 1
        left = await box.open_channel(["sh", "-c", f"(setsid sleep {mark}.4 >/dev/null &); echo up"])
        assert await rest(left) == b"up\n"
        await left.close()
        assert len(alive_with(f"sleep\0{mark}.")) == 1
        assert await out(box, "echo ok") == "ok\n"

    within(place, body)


HOLD = """
import ctypes, os, sys, time
SEIZE, CONTINUE, AT_EXIT, EXITING = 0x4206, 7, 0x40, 6
pid, trace = int(sys.argv[1]), ctypes.CDLL(None, use_errno=True).ptrace
if trace(SEIZE, pid, None, ctypes.c_void_p(AT_EXIT)):
    sys.exit(os.strerror(ctypes.get_errno()))
print(flush=True)
while os.WIFSTOPPED(status := os.waitpid(pid, 0x40000000)[1]):
    if status >> 16 == EXITING:
        time.sleep(0.5)
    trace(CONTINUE, pid, None, None)
"""
"""Keeps a process that was killed for a while, as a machine under load does: all that others look at is still there."""


def test_closing_waits_for_what_dies_slowly(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        mark = f"4{os.getpid() % 10_000:04}"
        channel = await box.open_channel(["sh", "-c", f"(setsid sleep {mark}.1 &); echo up; read line"])
        assert await heard(channel, 3) == b"up\n"
        assert await until(lambda: len(alive_with(f"sleep\0{mark}.")) == 1)
        words = [sys.executable, "-c", HOLD, str(alive_with(f"sleep\0{mark}.")[0])]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as holder:
            assert holder.stdout and holder.stderr
            if not holder.stdout.readline():
                pytest.skip(f"no process can be traced here: {holder.stderr.read().decode()}")
            await channel.close()
            assert alive_with(f"sleep\0{mark}.") == []

    within(place, body)


def test_it_survives_a_timeout_of_the_session(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        channel = await box.open_channel(ECHO)
        assert (await sh(box, "sleep 100", timeout=0.1)).timed_out
        await channel.write(b"a\n")
        assert await heard(channel, 6) == b"got a\n"

    within(place, body)


def test_closing_the_sandbox_ends_what_waits(place: Place) -> None:
    async def main() -> None:
        mark = f"3{os.getpid() % 10_000:04}"
        async with sandbox(place) as box:
            channel, other = await asyncio.gather(*(box.open_channel(["sleep", f"{mark}.{n}"]) for n in (1, 2)))
            pending = [asyncio.create_task(channel.read()), asyncio.create_task(other.write(b"x" * 20_000_000))]
            await asyncio.sleep(0.05)
            await box.close()
            for each in pending:
                with pytest.raises(SandboxError):
                    await each
            with pytest.raises(SandboxError):
                await box.open_channel(["true"])
            assert await until(lambda: not alive_with(f"sleep\0{mark}.")), "a cloud ends them by itself, a moment later"
            await channel.close()
        assert place.traces(LABEL) == []

    asyncio.run(main())


def test_the_death_of_the_sandbox_is_told(place: Place) -> None:
    async def main() -> None:
        async with sandbox(place) as box:
            channel = await box.open_channel(ECHO)
            await channel.write(b"a\n")
            assert await heard(channel, 6) == b"got a\n"
            await asyncio.to_thread(place.kill, LABEL)
            with pytest.raises(SandboxError):
                await channel.read()
            await channel.close()

    asyncio.run(main())


@only("docker")  # bash, which starts the programs of those on this machine, tries for 15 seconds
def test_no_process_to_spare(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        await sh(box, "sh -c 'while :; do sleep 100 & done' 2>/dev/null; sleep 100 &")
        with pytest.raises(ToolError, match="cannot start another process"):
            await box.open_channel(["true"])

    within(place, body, limits=Limits(processes=20))
