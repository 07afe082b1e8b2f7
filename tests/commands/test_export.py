"""`kiseki export` as its users run it: on runs, on files, interrupted and killed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from chat_model import chat_model
from exporting import chat
from support import FAST, SECONDS, environment, kiseki, light_tools, read_rows, start_kiseki, write_dataset

from kiseki.errors import UsageError
from kiseki.exports.export import export
from kiseki.exports.job import ExportJob


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four prompts with three samples each."""
    folder = tmp_path_factory.mktemp("run")
    rows = [{"prompt": f"Say hello number {number} loudly", "reward": number / 4} for number in range(4)]
    write_dataset(folder / "prompts.jsonl", rows)
    flags = ("--dataset_file=prompts.jsonl", "--batch_size=4", "--run_name=r", "--num_samples=3", "--model=builtin/practice")
    kiseki("batch", *flags, *FAST, *light_tools(folder), cwd=folder)
    return folder / "data" / "r"


def report_of(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    assert report["read"] == sum(report["written"].values()) + sum(report["left_out"].values())
    return report


def test_a_run_becomes_what_a_trainer_reads(run: Path) -> None:
    done = kiseki("export", str(run), "--to", "messages", "--only", "reward>0", "--max-per-prompt=2", cwd=run.parent)
    folder = run / "exports" / "messages"
    counts = "examples read 12 written, train 6 left out 6 not reward>0 3 over max_per_prompt 3"
    assert counts in " ".join(done.stdout.split())
    assert f"kiseki doctor {folder} --for messages" in done.stdout
    rows = read_rows(folder / "train.jsonl")
    assert [row["prompt_index"] for row in rows] == [1, 1, 2, 2, 3, 3]
    assert all(row["messages"][-1]["role"] == "assistant" for row in rows)
    gone = read_rows(folder / "left_out.jsonl")
    assert [(each["prompt_index"], each["sample_index"]) for each in gone[:3]] == [(0, 0), (0, 1), (0, 2)]
    assert report_of(folder)["source_kind"] == "run"
    assert not kiseki("verify", str(run), cwd=run.parent).stderr


def test_a_run_and_its_file_have_the_same_splits(run: Path, tmp_path: Path) -> None:
    splits = []
    for source in (run, run / "trajectories.jsonl"):
        report = export(ExportJob(source=source, to="messages", split="train=0.5,val=0.5", out=tmp_path / source.stem))
        assert report.written["train"] and report.written["val"]
        splits.append({row["messages"][0]["content"] for row in read_rows(tmp_path / source.stem / "train.jsonl")})
    assert splits[0] == splits[1]


def test_failed_and_discarded_rollouts_are_reported(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    with sqlite3.connect(run / "run.db") as source, sqlite3.connect(copy / "run.db") as database:
        source.backup(database)
        database.execute("UPDATE rollouts SET outcome = 'failed' WHERE sample_index = 2")
        database.execute("UPDATE attempts SET unknown_tools = '[\"x\"]' WHERE rollout_id IN (SELECT id FROM rollouts LIMIT 1)")
    report = export(ExportJob(source=copy, to="messages"))
    assert report.left_out == {"failed": 4, "discarded: unknown_tool": 1} and report.read == 12
    export(ExportJob(source=run, to="messages", out=tmp_path / "all"))
    keys = {(row["prompt_index"], row["sample_index"]): row["key"] for row in read_rows(tmp_path / "all" / "train.jsonl")}
    gone = read_rows(copy / "exports" / "messages" / "left_out.jsonl")
    assert all(each["key"] == keys[each["prompt_index"], each["sample_index"]] for each in gone)


def test_a_run_that_goes_on_is_exported_as_far_as_it_is(tmp_path: Path) -> None:
    write_dataset(tmp_path / "prompts.jsonl", [{"prompt": f"Say hello number {number} loudly"} for number in range(400)])
    flags = ("--dataset_file=prompts.jsonl", "--batch_size=4", "--run_name=r", "--model=builtin/practice", "--num_workers=1")
    going = start_kiseki("batch", *flags, *FAST, *light_tools(tmp_path), cwd=tmp_path)
    run = tmp_path / "data" / "r"
    try:
        counts: list[int] = []
        end = time.monotonic() + SECONDS
        while going.poll() is None and not counts:
            assert time.monotonic() < end
            try:
                counts.append(export(ExportJob(source=run, to="messages")).total_written)
            except UsageError:  # nothing is there yet
                time.sleep(0.05)
    finally:
        going.communicate(timeout=SECONDS)
    assert going.returncode == 0
    assert export(ExportJob(source=run, to="messages")).total_written == 400 >= counts[0] > 0


def test_usage_errors_are_one_line(tmp_path: Path) -> None:
    source = str(write_dataset(tmp_path / "rows.jsonl", [chat("a", "b")]))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.db").touch()
    for arguments, words in (
        ((source,), "missing --to; the formats are sharegpt"),
        ((source, "--to=trll"), "did you mean trl?"),
        ((source, "--to=messages", "--drop=loop"), "did you mean loops?"),
        ((source, "--to=messages", "--min_turns=4"), "nothing to write: all 1 examples are left out (1 too few turns)"),
        (("none.jsonl", "--to=messages"), "there is no none.jsonl"),
        ((str(tmp_path / "data"), "--to=messages"), "there is no"),
        (("run/run.db", "--to=messages"), "run/run.db is a run's ledger; give its folder: run"),
    ):
        done = kiseki("export", *arguments, cwd=tmp_path, status=2)
        assert words in done.stderr and done.stderr.count("\n") == 1 and not done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl", "run"]


def test_empty_think_blocks_are_kept_or_dropped(tmp_path: Path) -> None:
    write_dataset(tmp_path / "rows.jsonl", [chat("a", "b")])
    for flags, value in (
        ((), "<think>\n</think>\nb"),
        (("--empty_think=keep",), "<think>\n</think>\nb"),
        (("--empty-think=drop",), "b"),
    ):
        kiseki("export", "rows.jsonl", "--to=sharegpt", *flags, cwd=tmp_path)
        assert read_rows(tmp_path / "rows_sharegpt" / "train.jsonl")[0]["conversations"][-1]["value"] == value


def test_token_ids_are_made_anew_only_when_asked_for(tmp_path: Path) -> None:
    write_dataset(tmp_path / "rows.jsonl", [chat("a", "b")])
    done = kiseki("export", "rows.jsonl", "--to=rl", cwd=tmp_path, status=2)
    assert "(1 no token ids)" in done.stderr and "--retokenize" in done.stderr
    kiseki("export", "rows.jsonl", "--to=rl", f"--retokenize={chat_model(tmp_path)}", cwd=tmp_path)
    assert read_rows(tmp_path / "rows_rl" / "train.jsonl")[0]["retokenized"] is True


def started(folder: Path) -> tuple[Popen[str], int]:
    """An export that has written rows and waits for more: it reads a pipe. Its input has to be closed."""
    pipe = folder / "pipe.jsonl"
    os.mkfifo(pipe)
    going = start_kiseki("export", str(pipe), "--to=messages", "--out=out", cwd=folder)
    feed = os.open(pipe, os.O_WRONLY)
    os.write(feed, b"".join(json.dumps(chat(f"new {number}", "x")).encode() + b"\n" for number in range(100)))
    end = time.monotonic() + SECONDS
    while not list(folder.glob(".out.partial/rows.train.*")):
        assert going.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    return going, feed


def export_to_out(folder: Path, prompt: str) -> bytes:
    source = write_dataset(folder / "rows.jsonl", [chat(prompt, "b")])
    export(ExportJob(source=source, to="messages", out=folder / "out"))
    return (folder / "out" / "train.jsonl").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_export_leaves_the_earlier_one(tmp_path: Path, number: signal.Signals) -> None:
    before = export_to_out(tmp_path, "old")
    going, feed = started(tmp_path)
    going.send_signal(number)
    output, _ = going.communicate(timeout=SECONDS)
    os.close(feed)
    assert (going.returncode, output.splitlines()[-1]) == (130, "kiseki: interrupted")
    assert (tmp_path / "out" / "train.jsonl").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "pipe.jsonl", "rows.jsonl"]


def test_a_killed_export_leaves_the_earlier_one_and_no_half_file(tmp_path: Path) -> None:
    before = export_to_out(tmp_path, "old")
    going, feed = started(tmp_path)
    going.kill()
    going.communicate(timeout=SECONDS)
    os.close(feed)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.json", "train.jsonl"]
    assert (tmp_path / "out" / "train.jsonl").read_bytes() == before
    assert export_to_out(tmp_path, "new") != before
    assert not (tmp_path / ".out.partial").exists()


def test_a_disk_that_takes_no_more_leaves_the_earlier_one(tmp_path: Path) -> None:
    before = export_to_out(tmp_path, "old")
    write_dataset(tmp_path / "large.jsonl", [chat(f"new {number}", "x" * 10_000) for number in range(200)])
    command = f"ulimit -f 500; exec {sys.executable} -m kiseki export large.jsonl --to=messages --out=out"
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stderr) == (1, "kiseki: cannot write out: File too large\n")
    assert (tmp_path / "out" / "train.jsonl").read_bytes() == before
    assert not (tmp_path / ".out.partial").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    write_dataset(tmp_path / "rows.jsonl", [chat("a", "b")])
    done = kiseki("export", "rows.jsonl", "--to=messages", "--out=rows.jsonl/out", cwd=tmp_path, status=1)
    assert done.stderr == "kiseki: cannot write rows.jsonl/out: File exists\n"


def test_the_folder_that_one_is_in_can_be_the_target(tmp_path: Path) -> None:
    write_dataset(tmp_path / "rows.jsonl", [chat("a", "b")])
    (tmp_path / "here").mkdir()
    kiseki("export", "../rows.jsonl", "--to=messages", "--out=.", cwd=tmp_path / "here")
    assert report_of(tmp_path / "here")["written"] == {"train": 1}


def test_two_exports_into_one_place_are_kept_apart(tmp_path: Path) -> None:
    going, feed = started(tmp_path)
    with pytest.raises(UsageError, match=r"another export to .*out goes on"):
        export_to_out(tmp_path, "other")
    os.close(feed)
    going.communicate(timeout=SECONDS)
    assert going.returncode == 0
    assert report_of(tmp_path / "out")["written"] == {"train": 100}
