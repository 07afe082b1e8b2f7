"""JSON schemas of strangers as every provider takes them: one object at the top, no references, only keywords that all know.

What is left out (patterns too: every host has a dialect of its own) only makes the schema say less; the server still checks.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from typing import Any

from kiseki.trajectory.text import clean_text

MAX_BYTES = 32_000
"""Of one schema, about 8,000 tokens in every request; the largest in use (whole APIs in one tool) stay below."""
MAX_DEPTH = 16
MAX_NODES = 4000
"""Schemas in a schema: references to references double with each level."""
MAX_TEXT = 2000
"""Characters of one description."""
NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}", re.ASCII)
"""What providers take for the name of an argument."""

_TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def clean_schema(schema: Any) -> dict[str, Any]:
    """`schema`, whatever it is, as `{"type": "object", "properties": {…}, …}` of `MAX_BYTES` at most."""
    for depth, text in ((MAX_DEPTH, MAX_TEXT), (MAX_DEPTH, 100), (6, 100), (3, 0), (2, 0)):
        cleaned = _Cleaning(schema, depth, text).top()
        if len(json.dumps(cleaned, ensure_ascii=False).encode()) <= MAX_BYTES:
            return cleaned
    return {"type": "object", "properties": {}, "additionalProperties": True}


def rename(schema: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """A clean schema with names of arguments that every provider takes, and the new name → the old one of those that changed."""
    renamed: dict[str, str] = {}
    for name in schema["properties"]:
        if not NAME.fullmatch(name):
            digest = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
            short = re.sub(r"[^a-zA-Z0-9_.-]+", "_", name).strip("_")[:50] or "argument"
            new = short if short not in schema["properties"] and short not in renamed else f"{short}_{digest}"
            renamed[new] = name
    if not renamed:
        return schema, {}
    to = {old: new for new, old in renamed.items()}
    properties = {to.get(name, name): each for name, each in schema["properties"].items()}
    required = {"required": [to.get(name, name) for name in schema["required"]]} if "required" in schema else {}
    return {**schema, "properties": properties, **required}, renamed


class _Cleaning:
    """One pass over one schema."""

    def __init__(self, root: Any, depth: int, text: int) -> None:
        self._root = root
        self._depth = depth
        self._text = text
        self._nodes = 0

    def top(self) -> dict[str, Any]:
        """The arguments are one object, whatever the schema says: alternatives at the top become one object that allows each."""
        node = self.node(self._root, ())
        merged = _as_object(node, self._depth)
        properties = merged.pop("properties", {})
        required = [name for name in merged.pop("required", []) if name in properties]
        rest = {key: merged[key] for key in ("description", "additionalProperties") if key in merged}
        return {"type": "object", "properties": properties} | ({"required": required} if required else {}) | rest

    def node(self, node: Any, inside: tuple[str, ...], depth: int = 0) -> dict[str, Any]:
        self._nodes += 1
        if not isinstance(node, dict) or depth > self._depth or self._nodes > MAX_NODES:
            return {}
        if "$ref" in node or "$dynamicRef" in node:
            reference = str(node.get("$ref") or node.get("$dynamicRef"))
            target = {} if reference in inside or len(inside) > self._depth else self._follow(reference)
            if not target:  # a schema inside of itself, or elsewhere: any value
                target = {key: node[key] for key in ("description", "type") if key in node}
                return self.node(target, inside, depth)
            rest = {key: value for key, value in node.items() if key not in ("$ref", "$dynamicRef")}
            return self.node({**target, **rest}, (*inside, reference), depth)

        def below(value: Any) -> dict[str, Any]:
            return self.node(value, inside, depth + 1)

        found: dict[str, Any] = {}
        self._type(node, found)
        self._values(node, found)
        self._object(node, found, below)
        self._array(node, found, below)
        self._choices(node, found, below)
        return found

    def _follow(self, reference: str) -> dict[str, Any]:
        """What a reference into the schema itself stands for, {} where there is nothing."""
        node = self._root
        if not reference.startswith("#"):
            return {}
        for part in filter(None, reference[1:].split("/")):
            part = part.replace("~1", "/").replace("~0", "~")
            node = node.get(part) if isinstance(node, dict) else None
        return node if isinstance(node, dict) else {}

    def _type(self, node: dict[str, Any], found: dict[str, Any]) -> None:
        given = node.get("type")
        types = [each for each in (given if isinstance(given, list) else [given]) if each in _TYPES]
        if not types:
            for kind, keys in (
                ("object", ("properties", "required", "additionalProperties")),
                ("array", ("items", "prefixItems")),
            ):
                if any(isinstance(node.get(key), dict | list) for key in keys):
                    types = [kind]
                    break
        values = [each for each in types if each != "null"] or types
        if len(values) == 1:
            found["type"] = values[0]
        elif values:
            found["anyOf"] = [{"type": each} for each in dict.fromkeys(values)]

    def _values(self, node: dict[str, Any], found: dict[str, Any]) -> None:
        text = node.get("description")
        if isinstance(text, str) and self._text and (text := clean_text(text).replace("\0", "").strip()):
            found["description"] = text if len(text) <= self._text else f"{text[: self._text]}…"
        choices = [node["const"]] if "const" in node else node.get("enum")
        if isinstance(choices, list) and choices and _is_json(choices):
            found["enum"] = choices
            if "type" not in found and "anyOf" not in found and all(isinstance(each, str) for each in choices):
                found["type"] = "string"
        if "default" in node and node["default"] is not None and _is_json(node["default"]):
            found["default"] = node["default"]
        for key in _NUMBERS:
            if isinstance(value := node.get(key), int | float) and not isinstance(value, bool) and math.isfinite(value):
                found[key] = value
        for key in _COUNTS:
            if isinstance(value := node.get(key), int) and not isinstance(value, bool) and value >= 0:
                found[key] = value
        if isinstance(kind := node.get("format"), str) and NAME.fullmatch(kind):
            found["format"] = kind

    def _object(self, node: dict[str, Any], found: dict[str, Any], below: Callable[[Any], dict[str, Any]]) -> None:
        if found.get("type") != "object":
            return
        given = node.get("properties")
        properties = {
            clean_text(str(name)): below(each)
            for name, each in (given.items() if isinstance(given, dict) else ())
            if each is not False and name
        }
        if properties or not isinstance(node.get("additionalProperties"), dict):
            found["properties"] = properties
        required = node.get("required")
        names = [each for each in required if isinstance(each, str)] if isinstance(required, list) else []
        if known := [name for name in dict.fromkeys(names) if name in properties]:
            found["required"] = known
        more = node.get("additionalProperties")
        if isinstance(more, bool):
            found["additionalProperties"] = more
        elif isinstance(more, dict):
            found["additionalProperties"] = below(more)

    def _array(self, node: dict[str, Any], found: dict[str, Any], below: Callable[[Any], dict[str, Any]]) -> None:
        if found.get("type") != "array":
            return
        items = node.get("items")
        places = [each for key in ("prefixItems", "items") if isinstance(node.get(key), list) for each in node[key]]
        kinds = [below(each) for each in (*places, *([items] if isinstance(items, dict) else []))]
        unique = [each for number, each in enumerate(kinds) if each not in kinds[:number]]
        found["items"] = {} if not unique or {} in unique else unique[0] if len(unique) == 1 else {"anyOf": unique}
        if node.get("uniqueItems") is True:
            found["uniqueItems"] = True

    def _choices(self, node: dict[str, Any], found: dict[str, Any], below: Callable[[Any], dict[str, Any]]) -> None:
        for key in ("anyOf", "oneOf"):
            if isinstance(given := node.get(key), list):
                choices = [below(each) for each in given if isinstance(each, dict) and each.get("type") != "null"]
                choices = [each for number, each in enumerate(choices) if each and each not in choices[:number]]
                if len(choices) == 1:
                    _merge(found, choices[0])
                elif choices:
                    found.setdefault("anyOf", choices)
        for each in node["allOf"] if isinstance(node.get("allOf"), list) else ():
            _merge(found, below(each))


def _merge(found: dict[str, Any], part: dict[str, Any]) -> None:
    """Both hold: `part` adds to `found`."""
    properties = {**part.get("properties", {}), **found.get("properties", {})}
    required = list(dict.fromkeys((*found.get("required", ()), *part.get("required", ()))))
    found |= {**part, **found}
    found |= ({"properties": properties} if properties else {}) | ({"required": required} if required else {})


def _as_object(node: dict[str, Any], depth: int) -> dict[str, Any]:
    """A clean schema with its alternatives as one object: every property of any, required what all require."""
    choices = [_as_object(each, depth - 1) for each in node.get("anyOf", ()) if isinstance(each, dict)] if depth else []
    choices = [each for each in choices if "properties" in each]
    merged = {key: value for key, value in node.items() if key != "anyOf"}
    if choices:
        properties: dict[str, Any] = {}
        for each in (merged, *choices):
            for name, schema in each.get("properties", {}).items():
                properties.setdefault(name, schema)
        in_all = [name for name in choices[0].get("required", ()) if all(name in each.get("required", ()) for each in choices)]
        merged["properties"] = properties
        merged["required"] = list(dict.fromkeys((*merged.get("required", ()), *in_all)))
    return merged


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False).encode()
        json.dumps(value, ensure_ascii=False).encode()  # lone surrogates
    except (TypeError, ValueError, RecursionError):
        return False
    return True
