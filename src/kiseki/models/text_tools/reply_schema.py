"""The JSON schema of a reply in the mode `json`, of the parts of JSON schema that constrained decoding takes everywhere.

llama.cpp makes a grammar of it (https://github.com/ggml-org/llama.cpp, `grammars/README.md` and
`common/json-schema-to-grammar.cpp`), vLLM and SGLang have xgrammar or the like. Patterns, formats, long repetitions and
references that start inside another schema are refused by one or the other. So of a tool's own schema only what gives it its
form is kept: types, properties, items, alternatives and fixed values; the tool itself checks the rest when it is called.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from kiseki.models.base import ToolSchema
from kiseki.models.text_tools.values import resolve

MOST_CALLS = 16
"""In one reply; a small model that is held to an array finds no end to it otherwise."""
MOST_DEEP = 32
"""Levels of a tool's schema that are kept; below, anything goes."""
MOST_PARTS = 10_000
"""Schemas inside a tool's that are kept; of what comes after them, anything goes."""
_PRIMITIVES = ("string", "integer", "number", "boolean", "null")
_KINDS = (*_PRIMITIVES, "array", "object")
_ANY: dict[str, Any] = {"type": ["string", "number", "boolean", "null", "object", "array"]}


def reply_schema(tools: tuple[ToolSchema, ...]) -> msgspec.Raw:
    """A thought, and then calls of these tools or an answer."""
    shared: dict[str, Any] = {}
    calls = [
        _closed({"name": {"type": "string", "const": tool.name}, "arguments": _Cleaner(f"t{number}_", tool, shared).arguments()})
        for number, tool in enumerate(tools)
    ]
    text = {"type": "string"}
    array = {"type": "array", "items": {"anyOf": calls}, "minItems": 1, "maxItems": MOST_CALLS}
    schema: dict[str, Any] = {
        "anyOf": [_closed({"thought": text, "tool_calls": array}), _closed({"thought": text, "answer": text})]
    }
    if shared:
        schema["$defs"] = shared
    return msgspec.Raw(msgspec.json.encode(schema))


def _closed(properties: dict[str, Any], required: Iterable[str] | None = None) -> dict[str, Any]:
    names = list(properties if required is None else required)
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


class _Cleaner:
    """One tool's schema on its way into the reply's: what it refers to becomes definitions there, under a prefix."""

    def __init__(self, prefix: str, tool: ToolSchema, shared: dict[str, Any]) -> None:
        try:
            self._root: Any = msgspec.json.decode(tool.parameters)
        except (msgspec.DecodeError, RecursionError):
            self._root = {}
        self._prefix = prefix
        self._shared = shared
        self._names: dict[int, str] = {}
        """By the identity of the definition: a reference may be spelt in many ways."""
        self._parts = 0

    def arguments(self) -> dict[str, Any]:
        schema = self._clean(self._root, 0)
        return schema if schema != _ANY else {"type": "object"}

    def _clean(self, schema: Any, depth: int) -> dict[str, Any]:
        self._parts += 1
        if not isinstance(schema, dict) or depth > MOST_DEEP or self._parts > MOST_PARTS:
            return _ANY
        if isinstance(reference := schema.get("$ref"), str):
            return self._referred(reference, depth)
        if "const" in schema:
            return {"const": schema["const"]}
        if isinstance(values := schema.get("enum"), list) and values:
            return {"enum": values}
        for key in ("anyOf", "oneOf", "allOf"):
            several = schema.get(key)
            if isinstance(several, list) and several and (key != "allOf" or len(several) == 1):
                cleaned = [self._clean(each, depth + 1) for each in several]
                return {"anyOf": cleaned} if len(cleaned) > 1 else cleaned[0]
        kind = schema.get("type")
        if isinstance(kind, list) and kind:
            # each once, and none that is no type: all that is below comes with each
            kinds = dict.fromkeys(each for each in kind if isinstance(each, str) and each in _KINDS)
            return {"anyOf": [self._clean({**schema, "type": each}, depth + 1) for each in kinds]} if kinds else _ANY
        if kind in _PRIMITIVES:
            return {"type": kind}
        if kind == "array":
            return {"type": "array", "items": self._clean(schema["items"], depth + 1)} if "items" in schema else {"type": "array"}
        if kind == "object" or isinstance(schema.get("properties"), dict):
            return self._object(schema, depth)
        return _ANY

    def _object(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        properties, required, more = schema.get("properties"), schema.get("required"), schema.get("additionalProperties", False)
        if not isinstance(properties, dict):
            return {"type": "object", "additionalProperties": self._clean(more, depth + 1)} if more else {"type": "object"}
        needed = {each for each in required if isinstance(each, str)} if isinstance(required, list) else ()
        cleaned = {name: self._clean(each, depth + 1) for name, each in properties.items()}
        closed = _closed(cleaned, [name for name in cleaned if name in needed])
        if more:
            closed["additionalProperties"] = True if more is True else self._clean(more, depth + 1)
        return closed

    def _referred(self, reference: str, depth: int) -> dict[str, Any]:
        target = resolve(reference, self._root)
        if not isinstance(target, dict) or "$ref" in target:  # out of the schema, or a chain, which may have no end
            return _ANY
        if id(target) not in self._names:
            name = self._names[id(target)] = f"{self._prefix}{len(self._names)}"
            self._shared[name] = self._clean(target, depth + 1)
        return {"$ref": f"#/$defs/{self._names[id(target)]}"}
