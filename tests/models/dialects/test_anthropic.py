"""Requests of the Messages API: what is in them, what is refused before any is sent."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiseki.errors import UsageError
from kiseki.models.base import ChatRequest, Encoded, ToolSchema
from kiseki.models.dialects.anthropic import AnthropicDialect, messages_url, wire_id
from kiseki.models.dialects.anthropic_reply import THINKING
from kiseki.models.dialects.opening import open_dialect
from kiseki.models.endpoints import ModelSettings
from kiseki.models.mock_anthropic import read, signature
from kiseki.models.mock_dialects import Refused
from kiseki.trajectory.types import Message, ToolCall

HOST = "https://api.anthropic.com/v1"
LOCAL_URL = "http://127.0.0.1:9/anthropic"
SCHEMA = msgspec.Raw(b'{"type":"object","properties":{"command":{"type":"string"}}}')
TOOLS = (ToolSchema("terminal", "Run a command.", SCHEMA), ToolSchema("read_file", "", SCHEMA))
PROMPT = Message("user", "What time is it?")
MARK = {"cache_control": {"type": "ephemeral"}}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": signature("hm")}
ADAPTIVE = {"type": "adaptive", "display": "summarized"}
BOUND = {**ADAPTIVE, "block_binding": {"prefix_mismatch_behavior": "drop_block"}}


def dialect(model: str = "m", base_url: str = LOCAL_URL, **fields: Any) -> AnthropicDialect:
    opened = open_dialect(ModelSettings(model, base_url, **fields))
    assert isinstance(opened, AnthropicDialect)
    return opened


def body_of(*messages: Message, tools: tuple[ToolSchema, ...] = (), ask: dict[str, Any] | None = None, **fields: Any) -> Any:
    body, size = dialect(**fields).encode(ChatRequest(messages, tools, **(ask or {})))
    images = (ask or {}).get("images", ())
    assert size == len(body) - sum(map(len, images)) + 4500 * len(images)
    return msgspec.json.decode(body)


def unmarked(value: Any) -> Any:
    if isinstance(value, list):
        return [unmarked(each) for each in value]
    return {name: unmarked(each) for name, each in value.items() if name not in MARK} if isinstance(value, dict) else value


def called(*ids: str, **fields: Any) -> Message:
    return Message("assistant", tool_calls=tuple(ToolCall(each, "terminal", "{}") for each in ids), **fields)


def result(call_id: str, content: str = "out") -> Message:
    return Message("tool", content, tool_call_id=call_id, name="terminal")


def test_a_conversation() -> None:
    said = Message(
        "assistant", "I look.", "hm", (ToolCall("a", "terminal", '{"command": "ls"}'),), provider_fields={THINKING: [THOUGHT]}
    )
    body = body_of(Message("system", "Be brief."), PROMPT, said, result("a"), tools=TOOLS)
    schema = msgspec.json.decode(SCHEMA)
    assert body == {
        "model": "m",
        "max_tokens": 32_000,
        "system": [{"type": "text", "text": "Be brief.", **MARK}],
        "tools": [
            {"name": "terminal", "description": "Run a command.", "input_schema": schema},
            {"name": "read_file", "description": "", "input_schema": schema},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "What time is it?", **MARK}]},
            {
                "role": "assistant",
                "content": [
                    THOUGHT,
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "a", "name": "terminal", "input": {"command": "ls"}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "out", **MARK}]},
        ],
    }


def test_tools_are_marked_where_there_is_no_system_prompt() -> None:
    assert [tool.get("cache_control") for tool in body_of(PROMPT, tools=TOOLS)["tools"]] == [None, MARK["cache_control"]]


@pytest.mark.parametrize(
    "url", ["https://api.deepseek.com/anthropic", "https://api.moonshot.ai/anthropic", "https://api.z.ai/api/anthropic"]
)
def test_no_marks_where_the_host_documents_none(url: str) -> None:
    body = body_of(Message("system", "s"), PROMPT, tools=TOOLS, base_url=url)
    assert body == unmarked(body)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([PROMPT, called("a", "b"), result("b"), result("a")], ["U:text", "A:tool_use,tool_use", "U:tool_result,tool_result"]),
        ([PROMPT, called("a"), result("a"), PROMPT, PROMPT], ["U:text", "A:tool_use", "U:tool_result,text,text"]),
        ([PROMPT, Message("assistant", "x"), Message("assistant", "y"), PROMPT], ["U:text", "A:text,text", "U:text"]),
        ([PROMPT, Message("assistant", "  "), PROMPT], ["U:text,text"]),
        ([Message("assistant", "Hello, ask me."), PROMPT], ["U:text", "A:text", "U:text"]),
        ([PROMPT, Message("assistant", "x"), Message("system", "Be quick."), PROMPT], ["U:text", "A:text", "U:text,text"]),
        ([Message("user", " ")], ["U:text"]),
        ([Message("system", "s"), Message("system", " "), Message("system", "t"), Message("user", "")], ["U:text"]),
        ([Message("system", ""), PROMPT], ["U:text"]),
        ([PROMPT, called("a", content=" "), result("a", "")], ["U:text", "A:tool_use", "U:tool_result"]),
        (
            [PROMPT, Message("assistant", reasoning="hm", provider_fields={THINKING: [THOUGHT]}), PROMPT],
            ["U:text", "A:thinking,text", "U:text"],
        ),
        ([PROMPT, Message("assistant", "x", "of another model"), PROMPT], ["U:text", "A:text", "U:text"]),
    ],
)
def test_messages_become_turns(messages: list[Message], expected: list[str]) -> None:
    body, _ = dialect().encode(ChatRequest(tuple(messages)))
    read(body)  # the mock server takes it
    turns = msgspec.json.decode(body)["messages"]
    assert [f"{turn['role'][0].upper()}:{','.join(block['type'] for block in turn['content'])}" for turn in turns] == expected


def test_thinking_between_other_blocks_keeps_its_place() -> None:
    second = {"type": "thinking", "thinking": "so", "signature": signature("so")}
    kept = [THOUGHT, {"type": "text", "text": "I look."}, {"type": "tool_use"}, second, {"type": "tool_use"}]
    message = called("a", "b", "c", content="I look.", provider_fields={THINKING: kept})
    content = body_of(PROMPT, message, *map(result, "abc"))["messages"][1]["content"]
    shown = [block.get("id") or block.get("text") or block.get("thinking") for block in content]
    assert shown == ["hm", "I look.", "a", "so", "b", "c"]


@pytest.mark.parametrize("arguments", ["{bad", "[]", "", "3"])
def test_arguments_are_always_an_object(arguments: str) -> None:
    message = Message("assistant", tool_calls=(ToolCall("a", "no such.tool", arguments),))
    block = body_of(PROMPT, message, result("a"))["messages"][1]["content"][0]
    assert block["input"] == ({"_invalid_arguments": arguments} if arguments else {})
    assert block["name"] == "no_such_tool"


@given(st.lists(st.text(max_size=20), unique=True, max_size=5))
def test_ids_of_other_models_are_made_to_fit(ids: list[str]) -> None:
    fitted = [wire_id(each) for each in ids]
    assert len(set(fitted)) == len(ids)
    read(dialect().encode(ChatRequest((PROMPT, called("call_0", *ids), result("call_0"), *map(result, ids))))[0])


def test_images_stand_behind_the_text() -> None:
    images = ("data:image/png;base64,AAAA", "data:image/jpeg;base64,BB==")
    content = body_of(Message("user", "Look."), ask={"images": images})["messages"][0]["content"]
    assert content == [
        {"type": "text", "text": "Look."},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": "BB=="}},
    ]


MESSAGES = st.lists(
    st.one_of(
        st.builds(Message, st.sampled_from(["user", "system", "assistant"]), st.sampled_from(["", " ", "text", "more"])),
        st.just(called("a")),
        st.just(result("a")),
    ),
    min_size=1,
    max_size=12,
)


@given(MESSAGES, st.integers(1, 12))
def test_a_growing_conversation_is_encoded_as_one_that_is_whole(messages: list[Message], first: int) -> None:
    """And begins with the same bytes, but for the marks, so that the cache can be read."""
    speaker, encoded = dialect(), Encoded()
    before = b""
    for end in range(min(first, len(messages)), len(messages) + 1):
        request = ChatRequest(tuple(messages[:end]), TOOLS, encoded=encoded)
        body = speaker.encode(request)[0]
        assert body == speaker.encode(ChatRequest(tuple(messages[:end]), TOOLS))[0]
        assert body.count(b'"cache_control"') <= 4
        plain = msgspec.json.encode(unmarked(msgspec.json.decode(body)["messages"])).rstrip(b"]}")
        if any(each.content.strip() or each.tool_calls for each in messages[: end - 1] if each.role != "system"):
            assert plain.startswith(before)
        before = plain
    assert len(encoded) == len(messages)


def test_a_lookup_in_the_cache_finds_the_turn_before_a_long_one() -> None:
    ids = [f"c{number}" for number in range(30)]
    body = body_of(PROMPT, called("a"), result("a"), called(*ids), *map(result, ids), tools=TOOLS)
    marked = [at for at, turn in enumerate(body["messages"]) if MARK.items() <= turn["content"][-1].items()]
    assert marked == [2, 4]


# ---- settings -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "fields", "expected"),
    [
        ("claude-3-5-haiku-20241022", {}, {"max_tokens": 4096}),
        ("claude-3-haiku-20240307", {"reasoning_disabled": True, "max_tokens": 9}, {"max_tokens": 9}),
        ("claude-sonnet-4-20250514", {"reasoning_effort": "high"}, {"thinking": {"type": "enabled", "budget_tokens": 16_000}}),
        ("claude-3-7-sonnet-latest", {"reasoning_effort": "minimal"}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}),
        (
            "claude-haiku-4-5",
            {"reasoning_effort": "high", "max_tokens": 3000},
            {"max_tokens": 3000, "thinking": {"type": "enabled", "budget_tokens": 1500}},
        ),
        (
            "claude-opus-4-5",
            {"reasoning_effort": "low"},
            {"thinking": {"type": "enabled", "budget_tokens": 4096}, "output_config": {"effort": "low"}},
        ),
        ("claude-opus-4-6", {}, {}),
        (
            "claude-opus-4.6",
            {"reasoning_effort": "max"},
            {"max_tokens": 64_000, "thinking": ADAPTIVE, "output_config": {"effort": "max"}},
        ),
        ("claude-opus-4-6", {"reasoning_effort": "none"}, {}),
        ("claude-opus-4-8", {"reasoning_disabled": True, "reasoning_effort": "high"}, {"thinking": {"type": "disabled"}}),
        (
            "claude-opus-4-8",
            {"reasoning_effort": "xhigh"},
            {"max_tokens": 64_000, "thinking": ADAPTIVE, "output_config": {"effort": "xhigh"}},
        ),
        ("claude-sonnet-5", {}, {"thinking": ADAPTIVE}),
        ("claude-sonnet-5", {"reasoning_disabled": True}, {"thinking": {"type": "disabled"}}),
        ("claude-sonnet-5-5", {"reasoning_disabled": True}, {"thinking": {"type": "between_tools"}}),
        ("claude-haiku-5-5-20261001", {}, {"thinking": BOUND}),
        ("claude-fable-5-1", {"reasoning_effort": "low"}, {"thinking": BOUND, "output_config": {"effort": "low"}}),
        ("claude-next-6", {"temperature": 1.0}, {"thinking": BOUND, "temperature": 1.0}),
        ("claude-sonnet-4-5", {"temperature": 0.0}, {"temperature": 0.0}),
        (
            "claude-sonnet-4-5",
            {"top_p": 0.95, "reasoning_effort": "low"},
            {"top_p": 0.95, "thinking": {"type": "enabled", "budget_tokens": 4096}},
        ),
        (
            "claude-opus-4-8",
            {"stream": True, "extra_body": {"metadata": {"user_id": "u"}}},
            {"stream": True, "metadata": {"user_id": "u"}},
        ),
    ],
)
def test_fields_by_model(model: str, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    body = body_of(PROMPT, model=model, base_url=HOST, **fields)
    assert unmarked(body) == {
        "model": model,
        "max_tokens": 32_000,
        **expected,
        "messages": [{"role": "user", "content": [{"type": "text", "text": PROMPT.content}]}],
    }


@pytest.mark.parametrize(
    ("base_url", "model", "fields", "expected"),
    [
        (
            "https://api.deepseek.com/anthropic",
            "deepseek-v4-pro",
            {"reasoning_effort": "high"},
            {"thinking": {"type": "enabled"}, "output_config": {"effort": "high"}},
        ),
        (
            "https://api.deepseek.com/anthropic",
            "claude-opus-4-8",
            {"reasoning_disabled": True, "temperature": 1.5},
            {"thinking": {"type": "disabled"}, "temperature": 1.5},
        ),
        ("https://api.z.ai/api/anthropic", "glm-5", {"reasoning_disabled": True}, {"thinking": {"type": "disabled"}}),
        (
            "https://api.minimax.io/anthropic",
            "MiniMax-M2.7",
            {"reasoning_effort": "low"},
            {"thinking": {"type": "enabled", "budget_tokens": 4096}},
        ),
        ("https://openrouter.ai/api/v1", "anthropic/claude-opus-5.5", {}, {"thinking": ADAPTIVE}),
    ],
)
def test_fields_by_host(base_url: str, model: str, fields: dict[str, Any], expected: dict[str, Any]) -> None:
    body = body_of(PROMPT, model=model, base_url=base_url, api_mode="anthropic", **fields)
    del body["model"], body["max_tokens"], body["messages"]
    assert body == expected


@pytest.mark.parametrize(
    ("model", "fields", "said"),
    [
        ("claude-opus-5-5", {"reasoning_disabled": True}, "always thinks"),
        ("claude-3-5-sonnet-latest", {"reasoning_effort": "low"}, "no documented field"),
        ("claude-opus-4-8", {"reasoning_effort": "minimal"}, "takes only low, medium"),
        ("claude-opus-4-5", {"reasoning_effort": "max"}, "takes only low, medium, high"),
        ("claude-sonnet-4", {"reasoning_effort": "xhigh"}, "takes only minimal"),
        ("claude-sonnet-4", {"reasoning_effort": "very"}, "none of"),
        ("claude-sonnet-4", {"reasoning_effort": "low", "max_tokens": 1024}, "more than 1024"),
        ("claude-opus-4-7", {"temperature": 0.7}, "no sampling settings"),
        ("claude-sonnet-5", {"top_p": 0.9}, "no sampling settings"),
        ("claude-sonnet-4", {"temperature": 1.5}, "between 0 and 1"),
        ("claude-sonnet-4-5", {"temperature": 0.5, "top_p": 0.9}, "only one of them"),
        ("claude-sonnet-4", {"temperature": 0.5, "reasoning_effort": "low"}, "with thinking on"),
        ("claude-sonnet-4", {"top_p": 0.5, "reasoning_effort": "low"}, "with thinking on"),
        ("claude-sonnet-4", {"capture_tokens": True}, "--capture_tokens"),
        ("claude-sonnet-4", {"provider_sort": "price"}, "no provider routing"),
    ],
)
def test_what_a_model_does_not_take_is_said(model: str, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        dialect(model, HOST, **fields)


def test_an_effort_that_a_host_has_no_field_for() -> None:
    with pytest.raises(UsageError, match="no documented field"):
        dialect("glm-5", "https://api.z.ai/api/anthropic", reasoning_effort="high")


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("https://api.anthropic.com/v1", "https://api.anthropic.com/v1/messages"),
        ("https://api.anthropic.com/", "https://api.anthropic.com/v1/messages"),
        ("https://api.z.ai/api/anthropic", "https://api.z.ai/api/anthropic/v1/messages"),
        ("https://api.deepseek.com/anthropic/v1/", "https://api.deepseek.com/anthropic/v1/messages"),
        ("https://openrouter.ai/api/v1", "https://openrouter.ai/api/v1/messages"),
    ],
)
def test_url(base_url: str, url: str) -> None:
    assert messages_url(base_url) == url


@pytest.mark.parametrize(
    ("model", "base_url", "fields", "expected"),
    [
        ("claude-opus-4-8", HOST, {}, {"x-api-key": "k"}),
        (
            "claude-sonnet-4-5",
            HOST,
            {"reasoning_effort": "low"},
            {"x-api-key": "k", "anthropic-beta": "interleaved-thinking-2025-05-14"},
        ),
        ("claude-opus-5-5", HOST, {}, {"x-api-key": "k", "anthropic-beta": "thinking-binding-controls-2026-08-01"}),
        ("claude-opus-5-5", LOCAL_URL, {}, {"x-api-key": "k", "Authorization": "Bearer k"}),
        ("glm-5", "https://api.z.ai/api/anthropic", {}, {"x-api-key": "k", "Authorization": "Bearer k"}),
        ("m", LOCAL_URL, {"api_key": ""}, {}),
    ],
)
def test_headers(model: str, base_url: str, fields: dict[str, Any], expected: dict[str, str]) -> None:
    headers = dialect(model, base_url, **{"api_key": "k", **fields}).headers
    assert headers == {"anthropic-version": "2023-06-01", **expected}


def test_a_schema_for_the_answer_stands_beside_the_effort() -> None:
    ask = {"json_schema": msgspec.Raw(b'{"type":"object"}')}
    form = {"type": "json_schema", "schema": {"type": "object"}}
    fields: dict[str, Any] = {"model": "claude-opus-4-8", "base_url": HOST, "ask": ask}
    assert body_of(PROMPT, **fields, reasoning_effort="low")["output_config"] == {"effort": "low", "format": form}
    assert body_of(PROMPT, **fields)["output_config"] == {"format": form}
    assert "output_config" not in body_of(PROMPT, **{**fields, "model": "claude-sonnet-4"})
    assert body_of(PROMPT, **{**fields, "model": "claude-sonnet-4"})["messages"]


def test_no_seed_is_sent() -> None:
    assert "seed" not in body_of(PROMPT, ask={"seed": 3})


def test_the_mock_server_would_say_no() -> None:
    """Else the checks above would mean nothing."""
    with pytest.raises(Refused):
        read(dialect().encode(ChatRequest((PROMPT, called("a"))))[0])


def test_where_another_model_began_the_turn_one_that_thinks_by_budget_does_without() -> None:
    asked = AnthropicDialect(
        ModelSettings("claude-sonnet-4-5", "https://api.anthropic.com/v1", api_key="k", reasoning_effort="high")
    )
    call = Message("assistant", tool_calls=(ToolCall("a", "f", "{}"),))
    result = Message("tool", "x", tool_call_id="a", name="f")
    thought = msgspec.structs.replace(call, provider_fields={THINKING: [{"type": "thinking", "thinking": "t", "signature": "s"}]})

    def thinking(*messages: Message) -> str:
        body = msgspec.json.decode(asked.encode(ChatRequest((Message("user", "hi"), *messages)))[0])
        return str(body["thinking"]["type"])

    assert thinking() == "enabled"
    assert thinking(thought, result) == "enabled"
    assert thinking(call, result) == "disabled"
    assert thinking(call, result, Message("assistant", "done"), Message("user", "more")) == "enabled"


def test_a_schema_goes_out_without_what_structured_outputs_refuse() -> None:
    asked = AnthropicDialect(ModelSettings("claude-sonnet-4-6", "https://api.anthropic.com/v1", api_key="k"))
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "maxItems": 16, "items": {"type": "object", "properties": {}}}},
    }
    request = ChatRequest((Message("user", "hi"),), json_schema=msgspec.Raw(msgspec.json.encode(schema)))
    sent = msgspec.json.decode(asked.encode(request)[0])["output_config"]["format"]["schema"]
    items = {"type": "object", "properties": {}, "additionalProperties": False}
    assert sent == {"type": "object", "properties": {"a": {"type": "array", "items": items}}, "additionalProperties": False}
