"""What the mock server's Messages API refuses, as the real one does."""

from __future__ import annotations

import http.client
from typing import Any

import msgspec
import pytest

from kiseki.models.mock_anthropic import signature
from kiseki.models.mock_server import LOOPBACK, MockServer

USER = {"role": "user", "content": "hi"}
TOOL = {"name": "terminal", "input_schema": {"type": "object"}}
USE = {"type": "tool_use", "id": "a", "name": "terminal", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a", "content": "out"}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": signature("hm")}
MARK = {"cache_control": {"type": "ephemeral"}}
BUDGET = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}


def said(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def post(server: MockServer, body: Any) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(LOOPBACK, int(server.root_url.rpartition(":")[2]))
    connection.request("POST", "/anthropic/v1/messages", body if isinstance(body, bytes) else msgspec.json.encode(body))
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    return response.status, msgspec.json.decode(answer)


def request(*messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 100, "messages": list(messages), **fields}


@pytest.fixture(scope="module")
def server() -> Any:
    with MockServer() as running:
        yield running


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "Input data was truncated"),
        (b"[]", "Expected `object`"),
        ({"model": "m", "messages": [USER]}, "max_tokens: Field required"),
        ({"max_tokens": 1, "messages": [USER]}, "model: Field required"),
        (request(), "at least one message"),
        (request(USER, seed=1), "seed: Extra inputs are not permitted"),
        (request(said({"type": "text", "text": "a"}), USER), "first message"),
        (request({"role": "system", "content": "s"}), "first message"),
        (request(USER, {"role": "system", "content": "s"}), "'user' or 'assistant'"),
        (request(user({"type": "text", "text": " "})), "non-whitespace"),
        (request(user()), "non-empty content"),
        (request(USER, said(USE)), "without `tool_result`"),
        (request(USER, said(USE), USER), "without `tool_result`"),
        (
            request(USER, said(USE, {**USE, "id": "b"}), user(RESULT), user({**RESULT, "tool_use_id": "b"})),
            "without `tool_result`",
        ),
        (request(user(RESULT)), "unexpected `tool_use_id`"),
        (request(USER, said(USE), user({"type": "text", "text": "x"}, RESULT)), "must come first"),
        (request(USER, said(USE, USE), user(RESULT)), "unique"),
        (request(USER, said({**USE, "input": "{}"}), user(RESULT)), "valid dictionary"),
        (request(USER, said({**USE, "id": "a.b"}), user({**RESULT, "tool_use_id": "a.b"})), "match pattern"),
        (request(user(USE)), "can only be in `assistant`"),
        (request(USER, said({**THOUGHT, "thinking": "changed"}, USE), user(RESULT)), "Invalid `signature`"),
        (request(USER, said({"type": "thinking", "thinking": "hm"}, USE), user(RESULT)), "Invalid `signature`"),
        (request(USER, said({**THOUGHT, **MARK}, USE), user(RESULT)), "cache_control"),
        (request(USER, said(THOUGHT), USER), "final block"),
        (request(USER, said(USE), user(RESULT), **BUDGET), "Expected `thinking`"),
        (request(USER, **{**BUDGET, "max_tokens": 1024}), "less than `max_tokens`"),
        (request(user(*[{"type": "text", "text": "x", **MARK}] * 5)), "A maximum of 4 blocks"),
        (request(USER, tools=[{**TOOL, **MARK}], system=[{"type": "text", "text": "s", **MARK}] * 4), "Found 5"),
        (request({"role": "user", "content": [{}]}), "not as it should be"),
        (request({"role": "user", "content": 3}), "not as it should be"),
        (request(USER, max_tokens=0), "Expected `int` >= 1"),
    ],
)
def test_refused(server: MockServer, body: Any, words: str) -> None:
    status, answer = post(server, body)
    assert status == 400
    assert answer["type"] == "error"
    assert answer["error"]["type"] == "invalid_request_error"
    assert words in answer["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        request(USER),
        request(user({"type": "text", "text": "a"}), USER),
        request(USER, said(USE), user(RESULT, {"type": "text", "text": "and"})),
        request(USER, said(THOUGHT, USE), user(RESULT), **BUDGET),
        request(USER, said({"type": "redacted_thinking", "data": "x"}, USE), user(RESULT), **BUDGET),
        request(USER, said(USE), user(RESULT), said({"type": "text", "text": "a"}), USER, **BUDGET),
        request(USER, system="s", tools=[{**TOOL, **MARK}], tool_choice={"type": "auto"}, metadata={}),
    ],
)
def test_taken(server: MockServer, body: dict[str, Any]) -> None:
    status, answer = post(server, body)
    assert (status, answer["type"], answer["role"]) == (200, "message", "assistant")


def test_thinking_is_only_given_where_it_is_not_switched_off(server: MockServer) -> None:
    for thinking, kinds in (({"type": "disabled"}, ["text"]), ({"type": "adaptive"}, ["thinking", "text"])):
        assert [block["type"] for block in post(server, request(USER, thinking=thinking))[1]["content"]] == kinds


def test_errors_and_limits_are_in_the_apis_words() -> None:
    for kind, status, name in (("rate_limit", 429, "rate_limit_error"), ("error_529", 529, "overloaded_error")):
        with MockServer([{"turns": [{"fault": {"kind": kind}}]}]) as server:
            answered, answer = post(server, request(USER))
        assert (answered, answer["error"]["type"]) == (status, name)


@pytest.mark.parametrize(("between", "found"), [(18, True), (19, False)])
def test_the_cache_is_looked_up_a_few_blocks_back(between: int, found: bool) -> None:
    begun = {"type": "text", "text": "The beginning of it all."}
    rest = [{"type": "text", "text": f"Part {number}."} for number in range(between)]
    with MockServer() as server:
        (_, first), (_, second) = (
            post(server, request(user(*blocks)))
            for blocks in ([{**begun, **MARK}], [begun, *rest, {"type": "text", "text": "And on.", **MARK}])
        )
    assert first["usage"]["cache_read_input_tokens"] == 0
    assert first["usage"]["cache_creation_input_tokens"] > 0
    read_back = first["usage"]["cache_creation_input_tokens"] if found else 0
    assert second["usage"]["cache_read_input_tokens"] == read_back
