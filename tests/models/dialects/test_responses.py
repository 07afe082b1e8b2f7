"""The Responses dialect: its requests, and what is read of answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kiseki.errors import BadRequest, BadResponse, ProviderError, ProviderOverloaded, RateLimited, UsageError
from kiseki.models.base import ChatReply, ChatRequest, Encoded, ToolSchema
from kiseki.models.dialects.base import IMAGE_SIZE, MAX_ANSWER
from kiseki.models.dialects.responses import ResponsesDialect
from kiseki.models.endpoints import ModelSettings
from kiseki.trajectory.types import Message, ToolCall

OPENAI, LOCAL = "http://api.openai.com/v1", "http://127.0.0.1:8000/v1"
KEY = "sk-0123456789abcdef"
SCHEMA = msgspec.Raw(b'{"type":"object","properties":{"command":{"type":"string"},"timeout":{"type":"integer"}}}')
TOOLS = (ToolSchema("terminal", "Run a command.", SCHEMA),)
PROMPT = (Message("system", "Be brief."), Message("user", "What time is it?"))
RECORDED = json.loads((Path(__file__).parent.parent / "recorded" / "responses.json").read_text())


def dialect(base_url: str = OPENAI, model: str = "gpt-5.6", **fields: Any) -> ResponsesDialect:
    return ResponsesDialect(ModelSettings(model, base_url, **fields))


def body_of(asked: ResponsesDialect, *messages: Message, **fields: Any) -> dict[str, Any]:
    body, _ = asked.encode(ChatRequest(messages, encoded=Encoded(), **fields))
    decoded: dict[str, Any] = json.loads(body)
    return decoded


def streamed(asked: ResponsesDialect, *events: Any, end: bytes = b"") -> ChatReply:
    stream = asked.stream()
    for event in events:
        stream.feed(b"data: %b\n\n" % json.dumps(event).encode())
    stream.feed(end)
    return stream.reply(0.0, 0.0)


def test_the_request() -> None:
    settings: dict[str, Any] = {"max_tokens": 100, "reasoning_effort": "max", "stream": True}
    asked = dialect(api_key=KEY, extra_body={"service_tier": "flex"}, **settings)
    call = Message("assistant", "I look.", "hm", (ToolCall("c1", "terminal", "{bad"),))
    body = body_of(asked, *PROMPT, call, Message("tool", "12:00", tool_call_id="c1", name="terminal"), tools=TOOLS, seed=7)
    assert (asked.url, asked.headers) == (f"{OPENAI}/responses", {"Authorization": f"Bearer {KEY}"})
    assert len(body.pop("prompt_cache_key")) == 16
    assert body == {
        "model": "gpt-5.6",
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 100,
        "stream": True,
        "stream_options": {"include_obfuscation": False},
        "reasoning": {"effort": "max", "summary": "auto"},
        "service_tier": "flex",
        "input": [
            {"type": "message", "role": "system", "content": "Be brief."},
            {"type": "message", "role": "user", "content": "What time is it?"},
            {"type": "message", "role": "assistant", "content": "I look."},
            {
                "type": "function_call",
                "call_id": "c1",
                "name": "terminal",
                "arguments": '{"_invalid_arguments":"{bad"}',
            },
            {"type": "function_call_output", "call_id": "c1", "output": "12:00"},
        ],
        "tools": [
            {
                "type": "function",
                "name": "terminal",
                "description": "Run a command.",
                "parameters": json.loads(bytes(SCHEMA)),
                "strict": False,
            }
        ],
    }


@pytest.mark.parametrize(
    ("base_url", "model", "settings", "expected"),
    [
        (OPENAI, "gpt-5.6", {"reasoning_disabled": True}, {"reasoning": {"effort": "none"}}),
        (OPENAI, "gpt-5.6", {}, {"reasoning": {"summary": "auto"}}),
        (OPENAI, "gpt-5.6", {"extra_body": {"reasoning": {}}}, {"reasoning": {}}),
        (LOCAL, "qwen", {"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}),
        (LOCAL, "qwen", {}, {}),
        (
            LOCAL,
            "qwen",
            {"reasoning_disabled": True},
            {"reasoning": {"effort": "none"}, "chat_template_kwargs": {"enable_thinking": False, "thinking": False}},
        ),
        (LOCAL, "gpt-5.6", {"temperature": 0.0, "top_p": 0.5}, {"temperature": 0.0, "top_p": 0.5}),
        ("https://openrouter.ai/api/v1", "a/b", {"provider_sort": "price"}, {"provider": {"sort": "price"}}),
    ],
)
def test_fields_by_host(base_url: str, model: str, settings: dict[str, Any], expected: dict[str, Any]) -> None:
    body = body_of(dialect(base_url, model, **settings), *PROMPT)
    for own in ("model", "input", "store", "include", "prompt_cache_key"):
        body.pop(own, None)
    assert body == expected


@pytest.mark.parametrize(
    ("model", "settings", "taken"),
    [
        ("gpt-4.1", {}, True),
        ("gpt-5-chat-latest", {}, True),
        ("gpt-5.2", {}, True),  # it does not reason unless asked to
        ("gpt-5.6", {"reasoning_effort": "none"}, True),
        ("gpt-5.6", {"reasoning_disabled": True}, True),
        ("gpt-5.6", {"extra_body": {"reasoning": {"effort": "none"}}}, True),
        ("my-deployment", {"reasoning_effort": "low"}, True),  # on Azure, which model that is only the host knows
        ("gpt-5.2", {"reasoning_effort": "low"}, False),
        ("gpt-5.6", {}, False),
        ("gpt-6", {}, False),
        ("gpt-5-mini", {"reasoning_effort": "none"}, False),
        ("ft:gpt-5-mini:us::1", {}, False),
        ("o4-mini", {}, False),
    ],
)
def test_sampling_settings_that_a_model_refuses_while_it_reasons(model: str, settings: dict[str, Any], taken: bool) -> None:
    assert body_of(dialect(OPENAI, model, temperature=1.0, **settings), *PROMPT)["temperature"] == 1.0
    both: dict[str, Any] = {"temperature": 0.3, "top_p": 0.5, **settings}
    if taken:
        body = body_of(dialect(OPENAI, model, **both), *PROMPT)
        assert (body["temperature"], body["top_p"]) == (0.3, 0.5)
    else:
        with pytest.raises(UsageError, match=rf"^--temperature and --top_p: {model} takes no sampling settings while it reasons"):
            dialect(OPENAI, model, **both)
        with pytest.raises(UsageError, match=r"^--top_p: "):
            dialect(OPENAI, model, top_p=0.5, **settings)


@pytest.mark.parametrize("model", ["gpt-4.1-mini", "gpt-4o", "ft:gpt-4.1:acme::1"])
def test_models_that_do_not_reason_are_not_asked_to(model: str) -> None:
    body = body_of(dialect(model=model, reasoning_disabled=True), *PROMPT)
    assert "include" not in body
    assert "reasoning" not in body


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"capture_tokens": True}, "--capture_tokens"),
        ({"reasoning_effort": "ultra"}, "documents only"),
        ({"reasoning_effort": "huge"}, "is none of"),
        ({"max_tokens": 15}, "16 or more"),
        ({"providers_allowed": ("acme",)}, "OpenRouter's"),
    ],
)
def test_what_the_api_has_no_field_for_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        dialect(**settings)


def test_a_schema_for_the_answer_leaves_other_text_settings() -> None:
    asked = dialect(extra_body={"text": {"verbosity": "low"}})
    schema = msgspec.Raw(b'{"type":"object"}')
    form = {"type": "json_schema", "name": "reply", "schema": {"type": "object"}}
    assert body_of(asked, *PROMPT, json_schema=schema)["text"] == {"verbosity": "low", "format": form}
    assert body_of(asked, *PROMPT)["text"] == {"verbosity": "low"}


def test_images_stand_behind_the_text() -> None:
    image = "data:image/png;base64," + "A" * 9000
    body, size = dialect().encode(ChatRequest(PROMPT, images=(image,), encoded=Encoded()))
    parts = json.loads(body)["input"][-1]["content"]
    assert parts == [
        {"type": "input_text", "text": "What time is it?"},
        {"type": "input_image", "image_url": image, "detail": "auto"},
    ]
    assert size == len(body) - len(image) + IMAGE_SIZE
    assert len(body_of(dialect(), PROMPT[1], images=(image,))["input"]) == 1


def test_each_message_is_encoded_once_and_stays_as_it_was() -> None:
    asked, encoded = dialect(), Encoded()
    first, _ = asked.encode(ChatRequest(PROMPT, encoded=encoded))
    kept = list(encoded)
    second, _ = asked.encode(ChatRequest((*PROMPT, Message("assistant", "Noon."), Message("user", "Sure?")), encoded=encoded))
    assert encoded[: len(kept)] == kept
    assert all(now is before for now, before in zip(encoded, kept, strict=False))
    assert second.startswith(first[: first.index(b'],"prompt_cache_key"')])


def test_the_cache_key_is_the_prompts() -> None:
    asked = dialect()
    answered = (*PROMPT, Message("assistant", "", "", (ToolCall("c", "terminal", "{}"),)), Message("tool", "x", tool_call_id="c"))
    key = body_of(asked, *PROMPT)["prompt_cache_key"]
    assert body_of(asked, *answered)["prompt_cache_key"] == key
    assert body_of(asked, PROMPT[0], Message("user", "Else."))["prompt_cache_key"] != key
    assert body_of(dialect(extra_body={"prompt_cache_key": "mine"}), *PROMPT)["prompt_cache_key"] == "mine"
    assert "prompt_cache_key" not in body_of(dialect(LOCAL), *PROMPT)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_answers(name: str) -> None:
    case = RECORDED[name]
    asked, expected = dialect(case["host"], "m", **case.get("settings", {})), case["expected"]
    events = case.get("events")
    reply = streamed(asked, *events) if events else asked.reply(json.dumps(case["answer"]).encode(), 1.0, 2.0)
    message, usage = reply.message, reply.call.usage
    assert (message.content, message.reasoning) == (expected["content"], expected["reasoning"])
    assert [[call.id, call.name, call.arguments] for call in message.tool_calls] == expected["calls"]
    assert reply.call.finish_reason == expected["finish"]
    counted = [usage.prompt_tokens, usage.completion_tokens, usage.reasoning_tokens, usage.cached_tokens]
    assert counted == expected["usage"]
    assert usage.cache_write_tokens == expected.get("written", 0)
    assert (usage.cost, reply.call.cost_reported) == (expected.get("cost", 0.0), "cost" in expected)
    assert body_of(asked, message)["input"] == expected["back"]
    if len([item for item in expected["back"] if item["type"] == "message"]) == 1 and message.content:
        assert message.content not in str(message.provider_fields)  # said once
    stored = msgspec.json.decode(msgspec.json.encode(message), type=Message)
    assert body_of(asked, stored)["input"] == expected["back"]


def test_a_streamed_answer_is_the_whole_one() -> None:
    answer = RECORDED["openai: reasoning, a commentary and two calls"]["answer"]
    asked = dialect()
    last = {"type": "response.completed", "response": answer}
    for end in (b"", b"data: [DONE]\n\n"):
        assert streamed(asked, last, end=end) == asked.reply(json.dumps(answer).encode(), 0.0, 0.0)


def test_nothing_after_the_last_event_counts() -> None:
    asked, answer = dialect(), RECORDED["openai: a refusal"]["answer"]
    stream = asked.stream()
    last = [{"type": "response.completed", "response": answer}, {"type": "error", "message": "Oh."}]
    stream.feed(b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in last))
    assert stream.ended
    assert stream.reply(0.0, 0.0).message.content == "I can't help with that."


@pytest.mark.parametrize(
    ("event", "begun"),
    [
        ({"type": "response.created", "response": {}}, False),
        ({"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning"}}, False),
        ({"type": "response.output_item.done", "output_index": 0, "item": {"type": "reasoning"}}, True),
        ({"type": "response.output_item.added", "output_index": 0, "item": {"type": "message"}}, True),
        ({"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "I"}, True),
    ],
)
def test_a_model_may_think_for_long_before_anything_comes(event: dict[str, Any], begun: bool) -> None:
    stream = dialect().stream()
    stream.feed(b"data: %b\n\n" % json.dumps(event).encode())
    assert (stream.begun, stream.ended) == (begun, False)


def test_another_model_never_sees_the_reasoning() -> None:
    case = RECORDED["openai: reasoning, a commentary and two calls"]
    message = dialect().reply(json.dumps(case["answer"]).encode(), 0.0, 0.0).message
    assert "reasoning" in [item["type"] for item in body_of(dialect(), message)["input"]]
    for other in (dialect(model="gpt-5.4"), dialect("https://acme.openai.azure.com/openai/v1")):
        items = body_of(other, message)["input"]
        assert [item["type"] for item in items] == ["message", "function_call", "function_call"]
        assert items[0]["content"] == "I look first."


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ({"code": "server_error", "message": "Oh."}, ProviderOverloaded),
        ({"code": "rate_limit_exceeded", "message": "Slow."}, RateLimited),
        ({"code": "invalid_prompt", "message": "No."}, BadRequest),
        ({"code": "image_parse_error", "message": "No."}, BadRequest),
        ({"code": "vector_store_timeout", "message": "No."}, BadResponse),
        (None, ProviderOverloaded),
    ],
)
def test_a_failed_response_is_its_error(error: Any, expected: type[ProviderError]) -> None:
    failed = {"id": "r", "status": "failed", "error": error, "output": []}
    says: tuple[Callable[[], ChatReply], ...] = (
        lambda: dialect().reply(json.dumps(failed).encode(), 0.0, 0.0),
        lambda: streamed(dialect(), {"type": "response.failed", "response": failed}),
        lambda: streamed(dialect(), {"type": "error", **(error or {"code": "server_error", "message": ""})}),
        lambda: streamed(dialect(), {"error": error or {"code": 500, "message": ""}}),
    )
    for say in says:
        with pytest.raises(ProviderError) as caught:
            say()
        assert type(caught.value) is expected


DELTA = {"type": "response.output_text.delta", "output_index": 0, "delta": "It is"}


@pytest.mark.parametrize(
    "say",
    [
        lambda asked: streamed(asked, DELTA),
        lambda asked: streamed(asked, DELTA, end=b"data: [DONE]\n\n"),
        lambda asked: streamed(asked, DELTA, end=b'data: {"type":"response.completed","response":{"status":"comp'),
        lambda asked: streamed(asked, end=b"data: what\n\n"),
        lambda asked: streamed(asked, "text"),
        lambda asked: asked.reply(b'{"status":"in_progress","output":[{"type":"message","content":"It is"}]}', 0.0, 0.0),
        lambda asked: asked.reply(b'{"status":"completed"}', 0.0, 0.0),
        lambda asked: asked.reply(b'{"status":"completed","output":[{"type":"message","content":[]}]}', 0.0, 0.0),
        lambda asked: asked.reply(b'{"output":' + b"[" * 100_000, 0.0, 0.0),
        lambda asked: asked.reply(b'{"output":[{"type":"reasoning","summary":%b%b}]}' % (b"[" * 700, b"]" * 700), 0.0, 0.0),
    ],
)
def test_what_is_no_whole_answer(say: Callable[[ResponsesDialect], ChatReply]) -> None:
    with pytest.raises(BadResponse):
        say(dialect())


def test_a_stream_without_end_is_left() -> None:
    stream = dialect().stream()
    piece = b"data: %b\n\n" % json.dumps({**DELTA, "delta": "x" * 1_000_000}).encode()
    with pytest.raises(BadResponse, match="MB"):
        for _ in range(MAX_ANSWER // 1_000_000 + 1):
            stream.feed(piece)


def test_broken_text_is_mended() -> None:
    body = b'{"output":[{"type":"message","content":[{"type":"output_text","text":"a\\ud800b"}]}]}'
    assert dialect().reply(body, 0.0, 0.0).message.content == "a\ufffdb"
