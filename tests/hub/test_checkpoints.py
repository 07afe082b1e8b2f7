"""`kiseki batch --push_to`: batches on the Hub while the run goes, the dataset at its end, and no rollout lost to any of it."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from hub_uploads import Fault, UploadHub
from pushing import hub_environment, push
from support import FAST, SECONDS, kiseki, read_rows, start_kiseki, write_dataset

pytest.importorskip("huggingface_hub")

TOOL = '''
import time
from pathlib import Path
from kiseki import tool

calls = []

@tool(toolset="mine")
def shout(text: str) -> str:
    """Say it louder.

    Args:
        text: What to say.
    """
    calls.append(text)
    while len(calls) > 2 and not Path("go_on").exists():
        time.sleep(0.01)
    return text.upper()
'''
"""Once two rollouts have called it, it waits for the test."""


def flags(folder: Path, hub: UploadHub, *more: str) -> tuple[list[str], dict[str, str]]:
    write_dataset(folder / "prompts.jsonl", [{"prompt": f"Say number {n} aloud."} for n in range(6)])
    (folder / "mine.py").write_text(TOOL)
    (folder / "mine.yaml").write_text("mine: 100\n")
    run = ["batch", "--dataset_file=prompts.jsonl", "--batch_size=1", "--run_name=mine", "--model=builtin/practice"]
    run += ["--tools=mine.py", "--distribution=mine.yaml", "--concurrency=1", *FAST, *more]
    return run, hub_environment(hub, folder)


def run_with(folder: Path, hub: UploadHub, awaited: str, *more: str) -> str:
    """What a run says that goes on after its second rollout only when the Hub was asked for something."""
    run, variables = flags(folder, hub, *more)
    process: subprocess.Popen[str] = start_kiseki(*run, cwd=folder, **variables)
    while not hub.count(awaited) and process.poll() is None:
        time.sleep(0.01)
    (folder / "go_on").touch()
    said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    return said


def test_finished_batches_are_there_while_it_runs_and_the_dataset_at_its_end(hub: UploadHub, tmp_path: Path) -> None:
    run_with(tmp_path, hub, "POST .*/commit/", "--push_to=org/mine", "--push_every=1")
    repo = hub.repos["org/mine"]
    first = next(files for files in repo.commits if "kiseki.json" in files)
    assert "checkpoints/batch_0.jsonl" in first
    assert repo.messages[1] == "mine: finished batches"
    assert repo.messages[-1] == "mine: dataset"
    assert [name for name in repo.files if "/" in name] == ["data/train-00000-of-00001.jsonl"]
    assert len(hub.text("org/mine", "data/train-00000-of-00001.jsonl").splitlines()) == 6
    assert repo.private


def test_pushes_that_fail_are_lines_and_the_run_is_whole(hub: UploadHub, tmp_path: Path) -> None:
    hub.faults.append(Fault("POST .*/commit/", times=99, status=403))
    said = run_with(tmp_path, hub, "POST .*/commit/", "--push_to=org/mine", "--push_every=1")
    assert "not pushed" in said
    assert "kiseki push org/mine --run data/mine" in said.replace("\n", " ")
    assert len(read_rows(tmp_path / "data/mine/trajectories.jsonl")) == 6


def test_a_push_by_hand_while_the_run_goes_on(hub: UploadHub, tmp_path: Path) -> None:
    run, variables = flags(tmp_path, hub)
    process = start_kiseki(*run, cwd=tmp_path, **variables)
    while not (tmp_path / "data/mine/batch_1.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.01)
    assert "2 rows" in push(hub, tmp_path, "--run=data/mine")
    card = hub.text("org/mine", "README.md")
    assert "**The run goes on.**" in card
    assert "| not run yet | 4 |" in card
    (tmp_path / "go_on").touch()
    said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    assert "6 rows" in push(hub, tmp_path, "--run=data/mine")
    assert "The run goes on" not in hub.text("org/mine", "README.md")


NO_SHARED_MEMORY = """
import sqlite3
connect = sqlite3.connect

def without(name, **more):
    address = name if more.get("uri") else f"file:{name}"
    return connect(f"{address}?vfs=unix-dotfile", **(more | {"uri": True}))

sqlite3.connect = without
"""
"""As on a file system of the network: the ledger is its run's alone."""


def test_the_end_is_pushed_where_only_the_run_itself_can_read_its_ledger(hub: UploadHub, tmp_path: Path) -> None:
    run, variables = flags(tmp_path, hub, "--push_to=org/mine")
    (tmp_path / "go_on").touch()
    (tmp_path / "sitecustomize.py").write_text(NO_SHARED_MEMORY)
    variables["PYTHONPATH"] = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    said = kiseki(*run, cwd=tmp_path, status=0, **variables).stdout
    assert "pushed: 6 rows" in said


def test_what_would_fail_at_the_end_fails_before_the_run(hub: UploadHub, tmp_path: Path) -> None:
    for to, words, more in (("readers/mine", "403", {}), ("org/mine", "HF_TOKEN", {"HF_TOKEN": ""}), ("mine", "org/name", {})):
        run, variables = flags(tmp_path, hub, f"--push_to={to}")
        done = kiseki(*run, cwd=tmp_path, status=2, **(variables | more))
        assert words in done.stderr
        assert not (tmp_path / "data/mine").exists()
    run, variables = flags(tmp_path, hub, "--push_every=3")
    assert "--push_to" in kiseki(*run, cwd=tmp_path, status=2, **variables).stderr
