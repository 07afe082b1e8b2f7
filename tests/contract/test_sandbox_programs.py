"""What every sandbox must do with commands that outlive their time, with programs beside the session, and with files."""

from __future__ import annotations

import asyncio
import os

import pytest
from contract.backends import SHELLS, Place, places
from contract.opening import QUICK, alive_with, out, sh, until, within

from kiseki.errors import ToolError
from kiseki.sandboxes.base import Sandbox
from kiseki.sandboxes.shell import ABORT_SIGNAL

place = places(*SHELLS)

STUBBORN = [
    "sleep 1000; sleep 1000; touch went-on",
    "while true; do :; done; touch went-on",
    "while :; do\n :\ndone\ntouch went-on",
    "for i in 1 2 3 4 5 6 7 8 9; do sleep 1000; done; touch went-on",
    "sh -c 'trap \"\" INT TERM HUP; sleep 1000; sleep 1000'; touch went-on",
    "sleep 1000 | cat; touch went-on",
    "x=$(sleep 1000); touch went-on",
    "f() { sleep 1000; touch went-on; }; f; touch went-on",
    "(sleep 1000; touch went-on)",
    "bash -c 'sleep 1000; touch went-on'",
    "trap '' INT; sleep 1000; touch went-on",
    "sleep 1000 & wait; touch went-on",
]
"""Commands that must not go on when their time is over."""
ODD_NAMES = (
    "-n",
    "--",
    "-rf",
    "a'b",
    'a"b',
    "a\\b",
    "$HOME",
    "`x`",
    "a;b",
    "日本",
    "new\nline",
    "tab\t",
    "\x01",
    " ",
    "*",
    "%s",
    "x" * 255,
)

# Time limits


def test_a_timeout_ends_the_whole_command_and_nothing_else(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        commands = [command for command in STUBBORN if place.bash or not command.startswith("bash")]
        for number, command in enumerate(commands):
            await sh(box, f"mkdir ~/{number}; cd ~/{number}; X=kept; sleep 3210 & JOB=$!")
            result = await sh(box, f"echo partial; {command}", timeout=0.3)
            assert (result.exit_code, result.timed_out, result.session_restarted) == (124, True, False), command
            assert result.output.startswith("partial\n"), command
            after = await sh(box, 'echo $X; pwd | sed "s,.*/,,"; kill -0 $JOB && echo job; ls')
            assert after.output == f"kept\n{number}\njob\n", command
            await sh(box, "kill -9 $JOB; exit")  # Traps are gone with it.

    within(place, body)


def test_a_timeout_reaches_daemons(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        mark = f"4{os.getpid() % 10_000:04}"
        daemons = f"setsid sleep {mark}.1 & (setsid sleep {mark}.2 &); ( (sleep {mark}.3 &) ); setsid sh -c 'sleep {mark}.4 &'"
        command = f"{daemons}; sleep 60"
        assert (await sh(box, command, timeout=0.3)).timed_out
        assert await until(lambda: not alive_with(f"sleep\0{mark}."))
        assert await out(box, "echo ok") == "ok\n"

    within(place, body)


def test_a_shell_that_cannot_be_aborted_is_replaced(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        result = await sh(box, f"trap '' {ABORT_SIGNAL:d}; while :; do :; done", timeout=0.1)
        assert (result.exit_code, result.timed_out, result.session_restarted) == (124, True, True)
        assert await out(box, "echo ok") == "ok\n"

    within(place, body)


def test_cancelling_a_call_ends_its_processes(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        mark = f"5{os.getpid() % 10_000:04}.5"
        task = asyncio.create_task(sh(box, f"sleep {mark}"))
        assert await until(lambda: bool(alive_with(f"sleep\0{mark}")))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await until(lambda: not alive_with(f"sleep\0{mark}"))
        result = await sh(box, "echo ok")
        assert (result.output, result.session_restarted) == ("ok\n", True)

    within(place, body)


# Programs beside the session


def test_run(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        await sh(box, "cd /; X=1; export Y=2; exec 2>/dev/null; ls() { echo no; }")
        status, data = await box.run(["sh", "-c", 'echo "$PWD" "$HOME" "$X$Y"; echo err >&2; exit 9'], timeout=QUICK)
        home = data.decode().split()[0]
        assert (status, data.decode()) == (9, f"{home} {home} \n")
        assert await box.run(["cat"], stdin=b"\0\xff" * 100_000, timeout=QUICK) == (0, b"\0\xff" * 100_000)
        assert await box.run(["cat"], timeout=QUICK) == (0, b"")
        assert await box.run(["printf", "%s|", "a b", "'", "", "$x\n"], timeout=QUICK) == (0, b"a b|'||$x\n|")
        assert (await box.run(["nosuchprogram"], timeout=QUICK))[0] == 127
        assert (await box.run(["sh", "-c", "kill -9 $$"], timeout=QUICK))[0] == 137
        assert await box.run(["sh", "-c", "exec >&-; sleep 0.02; exit 4"], timeout=QUICK) == (4, b"")
        assert (await box.run(["true"], stdin=b"x" * 1_000_000, timeout=QUICK))[0] == 0

    within(place, body)


def test_runs_overlap_and_do_not_wait_for_the_session(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        busy = asyncio.create_task(sh(box, "until [ -e go ]; do sleep 0.02; done; echo released"))
        results = await asyncio.gather(*(box.run(["sh", "-c", f"sleep 0.05; echo {i}"], timeout=QUICK) for i in range(10)))
        assert [data for _, data in results] == [f"{i}\n".encode() for i in range(10)]
        assert not busy.done()
        await box.write_file("go", b"")
        assert (await busy).output == "released\n"

    within(place, body)


def test_run_is_killed_with_its_children(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        mark = f"6{os.getpid() % 10_000:04}"
        script = f"(setsid sleep {mark}.1 &); sleep {mark}.2 & echo out; sleep {mark}.3"
        await sh(box, f"sleep {mark}.9 &")
        assert await box.run(["sh", "-c", script], timeout=0.3) == (124, b"out\n")
        assert await until(lambda: len(alive_with(f"sleep\0{mark}.")) == 1)
        assert await out(box, "echo ok") == "ok\n"

    within(place, body)


def test_run_survives_a_timeout_of_the_session(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        program = asyncio.create_task(box.run(["sh", "-c", "(sleep 0.5; echo a) ; echo b"], timeout=QUICK))
        await asyncio.sleep(0)
        assert (await sh(box, "sleep 100", timeout=0.1)).timed_out
        assert await program == (0, b"a\nb\n")

    within(place, body)


# Files


def test_files(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        data = bytes(range(256)) * 195_000
        await sh(box, "mkdir here; cd here")
        await box.write_file("new/deep er/bin", data)
        assert await box.read_file("new/deep er/bin") == data
        assert await out(box, "ls new/*; wc -c <'new/deep er/bin'") == f"bin\n{len(data)}\n"
        await box.write_file("~/x", b"")
        assert await box.read_file("~/x") == b""
        for name in ODD_NAMES:
            await box.write_file(name, name.encode())
            assert await box.read_file(name) == name.encode()
        await sh(box, "touch script; chmod 755 script; ln -s script link")
        await box.write_file("link", b"#!")
        assert await out(box, "stat -c %a script; cat script; test -L link && echo link") == "755\n#!link\n"

    within(place, body)


def test_file_errors(place: Place) -> None:
    async def body(box: Sandbox) -> None:
        await sh(box, "mkdir d; mkfifo pipe; echo 12345 >file; ln -s loop loop")
        for path, words in {
            "nosuch": "no such file: nosuch",
            "d": "d is a folder",
            "pipe": "not a regular file",
            "/dev/zero": "not a regular file",
            "loop": "no such file",
            "file/x": "no such file",
        }.items():
            with pytest.raises(ToolError, match=words):
                await box.read_file(path)
        with pytest.raises(ToolError, match="larger than 5 bytes"):
            await box.read_file("file", max_bytes=5)
        assert await box.read_file("file", max_bytes=6) == b"12345\n"
        for path, words in {"d": "is a folder", "file/x": "cannot write file/x: ", "/proc/x/y": "cannot write"}.items():
            with pytest.raises(ToolError, match=words):
                await box.write_file(path, b"x")
        for path in ("", "a\0b"):
            with pytest.raises(ToolError):
                await box.read_file(path)
        await sh(box, "mkdir gone; cd gone; rmdir ../gone")
        with pytest.raises(ToolError, match="working folder"):
            await box.read_file("x")

    within(place, body)
