"""The merged file: dataset order over any number of batches, one schema from first row to last, any text survives."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import datasets
import pytest
from support import FAST, kiseki, light_tools, read_rows, write_dataset

from kiseki.batch.prompts import read_prompts, to_prompt
from kiseki.errors import DatasetError
from kiseki.models.mock_server import MockServer
from kiseki.trajectory.types import Prompt

HOSTILE = [
    "<think>literal</think>",
    "</tool_call> and </tool_response> and <tool_call>\n{}",
    "line\u2028paragraph\u2029next\u0085line",
    "\ud83d lone",
    "\x1b[31mred\x1b[0m \x00 nul",
    "日本語の 依頼",
    "2026-01-15T10:30:00",
    "NaN",
]


def base(folder: Path, server: MockServer, *more: str) -> tuple[str, ...]:
    light = light_tools(folder)
    flags = ("batch", "--dataset_file=p.jsonl", "--run_name=r", f"--base_url={server.base_url}", "--model=mock")
    return (*flags, *FAST, *light, *more)


def test_twelve_batches_merge_in_dataset_order(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"prompt {number}"} for number in range(36)])
    with MockServer(turns=1, jitter=0.05) as server:
        kiseki(*base(tmp_path, server, "--batch_size=3"), cwd=tmp_path)
    folder = tmp_path / "data/r"
    assert len(list(folder.glob("batch_*.jsonl"))) == 12
    merged = (folder / "trajectories.jsonl").read_bytes()
    assert [json.loads(line)["prompt_index"] for line in merged.splitlines()] == list(range(36))
    assert b"".join((folder / f"batch_{number}.jsonl").read_bytes() for number in range(12)) == merged
    checkpoint = json.loads((folder / "checkpoint.json").read_text())
    assert checkpoint["completed_prompts"] == [[0, 35]]
    assert len(checkpoint["batch_stats"]) == 12


def test_every_view_can_be_deleted_and_made_again(tmp_path: Path) -> None:
    write_dataset(tmp_path / "p.jsonl", [{"prompt": f"prompt {number}"} for number in range(5)])
    with MockServer(turns=1) as server:
        kiseki(*base(tmp_path, server, "--batch_size=2"), cwd=tmp_path)
    folder = tmp_path / "data/r"
    kept = tmp_path / "kept"
    kept.mkdir()
    views = [path for path in folder.iterdir() if path.suffix in (".json", ".jsonl")]
    assert len(views) == 6
    for path in views:
        shutil.move(path, kept / path.name)
    done = kiseki("merge", "data/r", cwd=tmp_path)
    assert "Outcomes" in done.stdout
    for path in views:
        before, after = (kept / path.name).read_text(), path.read_text()
        if path.suffix == ".jsonl":
            assert before == after, path.name
        else:
            times = {"last_updated": "", "completed_at": ""}
            assert json.loads(before) | times == json.loads(after) | times


def test_any_text_survives_and_the_file_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Any] = [{"prompt": text, "extra": {"nested": text}, str(n): n} for n, text in enumerate(HOSTILE)]
    write_dataset(tmp_path / "p.jsonl", rows)
    echo = {"tool_calls": [{"name": "shout", "arguments": {"text": "{{prompt}}"}}], "content": "{{prompt}}"}
    turns = [{"reasoning": "{{prompt}}", **echo}, {"content": "{{last_tool_result}} {{prompt}}", "reasoning": "so"}]
    with MockServer(script=[{"turns": turns}]) as server:
        kiseki(*base(tmp_path, server, "--batch_size=3"), cwd=tmp_path)
    path = tmp_path / "data/r/trajectories.jsonl"
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) == len(HOSTILE), "also for readers that split at U+2028"
    merged = read_rows(path)
    for row, prompt in zip(merged, HOSTILE, strict=True):
        clean = prompt.replace("\ud83d", "\ufffd")
        assert row["prompt"] == clean
        assert row["conversations"][1] == {"from": "human", "value": clean}
        assert json.loads(row["metadata"]["source"])["extra"] == {"nested": clean}
        result = row["conversations"][3]["value"]
        content = json.loads(result.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>"))["content"]
        assert content == clean.upper()
        assert row["conversations"][2]["value"].count("</think>") == 1
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    loaded = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded.num_rows == len(HOSTILE)
    assert loaded[2]["conversations"][1]["value"] == HOSTILE[2]


def test_dataset_formats(tmp_path: Path) -> None:
    """The same prompts from each kind of file."""
    import gzip

    import pyarrow as pa
    import pyarrow.parquet
    import zstandard

    lines = b'{"prompt": "one", "n": 1}\n\n{"prompt": "two", "n": 2}\n'
    (tmp_path / "p.jsonl").write_bytes(b"\xef\xbb\xbf" + lines)
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "p.jsonl.zst").write_bytes(zstandard.compress(lines))
    (tmp_path / "p.csv").write_text('prompt,n\n"one",1\ntwo,2\n')
    pyarrow.parquet.write_table(pa.table({"prompt": ["one", "two"], "n": [1, 2]}), tmp_path / "p.parquet")
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "train.jsonl").write_bytes(lines.replace(b"\n\n", b"\n"))
    home = str(tmp_path / "home")
    with MockServer(turns=0) as server:
        for number, name in enumerate(("p.jsonl", "p.jsonl.gz", "p.jsonl.zst", "p.csv", "p.parquet", "hf://./hub")):
            more = (f"--dataset_file={name}", f"--run_name=r{number}", "--batch_size=5")
            kiseki(*base(tmp_path, server, *more), cwd=tmp_path, HF_HUB_OFFLINE="1", HF_HOME=home)
            rows = read_rows(tmp_path / f"data/r{number}/trajectories.jsonl")
            assert [(row["prompt"], int(json.loads(row["metadata"]["source"])["n"])) for row in rows] == [("one", 1), ("two", 2)]


@pytest.mark.parametrize(
    "name", ["p.csv", "p.csv.gz", "p.csv.zst", "p.jsonl", "p.csv.jsonl", "p.csv.jsonl.gz", "p.parquet.jsonl"]
)
def test_the_last_suffix_but_for_compression_is_the_format(tmp_path: Path, name: str) -> None:
    import gzip

    import zstandard

    text = b'{"prompt": "one"}\n' if ".jsonl" in name else b"prompt\none\n"
    packed = {".gz": gzip.compress(text), ".zst": zstandard.compress(text)}
    (tmp_path / name).write_bytes(packed.get(Path(name).suffix, text))
    (row,) = read_prompts(str(tmp_path / name))
    assert isinstance(row, Prompt), row
    assert row.text == "one"


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_parquet_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"p.parquet{suffix}"
    path.write_bytes(b"")
    with pytest.raises(DatasetError, match=f"not inside {suffix}: unpack"):
        next(read_prompts(str(path)))


def test_rows_without_other_columns_have_an_empty_source() -> None:
    assert to_prompt(0, {"prompt": "x", "cwd": "/w", "image": None}).source == "{}"
    assert to_prompt(0, {"prompt": "x", "n": 1}).source == '{"n":1}'
    with pytest.raises(ValueError, match="message 1 in 'prompt' has the role 'narrator'"):
        to_prompt(0, {"prompt": [{"role": "user", "content": "x"}, {"from": "narrator", "value": "x"}]})
