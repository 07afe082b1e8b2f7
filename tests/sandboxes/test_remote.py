"""A sandbox over streams whose machine misbehaves: what is infrastructure's never looks like a result of a tool."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from kiseki.errors import SandboxError, ToolError
from kiseki.sandboxes import files
from kiseki.sandboxes.base import TORN, Sandbox
from kiseki.sandboxes.streams import remote
from kiseki.sandboxes.streams.piped import PipedStream
from kiseki.sandboxes.streams.remote import open_remote


class Machine:
    """Programs of this machine, and whatever trouble is asked for."""

    def __init__(self, home: Path) -> None:
        self.environment = {"HOME": str(home)}
        self.folder = ""
        self.mark = ""
        self.path = "/usr/bin:/bin"
        self.streams: list[PipedStream] = []
        self.refusal = ""
        self.hangs = False
        self.dead = ""

    async def open(self, argv: list[str]) -> PipedStream:
        if self.hangs:
            await asyncio.sleep(1000)
        if self.refusal:
            raise SandboxError(self.refusal)
        stream = PipedStream(argv, {"PATH": self.path}, fails_with=255)
        self.streams.append(stream)
        return stream

    async def why_dead(self) -> str:
        return self.dead

    async def restart(self) -> bool:
        return False

    async def remove(self) -> None:
        for stream in self.streams:
            if stream.process.poll() is None:
                os.killpg(stream.process.pid, signal.SIGCONT)
            await stream.end()

    def freeze(self) -> None:
        for stream in self.streams:
            os.killpg(stream.process.pid, signal.SIGSTOP)


def within(home: Path, body: Callable[[Machine, Sandbox], Awaitable[None]]) -> None:
    async def main() -> None:
        machine = Machine(home)
        box = await open_remote(machine, {})
        try:
            await body(machine, box)
        finally:
            await box.close()

    asyncio.run(main())


def test_an_engine_that_refuses_is_no_process_limit(tmp_path: Path) -> None:
    async def body(machine: Machine, box: Sandbox) -> None:
        machine.refusal = "docker does not answer: it took too long"
        with pytest.raises(SandboxError, match="it took too long"):
            await box.read_file("/etc/hostname")

    within(tmp_path, body)


def test_no_process_to_spare_is_the_models_to_know(tmp_path: Path) -> None:
    async def body(machine: Machine, box: Sandbox) -> None:
        machine.refusal = "exec failed: fork: Resource temporarily unavailable"
        with pytest.raises(ToolError, match="cannot start another process"):
            await box.read_file("/etc/hostname")
        machine.refusal = ""
        assert (await box.run(["echo", "again"], timeout=20))[1] == b"again\n"

    within(tmp_path, body)


def test_a_torn_stream_is_no_exit_status(tmp_path: Path) -> None:
    async def command(machine: Machine, box: Sandbox) -> None:
        asyncio.get_running_loop().call_later(0.1, machine.streams[0].ended, TORN)
        with pytest.raises(SandboxError, match="broke off"):
            await box.exec("sleep 10", timeout=20)

    async def program(machine: Machine, box: Sandbox) -> None:
        assert await box.run(["true"], timeout=20) == (0, b"")
        asyncio.get_running_loop().call_later(0.1, machine.streams[1].ended, TORN)
        with pytest.raises(SandboxError, match="broke off"):
            await box.run(["sleep", "10"], timeout=20)

    within(tmp_path, command)
    within(tmp_path, program)


def test_a_frozen_machine_is_no_result_of_a_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FILE_TIMEOUT", 0.3)
    monkeypatch.setattr(remote, "HUNT_TIMEOUT", 0.3)

    async def body(machine: Machine, box: Sandbox) -> None:
        await box.run(["true"], timeout=20)
        machine.freeze()
        machine.dead = "the container was paused from outside"
        with pytest.raises(SandboxError, match="paused"):
            await box.read_file("/etc/hostname")

    within(tmp_path, body)


def test_a_machine_that_never_starts_a_program_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(machine: Machine, box: Sandbox) -> None:
        monkeypatch.setattr(remote, "OPEN_TIMEOUT", 0.2)
        machine.hangs = True
        async with asyncio.timeout(20):
            with pytest.raises(SandboxError, match="no program was started"):
                await box.run(["true"], timeout=1)

    within(tmp_path, body)


def test_a_machine_that_does_not_say_whether_it_runs_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "CHECK_TIMEOUT", 0.2)

    async def body(machine: Machine, box: Sandbox) -> None:
        async def never() -> str:
            await asyncio.sleep(1000)
            return ""

        monkeypatch.setattr(machine, "why_dead", never)
        machine.refusal = "no"
        async with asyncio.timeout(20):
            with pytest.raises(SandboxError, match="did not say"):
                await box.run(["true"], timeout=1)

    within(tmp_path, body)


def test_a_bug_in_a_backend_is_no_result_of_a_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(machine: Machine, box: Sandbox) -> None:
        async def broken(argv: list[str]) -> PipedStream:
            raise AttributeError("peek")

        monkeypatch.setattr(machine, "open", broken)
        with pytest.raises(SandboxError, match="AttributeError: peek"):
            await box.run(["true"], timeout=20)

    within(tmp_path, body)


def test_a_bash_that_does_not_run_leaves_sh(tmp_path: Path) -> None:
    bash = tmp_path / "bash"
    bash.write_text("#!/bin/false\n")
    bash.chmod(0o755)

    async def main() -> None:
        machine = Machine(tmp_path)
        machine.path = f"{tmp_path}:{machine.path}"
        box = await open_remote(machine, {})
        try:
            assert (await box.exec("echo $0", timeout=20)).output == "sh\n"
        finally:
            await box.close()

    asyncio.run(main())


def test_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    async def body(machine: Machine, box: Sandbox) -> None:
        await box.exec("mkdir $'x\\xff'; cd $'x\\xff'; echo 1 >f", timeout=20)
        assert (await box.exec("exit 3", timeout=20)).exit_code == 3
        assert (await box.exec("cat f", timeout=20)).output == "1\n"
        assert await box.read_file("f") == b"1\n"

    within(tmp_path, body)
