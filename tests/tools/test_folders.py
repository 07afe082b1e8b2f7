"""Folders of the user's in every sandbox: the same in each, whole or refused before the run, and never changed."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest
from support import FAST, kiseki, write_dataset
from tools.rollouts import Ask, play

from kiseki.errors import SandboxError
from kiseki.tools import folders, seeding
from kiseki.tools.context import ToolContext
from kiseki.tools.folders import why_no_memory, why_no_skills
from kiseki.tools.seeding import pack
from kiseki.tools.settings import ToolSettings

LOOK = "cd ~/skills && find . | LC_ALL=C sort && ./s/run.sh && cat ./s/link && stat -c %A s/run.sh s/SKILL.md"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "given"
    (root / "s" / "empty").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / ".git" / "big").write_text("history")
    (root / "s" / "SKILL.md").write_text("It runs.\n")
    (root / "s" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "s" / "run.sh").chmod(0o700)
    (root / "s" / "link").symlink_to(root / "s" / "SKILL.md")
    (root / "s" / ("long " * 30)).write_text("")
    return root


def listing(folder: Path) -> dict[str, tuple[int, float]]:
    return {str(path): (path.lstat().st_mode, path.lstat().st_mtime) for path in folder.rglob("*")}


@pytest.mark.parametrize("tar", ["tar", "no-such-tar"])
def test_each_sandbox_gets_all_of_it(folder: Path, tar: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeding, "_UNPACK", seeding._UNPACK.replace("-v tar", f"-v {tar}"))
    before = listing(folder)
    names = [".", "./s", "./s/SKILL.md", "./s/empty", "./s/link", "./s/" + "long " * 30, "./s/run.sh"]

    async def scenario(ask: Ask, context: ToolContext) -> None:
        result = await context.sandbox.exec(LOOK, timeout=60)
        assert result.output.splitlines() == [*names, "ran", "It runs.", "-rwxr-xr-x", "-rw-r--r--"]
        await context.sandbox.exec("rm -r ~/skills/s/run.sh; echo changed > ~/skills/s/SKILL.md", timeout=60)

    play(["skills"], ToolSettings(skills_dir=str(folder)), scenario, scenario)
    assert listing(folder) == before


def test_the_same_files_are_the_same_bytes(folder: Path) -> None:
    first = pack(str(folder))
    os.utime(folder / "s" / "SKILL.md", (1, 1))
    assert pack(str(folder)) == first


@pytest.mark.parametrize("kind", ["out", "absolute", "pipe", "large", "many"])
def test_what_cannot_be_copied_is_said_before_the_run(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("s")
    if kind == "pipe":
        os.mkfifo(folder / "odd")
    elif kind == "large":
        with (folder / "odd").open("wb") as file:
            file.truncate(folders.MAX_BYTES + 1)
    elif kind == "many":
        monkeypatch.setattr(folders, "MAX_FILES", 5)
    else:
        (folder / "odd").symlink_to("../secret" if kind == "out" else tmp_path / "secret")
    says = {"pipe": "odd is no file", "large": "or 50 MB; choose", "many": "more than 5 files"}.get(
        kind, "odd is a link that leads out"
    )
    for why in (
        why_no_skills(ToolSettings(skills_dir=str(folder)), None, {}),
        why_no_memory(ToolSettings(memory_dir=str(folder)), None, {}),
    ):
        assert why.startswith(("--skills_dir ", "--memory_dir ")) and says in why

    async def never(ask: Ask, context: ToolContext) -> None:
        raise AssertionError

    with pytest.raises(SandboxError, match="cannot be copied into sandboxes"):
        play(["skills"], ToolSettings(skills_dir=str(folder)), never)


def test_which_folders_there_are() -> None:
    assert why_no_memory(ToolSettings(), None, {}) == ""
    assert why_no_skills(ToolSettings(), None, {}) == "--skills_dir names a folder of skills"
    assert why_no_skills(ToolSettings(skills_dir="/none"), None, {}) == "--skills_dir /none: there is no such folder"


def test_the_archive_holds_nothing_of_the_host(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(pack(str(folder)))
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert {(each.uid, each.gid, each.uname, each.gname, each.mtime) for each in archive} == {
            (0, 0, "", "", seeding.MODIFIED)
        }


def test_a_resume_with_other_files_is_refused(tmp_path: Path) -> None:
    for number, name in enumerate(("memory", "skills")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.md").write_text(str(number))
    (tmp_path / "d.yaml").write_text("memory: 100\nskills: 100\n")
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "p"}])
    flags = ("batch", "--dataset_file=p.jsonl", "--run_name=r", "--batch_size=1", "--distribution=d.yaml", *FAST)
    model = ("--model=builtin/practice", "--sandbox=local", "--resume")
    kiseki(*flags, *model, "--memory_dir=memory", "--skills_dir=skills", cwd=tmp_path)
    (tmp_path / "memory").rename(tmp_path / "moved")
    kiseki(*flags, *model, "--memory_dir=moved", "--skills_dir=skills", cwd=tmp_path)
    (tmp_path / "skills" / "a.md").write_text("changed")
    done = kiseki(*flags, *model, "--memory_dir=moved", "--skills_dir=skills", cwd=tmp_path, status=2)
    assert "r was begun with other settings (tool_settings: skills_dir " in done.stderr and "memory_dir" not in done.stderr
