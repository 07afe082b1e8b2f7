"""Parquet columns whose text is JSON: of Arrow's JSON type, or called `Json` by the datasets library's note in the schema.

That library stores values so for which a column has no single type: messages with different keys, arguments of calls, content
that is text here and a list of parts there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from kiseki.trajectory.json_rows import decode_row

NOTE = b"huggingface"
"""Key of the library's note in the schema's metadata."""
_TEXT_FIELDS = ("content", "value")
"""Of a turn. The library stores a text that reads as JSON ("42") like the value it reads as."""

Read = Callable[[Any], Any]


def with_json_types(schema: Any) -> Any:
    """The `pyarrow.Schema` with Arrow's JSON type for every column, at any depth, that the library's note calls `Json`."""
    import pyarrow

    try:
        features = msgspec.json.decode((schema.metadata or {})[NOTE])["info"]["features"]
    except (KeyError, TypeError, msgspec.DecodeError):
        return schema
    fields = [field.with_type(_marked(pyarrow, field.type, _part(features, field.name))) for field in schema]
    return pyarrow.schema(fields, schema.metadata)


def json_reader(schema: Any) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    """Puts into a row the JSON that its columns of Arrow's JSON type hold; None where no column is of it. What is no JSON stays
    the text that it is."""
    import pyarrow

    reads = {field.name: read for field in schema if (read := _reader(pyarrow, field.type, field.name))}
    return (lambda row: _read_fields(row, reads)) if reads else None


def storage_type(arrow: Any, kind: Any) -> Any:
    """The type with text in place of JSON: Arrow makes no arrays of the latter inside lists and objects, but casts to it."""
    if isinstance(kind, arrow.JsonType):
        return kind.storage_type
    return _with_inner(arrow, kind, lambda field: field.with_type(storage_type(arrow, field.type)))


def _marked(arrow: Any, kind: Any, feature: Any) -> Any:
    types = arrow.types
    if types.is_string(kind) or types.is_large_string(kind):
        return arrow.json_(kind) if _part(feature, "_type") == "Json" else kind
    inner = feature if types.is_struct(kind) else {"": _part(feature, "feature")}

    def mark(field: Any) -> Any:
        return field.with_type(_marked(arrow, field.type, _part(inner, field.name if types.is_struct(kind) else "")))

    return _with_inner(arrow, kind, mark)


def _part(feature: Any, name: str) -> Any:
    return feature.get(name) if isinstance(feature, dict) else None


def _with_inner(arrow: Any, kind: Any, change: Callable[[Any], Any]) -> Any:
    """An object's or list's type with its fields changed; any other as it is."""
    types = arrow.types
    if types.is_struct(kind):
        return arrow.struct([change(kind.field(number)) for number in range(kind.num_fields)])
    if types.is_list(kind):
        return arrow.list_(change(kind.value_field))
    if types.is_large_list(kind):
        return arrow.large_list(change(kind.value_field))
    return kind


def _reader(arrow: Any, kind: Any, name: str) -> Read | None:
    """What reads the values of a field of this type and name; None where there is no JSON in them."""
    types = arrow.types
    if isinstance(kind, arrow.JsonType):
        return _read_text_field if name in _TEXT_FIELDS else _read
    if types.is_struct(kind):
        fields = [kind.field(number) for number in range(kind.num_fields)]
        reads = {field.name: read for field in fields if (read := _reader(arrow, field.type, field.name))}
        return (lambda value: _read_fields(value, reads)) if reads else None
    if types.is_list(kind) or types.is_large_list(kind):
        inner = _reader(arrow, kind.value_type, "")
        return (lambda value: [each if each is None else inner(each) for each in value]) if inner else None
    return None


def _read_fields(value: dict[str, Any], reads: dict[str, Read]) -> dict[str, Any]:
    return value | {name: read(value[name]) for name, read in reads.items() if value.get(name) is not None}


def _read(text: str) -> Any:
    try:
        return decode_row(text.encode())
    except ValueError:
        return text


def _read_text_field(text: str) -> Any:
    value = _read(text)
    parts = isinstance(value, list) and all(isinstance(each, dict) for each in value)
    return value if isinstance(value, str) or value is None or parts else text
