"""The ladder: each step in its order, no further than needed, and what it must never touch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from compress.laddering import CONFIG, COUNTER, LAYOUTS, check_calls, laddered, lines, outputs, read
from compress.trajectories import LayoutName, make_row, messages_rows, sharegpt_rows, shell
from hypothesis import given, settings
from hypothesis import strategies as st

from kiseki.compress.config import CompressionConfig
from kiseki.compress.draft import Draft
from kiseki.compress.ladder.calls import brief, observations_of
from kiseki.compress.ladder.ladder import Ladder, clean_all, run_ladder
from kiseki.compress.metrics import Metrics, Region
from kiseki.compress.regions import between, is_protected, spans, units_of
from kiseki.compress.turns import SUMMARY_MARK, Layout, Turn, is_summary

NOTES = ("[Same output as before", "[Older view of ", "[Old output left out")


# ---- the steps, one by one ---------------------------------------------------------------------------------------------------


@LAYOUTS
def test_outputs_are_cleaned_first_and_only_as_many_as_needed(layout: LayoutName) -> None:
    noise = "\x1b[32mok\x1b[0m\n" * 50 + lines(5)
    row = make_row([shell("ls", noise) for _ in range(5)], layout=layout)
    before, draft, done = laddered(row, 100)
    assert done.counts() == Ladder(observations_cleaned=1).counts()
    changed = [old != new for old, new in zip(outputs(before), outputs(draft), strict=True)]
    assert changed == [False, True, False, False, False]
    assert json.loads(outputs(draft)[1]) == {"output": f"ok\n[same line 49 more times]\n{lines(5)}", "exit_code": 0}


@LAYOUTS
def test_cleaning_alone_does_all_that_may_be_edited(layout: LayoutName) -> None:
    row = make_row([shell("ls", "\x1b[32mok\x1b[0m\n" * 50) for _ in range(5)], layout=layout)
    draft = read(row)
    assert clean_all(draft, CONFIG) == Ladder(observations_cleaned=3)
    assert [turn for turn in draft.turns if turn.role == "gpt"] == [turn for turn in read(row).turns if turn.role == "gpt"]


@LAYOUTS
def test_an_output_stays_as_it_is_where_cleaning_would_gain_nothing(layout: LayoutName) -> None:
    row = make_row([shell("ls", lines(40).replace("\n", "  \r\n"))] * 3 + [shell("ls", lines(2))] * 2, layout=layout)
    before, draft, done = laddered(row, 1)
    assert done.observations_cleaned == 0 and draft.turns[:4] == before.turns[:4]
    assert clean_all(before, CONFIG).observations_cleaned > 0


@LAYOUTS
def test_a_repeated_output_becomes_a_pointer(layout: LayoutName) -> None:
    row = make_row(
        [shell("pytest -x", lines(40)), shell("ls", "a"), shell("pytest  -x", lines(40)), shell("ls", "b")], layout=layout
    )
    _, draft, done = laddered(row, 50)
    assert done == Ladder(observations_repeated=1)
    assert outputs(draft)[2] == "[Same output as before: terminal: pytest -x]"


@LAYOUTS
def test_an_older_view_of_a_file_becomes_a_pointer(layout: LayoutName) -> None:
    first = shell("true", "")
    view = ("str_replace_editor", {"command": "view", "path": "/src/a.py"})
    steps = [first, (*view, lines(30, "old")), shell("ls", lines(9)), (*view, lines(30, "new")), shell("ls", "x")]
    _, draft, done = laddered(make_row(steps, layout=layout), 50)
    assert done == Ladder(observations_repeated=1)
    assert outputs(draft)[1] == "[Older view of /src/a.py left out: its later state is below]"


OLD, NEW = lines(30, "old"), lines(30, "new")


@pytest.mark.parametrize(
    ("older", "later", "goes"),
    [
        (shell("cat a.py", OLD), shell("cat a.py", NEW), True),
        (shell("cd /src && cat a.py", OLD), shell("cat -n /src/a.py", NEW), True),
        (shell("sed -n '1,9p' /a", OLD), shell("sed -n 1,9p /a", NEW), True),
        (("read_file", {"path": "a.py", "offset": 9}, OLD), ("read_file", {"offset": 9, "path": "a.py"}, NEW), True),
        (("open", {"path": "a.py"}, OLD), ("open", {"path": "a.py"}, NEW), True),
        (("read_file", {"path": "a.py"}, OLD), ("write_file", {"path": "a.py", "content": NEW}, "written"), True),
        (shell("sed -n 1,9p /a", OLD), shell("cat /a", NEW), True),
        # another part, another file, another folder, more than a view, a view that failed or is not whole
        (shell("sed -n 1,9p /a", OLD), shell("sed -n 5,9p /a", NEW), False),
        (shell("cat /a", OLD), shell("head -5 /a", NEW), False),
        (("read_file", {"path": "a.py", "offset": 9}, OLD), ("read_file", {"path": "a.py"}, NEW), False),
        (shell("cat a.py", OLD), shell("cat b.py", NEW), False),
        (shell("cat a.py", OLD), shell("cd lib && cat a.py", NEW), False),
        (shell("cat a.py | head", OLD), shell("cat a.py", NEW), False),
        (("read_file", {"path": "a.py"}, OLD), ("write_file", {"path": "a.py", "content": NEW}, "Error: no space"), False),
        (("patch", {"path": "a.py"}, OLD), ("patch", {"path": "a.py"}, NEW), False),
        (shell("sed -n 1,9p /a", OLD), ("bash", {"command": "cat /a"}, json.dumps({"output": NEW, "truncated": True})), False),
    ],
)  # fmt: skip
def test_only_a_view_that_is_surely_stale_goes(older: Any, later: Any, goes: bool) -> None:
    _, draft, done = laddered(make_row([shell("true", ""), older, later, shell("ls", "x")]), 1)
    assert (done.observations_repeated == 1) is goes
    assert outputs(draft)[1].startswith("[Older view of ") is goes


def test_what_a_pointer_points_to_is_not_taken_for_an_older_view() -> None:
    steps = [shell("true", ""), *(shell("cat /a", text) for text in (OLD, OLD, NEW)), shell("ls", "x")]
    _, draft, done = laddered(make_row(steps), 250)
    shown = [json.loads(each)["output"] if each.startswith("{") else each for each in outputs(draft)]
    assert shown[2] == "[Same output as before: terminal: cat /a]"
    assert shown[1] != "[Older view of /a left out: its later state is below]"
    assert done.observations_repeated == 1


@LAYOUTS
def test_the_largest_outputs_are_cut_inside_their_json(layout: LayoutName) -> None:
    row = make_row(
        [shell("a", "x"), shell("b", lines(300)), shell("c", lines(900)), shell("d", lines(20)), shell("e", "x")], layout=layout
    )
    before, draft, done = laddered(row, 2_000)
    assert done == Ladder(observations_cut=1)
    assert 0 <= before.total - 2_000 - draft.total <= 60
    cut = json.loads(outputs(draft)[2])
    head, mark, tail = cut["output"].partition("\n[... ")
    number, _, tail = tail.partition(" tokens left out ...]\n")
    assert cut["exit_code"] == 0 and mark
    assert lines(900).startswith(head + "\n") and lines(900).endswith("\n" + tail)
    assert abs(int(number.replace(",", "")) - 2_000) < 200
    assert outputs(draft)[1] == outputs(before)[1]


def test_levels_fall_only_as_far_as_needed() -> None:
    row = make_row([shell("a", "x"), *(shell(f"b {number}", lines(300, f"{number}")) for number in range(4)), shell("e", "x")])
    before = read(row)
    sizes = []
    for less in (1_500, 4_500, before.total - 1_500):
        _, draft, done = laddered(row, less)
        assert draft.total <= before.total - less
        assert done.observations_masked == 0
        sizes.append([COUNTER.count(each) for each in outputs(draft)[1:-1]])
    whole = [COUNTER.count(each) for each in outputs(before)[1:-1]]
    assert sizes[0][1:] == whole[1:] and 700 < sizes[0][0] < 1_300  # of equal ones the oldest is first
    assert sizes[1][3:] == whole[3:] and all(700 < size < 1_300 for size in sizes[1][:2]) and sizes[1][2] < whole[2]
    assert all(150 < size < 600 for size in sizes[2])


def test_a_second_cut_counts_the_first_in() -> None:
    row = make_row([shell("a", "x"), shell("b", lines(900)), shell("e", "x")])
    _, draft, _ = laddered(row, 4_000)
    first = draft.total
    run_ladder(draft, CONFIG, first - 1_000)
    output = json.loads(outputs(draft)[1])["output"]
    assert output.count(" tokens left out ...]") == 1
    number = output.partition("[... ")[2].partition(" ")[0]
    assert abs(int(number.replace(",", "")) - 5_000) < 300


@LAYOUTS
def test_old_outputs_are_left_out_oldest_first(layout: LayoutName) -> None:
    row = make_row([shell(f"b {number}", lines(15, f"{number}")) for number in range(8)], layout=layout)
    before, draft, done = laddered(row, 250)
    assert done == Ladder(observations_masked=2)
    masked = [each.startswith("[Old output left out: ") for each in outputs(draft)]
    assert masked == [False, True, True, *[False] * 5]
    assert before.total - 250 - draft.total < before.tokens[-2]


@pytest.mark.parametrize("placement", ["human", "tool", "first_human"])
@LAYOUTS
def test_units_give_way_to_a_digest_of_what_they_were(layout: LayoutName, placement: Any) -> None:
    row = make_row([shell(f"b {number}", lines(9, f"{number}")) for number in range(30)], layout=layout, said="I look. " * 20)
    config = msgspec.structs.replace(CONFIG, summary_placement=placement)
    before, draft, done = laddered(row, 3_500, config)
    assert draft.total <= before.total - 3_500
    assert before.total - 3_500 - draft.total < sum(before.tokens[4:6]) + 120
    start = done.region.start_idx
    assert done.region == Region(start, start + 2 * done.units_digested, 2 * done.units_digested) and done.units_digested > 3
    told = next(turn for turn in draft.turns if SUMMARY_MARK in turn.text)
    assert told.role == {"human": "human", "tool": "tool", "first_human": "human"}[placement]
    assert f"{SUMMARY_MARK} {done.units_digested} earlier steps in brief:" in told.text
    assert "- terminal: b 1 → ok: 1 0: something that was printed" in told.text
    assert len(draft.turns) == len(before.turns) - 2 * done.units_digested + (placement == "human")


def test_the_counters_are_those_of_the_metrics() -> None:
    assert set(Ladder().counts()) <= set(Metrics.__struct_fields__)


# ---- what it must never do -----------------------------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None)
@given(
    sharegpt_rows() | messages_rows(),
    st.sampled_from((0.0, 0.2, 0.5, 0.7, 0.9, 0.99)),
    st.sampled_from(("human", "tool", "first_human")),
    st.sampled_from((0, 2, 4)),
)
def test_invariants(row: dict[str, Any], share: float, placement: Any, last: int) -> None:
    config = msgspec.structs.replace(CONFIG, summary_placement=placement, last_n_turns=last)
    before, draft = read(row), read(row)
    budget = int(before.total * share)
    done = run_ladder(draft, config, budget)

    assert draft.total == sum(draft.tokens) == sum(COUNTER.count(turn.text) for turn in draft.turns) <= before.total
    check_untouched(before, draft, config)
    check_calls(draft)
    check_pointers(draft)
    for turn in draft.turns:
        assert read_again(draft.layout, turn) == (turn.role, turn.text)
    check_json(before, draft)

    again = read(row)
    assert run_ladder(again, config, budget) == done and again.turns == draft.turns

    second = Draft(draft.turns, draft.layout, COUNTER)
    run_ladder(second, config, budget)
    assert second.turns == draft.turns
    region = done.region
    assert (done.units_digested > 0) == (region.turns_count > 0)
    assert not region.turns_count or 0 <= region.start_idx <= region.end_idx - region.turns_count < len(before.turns)
    if draft.total > budget:
        check_nothing_left(draft, config)

    third = Draft(draft.turns, draft.layout, COUNTER)
    run_ladder(third, config, budget // 2)
    assert third.total <= draft.total
    check_untouched(before, third, config)
    check_calls(third)
    check_pointers(third)
    check_json(before, third)


def read_again(layout: Layout, turn: Turn) -> tuple[str, str]:
    read = layout.read(msgspec.json.decode(turn.raw), turn.raw)
    return read.role, read.text


def check_untouched(before: Draft, draft: Draft, config: CompressionConfig) -> None:
    """Turns before the span and at the end byte for byte, the model's turns whole or gone, order kept."""
    inside = {at for span in spans(before.turns, config) for unit in span for at in range(unit.start, unit.end)}
    inside |= {at for at in between(before.turns, config) if before.turns[at].role == "tool"}
    kept = [turn.raw for at, turn in enumerate(before.turns) if at not in inside and not hosts_digest(before, at, config)]
    assert is_subsequence(kept, [turn.raw for turn in draft.turns])
    protected = is_protected(before.turns, config)
    assert not any(protected[at] for at in inside)
    gpt = [turn.raw for turn in draft.turns if turn.role == "gpt"]
    assert is_subsequence(gpt, [turn.raw for turn in before.turns if turn.role == "gpt"])


def hosts_digest(before: Draft, at: int, config: CompressionConfig) -> bool:
    """Whether a digest may stand in that turn, as it was asked for."""
    role = before.turns[at].role
    if config.summary_placement == "human":
        return is_summary(before.turns[at])
    return role == "human" if config.summary_placement == "first_human" else role == "tool" or is_summary(before.turns[at])


def check_pointers(draft: Draft) -> None:
    """What a pointer points to is there."""
    observed = [each for unit in units_of(draft.turns) for each in observations_of(draft.turns, draft.layout, unit)]
    named: set[str] = set()
    for nth, each in enumerate(observed):
        text = each.output.text.partition("\n")[0]  # a digest may stand after it
        if text.startswith(NOTES[0]):
            assert text.partition(": ")[2][:-1] in named
        elif text.startswith(NOTES[1]):
            path = text[len(NOTES[1]) :].partition(" left out: ")[0]
            later = [other for other in observed[nth + 1 :] if other.call and path in other.call.arguments]
            assert not all(other.output.text.startswith(NOTES) for other in later)
        if not text.startswith(NOTES):
            named.add(brief(each.call, each.output.name))


def is_subsequence(few: Sequence[Any], many: Sequence[Any]) -> bool:
    rest = iter(many)
    return all(each in rest for each in few)


def check_json(before: Draft, draft: Draft) -> None:
    """What was JSON is JSON, or a note."""
    if not any("from" in turn.data for turn in before.turns):
        return
    were = {bytes(turn.raw) for turn in before.turns}
    for turn in draft.turns:
        if turn.role == "tool" and bytes(turn.raw) not in were:
            for block in turn.text.split("<tool_response>")[1:]:
                payload = block.partition("</tool_response>")[0].strip()
                if payload.startswith('{"tool_call_id"'):
                    assert set(msgspec.json.decode(payload)) == {"tool_call_id", "name", "content"}


def check_nothing_left(draft: Draft, config: CompressionConfig) -> None:
    for at in between(draft.turns, config):
        turn = draft.turns[at]
        if turn.role == "tool" and not is_summary(turn):
            for output in draft.layout.outputs(turn):
                assert output.text.startswith(NOTES) or COUNTER.count(output.text) <= 32


# ---- odd rows -----------------------------------------------------------------------------------------------------------------


@LAYOUTS
def test_one_giant_output(layout: LayoutName) -> None:
    giant = "".join(f"{number * 7919 % 1000003} " for number in range(40_000))
    before, draft, done = laddered(make_row([shell("a", "x"), shell("b", giant), shell("e", "x")], layout=layout), 100_000)
    assert before.total > 100_000
    assert done == Ladder(observations_cut=1)
    assert 0 <= before.total - 100_000 - draft.total <= 40


def test_parallel_outputs_are_edited_each_by_itself() -> None:
    parallel = [shell("small", "tiny"), shell("large", lines(500)), ("fetch", {"url": "u"}, "plain </tool_response> text")]
    before, draft, done = laddered(make_row([shell("a", "x"), parallel, shell("e", "x")]), 2_000)
    assert done == Ladder(observations_cut=1)
    old, new = outputs(before), outputs(draft)
    assert (new[1], new[3]) == (old[1], old[3]) and len(new[2]) < len(old[2])
    turn = next(turn for turn in draft.turns if "plain" in turn.text)
    assert turn.text.count("</tool_response>") == 3


def test_of_a_unit_that_is_protected_in_part_the_other_outputs_are_edited() -> None:
    three = [[shell(f"{name} {nth}", lines(300, f"{name} {nth}")) for nth in range(3)] for name in ("first", "middle", "last")]
    row = make_row(three, layout="messages", final="")
    less = 5 * COUNTER.count(lines(300, "first 0"))
    before, draft, done = laddered(row, less)
    assert done.observations_cut == 6 and not done.units_digested and draft.total <= before.total - less
    changed = [at for at, (old, new) in enumerate(zip(outputs(before), outputs(draft), strict=True)) if old != new]
    assert changed == [1, 2, 3, 4, 5, 6], "not the first output, and not the last two turns"


def test_several_digests_get_shorter_together() -> None:
    row = make_row([shell(f"b {number}", lines(9, f"{number}")) for number in range(40)], said="I look. " * 20)
    for at in (60, 40, 20):
        row["conversations"].insert(at, {"from": "system", "value": "A new rule."})
    _, draft, done = laddered(row, 10**6)
    digests = [turn for turn in draft.turns if is_summary(turn)]
    assert len(digests) == 4 and done.units_digested == 38
    budget = draft.total - 150
    draft = read(row)
    done = run_ladder(draft, CONFIG, budget)
    assert draft.total <= budget
    assert sum("more steps]" in turn.text for turn in draft.turns) == 4
    assert done.region.turns_count == 2 * done.units_digested == len(read(row).turns) - len(draft.turns) + 4


def test_numbers_that_cannot_be_cut_are_left_out() -> None:
    row = make_row([shell("a", "x"), ("numbers", {}, json.dumps(list(range(3_000)))), shell("e", "x")])
    _, draft, done = laddered(row, 100)
    assert done == Ladder(observations_masked=1)
    assert outputs(draft)[1].startswith("[Old output left out: ")


def test_json_that_only_python_reads_stays_json() -> None:
    row = make_row([shell("a", "x"), shell("b", "x"), shell("e", "x")])
    payload = json.dumps({"tool_call_id": "1", "name": "b", "content": {"loss": float("nan"), "log": "\ud800" + lines(300)}})
    row["conversations"][5]["value"] = f"<tool_response>\n{payload}\n</tool_response>"
    _, draft, done = laddered(row, 1_000)
    assert done == Ladder(observations_cut=1)
    made = msgspec.json.decode(draft.turns[5].text.removeprefix("<tool_response>\n").removesuffix("\n</tool_response>"))
    assert made["content"]["loss"] is None and "tokens left out" in made["content"]["log"]


def test_parts_that_are_no_text_stay() -> None:
    row = make_row([shell("a", "x"), shell("b", lines(300)), shell("c", lines(20)), shell("e", "x")], layout="messages")
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    for at in (5, 7):
        row["messages"][at]["content"] = [{"type": "text", "text": row["messages"][at]["content"]}, image]
    _, draft, _ = laddered(row, 10**6)
    kept = [turn.data["content"] for turn in draft.turns if isinstance(turn.data["content"], list)]
    assert all(content[1] == image and content[0]["text"].startswith(NOTES) for content in kept)


def test_a_system_turn_in_the_middle_stays_between_two_digests() -> None:
    row = make_row([shell(f"b {number}", lines(9, f"{number}")) for number in range(20)], said="I look. " * 20)
    row["conversations"].insert(20, {"from": "system", "value": "A new rule."})
    _, draft, done = laddered(row, 10**6)
    assert [turn.role for turn in draft.turns] == [
        *("system", "human", "gpt", "tool"),  # protected
        *("human", "system", "human"),
        *("gpt", "tool", "gpt"),  # of which the last two are protected
    ]
    assert done.region == Region(4, 41, 36) and done.units_digested == 18


def test_a_tool_turn_at_the_end_keeps_its_call() -> None:
    row = make_row([shell(f"b {number}", lines(30, f"{number}")) for number in range(6)], final="")
    config = msgspec.structs.replace(CONFIG, last_n_turns=1)
    before, draft, _ = laddered(row, 10**6, config)
    assert [turn.raw for turn in draft.turns[-2:]] == [turn.raw for turn in before.turns[-2:]]
    check_calls(draft)


def test_within_the_budget_nothing_is_done() -> None:
    _, draft, done = laddered(row := make_row([shell("ls", "\x1b[0mx  \n" * 9)] * 5), 0)
    assert done == Ladder() and draft.turns == read(row).turns
