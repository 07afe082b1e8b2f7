"""Where groups can be made, and what is written into them, in both versions of the kernel's interface."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kiseki.sandboxes import cgroup
from kiseki.sandboxes.base import Limits

LIMITS = Limits(memory_mb=100, cpus=0.5, processes=20)


def mount_line(mount: Path, kind: str, options: str, root: str = "/") -> str:
    return f"30 25 0:27 {root} {mount} rw,nosuid - {kind} {kind} {options}\n"


@pytest.fixture
def fresh() -> object:
    cgroup.parents.cache_clear()
    yield
    cgroup.parents.cache_clear()


def test_version_1_takes_the_own_group_of_each_hierarchy(tmp_path: Path) -> None:
    (tmp_path / "memory" / "own").mkdir(parents=True)
    (tmp_path / "cpu,cpuacct").mkdir()
    found = cgroup.find_parents(
        "4:memory:/own\n3:cpu,cpuacct:/\n2:pids:/nosuch\n1:name=systemd:/\n",
        mount_line(tmp_path / "memory", "cgroup", "rw,memory")
        + mount_line(tmp_path / "cpu,cpuacct", "cgroup", "rw,cpu,cpuacct")
        + mount_line(tmp_path / "pids", "cgroup", "rw,pids"),
    )
    assert found == {"memory": tmp_path / "memory" / "own", "cpu": tmp_path / "cpu,cpuacct"}


def test_version_2_takes_the_nearest_group_that_hands_controllers_on(tmp_path: Path) -> None:
    own = tmp_path / "user.slice" / "app.slice" / "own.scope"
    own.mkdir(parents=True)
    (own / "cgroup.subtree_control").write_text("")
    (own.parent / "cgroup.subtree_control").write_text("memory pids\n")
    (own.parent.parent / "cgroup.subtree_control").write_text("cpu memory pids\n")
    found = cgroup.find_parents("0::/user.slice/app.slice/own.scope\n", mount_line(tmp_path, "cgroup2", "rw"))
    assert found == {"memory": own.parent, "pids": own.parent}


def test_a_mounted_part_of_a_hierarchy(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "cgroup.subtree_control").write_text("memory")
    found = cgroup.find_parents("0::/docker/abc/inner\n", mount_line(tmp_path, "cgroup2", "rw", root="/docker/abc"))
    assert found == {"memory": tmp_path / "inner"}


def test_nothing_to_be_had(tmp_path: Path) -> None:
    assert cgroup.find_parents("0::/\n", mount_line(tmp_path, "cgroup2", "rw")) == {}
    assert cgroup.find_parents("0::/\n", mount_line(tmp_path, "tmpfs", "rw")) == {}
    assert cgroup.find_parents("", "") == {}


def test_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroup, "parents", lambda: {"memory": tmp_path, "pids": tmp_path, "cpu": tmp_path})
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "cgroup.controllers").write_text("cpu memory pids")
    group = cgroup.make("two", LIMITS)
    assert group
    written = {path.name: path.read_text() for path in (tmp_path / "two").iterdir()}
    assert written.items() >= {"memory.max": str(100 << 20), "pids.max": "28", "cpu.max": "50000 100000"}.items()
    group.enter(1234)
    assert group.pids() == [1234]
    assert [found.folders for found in cgroup.left_over("tw")] == [{"": tmp_path / "two"}]


def test_a_real_group(fresh: object) -> None:
    if "pids" not in cgroup.parents():
        pytest.skip("control groups are not writable here")
    group = cgroup.make(f"kiseki-test-{os.getpid()}", LIMITS)
    assert group
    assert group.pids() == []
    assert any((folder / "pids.max").exists() for folder in group.folders.values())
    assert group.remove()
    assert not any(folder.exists() for folder in group.folders.values())
    assert group.remove()
