"""The mock server's Responses API: what it refuses, as the real one does, and the two ways in which it shows reasoning."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any

import pytest

from kiseki.models.mock_server import MockServer

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"], "additionalProperties": False}
TOOL = {"type": "function", "name": "terminal", "description": "Run.", "parameters": SCHEMA}
USER = {"role": "user", "content": "What time is it?"}
CALL = {"type": "function_call", "call_id": "c1", "name": "terminal", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "noon"}
REQUEST = {"model": "m", "input": [USER], "tools": [TOOL], "store": False}
ENCRYPTED = {"include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}}

Changed = Callable[[dict[str, Any]], dict[str, Any]]


def post(server: MockServer, body: Any) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", int(server.root_url.rpartition(":")[2]), timeout=30)
    connection.request("POST", "/v1/responses", json.dumps(body))
    answer = connection.getresponse()
    return answer.status, answer.read()


def ask(server: MockServer, **fields: Any) -> dict[str, Any]:
    status, body = post(server, {**REQUEST, **fields})
    assert status == 200, body
    decoded: dict[str, Any] = json.loads(body)
    return decoded


def refusal(server: MockServer, body: Any) -> tuple[int, str, str]:
    status, answer = post(server, body)
    error = json.loads(answer)["error"]
    return status, error["code"], error["message"]


def event_list(body: bytes) -> list[dict[str, Any]]:
    found = []
    for block in body.decode().split("\n\n")[:-1]:
        kind, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}"
        found.append(event)
    return found


def with_input(*items: Any) -> dict[str, Any]:
    return {**REQUEST, "input": [USER, *items]}


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ({"input": "hi"}, "missing_required_parameter", "'model'"),
        ({"model": "m"}, "missing_required_parameter", "'input'"),
        ({**REQUEST, "seed": 1}, "unknown_parameter", "Unknown parameter: 'seed'"),
        ({**REQUEST, "messages": []}, "unknown_parameter", "'messages'"),
        (
            {**REQUEST, "tools": [{"type": "function", "function": {"name": "x"}}]},
            "missing_required_parameter",
            "'tools[0].name'",
        ),
        (
            {**REQUEST, "tools": [{**TOOL, "parameters": {**SCHEMA, "required": []}}]},
            "invalid_function_parameters",
            "including every key",
        ),
        (
            {**REQUEST, "tools": [{**TOOL, "parameters": {**SCHEMA, "additionalProperties": True}}]},
            "invalid_function_parameters",
            "'additionalProperties'",
        ),
        (
            {**REQUEST, "text": {"format": {"type": "json_schema", "schema": {}}}},
            "missing_required_parameter",
            "text.format.name",
        ),
        (with_input(OUTPUT), "invalid_request_error", "No tool call found for function call output with call_id c1"),
        (with_input(OUTPUT, CALL), "invalid_request_error", "No tool call found"),
        (with_input(CALL), "invalid_request_error", "No tool output found for function call c1"),
        (with_input({**CALL, "call_id": None}, OUTPUT), "invalid_request_error", "No tool call found"),
        (with_input({**CALL, "name": None}, OUTPUT), "missing_required_parameter", "'input[1].name'"),
        (with_input({**CALL, "arguments": {}}, OUTPUT), "invalid_type", "'input[1].arguments'"),
        (with_input({"role": "assistant", "content": [{"type": "input_text", "text": "a"}]}), "invalid_value", "'output_text'"),
        (with_input({"role": "user", "content": [{"type": "text", "text": "a"}]}), "invalid_value", "'input_text'"),
        (with_input({"type": "thought"}), "invalid_value", "'thought'"),
        (with_input({"role": "user"}), "missing_required_parameter", "'input[1].content'"),
        ({**REQUEST, "input": ["hi"]}, "invalid_request_error", "Expected `object`"),
        ({**REQUEST, "input": [{"role": "user", "content": 1}]}, "invalid_request_error", "Expected `array`"),
        ([], "invalid_request_error", "Expected `object`"),
    ],
)
def test_what_is_refused(body: Any, code: str, words: str) -> None:
    with MockServer() as server:
        status, found, message = refusal(server, body)
    assert (status, found) == (400, code)
    assert words in message


@pytest.mark.parametrize(
    ("change", "status", "code", "words"),
    [
        (lambda item: {**item, "summary": []}, 400, "invalid_encrypted_content", "could not be verified"),
        (lambda item: {**item, "id": "rs_1"}, 400, "invalid_encrypted_content", "could not be verified"),
        (lambda item: {**item, "encrypted_content": item["encrypted_content"][1:]}, 400, "invalid_encrypted_content", "verified"),
        (lambda item: {**item, "encrypted_content": None}, 404, "invalid_request_error", "not found"),
        (lambda item: {**item, "status": None}, 400, "unknown_parameter", "'input[1].status'"),
        (lambda item: {"type": "reasoning", "id": "rs_1"}, 400, "missing_required_parameter", "'input[1].summary'"),
    ],
)
def test_reasoning_goes_back_as_it_came(change: Changed, status: int, code: str, words: str) -> None:
    with MockServer(turns=2) as server:
        thought, call = ask(server, **ENCRYPTED)["output"]
        rest = [call, {**OUTPUT, "call_id": call["call_id"]}]
        assert thought["summary"] == [{"type": "summary_text", "text": "I call terminal."}]
        assert post(server, with_input(thought, *rest))[0] == 200
        found = refusal(server, with_input(change(thought), *rest))
        assert (found[:2], words in found[2]) == ((status, code), True)


@pytest.mark.parametrize("after", [[], [USER], [{"role": "assistant", "content": "else"}]])
def test_reasoning_goes_back_with_what_it_led_to(after: list[Any]) -> None:
    with MockServer() as server:
        thought = ask(server, **ENCRYPTED)["output"][0]
        status, _, message = refusal(server, with_input(thought, *after))
    assert status == 400
    assert ("required following item" in message) or ("could not be verified" in message)


def test_without_encryption_the_reasoning_is_shown() -> None:
    with MockServer() as server:
        output = ask(server)["output"]
        assert output[0]["content"] == [{"type": "reasoning_text", "text": "I call terminal."}]
        assert (output[0]["encrypted_content"], output[0]["summary"]) == (None, [])
        back = [{"type": "reasoning", "id": "any", "summary": [], "content": output[0]["content"]}, output[1]]
        answer = ask(server, input=[USER, *back, {**OUTPUT, "call_id": output[1]["call_id"], "output": "noon"}])
        assert answer["output"][1]["content"][0]["text"] == "Done. noon"
        assert ask(server, **{**ENCRYPTED, "reasoning": {}})["output"][0]["summary"] == []


@pytest.mark.parametrize("fields", [{}, ENCRYPTED])
def test_the_events_say_what_the_answer_does(fields: dict[str, Any]) -> None:
    turn = {"content": "It is noon, and some more.", "reasoning": "I look at the sun.", "tool_calls": [{"name": "terminal"}]}
    with MockServer([{"turns": [turn]}]) as server:
        whole = ask(server, **fields)
        events = event_list(post(server, {**REQUEST, **fields, "stream": True})[1])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[0]["type"] == "response.created"
    assert events[0]["response"]["output"] == []
    assert (events[-1]["type"], events[-1]["response"]["output"]) == ("response.completed", whole["output"])
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == whole["output"]
    text = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert len(text) > 1
    assert "".join(text) == turn["content"]


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
def test_an_answer_that_was_cut_is_incomplete(finish: str, reason: str) -> None:
    with MockServer([{"turns": [{"content": "It is", "finish_reason": finish}]}]) as server:
        whole = ask(server)
        assert (whole["status"], whole["incomplete_details"]) == ("incomplete", {"reason": reason})
        events = event_list(post(server, {**REQUEST, "stream": True})[1])
        assert events[-1]["type"] == "response.incomplete"


def test_prompts_are_cached_by_their_key() -> None:
    long = {"role": "user", "content": "x" * 8000}

    def cached(key: str | None, *items: Any) -> int:
        found = ask(server, input=[long, *items], **({"prompt_cache_key": key} if key else {}))["usage"]
        return int(found["input_tokens_details"]["cached_tokens"])

    with MockServer([{"turns": [{"content": "a"}]}]) as server:
        assert [cached(None, USER), cached(None, USER), cached("a", USER)] == [0, 0, 0]
        assert cached("a", USER, {"role": "assistant", "content": "b"}, USER) == 2048
        assert cached("b", USER) == 0
        assert cached("a", {"role": "user", "content": "else"}) == 0
