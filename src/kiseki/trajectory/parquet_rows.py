"""Parquet as batches of Python values, and back. `row_files` and `row_writers` put the JSON around it."""

from __future__ import annotations

import base64
import datetime
import decimal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import msgspec

from kiseki.errors import DatasetError
from kiseki.trajectory.chat import kind_of
from kiseki.trajectory.json_columns import json_reader, storage_type, with_json_types
from kiseki.trajectory.text import printable

BATCH_BYTES = 2**24
"""What a batch of rows of average size takes in memory."""
BATCH_ROWS = 512
READ_BYTES = 2**20
COMPRESSION = "zstd"
REASON_CHARS = 300
"""Of Arrow's words on a value that does not fit."""

Fit = Callable[[Any], Any]
"""A value of JSON, not null, as the value that a column of one type takes. Raises `ValueError` for one that does not fit."""


class Misfit(ValueError):
    """A row that does not fit the columns."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        """Of the row among those written together, from 0."""


def read_batches(path: Path) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """(rows, bytes of the file consumed with them, about) of each batch. Raises `DatasetError` when it cannot be read."""
    arrow = _arrow("reading")
    try:
        with arrow.parquet.ParquetFile(path, buffer_size=READ_BYTES, pre_buffer=False) as file:
            read = json_reader(with_json_types(file.schema_arrow))
            position = 0
            for number in range(file.metadata.num_row_groups):
                group = file.metadata.row_group(number)
                packed = sum(group.column(each).total_compressed_size for each in range(group.num_columns))
                wanted = BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1)
                done = 0
                for batch in file.iter_batches(min(max(wanted, 1), BATCH_ROWS), row_groups=[number]):
                    done += batch.num_rows
                    rows = batch.to_pylist()
                    yield [read(row) for row in rows] if read else rows, position + packed * done // group.num_rows
                position += packed
    except (OSError, ValueError, arrow.ArrowException) as error:  # ValueError for a text that is not UTF-8, the year 0, …
        raise DatasetError(f"cannot read {path}: {error}") from error


def read_schema(path: Path) -> Any:
    """The `pyarrow.Schema` of a parquet file, with Arrow's JSON type where a column holds JSON (`json_columns.py`). Raises
    `DatasetError` when it cannot be read."""
    arrow = _arrow("writing")
    try:
        return with_json_types(arrow.parquet.read_schema(path))
    except (OSError, arrow.ArrowException) as error:
        raise DatasetError(f"cannot read {path}: {error}") from error


class RowGroups:
    """Writes rows in the columns of `schema` and those that the first group has beyond them, also inside objects and lists of
    objects; what a row does not have becomes null."""

    def __init__(self, file: IO[bytes], schema: Any) -> None:
        self._file = file
        self._schema = schema
        self._fits: dict[str, Fit | None] = {}
        self._required: list[str] = []
        self._writer: Any = None

    def write(self, rows: Sequence[Any]) -> None:
        """One row group. Raises `Misfit` for the first row found that does not fit; nothing is written then."""
        arrow = _arrow("writing")
        for position, row in enumerate(rows):
            if not isinstance(row, dict):
                raise Misfit(position, f"it is {kind_of(row)}, not an object")
        if self._writer is None:
            self._open(rows)
        for position, row in enumerate(rows):
            try:
                _check_keys(row, self._fits, self._required)
            except ValueError as problem:
                raise Misfit(position, str(problem)) from None
        columns = [self._column(field, [row.get(field.name) for row in rows]) for field in self._schema]
        stored = arrow.schema([field.with_type(storage_type(arrow, field.type)) for field in self._schema])
        self._writer.write_table(arrow.Table.from_arrays(columns, schema=stored).cast(self._schema))

    def close(self) -> None:
        """The end of the file is written; the file itself stays open."""
        if self._writer is None:
            self._open([])
        self._writer.close()

    def _open(self, rows: Sequence[dict[str, Any]]) -> None:
        arrow = _arrow("writing")
        self._schema = arrow.schema(_widened(arrow, arrow.struct(list(self._schema)), rows), self._schema.metadata)
        self._fits = {field.name: _fit(arrow, field.type) for field in self._schema}
        self._required = _required(self._schema)
        self._writer = arrow.parquet.ParquetWriter(self._file, self._schema, compression=COMPRESSION)

    def _column(self, field: Any, values: list[Any]) -> Any:
        arrow = _arrow("writing")
        fit = self._fits[field.name]
        kind = storage_type(arrow, field.type)

        def array(some: list[Any]) -> Any:
            fitted = some if fit is None else [None if value is None else fit(value) for value in some]
            return arrow.array(fitted, kind)

        try:
            return array(values)
        except (arrow.ArrowException, ValueError, TypeError, ArithmeticError):
            for position, value in enumerate(values):
                try:
                    array([value])
                except (arrow.ArrowException, ValueError, TypeError, ArithmeticError) as problem:
                    raise Misfit(position, f"column {field.name!r}: {printable(str(problem), REASON_CHARS)}") from None
            raise


def _arrow(doing: str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DatasetError(f"{doing} parquet needs pyarrow: pip install 'kiseki[parquet]'") from None
    return pyarrow


# ---- columns that the rows have beyond the schema -----------------------------------------------------------------------


def _widened(arrow: Any, kind: Any, values: Iterable[Any]) -> Any:
    """The type `kind` with what the values have beyond it: keys of objects, at any depth, and what was only ever null."""
    types = arrow.types
    there = [each for each in values if each is not None]
    if types.is_null(kind):
        kind = _first_kind(arrow, there)
    if types.is_struct(kind):
        objects = [each for each in there if isinstance(each, dict)]
        known = {each.name: each for each in _fields(kind)}
        fields = known | {key: arrow.field(key, arrow.null()) for each in objects for key in each if key not in known}
        # parquet has no object without keys: a column of such ones is of nulls
        return arrow.struct([_widened_field(arrow, each, objects) for each in fields.values()]) if fields else arrow.null()
    if types.is_list(kind) or types.is_large_list(kind):
        inner = _widened(arrow, kind.value_type, (each for value in there if isinstance(value, list) for each in value))
        field = kind.value_field.with_type(inner)
        return arrow.list_(field) if types.is_list(kind) else arrow.large_list(field)
    return kind


def _widened_field(arrow: Any, field: Any, objects: list[dict[str, Any]]) -> Any:
    return field.with_type(_widened(arrow, field.type, (each.get(field.name) for each in objects)))


def _first_kind(arrow: Any, values: list[Any]) -> Any:
    """The type that the first value wants, or all of them where they are numbers; its inside is still to be found."""
    kinds = {type(each) for each in values}
    if kinds == {int, float}:
        return arrow.float64()
    names = {bool: arrow.bool_(), int: arrow.int64(), float: arrow.float64(), str: arrow.string()}
    nested = {dict: arrow.struct([]), list: arrow.list_(arrow.null())}
    return (names | nested)[type(values[0])] if values else arrow.null()


# ---- values of JSON as values of columns --------------------------------------------------------------------------------


def _fit(arrow: Any, kind: Any) -> Fit | None:
    """How a value gets into a column of this type; None where Arrow takes it as it is, or refuses it by itself."""
    types = arrow.types
    if types.is_struct(kind):
        fields = _fields(kind)
        return _fit_object({each.name: _fit(arrow, each.type) for each in fields}, _required(fields))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _fit_list(_fit(arrow, kind.value_type), kind.value_field.nullable)
    if types.is_map(kind):
        return _fit_map(_fit(arrow, kind.item_type))
    if types.is_timestamp(kind):
        fine = arrow.timestamp("ns" if kind.unit == "ns" else "us", kind.tz)  # the zeros of "10:30:00.000000" fit no coarser one
        return lambda value: arrow.scalar(value).cast(fine).cast(kind).value
    fits: list[tuple[Callable[[Any], bool], Fit]] = [
        (types.is_date, datetime.date.fromisoformat),
        (types.is_time, datetime.time.fromisoformat),
        (types.is_duration, lambda value: msgspec.convert(value, datetime.timedelta)),
        (types.is_decimal, lambda value: decimal.Decimal(str(value))),
        (types.is_null, lambda value: None if value == {} else value),
        (lambda kind: isinstance(kind, arrow.JsonType), lambda value: msgspec.json.encode(value).decode()),
        (_is_binary(types), lambda value: base64.b64decode(value, validate=True)),
    ]
    return next((fit for is_kind, fit in fits if is_kind(kind)), None)


def _is_binary(types: Any) -> Callable[[Any], bool]:
    names = ("is_binary", "is_large_binary", "is_fixed_size_binary", "is_binary_view")
    return lambda kind: any(getattr(types, name)(kind) for name in names)


def _fit_object(fits: Mapping[str, Fit | None], required: list[str]) -> Fit:
    to_fit = {name: fit for name, fit in fits.items() if fit is not None}

    def fit_object(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError(f"it is {kind_of(value)}, not an object")
        _check_keys(value, fits, required)
        if not to_fit:
            return value
        return value | {name: fit(value[name]) for name, fit in to_fit.items() if value.get(name) is not None}

    return fit_object


def _fit_list(fit: Fit | None, nullable: bool) -> Fit | None:
    if fit is None and nullable:
        return None

    def fit_list(value: Any) -> Any:
        if not isinstance(value, list):
            raise ValueError(f"it is {kind_of(value)}, not an array")
        if not nullable and None in value:
            raise ValueError("a null is in it, which the columns do not allow")
        return [each if each is None or fit is None else fit(each) for each in value]

    return fit_list


def _fit_map(fit: Fit | None) -> Fit:
    def fit_map(value: Any) -> Any:
        return [(key, each if each is None or fit is None else fit(each)) for key, each in value]

    return fit_map


def _check_keys(value: dict[str, Any], known: Mapping[str, Any], required: list[str]) -> None:
    if not value.keys() <= known.keys():
        name = next(key for key in value if key not in known)
        raise ValueError(f"there is no column for {name!r}: neither the input nor the first rows have one")
    for name in required:
        if value.get(name) is None:
            raise ValueError(f"{name!r} is not there or null, which the columns do not allow")


def _required(fields: Iterable[Any]) -> list[str]:
    return [each.name for each in fields if not each.nullable]


def _fields(kind: Any) -> list[Any]:
    return [kind.field(number) for number in range(kind.num_fields)]
