"""What goes wrong around a run: its disk, its ledger, its clock. One clear line, and nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support import FAST, SECONDS, environment, kiseki, light_tools, read_rows, start_kiseki, write_dataset

from kiseki.models.mock_server import MockServer

MEGABYTES = 3


class Disk:
    """A small file system of its own at `folder`, in a mount namespace of its own: what happens there happens for real."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        script = f"mount -t tmpfs -o size={MEGABYTES}m tmpfs {folder} && echo ready && exec sleep 600"
        unshare = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
        self._holder = subprocess.Popen(unshare, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._holder.stdout and self._holder.stderr
        if self._holder.stdout.readline() != "ready\n":
            pytest.skip(f"no disk can be filled here, so a full and a read-only one are not tested: {self._holder.stderr.read()}")
        self.root = Path(f"/proc/{self._holder.pid}/root{folder}")

    def close(self) -> None:
        self._holder.kill()
        self._holder.communicate()

    def command(self, *command: str, cwd: Path) -> list[str]:
        enter = ["nsenter", f"--target={self._holder.pid}", "--user", "--mount", "--preserve-credentials", "--"]
        return [*enter, "sh", "-c", 'cd "$0" && exec "$@"', str(cwd), *command]

    def kiseki(self, *arguments: str, cwd: Path, status: int) -> subprocess.CompletedProcess[str]:
        command = self.command(sys.executable, "-m", "kiseki", *arguments, cwd=cwd)
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == status, (done.returncode, done.stdout[-3000:], done.stderr[-3000:])
        return done

    def run(self, script: str) -> None:
        subprocess.run(self.command("sh", "-c", script, cwd=Path("/")), check=True, capture_output=True)

    def leave(self, kilobytes: int) -> None:
        """Fill it up, but for so much."""
        (self.root / "ballast").unlink(missing_ok=True)
        free = os.statvfs(self.root).f_bavail * os.statvfs(self.root).f_frsize
        (self.root / "ballast").write_bytes(bytes(max(0, free - kilobytes * 1000)))

    def free(self) -> None:
        (self.root / "ballast").unlink()

    def read_only(self, yes: bool) -> None:
        """Over the folder as it is, so that open files stay writable, as they do on a disk that only takes no new ones."""
        folder = self._folder
        self.run(f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder}" if yes else f"umount {folder}")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "data")
    yield made
    made.close()


def flags(folder: Path, server: MockServer, *more: str) -> tuple[str, ...]:
    light = light_tools(folder)
    base = ("batch", "--dataset_file=p.jsonl", "--run_name=r", f"--base_url={server.base_url}", "--model=mock")
    return (*base, "--batch_size=20", *FAST, *light, *more)


def outcomes(folder: Path) -> dict[str, int]:
    """What the ledger in `folder` has, read from a copy: it must be whole as it lies there."""
    with tempfile.TemporaryDirectory() as copy:
        for path in folder.glob("run.db*"):
            if not path.name.endswith("-shm"):
                shutil.copy(path, copy)
        with closing(sqlite3.connect(Path(copy, "run.db"))) as db:
            assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            return dict(db.execute("SELECT outcome, count(*) FROM rollouts GROUP BY 1"))


def one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert len(done.stderr.splitlines()) == 1, done.stderr
    for each in words:
        assert each in done.stderr


def assert_nothing_half_written(folder: Path) -> None:
    assert not list(folder.glob("*.tmp"))


def test_a_full_disk(tmp_path: Path, disk: Disk) -> None:
    run, data = disk.root / "r", tmp_path / "p.jsonl"
    with MockServer(turns=0, latency=0.05) as server:
        # while planning
        write_dataset(data, [{"prompt": f"{number} {'long ' * 500}"} for number in range(2000)])
        failed = disk.kiseki(*flags(tmp_path, server), cwd=tmp_path, status=1)
        one_line(failed, "cannot write data/r/run.db: no space left", "what was done before is saved", "--resume goes on")
        assert_nothing_half_written(run)
        assert outcomes(run).keys() <= {"pending"}
        assert server.stats()["calls"] == 0
        # while running
        shutil.rmtree(run)
        write_dataset(data, [{"prompt": f"{number} {'word ' * 40}"} for number in range(300)])
        disk.leave(700)
        failed = disk.kiseki(*flags(tmp_path, server, "--concurrency=8"), cwd=tmp_path, status=1)
        one_line(failed, "cannot write data/r/", "o space left", "--resume goes on")
        assert_nothing_half_written(run)
        done = outcomes(run)["completed"]
        assert 0 < done < 300
        # it is still full
        failed = disk.kiseki(*flags(tmp_path, server, "--concurrency=8", "--resume"), cwd=tmp_path, status=1)
        one_line(failed, "o space left", "--resume goes on")
        assert outcomes(run)["completed"] >= done
        done = outcomes(run)["completed"]
        calls = server.stats()["calls"]
        assert calls <= done + 4 * 8, "what was in flight, twice, and what had ended and could not be written"
        # and then it is not
        disk.free()
        disk.kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path, status=0)
        assert [row["prompt_index"] for row in read_rows(run / "trajectories.jsonl")] == list(range(300))
        assert server.stats()["calls"] == calls + 300 - done, "nothing that was saved is bought twice"
        # while merging: what was there stays
        disk.leave(200)
        one_line(disk.kiseki("merge", "data/r", cwd=tmp_path, status=1), "cannot write data/r/trajectories.jsonl: No space left")
        assert_nothing_half_written(run)
        assert len(read_rows(run / "trajectories.jsonl")) == 300
        disk.leave(0)
        one_line(disk.kiseki("merge", "data/r", cwd=tmp_path, status=1), "cannot write data/r/", "o space left")


def test_a_read_only_folder(tmp_path: Path, disk: Disk) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"p{number}"} for number in range(60)])
    with MockServer(turns=0, latency=0.02) as server:
        for there in (False, True):
            if there:
                (disk.root / "r").mkdir()
            disk.read_only(True)
            refused = disk.kiseki(*flags(tmp_path, server), cwd=tmp_path, status=2)
            one_line(refused, "data/r", "Read-only file system", "--output_dir")
            disk.read_only(False)
        assert server.stats()["calls"] == 0
        # in the middle of a run
        command = disk.command(sys.executable, "-m", "kiseki", *flags(tmp_path, server, "--concurrency=2"), cwd=tmp_path)
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: server.stats()["calls"] >= 5, process)
        disk.read_only(True)
        _, stderr = process.communicate(timeout=SECONDS)
        assert process.returncode == 1
        assert "cannot write data/r/batch_0.jsonl: Read-only file system" in stderr
        assert "--resume goes on" in stderr
        done = outcomes(disk.root / "r")["completed"]
        assert done >= 20, "the batch whose file could not be written is in the ledger"
        disk.read_only(False)
        calls = server.stats()["calls"]
        disk.kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path, status=0)
        assert server.stats()["calls"] == calls + 60 - done
    assert [row["prompt_index"] for row in read_rows(disk.root / "r/trajectories.jsonl")] == list(range(60))
    disk.read_only(True)  # as an archive is: it can be checked where it lies
    assert "every file says what it says" in disk.kiseki("verify", "data/r", cwd=tmp_path, status=0).stdout
    disk.kiseki("log", "data/r", cwd=tmp_path, status=0)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    while process.poll() is None and not condition():
        time.sleep(0.01)


def before_start(folder: Path, code: str) -> str:
    """A PYTHONPATH with which every Python process runs `code` first."""
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site" / "sitecustomize.py").write_text(code)
    return os.pathsep.join((str(folder / "site"), os.environ.get("PYTHONPATH", "")))


def patience(folder: Path, seconds: float) -> str:
    code = f"import kiseki.ledger.ledger as it\nit.BUSY_SECONDS, it.SAID_AFTER_SECONDS = {seconds}, 0.1\n"
    code += f"import kiseki.ledger.opening as at\nat.BUSY_SECONDS = {seconds}\n"
    return before_start(folder, code)


def hold(ledger: Path) -> sqlite3.Connection:
    """Take the ledger's write lock, as an editor with unsaved changes does."""
    db = sqlite3.connect(ledger, isolation_level=None, timeout=SECONDS)
    db.execute("BEGIN EXCLUSIVE")
    return db


@pytest.mark.parametrize("lasts", [False, True])
def test_another_program_holds_the_ledger(tmp_path: Path, lasts: bool) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"p{number}"} for number in range(100)])
    with MockServer(turns=0, latency=0.02) as server:
        patient = patience(tmp_path, 0.3 if lasts else SECONDS)
        process = start_kiseki(*flags(tmp_path, server, "--concurrency=4"), cwd=tmp_path, PYTHONPATH=patient)
        wait_until(lambda: server.stats()["calls"] >= 20, process)
        db = hold(tmp_path / "data/r/run.db")
        assert process.stdout
        seen = ""
        while "another program holds data/r/run.db" not in seen:
            line = process.stdout.readline()
            assert line, seen
            seen += line
        if lasts:
            output = process.stdout.read()  # not by communicate, which would miss what has been read ahead
            assert process.wait() == 1
            assert "cannot write data/r/run.db: another program holds it, close that program; what was done" in output
            for command in (flags(tmp_path, server, "--resume"), ("merge", "data/r")):
                refused = kiseki(*command, cwd=tmp_path, status=1, PYTHONPATH=patient)
                one_line(refused, "another program holds it")
                assert "waiting up to 0.3 s" in refused.stdout
            db.execute("ROLLBACK")
            assert 0 < outcomes(tmp_path / "data/r")["completed"] < 100
            kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path)
        else:
            db.execute("ROLLBACK")
            output = process.stdout.read()
            assert process.wait() == 0, output
            assert server.stats()["calls"] == 100
        db.close()
    assert [row["prompt_index"] for row in read_rows(tmp_path / "data/r/trajectories.jsonl")] == list(range(100))


def damage_header(ledger: Path) -> None:
    content = ledger.read_bytes()
    ledger.write_bytes(bytes(range(100)) + content[100:])


def damage_middle(ledger: Path) -> None:
    content = bytearray(ledger.read_bytes())
    content[8192:-4096] = b"\xff" * (len(content) - 8192 - 4096)
    ledger.write_bytes(content)


def damage_end(ledger: Path) -> None:
    os.truncate(ledger, ledger.stat().st_size // 2)


def damage_meta(ledger: Path) -> None:
    with closing(sqlite3.connect(ledger)) as db, db:
        db.execute("UPDATE meta SET value = substr(value, 1, 20) WHERE key IN ('run', 'views')")


def damage_page(ledger: Path) -> None:
    """One that is not read before the first outcome is written."""
    with closing(sqlite3.connect(ledger)) as db:
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'tool_schemas'").fetchone()
        (size,) = db.execute("PRAGMA page_size").fetchone()
    with ledger.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)


def test_a_damaged_ledger(tmp_path: Path) -> None:
    """It is named, with two ways out; the files that there are stay as they are."""
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"p{number}"} for number in range(40)])
    run = tmp_path / "data/r"
    with MockServer(turns=0) as server:
        kiseki(*flags(tmp_path, server, "--max_samples=20"), cwd=tmp_path)
        shutil.copytree(run, tmp_path / "copy")
        for damage in (damage_header, damage_middle, damage_end, damage_meta, damage_page):
            for command in (flags(tmp_path, server, "--resume"), ("merge", "data/r")):
                shutil.copy(tmp_path / "copy/run.db", run)
                damage(run / "run.db")
                refused = kiseki(*command, cwd=tmp_path, status=2)
                one_line(refused, "data/r/run.db is damaged", "put a copy of it back", "kiseki verify data/r", "--resume")
                assert len(read_rows(run / "trajectories.jsonl")) == 20
                for leftover in run.glob("run.db-*"):
                    leftover.unlink()
        calls = server.stats()["calls"]
        shutil.copy(tmp_path / "copy/run.db", run)
        kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path)
        assert server.stats()["calls"] == calls + 20
    assert len(read_rows(run / "trajectories.jsonl")) == 40


def test_a_lost_ledger_is_made_again_from_its_own_batch_files(tmp_path: Path) -> None:
    """Which the message about a damaged one names as a way out. Nothing in them is bought again."""
    history = [{"role": "user", "content": "same"}, {"role": "assistant", "content": "x"}, {"role": "user", "content": "b"}]
    write_dataset(tmp_path / "p.jsonl", [{"prompt": each} for each in ("same", "same", " a\u2028 ", history)])
    run = tmp_path / "data/r"
    with MockServer(turns=0) as server:
        kiseki(*flags(tmp_path, server, "--num_samples=2"), cwd=tmp_path)
        before = read_rows(run / "trajectories.jsonl")
        for path in run.glob("run.db*"):
            path.rename(tmp_path / path.name)
        done = kiseki(*flags(tmp_path, server, "--num_samples=2", "--resume"), cwd=tmp_path)
        assert "adopted 8 rows of 1 batch files (0 damaged, 0 whose prompt is not in the dataset)" in done.stdout
        assert server.stats()["calls"] == 8
    after = read_rows(run / "trajectories.jsonl")
    for one, other in zip(before, after, strict=True):
        assert {**one, "metadata": other["metadata"]} == other
    assert json.loads((run / "statistics.json").read_text())["reasoning_statistics"]["total_assistant_turns"] == 8


def test_a_ledger_that_is_empty_or_of_something_else(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "a"}])
    run = tmp_path / "data/r"
    with MockServer(turns=0) as server:
        kiseki(*flags(tmp_path, server), cwd=tmp_path)
        (run / "run.db").write_bytes(b"")
        kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path)
        assert server.stats()["calls"] == 1, "the batch files are taken over"
        (run / "run.db").unlink()
        with closing(sqlite3.connect(run / "run.db")) as db, db:
            db.execute("CREATE TABLE bookmarks (url TEXT)")
        before = (run / "run.db").read_bytes()
        for command in (flags(tmp_path, server, "--resume"), ("merge", "data/r")):
            one_line(kiseki(*command, cwd=tmp_path, status=2), "run.db is a database of something else", "move it away")
        assert (run / "run.db").read_bytes() == before


@pytest.mark.parametrize("seconds", [86_400, -86_400])
def test_the_clock_jumps(tmp_path: Path, seconds: int) -> None:
    """In the driver and in the workers, in the middle of the run, with calls that are to be tried again."""
    jump = f"""
import itertools, time
true, calls = time.time, itertools.count()
time.time = lambda: true() + {seconds} * (next(calls) > 10)
"""
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"p{number}"} for number in range(60)])
    with MockServer(turns=1, rate_limit_every=40, retry_after=0.01) as server:
        settings = ("--num_workers=2", "--engine=processes", "--concurrency=8")
        kiseki(*flags(tmp_path, server, *settings), cwd=tmp_path, PYTHONPATH=before_start(tmp_path, jump))
    rows = read_rows(tmp_path / "data/r/trajectories.jsonl")
    assert [row["prompt_index"] for row in rows] == list(range(60))
    assert all(0 <= row["metadata"]["seconds"] < SECONDS for row in rows)
    stamps = [time.mktime(time.strptime(row["metadata"]["timestamp"], "%Y-%m-%dT%H:%M:%S")) for row in rows]
    assert max(stamps) - min(stamps) > 80_000, "it has jumped"
    assert 0 < json.loads((tmp_path / "data/r/statistics.json").read_text())["duration_seconds"] < SECONDS


def test_a_lock_file_that_a_dead_process_of_another_host_left(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "a"}])
    run = tmp_path / "data/r"
    run.mkdir(parents=True)
    (run / "run.lock").write_text(f"process {os.getpid()} on another.host.example\n")
    with MockServer(turns=0, latency=30) as server:
        first = start_kiseki(*flags(tmp_path, server), cwd=tmp_path)
        try:
            wait_until(lambda: server.stats()["in_flight"] > 0, first)
            refused = kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path, status=2)
            one_line(refused, f"in use by process {first.pid}")
            assert "another.host" not in refused.stderr
        finally:
            os.killpg(first.pid, signal.SIGKILL)
            first.communicate()


def test_a_folder_that_another_run_was_faster_to_lock_is_left_to_it(tmp_path: Path) -> None:
    faster = """
import fcntl, os
from pathlib import Path
true = fcntl.flock
def flock(descriptor, how):
    if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/run.lock"):
        from kiseki.ledger.opening import open_ledger
        global other
        fcntl.flock = true
        other = open_ledger(Path("data/r"), create=True)
    true(descriptor, how)
fcntl.flock = flock
"""
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "a"}])
    with MockServer(turns=0) as server:
        refused = kiseki(*flags(tmp_path, server), cwd=tmp_path, status=2, PYTHONPATH=before_start(tmp_path, faster))
    one_line(refused, "data/r is in use by process")
    assert outcomes(tmp_path / "data/r") == {}, "its ledger is there"
