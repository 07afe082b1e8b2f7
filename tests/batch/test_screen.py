"""What goes wrong between a run and whoever looks: a screen that is gone, closed or full, a terminal that hangs up, signals."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import FAST, SECONDS, environment, kiseki, light_tools, read_rows, start_kiseki, write_dataset

from kiseki.models.mock_server import MockServer


def flags(folder: Path, server: MockServer, *more: str) -> tuple[str, ...]:
    light = light_tools(folder)
    base = ("batch", "--dataset_file=p.jsonl", "--run_name=r", f"--base_url={server.base_url}", "--model=mock")
    return (*base, "--batch_size=20", *FAST, *light, *more)


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    while process.poll() is None and not condition():
        time.sleep(0.01)


@pytest.mark.parametrize("nohup", [False, True])
def test_the_terminal_goes_away(tmp_path: Path, nohup: bool) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"p{number}"} for number in range(60)])
    with MockServer(turns=1, latency=0.03) as server:
        terminal, screen = pty.openpty()
        ignoring = "trap '' HUP; " if nohup else ""  # which the program inherits, as from nohup
        script = f'{ignoring}exec "$@"'
        process = subprocess.Popen(
            ["sh", "-c", script, "-", sys.executable, "-m", "kiseki", *flags(tmp_path, server, "--concurrency=4")],
            cwd=tmp_path,
            env=environment(),
            stdin=screen,
            stdout=screen,
            stderr=screen,
            start_new_session=True,
        )
        os.close(screen)
        wait_until(lambda: server.stats()["calls"] >= 20, process)
        os.close(terminal)
        process.send_signal(signal.SIGHUP)  # as the kernel does with the process that leads the session
        assert process.wait(timeout=SECONDS) == (0 if nohup else 130)
    run = tmp_path / "data/r"
    done = json.loads((run / "statistics.json").read_text())["outcomes"]["completed"]
    assert done == 60 if nohup else 0 < done < 60
    assert len(read_rows(run / "trajectories.jsonl")) == done, "merged before it ends"


@pytest.mark.parametrize("streams", [">&- 2>&-", "<&- >&- 2>&-", ">/dev/full 2>/dev/full", "2>&1 | true"])
def test_a_run_without_a_screen(tmp_path: Path, streams: str) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"p{number}"} for number in range(6)])
    with MockServer(turns=0) as server:
        more = flags(tmp_path, server, "--engine=processes", "--num_workers=2", "--verbose")
        command = ["bash", "-c", f'set -o pipefail; "$0" "$@" {streams}', sys.executable, "-m", "kiseki", *more]
        assert subprocess.run(command, cwd=tmp_path, env=environment(), timeout=SECONDS).returncode == 0
    assert [row["prompt_index"] for row in read_rows(tmp_path / "data/r/trajectories.jsonl")] == list(range(6))


@pytest.mark.parametrize(
    ("streams", "argument", "status"),
    [(">/dev/full", "--help", 1), (">&-", "--help", 0), ("2>/dev/full", "nonsense", 2), ("2>&-", "nonsense", 2)],
)
def test_an_answer_without_a_screen(tmp_path: Path, streams: str, argument: str, status: int) -> None:
    command = ["sh", "-c", f'exec "$0" "$@" {streams}', sys.executable, "-m", "kiseki", argument]
    buffered = environment(PYTHONUNBUFFERED="")
    done = subprocess.run(command, cwd=tmp_path, env=buffered, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == status
    assert done.stdout == ""
    assert done.stderr == ("kiseki: No space left on device\n" if status == 1 else "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_while_planning_and_while_merging(tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "data/r"
    run.mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe.jsonl")
    write_dataset(tmp_path / "p.jsonl", [{"prompt": "a"}])
    with MockServer(turns=0) as server:
        process = start_kiseki(*flags(tmp_path, server, "--dataset_file=pipe.jsonl"), cwd=tmp_path)
        with (tmp_path / "pipe.jsonl").open("w"):  # which waits for its reader: it is planning now
            process.send_signal(number)
            output, _ = process.communicate(timeout=SECONDS)
        assert (process.returncode, output.count("interrupted"), len(output.splitlines())) == (130, 1, 1), output
        assert not list(run.glob("*.tmp"))
        # a merged file that cannot be begun holds the process up between the run and its end
        os.mkfifo(run / "trajectories.jsonl.tmp")
        process = start_kiseki(*flags(tmp_path, server), cwd=tmp_path)
        assert process.stdout
        while not process.stdout.readline().startswith("1/1"):
            assert process.poll() is None
        process.send_signal(number)
        output, _ = process.communicate(timeout=SECONDS)
        assert (process.returncode, output.count("interrupted"), len(output.splitlines())) == (130, 1, 1), output
        (run / "trajectories.jsonl.tmp").unlink(missing_ok=True)
        kiseki(*flags(tmp_path, server, "--resume"), cwd=tmp_path)
        assert server.stats()["calls"] == 1
    assert len(read_rows(run / "trajectories.jsonl")) == 1
