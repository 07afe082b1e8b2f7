"""What a run that was killed leaves: `kiseki reap` and its own next start remove that, and nothing of anybody else's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engines import BUSYBOX, client, docker_host
from support import children, kiseki, start_kiseki, write_dataset

from kiseki.batch.leftovers import owned
from kiseki.ledger.opening import open_ledger
from kiseki.models.mock_server import MockServer
from kiseki.sandboxes import owners
from kiseki.sandboxes.settings import SandboxSettings

MANY = 100
HANGS = [{"turns": [{"tool_calls": [{"name": "terminal", "arguments": {"command": "sleep 600"}}]}, {"content": "ok"}]}]
FINISHES = [{"turns": [{"content": "ok"}]}]


def command(folder: Path, server: MockServer, run: str, rollouts: int, *more: str) -> tuple[str, ...]:
    """A run of that many rollouts, all at once."""
    write_dataset(folder / f"{run}.jsonl", [{"prompt": f"p{number}"} for number in range(rollouts)])
    (folder / "terminal.yaml").write_text("terminal: 100\n")
    flags = ("batch", f"--dataset_file={run}.jsonl", f"--run_name={run}", "--model=m", f"--base_url={server.base_url}")
    filters = ("--distribution=terminal.yaml", "--reasoning_filter=off", f"--batch_size={rollouts}")
    return (*flags, *filters, f"--concurrency={rollouts}", "--num_workers=4", "--engine=processes", "--resume", *more)


def wait_until(condition: Callable[[], bool], *running: subprocess.Popen[str]) -> None:
    while not condition():
        for process in running:
            assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)


def kill_all(process: subprocess.Popen[str]) -> None:
    """The driver and its workers, at once: stopped first, so that none sees another's end, and the driver killed last, since the
    system wakes stopped processes whose parent ends."""
    pids = [process.pid, *children(process.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in reversed(pids):
        os.kill(pid, signal.SIGKILL)
    process.communicate()


def containers_of(engine: Any, run: Path) -> list[dict[str, Any]]:
    every = engine.containers(all=True, filters={"label": "kiseki.owner"})
    return [each for each in every if owners.lock_of(each["Labels"]["kiseki.owner"]) == f"{run}/run.lock"]


def test_processes_folders_and_groups_of_a_killed_run(tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    base = temporary / f"kiseki-{os.getuid()}"

    def sandboxes() -> int:
        return len(list(base.glob("[!.]*/*/")))

    def reap(*more: str) -> str:
        return kiseki("reap", "--sandbox=bubblewrap", *more, cwd=tmp_path, TMPDIR=str(temporary)).stdout

    with MockServer(script=HANGS) as hangs, MockServer(script=FINISHES) as finishes:
        dead = start_kiseki(*command(tmp_path, hangs, "dead", 6), cwd=tmp_path, TMPDIR=str(temporary))
        lives = start_kiseki(*command(tmp_path, hangs, "lives", 3), cwd=tmp_path, TMPDIR=str(temporary))
        wait_until(lambda: hangs.stats()["calls"] == 9 and sandboxes() == 9, dead, lives)
        assert "removed: 0" in reap()
        kill_all(dead)
        assert sandboxes() == 9
        listed = reap("--dry_run")
        assert "removed: 6" in listed
        assert f"{tmp_path}/data/dead" in listed
        assert sandboxes() == 9
        assert "removed: 6" in reap()
        assert "removed: 0" in reap()
        assert sandboxes() == 3
        assert lives.poll() is None
        kill_all(lives)
        assert sandboxes() == 3
        done = kiseki(*command(tmp_path, finishes, "lives", 3), cwd=tmp_path, TMPDIR=str(temporary))
        assert "removed 3 sandboxes that a killed session of this run had left" in done.stdout
        done = kiseki(*command(tmp_path, finishes, "dead", 6), cwd=tmp_path, TMPDIR=str(temporary))
        assert "removed" not in done.stdout
    assert [path.name for path in base.iterdir()] == [".owners"]
    assert not list((base / ".owners").iterdir())


@pytest.mark.timeout(400)
def test_containers_of_a_killed_run(tmp_path: Path) -> None:
    host = docker_host()
    engine = client(host)
    more = ("--sandbox=docker", f"--sandbox_image={BUSYBOX}")
    dead_run, live_run = tmp_path / "data" / "dead", tmp_path / "data" / "lives"

    def containers(run: Path) -> list[dict[str, Any]]:
        return containers_of(engine, run)

    def reap(*more: str) -> str:
        return kiseki("reap", "--sandbox=docker", *more, cwd=tmp_path, DOCKER_HOST=host).stdout

    foreign = engine.create_container(BUSYBOX, ["true"])["Id"]
    labels = {"kiseki.label": "abc", "kiseki.owner": f"{tmp_path}/run.lock", "kiseki.machine": "another"}
    elsewhere = engine.create_container(BUSYBOX, ["true"], labels=labels)["Id"]
    try:
        with MockServer(script=HANGS) as hangs, MockServer(script=FINISHES) as finishes:
            lives = start_kiseki(*command(tmp_path, hangs, "lives", 1, *more), cwd=tmp_path, DOCKER_HOST=host)
            dead = start_kiseki(*command(tmp_path, hangs, "dead", MANY, *more), cwd=tmp_path, DOCKER_HOST=host)
            wait_until(lambda: hangs.stats()["calls"] == MANY + 1, dead, lives)
            assert (len(containers(dead_run)), len(containers(live_run))) == (MANY, 1)
            kill_all(dead)
            assert len(containers(dead_run)) == MANY
            listed = reap("--dry_run")
            assert str(dead_run) in listed
            assert "another machine" in listed
            assert len(containers(dead_run)) == MANY
            reap()
            assert not containers(dead_run)
            assert len(containers(live_run)) == 1
            assert lives.poll() is None
            kill_all(lives)
            assert len(containers(live_run)) == 1
            done = kiseki(*command(tmp_path, finishes, "lives", 1, *more), cwd=tmp_path, DOCKER_HOST=host)
            assert "removed 1 sandboxes that a killed session of this run had left" in done.stdout
            assert not containers(live_run)
        assert {each["Id"] for each in engine.containers(all=True)} >= {foreign, elsewhere}
    finally:
        for container in (foreign, elsewhere):
            engine.remove_container(container, force=True)
        engine.close()


def test_a_run_that_goes_on_in_another_backend_removes_what_it_left_in_the_first(tmp_path: Path) -> None:
    host = docker_host()
    engine = client(host)

    def containers() -> int:
        return len(containers_of(engine, tmp_path / "data" / "r"))

    with MockServer(script=HANGS) as hangs, MockServer(script=FINISHES) as finishes:
        docker = ("--sandbox=docker", f"--sandbox_image={BUSYBOX}")
        run = start_kiseki(*command(tmp_path, hangs, "r", 1, *docker), cwd=tmp_path, DOCKER_HOST=host)
        wait_until(lambda: hangs.stats()["calls"] == 1, run)
        kill_all(run)
        assert containers() == 1
        other = command(tmp_path, finishes, "r", 1, "--sandbox=bubblewrap", "--force_config")
        nowhere = f"unix://{tmp_path}/nothing"
        stopped = kiseki(*other, cwd=tmp_path, DOCKER_HOST=nowhere)
        assert "may have left in docker stays until it can be asked" in stopped.stdout
        assert containers() == 1
        done = kiseki(*other, cwd=tmp_path, DOCKER_HOST=host)
        assert "removed 1 sandboxes that a killed session of this run had left" in done.stdout
        assert containers() == 0
        (tmp_path / "docker.py").write_text("raise SystemExit('docker is imported where nothing is to be asked of it')")
        kiseki(*other, cwd=tmp_path, DOCKER_HOST=nowhere)
    engine.close()


def test_the_label_is_the_runs_own(tmp_path: Path) -> None:
    def label(folder: Path) -> str:
        with open_ledger(folder, create=True) as ledger:
            settings = owned(ledger, SandboxSettings())
        assert owners.lock_of(settings.owner) == f"{folder}/run.lock"
        return settings.label

    for name in ("run", "other"):
        (tmp_path / name).mkdir()
    first = label(tmp_path / "run")
    assert label(tmp_path / "run") == first, "every session finds what another left"
    assert label(tmp_path / "other") != first
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert label(tmp_path / "copy") != first, "the original may be running"
    (tmp_path / "run").rename(tmp_path / "renamed")
    assert label(tmp_path / "renamed") == first
