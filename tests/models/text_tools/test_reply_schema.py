"""The schema of replies in the mode `json`: what it takes, and that llama.cpp can hold a model to it whatever the tools have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kiseki.models.base import ChatReply, ChatRequest, ToolSchema
from kiseki.models.client import HttpClient
from kiseki.models.dialects.opening import open_dialect
from kiseki.models.endpoints import ModelSettings
from kiseki.models.smollm2 import SMOLLM2, serving, why_not_installed
from kiseki.models.text_tools.client import TextTools
from kiseki.models.text_tools.reply_schema import MOST_DEEP, reply_schema
from kiseki.tools.toolsets import TOOLSETS, built_in_tools
from kiseki.trajectory.types import Message


def schema_of(*parameters: Any) -> dict[str, Any]:
    tools = tuple(ToolSchema(f"tool{n}", "", msgspec.Raw(json.dumps(each).encode())) for n, each in enumerate(parameters))
    schema: dict[str, Any] = json.loads(bytes(reply_schema(tools)))
    return schema


def arguments_of(schema: dict[str, Any], tool: int = 0) -> Any:
    return schema["anyOf"][0]["properties"]["tool_calls"]["items"]["anyOf"][tool]["properties"]["arguments"]


def test_a_thought_and_then_calls_or_an_answer() -> None:
    schema = schema_of(
        {"type": "object", "properties": {"city": {"type": "string", "description": "Where."}}, "required": ["city"]}, {}
    )
    calls, answer = schema["anyOf"]
    assert (list(calls["properties"]), list(answer["properties"])) == (["thought", "tool_calls"], ["thought", "answer"])
    assert calls["required"] == ["thought", "tool_calls"]
    assert calls["additionalProperties"] is answer["additionalProperties"] is False
    items = calls["properties"]["tool_calls"]["items"]["anyOf"]
    assert [each["properties"]["name"]["const"] for each in items] == ["tool0", "tool1"]
    assert arguments_of(schema) == {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    }
    assert arguments_of(schema, 1) == {"type": "object"}


ANY = {"type": ["string", "number", "boolean", "null", "object", "array"]}
CLEANED = [
    ({"type": "string", "pattern": "a(?=b)", "format": "uri", "maxLength": 99_999}, {"type": "string"}),
    ({"type": ["integer", "null"], "minimum": 1e300}, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    ({"enum": ["a", None]}, {"enum": ["a", None]}),
    ({"const": 1, "type": "integer"}, {"const": 1}),
    (
        {"type": "array", "items": {"type": "string", "title": "x"}, "uniqueItems": True},
        {"type": "array", "items": {"type": "string"}},
    ),
    ({"type": "array", "prefixItems": [{"type": "string"}]}, {"type": "array"}),
    ({"oneOf": [{"type": "string"}, {"not": {}}]}, {"anyOf": [{"type": "string"}, ANY]}),
    ({"allOf": [{"type": "string"}], "description": "d"}, {"type": "string"}),
    (
        {"type": "object", "additionalProperties": {"type": "integer"}},
        {"type": "object", "additionalProperties": {"type": "integer"}},
    ),
    ({"$ref": "https://example.com/schema"}, ANY),
    ({"$ref": "#/$defs/nothing"}, ANY),
    ({"$ref": "#/$defs/Circle"}, ANY),
    (True, ANY),
    ({}, ANY),
]


@pytest.mark.parametrize(("own", "kept"), CLEANED)
def test_only_the_form_is_kept(own: Any, kept: Any) -> None:
    root = {"type": "object", "properties": {"x": own}, "$defs": {"Circle": {"$ref": "#/$defs/Circle"}}}
    assert arguments_of(schema_of(root))["properties"]["x"] == kept


def test_references_stay_apart_from_those_of_other_tools() -> None:
    def parameters(kind: str) -> dict[str, Any]:
        node = {
            "type": "object",
            "properties": {"value": {"type": kind}, "next": {"$ref": "#/$defs/Node"}},
            "required": ["value"],
        }
        return {"type": "object", "properties": {"node": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": node}}

    schema = schema_of(parameters("string"), parameters("integer"))
    assert len(schema["$defs"]) == 2
    for tool, kind in enumerate(("string", "integer")):
        reference = arguments_of(schema, tool)["properties"]["node"]["$ref"]
        node = schema["$defs"][reference.removeprefix("#/$defs/")]
        assert node["properties"] == {"value": {"type": kind}, "next": {"$ref": reference}}


def test_a_schema_without_end() -> None:
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(300):
        deep = {"type": "array", "items": deep}
    kept = arguments_of(schema_of({"type": "object", "properties": {"deep": deep}}))["properties"]["deep"]
    for _ in range(MOST_DEEP):
        kept = kept["items"]
    assert kept == ANY


@pytest.mark.parametrize("broken", [b"", b"[", b"3", b"[" * 100_000])
def test_a_schema_that_is_none(broken: bytes) -> None:
    schema = json.loads(bytes(reply_schema((ToolSchema("t", "", msgspec.Raw(broken)),))))
    assert arguments_of(schema) == {"type": "object"}


KEYS = {"type", "properties", "required", "additionalProperties", "items", "anyOf", "const", "enum", "$ref", "$defs"}


def nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema inside a schema."""
    if isinstance(schema, dict):
        yield schema
        for inner in (schema.get("items"), schema.get("additionalProperties"), *schema.get("anyOf", ())):
            yield from nodes(inner)
        for inner in (*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()):
            yield from nodes(inner)


def test_kisekis_own_tools() -> None:
    tools = tuple(each.schema for name in TOOLSETS for each in built_in_tools(name))
    schema = json.loads(bytes(reply_schema(tools)))
    kept = list(nodes(schema))
    assert len(kept) > 3 * len(tools)
    assert {key for each in kept for key in each} - KEYS == {"minItems", "maxItems"}  # of the calls themselves
    assert {each["$ref"].removeprefix("#/$defs/") for each in kept if "$ref" in each} == set(schema.get("$defs", {}))


async def ask(settings: ModelSettings, tools: tuple[ToolSchema, ...]) -> ChatReply:
    client = TextTools(HttpClient(settings, open_dialect(settings)), "json")
    try:
        return (await client.send(client.encode(ChatRequest((Message("user", "Call tool0."),), tools))[0]))[0]
    finally:
        await client.close()


@pytest.mark.skipif(bool(why_not_installed()), reason=why_not_installed())
def test_llama_cpp_holds_a_model_to_it() -> None:
    """Every part that a tool's own schema may have, and replies that are cut off after some tokens."""
    own = {"type": "object", "properties": {f"p{n}": each for n, (each, _) in enumerate(CLEANED)}, "$defs": {"Circle": {}}}
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    parameters: tuple[dict[str, Any], ...] = (
        own,
        {"$ref": "#/$defs/Node", "$defs": {"Node": node}},
        {"type": "object", "properties": {}},
        {},
    )
    tools = tuple(ToolSchema(f"tool{n}", "", msgspec.Raw(json.dumps(each).encode())) for n, each in enumerate(parameters))
    with serving(ModelSettings(SMOLLM2, max_tokens=48)) as settings:
        reply = asyncio.run(ask(settings, tools))
    assert reply.call.finish_reason in ("length", "stop", "tool_calls")
    assert reply.message.reasoning
    assert "thought" not in reply.message.content
