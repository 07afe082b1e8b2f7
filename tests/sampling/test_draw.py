"""A sample depends on its seed and the rows, on nothing else."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import read_all, write_rows
from sampling.samples import COUNTER, LONG, MIN_TOKENS, SHORT, draw, messages, sample, sharegpt

from kiseki.compress.config import CompressionConfig
from kiseki.errors import DatasetError, UsageError
from kiseki.sampling.draw import draw_sample, shares
from kiseki.sampling.folder import SAMPLE, Tally, differences
from kiseki.sampling.job import SampleJob
from kiseki.sampling.resume import find_finished, settings_of
from kiseki.trajectory.tokens import Tokenizer


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows.jsonl", [sharegpt(number, LONG if number % 3 else SHORT) for number in range(150)])


def test_a_seed_draws_the_same_rows_however_they_come(tmp_path: Path, rows: Path) -> None:
    drawn = sample(tmp_path, rows)
    assert len(drawn) == 20 and len({row["id"] for row in drawn}) == 20
    for row in drawn:
        assert row["id"] % 3 and row["_source_dataset"] == str(rows)
        assert row["_original_tokens"] == sum(COUNTER.count(turn["value"]) for turn in row["conversations"]) >= MIN_TOKENS
        assert row["conversations"] == sharegpt(row["id"])["conversations"]
    tallies = [
        draw(tmp_path, rows, raw=f"p{num_proc}", num_proc=num_proc, batch_size=size) for num_proc, size in ((1, 1), (3, 4))
    ]
    assert tallies[0][0].tally == tallies[1][0].tally == draw(tmp_path, rows)[0].tally
    assert read_all(tmp_path / "p1" / SAMPLE) == read_all(tmp_path / "p3" / SAMPLE) == drawn
    lines = rows.read_bytes().splitlines()
    random.Random(1).shuffle(lines)
    rows.write_bytes(b"\n".join(lines))
    assert sample(tmp_path, rows, raw="shuffled") == drawn
    assert {row["id"] for row in sample(tmp_path, rows, raw="seed", seed=43)} != {row["id"] for row in drawn}


def test_every_row_is_as_likely(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [sharegpt(number, 1) for number in range(60)])
    times = [0] * 60
    for seed in range(40):
        for row in sample(tmp_path, rows, raw=f"raw{seed}", seed=seed, min_tokens=0, total_samples=15):
            times[row["id"]] += 1
    assert sum(times) == 600 and max(times) <= 22 and min(times) >= 1  # 10 each, with a deviation of 2.7


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6), st.integers(1, 120))
def test_shares_are_fair(available: list[int], total: int) -> None:
    given = shares(available, total)
    assert sum(given) == min(total, sum(available))
    assert all(0 <= each <= room for each, room in zip(given, available, strict=True))
    least = max(given) - 1
    assert all(each >= least or each == room for each, room in zip(given, available, strict=True))


def test_what_one_dataset_lacks_the_others_give(tmp_path: Path) -> None:
    few = write_rows(tmp_path / "few.jsonl", [sharegpt(number) for number in range(4)])
    many = write_rows(tmp_path / "many.jsonl", [sharegpt(number) for number in range(100, 200)])
    none = write_rows(tmp_path / "none.jsonl", [sharegpt(number, SHORT) for number in range(200, 210)])
    parts = draw(tmp_path, few, none, many)
    assert [part.tally.taken for part in parts] == [4, 0, 16]
    assert [part.tally.short for part in parts] == [0, 10, 0]


def test_a_conversation_is_taken_once_from_the_first_that_has_it(tmp_path: Path) -> None:
    first = write_rows(tmp_path / "first.jsonl", [sharegpt(number % 8) for number in range(16)])
    second = write_rows(tmp_path / "second.jsonl", [messages(number) for number in range(4, 12)])
    notes: list[str] = []
    drawn = sample(tmp_path, first, second, raw="ab", note=notes.append)
    words = "the datasets mix ShareGPT turns and chat messages: 4 rows became ShareGPT turns in the column 'conversations'"
    assert notes == [words]
    assert sorted(row["conversations"][0]["value"] for row in drawn) == sorted(f"Task {number}" for number in range(12))
    assert sum(row["_source_dataset"] == str(first) for row in drawn) == 8
    assert [part.tally.duplicates for part in draw(tmp_path, first, second, raw="ab")] == [8, 4]
    assert [part.tally.taken for part in draw(tmp_path, second, first, raw="ba", note=notes.append)] == [8, 4]


def test_rows_that_are_no_trajectories_are_counted_and_named(tmp_path: Path) -> None:
    notes: list[str] = []
    lines = [json.dumps(sharegpt(1)), "{torn", '{"conversations": []}', '{"text": "x"}', json.dumps(sharegpt(2))]
    lines += ['{"conversations": [{"from": "ghost", "value": "x"}]}', json.dumps(json.dumps(sharegpt(3)))]
    lines += [json.dumps({"messages": json.dumps(messages(4)["messages"])})]  # the list as text is one
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    [part] = draw(tmp_path, tmp_path / "rows.jsonl", note=notes.append)
    assert (part.tally.rows, part.tally.bad, part.tally.taken) == (8, 5, 3)
    assert part.tally.problem.startswith("row 2: ")


def test_nothing_to_take_is_an_error_with_the_reason(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", [sharegpt(1, SHORT), {"text": "x"}])
    with pytest.raises(DatasetError, match=r"not one of 2 rows is a trajectory of at least 100 tokens.*row 2: there is no conv"):
        draw(tmp_path, rows)
    with pytest.raises(UsageError, match="more than once"):
        draw(tmp_path, rows, rows)


# ---- interruptions ----------------------------------------------------------------------------------------------------


class Stop(BaseException):
    pass


@pytest.mark.parametrize(("num_proc", "every"), [(1, 3), (2, 13)])
def test_an_interrupted_draw_ends_as_if_it_had_not_been(tmp_path: Path, rows: Path, num_proc: int, every: int) -> None:
    other = write_rows(tmp_path / "other.jsonl", [messages(number) for number in range(100, 220)])
    notes: list[str] = []
    whole = draw(tmp_path, rows, other, raw="whole", note=notes.append)
    calls = 0
    read = 0

    def watch(at: int, tally: Tally) -> None:
        nonlocal calls, read
        calls += 1
        read += 1
        if calls % every == 0:
            raise Stop

    for _ in range(40):
        try:
            parts = draw(tmp_path, rows, other, watch=watch, num_proc=num_proc, note=notes.append)
        except Stop:
            calls = 0
            continue
        break
    assert [part.tally for part in parts] == [part.tally for part in whole]
    assert (tmp_path / "raw" / SAMPLE).read_bytes() == (tmp_path / "whole" / SAMPLE).read_bytes()
    assert read == -(-150 // 9) + -(-120 // 9)  # no chunk twice
    assert sorted(path.name for path in (tmp_path / "raw").iterdir()) == ["lock", "progress.json", SAMPLE]


def test_other_settings_begin_afresh(tmp_path: Path, rows: Path) -> None:
    def interrupt(at: int, tally: Tally) -> None:
        if tally.rows > 50:
            raise Stop

    with pytest.raises(Stop):
        draw(tmp_path, rows, watch=interrupt, seed=1)
    notes: list[str] = []
    drawn = sample(tmp_path, rows, note=notes.append)
    assert drawn == sample(tmp_path, rows, raw="fresh")
    assert notes == [f"{tmp_path / 'raw'} holds a sample made with seed 1, not 42: it is drawn afresh"]
    with rows.open("ab") as file:
        file.write(msgspec.json.encode(sharegpt(1000)))
    assert draw(tmp_path, rows, note=notes.append)[0].tally.rows == 151
    assert "as it was before: it is drawn afresh" in notes[-1]


def test_what_is_there_stays_when_the_new_datasets_are_not(tmp_path: Path, rows: Path) -> None:
    drawn = sample(tmp_path, rows)
    with pytest.raises(DatasetError, match="not found"):
        draw(tmp_path, rows, tmp_path / "nope.jsonl")  # and nothing is said of a new draw
    assert read_all(tmp_path / "raw" / SAMPLE) == drawn


def test_a_finished_sample_is_not_drawn_again(tmp_path: Path, rows: Path) -> None:
    def never(at: int, tally: Tally) -> None:
        raise AssertionError

    parts = draw(tmp_path, rows)
    assert draw(tmp_path, rows, watch=never) == parts
    rows.unlink()
    raw = tmp_path / "raw"
    assert find_finished(raw, {}).parts == find_finished(raw, {"seed": "42", "min_tokens": MIN_TOKENS}).parts == parts
    with pytest.raises(UsageError, match=r"--skip_download: .* was made with min_tokens 100, not 7; run it without"):
        find_finished(raw, {"min_tokens": 7})
    with pytest.raises(UsageError, match=r"--skip_download: .* has no raw sample"):
        find_finished(tmp_path / "elsewhere", {})
    size = (raw / SAMPLE).stat().st_size
    with (raw / SAMPLE).open("ab") as file:
        file.write(b"x\n")
    with pytest.raises(
        UsageError, match=rf"sample\.jsonl has {size + 2:,} bytes, not the {size:,} that were drawn; run it without"
    ):
        find_finished(raw, {})


def test_a_sample_that_is_not_as_it_was_drawn_is_drawn_again(tmp_path: Path, rows: Path) -> None:
    drawn = sample(tmp_path, rows)
    with (tmp_path / "raw" / SAMPLE).open("r+b") as file:
        file.truncate(100)
    notes: list[str] = []
    assert sample(tmp_path, rows, note=notes.append) == drawn
    assert notes == [f"{tmp_path / 'raw'} holds a sample made with other files: it is drawn afresh"]


def test_a_seed_may_have_any_number_of_digits(tmp_path: Path, rows: Path) -> None:
    seed = 7 * 10**70
    drawn = sample(tmp_path, rows, seed=seed)
    assert sample(tmp_path, rows, seed=seed) == drawn != sample(tmp_path, rows, seed=seed + 1, raw="other")


def test_a_tokenizer_whose_files_are_others_draws_afresh(tmp_path: Path) -> None:
    job = SampleJob(("rows.jsonl",), tmp_path / "raw")
    one, other = (settings_of(job, Tokenizer("file", "t.json", "t.json", version=each)) for each in ("1", "2"))
    assert differences(one, other) == "tokenizer_version 1, not 2"


def test_a_draw_goes_on_without_a_dataset_that_cannot_be_read(tmp_path: Path, rows: Path) -> None:
    """What was read of those before it stays, so that no download is lost."""
    torn = tmp_path / "torn"
    (torn / "data").mkdir(parents=True)
    write_rows(torn / "data" / "train.jsonl", [sharegpt(number) for number in range(300, 305)])
    other = write_rows(tmp_path / "other.jsonl", [sharegpt(number) for number in range(400, 440)])

    def tear(at: int, tally: Tally) -> None:
        if at == 1:
            raise DatasetError("torn")

    with pytest.raises(DatasetError, match="torn"):
        draw(tmp_path, rows, torn, other, watch=tear)
    read: list[int] = []
    notes: list[str] = []
    parts = draw(tmp_path, rows, other, watch=lambda at, tally: read.append(at), note=notes.append)
    assert set(read) == {1} and f"what was read of {rows} is kept" in notes[0] and len(notes) == 1
    assert [part.tally for part in parts] == [part.tally for part in draw(tmp_path, rows, other, raw="fresh")]
    assert (tmp_path / "raw" / SAMPLE).read_bytes() == (tmp_path / "fresh" / SAMPLE).read_bytes()


def test_the_same_dataset_twice_is_refused(tmp_path: Path, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = SampleJob(("rows.jsonl", "./rows.jsonl"), tmp_path / "raw", num_proc=1)
    with pytest.raises(UsageError, match=r"names rows\.jsonl more than once: \./rows\.jsonl is the same"):
        draw_sample(job, CompressionConfig(), lambda at, tally: None, print)


def test_an_unusable_count_is_said_before_the_draw(tmp_path: Path, rows: Path) -> None:
    with pytest.raises(UsageError, match="the tokenizer bundled has no chat template"):
        draw_sample(
            SampleJob((str(rows),), tmp_path / "raw"), CompressionConfig(count="chat_template"), lambda at, tally: None, print
        )
    assert not (tmp_path / "raw").exists()


def test_two_at_once_are_refused(tmp_path: Path, rows: Path) -> None:
    def again(at: int, tally: Tally) -> None:
        draw(tmp_path, rows)

    with pytest.raises(UsageError, match="another process is drawing the sample"):
        draw(tmp_path, rows, watch=again)
