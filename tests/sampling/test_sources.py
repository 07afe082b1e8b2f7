"""Datasets of every kind, found by their entry and read from any position on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rows import write_rows, write_table

from kiseki.errors import DatasetError, UsageError
from kiseki.sampling import sources
from kiseki.sampling.sources import PAUSES, Chunk, Source, find_source, read_chunks

CARD = """\
---
configs:
- config_name: one
  data_files: [{split: train, path: one.parquet}]
- config_name: two
  data_files: [{split: train, path: two.parquet}, {split: best, path: best.parquet}]
---
"""


def row(number: int) -> dict[str, Any]:
    return {"id": number, "conversations": [{"from": "human", "value": f"q{number}"}, {"from": "gpt", "value": None}]}


def shards(folder: Path, count: int, size: int = 40, split: str = "train") -> Path:
    """A dataset folder as on the Hub; ids go on from shard to shard."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for shard in range(count):
        table = pa.Table.from_pylist([row(number) for number in range(shard * size, (shard + 1) * size)])
        write_table(folder / "data" / f"{split}-{shard:05}-of-{count:05}.parquet", table)
    return folder


def quiet(words: str) -> None:
    raise AssertionError(words)


def ids(chunk: Chunk) -> list[int]:
    return [json.loads(text)["id"] for text in chunk.rows]


def read(source: Source, position: Any = None) -> list[int]:
    return [each for chunk in read_chunks(source, position, 7, quiet) for each in ids(chunk)]


@pytest.mark.parametrize("kind", ["folder", "files"])
def test_reading_goes_on_from_any_position(tmp_path: Path, kind: str) -> None:
    if kind == "folder":
        folder = shards(tmp_path / "org" / "name", 3)
    else:
        folder = tmp_path / "rows"
        folder.mkdir()
        write_rows(folder / "b.jsonl.gz", map(row, range(40, 120)))
        write_rows(folder / "a.jsonl", map(row, range(40)))
        (folder / "README.md").write_text("no rows")
    source = find_source(str(folder), quiet)
    assert source.kind == kind
    assert read(source) == list(range(120))
    for chunk in read_chunks(source, None, 7, quiet):
        assert read(source, json.loads(json.dumps(chunk.position))) == list(range(ids(chunk)[-1] + 1, 120))
    position, seen = None, []
    while chunk_or_none := next(read_chunks(source, position, 7, quiet), None):  # interrupted after every chunk
        seen += ids(chunk_or_none)
        position = json.loads(json.dumps(chunk_or_none.position))
    assert seen == list(range(120))


@pytest.mark.parametrize("prefix", ["hf://", "hf://datasets/", "https://huggingface.co/datasets/", "https://hf.co/datasets/"])
def test_addresses_of_the_hub(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    asked: list[tuple[Any, ...]] = []

    def found(*arguments: Any) -> Any:
        asked.append(arguments)
        return ("c", "s") if len(arguments) == 3 else "sha"

    for name in ("commit_of", "find_parts", "open_stream"):
        monkeypatch.setattr(sources, name, found)
    source = find_source(f"{prefix}org/x:c:s@v1", quiet)
    assert source == Source(f"{prefix}org/x:c:s@v1", "hub", "org/x", "c", "s", version="sha")
    assert asked[:2] == [("org/x", "v1"), ("org/x", ["c", "s"], "sha")]


def test_large_rows_make_small_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CHUNK_BYTES", 500)
    path = write_rows(tmp_path / "a.jsonl", [{"text": "x" * 200}] * 7)
    assert [len(each.rows) for each in read_chunks(find_source(str(path), quiet), None, 100, quiet)] == [3, 3, 1]


def test_changed_files_are_another_source(tmp_path: Path) -> None:
    for path in (write_rows(tmp_path / "a.jsonl", [row(1)]), shards(tmp_path / "folder", 1)):
        before = find_source(str(path), quiet)
        assert find_source(str(path), quiet) == before
        if path.is_file():
            write_rows(path, [row(1), row(2)])
        else:
            shards(path, 2)
        assert find_source(str(path), quiet) != before


def test_a_single_part_is_a_split_or_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(CARD)
    for number, name in enumerate(("one", "two", "best")):
        write_table(tmp_path / f"{name}.parquet", pa.Table.from_pylist([row(number)]))
    for parts, first in ((":one", 0), (":two", 1), (":two:best", 2), (":one:train", 0)):
        source = find_source(f"{tmp_path}{parts}", quiet)
        assert read(source) == [first], parts
    for parts, says in (
        ("", "has the configurations one, two: say which, as .*:one$"),
        (":train", "has the configurations one, two: say which, as .*:one:train$"),
        (":nope", r"'nope' is neither a configuration \(one, two\) nor a split \(train\)"),
        (":two:nope", r"'nope' is no split of two \(train, best\)"),
        (":three:train", "has no configuration 'three', only one, two"),
    ):
        with pytest.raises(DatasetError, match=says):
            find_source(f"{tmp_path}{parts}", quiet)


def test_a_configuration_may_be_called_as_splits_are(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(CARD.replace("config_name: two", "config_name: dev_set\n  default: true"))
    for number, name in enumerate(("one", "two", "best")):
        write_table(tmp_path / f"{name}.parquet", pa.Table.from_pylist([row(number)]))
    assert [read(find_source(f"{tmp_path}{parts}", quiet)) for parts in (":dev_set", ":best", ":train")] == [[1], [2], [1]]
    with pytest.raises(DatasetError, match=r"'test' is neither a configuration \(one, dev_set\) nor a split \(train, best\)"):
        find_source(f"{tmp_path}:test", quiet)


def test_the_split_that_is_not_said(tmp_path: Path) -> None:
    only = shards(tmp_path / "only", 1, split="test")
    assert len(read(find_source(str(only), quiet))) == 40
    shards(only, 1, split="validation")
    with pytest.raises(DatasetError, match=r"has the splits validation, test: say which, as .*:validation"):
        find_source(str(only), quiet)
    shards(only, 2)
    assert len(read(find_source(str(only), quiet))) == 80
    with pytest.raises(DatasetError, match=r"'nope' is neither a configuration \(default\) nor a split \(train, "):
        find_source(f"{only}:nope", quiet)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("nope.jsonl", "dataset file not found: nope.jsonl"),
        ("./org/name", "dataset file not found: ./org/name"),
        ("a.csv", "a.csv holds rows in none of the formats .jsonl"),
        ("a.jsonl:train", "a.jsonl is a file, which has neither splits nor revisions"),
        ("folder@main", "folder is a local folder, which takes"),
        ("a b", "'a b' is neither a file or folder nor ORG/NAME"),
        ("org/name:a:b:c", "'org/name:a:b:c' is neither"),
        ("org/name:", "'org/name:' is neither"),
        ("folder", "cannot read the dataset folder: "),
    ],
)
def test_entries_that_stand_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "a.jsonl", [row(1)])
    (tmp_path / "a.csv").write_text("a,b\n")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError) as error:
        find_source(given, quiet)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_files_in_a_folder_have_splits_where_their_names_say_so(tmp_path: Path) -> None:
    for number, name in enumerate(("train-00000.jsonl", "train-00001.jsonl.gz", "test.jsonl", "my_dev.jsonl")):
        write_rows(tmp_path / name, [row(number)])
    assert [read(find_source(f"{tmp_path}{split}", quiet)) for split in ("", ":train", ":test", ":validation")] == [
        *([[0, 1]] * 2),
        [2],
        [3],
    ]
    with pytest.raises(DatasetError, match=r"'best' is neither a configuration \(default\) nor a split"):
        find_source(f"{tmp_path}:best", quiet)
    write_rows(tmp_path / "latest_evaluations.jsonl", [row(9)])  # "test" and "eval" are only part of a word
    warned: list[str] = []
    assert read(find_source(str(tmp_path), warned.append)) == [0, 1]
    assert warned == [f"{tmp_path}: the split train is read; no split's are, by their names, latest_evaluations.jsonl"]
    for name in ("train-00000.jsonl", "train-00001.jsonl.gz"):
        (tmp_path / name).unlink()
    with pytest.raises(DatasetError, match=r"has the splits validation, test: say which, as .*:validation"):
        find_source(str(tmp_path), quiet)
    for name in ("test.jsonl", "my_dev.jsonl"):
        (tmp_path / name).unlink()
    assert read(find_source(str(tmp_path), quiet)) == [9]


def test_a_folder_with_configurations_is_read_by_them(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(CARD.replace("one.parquet", "some.jsonl"))
    for number, name in enumerate(("some.jsonl", "other.jsonl")):
        write_rows(tmp_path / name, [row(number)])
    assert read(find_source(f"{tmp_path}:one", quiet)) == [0]


def test_what_the_job_writes_is_never_read(tmp_path: Path) -> None:
    raw, result = tmp_path / "x_raw", tmp_path / "x.jsonl"
    raw.mkdir()
    for number, name in enumerate(("a.jsonl", "x.jsonl", "a_rejects.jsonl", ".hidden.jsonl", "x_raw/sample.jsonl")):
        write_rows(tmp_path / name, [row(number)])
    (tmp_path / "link.jsonl").symlink_to(result)
    (tmp_path / "hard.jsonl").hardlink_to(result)
    assert read(find_source(str(tmp_path), quiet, (raw, result))) == [0]
    for given in (raw, result, raw / "sample.jsonl", tmp_path / "hard.jsonl", f"{raw}:train"):
        with pytest.raises(UsageError, match=r"is what this command writes; choose another --output_name or --output_dir"):
            find_source(str(given), quiet, (raw, result))
    served = shards(tmp_path / "served", 1)
    with pytest.raises(UsageError, match=r"this command would write into .*served, which it reads as a whole"):
        find_source(str(served), quiet, (served / "x_raw", served / "x.jsonl"))


MIXED: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}, {"role": "assistant", "content": "1", "n": 1.5}]},
    {"messages": [{"role": "tool", "content": '{"a": 1}', "name": "x"}]},
    {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "a", "arguments": {"b": 1}}}]}]},
    {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "a", "arguments": {"c": [2]}}}]}]},
]
CONTENTS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "1"}]},
    {"messages": [{"role": "user", "content": []}]},
]


def given_fields(value: Any) -> Any:
    """Without what is null: a table has every column in every row."""
    if isinstance(value, dict):
        return {name: given_fields(each) for name, each in value.items() if each is not None}
    return [given_fields(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_what_has_no_single_type_comes_as_it_is(tmp_path: Path, kind: str) -> None:
    """The library stores whole turns, contents and arguments as JSON text then."""
    for name, rows in {"turns": MIXED, "contents": CONTENTS}.items():
        data = tmp_path / name / "data"
        data.mkdir(parents=True)
        if kind == "jsonl":
            write_rows(data / "train.jsonl", rows)
        else:
            import datasets

            datasets.Dataset.from_list(rows, on_mixed_types="use_json").to_parquet(data / "train.parquet")
        source = find_source(str(tmp_path / name), quiet)
        assert source.kind == "folder"
        texts = [text for chunk in read_chunks(source, None, 9, quiet) for text in chunk.rows]
        assert [given_fields(json.loads(text)) for text in texts] == [given_fields(each) for each in rows]


def test_images_stay_as_they_are_stored(tmp_path: Path) -> None:
    kind = {"info": {"features": {"image": {"_type": "Image"}, "id": {"dtype": "int64", "_type": "Value"}}}}
    table = pa.table({"image": [{"bytes": b"no image", "path": "a.png"}], "id": [5]})
    (tmp_path / "data").mkdir()
    write_table(tmp_path / "data" / "train.parquet", table.replace_schema_metadata({"huggingface": json.dumps(kind)}))
    assert read(find_source(str(tmp_path), quiet)) == [5]


def test_a_bad_row_that_only_the_library_sees_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    for number in range(2):
        write_rows(tmp_path / "data" / f"train-{number}.jsonl", map(row, range(number * 5, number * 5 + 5)))
    with (tmp_path / "data" / "train-1.jsonl").open("a") as file:
        file.write('{"torn": \n')
    source = find_source(str(tmp_path), quiet)
    seen: list[int] = []
    with pytest.raises(DatasetError) as error:
        for chunk in read_chunks(source, None, 3, quiet):
            seen += ids(chunk)
    assert seen == list(range(5))
    for part in (
        f"cannot read the dataset {tmp_path}, train-1.jsonl, after row 5: ArrowInvalid: ",
        "name the file itself",
        "leave",
    ):
        assert part in str(error.value)
    assert "\n" not in str(error.value) and capfd.readouterr() == ("", "")
    assert read(find_source(str(tmp_path / "data" / "train-0.jsonl"), quiet)) == seen


def test_without_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"pip install 'kiseki\[hf\]'"):
        find_source("org/name", quiet)
    write_rows(tmp_path / "a.jsonl", [row(1)])
    assert len(read(find_source(str(tmp_path), quiet))) == 1  # files of rows need none


class Breaking:
    """The library's stream, torn after so many rows each time that it is opened."""

    def __init__(self, stream: Any, rows: int, error: Exception) -> None:
        self._stream, self._rows, self._error, self.features = stream, rows, error, stream.features
        self.load_state_dict, self.state_dict = stream.load_state_dict, stream.state_dict

    def __iter__(self) -> Any:
        for number, each in enumerate(self._stream):
            if number == self._rows:
                raise self._error
            yield each


def test_a_torn_stream_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = find_source(str(shards(tmp_path / "name", 2)), quiet)
    opened = sources._open
    monkeypatch.setattr(sources, "_open", lambda source: Breaking(opened(source), 30, ConnectionError("reset by peer")))
    warned: list[str] = []
    slept: list[float] = []
    chunks = read_chunks(source, None, 8, warned.append, slept.append)
    assert [each for chunk in chunks for each in ids(chunk)] == list(range(80))
    assert slept == [PAUSES[0]] * 2 and "ConnectionError: reset by peer; trying again in 1 s" in warned[0]


def test_a_stream_that_gives_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = find_source(str(shards(tmp_path / "name", 1)), quiet)
    opened = sources._open
    error: Exception = ConnectionError("reset by peer")
    monkeypatch.setattr(sources, "_open", lambda source: Breaking(opened(source), 0, error))
    slept: list[float] = []
    with pytest.raises(DatasetError, match=r"cannot read the dataset .*: ConnectionError: reset by peer"):
        list(read_chunks(source, None, 8, print, slept.append))
    assert slept == list(PAUSES)
    error = ValueError("a column\nis odd")
    with pytest.raises(DatasetError, match="ValueError: a column is odd"):  # which trying again does not change
        list(read_chunks(source, None, 8, print, slept.append))
    assert slept == list(PAUSES)
