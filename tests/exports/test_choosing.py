"""Options that leave examples out by what they are themselves."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from exporting import answers, chat, export_rows, left_out, prompts, step, written
from support import write_dataset

from kiseki.errors import DatasetError, UsageError
from kiseki.formats.format import Options
from kiseki.trajectory.summaries import SUMMARY_MARK

ENDED = [
    chat("a", "yes", completed=True, reward=1.0),
    chat("b", "no", completed=False, partial=True, reward=0.5),
    chat("c", "?", completed=True, reward=0.0),
    chat("d", "!", completed=True),
]


@pytest.mark.parametrize(
    ("only", "kept", "reasons"),
    [
        ("completed", "acd", {"not completed": 1}),
        ("partial", "b", {"not partial": 3}),
        ("reward>0", "ab", {"not reward>0": 1, "no reward": 1}),
        ("reward>=0.5", "ab", {"not reward>=0.5": 1, "no reward": 1}),
        ("reward<0.5", "c", {"not reward<0.5": 2, "no reward": 1}),
        ("reward <= 0.5", "bc", {"not reward <= 0.5": 1, "no reward": 1}),
        ("reward=1", "a", {"not reward=1": 2, "no reward": 1}),
        ("completed, reward>0", "a", {"not completed": 1, "not reward>0": 1, "no reward": 1}),
    ],
)
def test_only_what_every_condition_holds_for(tmp_path: Path, only: str, kept: str, reasons: dict[str, int]) -> None:
    report = export_rows(tmp_path, ENDED, only=only)
    assert "".join(prompts(tmp_path)) == kept
    assert report.left_out == reasons


@pytest.mark.parametrize("only", ["good", "reward>", "reward>x", "reward", "completed,", "reward>nan", "reward==1=1"])
def test_a_condition_that_is_none_is_refused(tmp_path: Path, only: str) -> None:
    with pytest.raises(UsageError, match=r"--only: .* is no condition"):
        export_rows(tmp_path, ENDED, only=only)


def test_turns_between_two_bounds(tmp_path: Path) -> None:
    rows = [chat(str(count), *"x" * count) for count in range(1, 6)]
    report = export_rows(tmp_path, rows, min_turns=2, max_turns=4)
    assert prompts(tmp_path) == ["2", "3", "4"]
    assert report.left_out == {"too few turns": 1, "too many turns": 1}
    with pytest.raises(UsageError, match="nothing would be left"):
        export_rows(tmp_path, rows, min_turns=3, max_turns=2)


def dropped(folder: Path, kind: str, rows: list[Any]) -> list[bool]:
    """Which of the rows are left out, beside one that never is."""
    report = export_rows(folder, [chat("kept", "Here it is."), *rows], drop=(kind,))
    gone = {int(each["key"].split(":")[1]) for each in left_out(folder)}
    assert len(report.left_out) <= 1
    return [number in gone for number in range(2, len(rows) + 2)]


def repeated(*steps: list[dict[str, Any]]) -> dict[str, Any]:
    messages = [each for step in steps for each in step]
    return {"messages": [{"role": "user", "content": "Go"}, *messages, {"role": "assistant", "content": "Done"}]}


def test_the_same_call_with_the_same_result_three_times_is_a_loop(tmp_path: Path) -> None:
    same, other_result, other_call = step("", {"at": 1}, "x"), step("", {"at": 1}, "y"), step("", {"at": 2}, "x")
    rows = [
        repeated(same, same, same),
        repeated(other_call, same, same, same, other_call),
        repeated(same, same),
        repeated(same, same, other_result, same),
        repeated(same, other_call, same, other_call, same),
    ]
    assert dropped(tmp_path, "loops", rows) == [True, True, False, False, False]
    assert "look was called 3 times with the same result, in turn 6" in left_out(tmp_path)[0]["detail"]


def test_a_text_that_ends_in_a_repetition_is_a_loop(tmp_path: Path) -> None:
    paragraph = " ".join(f"word{number}" for number in range(40))
    numbered = " ".join(f"Step {number}: try to open the file again." for number in range(20))
    thinking = chat("x", "Done")
    thinking["messages"][1]["reasoning_content"] = "wait no " * 40
    rows = [
        chat("x", "Let me think. " + "I should check it. " * 20),
        chat("x", f"{paragraph} {paragraph} {paragraph}"),
        chat("x", numbered),
        thinking,
        chat("x", "na " * 30),
        chat("x", f"{paragraph} {paragraph}"),
        chat("x", "I should check it. " * 20 + paragraph + " and that was all that there is to say of it, so we are done."),
        chat("x", " ".join(f"item{number} costs {number * 7} yen" for number in range(60))),
    ]
    assert dropped(tmp_path, "loops", rows) == [True, True, True, True, False, False, False, False]


def test_refusals_begin_the_final_answer(tmp_path: Path) -> None:
    refused = [
        "I'm sorry, but I can't assist with that.",
        "I’m sorry, but I can’t help with this request.",
        "I cannot comply with that.",
        "Unfortunately, I am unable to assist you here.",
        "I must decline to do that.",
        "申し訳ありませんが、そのご依頼にはお応えできません。",
        "很抱歉，我无法协助完成。",
        "Es tut mir leid, aber ich kann dabei nicht helfen.",
        "Désolé, mais je ne peux pas vous aider.",
        "Lo siento, pero no puedo ayudar con eso.",
    ]
    answered = [
        "I'm sorry, but I could not find the file.",
        "Sorry for the delay. The answer is 4.",
        "I can't help but notice that 4 is even.",
        "The guard says: I cannot assist with that.",
        "申し訳ありませんが、ファイルが見つかりませんでした。",
        "Unfortunately, the test fails.",
    ]
    rows = [chat("x", answer) for answer in [*refused, *answered]]
    rows.append(chat("x", "I cannot assist with that.", "Now I can: 4."))
    assert dropped(tmp_path, "refusals", rows) == [True] * len(refused) + [False] * (len(answered) + 1)


def test_truncated_is_what_a_limit_ended_without_an_answer(tmp_path: Path) -> None:
    open_end = {"messages": chat("x", "a", "b")["messages"][:-1]}
    rows = [
        chat("x", "cut", finish_reason="length"),
        chat("x", "cut", stop_reason="length"),
        open_end | {"stop_reason": "max_turns"},
        open_end | {"stop_reason": "timeout"},
        open_end | {"partial": True},
        chat("x", "said", stop_reason="max_turns"),
        chat("x", "said", stop_reason="answered", finish_reason="stop"),
        chat("x", "said", partial=True),
        open_end,
    ]
    assert dropped(tmp_path, "truncated", rows) == [True] * 5 + [False] * 4


def test_tool_errors_are_results_that_failed(tmp_path: Path) -> None:
    rows = [repeated(step("", {}, result)) for result in ('{"error": "none"}', "Error: none", "fine", '{"error": null}')]
    assert dropped(tmp_path, "tool_errors", rows) == [True, True, False, False]


def test_several_kinds_are_counted_each_for_itself(tmp_path: Path) -> None:
    failed = repeated(step("", {}, "error: no"))
    rows = [chat("a", "ok"), failed, failed, chat("b", "I cannot assist with that.")]
    report = export_rows(tmp_path, rows, drop=("tool_errors", "refusals"))
    assert report.left_out == {"tool error": 2, "refusal": 1}
    with pytest.raises(UsageError, match="--drop: 'lops' is none of loops"):
        export_rows(tmp_path, rows, drop=("lops",))


LONG = "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May."
SHORT = "What is the capital of Mongolia?"


def benchmark(folder: Path, kind: str) -> Path:
    path = folder / f"benchmark.{kind}"
    rows = [{"id": "q1", "question": LONG}, {"id": "q2", "question": SHORT}, {"id": "q3", "question": "Is it so?"}]
    if kind == "csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["id", "question"], *([row["id"], row["question"]] for row in rows)])
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif kind == "txt":
        path.write_text("".join(f"{row['question']}\n" for row in rows))
    elif kind == "jsonl.gz":
        plain = write_dataset(folder / "plain", [{"messages": [{"content": row["question"]}]} for row in rows])
        path.write_bytes(gzip.compress(plain.read_bytes()))
    else:
        write_dataset(path, rows)
    return path


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "csv", "parquet", "txt"])
def test_what_is_in_a_benchmark_is_left_out(tmp_path: Path, kind: str) -> None:
    thirteen = "SOLD clips -- to 48 of her friends, in April; and then she sold"
    twelve = "sold clips to 48 of her friends in April and then she rested"
    found_by_a_tool = chat("Search", "looking", "Found it")
    found_by_a_tool["messages"][2]["content"] = f"A page says: {LONG}"
    rows = [
        chat("clean", "answer"),
        chat(f"Please: {thirteen}", "72"),
        chat(twelve, "72"),
        chat(f"Quick one. {SHORT.upper()}", "Ulaanbaatar"),
        chat("What is the capital of France?", "Paris"),
        chat("Is it so?", "It is."),
        found_by_a_tool,
    ]
    path = benchmark(tmp_path, kind)
    report = export_rows(tmp_path, rows, decontaminate=path)
    assert prompts(tmp_path) == ["clean", twelve, "What is the capital of France?", "Is it so?"]
    first = 2 if kind == "csv" else 1
    assert report.left_out == {"in the benchmark": 3}
    assert report.matched == {f"{path.name}:{first}": 2, f"{path.name}:{first + 1}": 1}
    assert left_out(tmp_path)[1]["detail"] == f"{path.name}:{first + 1}: what is the capital of mongolia"


def test_what_frames_every_entry_of_a_benchmark_is_none_of_it(tmp_path: Path) -> None:
    """Prompts of one make end in the same instruction, and many in the same word before it, whether they are in it or not."""
    frame = "Use the tools to compute the answer, then give it on the last line as a number."
    ends = ("in all", "left", "in total", "each", "there", "more")
    things = [" ".join(f"thing{number}x{at}" for at in range(12)) for number in range(30)]
    asked = [f"Box {number} has {each}, how many {ends[number % 6]}?" for number, each in enumerate(things)]
    path = write_dataset(tmp_path / "b.jsonl", [{"id": f"q {each[4:6]}", "prompt": f"{each} {frame}"} for each in asked[:15]])
    report = export_rows(tmp_path, [chat(f"{each} {frame}", "7") for each in asked], decontaminate=path)
    assert report.left_out == {"in the benchmark": 15}
    assert prompts(tmp_path) == [f"{each} {frame}" for each in asked[15:]]
    assert report.frames == ("use the tools to compute the answer then give it on the last line as a number",)
    capital = "What is the name of the capital city of the country"
    path = write_dataset(tmp_path / "d.jsonl", [{"q": f"{capital} Land{number}?"} for number in range(15)])
    report = export_rows(tmp_path, [chat(f"{capital} Land{number}?", "x") for number in (3, 20)], decontaminate=path)
    assert report.left_out == {"in the benchmark": 1} and prompts(tmp_path) == [f"{capital} Land20?"]
    column = write_dataset(tmp_path / "c.jsonl", [{"prompt": each, "instruction": frame} for each in asked[:15]])
    report = export_rows(tmp_path, [chat(f"{each} {frame}", "7") for each in asked], decontaminate=column)
    assert report.left_out == {"in the benchmark": 15}


def test_what_a_benchmark_repeats_is_still_looked_for(tmp_path: Path) -> None:
    """Rows that are the same but for a short id are one; what ten rows share, a passage say, is theirs."""
    passage = " ".join(f"word{at}" for at in range(20))
    again = write_dataset(tmp_path / "again.jsonl", [{"id": number, "question": LONG} for number in range(30)])
    shared = write_dataset(tmp_path / "shared.jsonl", [{"context": passage, "q": f"q{n} a b c d e"} for n in range(10)])
    for path, said in ((again, LONG), (shared, passage)):
        report = export_rows(tmp_path, [chat(said, "7"), chat("clean", "8")], decontaminate=path)
        assert (report.left_out, report.frames) == ({"in the benchmark": 1}, ())


def test_japanese_has_words_too(tmp_path: Path) -> None:
    path = tmp_path / "b.txt"
    path.write_text("太郎は鉛筆を三箱持っています。一箱には鉛筆が十二本入っています。")
    rows = [chat("太郎は鉛筆を三箱、持っていますね", "三"), chat("花子は消しゴムを持っています", "一")]
    export_rows(tmp_path, rows, decontaminate=path)
    assert answers(tmp_path) == ["一"]


def test_a_benchmark_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("Is it so?\n")
    (tmp_path / "b.pdf").write_text("x")
    write_dataset(tmp_path / "torn.jsonl", ['{"a": "one two three four five six"}', '{"a": "'])
    for name, words in (
        ("short.txt", "no text of 5 words"),
        ("b.pdf", "none of"),
        ("torn.jsonl", "line 2"),
        ("no.csv", "not found"),
    ):
        with pytest.raises(DatasetError, match=words):
            export_rows(tmp_path, ENDED, decontaminate=tmp_path / name)


def test_masks_are_written_and_counted(tmp_path: Path) -> None:
    summary = step("", {}, f"{SUMMARY_MARK} what happened before")
    real = step("", {}, f"a real result\n\n{SUMMARY_MARK} and what came before")
    rows = [repeated(step("bad", {}, "error: no"), step("good", {}, "yes"), summary, real)]
    weights = {}
    for mask in (("errors",), ("summaries",), ("errors", "summaries")):
        report = export_rows(tmp_path, rows, mask=mask)
        (row,) = [each["messages"] for each in written(tmp_path)]
        weights[mask] = [each["weight"] for each in row if each["role"] == "assistant"]
        assert report.masked_turns == weights[mask].count(0)
    assert weights == {
        ("errors",): [0, 1, 1, 1, 1],
        ("summaries",): [1, 1, 0, 1, 1],
        ("errors", "summaries"): [0, 1, 0, 1, 1],
    }


def test_masks_need_a_format_that_holds_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"sharegpt has no place for loss flags; these formats have: .*messages.*axolotl"):
        export_rows(tmp_path, ENDED, "sharegpt", mask=("errors",))
    with pytest.raises(UsageError, match="--mask: 'all' is none of"):
        export_rows(tmp_path, ENDED, mask=("all",))
    with pytest.raises(UsageError, match="--retokenize: messages has no token ids"):
        export_rows(tmp_path, ENDED, options=Options(retokenize="bundled"))
