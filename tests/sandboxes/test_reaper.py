"""What dead owners left is found and removed; what lives, or may live, is not touched."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kiseki.errors import LedgerError, SandboxError, UsageError
from kiseki.ledger import opening
from kiseki.ledger.opening import LOCK_NAME, open_ledger
from kiseki.sandboxes import cgroup, factory, folders, owners, processes
from kiseki.sandboxes.base import Limits
from kiseki.sandboxes.factory import Sandboxes
from kiseki.sandboxes.owners import LeftOver, Owner
from kiseki.sandboxes.reaper import HERE, reap, reap_orphans, remove, survey
from kiseki.sandboxes.settings import SandboxSettings

OLD = (0, 0)
"""Times of a folder that nobody has touched for long."""


@pytest.fixture(autouse=True)
def own_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of all sandboxes that no test beside this one uses."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folders.base()


def found(label: str, backend: str = HERE) -> tuple[str, int]:
    """State of a label's owner, and how many sandboxes it has."""
    (each,) = survey(SandboxSettings(backend=backend), lambda name: name == label)
    return each.state, each.sandboxes


def remove_all(backend: str = HERE) -> int:
    return sum(remove(each) for each in survey(SandboxSettings(backend=backend)))


def runs(pid: int) -> bool:
    process = processes.look(pid)
    return process is not None and process.running


AGENT = """
import asyncio
from kiseki.sandboxes import owners
from kiseki.sandboxes.factory import Sandboxes
from kiseki.sandboxes.settings import SandboxSettings

async def main():
    label = owners.process_label("agent")
    box = await Sandboxes(SandboxSettings(backend="local", label=label, owner=owners.hold(label))).open()
    await box.exec("setsid sleep 600 >/dev/null 2>&1 & echo $! >$HOME/pid", timeout=20)
    print(label, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@contextlib.contextmanager
def agent() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process with one sandbox, in which something runs, and its label."""
    with subprocess.Popen([sys.executable, "-c", AGENT], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_what_a_killed_process_left_is_removed_and_a_live_ones_is_not(own_base: Path) -> None:
    with agent() as (living, living_label), agent() as (dead, dead_label):
        (file,) = (own_base / dead_label).glob("*/home/pid")
        left = int(file.read_text())
        (file,) = (own_base / living_label).glob("*/home/pid")
        stays = int(file.read_text())
        assert found(dead_label) == ("alive", 1)
        assert remove_all() == 0
        dead.kill()
        dead.wait()
        assert found(dead_label) == ("dead", 1)
        assert runs(left)
        reap_orphans(SandboxSettings(backend="bubblewrap"))
        assert not runs(left)
        assert owners.recorded() == folders.labels() == [living_label]
        assert runs(stays)
        assert living.poll() is None


def test_a_process_that_ends_leaves_nothing_at_all(own_base: Path) -> None:
    code = AGENT.replace("await asyncio.sleep(600)", "await box.close()")
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    assert [path.name for path in own_base.iterdir()] == [owners.FOLDER]
    assert not list((own_base / owners.FOLDER).iterdir())


def test_a_process_that_was_forked_off_does_not_give_up_its_parents_lock() -> None:
    code = (
        "import os, sys\nfrom kiseki.sandboxes import owners\nowner = owners.hold(owners.process_label('agent'))\n"
        "pid = os.fork()\nif not pid:\n    sys.exit(0)\nos.waitpid(pid, 0)\nprint(owner, os.path.exists(owner))"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said.split()[1] == "True"
    assert not Path(said.split()[0]).exists()


def test_only_what_is_certain_counts_as_dead(tmp_path: Path) -> None:
    lock = tmp_path / LOCK_NAME
    assert not owners.is_alive(str(lock)), "it is gone"
    assert not owners.is_alive(str(tmp_path / "gone" / LOCK_NAME))
    lock.touch()
    assert not owners.is_alive(str(lock))
    holder = (
        "import fcntl, sys, time\nfile = open(sys.argv[1])\nfcntl.flock(file, fcntl.LOCK_EX)\nprint(flush=True)\ntime.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", holder, lock], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        assert owners.is_alive(str(lock))
        process.kill()
    assert not owners.is_alive(str(lock))
    (tmp_path / "folder" / LOCK_NAME).mkdir(parents=True)
    assert owners.is_alive(str(tmp_path / "folder" / LOCK_NAME)), "a folder in its place: nothing that we would know"
    assert owners.is_alive(f"{tmp_path}/agent-{os.getpid()}-00000000"), "its process runs: another than it removed the file"
    assert not owners.is_alive(f"{tmp_path}/agent-{2**22 + 1}-00000000"), "more than any process's number"
    held = owners.hold(owners.process_label("test"))
    assert owners.is_alive(held)


RUN = """
import sys, time
from pathlib import Path
from kiseki.ledger.opening import LOCK_NAME, open_ledger
from kiseki.sandboxes import owners
folder = Path(sys.argv[1])
with open_ledger(folder, create=True):
    print(owners.of_this_process(str(folder / LOCK_NAME)), flush=True)
    time.sleep(600)
"""


def test_a_run_whose_lock_cannot_be_found_lives_as_long_as_its_process(tmp_path: Path) -> None:
    """As when its folder is renamed, or stands in another mount namespace."""
    folder = tmp_path / "run"
    folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", RUN, folder], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        owner = run.stdout.readline().strip()
        assert owners.lock_of(owner) == str(folder / LOCK_NAME)
        assert owners.is_alive(owner)
        folder.rename(tmp_path / "renamed")
        assert owners.is_alive(owner)
        lock, _, started = owner.rpartition(".")
        assert not owners.is_alive(f"{lock}.{int(started) + 1}"), "another process with its number"
        run.kill()
    assert not owners.is_alive(owner)
    (tmp_path / "renamed").rename(folder)
    assert not owners.is_alive(owner)


def test_a_path_that_is_no_text_has_no_owner() -> None:
    assert owners.of_this_process("/data/\udcff/run.lock") == ""


@pytest.mark.parametrize(
    "file", ["a\0b", "\ud800", "/\0/run.lock", "/\ud800/run.lock", "/etc/passwd", "run.lock", "/dev/watchdog"]
)
def test_an_owner_that_no_process_of_ours_wrote_is_not_known(file: str) -> None:
    """On a remote host a command can write what it likes."""
    assert owners.state(Owner(owners.machine_id(), file)) == "unknown"
    assert owners.is_alive(file)


@pytest.mark.parametrize("name", [LOCK_NAME, "agent-1-00000000"])
def test_only_regular_files_are_opened_to_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """To open a device may do something: /dev/watchdog restarts the machine."""
    opened: list[str] = []
    real = os.open

    def note(path: str, *rest: Any) -> int:
        opened.append(os.fspath(path))
        return real(path, *rest)

    monkeypatch.setattr(os, "open", note)
    file, lock = tmp_path / name, tmp_path / "lock"
    lock.touch()
    for target in ("", "/dev/zero", lock):
        file.symlink_to(target) if target else os.mkfifo(file)
        assert owners.state(Owner(owners.machine_id(), str(file))) == "alive"
        assert owners.state(Owner(owners.machine_id(), "/dev/zero")) == "unknown"
        file.unlink()
    assert not {str(file), "/dev/zero"} & set(opened)
    file.touch()
    assert owners.state(Owner(owners.machine_id(), str(file))) == "dead"


def test_asking_does_not_keep_a_run_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_ledger(tmp_path, create=True).close()
    with contextlib.ExitStack() as asking:
        assert asking.enter_context(owners.seized(str(tmp_path / LOCK_NAME)))
        monkeypatch.setattr("time.sleep", lambda seconds: asking.close())
        open_ledger(tmp_path, create=False).close()


def test_a_machine_is_named_the_same_by_every_process() -> None:
    code = "from kiseki.sandboxes import owners; print(owners.machine_id(), owners.process_label('x'))"
    said = [subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split() for _ in "ab"]
    assert said[0][0] == said[1][0] == owners.machine_id()
    assert said[0][1] != said[1][1]


def test_another_machine_has_another_name() -> None:
    code = "from kiseki.sandboxes import owners; print(owners.machine_id())"
    command = ["unshare", "--map-root-user", "--uts", "sh", "-c", 'hostname another && exec "$@"', "sh"]
    done = subprocess.run([*command, sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"there are no namespaces here: {done.stderr.strip()}")
    assert done.stdout.strip() != owners.machine_id()


def test_folders_of_a_run_are_its_own(own_base: Path, tmp_path: Path) -> None:
    """Workers' labels are below the run's, and another machine's are left to that one."""
    lock = tmp_path / LOCK_NAME
    lock.touch()
    settings = SandboxSettings(backend="local", label="4f2a9c.3", owner=str(lock))

    async def main() -> None:
        sandboxes = Sandboxes(settings)
        await sandboxes.open()  # and never closed, as by a worker that is killed
        await sandboxes.open()
        with owners.seized(settings.owner):
            assert found("4f2a9c") == ("alive", 2)
            assert remove_all() == 0
        file = own_base / owners.FOLDER / "4f2a9c"
        own = file.read_text()
        file.write_text(json.dumps({"machine": "another", "file": str(lock)}))
        assert found("4f2a9c") == ("elsewhere", 2)
        assert remove_all() == 0
        file.write_text(own)
        assert found("4f2a9c") == ("dead", 2)
        assert await asyncio.to_thread(remove_all) == 2

    asyncio.run(main())
    assert folders.labels() == owners.recorded() == []


def test_what_nobody_wrote_an_owner_down_for_is_in_use_while_it_is_young_or_has_processes(own_base: Path) -> None:
    folder = folders.make("abc.1")
    assert found("abc") == ("unknown", 1), "young"
    os.utime(folder.parent, OLD)
    with subprocess.Popen(["sleep", "600"], env={"HOME": f"{folder}/home"}) as process:
        assert found("abc") == ("unknown", 1)
        assert remove_all() == 0
        process.kill()
    os.utime(folder.parent, OLD)
    assert found("abc") == ("dead", 1)
    (own_base / owners.FOLDER / "abc").write_text(json.dumps({"machine": owners.machine_id(), "file": "/not/ours"}))
    assert found("abc") == ("dead", 1)
    (own_base / "empty").mkdir()
    os.utime(own_base / "empty", OLD)
    assert found("empty") == ("dead", 0)
    assert remove_all() == 1
    assert folders.labels() == []


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module in the place of `docker`'s."""
    module = types.ModuleType("kiseki.sandboxes.made")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(factory.MODULES, "docker", "made")
    return module


def test_a_run_that_goes_on_meanwhile_waits_until_its_past_is_removed(
    tmp_path: Path, made: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "LOCK_PAUSE", 0.0)
    here, lock = owners.machine_id(), str(tmp_path / LOCK_NAME)
    left = [LeftOver("abc.1", Owner(here, lock), 5.0), LeftOver("abc.2", Owner(here, lock), 3.0)]
    left += [LeftOver("def", Owner("another", lock)), LeftOver("xyz", Owner())]
    refused = []

    def remove_it(settings: SandboxSettings) -> int:
        assert settings.label == "abc"
        try:
            open_ledger(tmp_path, create=True).close()
        except LedgerError as error:
            refused.append(str(error))
        mine = [each for each in left if each.owner.machine == here]
        left[:] = [each for each in left if each not in mine]
        return len(mine)

    vars(made).update(left_over=lambda settings: list(left), reap=remove_it)
    with open_ledger(tmp_path, create=True):
        assert remove_all("docker") == 0
    listed = survey(SandboxSettings(backend="docker"))
    states = [(each.state, each.sandboxes, each.since) for each in listed]
    assert states == [("dead", 2, 3.0), ("elsewhere", 1, 0.0), ("unknown", 1, 0.0)]
    with open_ledger(tmp_path, create=True):
        assert sum(map(remove, listed)) == 0, "it came to life since it was listed"
    assert not refused
    assert sum(map(remove, listed)) == 2
    assert refused
    open_ledger(tmp_path, create=True).close()


@pytest.mark.parametrize("other", [Owner("another", "/x/run.lock"), Owner(), Owner(owners.machine_id(), "alive")])
def test_a_label_with_two_owners_is_not_taken_for_dead(tmp_path: Path, made: types.ModuleType, other: Owner) -> None:
    """As when a command on a remote host wrote another owner down for its sandbox."""
    if other.file == "alive":
        other = Owner(other.machine, owners.hold(owners.process_label("test")))
    left = [LeftOver("abc.1", Owner(owners.machine_id(), str(tmp_path / "gone" / LOCK_NAME))), LeftOver("abc.2", other)]
    vars(made).update(left_over=lambda settings: left, reap=lambda settings: pytest.fail("it is in use"))
    assert remove_all("docker") == 0


def test_what_is_dead_elsewhere_is_removed_only_there(tmp_path: Path, made: types.ModuleType) -> None:
    folder = folders.make("abc.1")
    removed = [0, 1]
    left = [LeftOver("abc.1", Owner(owners.machine_id(), str(tmp_path / "gone" / LOCK_NAME)))]
    vars(made).update(left_over=lambda settings: left, reap=lambda settings: removed.pop())
    assert remove_all("docker") == 1
    assert folder.exists()


def test_a_backend_that_cannot_be_asked_does_not_keep_what_is_here(made: types.ModuleType) -> None:
    def cannot(settings: SandboxSettings) -> int:
        raise UsageError("its package is missing")

    vars(made).update(left_over=cannot, reap=cannot)
    folders.make("abc")
    with pytest.raises(SandboxError, match="its package is missing"):
        reap(SandboxSettings(backend="docker", label="abc"))
    assert folders.labels() == []
    reap_orphans(SandboxSettings(backend="docker"))


def test_what_an_engine_makes_while_it_is_asked_is_removed_too(made: types.ModuleType) -> None:
    removed = [3, 1, 0]
    made.reap = lambda settings: removed.pop(0)  # type: ignore[attr-defined]
    assert reap(SandboxSettings(backend="docker", label="abc")) == 4


def test_only_processes_are_nobodys_next_start(made: types.ModuleType, tmp_path: Path) -> None:
    dead = Owner(owners.machine_id(), str(tmp_path / "gone" / LOCK_NAME))
    gone: list[str] = []

    def remove_it(settings: SandboxSettings) -> int:
        gone.append(settings.label)
        return 0

    labels = ["4f2a9c.1", f"agent-{os.getpid()}-00000000", "agent", "agent-5"]
    vars(made).update(left_over=lambda settings: [LeftOver(label, dead) for label in labels], reap=remove_it)
    reap_orphans(SandboxSettings(backend="docker"))
    assert gone == [labels[1]]


@pytest.mark.parametrize("file", ["\0", "\ud800", "/dev/zero"])
def test_a_forged_owner_does_not_keep_others_from_being_removed(made: types.ModuleType, tmp_path: Path, file: str) -> None:
    left = [
        LeftOver("abc", Owner(owners.machine_id(), file)),
        LeftOver("def", Owner(owners.machine_id(), f"{tmp_path}/run.lock")),
    ]
    removed = [0, 1]
    vars(made).update(left_over=lambda settings: left, reap=lambda settings: removed.pop())
    reap_orphans(SandboxSettings(backend="docker"))
    assert remove_all("docker") == 1


def test_reap_ends_what_a_dead_run_left() -> None:
    label = f"reap-{os.getpid()}"
    folder = folders.make(label)
    (folder / "closed").mkdir()
    (folder / "closed" / "file").touch()
    (folder / "closed").chmod(0)
    with subprocess.Popen(["sleep", "600"], env={"HOME": f"{folder}/home"}) as left:
        assert reap(SandboxSettings(label=label)) == 1
        assert left.wait() == -9
    assert not folder.parent.exists()


def test_labels_are_a_hierarchy() -> None:
    top = f"tree-{os.getpid()}"
    limits = Limits()

    def leave(label: str) -> tuple[Path, subprocess.Popen[bytes]]:
        folder = folders.make(label)
        cgroup.make(folders.group_name(folder), limits)
        return folder, subprocess.Popen(["sleep", "600"], env={"HOME": f"{folder}/home"})

    def groups(label: str) -> int:
        return len({path for group in cgroup.left_over(folders.group_prefix(label)) for path in group.folders.values()})

    each = groups(top)
    assert each == 0
    left = {label: leave(label) for label in (top, f"{top}.3", f"{top}.30", f"{top}.3.x", f"{top}d", f"{top}d.3")}
    try:
        every = groups(top)
        assert reap(SandboxSettings(label=f"{top}.3")) == 2
        gone = {label for label, (folder, process) in left.items() if not folder.exists() and process.poll() is not None}
        assert gone == {f"{top}.3", f"{top}.3.x"}
        assert groups(f"{top}.3") == 0
        assert groups(top) == every // 2
        assert reap(SandboxSettings(label=top)) == 2
        gone = {label for label, (folder, process) in left.items() if not folder.exists() and process.poll() is not None}
        assert gone == left.keys() - {f"{top}d", f"{top}d.3"}
        assert groups(top) == 0
        assert groups(f"{top}d") == every // 2
        assert reap(SandboxSettings(label=f"{top}d")) == 2
        assert not list(folders.base().glob(f"{top}*"))
    finally:
        for _, process in left.values():
            process.kill()
            process.wait()


def test_a_group_whose_folder_is_gone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a process with another folder for temporary files, or one that died between the two removals."""
    if not cgroup.parents():
        pytest.skip("no control group can be made here")
    label = owners.process_label("agent").replace(str(os.getpid()), "1")
    group = cgroup.make(f"{folders.group_prefix(label)}{'0' * 16}", Limits())
    assert group

    def found() -> list[str]:
        return [each.settings.label for each in survey(SandboxSettings(backend=HERE)) if each.state == "dead"]

    with subprocess.Popen(["sleep", "600"]) as inside:
        try:
            assert label not in found(), "it was only just made"
            monkeypatch.setattr(folders, "UNTOUCHED_SECONDS", -1.0)
            group.enter(inside.pid)
            assert label not in found(), "somebody is in it"
        finally:
            inside.kill()
    try:
        assert label in found()
        for each in survey(SandboxSettings(backend=HERE), lambda name: name == label):
            remove(each)
        assert not any(folder.exists() for folder in group.folders.values())
    finally:
        group.remove()
