"""Every shape in which servers answer, and what of a conversation goes back to them."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiseki.errors import BadResponse
from kiseki.models.base import ChatReply, ToolSchema
from kiseki.models.dialects.base import encode
from kiseki.models.dialects.chat import encode_tools, object_text, wire_message
from kiseki.models.dialects.chat_reply import CALL_EXTRAS, decode_completion, reply_of
from kiseki.models.hosts import LOCAL, OPENROUTER, UNKNOWN, host_of
from kiseki.trajectory.types import Message, ToolCall, Usage


def reply_to(message: dict[str, Any], finish: Any = "stop", **top: Any) -> ChatReply:
    body = msgspec.json.encode({"choices": [{"message": message, "finish_reason": finish}], **top})
    return reply_of(decode_completion(body), started=1.0, seconds=2.0)


def call(**fields: Any) -> dict[str, Any]:
    return {"content": None, "tool_calls": [fields]}


def test_everything_that_is_kept() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "completion_tokens_details": {"reasoning_tokens": 2},
        "prompt_tokens_details": {"cached_tokens": 7},
        "cost": 0.25,
    }
    reply = reply_to({"content": "hi"}, usage=usage, id="gen-1", model="m-1", provider="Acme")
    assert reply.call.usage == Usage(10, 5, 2, 7, 0.25)
    assert reply.call.usage_reported
    assert (reply.call.response_id, reply.call.model, reply.call.provider) == ("gen-1", "m-1", "Acme")
    assert (reply.call.started, reply.call.seconds, reply.call.finish_reason) == (1.0, 2.0, "stop")


@pytest.mark.parametrize(
    "usage", [{}, {"prompt_tokens": None, "completion_tokens_details": None}, {"prompt_tokens": 3.0, "cost": None}]
)
def test_usage_with_holes(usage: dict[str, Any]) -> None:
    call = reply_to({"content": "hi"}, usage=usage).call
    assert call.usage_reported
    assert call.usage.prompt_tokens == (usage.get("prompt_tokens") or 0)


def test_usage_absent_is_told_from_zero() -> None:
    assert not reply_to({"content": "hi"}).call.usage_reported
    assert not reply_to({"content": "hi"}, usage=None).call.usage_reported


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"id": "a", "function": {"name": "f", "arguments": '{"x":1}'}}, ToolCall("a", "f", '{"x":1}')),
        ({"id": None, "function": {"name": "f", "arguments": {"x": 1}}}, ToolCall("", "f", '{"x":1}')),
        ({"function": {"name": None, "arguments": None}}, ToolCall("", "", "")),
        ({"id": 7, "function": {"name": "f", "arguments": "{bad"}}, ToolCall("7", "f", "{bad")),
        ({"id": "a", "function": None}, ToolCall("a", "", "")),
        ({"id": "a", "function": {"name": "f", "arguments": ["x"]}}, ToolCall("a", "f", '["x"]')),
    ],
)
def test_tool_calls_as_servers_give_them(fields: dict[str, Any], expected: ToolCall) -> None:
    assert reply_to(call(**fields), "tool_calls").message.tool_calls == (expected,)


def test_duplicate_ids_are_left_as_they_came() -> None:
    one = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    assert [c.id for c in reply_to({"tool_calls": [one, one]}).message.tool_calls] == ["a", "a"]


def test_legacy_function_call() -> None:
    reply = reply_to({"content": None, "function_call": {"name": "f", "arguments": "{}"}}, "function_call")
    assert reply.message.tool_calls == (ToolCall("", "f", "{}"),)


def test_native_and_inline_reasoning_are_joined() -> None:
    message = reply_to({"content": "<think>b</think>c", "reasoning": "a"}).message
    assert (message.content, message.reasoning) == ("c", "a\n\nb")
    same = reply_to({"content": "<think>a</think>c", "reasoning_content": "a"}).message
    assert (same.content, same.reasoning) == ("c", "a")


def test_a_refusal_is_the_content() -> None:
    assert reply_to({"content": None, "refusal": "I can't help with that."}).message.content == "I can't help with that."


@pytest.mark.parametrize("finish", ["stop", "tool_calls", None])
@pytest.mark.parametrize("message", [{}, {"content": None}, {"content": " \n"}, {"content": []}, {"content": "<think></think>"}])
def test_an_empty_reply_is_none(message: dict[str, Any], finish: str | None) -> None:
    with pytest.raises(BadResponse, match="empty"):
        reply_to(message, finish)


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_an_empty_reply_that_says_why_is_one(finish: str) -> None:
    assert reply_to({"content": None}, finish).call.finish_reason == finish


def test_reasoning_alone_is_a_reply() -> None:
    assert reply_to({"content": "", "reasoning": "hm"}).message.reasoning == "hm"


@pytest.mark.parametrize(
    "body", [b"", b"null", b"[]", b"hello", b'{"choices":3}', b"{}", b'{"choices":[]}', b'{"choices":[{}]}', b"\xff"]
)
def test_what_is_no_completion(body: bytes) -> None:
    with pytest.raises(BadResponse):
        reply_of(decode_completion(body), started=0.0, seconds=0.0)


def test_what_is_almost_json_is_read_and_cleaned() -> None:
    calls = b'[{"function":{"name":"f","arguments":{"k":"\\udfff"}}}]'
    body = b'\xef\xbb\xbf{"choices":[{"message":{"content":"a\\ud800b \xff","tool_calls":%b},"x":NaN}]}' % calls
    message = reply_of(decode_completion(body), started=0.0, seconds=0.0).message
    assert message.content == "a\ufffdb \ufffd"
    assert message.tool_calls[0].arguments == '{"k":"\ufffd"}'
    msgspec.json.encode(message)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("content", "reasoning", "reasoning_content", "reasoning_details", "thinking", "refusal", "tool_calls", "function_call")


@given(st.dictionaries(st.sampled_from(FIELDS), JSON), JSON)
def test_any_answer_is_a_reply_or_a_bad_response(message: dict[str, Any], finish: Any) -> None:
    try:
        reply = reply_to(message, finish)
    except BadResponse:
        return
    assert msgspec.json.decode(msgspec.json.encode(reply.message), type=Message) == reply.message


def test_messages_as_they_go_out() -> None:
    assistant = Message("assistant", "", "why", (ToolCall("c", "f", '{"x": 1}'), ToolCall("d", "f", "{bad")))
    wire = wire_message(assistant, UNKNOWN)
    assert wire == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
            {"id": "d", "type": "function", "function": {"name": "f", "arguments": '{"_invalid_arguments":"{bad"}'}},
        ],
    }
    assert wire_message(Message("user", "hi"), LOCAL) == {"role": "user", "content": "hi"}
    tool = Message("tool", "out", tool_call_id="c", name="f")
    assert wire_message(tool, LOCAL) == {"role": "tool", "tool_call_id": "c", "content": "out"}


def test_reasoning_goes_back_under_the_name_that_the_host_reads() -> None:
    message = Message("assistant", "x", "why")
    deepseek = host_of("https://api.deepseek.com")
    assert wire_message(message, LOCAL) == {"role": "assistant", "content": "x", "reasoning": "why", "reasoning_content": "why"}
    assert wire_message(message, deepseek) == {"role": "assistant", "content": "x", "reasoning_content": "why"}
    assert wire_message(message, OPENROUTER) == {"role": "assistant", "content": "x", "reasoning": "why"}
    assert wire_message(message, host_of("https://api.openai.com/v1")) == {"role": "assistant", "content": "x"}


def test_provider_fields_go_back_as_they_came() -> None:
    details = [{"type": "reasoning.encrypted", "data": "xyz", "index": 0}]
    message = reply_to({"content": "x", "reasoning": "a", "reasoning_details": details}).message
    assert wire_message(message, OPENROUTER) == {"role": "assistant", "content": "x", "reasoning_details": details}


def test_what_a_tool_call_carries_goes_back_on_it() -> None:
    signature = {"google": {"thought_signature": "s"}}
    signed = {"id": "a", "function": {"name": "f", "arguments": "{}"}, "extra_content": signature}
    plain = {"id": "b", "function": {"name": "f", "arguments": "{}"}}
    wire = wire_message(reply_to({"content": None, "tool_calls": [signed, plain]}, "tool_calls").message, UNKNOWN)
    assert wire["tool_calls"][0]["extra_content"] == signature
    assert "extra_content" not in wire["tool_calls"][1]
    assert set(wire) == {"role", "content", "tool_calls"}


@given(st.text())
def test_arguments_always_go_back_as_a_json_object(arguments: str) -> None:
    decoded = msgspec.json.decode(object_text(arguments))
    assert isinstance(decoded, dict)
    if decoded and "_invalid_arguments" in decoded:
        assert decoded["_invalid_arguments"] == arguments


def test_tools_go_out_with_their_schema_as_it_is() -> None:
    schema = b'{"type": "object",  "properties": {}}'
    assert schema in encode_tools((ToolSchema("f", "does", msgspec.Raw(schema)),))
    assert encode({"a": 1}) == b'{"a":1}'


def test_calls_of_another_model_go_to_gemini_with_the_mark_that_it_documents() -> None:
    gemini = host_of("https://generativelanguage.googleapis.com/v1beta/openai")
    calls = (ToolCall("a", "f", "{}"), ToolCall("b", "f", "{}"))
    mark = {"google": {"thought_signature": "skip_thought_signature_validator"}}
    sent = wire_message(Message("assistant", tool_calls=calls), gemini)["tool_calls"]
    assert [each.get("extra_content") for each in sent] == [mark, None]
    own = {"google": {"thought_signature": "real"}}
    sent = wire_message(Message("assistant", tool_calls=calls, provider_fields={CALL_EXTRAS: [own, None]}), gemini)["tool_calls"]
    assert [each.get("extra_content") for each in sent] == [own, None]
    assert "extra_content" not in wire_message(Message("assistant", tool_calls=calls), OPENROUTER)["tool_calls"][0]


def test_ids_go_to_mistral_with_nine_characters_the_same_in_call_and_result() -> None:
    mistral = host_of("https://api.mistral.ai/v1")
    for own_id in ("call_0", "toolu_01ABC", "a1b2c3d4e", "äöüäöüäöü"):
        call = wire_message(Message("assistant", tool_calls=(ToolCall(own_id, "f", "{}"),)), mistral)["tool_calls"][0]["id"]
        assert call == wire_message(Message("tool", "x", tool_call_id=own_id), mistral)["tool_call_id"]
        assert re.fullmatch("[a-zA-Z0-9]{9}", call) and (call == own_id) is (own_id == "a1b2c3d4e")
