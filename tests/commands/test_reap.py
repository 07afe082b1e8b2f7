"""`kiseki reap`, as a user meets it; what it spares is tested in sandboxes/test_reaper.py and batch/test_leftovers.py."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from support import kiseki

from kiseki.commands import reap
from kiseki.errors import SandboxError, UsageError
from kiseki.sandboxes import factory
from kiseki.sandboxes.owners import LeftOver, Owner
from kiseki.sandboxes.settings import SandboxSettings


def leave(folder: Path) -> None:
    """A sandbox of an agent that is killed."""
    code = (
        "import asyncio, os, signal\nfrom kiseki.sandboxes import owners\nfrom kiseki.sandboxes.factory import Sandboxes\n"
        "from kiseki.sandboxes.settings import SandboxSettings\n"
        "async def main():\n    label = owners.process_label('agent')\n"
        "    await Sandboxes(SandboxSettings(backend='local', label=label, owner=owners.hold(label))).open()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(folder)})
    assert done.returncode == -9


def test_it_lists_and_removes(tmp_path: Path) -> None:
    leave(tmp_path)
    base = tmp_path / f"kiseki-{os.getuid()}"
    (agent,) = (path.name for path in base.glob("agent-*"))
    dry = kiseki("reap", "--sandbox=local", "--dry_run", cwd=tmp_path, TMPDIR=str(tmp_path)).stdout
    (line,) = (line for line in dry.splitlines() if agent in line)
    assert "this machine" in line
    assert "dead" in line
    assert "would be removed: 1" in dry
    assert (base / agent).exists()
    assert "sandboxes removed: 1" in kiseki("reap", "--sandbox=local", cwd=tmp_path, TMPDIR=str(tmp_path)).stdout
    assert [path.name for path in base.rglob("*")] == [".owners"]
    assert kiseki("reap", "--sandbox=local", cwd=tmp_path, TMPDIR=str(tmp_path)).stdout == "sandboxes removed: 0\n"


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_an_engine_that_is_named_must_answer(tmp_path: Path, engine: str) -> None:
    nowhere = f"unix://{tmp_path}/nothing"

    def reap(*flags: str, status: int) -> subprocess.CompletedProcess[str]:
        more = {"TMPDIR": str(tmp_path), "DOCKER_HOST": nowhere, "CONTAINER_HOST": nowhere}
        return kiseki("reap", *flags, cwd=tmp_path, status=status, **more)

    refused = reap(f"--sandbox={engine}", status=2)
    assert f"no {engine} engine answers" in refused.stderr
    everything = reap(status=0)
    assert f"not looked at: {engine}" in everything.stdout
    assert "sandboxes removed: 0" in everything.stdout


def test_ssh_needs_a_host(tmp_path: Path) -> None:
    assert "--ssh_host" in kiseki("reap", "--sandbox=ssh", cwd=tmp_path, status=2, TMPDIR=str(tmp_path)).stderr
    refused = kiseki("reap", "--sandbox=docker", "--ssh_host=x", cwd=tmp_path, status=2, TMPDIR=str(tmp_path))
    assert "--ssh_host is for --sandbox=ssh" in refused.stderr


def test_what_a_command_wrote_reaches_no_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the owner of a sandbox on a remote host, or the name of its folder."""
    there = types.ModuleType("kiseki.sandboxes.there")
    monkeypatch.setitem(sys.modules, there.__name__, there)
    monkeypatch.setitem(factory.MODULES, "docker", "there")
    owner = Owner("another", "/\x1b]0;title\x07\u202e/run.lock")
    left = [LeftOver("abc", owner, nan) for nan in (float("nan"), float("inf"), -5.0)]

    def gone(settings: SandboxSettings) -> list[LeftOver]:
        raise SandboxError("it says \x1b[2J")

    vars(there).update(left_over=lambda settings: left)
    assert reap.main(["--sandbox=docker", "--dry_run"]) == 0
    vars(there).update(left_over=gone)
    with pytest.raises(UsageError) as refused:
        reap.main(["--sandbox=docker"])
    said = capsys.readouterr().out + str(refused.value)
    assert "title" in said and "it says" in said
    assert not {"\x1b", "\x07", "\u202e"} & set(said)


def test_help_names_every_backend(tmp_path: Path) -> None:
    assert set(reap.BACKENDS) == set(factory.BACKENDS)
    said = kiseki("reap", "--help", cwd=tmp_path).stdout
    assert all(name in said for name in factory.BACKENDS)
    refused = kiseki("reap", "--sandbox=dokcer", cwd=tmp_path, status=2)
    assert "did you mean docker?" in refused.stderr
