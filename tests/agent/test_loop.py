"""The agent loop through the library's door, against a real model server over a real socket."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kiseki import AgentResult, AIAgent, tool
from kiseki.formats.reading import read_row
from kiseki.models.mock_server import MockServer

LOUD = {"name": "shout", "arguments": {"text": "hi"}}
ANSWER = {"content": "It said {{last_tool_result}}"}


@tool(toolset="mine")
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


@tool(toolset="mine")
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool(toolset="mine")
async def meet(name: str) -> str:
    """Wait until the other one is here too: ends only when two of these run at once."""
    Room.names.append(name)
    if len(Room.names) == 2:
        Room.full.set()
    await Room.full.wait()
    return f"{name} met"


class Room:
    names: list[str]
    full: asyncio.Event


def converse(turns: list[dict[str, Any]], prompt: str = "go", **settings: Any) -> AgentResult:
    """One conversation with a model that says `turns`."""
    with MockServer(script=[{"turns": turns}]) as server:
        agent = AIAgent("m", base_url=server.base_url, enabled_toolsets=[], tools=[shout, add, meet], **settings)
        return agent.run_conversation(prompt)


def results(result: AgentResult) -> list[str]:
    return [each.content for each in result.messages if each.role == "tool"]


def test_a_call_its_result_and_an_answer() -> None:
    result = converse([{"reasoning": "I shout.", "tool_calls": [LOUD]}, ANSWER])
    assert result.completed
    assert result.final_response == "It said HI"
    assert [each.role for each in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert result.messages[1].reasoning == "I shout."
    assert result.api_calls == 2
    assert result.usage.prompt_tokens > 0
    assert result.record.tool_runs[0].ok


def test_parallel_calls_run_at_once_and_come_back_in_order() -> None:
    Room.names, Room.full = [], asyncio.Event()
    calls = [{"name": "meet", "arguments": {"name": who}, "id": who} for who in ("a", "b")]
    result = converse([{"tool_calls": [*calls, LOUD]}, ANSWER], prompt_timeout=30)
    assert result.completed, result.reason  # one after the other they would wait for ever
    assert results(result) == ["a met", "b met", "HI"]
    assert [each.tool_call_id for each in result.messages if each.role == "tool"][:2] == ["a", "b"]


@pytest.mark.parametrize("kind", ["duplicate_ids", "missing_ids"])
def test_ids_are_repaired_over_the_whole_rollout(kind: str) -> None:
    turn = {"tool_calls": [LOUD, {"name": "add", "arguments": {"a": 1}}], "fault": {"kind": kind}}
    result = converse([turn, turn, ANSWER])
    assert result.completed
    called = [call.id for each in result.messages for call in each.tool_calls]
    answered = [each.tool_call_id for each in result.messages if each.role == "tool"]
    assert called == answered
    assert len(set(called)) == 4
    assert all(called)
    assert results(result) == ["HI", "2", "HI", "2"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"name": "wsper", "arguments": {}}, "there is no tool named 'wsper'; the tools are: shout, add, meet"),
        ({"name": "shout", "arguments": '{"text": '}, "not valid JSON"),
        ({"name": "add", "arguments": {"a": "one"}}, "Expected `int`, got `str` - at `$.a`"),
        ({"name": "add", "arguments": {"b": 2}}, "missing required field `a`"),
        ({"name": "add", "arguments": {"a": 2, "c": 2}}, "unknown field `c`"),
        ({"name": "add", "arguments": "[1, 2]"}, "Expected `object`, got `array`"),
    ],
)
def test_what_the_model_gets_wrong_goes_back_to_it(call: dict[str, Any], says: str) -> None:
    result = converse([{"tool_calls": [call]}, {"tool_calls": [LOUD]}, ANSWER])
    assert result.completed
    wrong, right = results(result)
    assert says in json.loads(wrong)["error"]
    assert right == "HI"
    assert [(run.ok, run.invalid) for run in result.record.tool_runs] == [(False, True), (True, False)]
    if call["name"] == "add":
        assert json.loads(wrong)["expected"]["properties"].keys() == {"a", "b"}


def test_three_invalid_turns_in_a_row_end_it_as_partial() -> None:
    wrong = {"tool_calls": [{"name": "nothing", "arguments": {}}]}
    result = converse([wrong, wrong, {"tool_calls": [LOUD]}, wrong, wrong, wrong, ANSWER])
    assert (result.partial, result.reason, result.api_calls) == (True, "invalid_tool_calls", 6)
    assert result.record.unknown_tools == ("nothing",)


def test_a_turn_with_one_valid_call_is_no_invalid_turn() -> None:
    mixed = {"tool_calls": [{"name": "nothing", "arguments": {}}, LOUD]}
    result = converse([mixed, mixed, mixed, ANSWER])
    assert result.completed


def test_max_turns() -> None:
    result = converse([{"tool_calls": [LOUD]}], max_turns=4)
    assert (result.partial, result.reason, result.api_calls) == (True, "max_turns", 4)
    assert len(results(result)) == 4
    assert "user" not in [each.role for each in result.messages[1:]], "no turn that nobody said"


def test_the_deadline_keeps_what_was_done_and_answers_open_calls() -> None:
    Room.names, Room.full = [], asyncio.Event()
    forever = {"name": "meet", "arguments": {"name": "alone"}, "id": "never"}
    result = converse([{"tool_calls": [LOUD]}, {"tool_calls": [forever, LOUD | {"id": "quick"}]}], prompt_timeout=1.0)
    assert (result.partial, result.reason) == (True, "timeout")
    assert results(result)[0] == "HI"
    by_id = {each.tool_call_id: each.content for each in result.messages if each.role == "tool"}
    assert by_id["quick"] == "HI", "what had finished by then has happened"
    assert "the time for this task was over" in by_id["never"]
    back = read_row({"conversations": msgspec.to_builtins(result.conversations)}).messages
    assert [call.id for call in back[3].tool_calls] == ["never", "quick"], "calls and results are paired in the row too"
    assert [each.tool_call_id for each in back[4:]] == ["never", "quick"]


def test_no_reply_in_time_is_a_failure_not_a_trajectory(tmp_path: Path) -> None:
    stall = {"content": "x", "fault": {"kind": "stall"}}
    result = converse([stall], prompt_timeout=0.5, save_trajectories=True, output_dir=tmp_path)
    assert not result.completed
    assert not result.partial
    assert result.record.error_class == "RolloutTimeout"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_cut_answer_is_partial(reason: str) -> None:
    result = converse([{"content": "It is", "finish_reason": reason}])
    assert (result.partial, result.reason, result.final_response) == (True, reason, "It is")


def test_a_call_cut_at_the_token_limit_does_not_run_and_the_model_is_told() -> None:
    cut = {"tool_calls": [{"name": "shout", "arguments": '{"text": "a very lo'}, LOUD], "finish_reason": "length"}
    result = converse([cut, ANSWER])
    assert result.completed
    assert "cut off at its token limit" in json.loads(results(result)[0])["error"]
    assert results(result)[1] == "HI"


def test_an_answer_of_reasoning_alone_is_partial() -> None:
    result = converse([{"content": "", "reasoning": "So the answer is 4."}])
    assert (result.partial, result.reason) == (True, "empty_answer")
    assert result.messages[-1].reasoning == "So the answer is 4."


@pytest.mark.parametrize(
    "field", ["reasoning", "reasoning_content", "reasoning_details", "thinking", "parts", "think", "think_unopened", "scratchpad"]
)
@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_kept_wherever_it_stands(field: str, stream: bool) -> None:
    turn = {"content": "Four.", "reasoning": "Two and two.", "reasoning_field": field}
    result = converse([turn], stream=stream)
    assert result.messages[-1].reasoning == "Two and two."
    assert result.final_response == "Four."
    assert result.conversations[-1].value == "<think>\nTwo and two.\n</think>\nFour."


@pytest.mark.parametrize(("kind", "name"), [("auth", "AuthError"), ("no_credit", "AuthError"), ("bad_request", "BadRequest")])
def test_a_provider_error_is_a_failure_with_its_class(kind: str, name: str, tmp_path: Path) -> None:
    result = converse([{"content": "x", "fault": {"kind": kind}}], save_trajectories=True, output_dir=tmp_path)
    assert (result.completed, result.partial) == (False, False)
    assert result.record.error_class == name
    assert result.error
    assert not list(tmp_path.iterdir())


def test_ephemeral_prompt_and_prefill_are_sent_but_not_saved(tmp_path: Path) -> None:
    with MockServer(script=[{"turns": [{"content": "ok"}]}], record=1) as server:
        agent = AIAgent(
            "m",
            base_url=server.base_url,
            enabled_toolsets=[],
            tools=[shout],
            ephemeral_system_prompt="SECRET RULES",
            prefill_messages=[{"role": "user", "content": "PRE one"}, {"role": "assistant", "content": "PRE two"}],
            save_trajectories=True,
            output_dir=tmp_path,
        )
        agent.run_conversation("go")
        (request,) = server.stats(log=True)["log"]
    sent = [(each["role"], each["content"]) for each in request["body"]["messages"]]
    assert sent == [("system", "SECRET RULES"), ("user", "PRE one"), ("assistant", "PRE two"), ("user", "go")]
    saved = (tmp_path / "trajectory_samples.jsonl").read_text()
    assert "SECRET" not in saved
    assert "PRE " not in saved


def test_a_tool_that_raises_and_one_that_hangs_are_results() -> None:
    @tool(toolset="mine", timeout=0.2)
    async def hang() -> str:
        """Never ends."""
        await asyncio.Event().wait()
        return ""

    @tool(toolset="mine")
    def crash() -> str:
        """Raises."""
        raise RuntimeError("out of paper")

    turns = [{"tool_calls": [{"name": "hang", "arguments": {}}, {"name": "crash", "arguments": {}}]}, ANSWER]
    with MockServer(script=[{"turns": turns}]) as server:
        agent = AIAgent("m", base_url=server.base_url, enabled_toolsets=[], tools=[hang, crash])
        result = agent.run_conversation("go")
    assert result.completed
    late, broken = (json.loads(each)["error"] for each in results(result))
    assert "did not finish within 0.2 seconds" in late
    assert broken == "RuntimeError: out of paper"


def test_plain_functions_that_never_return_hold_up_nobody() -> None:
    """Many at once, more than any pool of threads would have; each ends at its limit, and a good call beside them works."""
    never = threading.Event()

    @tool(toolset="mine", timeout=0.3)
    def stuck() -> str:
        """Never returns."""
        never.wait()
        return ""

    turns = [{"tool_calls": [{"name": "stuck", "arguments": {}}] * 100 + [LOUD]}, ANSWER]
    with MockServer(script=[{"turns": turns}]) as server:
        agent = AIAgent("m", base_url=server.base_url, enabled_toolsets=[], tools=[stuck, shout], prompt_timeout=60)
        result = agent.run_conversation("go")
    never.set()
    assert result.completed
    *late, loud = results(result)
    assert loud == "HI"
    assert all("did not finish within 0.3 seconds" in each for each in late)


def test_whatever_a_tool_raises_is_its_result() -> None:
    """Also what ends a process or cancels a task elsewhere: the rollout and its neighbours go on."""

    class Unspeakable:
        def __str__(self) -> str:
            raise RuntimeError("no words")

    @tool(toolset="mine")
    async def fail(how: str) -> object:
        """Fail in a given way."""
        if how == "result":
            return Unspeakable()
        raise {
            "exit": SystemExit(3),
            "interrupt": KeyboardInterrupt(),
            "cancel": asyncio.CancelledError(),
            "group": BaseExceptionGroup("several", [SystemExit(1)]),
            "stop": StopAsyncIteration(),
            "words": RuntimeError(Unspeakable()),
        }[how]

    @tool(toolset="mine")
    def fail_plainly(how: str) -> None:
        """Fail in a given way, in a thread."""
        raise {"exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "stop": StopIteration()}[how]

    hows = ["result", "exit", "interrupt", "cancel", "group", "stop", "words"]
    calls = [{"name": "fail", "arguments": {"how": how}} for how in hows]
    plain = [{"name": "fail_plainly", "arguments": {"how": how}} for how in ("exit", "interrupt", "stop")]
    with MockServer(script=[{"turns": [{"tool_calls": [*calls, *plain, LOUD]}, {"tool_calls": calls[1:2]}, ANSWER]}]) as server:
        agent = AIAgent("m", base_url=server.base_url, enabled_toolsets=[], tools=[fail, fail_plainly, shout], prompt_timeout=60)
        result = agent.run_conversation("go")
    assert result.completed, result.error
    assert results(result)[10] == "HI"
    errors = [json.loads(each)["error"] for each in results(result)[:10]]
    assert errors[1] == errors[7] == "SystemExit: 3"
    assert errors[3].startswith("CancelledError")
    assert [run.ok for run in result.record.tool_runs] == [False] * 10 + [True, False]
