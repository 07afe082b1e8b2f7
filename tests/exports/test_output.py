"""Where exports go: names, kinds of files, what is replaced and what is never touched."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
import zstandard
from exporting import answers, chat, export_rows, left_out, prompts, written
from support import write_dataset

from kiseki.errors import DatasetError, UsageError
from kiseki.exports.export import export
from kiseki.exports.job import REPORT, ExportJob, ExportReport
from kiseki.formats.table import FORMATS

ROWS = [chat(f"p{number}", "look", f"a{number}") for number in range(5)]


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_the_report_says_what_was_done(tmp_path: Path) -> None:
    report = export_rows(tmp_path, [*ROWS, "{torn", '{"text": "no conversation"}'], split="train=0.5,val=0.5", min_turns=1)
    there = msgspec.json.decode((tmp_path / "out" / "report.json").read_bytes(), type=ExportReport)
    assert there == report
    assert report.settings == {"out": str(tmp_path / "out"), "min_turns": 1, "split": "train=0.5,val=0.5", "seed": 42}
    assert (report.read, report.total_written, report.left_out) == (7, 5, {"unreadable row": 2})
    assert [each["key"] for each in left_out(tmp_path)] == ["rows.jsonl:6", "rows.jsonl:7"]
    for file in report.files:
        path = tmp_path / "out" / file.name
        assert (file.bytes, file.rows) == (path.stat().st_size, len(written(tmp_path, file.name)))
    assert report.format == "messages" and report.source_kind == "files" and report.date.endswith("+00:00")


def test_cut_tails_are_counted(tmp_path: Path) -> None:
    open_end = {"messages": chat("x", "look", "gone")["messages"][:-1]}
    no_answer = {"messages": [{"role": "user", "content": "x"}]}
    report = export_rows(tmp_path, [ROWS[0], open_end, no_answer], to="openai")
    assert (report.cut_tails, report.left_out) == (1, {"no assistant turn": 1})
    assert [row["messages"][-1]["role"] for row in written(tmp_path)] == ["assistant", "assistant"]
    assert export_rows(tmp_path, [ROWS[0], open_end, no_answer], to="trl", compression="gz").cut_tails == 0


def test_shards_are_named_as_hugging_face_has_them(tmp_path: Path) -> None:
    report = export_rows(tmp_path, ROWS, shard_rows=2)
    shards = [f"train-{number:05}-of-00003.jsonl" for number in range(3)]
    assert [(file.name, file.rows) for file in report.files] == list(zip(shards, (2, 2, 1), strict=True))
    assert [name for shard in shards for name in prompts(tmp_path, shard)] == [f"p{number}" for number in range(5)]
    export_rows(tmp_path, ROWS, shard_rows=3)
    assert names(tmp_path / "out") == ["report.json", "train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"]
    export_rows(tmp_path, ROWS)
    assert names(tmp_path / "out") == ["report.json", "train.jsonl"]


def test_json_lines_can_be_compressed(tmp_path: Path) -> None:
    for compression, unpack in (("gz", gzip.decompress), ("zst", unzstd)):
        report = export_rows(tmp_path, ROWS, compression=compression)
        assert names(tmp_path / "out") == ["report.json", f"train.jsonl.{compression}"]
        lines = unpack((tmp_path / "out" / report.files[0].name).read_bytes()).splitlines()
        assert [json.loads(line)["messages"][0]["content"] for line in lines] == [f"p{number}" for number in range(5)]
    assert export_rows(tmp_path, ROWS, to="trl", compression="gz").files[0].name == "train.jsonl.gz"
    with pytest.raises(UsageError, match="--compression is for JSON lines; parquet is parquet"):
        export_rows(tmp_path, ROWS, to="parquet", compression="gz")


def unzstd(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(data)


def test_parquet_has_the_columns_of_the_format(tmp_path: Path) -> None:
    from kiseki.formats.table import find_format

    schema = find_format("parquet").schema
    assert schema is not None
    export_rows(tmp_path, ROWS, to="parquet", shard_rows=2)
    tables = [pq.read_table(path) for path in sorted((tmp_path / "out").glob("*.parquet"))]
    assert [table.num_rows for table in tables] == [2, 2, 1]
    assert all(table.schema.equals(schema()) for table in tables)
    metadata = pq.read_metadata(tmp_path / "out" / "train-00000-of-00003.parquet")
    assert metadata.row_group(0).column(0).compression == "ZSTD"


def test_one_file_has_its_reports_beside_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    source = write_dataset(tmp_path / "rows.jsonl", [*ROWS, "{"])
    for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl.zst"):
        report = export(ExportJob(source=source, to="messages", out=tmp_path / name))
        assert {name, f"{name}.report.json", f"{name}.left_out.jsonl"} <= {*names(tmp_path)}
        assert [file.name for file in report.files] == [name]
        again = export(ExportJob(source=tmp_path / name, to="messages", out=tmp_path / "again"))
        assert again.written == {"train": 5}
    export(ExportJob(source=source, to="parquet", out=tmp_path / "d.parquet"))
    assert pq.read_table(tmp_path / "d.parquet").num_rows == 5
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"out": "x.parquet", "to": "atif"}, "written as .jsonl, not as .parquet"),
        ({"out": "x.json"}, "ends in .jsonl"),
        ({"out": "x.jsonl", "split": "a=0.5,b=0.5"}, "--split needs several files"),
        ({"out": "x.jsonl", "shard_rows": 3}, "--shard_rows needs several files"),
        ({"out": "x.jsonl", "compression": "gz"}, "says it already"),
        ({"out": "rows.jsonl"}, "is what is read"),
        ({"out": "x.jsonl", "to": "sts"}, "a file for each row"),
        ({"to": "sts", "shard_rows": 3}, "a file for each row"),
        ({"to": "mesages"}, "did you mean messages"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    source = write_dataset(tmp_path / "rows.jsonl", ROWS)
    before = names(tmp_path)
    job = {"to": "messages"} | options | {"out": tmp_path / options.get("out", "out")}
    with pytest.raises(UsageError, match=words):
        export(ExportJob(source=source, **job))
    assert names(tmp_path) == before


def test_each_row_a_file_of_its_own(tmp_path: Path) -> None:
    report = export_rows(tmp_path, ROWS * 210, to="sts")
    (entry,) = report.files
    folders = sorted((tmp_path / "out" / "train").iterdir())
    assert [len(list(folder.iterdir())) for folder in folders] == [1000, 50]
    assert (entry.name, entry.rows, entry.files) == ("train/", 1050, 1050)
    assert entry.bytes == sum(path.stat().st_size for folder in folders for path in folder.iterdir())
    export_rows(tmp_path, ROWS, to="sts")
    assert len(list((tmp_path / "out" / "train").rglob("*.jsonl"))) == 5
    (tmp_path / "out" / "train" / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="has files that no export made"):
        export_rows(tmp_path, ROWS, to="sts")
    assert (tmp_path / "out" / "train" / "mine.txt").read_text() == "mine"


def test_what_the_consumer_wants_beside_the_data(tmp_path: Path) -> None:
    report = export_rows(tmp_path, ROWS, to="llamafactory", split="train=0.5,val=0.5")
    listed = json.loads((tmp_path / "out" / "dataset_info.json").read_text())
    assert {each["file_name"] for each in listed.values()} == {file.name for file in report.files if file.split}


@pytest.mark.parametrize("name", ["train.jsonl", "other.jsonl", "report.json", "x.parquet", "left_out.jsonl"])
def test_files_that_no_export_made_are_never_touched(tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(UsageError, match=f"{name} is"):
        export_rows(tmp_path, ROWS)
    assert (names(tmp_path / "out"), (tmp_path / "out" / name).read_text()) == ([name], "mine")


def test_other_files_stay_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "out" / ".cache").mkdir(parents=True)
    (tmp_path / "out" / "README.md").write_text("mine")
    for _ in range(2):
        export_rows(tmp_path, ROWS)
    assert names(tmp_path / "out") == [".cache", "README.md", "report.json", "train.jsonl"]
    with pytest.raises(UsageError, match="no earlier export made it"):
        export(ExportJob(source=tmp_path / "rows.jsonl", to="messages", out=write_dataset(tmp_path / "x.jsonl", ["mine"])))
    assert (tmp_path / "x.jsonl").read_text() == "mine\n"


def test_nothing_to_write_is_an_error_and_leaves_the_earlier_export(tmp_path: Path) -> None:
    export_rows(tmp_path, ROWS)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(DatasetError, match=r"all 5 examples are left out \(5 too few turns\); the first is rows.jsonl:1: 2"):
        export_rows(tmp_path, ROWS, min_turns=9)
    with pytest.raises(DatasetError, match="has no examples"):
        export_rows(tmp_path, [])
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert names(tmp_path) == ["out", "rows.jsonl"]


def test_an_export_that_was_cut_off_while_it_took_its_place_is_finished(tmp_path: Path) -> None:
    """As a kill leaves it: the plan is there, of two files one is moved, and the old ones are not all gone."""
    export_rows(tmp_path, ROWS, shard_rows=3)
    partial = tmp_path / ".out.partial"
    partial.mkdir()
    new = [f"train-{number:05}-of-00002.jsonl" for number in range(2)]
    (tmp_path / "out" / new[0]).write_text("new 0")
    (partial / new[1]).write_text("new 1")
    report = msgspec.json.decode((tmp_path / "out" / "report.json").read_bytes(), type=ExportReport)
    (partial / "report.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(report, kiseki="new")))
    (partial / "plan.json").write_text(json.dumps({"moves": [*new, "report.json"], "removals": ["train.jsonl"]}))
    with pytest.raises(DatasetError):
        export_rows(tmp_path, ROWS, min_turns=9)
    assert [(tmp_path / "out" / name).read_text() for name in new] == ["new 0", "new 1"]
    assert json.loads((tmp_path / "out" / "report.json").read_text())["kiseki"] == "new"
    assert not partial.exists()
    export_rows(tmp_path, ROWS)
    assert answers(tmp_path) == [f"a{number}" for number in range(5)]


def test_a_folder_of_files_is_read_without_the_reports_in_it(tmp_path: Path) -> None:
    export_rows(tmp_path, [*ROWS, "{"], shard_rows=2)
    report = export(ExportJob(source=tmp_path / "out", to="sharegpt"))
    assert (report.read, report.written) == (5, {"train": 5})
    assert names(tmp_path / "out" / "exports" / "sharegpt") == ["report.json", "train.jsonl"]


def test_datasets_loads_the_folder_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    import datasets

    export_rows(tmp_path, [*ROWS, "{"], split="train=0.5,val=0.5")
    loaded = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert {name: len(rows) for name, rows in loaded.items()} == {
        "train": len(written(tmp_path)),
        "validation": len(written(tmp_path, "val.jsonl")),
    }


@pytest.mark.parametrize(
    ("split", "shards"), [("dev=0.5,holdout=0.5", None), ("train=0.5,holdout=0.5", 2), ("train_a=0.5,train_b=0.5", None)]
)
@pytest.mark.parametrize("kind", ["messages", "parquet"])
def test_datasets_loads_splits_of_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str, shards: int | None, kind: str
) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    import datasets

    rows = [chat(f"p{number}", "look", f"a{number}") for number in range(12)]
    report = export_rows(tmp_path, [*rows, "{"], to=kind, split=split, shard_rows=shards)
    assert min(report.written.values()) > 2
    loaded = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert {name: len(rows) for name, rows in loaded.items()} == report.written
    export_rows(tmp_path, rows, to=kind, split="train=0.5,val=0.5")
    assert "README.md" not in names(tmp_path / "out")


def test_a_readme_that_no_export_made_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "README.md").write_text("mine")
    with pytest.raises(UsageError, match=r"README\.md is there"):
        export_rows(tmp_path, ROWS, split="train=0.5,holdout=0.5")
    assert names(tmp_path / "out") == ["README.md"]


def test_files_of_rows_that_want_the_same_name(tmp_path: Path) -> None:
    export_rows(tmp_path, [chat(f"p{number}", "a", prompt_index=7) for number in range(300)], to="sts")
    (folder,) = (tmp_path / "out" / "train").iterdir()
    assert set(names(folder)) == {"000007-000.jsonl", *(f"000007-000-{number}.jsonl" for number in range(2, 301))}


def test_what_was_asked_for_and_not_found_is_counted_too(tmp_path: Path) -> None:
    report = export_rows(tmp_path, ROWS, drop=("loops", "truncated"), dedup="near")
    assert report.left_out == {"loop": 0, "truncated": 0, "near duplicate": 0}
    assert names(tmp_path / "out") == ["report.json", "train.jsonl"]


def test_names_in_a_report_of_anybodys_lead_nowhere_else(tmp_path: Path) -> None:
    export_rows(tmp_path, [chat("q", "a")])
    (tmp_path / "victim").mkdir()
    path = tmp_path / "out" / REPORT
    report = json.loads(path.read_text())
    report["files"].append(report["files"][0] | {"name": "../victim/"})
    path.write_text(json.dumps(report))
    with pytest.raises(UsageError, match="is no report of an export"):
        export_rows(tmp_path, [chat("q", "a")])
    assert (tmp_path / "victim").is_dir()


@pytest.mark.parametrize("to", ["llamafactory", "openai"])
def test_files_of_consumers_that_unpack_nothing_are_not_packed(tmp_path: Path, to: str) -> None:
    for options in ({"compression": "gz"}, {"out": tmp_path / "x.jsonl.gz"}):
        with pytest.raises(UsageError, match="no packed files"):
            export_rows(tmp_path, [chat("q", "a")], to, **options)


@pytest.mark.parametrize("to", [name for name in FORMATS if name not in ("verl-rl", "rl")])
def test_rows_in_which_nobody_answers_are_left_out(tmp_path: Path, to: str) -> None:
    report = export_rows(tmp_path, [{"messages": [{"role": "user", "content": "q"}]}, chat("q", "a")], to)
    assert report.left_out == {"no assistant turn": 1}


def test_files_of_one_name_and_two_kinds_are_two_exports(tmp_path: Path) -> None:
    for name in ("x.parquet", "x.jsonl", "x.jsonl.gz", "x.parquet"):
        export_rows(tmp_path, ROWS, out=tmp_path / name)
    assert {"x.parquet", "x.jsonl", "x.jsonl.gz"} <= {*names(tmp_path)}
