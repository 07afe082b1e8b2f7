"""The parameters of a tool as a JSON schema, and as what reads the model's arguments.

Types are those that msgspec reads (plain hints, Literal, enums, dataclasses, TypedDict, structs) and pydantic's: a parameter
whose hint names anything of pydantic is read by pydantic as a whole, so that unions and constraints mean what they mean there.
Pydantic itself is not needed for anything else, and only imported for such a hint.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import UnionType
from typing import Annotated, Any, NamedTuple, Optional, Union, get_args, get_origin, get_type_hints

import msgspec

REQUIRED: Any = object()
"""In the place of a default."""
_MAX_SAID = 5
"""Of the mistakes in one parameter; the model corrects the first ones first."""
_VALUES = ("default", "const", "enum", "examples", "required")
"""Keys of a schema under which there are values, and no schemas."""
_IMMUTABLE = (str, int, float, enum.Enum, type(None))
"""Defaults that every call may have itself; of any other each gets a copy."""
_LEFT_OUT = ("title", "discriminator")
"""Keys that only say again what the schema says, the second one by references."""


class Parameter(NamedTuple):
    """One that the model gives."""

    name: str
    hint: Any
    """`Annotated[…, "text"]` describes it."""
    default: Any = REQUIRED


class Parameters(NamedTuple):
    """All of a tool's."""

    schema: dict[str, Any]
    """JSON schema of an object, without references."""
    read: Callable[[str], Mapping[str, Any]]
    """JSON text → the function's keyword arguments. Raises `msgspec.DecodeError`; its `ValidationError` for wrong values."""


def make_parameters(tool: str, parameters: Sequence[Parameter]) -> Parameters:
    """Raises `TypeError` or `ValueError` for a hint that has no JSON schema, and for a default that JSON cannot hold."""
    parameters = [_normal(each) for each in parameters]
    adapters = {each.name: _adapter(each) for each in parameters if _is_pydantic(each.hint)}
    plain = [_field(each) for each in parameters if each.name not in adapters]
    try:
        schema = _inline(*msgspec.json.schema_components([_struct(tool, plain)]))
    except TypeError as error:
        raise _named(plain, error) from error
    schema.setdefault("properties", {})
    for each in parameters:
        if each.name not in adapters and each.default is not REQUIRED and not isinstance(each.default, _IMMUTABLE):
            schema["properties"][each.name]["default"] = _default_in_json(each)
    if adapters:
        for each in parameters:
            if each.name in adapters:
                schema["properties"][each.name] = _schema_of(adapters[each.name], each.default)
        schema["properties"] = {each.name: schema["properties"][each.name] for each in parameters}
        schema["required"] = [each.name for each in parameters if each.default is REQUIRED]
    raw = [
        (each.name, msgspec.Raw, *(() if each.default is REQUIRED else (msgspec.Raw(b""),)))
        for each in parameters
        if each.name in adapters
    ]
    decode = msgspec.json.Decoder(_struct(tool, [*plain, *raw])).decode
    defaults = {each.name: each.default for each in parameters}

    def read(text: str) -> dict[str, Any]:
        found = decode(text)
        arguments = {name: getattr(found, name) for name in found.__struct_fields__}
        for name, adapter in adapters.items():
            value = arguments.pop(name)
            given = bytes(value)
            arguments[name] = _validated(adapter, name, given) if given else copy.deepcopy(defaults[name])
        return arguments

    return Parameters(schema, read)


def _struct(tool: str, fields: Sequence[tuple[Any, ...]]) -> type[msgspec.Struct]:
    return msgspec.defstruct(f"{tool}_arguments", fields, forbid_unknown_fields=True, kw_only=True)


def _normal(parameter: Parameter) -> Parameter:
    """With None among its values where that is the default, and a description that stands beside None at the top."""
    hint = parameter.hint
    if parameter.default is None:
        hint = _or_none(hint)
    if get_origin(hint) is not Annotated and (text := description_in(hint)):
        hint = Annotated[hint, text]
    return parameter._replace(hint=hint)


def _or_none(hint: Any) -> Any:
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        return Annotated[(_or_none(kind), *notes)]
    return hint if hint is Any else Optional[hint]  # noqa: UP045  (of a text too, which is a name)


def _field(parameter: Parameter) -> tuple[Any, ...]:
    kind, default = _described(parameter.hint), parameter.default
    if default is REQUIRED:
        return (parameter.name, kind)
    own = default if isinstance(default, _IMMUTABLE) else msgspec.field(default_factory=partial(copy.deepcopy, default))
    return (parameter.name, kind, own)


def _default_in_json(parameter: Parameter) -> Any:
    try:
        return msgspec.to_builtins(parameter.default)
    except (TypeError, ValueError) as error:
        raise TypeError(f"parameter {parameter.name!r}: its default {parameter.default!r} is nothing that JSON has") from error


def _named(fields: Sequence[tuple[Any, ...]], error: TypeError) -> TypeError:
    """`error` with the parameter that it is about."""
    for name, kind, *_ in fields:
        try:
            msgspec.json.schema_components([kind])
        except TypeError as found:
            custom = re.search(r"custom types.*\btype (.+) is not supported$", str(found), re.DOTALL)
            said = f"{custom[1]} has no JSON form there" if custom else found
            return TypeError(f"parameter {name!r}: {said}")
    return error


def _described(hint: Any) -> Any:
    """A text in `Annotated` as the description, whose own word for it is `msgspec.Meta`."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, *notes = get_args(hint)
    return Annotated[(kind, *(msgspec.Meta(description=each) if isinstance(each, str) else each for each in notes))]


def description_in(hint: Any) -> str:
    """What `hint` itself says of the parameter, "" when nothing."""
    if get_origin(hint) in (Union, UnionType):
        return next((text for each in get_args(hint) if (text := description_in(each))), "")
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    said = (each if isinstance(each, str) else getattr(each, "description", None) for each in notes)
    return next((each for each in said if isinstance(each, str) and each), "")


# ---- pydantic -----------------------------------------------------------------------------------------------------------


def _is_pydantic(hint: Any, inside: tuple[Any, ...] = ()) -> bool:
    """Whether pydantic is to read it: a model, one of its types or constraints, or something with one in it."""
    if get_origin(hint) is not None:
        return any(_is_pydantic(each, inside) for each in get_args(hint))
    kind = hint if isinstance(hint, type) else type(hint)
    homes = {base.__module__.partition(".")[0] for base in kind.__mro__}
    own = ("__pydantic_core_schema__", "__get_pydantic_core_schema__")
    if homes & {"pydantic", "annotated_types"} or any(hasattr(kind, each) for each in own):
        return True
    is_typed_dict = issubclass(kind, dict) and hasattr(kind, "__total__")
    if hint in inside or hint is not kind or not (dataclasses.is_dataclass(kind) or is_typed_dict):
        return False
    return any(_is_pydantic(each, (*inside, hint)) for each in get_type_hints(kind, include_extras=True).values())


def _adapter(parameter: Parameter) -> Any:
    import pydantic

    hint = parameter.hint
    if get_origin(hint) is Annotated:
        kind, *notes = get_args(hint)
        texts = (pydantic.Field(description=each) if isinstance(each, str) else each for each in notes)
        hint = Annotated[(kind, *texts)]
    try:
        return pydantic.TypeAdapter(hint)
    except pydantic.errors.PydanticUserError as error:  # its other errors are TypeErrors already
        raise TypeError(f"parameter {parameter.name!r}: {error.message}") from error


def _schema_of(adapter: Any, default: Any) -> dict[str, Any]:
    schema = adapter.json_schema()
    schema = _inline((schema,), schema.pop("$defs", {}))
    if default is not REQUIRED:
        schema["default"] = adapter.dump_python(default, mode="json")
    return schema


def _validated(adapter: Any, name: str, text: bytes) -> Any:
    import pydantic

    try:
        return adapter.validate_json(text)
    except pydantic.ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        said = [f"{each['msg']} - at `$.{'.'.join(map(str, (name, *each['loc'])))}`" for each in found[:_MAX_SAID]]
        more = [f"and {len(found) - _MAX_SAID} more"] if len(found) > _MAX_SAID else []
        raise msgspec.ValidationError("; ".join((*said, *more))) from None


# ---- schemas ------------------------------------------------------------------------------------------------------------


def _inline(roots: tuple[dict[str, Any], ...], definitions: dict[str, Any]) -> dict[str, Any]:
    """One self-contained schema: some providers do not follow `$ref`. A type inside of itself is any value there; what reads
    the arguments still checks it."""

    def walk(node: Any, inside: tuple[str, ...] = (), *, by_name: bool = False) -> Any:
        if isinstance(node, list):
            return [walk(each, inside) for each in node]
        if not isinstance(node, dict):
            return node
        if by_name:
            return {name: walk(each, inside) for name, each in node.items()}
        if "$ref" in node:
            name = node["$ref"].rsplit("/", 1)[1]
            if name in inside:
                return {"description": f"again as the {name} around it"}
            node = {**definitions[name], **{key: value for key, value in node.items() if key != "$ref"}}
            inside = (*inside, name)
        return {
            key: value if key in _VALUES else walk(value, inside, by_name=key == "properties")
            for key, value in node.items()
            if key not in _LEFT_OUT
        }

    schema = walk(roots[0])
    assert isinstance(schema, dict)
    return schema
