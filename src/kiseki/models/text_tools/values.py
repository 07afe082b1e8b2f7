"""Arguments that a format writes as bare text, given the type that the tool's own schema names for them.

Text that the schema takes as it is stays text. Where it wants something else, the text is read as JSON; if that is not of a type
that is wanted, it stays text, and the tool says what was wrong with it.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from kiseki.models.base import ToolSchema
from kiseki.models.text_tools.json_calls import read_value
from kiseki.trajectory.text import clean_text

_PYTHON = {"True": True, "False": False, "None": None}
_TYPES: dict[type, str] = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
MOST_PARTS = 1_000
"""References and alternatives followed to learn a type; a schema that has more says nothing."""


def written_arguments(pairs: list[tuple[str, str]], tool: ToolSchema | None) -> str:
    """The JSON object of parameters and their texts, typed by the tool's schema; of an unknown tool everything is text."""
    schema = _schema_of(tool)
    known = _properties(schema)
    values = {name: _typed(text, types_of(known[name], schema)) if name in known else text for name, text in dict(pairs).items()}
    return clean_text(json.dumps(values, ensure_ascii=False))


def parameters_of(tool: ToolSchema | None) -> frozenset[str]:
    """The names of the tool's parameters."""
    return frozenset(_properties(_schema_of(tool)))


def types_of(schema: Any, root: dict[str, Any]) -> frozenset[str]:
    """The JSON types that a schema takes; none where it does not say."""
    found: set[str] = set()
    followed: set[str] = set()
    waiting = [schema]
    for part in waiting:  # which grows meanwhile
        if len(waiting) > MOST_PARTS:
            return frozenset()
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if isinstance(reference := part.get("$ref"), str):
            if reference not in followed:
                followed.add(reference)
                waiting.append(resolve(reference, root))
        elif isinstance(kind, str):
            found.add(kind)
        elif isinstance(kind, list):
            found.update(each for each in kind if isinstance(each, str))
        else:
            for key in ("anyOf", "oneOf", "allOf"):
                several = part.get(key)
                waiting += several if isinstance(several, list) else ()
            values = part.get("enum")
            found.update(map(_type_of, values if isinstance(values, list) else ()))
            if "const" in part:
                found.add(_type_of(part["const"]))
    return frozenset(found)


def resolve(reference: str, root: Any) -> Any:
    """What a reference inside a schema (`#/$defs/…`) points to; None for one that leads nowhere or out of it."""
    if not reference.startswith("#"):
        return None
    found = root
    for part in reference[1:].split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and part.isdecimal() and len(part) < 10 and int(part) < len(found):
            found = found[int(part)]
        elif isinstance(found, dict):
            found = found.get(part)
        else:
            return None
    return found


def _schema_of(tool: ToolSchema | None) -> dict[str, Any]:
    try:
        schema = msgspec.json.decode(tool.parameters) if tool is not None else {}
    except (msgspec.DecodeError, RecursionError):
        return {}
    return schema if isinstance(schema, dict) else {}


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else {}


def _typed(text: str, types: frozenset[str]) -> Any:
    if types == {"string"}:
        return text
    stripped = text.strip()
    value: Any
    if stripped in _PYTHON:
        value = _PYTHON[stripped]
    else:
        read = read_value(stripped, 0)
        if read is None or read[1] != len(stripped):
            return text
        value = read[0]
    kind = _type_of(value)
    if kind == "number" and "number" not in types and "integer" in types and value.is_integer():
        return int(value)
    fits = not types or kind in types or (kind == "integer" and "number" in types)
    return value if fits else text


def _type_of(value: Any) -> str:
    return _TYPES.get(type(value), "null")
