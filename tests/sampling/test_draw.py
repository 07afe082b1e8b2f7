"""A sample depends on its seed and the rows, on nothing else; and its file loads as one table."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import read_all, write_rows

from kiseki.compress.config import CompressionConfig
from kiseki.errors import DatasetError, UsageError
from kiseki.sampling.draw import SampleJob, draw_sample, shares
from kiseki.sampling.folder import SAMPLE, Part, Tally
from kiseki.trajectory.sharegpt import Turn, from_sharegpt
from kiseki.trajectory.tokens import find_tokenizer, open_counter

COUNTER = open_counter(find_tokenizer("bundled", warn=print))
SHORT, LONG = 40, 120
"""Words of two kinds of answers; `MIN_TOKENS` is between them."""
MIN_TOKENS = 100


def sharegpt(number: int, words: int = LONG, **columns: Any) -> dict[str, Any]:
    turns = [{"from": "human", "value": f"Task {number}"}, {"from": "gpt", "value": "word " * words}]
    return {"id": number, "conversations": turns} | columns


def messages(number: int, words: int = LONG, **columns: Any) -> dict[str, Any]:
    """The same as `sharegpt`, in the other layout."""
    turns = [{"role": "user", "content": f"Task {number}"}, {"role": "assistant", "content": "word " * words}]
    return {"messages": turns} | columns


def quiet(words: str) -> None:
    raise AssertionError(words)


def draw(
    folder: Path,
    *datasets: Path,
    watch: Callable[[int, Tally], None] = lambda at, tally: None,
    note: Callable[[str], None] = quiet,
    raw: str = "raw",
    **settings: Any,
) -> list[Part]:
    job = SampleJob(
        tuple(map(str, datasets)),
        folder / raw,
        **({"total_samples": 20, "min_tokens": MIN_TOKENS, "batch_size": 9, "num_proc": 1} | settings),
    )
    return draw_sample(job, CompressionConfig(), watch, note)


def sample(folder: Path, *datasets: Path, **settings: Any) -> list[dict[str, Any]]:
    draw(folder, *datasets, **settings)
    return read_all(folder / settings.get("raw", "raw") / SAMPLE)


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
    drawn = sample(tmp_path, first, second, raw="ab")
    assert sorted(row["conversations"][0]["value"] for row in drawn) == sorted(f"Task {number}" for number in range(12))
    assert sum(row["_source_dataset"] == str(first) for row in drawn) == 8
    assert [part.tally.duplicates for part in draw(tmp_path, first, second, raw="ab")] == [8, 4]
    assert [part.tally.taken for part in draw(tmp_path, second, first, raw="ba")] == [8, 4]


def test_rows_that_are_no_trajectories_are_counted_and_named(tmp_path: Path) -> None:
    lines = [json.dumps(sharegpt(1)), "{torn", '{"conversations": []}', '{"text": "x"}', json.dumps(sharegpt(2))]
    lines += ['{"conversations": [{"from": "ghost", "value": "x"}]}', json.dumps(json.dumps(sharegpt(3)))]
    lines += [json.dumps({"messages": json.dumps(messages(4)["messages"])})]  # the list as text is one
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    [part] = draw(tmp_path, tmp_path / "rows.jsonl")
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


@pytest.mark.parametrize("num_proc", [1, 2])
def test_an_interrupted_draw_ends_as_if_it_had_not_been(tmp_path: Path, rows: Path, num_proc: int) -> None:
    other = write_rows(tmp_path / "other.jsonl", [messages(number) for number in range(100, 220)])
    whole = draw(tmp_path, rows, other, raw="whole")
    calls = 0
    read = 0

    def watch(at: int, tally: Tally) -> None:
        nonlocal calls, read
        calls += 1
        read += 1
        if calls % 3 == 0:
            raise Stop

    for _ in range(40):
        try:
            parts = draw(tmp_path, rows, other, watch=watch, num_proc=num_proc)
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
        draw(tmp_path, rows, tmp_path / "nope.jsonl", note=lambda words: None)
    assert read_all(tmp_path / "raw" / SAMPLE) == drawn


def test_a_finished_sample_is_not_drawn_again(tmp_path: Path, rows: Path) -> None:
    def never(at: int, tally: Tally) -> None:
        raise AssertionError

    parts = draw(tmp_path, rows)
    assert draw(tmp_path, rows, watch=never) == parts
    rows.unlink()
    assert draw(tmp_path, rows, watch=never, skip_download=True) == parts
    with pytest.raises(UsageError, match=r"--skip_download: .* was made with min_tokens 100, not 7; run it without"):
        draw(tmp_path, rows, skip_download=True, min_tokens=7)
    with pytest.raises(UsageError, match=r"--skip_download: .* has no raw sample"):
        draw(tmp_path, rows, skip_download=True, raw="elsewhere")


def test_two_at_once_are_refused(tmp_path: Path, rows: Path) -> None:
    def again(at: int, tally: Tally) -> None:
        draw(tmp_path, rows)

    with pytest.raises(UsageError, match="another process is drawing the sample"):
        draw(tmp_path, rows, watch=again)


# ---- one table --------------------------------------------------------------------------------------------------------


def load(path: Path, cache: Path) -> list[dict[str, Any]]:
    """As `datasets` reads the file, in pieces that are small, so that types must hold over all of them."""
    import datasets

    loaded = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(cache), chunksize=3000)
    return list(loaded)


def test_mixed_layouts_become_sharegpt_and_load_as_one_table(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"path": "</tool_call>"}'}}
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "word " * LONG},
        {"role": "assistant", "content": "<think>so</think>Seen"},
    ]
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    rows = [{"messages": [*conversation, {"role": "user", "content": str(at)}], "tools": tools, "score": at} for at in range(10)]
    with_calls = write_rows(tmp_path / "calls.jsonl", rows)
    plain = write_rows(tmp_path / "plain.jsonl", [sharegpt(at, tools="[]", score=at + 0.5) for at in range(10)])
    odd = write_rows(tmp_path / "odd.jsonl", [messages(100 + at, about={str(at): 1}, score=None) for at in range(10)])
    drawn = sample(tmp_path, with_calls, plain, odd, total_samples=30)
    assert load(tmp_path / "raw" / SAMPLE, tmp_path) == drawn
    assert {tuple(row) for row in drawn} == {tuple(drawn[0])}
    by_source = {Path(row["_source_dataset"]).stem: row for row in drawn}
    assert by_source["plain"]["tools"] == "[]" and json.loads(by_source["calls"]["tools"]) == tools
    assert list(json.loads(by_source["odd"]["about"]).values()) == [1]  # objects whose keys differ are no column's type
    assert by_source["plain"]["about"] is None and by_source["odd"]["tools"] is None
    turns = by_source["calls"]["conversations"]
    assert [turn["from"] for turn in turns] == ["system", "human", "gpt", "tool", "gpt", "human"]
    assert "<tools>" in turns[0]["value"] and turns[0]["value"].endswith("Be brief.")
    read = from_sharegpt([Turn(turn["from"], turn["value"]) for turn in turns])
    assert (read[1].reasoning, read[1].tool_calls[0].arguments) == ("hm", '{"path": "</tool_call>"}')
    assert (read[2].name, read[2].content) == ("look", "word " * LONG)
    assert (read[3].reasoning, read[3].content) == ("so", "Seen")


def test_one_layout_stays_as_it_is(tmp_path: Path) -> None:
    inside = '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>'
    rows = [messages(at, odd=at) for at in range(30)]
    rows[7]["messages"].insert(1, {"role": "assistant", "content": inside, "name": "x"})
    one = write_rows(tmp_path / "one.jsonl", rows)
    two = write_rows(tmp_path / "two.jsonl", [messages(at) for at in range(30, 40)])
    drawn = sample(tmp_path, one, two, total_samples=40)
    assert sorted((row["messages"] for row in drawn if row["odd"] is not None), key=str) == sorted(
        (row["messages"] for row in rows), key=str
    )
    loaded = load(tmp_path / "raw" / SAMPLE, tmp_path)
    assert [row["odd"] for row in loaded] == [row["odd"] for row in drawn]
    assert [turn.get("name") for row in loaded if row["odd"] == 7 for turn in row["messages"]] == [None, "x", None]


def test_types_that_come_late_are_shown_early(tmp_path: Path) -> None:
    def row(at: int) -> dict[str, Any]:
        when = "2026-01-01 00:00:00" if at % 40 else "unknown"
        return sharegpt(
            at, note="rare" if at == 55 else None, score=at if at % 30 else 0.5, when=when, big=10**30 if at == 9 else at
        )

    drawn = sample(tmp_path, write_rows(tmp_path / "rows.jsonl", map(row, range(80))), total_samples=80)
    loaded = load(tmp_path / "raw" / SAMPLE, tmp_path)
    assert [(each["id"], each["note"], each["score"], each["when"]) for each in loaded] == [
        (each["id"], each["note"], each["score"], each["when"]) for each in drawn
    ]
    assert {each["id"]: each["big"] for each in loaded}[9] == str(10**30)


def test_text_only_messages_keep_their_tags(tmp_path: Path) -> None:
    value = '<think>\nx\n</think>\n<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>' + " word" * LONG
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": value}, {"role": "tool", "content": "r"}]
    first = write_rows(tmp_path / "first.jsonl", [{"messages": turns}])
    second = write_rows(tmp_path / "second.jsonl", [sharegpt(1)])
    drawn = {Path(row["_source_dataset"]).stem: row["conversations"] for row in sample(tmp_path, first, second)}
    assert drawn["first"] == [{"from": "human", "value": "q"}, {"from": "gpt", "value": value}, {"from": "tool", "value": "r"}]
