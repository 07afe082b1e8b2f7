"""One trajectory as several rows: what each says of itself, and that a long one takes no more for each unit than a short one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from compress.trajectories import Counting, Step, make_row, shell

from kiseki.compress.compressor import Compressor, Done
from kiseki.compress.config import CompressionConfig
from kiseki.compress.job.totals import Totals
from kiseki.compress.rows import read_trajectory
from kiseki.compress.turns import SUMMARY_MARK

NOTICE = "Parts are summed up."


def segmented(row: dict[str, Any], counter: Counting | None = None, **fields: Any) -> Done:
    config = CompressionConfig(strategy="segment", **{"target_max_tokens": 700, "summary_target_tokens": 200} | fields)
    done = Compressor(config, counter or Counting()).begin(json.dumps(row).encode())
    assert isinstance(done, Done)
    return done


def texts_of(row: bytes) -> list[str]:
    return [turn.text for turn in read_trajectory(row).turns]


def long_row(units: int, task: str = "Find the bug and fix it.") -> dict[str, Any]:
    return make_row([shell(f"step {number} of it", f"{number} " + "word " * 120) for number in range(units)], task=task)


def test_what_is_counted_grows_with_the_row_and_not_with_its_square() -> None:
    def counted(units: int) -> int:
        counter = Counting()
        assert len(segmented(long_row(units), counter).rows) > units // 5
        return counter.characters

    assert counted(320) < 2.3 * counted(160)


def test_the_prompt_is_not_counted_anew_for_each_segment() -> None:
    counter = Counting()
    system = "You are an agent. " * 60
    row = long_row(40)
    row["conversations"][0]["value"] = system
    done = segmented(row, counter, target_max_tokens=1_200)
    assert len(done.rows) > 5
    assert counter.texts.count(system) == 1


def test_a_digest_goes_on_where_the_prompt_ends_or_tells_of_it() -> None:
    row = long_row(12)
    row["conversations"].insert(20, {"from": "system", "value": "Be brief."})
    for at in (16, 14, 12, 10):
        row["conversations"].insert(at, {"from": "human", "value": "And now the tests."})
    done = segmented(row)
    heads = [texts_of(each)[1] for each in done.rows]
    asked = [head for head in heads if head.startswith("And now the tests.")]
    told = [head for head in heads[1:] if head not in asked]
    assert heads[0] == "Find the bug and fix it." and asked and told
    assert all(f"{SUMMARY_MARK} " in head and "- user: Find the bug" in head for head in asked)
    assert all(f"{SUMMARY_MARK} " in head and "- user: Find the bug" not in head for head in told)
    assert "Be brief." not in "".join(heads)


def test_the_notice_is_in_the_system_turn_of_each_segment_and_in_the_budget() -> None:
    done = segmented(long_row(12), add_summary_notice=True, summary_notice_text=NOTICE)
    assert len(done.rows) > 2
    for text, metrics in zip(done.rows, done.metrics, strict=True):
        assert texts_of(text)[0].endswith("\n\n" + NOTICE)
        assert metrics.compressed_tokens <= 700


def test_a_row_that_the_notice_would_make_longer_stays_as_it_was() -> None:
    row = make_row([shell("ls", "x")], said="I look. " * 500, final="ok")
    done = segmented(row, add_summary_notice=True, summary_notice_text=NOTICE * 20)
    assert [texts_of(each) for each in done.rows] == [texts_of(json.dumps(row).encode())]
    assert done.metrics[0].error and not done.metrics[0].was_compressed


@pytest.mark.parametrize("giant", [False, True])
def test_metrics_are_those_of_the_set(giant: bool) -> None:
    steps = [shell(f"step {number}", f"{number} " + "word " * 120) for number in range(12)]
    if giant:
        steps[5] = shell("cat big", "".join(f"x{n} = compute({n})\n" for n in range(800)))
    row = make_row(steps)
    done = segmented(row)
    whole = sum(map(Counting().count, texts_of(json.dumps(row).encode())))
    left_out = [metrics.tokens_saved for metrics in done.metrics]
    assert all(metrics.original_tokens == whole and metrics.original_turns == 27 for metrics in done.metrics)
    assert all(metrics.turns_removed == 0 for metrics in done.metrics), "every turn is in one of them"
    assert sum(tokens > 0 for tokens in left_out) == sum(metrics.observations_cut for metrics in done.metrics) == giant

    totals = Totals()
    totals.add(done.metrics, done.assistant_tokens)
    document = totals.document({}, {})
    assert document["turns"]["total_removed"] == document["averages"]["avg_turns_removed_per_compressed"] == 0
    assert document["tokens"]["total_saved"] == document["averages"]["avg_tokens_saved_per_compressed"] == sum(left_out)


@pytest.mark.parametrize("placed", ["alone", "before a question", "after a question"])
def test_every_segment_has_an_answer(placed: str) -> None:
    row = long_row(6)
    rule = {"from": "system", "value": "A rule. " * 250}
    question = {"from": "human", "value": "And the tests?"}
    added = {"alone": [rule], "before a question": [rule, question], "after a question": [question, rule]}
    row["conversations"][6:6] = added[placed]
    done = segmented(row)
    turns = [read_trajectory(each).turns for each in done.rows]
    assert len(done.rows) > 2 and all("gpt" in [turn.role for turn in each] for each in turns)
    said = [turn.text for each in turns for turn in each]
    assert said.count(rule["value"]) == 1
    with_rule = next(each for each in turns if rule["value"] in [turn.text for turn in each])
    assert [turn.role for turn in with_rule].index("gpt") > [turn.text for turn in with_rule].index(rule["value"])
    assert sum(said.count(text) for text in texts_of(json.dumps(row).encode()) if text.startswith("<think>")) == 7


class Template(Counting):
    """Counts as a chat template does: something around each message, and no reasoning before the last user's."""

    def __init__(self, around: int) -> None:
        super().__init__()
        self.around = around
        self.count_chat = self.of_chat

    def of_chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> int:
        last = max(at for at, message in enumerate(messages) if message["role"] == "user")
        texts = [
            message["content"].rpartition("</think>")[2] if at < last else message["content"]
            for at, message in enumerate(messages)
        ]
        return sum(self.around + self.count(text) for text in texts)


@pytest.mark.parametrize("around", [1, 40])
def test_segments_fit_under_a_chat_template(around: int) -> None:
    row = long_row(30)
    for turn in row["conversations"]:
        if turn["from"] == "gpt":
            turn["value"] = turn["value"].replace("<think>\n", "<think>\n" + "I think. " * 40)
    row["conversations"].insert(40, {"from": "human", "value": "And now the tests."})
    counter = Template(around)
    done = segmented(row, counter, target_max_tokens=1_500, count="chat_template")
    assert len(done.rows) > 4
    for text, metrics in zip(done.rows, done.metrics, strict=True):
        trajectory = read_trajectory(text)
        counted = counter.of_chat([trajectory.layout.message(turn) for turn in trajectory.turns])
        assert metrics.compressed_tokens == counted <= 1_500 and not metrics.still_over_limit
    assert sum(metrics.compressed_tokens for metrics in done.metrics[:-1]) > 1_000 * (len(done.rows) - 1), "they are full"
    assert sum(text.startswith("<think>") for each in done.rows for text in texts_of(each)) == 31


def test_a_segment_that_only_gets_smaller_in_large_steps_fits_under_a_chat_template() -> None:
    parallel: list[Step] = [
        ("numbers", {}, json.dumps([*range(at, at + 100)])) for at in range(0, 800, 100)
    ]  # whole or not at all
    row = make_row([parallel])
    text = segmented(row, target_max_tokens=1_500)
    masked = next(metrics for metrics in text.metrics if metrics.observations_masked)
    around = (1_500 - masked.compressed_tokens) // masked.compressed_turns + 1  # a little too much
    assert not any(metrics.still_over_limit for metrics in text.metrics)
    done = segmented(row, Template(around), target_max_tokens=1_500, count="chat_template")
    assert not any(metrics.still_over_limit for metrics in done.metrics)
