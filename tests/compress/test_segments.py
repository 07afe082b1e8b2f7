"""One trajectory as several rows: what each says of itself, and that a long one takes no more for each unit than a short one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from compress.trajectories import Counting, make_row, shell

from kiseki.compress.compressor import Compressor, Done
from kiseki.compress.config import CompressionConfig
from kiseki.compress.job.totals import Totals
from kiseki.compress.turns import SUMMARY_MARK, read_trajectory

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
