"""Choosing a backend, naming and reaping."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from support import open_sandbox

from kiseki.errors import SandboxError, UsageError
from kiseki.sandboxes import bubblewrap, folders, launch, local
from kiseki.sandboxes.factory import choose_backend
from kiseki.sandboxes.settings import SandboxSettings


def test_an_unknown_backend_is_named_with_the_valid_ones() -> None:
    with pytest.raises(UsageError, match=r"'dokcer'.*auto, bubblewrap, local"):
        choose_backend(SandboxSettings(backend="dokcer"))


def test_auto_falls_back_and_an_explicit_wish_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "working_program", lambda: ("", "namespaces are forbidden"))
    assert choose_backend(SandboxSettings(backend="auto")) == "local"
    assert choose_backend(SandboxSettings(backend="local")) == "local"
    with pytest.raises(UsageError, match="namespaces are forbidden"):
        choose_backend(SandboxSettings(backend="bubblewrap"))


def test_the_reason_is_the_programs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr(bubblewrap, "programs", lambda: [str(fake)])
    bubblewrap.working_program.cache_clear()
    try:
        assert "No permissions to create new namespace" in bubblewrap.why_unavailable(SandboxSettings())
    finally:
        bubblewrap.working_program.cache_clear()


def test_without_any_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "programs", list)
    bubblewrap.working_program.cache_clear()
    try:
        assert "install bubblewrap" in bubblewrap.why_unavailable(SandboxSettings())
    finally:
        bubblewrap.working_program.cache_clear()


def test_labels_are_made_into_names() -> None:
    assert folders.clean_label("my run/../x.1") == "my-run-..-x.1"
    assert [folders.clean_label(label) for label in (".", "..", "../x")] == ["-", "-.", "-.-x"]
    assert folders.clean_label("") == "run"
    assert len(folders.clean_label("x" * 500)) == folders.LABEL_LIMIT


def test_a_working_folder_cannot_lead_out(tmp_path: Path) -> None:
    async def main() -> None:
        for cwd in ("../../..", "../../../x"):
            with pytest.raises(UsageError, match="leads out"):
                await open_sandbox(SandboxSettings(backend="local", label=f"out-{os.getpid()}"), cwd=cwd)

    asyncio.run(main())
    assert not (folders.base() / f"out-{os.getpid()}").exists()


def test_a_foreign_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / f"kiseki-{os.getuid()}").symlink_to(tmp_path)
    with pytest.raises(SandboxError):
        folders.make("x")


def test_the_plain_shell_does_where_there_is_no_bash(monkeypatch: pytest.MonkeyPatch) -> None:
    real = launch.launch

    async def with_sh(blueprint: launch.Blueprint, *rest: object) -> object:
        return await real(blueprint._replace(shell="sh"), *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(local, "launch", with_sh)

    async def main() -> None:
        box = await open_sandbox(SandboxSettings(backend="local", label=f"sh-{os.getpid()}"))
        try:
            assert (await box.exec("A=1; mkdir d; cd d; sleep 3210 &", timeout=20)).exit_code == 0
            assert (await box.exec("sleep 1000; sleep 1000; echo on", timeout=0.2)).timed_out
            result = await box.exec('echo $A; pwd | sed "s,.*/,,"; echo "unterminated', timeout=20)
            assert not result.timed_out
            for command, status in (("while :; do :; done", 124), ("exit 3", 3), ("exec >/dev/null", 0), ("(exit 4)", 4)):
                assert (await box.exec(command, timeout=0.2 if status == 124 else 20)).exit_code == status
            moved = await box.exec("pwd", timeout=20, workdir="/usr")
            assert moved.output == "/usr\n"
        finally:
            await box.close()

    asyncio.run(main())
