"""Token ids and logprobs from the mock server to the record: the same ones that it sampled, streamed or not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support import with_client

from kiseki import AgentResult, AIAgent, tool
from kiseki.errors import UsageError
from kiseki.models.base import ChatReply, ChatRequest
from kiseki.models.dialects.chat import request_fields
from kiseki.models.dialects.chat_reply import decode_completion, reply_of
from kiseki.models.endpoints import ModelSettings
from kiseki.models.factory import check_settings
from kiseki.models.mock_server import MockServer
from kiseki.models.mock_tokens import END, logprobs_of, prompt_ids
from kiseki.trajectory.token_trace import prompts, segments, share
from kiseki.trajectory.types import CallTokens, Message, ModelCall

LOUD = {"name": "shout", "arguments": {"text": "hi"}}
TURNS: list[dict[str, Any]] = [
    {"reasoning": "It is to be loud, and this is a long thought of several pieces.", "content": "I call.", "tool_calls": [LOUD]},
    {"tool_calls": [LOUD, LOUD]},
    {"reasoning": "Done.", "content": "It said {{last_tool_result}}, 大声."},
]


@tool(toolset="mine")
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()


def run(server: MockServer, **settings: Any) -> AgentResult:
    agent = AIAgent("m", base_url=server.base_url, enabled_toolsets=[], tools=[shout], capture_tokens=True, **settings)
    return agent.run_conversation("Be loud.")


def asked(server: MockServer) -> list[dict[str, Any]]:
    return [each["body"] for each in server.stats(log=True)["log"]]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "think", "think_unopened"])
@pytest.mark.parametrize(("stream", "ids_as"), [(False, "vllm"), (True, "vllm"), (False, "sglang")])
def test_the_ids_are_those_that_were_sampled(stream: bool, ids_as: str, field: str) -> None:
    with MockServer([{"turns": TURNS}], record=9, ids_as=ids_as, reasoning_field=field) as server:
        calls = run(server, stream=stream).record.calls
        bodies = asked(server)
    assert all(body["return_token_ids"] is True and body["logprobs"] is True for body in bodies)
    sent = [tuple(prompt_ids(body["messages"], body["tools"])) for body in bodies]
    assert prompts(calls) == sent
    for one, before, after in zip(calls, sent, sent[1:], strict=False):
        assert one.tokens is not None
        assert after[len(before) :][: len(one.tokens.completion)] == one.tokens.completion
    last = calls[-1].tokens
    assert last is not None
    assert bytes(last.completion[:-1]).decode() == "<think>\nDone.\n</think>\nIt said HI, 大声."
    assert last.completion[-1] == END
    for each in calls:
        assert each.tokens is not None
        assert each.tokens.logprobs == tuple(logprobs_of(each.tokens.completion))
    assert [each.tokens.shared > 0 for each in calls if each.tokens] == [False, True, True]
    assert len(segments(calls)) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_template_that_takes_old_reasoning_out_starts_a_segment(stream: bool) -> None:
    with MockServer([{"turns": TURNS}], record=9, strip_reasoning=True) as server:
        calls = run(server, stream=stream).record.calls
        bodies = asked(server)
    sent = [tuple(prompt_ids(body["messages"], body["tools"], strip_reasoning=True)) for body in bodies]
    assert prompts(calls) == sent
    assert [each.prompt for each in segments(calls)] == [sent[0], sent[1]]  # the second turn has no reasoning to lose


def test_arguments_that_are_no_json_go_back_otherwise_and_start_a_segment() -> None:
    turns = [{"tool_calls": [{"name": "shout", "arguments": '{"text": '}]}, TURNS[2]]
    with MockServer([{"turns": turns}]) as server:
        calls = run(server).record.calls
    assert len(segments(calls)) == 2


def test_a_reply_that_was_cut_has_no_end() -> None:
    with MockServer([{"turns": [{"content": "a long answer, too long for its limit"}]}]) as server:
        call = run(server, max_tokens=5).record.calls[0]
    assert call.tokens is not None
    assert call.finish_reason == "length"
    assert END not in call.tokens.completion


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_without_ids_leaves_nothing(stream: bool) -> None:
    with MockServer([{"turns": TURNS}], ids_as="none") as server:
        result = run(server, stream=stream)
    assert result.completed
    assert [each.tokens for each in result.record.calls] == [None, None, None]


def test_nothing_is_asked_or_kept_without_the_flag() -> None:
    with MockServer([{"turns": TURNS}], record=9) as server:
        result = AIAgent("m", base_url=server.base_url, enabled_toolsets=[], tools=[shout]).run_conversation("Be loud.")
        bodies = asked(server)
    assert not any("return_token_ids" in body or "logprobs" in body for body in bodies)
    assert not any(each.tokens for each in result.record.calls)


def test_sglang_says_that_it_does_not_stream_them() -> None:
    with MockServer(ids_as="sglang") as server:
        result = run(server, stream=True)
    assert "return_token_ids is not supported with streaming" in result.error


def test_sub_agents_keep_theirs() -> None:
    task = {"name": "delegate_task", "arguments": {"goal": "Look around."}}
    script = [{"match": "Look", "turns": [{"content": "Seen."}]}, {"turns": [{"tool_calls": [task]}, {"content": "Done."}]}]
    with MockServer(script) as server:
        agent = AIAgent("m", base_url=server.base_url, enabled_toolsets=["delegation"], capture_tokens=True)
        record = agent.run_conversation("Ask a helper.").record
    child = record.tool_runs[0].children[0]
    assert child.calls[0].tokens is not None
    assert bytes(child.calls[0].tokens.completion[:-1]) == b"Seen."


HOSTED = [
    "https://openrouter.ai/api/v1",
    "https://api.openai.com/v1",
    "https://api.anthropic.com/v1",
    "http://localhost:11434/v1",
]


@pytest.mark.parametrize("base_url", HOSTED)
def test_a_host_without_such_a_field_is_refused(base_url: str) -> None:
    with pytest.raises(UsageError, match=r"--capture_tokens: .* token ids"):
        check_settings(ModelSettings("m", base_url, capture_tokens=True))


@pytest.mark.parametrize(
    ("base_url", "more"),
    [
        ("http://127.0.0.1:8000/v1", {"top_logprobs": 1, "return_tokens": True, "verbose": True}),  # it may be llama.cpp
        ("https://llm.example.com/v1", {}),
    ],
)
def test_own_servers_are_asked(base_url: str, more: dict[str, Any]) -> None:
    extras = request_fields(ModelSettings("m", base_url, capture_tokens=True))
    assert extras == {"logprobs": True, "return_token_ids": True, **more}


def answer(top: dict[str, Any], choice: dict[str, Any]) -> CallTokens | None:
    body = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop", **choice}], **top}
    return reply_of(decode_completion(msgspec.json.encode(body)), started=1.0, seconds=1.0, capture_tokens=True).call.tokens


def content(*values: Any) -> dict[str, Any]:
    return {"logprobs": {"content": [{"logprob": each} for each in values]}}


def test_what_is_no_list_of_ids_is_none() -> None:
    assert answer({"prompt_token_ids": [1]}, {"token_ids": [2]}) == CallTokens((1,), (2,))
    assert answer({"prompt_token_ids": [1]}, {}) is None
    assert answer({}, {"token_ids": [2]}) == CallTokens((), (2,))
    wrongs: list[Any] = ["12", {"a": 1}, [1, "2"], [1.0], [True], [-1], [2**31], [None], 7]
    for wrong in wrongs:
        assert answer({"prompt_token_ids": [1]}, {"token_ids": wrong}) is None
        assert answer({"prompt_token_ids": wrong}, {"token_ids": [2]}) == CallTokens((), (2,))


def test_a_part_of_the_ids_is_none() -> None:
    usage = {"usage": {"prompt_tokens": 1, "completion_tokens": 3}}
    assert answer({"prompt_token_ids": [1], **usage}, {"token_ids": [2, 3]}) is None
    assert answer({"prompt_token_ids": [1], **usage}, {"token_ids": [2, 3, 4]}) is not None


def entries(*ids: int) -> dict[str, Any]:
    return {"logprobs": {"content": [{"id": each, "logprob": -0.5} for each in ids]}}


@pytest.mark.parametrize(
    ("verbose", "logprobs", "kept"),
    [
        ({"tokens": [5, 6, 2]}, entries(5, 6, 2), CallTokens((), (5, 6, 2), (-0.5, -0.5, -0.5))),
        ({"tokens": [5, 6, 2]}, entries(5, 2), CallTokens((), (5, 6, 2))),  # of parts of a character there are no logprobs
        ({"tokens": [5, 6, 2]}, entries(5, 7, 2), CallTokens((), (5, 6, 2))),
        ({"tokens": []}, entries(5, 6, 2), CallTokens((), (5, 6, 2), (-0.5, -0.5, -0.5))),  # as it streams
        (None, entries(5, 6, 2), CallTokens((), (5, 6, 2), (-0.5, -0.5, -0.5))),
        (None, entries(5, 6), None),
        (None, content(-0.5, -0.5, -0.5), None),
    ],
)
def test_of_llama_cpp_the_replys_ids_are_kept_and_the_prompts_absent(
    verbose: Any, logprobs: dict[str, Any], kept: CallTokens | None
) -> None:
    usage = {"usage": {"prompt_tokens": 1, "completion_tokens": 3}}
    assert answer({"__verbose": verbose, **usage}, logprobs) == kept


def test_calls_without_the_prompts_ids_are_part_of_no_sequence() -> None:
    def call(prompt: tuple[int, ...], completion: tuple[int, ...]) -> ModelCall:
        return ModelCall(1.0, 1.0, tokens=CallTokens(prompt, completion))

    first = call((1, 2), (3,))
    alone = share(call((), (9,)), [first])
    after = share(call((1, 2, 3, 4), (5,)), [first, alone])
    assert alone.tokens == CallTokens((), (9,)) and after.tokens == CallTokens((4,), (5,), shared=3)
    assert prompts([first, alone, after]) == [(1, 2), None, (1, 2, 3, 4)]
    assert [each.ids for each in segments([first, alone, after])] == [(1, 2, 3, 4, 5)]
    assert segments([alone]) == []


def test_a_fallbacks_ids_are_part_of_no_sequence() -> None:
    def call(prompt: tuple[int, ...], completion: tuple[int, ...], fallback: str = "") -> ModelCall:
        return ModelCall(1.0, 1.0, tokens=CallTokens(prompt, completion), fallback=fallback)

    first, other = call((1, 2), (3,)), call((1, 2, 3, 4), (9,), "other")
    assert share(other, [first]) == other
    after = share(call((1, 2, 3, 4, 5), (6,)), [first, other])
    assert prompts([first, other, after]) == [(1, 2), None, (1, 2, 3, 4, 5)]
    assert [each.ids for each in segments([first, other, after])] == [(1, 2, 3, 4, 5, 6)]
    assert [piece.call for piece in segments([first, other, after])[0].pieces] == [0, None, 2]


def test_logprobs_are_all_there_or_none() -> None:
    def logprobs(choice: dict[str, Any]) -> tuple[float, ...]:
        found = answer({"prompt_token_ids": [1]}, {"token_ids": [2, 3], **choice})
        assert found is not None
        return found.logprobs

    assert logprobs(content(-0.5, 0)) == (-0.5, 0.0)
    wrongs: list[dict[str, Any]] = [
        content(-0.5),
        content(-0.5, None),
        content(-0.5, "0"),
        content(-0.5, 1e300),
        {"logprobs": []},
        {"logprobs": None},
    ]
    for wrong in wrongs:
        assert logprobs(wrong) == ()


def test_a_stream_that_lost_ids_keeps_none() -> None:
    def ask(client: Any) -> Any:
        return client.complete(ChatRequest((Message("user", "hi"),)))

    script = [{"turns": [{"content": "hello", "usage": {"prompt_tokens": 1, "completion_tokens": 99, "total_tokens": 100}}]}]
    with MockServer(script) as server:
        reply: ChatReply = with_client(server.base_url, ask, stream=True, capture_tokens=True)
    assert reply.message.content == "hello"
    assert reply.call.tokens is None
