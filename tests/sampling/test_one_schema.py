"""A sample's file loads as one table, with conversations as they were where that is possible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rows import write_rows
from sampling.samples import COUNTER, LONG, messages, sample, sharegpt

from kiseki.formats.reading import read_row
from kiseki.sampling.folder import SAMPLE


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
    notes: list[str] = []
    drawn = sample(tmp_path, with_calls, plain, odd, total_samples=30, note=notes.append)
    words = "the datasets mix ShareGPT turns and chat messages: 20 rows became ShareGPT turns in the column 'conversations'"
    assert notes == [words]
    for row in drawn:  # of what is written, tools and tags included
        assert row["_original_tokens"] == sum(COUNTER.count(turn["value"]) for turn in row["conversations"])
    assert load(tmp_path / "raw" / SAMPLE, tmp_path) == drawn
    assert {tuple(row) for row in drawn} == {tuple(drawn[0])}
    by_source = {Path(row["_source_dataset"]).stem: row for row in drawn}
    assert by_source["plain"]["tools"] == "[]" and by_source["calls"]["tools"] is None  # they are in the system turn
    assert list(json.loads(by_source["odd"]["about"]).values()) == [1]  # objects whose keys differ are no column's type
    assert by_source["plain"]["about"] is None and by_source["odd"]["tools"] is None
    turns = by_source["calls"]["conversations"]
    assert [turn["from"] for turn in turns] == ["system", "human", "gpt", "tool", "gpt", "human"]
    assert json.dumps(tools, separators=(",", ":")) in turns[0]["value"] and turns[0]["value"].endswith("Be brief.")
    read = [each for each in read_row({"conversations": turns}).messages if each.role != "system"]
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
    drawn = {Path(row["_source_dataset"]).stem: row["conversations"] for row in sample(tmp_path, first, second, note=print)}
    assert drawn["first"] == [{"from": "human", "value": "q"}, {"from": "gpt", "value": value}, {"from": "tool", "value": "r"}]


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "look", "arguments": arguments}}


def test_arguments_without_a_single_type_become_json_text_and_messages_stay(tmp_path: Path) -> None:
    rows = [messages(at) for at in range(4)]
    for row, arguments in zip(rows, ({"a": 1}, {"b": [2]}, '{"c":3}', None), strict=True):
        row["messages"].append({"role": "assistant", "content": "", "tool_calls": [call(arguments)]})
    path = write_rows(tmp_path / "rows.jsonl", rows)
    notes: list[str] = []
    drawn = sample(tmp_path, path, note=notes.append)
    assert notes == ["the arguments of calls have no single type: they are JSON text in all rows"]
    made = {row["messages"][0]["content"]: row["messages"] for row in drawn}
    for number, text in enumerate(('{"a":1}', '{"b":[2]}', '{"c":3}', None)):
        turns = rows[number]["messages"]
        assert made[f"Task {number}"] == [*turns[:2], turns[2] | {"tool_calls": [call(text)]}]
    assert len(load(tmp_path / "raw" / SAMPLE, tmp_path)) == 4


def test_later_system_turns_stay_where_they_are(tmp_path: Path) -> None:
    turns = [
        {"role": "system", "content": "One."},
        {"role": "user", "content": "Look"},
        {"role": "assistant", "content": "", "tool_calls": [call("{}")]},
        {"role": "system", "content": "Two."},
        {"role": "tool", "tool_call_id": "c", "content": "word " * LONG},
        {"role": "system", "content": "Three."},
        {"role": "assistant", "content": "Seen"},
    ]
    for number, more in enumerate(({}, {"tools": [{"name": "look"}]})):
        first = write_rows(tmp_path / f"first{number}.jsonl", [{"messages": turns} | more])
        second = write_rows(tmp_path / "second.jsonl", [sharegpt(1)])
        drawn = sample(tmp_path, first, second, note=print, raw=f"raw{number}")
        [made] = [row["conversations"] for row in drawn if row["_source_dataset"] == str(first)]
        assert [turn["from"] for turn in made] == ["system", "human", "gpt", "system", "tool", "system", "gpt"]
        assert [made[at]["value"] for at in (3, 5)] == ["Two.", "Three."]
        assert made[0]["value"].endswith("One.") and ("<tools>" in made[0]["value"]) == bool(more)
        assert json.loads(made[4]["value"].splitlines()[1])["name"] == "look"


def test_images_that_are_lost_leave_a_note_and_are_counted(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:"}}, {"type": "input_audio"}]
    first = write_rows(tmp_path / "first.jsonl", [{"messages": [{"role": "user", "content": parts}, *messages(1)["messages"]]}])
    second = write_rows(tmp_path / "second.jsonl", [{"conversations": [{"from": "human", "value": parts}]}, sharegpt(2)])
    notes: list[str] = []
    drawn = sample(tmp_path, first, second, note=notes.append, min_tokens=0)
    assert [row["conversations"][0]["value"] for row in drawn].count("see\n[image]\n[audio]") == 2
    assert notes[0].endswith("; 4 images and the like are now notes as [image]")


def test_thoughts_in_parts_of_the_content_stay(tmp_path: Path) -> None:
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Seen"}]
    first = write_rows(tmp_path / "first.jsonl", [{"messages": [{"role": "assistant", "content": parts}]}])
    second = write_rows(tmp_path / "second.jsonl", [sharegpt(1)])
    drawn = sample(tmp_path, first, second, note=print, min_tokens=0)
    assert {"from": "gpt", "value": "<think>\nhm\n</think>\nSeen"} in [row["conversations"][0] for row in drawn]
