"""Schemas of strangers: whatever comes in, an object that every provider takes comes out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kiseki.tools.mcp.schemas import MAX_BYTES, clean_schema, rename

STRING = {"type": "string"}
TREE = {"type": "object", "properties": {"name": STRING, "below": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}
DOUBLING = {f"d{n}": {"type": "object", "properties": {key: {"$ref": f"#/$defs/d{n + 1}"} for key in "ab"}} for n in range(40)}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = STRING
    for _ in range(levels):
        schema = {"type": "object", "properties": {"in": schema}}
    return schema


def properties(schema: Any) -> Any:
    return clean_schema({"type": "object", "properties": {"x": schema}})["properties"].get("x")


@pytest.mark.parametrize(
    "schema", [None, True, [], "x", {}, {"type": "string"}, {"type": "object", "properties": None}, {"$ref": "#"}]
)
def test_what_is_no_object_becomes_an_empty_one(schema: Any) -> None:
    assert clean_schema(schema) == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("schema", "clean"),
    [
        ({"title": "X", "type": "string", "examples": ["a"], "$comment": "c"}, STRING),
        ({"type": ["string", "null"], "default": None}, STRING),
        ({"type": ["string", "integer"]}, {"anyOf": [STRING, {"type": "integer"}]}),
        ({"anyOf": [STRING, {"type": "null"}], "description": "d"}, {"type": "string", "description": "d"}),
        ({"oneOf": [STRING, {"type": "integer"}]}, {"anyOf": [STRING, {"type": "integer"}]}),
        ({"allOf": [{"type": "object", "properties": {"a": STRING}, "required": ["a"]}, {"properties": {"b": True}}]},
         {"type": "object", "properties": {"b": {}, "a": STRING}, "required": ["a"]}),
        ({"const": "a"}, {"enum": ["a"], "type": "string"}),
        ({"enum": []}, {}),
        ({"type": "array"}, {"type": "array", "items": {}}),
        ({"items": [STRING, STRING]}, {"type": "array", "items": STRING}),
        ({"type": "array", "prefixItems": [STRING, {"type": "integer"}], "items": False},
         {"type": "array", "items": {"anyOf": [STRING, {"type": "integer"}]}}),
        ({"type": "integer", "minimum": 0, "exclusiveMinimum": True, "maximum": "9"}, {"type": "integer", "minimum": 0}),
        ({"type": "string", "minLength": -1, "pattern": "(", "format": "date"}, {"type": "string", "format": "date"}),
        ({"properties": {"a": STRING}, "required": ["a", "z", 3]},
         {"type": "object", "properties": {"a": STRING}, "required": ["a"]}),
        ({"type": "object", "additionalProperties": STRING}, {"type": "object", "additionalProperties": STRING}),
        ({"type": "object", "patternProperties": {"^a": STRING}, "if": {}}, {"type": "object", "properties": {}}),
        ({"type": "date"}, {}),
        ({"$ref": "https://example.org/s.json", "type": "object"}, {"type": "object", "properties": {}}),
        (True, {}),
        ({"description": "a\udc80\0"}, {"description": "a\ufffd"}),
        ({"default": float("nan")}, {}),
    ],
)  # fmt: skip
def test_what_is_odd_is_put_right(schema: Any, clean: Any) -> None:
    assert properties(schema) == clean


def test_references_are_put_in_their_place() -> None:
    defined = {
        "$defs": {"a/b": {"type": "string", "description": "d"}, "tree": TREE},
        "definitions": {"c": {"$ref": "#/$defs/a~1b"}},
    }
    found = clean_schema(
        {**defined, "type": "object", "properties": {"x": {"$ref": "#/definitions/c"}, "t": {"$ref": "#/$defs/tree"}}}
    )
    assert found["properties"]["x"] == {"type": "string", "description": "d"}
    assert found["properties"]["t"]["properties"]["below"] == {"type": "array", "items": {}}
    assert "$" not in json.dumps(found)


def test_alternatives_at_the_top_become_one_object() -> None:
    one = {"type": "object", "properties": {"a": STRING, "k": {"type": "integer"}}, "required": ["a", "k"]}
    other = {"type": "object", "properties": {"b": STRING, "k": STRING}, "required": ["b", "k"]}
    found = clean_schema({"anyOf": [one, {"$ref": "#/$defs/o"}], "$defs": {"o": other}})
    assert found == {
        "type": "object",
        "properties": {"a": STRING, "k": {"type": "integer"}, "b": STRING},
        "required": ["k"],
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/d0", "$defs": DOUBLING},
        deep(200),
        {"properties": {f"p{n}": {"type": "string", "description": "long " * 300} for n in range(500)}},
        {"properties": {"e": {"enum": [f"value {n}" for n in range(100_000)]}}},
        {"properties": {f"p{n}": deep(5) for n in range(3000)}},
    ],
)
def test_size_is_bounded(schema: Any) -> None:
    found = clean_schema(schema)
    assert found["type"] == "object" and len(json.dumps(found).encode()) <= MAX_BYTES + 100


def test_names_that_no_provider_takes_are_replaced() -> None:
    odd = {"$filter": STRING, "with space": STRING, "with_space": STRING, "名": STRING, "x" * 80: STRING}
    schema, renamed = rename(clean_schema({"properties": odd, "required": ["$filter", "名"]}))
    assert set(renamed.values()) == {"$filter", "with space", "名", "x" * 80}
    assert renamed["filter"] == "$filter" and schema["required"][0] == "filter"
    assert len(schema["properties"]) == 5 and set(schema["required"]) < set(schema["properties"])
