"""Options that compare examples: duplicates, samples of a prompt, splits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from exporting import answers, chat, export_rows, left_out, prompts, written

from kiseki.errors import UsageError

WORDS = [f"word{number}" for number in range(400)]


def said(words: list[str], **more: Any) -> dict[str, Any]:
    return chat("Tell", " ".join(words), **more)


def test_exact_duplicates_are_the_same_conversation(tmp_path: Path) -> None:
    first = chat("a", "look here", "done", key="first")
    ids = chat("a", "look  here", "done\n", key="ids", model="other")
    for turn in ids["messages"]:
        if "tool_calls" in turn:
            turn["tool_calls"][0]["id"] = "other"
        if "tool_call_id" in turn:
            turn["tool_call_id"] = "other"
    system = {"messages": [{"role": "system", "content": "Be brief"}, *first["messages"]]}
    arguments = chat("a", "look here", "done")
    arguments["messages"][1]["tool_calls"][0]["function"]["arguments"] = '{"at": 1}'
    result = chat("a", "look here", "done")
    result["messages"][2]["content"] = "seen other"
    thought = chat("a", "look here", "done")
    thought["messages"][-1]["reasoning_content"] = "hm"
    report = export_rows(
        tmp_path, [first, ids, system, arguments, result, thought, chat("a", "Look here", "done")], dedup="exact"
    )
    assert report.left_out == {"duplicate": 2}
    assert [each["detail"] for each in left_out(tmp_path)] == ["of first", "of first"]
    assert len(written(tmp_path)) == 5


def test_near_duplicates_share_most_of_their_words(tmp_path: Path) -> None:
    """One changed word changes 5 of the sets: of 396, ten words leave a similarity of 0.78, two of 0.95."""
    two, forty = list(WORDS), list(WORDS)
    two[100], two[300] = "other", "another"
    forty[::10] = ["changed"] * 40
    drawn = random.Random(1).sample(WORDS, len(WORDS))
    rows = [
        said(WORDS, key="first"),
        said(two),
        said([each.upper() for each in WORDS]),
        said(forty),
        said(drawn),
        said(["short"]),
    ]
    report = export_rows(tmp_path, rows, dedup="near")
    assert report.left_out == {"near duplicate": 2}
    assert [(each["key"], each["detail"]) for each in left_out(tmp_path)] == [
        ("rows.jsonl:2", "of first"),
        ("rows.jsonl:3", "of first"),
    ]


def test_near_duplicates_are_found_among_many(tmp_path: Path) -> None:
    random_words = random.Random(2)
    rows, copies = [], 0
    for number in range(300):
        rows.append(said(random_words.choices(WORDS, k=120)))
        if number % 3 == 0:
            changed = rows[-1]["messages"][1]["content"].split()
            changed[random_words.randrange(120)] = "changed"
            rows.append(said(changed))
            copies += 1
    report = export_rows(tmp_path, rows, dedup="near")
    assert report.left_out == {"near duplicate": copies}
    again = export_rows(tmp_path, rows, dedup="near")
    assert (again.written, again.files) == (report.written, report.files)


def test_a_duplicate_of_what_is_not_written_is_written(tmp_path: Path) -> None:
    rows = [chat("a", "same", completed=False), chat("a", "same"), chat("a", "same")]
    report = export_rows(tmp_path, rows, dedup="exact", only="completed")
    assert report.left_out == {"not completed": 1, "duplicate": 1}


def test_of_one_prompt_the_best_are_written(tmp_path: Path) -> None:
    rewards = {"a0": 0.1, "b0": None, "a1": 0.9, "a2": None, "b1": 0.0, "a3": 0.5, "b2": None}
    rows = [chat(name[0], name) | ({} if reward is None else {"reward": reward}) for name, reward in rewards.items()]
    report = export_rows(tmp_path, rows, max_per_prompt=2)
    assert report.left_out == {"over max_per_prompt": 3}
    kept = answers(tmp_path)
    assert kept[:2] == ["a1", "a3"] and "b1" in kept[2:] and len(kept) == 4
    assert {each["reason"] for each in left_out(tmp_path)} == {"over max_per_prompt"}


def test_among_equals_the_seed_draws(tmp_path: Path) -> None:
    rows = [chat("a", str(number)) for number in range(20)]
    drawn = []
    for seed in (1, 1, 2):
        export_rows(tmp_path, rows, max_per_prompt=5, seed=seed)
        drawn.append(answers(tmp_path))
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(names == sorted(names, key=int) for names in drawn)
    assert drawn[0] != ["0", "1", "2", "3", "4"]


def test_duplicates_and_unfit_samples_take_no_place(tmp_path: Path) -> None:
    best = {"messages": [{"role": "user", "content": "a"}], "reward": 1.0}
    rows = [best, chat("a", "x", reward=0.9), chat("a", "x", reward=0.8), chat("a", "y", reward=0.1), chat("a", "z", reward=0.0)]
    report = export_rows(tmp_path, rows, to="openai", out=tmp_path / "out", max_per_prompt=2, dedup="exact")
    assert answers(tmp_path) == ["x", "y"]
    assert report.left_out["duplicate"] == report.left_out["over max_per_prompt"] == 1


def test_images_make_another_prompt_of_the_same_words(tmp_path: Path) -> None:
    def about(url: str) -> dict[str, Any]:
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
        return {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": url}]}

    export_rows(tmp_path, [about("http://a/1.png"), about("http://a/2.png")], max_per_prompt=1)
    assert answers(tmp_path) == ["http://a/1.png", "http://a/2.png"]


def test_a_format_of_prompts_has_one_row_of_each(tmp_path: Path) -> None:
    rows = [chat(name, "x", reward=number) for number, name in enumerate("abab")]
    report = export_rows(tmp_path, rows, to="verl-rl")
    assert report.written == {"train": 2} and report.left_out == {"another row of its prompt": 2}


def test_samples_of_a_prompt_are_in_one_split(tmp_path: Path) -> None:
    rows = [chat(f"prompt {number % 200}", str(number)) for number in range(600)]
    report = export_rows(tmp_path, rows, split="train=0.8,val=0.1,test=0.1")
    assert {"train", "val", "test"} == {*report.written} and sum(report.written.values()) == 600
    of_prompts = {name: set(prompts(tmp_path, f"{name}.jsonl")) for name in report.written}
    assert sum(map(len, of_prompts.values())) == 200
    assert 140 <= len(of_prompts["train"]) <= 180 and min(map(len, of_prompts.values())) >= 8


def test_a_split_does_not_depend_on_other_rows(tmp_path: Path) -> None:
    rows = [chat(f"prompt {number}", "x") for number in range(100)]
    parts = []
    for some, seed in ((rows, 42), (rows[::-2], 42), (rows, 7)):
        export_rows(tmp_path, some, split="train=0.5,val=0.5", seed=seed)
        parts.append(set(prompts(tmp_path)))
    assert parts[1] < parts[0]
    assert parts[2] != parts[0]


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ("train=0.9,val=0.2", "add up to 1.1"),
        ("train", "no name with a share"),
        ("train=0.5,train=0.5", "twice"),
        ("train=0.5,all=0.5", "take another name"),
        ("../x=0.5,y=0.5", "no name"),
        ("a=1.5,b=-0.5", "between 0 and 1"),
    ],
)
def test_a_split_that_is_none_is_refused(tmp_path: Path, split: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        export_rows(tmp_path, [chat("a", "b")], split=split)
    assert not (tmp_path / "out").exists()


def test_the_same_words_of_another_image_are_another_example(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": "<image>What is it?"}, {"role": "assistant", "content": "A cat."}]}] * 3
    shown = [row | {"images": [f"{number}.png"]} for number, row in enumerate(rows)]
    assert export_rows(tmp_path, shown, dedup="near").left_out == {"near duplicate": 0}
    assert export_rows(tmp_path, [*shown, shown[0]], dedup="near").left_out == {"near duplicate": 1}
