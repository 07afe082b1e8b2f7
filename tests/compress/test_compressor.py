"""One row through every strategy and placement: what must hold for any trajectory."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from compress.trajectories import make_row, messages_rows, sharegpt_rows, shell
from hypothesis import given, settings
from hypothesis import strategies as st

from kiseki.compress.compressor import Compressor, Done
from kiseki.compress.config import CompressionConfig, Placement, Strategy
from kiseki.compress.metrics import Metrics
from kiseki.compress.regions import is_protected
from kiseki.compress.rows import read_trajectory
from kiseki.compress.summary import Answer, Ask
from kiseki.compress.turns import SUMMARY_MARK, Turn, is_summary
from kiseki.trajectory.tokens import BUNDLED, open_counter

COUNTER = open_counter(BUNDLED)
SUMMARY = f"{SUMMARY_MARK} The agent looked at files </tool_response> and found the bug."
SUMMARY_TOKENS = COUNTER.count(SUMMARY)
STRATEGIES: tuple[Strategy, ...] = ("summary", "ladder", "segment")
PLACEMENTS: tuple[Placement, ...] = ("human", "tool", "first_human")


def compress(
    row: dict[str, Any] | bytes, answer: Callable[[Ask], Answer] = lambda ask: Answer(SUMMARY, calls=1), **fields: Any
) -> Done:
    compressor = Compressor(CompressionConfig(**{"last_n_turns": 2, "summary_target_tokens": 60} | fields), COUNTER)
    text = row if isinstance(row, bytes) else json.dumps(row).encode()
    begun = compressor.begin(text)
    return begun if isinstance(begun, Done) else compressor.finish(text, begun, answer(begun))


def turns_of(row: dict[str, Any] | bytes) -> tuple[Turn, ...]:
    return read_trajectory(row if isinstance(row, bytes) else json.dumps(row).encode()).turns


def tokens(turns: tuple[Turn, ...]) -> int:
    return sum(COUNTER.count(turn.text) for turn in turns)


def answered(turns: tuple[Turn, ...]) -> Counter[tuple[str, int]]:
    """Each gpt turn's text with the number of tool turns that follow it."""
    roles = "".join(turn.role[0] for turn in turns)
    return Counter((turns[match.start()].text, len(match[1])) for match in re.finditer("g(t*)", roles))


@settings(max_examples=60, deadline=None)
@given(
    sharegpt_rows() | messages_rows(),
    st.sampled_from(STRATEGIES),
    st.sampled_from(PLACEMENTS),
    st.sampled_from((1.0, 0.9, 0.6, 0.3, 0.05)),
    st.booleans(),
)
def test_what_holds_for_any_row(
    row: dict[str, Any], strategy: Strategy, placement: Placement, share: float, marked: bool
) -> None:
    before = turns_of(row)
    target = max(1, int(share * tokens(before)))
    fields: dict[str, Any] = {
        "strategy": strategy,
        "summary_placement": placement,
        "target_max_tokens": target,
        "mark_summary": marked,
    }
    done = compress(row, **fields)
    assert compress(row, **fields) == done, "the same again"
    for text, metrics in zip(done.rows, done.metrics, strict=True):
        after = turns_of(text)
        assert metrics.compressed_tokens == tokens(after)
        assert metrics.original_tokens == tokens(before) and metrics.original_turns == len(before)
        assert metrics.compressed_turns == len(after)
        assert metrics.still_over_limit == (tokens(after) > target)
        assert tokens(after) <= tokens(before)
        written = {turn.text for turn in before if turn.role == "gpt"}
        assert all(turn.text in written for turn in after if turn.role == "gpt"), "what the model wrote is never edited"
        again = compress(text, **fields)
        assert again.rows == (text,), "what was compressed stays as it is"
        if share == 1.0:
            assert after == before or marked
        keys = {name for turn in after for name in ("train", "loss") if name in turn.data}
        assert keys == ({"train", "loss"} if marked and after else set())
    if strategy == "segment":
        kept = [turn.text for text in done.rows for turn in turns_of(text) if turn.role == "gpt"]
        assert kept == [turn.text for turn in before if turn.role == "gpt"], (
            "nothing that the model wrote is lost, or there twice"
        )
        return
    (after_text,) = done.rows
    after = turns_of(after_text)
    config = CompressionConfig(last_n_turns=2)
    kept_texts = [turn.text for turn in after]
    for turn, protected in zip(before, is_protected(before, config), strict=True):
        if protected:
            assert any(text == turn.text or (placement != "human" and text.startswith(turn.text)) for text in kept_texts)
    assert not answered(after) - answered(before), "no call is parted from its response"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(5, 120), min_size=4, max_size=12), st.integers(1, 600))
def test_no_more_is_taken_out_than_needed(sizes: list[int], less: int) -> None:
    steps = [shell(f"step {number}", "word " * size) for number, size in enumerate(sizes)]
    row = make_row(steps)
    before = turns_of(row)
    target = max(1, tokens(before) - less)
    done = compress(row, target_max_tokens=target, summary_target_tokens=SUMMARY_TOKENS)
    metrics, region = done.metrics[0], done.metrics[0].compression_region
    if not metrics.was_compressed:
        return
    assert region.start_idx == 4, "from the second tool response on"
    last_unit = tokens(before[region.end_idx - 2 : region.end_idx])
    assert metrics.compressed_tokens + last_unit > target - SUMMARY_TOKENS, "one unit fewer would not have done"
    after = turns_of(done.rows[0])
    assert after[:4] == before[:4] and after[5:] == before[region.end_idx :]
    assert after[4].role == "human" and after[4].text == SUMMARY


# ---- the cases ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_three_turns_over_the_budget(strategy: Strategy) -> None:
    turns = [{"from": "system", "value": "s"}, {"from": "human", "value": "word " * 300}, {"from": "gpt", "value": "yes"}]
    done = compress({"conversations": turns}, strategy=strategy, target_max_tokens=100)
    assert turns_of(done.rows[0]) == turns_of({"conversations": turns}) and len(done.rows) == 1
    assert done.metrics[0].still_over_limit and done.metrics[0].error and not done.metrics[0].was_compressed


@pytest.mark.parametrize("strategy", ["summary", "ladder"])
def test_more_protected_turns_than_there_are(strategy: Strategy) -> None:
    row = make_row([shell("ls", "word " * 200)] * 3)
    done = compress(row, strategy=strategy, target_max_tokens=100, last_n_turns=50)
    assert turns_of(done.rows[0]) == turns_of(row) and done.metrics[0].still_over_limit


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_giant_output(strategy: Strategy) -> None:
    row = make_row(
        [
            shell("ls", "a"),
            shell("cat big", "".join(f"x{n} = compute({n})\n" for n in range(26_000))),
            shell("ls", "b"),
            shell("ls", "c"),
        ]
    )
    done = compress(row, strategy=strategy, target_max_tokens=2_000)
    assert done.metrics[0].original_tokens > 200_000
    assert max(metrics.compressed_tokens for metrics in done.metrics) <= 2_000
    if strategy == "ladder":
        assert done.metrics[0].turns_removed == 0 and done.metrics[0].compressed_tokens > 1_500


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(error="no summary after 4 requests: timeout", calls=4, errors=4), "timeout"),
        (Answer(f"{SUMMARY_MARK} " + "long " * 2_000, calls=1), "no shorter"),
    ],
)
def test_no_usable_summary_leaves_the_row_as_it_was(answer: Answer, words: str) -> None:
    row = make_row([shell("ls", "word " * 100)] * 6, note="kept")
    done = compress(row, lambda ask: answer, target_max_tokens=400)
    after = json.loads(done.rows[0])
    metrics = after.pop("compression_metrics")
    assert after == row
    assert words in metrics["error"] and metrics["still_over_limit"] and not metrics["was_compressed"]
    assert (metrics["summarization_api_calls"], metrics["summarization_errors"]) == (answer.calls, answer.errors)


def test_a_second_system_turn_is_never_taken_out() -> None:
    row = make_row([shell("ls", "word " * 100)] * 8)
    row["conversations"].insert(8, {"from": "system", "value": "From now on be brief."})
    for strategy in STRATEGIES:
        done = compress(row, strategy=strategy, target_max_tokens=300)
        texts = [turn.text for each in done.rows for turn in turns_of(each)]
        assert "From now on be brief." in texts, strategy


@pytest.mark.parametrize("layout", ["sharegpt", "messages"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_parallel_calls_stay_with_their_responses(strategy: Strategy, layout: Any) -> None:
    row = make_row([[shell(f"a{n}", "word " * 90), shell(f"b{n}", "word " * 90)] for n in range(6)], layout=layout, final="")
    done = compress(row, strategy=strategy, target_max_tokens=700)
    for each in done.rows:
        text = each.decode()
        ids = sorted(set(re.findall(r"call_\d_\d", text)))
        assert len(ids) % 2 == 0
        assert all(text.count(each_id) in (1, 2) for each_id in ids)
        roles = "".join(turn.role[0] for turn in turns_of(each))
        assert "gg" not in roles and roles.endswith("t"), "a trailing tool turn stays"


def test_placements() -> None:
    row = make_row([shell("ls", "word " * 100)] * 6)
    before = turns_of(row)
    roles, first = {}, {}
    for placement in PLACEMENTS:
        done = compress(row, summary_placement=placement, target_max_tokens=500)
        after = turns_of(done.rows[0])
        roles[placement] = "".join(turn.role[0] for turn in after)
        first[placement] = after[: len(before)]
    assert "th" in roles["human"] and roles["human"].count("h") == 2
    assert roles["tool"] == roles["first_human"] and roles["tool"].count("h") == 1
    assert first["tool"][3].text.startswith(before[3].text + "\n\n" + SUMMARY_MARK)
    assert r"<\/tool_response> and" in first["tool"][3].text, "it closes no block"
    assert first["first_human"][1].text == f"{before[1].text}\n\n{SUMMARY}"
    assert first["first_human"][3] == before[3]


def test_loss_flags() -> None:
    row = make_row([shell("ls", "word " * 100)] * 6)
    row["conversations"][2]["train"] = False
    done = compress(row, mark_summary=True, target_max_tokens=500)
    turns = json.loads(done.rows[0])["conversations"]
    assert [turn["train"] for turn in turns] == [turn["from"] == "gpt" and at != 2 for at, turn in enumerate(turns)]
    assert [turn["loss"] for turn in turns] == [turn["from"] == "gpt" for turn in turns]
    assert SUMMARY in [turn["value"] for turn in turns if not turn["train"]]


def test_the_notice_is_only_added_where_it_is_wanted() -> None:
    row = make_row([shell("ls", "word " * 100)] * 6)
    with_notice = compress(row, add_summary_notice=True, summary_notice_text="Parts are summed up.", target_max_tokens=500)
    assert turns_of(with_notice.rows[0])[0].text == turns_of(row)[0].text + "\n\nParts are summed up."
    assert with_notice.metrics[0].compressed_tokens <= 500
    fits = compress(row, add_summary_notice=True, target_max_tokens=5_000)
    assert turns_of(fits.rows[0]) == turns_of(row)


def test_rows_within_the_target_are_cleaned_where_that_is_wanted() -> None:
    row = make_row([shell("ls", "ok\x1b[0m\n" * 30)] * 6)
    assert compress(row, strategy="ladder").metrics[0].skipped_under_target
    cleaned = compress(row, strategy="ladder", skip_under_target=False).metrics[0]
    assert cleaned.observations_cleaned and cleaned.was_compressed and not cleaned.skipped_under_target


def test_segments_fit_and_tell_what_came_before() -> None:
    row = make_row([shell(f"step {number}", "word " * 120) for number in range(12)], note="kept")
    done = compress(row, strategy="segment", target_max_tokens=700, summary_target_tokens=200)
    assert len(done.rows) > 2
    for number, (text, metrics) in enumerate(zip(done.rows, done.metrics, strict=True)):
        turns = turns_of(text)
        assert metrics.compressed_tokens <= 700 and (metrics.segment_index, metrics.segment_count) == (number, len(done.rows))
        assert json.loads(text)["note"] == "kept"
        assert (SUMMARY_MARK in turns[1].text) == (number > 0) and turns[2].role == "gpt"
        assert "terminal: step 0" in turns[1].text or number == 0


def test_a_row_compressed_before_is_compressed_further_for_a_smaller_target() -> None:
    row = make_row([shell(f"step {number}", "word " * 100) for number in range(12)])
    once = compress(row, target_max_tokens=1_200)
    twice = compress(once.rows[0], target_max_tokens=600)
    turns = turns_of(twice.rows[0])
    assert twice.metrics[0].compressed_tokens <= 600
    assert [turn.role for turn in turns].count("human") == 2, "the new summary joins the old one"
    assert compress(twice.rows[0], target_max_tokens=5_000).rows == twice.rows


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("layout", ["sharegpt", "messages"])
def test_a_summary_in_paragraphs_is_known_again_where_it_stands(placement: Placement, layout: Any) -> None:
    def answer(ask: Ask) -> Answer:
        return Answer(f"{SUMMARY_MARK} Found:\n\n- the bug\n\nOpen:\n- nothing", calls=1)

    row = make_row([shell(f"step {number}", "word " * 100) for number in range(12)], layout=layout)
    once = compress(row, answer, target_max_tokens=1_200, summary_placement=placement)
    hosts = [turn for turn in turns_of(once.rows[0]) if is_summary(turn)]
    assert len(hosts) == 1 and "- the bug" in hosts[0].text
    twice = compress(once.rows[0], answer, target_max_tokens=600, summary_placement=placement)
    (host,) = [turn for turn in turns_of(twice.rows[0]) if is_summary(turn)]
    assert host.text.startswith(hosts[0].text) and host.text.count(SUMMARY_MARK) == 2


def test_agents_that_write_commands_as_text() -> None:
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "fix it"}]
    for number in range(8):
        turns.append({"role": "assistant", "content": f"Next.\n```\ncat part{number}.py\n```"})
        turns.append({"role": "user", "content": f"part {number} " + "word " * 100 + "\n(Current directory: /src)\nbash-$"})
    for strategy in ("summary", "ladder"):
        done = compress({"messages": turns}, strategy=strategy, target_max_tokens=500)
        after = json.loads(done.rows[0])["messages"]
        assert done.metrics[0].compressed_tokens <= 500
        roles = [turn["role"] for turn in after]
        assert all(one != other for one, other in itertools.pairwise(roles)), "still one after the other"
    code = "Do this:\n```\nls\n```\n"
    chat = []
    for n in range(6):
        chat += [{"role": "user", "content": f"{n} " + "word " * 60}, {"role": "assistant", "content": code + "word " * 60}]
    done = compress({"messages": chat}, strategy="ladder", target_max_tokens=500)
    kept = [turn["content"] for turn in json.loads(done.rows[0])["messages"] if turn["role"] == "user"]
    assert all(text[2:] == "word " * 60 or text.startswith(SUMMARY_MARK) for text in kept), "what people say is not cut"


def test_other_settings_are_not_ignored_on_rows_that_were_compressed() -> None:
    row = make_row([shell(f"step {number}", "word " * 100) for number in range(12)])
    tight = compress(row, strategy="ladder", target_max_tokens=800, last_n_turns=20)
    assert tight.metrics[0].still_over_limit
    again = compress(tight.rows[0], strategy="ladder", target_max_tokens=800, last_n_turns=20)
    assert again.rows == tight.rows
    assert not compress(tight.rows[0], strategy="ladder", target_max_tokens=800, last_n_turns=2).metrics[0].still_over_limit
    fits = compress(row, strategy="ladder", target_max_tokens=800)
    marked = compress(fits.rows[0], strategy="ladder", target_max_tokens=800, mark_summary=True).rows[0]
    turns = json.loads(marked)["conversations"]
    assert {"train", "loss"} <= set.intersection(*map(set, turns))
    assert json.loads(marked)["compression_metrics"] == json.loads(fits.rows[0])["compression_metrics"]


def test_columns_are_copied_as_they_are() -> None:
    message = b'"messages": [{"role":"user","content":"q"}]'
    odd = b'{"a": 1.0, "big": 123456789012345678901234567890, "b" : [1e5], "z": "\\u00e9", ' + message + b"}"
    out = compress(odd).rows[0]
    for piece in (b"1.0", b"123456789012345678901234567890", b"[1e5]", b'"\\u00e9"', b'{"role":"user","content":"q"}'):
        assert piece in out
    broken = compress(b'{"messages": [{"role":"user","content":"\\ud83d x"}], "n": NaN}').rows[0]
    assert json.loads(broken)["messages"][0]["content"] == "\ufffd x" and json.loads(broken)["n"] is None


def test_an_empty_column_does_not_hide_the_conversation() -> None:
    out = json.loads(compress(b'{"conversations": [], "messages": [{"role":"user","content":"q"}]}').rows[0])
    assert out["compression_metrics"]["original_turns"] == 1
    out = json.loads(compress(b'{"conversations": [], "messages": null}').rows[0])
    assert out["compression_metrics"]["original_turns"] == 0 and not out["compression_metrics"]["error"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (b"[1]", "not a JSON object"),
        (b'{"prompt": "x"}', "neither 'conversations' nor 'messages'"),
        (b'{"messages": [1]}', "a turn is not a JSON object"),
        (b'{"messages": [{"role": "martian"}]}', "turn 1: its 'role' is 'martian'"),
        (b'{"messages": "[1, "}', "no JSON list"),
        (b"{", "not valid JSON"),
    ],
)
def test_what_is_no_trajectory_is_said(row: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        compress(row)


def test_metrics_have_the_same_keys_whatever_happens() -> None:
    names = [field.name for field in msgspec.structs.fields(Metrics)]
    rows = [make_row([]), make_row([shell("ls", "word " * 100)] * 6), make_row([shell("ls", "word " * 900)])]
    for strategy in STRATEGIES:
        for row in rows:
            for text in compress(row, strategy=strategy, target_max_tokens=500).rows:
                assert list(json.loads(text)["compression_metrics"]) == names
