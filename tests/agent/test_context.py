"""What is sent of a conversation whose context window is full: the decisions alone, then through the library's door."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiseki import AgentResult, AIAgent, tool
from kiseki.agent.context import Context, OnContextFull, Window
from kiseki.errors import UsageError
from kiseki.models.mock_server import MockServer
from kiseki.trajectory.record import results_cut, summarize
from kiseki.trajectory.types import ContextCut, Message, ModelCall, ToolCall, Usage

USER = Message("user", "go" * 500)
CALL = Message("assistant", tool_calls=(ToolCall("1", "dump", "{}"),))


def result(length: int, letter: str = "x") -> Message:
    return Message("tool", f"<{letter * (length - 2)}>", tool_call_id="1", name="dump")


def answered(prompt: int, completion: int = 0, reasoning: int = 0) -> ModelCall:
    return ModelCall(0.0, 0.0, usage=Usage(prompt, completion, reasoning), usage_reported=prompt > 0)


def after(messages: Iterable[Message], window: Window, calls: Iterable[ModelCall]) -> tuple[Context, list[Message]]:
    """A conversation that is to be sent again: `calls` were answered with the assistant messages."""
    context, said = Context([USER], (), window), list[Message]()
    left = iter(calls)
    for message in messages:
        if message.role == "assistant":
            assert context.has_room(said)
            context.heard(next(left))
        said.append(message)
    return context, said


def lengths(context: Context) -> list[int]:
    return [len(each.content) for each in context.messages if each.role == "tool"]


@pytest.mark.parametrize(("reply", "fits"), [(90, True), (100, False)])
def test_what_the_next_call_takes_is_foreseen(reply: int, fits: bool) -> None:
    """By the usage of the last, a token for three bytes of what is new, and the reply."""
    context, said = after([CALL, result(300)], Window(1000, reply), [answered(250, 550)])
    assert context.has_room(said) is fits


@pytest.mark.parametrize(("took", "window", "fits"), [(600, 1800, True), (600, 1650, False), (1400, 2900, False)])
def test_a_token_of_this_text_has_about_the_bytes_that_the_last_calls_showed(took: int, window: int, fits: bool) -> None:
    """The first result took so many tokens, and the next is as long."""
    context, said = after([CALL, result(3000), CALL, result(3000)], Window(window, 100), [answered(350), answered(350 + took)])
    assert context.has_room(said) is fits


def test_by_bytes_where_no_usage_was_reported() -> None:
    for window, fits in ((1500, True), (1400, False)):
        context, said = after([CALL, result(3000)], Window(window, 60), [answered(0)])
        assert context.has_room(said) is fits
    context, said = after([CALL, result(3000), CALL, result(30)], Window(2090, 60), [answered(1000, 10), answered(0)])
    assert not context.has_room(said), "the last that was reported, and what came since"


def test_a_part_of_a_window_is_kept_for_a_reply_of_any_length() -> None:
    for window, most in ((5200, 5200 - 1300), (100_000, 100_000 - 4096)):
        for prompt, fits in ((most - 10, True), (most - 5, False)):  # a result of 25 bytes follows
            context, said = after([CALL, result(9)], Window(window), [answered(prompt)])
            assert context.has_room(said) is fits


def test_reasoning_that_templates_leave_out_does_not_fill_the_window() -> None:
    seen = [answered(300, 2000, 1990), answered(320, 2000, 1990)]  # the second prompt does not have the reasoning
    context, said = after([CALL, result(9), CALL, result(9)], Window(5000, 1000), seen)
    assert context.has_room(said)
    context, said = after([CALL, result(9)], Window(3200, 1000), seen)
    assert not context.has_room(said), "of the first reply nobody knows"


def test_without_a_window_and_before_the_first_call_nothing_is_known() -> None:
    context, said = after([CALL, result(10**6)], Window(), [answered(10**6)])
    assert context.has_room(said)
    assert Context([USER], (), Window(10)).has_room([])


TRUNCATE: OnContextFull = "truncate_tool_outputs"


def test_the_oldest_results_are_cut_until_there_is_room_for_some_turns() -> None:
    turns = [each for letter in "abcd" for each in (CALL, result(12_000, letter))]
    calls = [answered(350 + 4010 * number, 10) for number in range(4)]
    context, said = after(turns, Window(17_200, 500, TRUNCATE), calls)
    encoded = context.encoded
    assert context.has_room(said), "17,334 tokens are to be 13,760 at most: one result less"
    cut, *whole = lengths(context)
    assert whole == [12_000] * 3
    assert 1000 < cut < 1100
    text = context.messages[2].content
    assert (text[:500], text[-500:]) == ("<" + "a" * 499, "a" * 499 + ">")
    assert "11,000 of 12,000 characters left out" in text
    assert context.messages[2].tool_call_id == "1"
    assert said[1] == result(12_000, "a")
    assert list(context.cuts.values()) == [ContextCut(4, 1, 1000, 12_000)]
    assert context.encoded is not encoded, "what was encoded has it whole"
    encoded = context.encoded
    context.heard(answered(13_000, 10))
    said += [CALL, result(300)]
    assert context.has_room(said)
    assert context.encoded is encoded, "nothing was cut, and the prefix is the same"
    assert lengths(context) == [cut, *whole, 300]


def test_the_last_results_are_cut_only_where_nothing_else_helps_and_keep_what_fits() -> None:
    turns = [CALL, result(9000, "a"), CALL, result(150, "b"), result(60_000, "c")]
    context, said = after(turns, Window(8000, 500, TRUNCATE), [answered(350, 10), answered(3400, 10)])
    assert context.has_room(said)
    old, small, large = lengths(context)
    assert old < 300
    assert small == 150
    assert 15_000 < large < 60_000, "a half of a half"
    assert [(each.message, each.kept) for each in context.cuts.values()] == [(1, 200), (4, 15_000)]


def test_it_ends_where_nothing_is_left_to_cut() -> None:
    context, said = after([CALL, result(250), Message("user", "z" * 9000)], Window(2000, 100, TRUNCATE), [answered(350)])
    assert not context.has_room(said)


@pytest.mark.parametrize("reply", [None, 4000])
def test_a_refusal_shows_how_large_the_window_is_not(reply: int | None) -> None:
    turns = [CALL, *(result(3000) for _ in range(40)), CALL, result(10)]
    context, said = after(turns, Window(None, reply, TRUNCATE), [answered(350), answered(40_000)])
    assert context.has_room(said)
    sizes = [sum(lengths(context))]
    while context.refused():
        sizes.append(sum(lengths(context)))
        assert sizes[-1] < sizes[-2]
    assert len(sizes) > 2
    assert sizes[-1] < sizes[0] / 3


def test_a_refusal_ends_it_where_that_is_the_policy() -> None:
    context, said = after([CALL, result(3000), CALL, result(10)], Window(), [answered(350), answered(1400)])
    assert context.has_room(said)
    assert not context.refused()
    assert not context.cuts


TURN = st.tuples(st.lists(st.integers(2, 20_000), max_size=3), st.integers(0, 30_000))


@given(st.lists(TURN, min_size=1, max_size=8), st.integers(100, 20_000), st.sampled_from([None, 50, 3000]))
def test_whatever_is_said_what_is_sent_is_the_conversation_with_results_shortened(
    turns: list[tuple[list[int], int]], window: int, reply: int | None
) -> None:
    context, said = Context([USER], (), Window(window, reply, TRUNCATE)), list[Message]()
    for sizes, prompt in turns:
        if not context.has_room(said):
            break
        context.heard(answered(prompt, 10))
        said += [CALL, *map(result, sizes)]
    context.has_room(said)
    opening, *sent = context.messages
    assert opening == USER
    assert len(sent) == len(said)
    for at, (whole, shown) in enumerate(zip(said, sent, strict=True)):
        kept = [each.kept for each in context.cuts.values() if each.message == at]
        if kept:
            assert kept == sorted(set(kept), reverse=True)
            half = kept[-1] // 2
            assert (shown.content[:half], shown.content[-half:]) == (whole.content[:half], whole.content[-half:])
            assert len(shown.content) < len(whole.content)
        else:
            assert shown == whole


# ---- through the library's door ------------------------------------------------------------------------------------------


@tool(toolset="mine")
def dump(size: int) -> str:
    """Give so many characters."""
    return f"{size}:" + "y" * size


def calls(*sizes: int, **more: Any) -> dict[str, Any]:
    return {"reasoning": "r", "tool_calls": [{"name": "dump", "arguments": {"size": each}} for each in sizes], **more}


ANSWER = {"content": "done", "reasoning": "r"}


def converse(turns: list[dict[str, Any]], server: dict[str, Any], **settings: Any) -> tuple[AgentResult, list[Any]]:
    """A conversation with a model that says `turns`, and the tool results of each request that it was sent."""
    with MockServer(script=[{"turns": turns}], record=100, **server) as running:
        agent = AIAgent("mock", base_url=running.base_url, enabled_toolsets=[], tools=[dump], **settings)
        made = agent.run_conversation("go")
        log = running.stats(log=True)["log"]
    sent = [[each["content"] for each in entry["body"]["messages"] if each["role"] == "tool"] for entry in log]
    return made, sent


def dumps(*sizes: int) -> list[str]:
    return [dump(each) for each in sizes]


@pytest.mark.parametrize("usage", ["reported", "not reported"])
def test_stop_foreseen(usage: str) -> None:
    """The third call is not made: nothing is asked in vain."""
    turns = [calls(9000), calls(9000), ANSWER]
    faults = {"faults": {"no_usage": 1.0}} if usage == "not reported" else {}
    made, sent = converse(turns, faults, context_length=5000 if faults else 4500, max_tokens=200)
    assert (made.partial, made.reason, made.error) == (True, "context_full", "")
    assert len(sent) == made.api_calls == 2
    assert [each.content for each in made.messages if each.role == "tool"] == dumps(9000, 9000), "all that was done is there"
    assert len(made.record.tool_runs) == 2
    assert not made.record.context_cuts


@pytest.mark.parametrize("usage", ["reported", "not reported"])
def test_truncation_foreseen(usage: str) -> None:
    turns = [calls(9000), calls(9000), calls(5), ANSWER]
    faults = {"faults": {"no_usage": 1.0}} if usage == "not reported" else {}
    settings = {"context_length": 6000 if faults else 5000, "max_tokens": 200, "on_context_full": "truncate_tool_outputs"}
    made, sent = converse(turns, faults, **settings)
    assert made.completed, made.error
    first, second = dumps(9000, 9000)
    assert sent[:2] == [[], [first]]
    for results in sent[2:]:
        assert results[0].startswith("9000:yyy")
        assert "characters left out" in results[0]
        assert results[1] == second
    assert sent[2][0] == sent[3][0], "the prefix stays as it is"
    assert [each.content for each in made.messages if each.role == "tool"] == [*dumps(9000, 9000), dump(5)]
    assert made.record.context_cuts == (ContextCut(2, 2, 1000, 9005),)
    assert made.record.messages[2].content == first
    assert results_cut(made.record) == summarize(made.record).context_cuts == 1


def test_a_refusal_that_was_not_foreseen() -> None:
    turns = [calls(9000), calls(9000), ANSWER]
    refuses = {"fail_after": 3, "fail_for": 1, "fail_kind": "context_length"}
    made, sent = converse(turns, refuses)
    assert (made.partial, made.reason, len(sent)) == (True, "context_full", 3)
    made, sent = converse(turns, refuses, on_context_full="truncate_tool_outputs")
    assert made.completed
    assert [len(each) for each in sent] == [0, 1, 2, 2]
    assert len(sent[2][0]) == 9005
    assert len(sent[3][0]) < 1200
    assert [each.call for each in made.record.context_cuts] == [2]


def test_refused_whatever_is_cut() -> None:
    turns = [calls(9000), calls(9000), {"content": "", "fault": {"kind": "context_length"}}]
    made, sent = converse(turns, {}, on_context_full="truncate_tool_outputs")
    assert (made.partial, made.reason) == (True, "context_full")
    assert 3 < len(sent) < 20
    assert sent[-1] != sent[2]
    assert not made.record.context_cuts, "no call that was answered had less than the whole"


def test_a_prompt_that_does_not_fit_by_itself_is_a_failure() -> None:
    for policy in ("stop", "truncate_tool_outputs"):
        made, sent = converse([{**ANSWER, "fault": {"kind": "context_length"}}], {}, on_context_full=policy)
        assert (made.completed, made.partial, made.record.error_class) == (False, False, "ContextLengthExceeded")
        assert len(sent) == 1


def test_the_window_is_what_the_endpoint_lists_and_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = {"prompt_tokens": 130_000, "completion_tokens": 10}
    with MockServer(script=[{"turns": [calls(5, usage=usage), ANSWER]}], list_prices=True) as server:
        agent = AIAgent("mock", base_url=server.base_url, enabled_toolsets=[], tools=[dump])
        assert [agent.run_conversation(each).reason for each in ("a", "b")] == ["context_full"] * 2
        wide = AIAgent("mock", base_url=server.base_url, enabled_toolsets=[], tools=[dump], context_length=200_000)
        assert wide.run_conversation("a").completed, "the user knows better"


def test_sub_agents_have_the_same_policy() -> None:
    delegate = {"reasoning": "r", "tool_calls": [{"name": "delegate_task", "arguments": {"goal": "part"}}]}
    script = [{"match": "^part", "turns": [calls(9000), calls(9000), ANSWER]}, {"turns": [delegate, ANSWER]}]
    for policy, outcome in (("stop", "partial"), ("truncate_tool_outputs", "completed")):
        with MockServer(script=script) as server:
            settings: dict[str, Any] = {"context_length": 5000, "max_tokens": 200, "on_context_full": policy}
            agent = AIAgent("m", base_url=server.base_url, enabled_toolsets=["delegation"], tools=[dump], **settings)
            made = agent.run_conversation("go")
        assert made.completed
        (child,) = made.record.tool_runs[0].children
        assert child.outcome == outcome
        assert bool(child.context_cuts) is (outcome == "completed")
        assert not made.record.context_cuts, "its own conversation"
        if outcome == "partial":
            (said,) = (json.loads(each.content)["results"] for each in made.messages if each.role == "tool")
            assert said[0]["stopped_by"] == child.reason == "context_full"


def test_a_policy_that_is_none() -> None:
    with pytest.raises(UsageError, match="on_context_full"):
        AIAgent("builtin/practice", on_context_full="shrink")  # type: ignore[arg-type]
