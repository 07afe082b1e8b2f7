"""`kiseki sample` as its users run it: datasets in, one compressed file out, whatever happens on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from dataset_hub import dataset_hub
from rows import write_rows, write_table
from support import REPOSITORY, SECONDS, children, environment, kiseki, read_rows, start_kiseki

from kiseki.commands.main import main
from kiseki.compress.config import CompressionConfig
from kiseki.sampling.draw import draw_sample
from kiseki.sampling.folder import SAMPLE, Saved, Tally
from kiseki.sampling.job import SampleJob

LADDER = ("--strategy=ladder", "--target_max_tokens=1900", "--min_tokens=2000")
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def output(number: int) -> str:
    return "\n".join(f"line {at} of {number}: {at * number % 97}" for at in range(40))


def trajectory(number: int) -> list[dict[str, Any]]:
    """About 2,700 tokens in six steps; every fifth one is short."""
    turns = [{"from": "human", "value": f"Task {number}"}]
    for step in range(1 if number % 5 == 0 else 6):
        response = json.dumps({"tool_call_id": "c", "name": "look", "content": output(number + step)})
        call = '<tool_call>\n{"name": "look", "arguments": {"at": %d}}\n</tool_call>' % step  # noqa: UP031
        turns.append({"from": "gpt", "value": f"<think>\nstep {step}\n</think>\n{call}"})
        turns.append({"from": "tool", "value": f"<tool_response>\n{response}\n</tool_response>"})
    return [*turns, {"from": "gpt", "value": "<think>\n</think>\nDone."}]


def shards(folder: Path, count: int, size: int = 40) -> Path:
    (folder / "data").mkdir(parents=True)
    for shard in range(count):
        rows = [{"id": at, "conversations": trajectory(at)} for at in range(shard * size, (shard + 1) * size)]
        write_table(folder / "data" / f"train-{shard:05}-of-{count:05}.parquet", pa.Table.from_pylist(rows))
    return folder


def tally(progress: Path) -> Tally:
    return msgspec.json.decode(progress.read_bytes(), type=Saved).parts[0].tally


def test_datasets_of_two_layouts_become_one_compressed_file(tmp_path: Path) -> None:
    shards(tmp_path / "org" / "name", 2)
    roles = {"human": "user", "gpt": "assistant", "tool": "tool"}
    listed = [[{"role": roles[each["from"]], "content": each["value"]} for each in trajectory(at)] for at in range(70, 130)]
    write_rows(tmp_path / "more.jsonl.gz", [{"messages": turns, "level": "hard"} for turns in listed] + [{"text": "x"}])
    script = [sys.executable, str(REPOSITORY / "scripts" / "sample_and_compress.py")]
    flags = (*LADDER, "--datasets=org/name,more.jsonl.gz", "--total_samples=200", "--output-name", "mixed")
    done = subprocess.run(
        [*script, *flags], cwd=tmp_path, env=environment(**OFFLINE), capture_output=True, text=True, timeout=SECONDS
    )
    assert (done.returncode, done.stderr) == (0, "")
    for line in ("org/name 80 0 16 0 0 64", "more.jsonl.gz 61 1 12 8 0 40", "only 104 of the 200"):
        assert line in " ".join(done.stdout.split())
    assert "more.jsonl.gz: 1 rows are no trajectories; the first is row 61: there is no conversation" in done.stdout
    rows = read_rows(tmp_path / "data" / "mixed.jsonl")
    assert len(rows) == 104 and {tuple(row) for row in rows} == {tuple(rows[0])}
    assert sum(row["_source_dataset"] == "org/name" for row in rows) == 64
    assert all(row["level"] == (None if row["_source_dataset"] == "org/name" else "hard") for row in rows)
    assert all(row["_original_tokens"] == row["compression_metrics"]["original_tokens"] >= 2000 for row in rows)
    assert all(row["compression_metrics"]["compressed_tokens"] <= 1900 for row in rows)
    assert all([*turn] == ["from", "value"] for row in rows for turn in row["conversations"])

    import datasets

    loaded = datasets.load_dataset(
        "json", data_files=str(tmp_path / "data" / "mixed.jsonl"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert list(loaded) == rows
    assert "104 rows" not in done.stdout and "the datasets mix ShareGPT turns and chat messages: 40 rows became" in done.stdout
    again = kiseki("sample", *LADDER[:2], "--skip_download", "--output_name=mixed", cwd=tmp_path, COLUMNS="60")
    assert "is there already" in again.stdout
    shown = "".join(each for each in again.stdout if each.isalnum() or each in "./")
    assert "more.jsonl.gz" in shown and "…" not in again.stdout  # folded, not cut


def test_a_killed_download_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = shards(tmp_path / "served" / "org" / "name", 3)
    (served / "README.md").write_text("No metadata, which its library warns of.\n")
    flags = ("sample", *LADDER, "--datasets=org/name", "--total_samples=30", "--batch_size=10", "--num_proc=2")
    progress = tmp_path / "data" / "compressed_agentic_raw" / "progress.json"
    held, refused = {"train-00001-of-00003.parquet"}, {"train-00002-of-00003.parquet"}
    with dataset_hub({"org/name": served}, held=held, refused=refused) as address:
        cache = str(tmp_path / "cache")
        run = start_kiseki(*flags, cwd=tmp_path, HF_ENDPOINT=address, HF_HOME=cache)
        try:
            while not progress.exists() or not tally(progress).rows:
                assert run.poll() is None, run.communicate()
                time.sleep(0.01)
            workers = children(run.pid)
        finally:
            os.kill(run.pid, signal.SIGKILL)
            run.wait()
        held.clear()
        failed = kiseki(*flags, cwd=tmp_path, status=2, HF_ENDPOINT=address, HF_HOME=cache)
        assert failed.stderr.startswith("kiseki: cannot read the dataset org/name: ") and failed.stderr.count("\n") == 1
        assert tally(progress).rows == 80  # what was read is kept
        unknown = kiseki("sample", "--strategy=ladder", "--datasets=org/nope", cwd=tmp_path, status=2, HF_ENDPOINT=address)
        assert unknown.stderr.startswith("kiseki: cannot read the dataset org/nope: ") and unknown.stderr.count("\n") == 1
        assert "it is no local path either: check the name, the network or proxy, and HF_TOKEN" in unknown.stderr
        refused.clear()
        kiseki(*flags, cwd=tmp_path, HF_ENDPOINT=address, HF_HOME=cache)
    assert workers and not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
    monkeypatch.chdir(tmp_path / "served")
    job = SampleJob(("org/name",), tmp_path / "whole", total_samples=30, min_tokens=2000)
    [whole] = draw_sample(job, CompressionConfig(), lambda at, tally: None, print)  # the same from the disk, in one piece
    assert tally(progress) == whole.tally and whole.tally.rows == 120
    assert progress.with_name(SAMPLE).read_bytes() == (tmp_path / "whole" / SAMPLE).read_bytes()
    assert len(read_rows(tmp_path / "data" / "compressed_agentic.jsonl")) == 30


def test_nobodys_file_is_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    rows = [{"conversations": trajectory(at)} for at in range(1, 4)]
    mine = write_rows(data / "compressed_agentic.jsonl", rows).read_bytes()
    flags = ("sample", *LADDER, "--num_proc=1")

    def refused(*more: str) -> str:
        before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
        assert main([*flags, *more]) == 2
        assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
        return capsys.readouterr().err

    says = "compressed_agentic.jsonl is there, and this command has not made it as it is"
    write_rows(data / "other.jsonl", rows)
    for datasets in ("data/compressed_agentic.jsonl", "data", "data/other.jsonl"):
        assert says in refused(f"--datasets={datasets}")
    (data / "x_raw").write_text("")
    assert "data/x_raw is a file, and a folder is needed" in refused("--datasets=data", "--output_name=x")
    (data / "y.jsonl").mkdir()
    assert "data/y.jsonl is a folder, and a file is to be written" in refused("--datasets=data", "--output_name=y")
    assert "data/x_raw is a file" in refused("--datasets=data", "--output_dir=data/x_raw")

    made = ("--datasets=data", "--output_name=made")  # its own result does not become its input
    for _ in range(2):
        assert main([*flags, *made]) == 0
    assert "is there already" in capsys.readouterr().out
    assert main([*flags, *made, "--total_samples=2"]) == 0
    assert len(read_rows(data / "made.jsonl")) == 2
    assert tally(data / "made_raw" / "progress.json").rows == 6
    assert "is what this command writes" in refused("--datasets=data/made_raw/sample.jsonl", "--output_name=made")
    with (data / "made.jsonl").open("a") as file:
        file.write("{}\n")
    assert "made.jsonl is there, and this command has not made it" in refused(*made)
    assert (data / "compressed_agentic.jsonl").read_bytes() == mine


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--output_name=../x",), "--output_name: '../x' cannot be used: it must be a name, without a folder"),
        (("--output_name=..",), "it must be a name"),
        (("--total_samples=0",), "it must be at least 1"),
        (("--datasets=,",), "--datasets names none"),
        (("--datasets=nope.jsonl", "--strategy=ladder"), "dataset file not found: nope.jsonl"),
        (("--config=nope.yaml",), "there is no file nope.yaml"),
        ((), "no API key for openrouter.ai"),  # before the datasets are read
        (("--skip_download", "--strategy=ladder"), "--skip_download: data/compressed_agentic_raw has no raw sample"),
        (("--dataset=x",), "did you mean --datasets?"),
    ],
)
def test_what_cannot_be_used(
    flags: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENROUTER_API_KEY", raising=False)
    assert main(["sample", *flags]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
    assert not list(tmp_path.rglob("*.jsonl"))


def test_without_a_network_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert main(["sample", "--strategy=ladder"]) == 2
    words = "kiseki: cannot read the dataset NousResearch/swe-terminus-agent-glm-kimi-minimax: OfflineModeIsEnabled: "
    assert capsys.readouterr().err.startswith(words)
