"""Columns into Avro's binary encoding, by a schema; and the schema that a type of a column is by itself.

Owns: which types of columns a schema takes, and their encoding.
Must not know: registries, frames, pyspark.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from kop.schemas.avro_reading import WIDE, plain_value
from kop.schemas.avro_schema import UTC, AvroType, arrow_type
from kop.schemas.builders import builder
from kop.schemas.encoders import Encode, entries, grouped, numbers, with_nulls, without_nulls, zigzag
from kop.schemas.errors import BadRecordError, SchemaError, below
from kop.schemas.types import in_sql

_ROOT: Final = "topLevelRecord"
"""The name of a record that has none, as Spark's `to_avro` gives it."""


def encoder(schema: AvroType, kind: pa.DataType) -> Callable[[pa.Array], list[bytes | None]]:
    """Return the function that encodes a column of type `kind`; null gives None, but the encoded null if the schema has
    null. That function raises BadRecordError for a value that the schema does not take. SchemaError if the schema does
    not take such columns at all.
    """
    if schema.takes_null:
        encode = _nullable(schema, kind, "")
        return lambda column: list(encode(column))
    inner = _encode(schema, kind, "")
    return lambda column: with_nulls(inner, column)


def _nullable(schema: AvroType, kind: pa.DataType, path: str) -> Encode:
    """Return the function that encodes columns that may have nulls: it raises BadRecordError for a null that the schema
    does not take. SchemaError if the schema does not take such columns at all; `path` names the column in errors.
    """
    if schema.kind == "null":
        return lambda column: [b""] * len(_nothing(column, path))
    if not schema.takes_null:
        encode = _encode(schema, kind, path)
        return lambda column: encode(without_nulls(column, path))
    empty = zigzag([branch.kind for branch in schema.branches].index("null"))
    if not schema.members:
        return lambda column: [empty] * len(_nothing(column, path))
    inner = _encode(schema, kind, path)
    return lambda column: [empty if value is None else value for value in with_nulls(inner, column)]


def _nothing(column: pa.Array, path: str) -> pa.Array:
    """Return the column itself. BadRecordError, which names the field by `path`, if it has a value."""
    if column.null_count < len(column):
        raise BadRecordError(f"{path or 'a row'} has a value, and its schema takes null alone")
    return column


def _encode(schema: AvroType, kind: pa.DataType, path: str) -> Encode:
    """Return the function that encodes columns of type `kind` without nulls. SchemaError if the schema does not take
    such columns; `path` names the column in errors.
    """
    if schema.kind == "union":
        return _union(schema, kind, path)
    if schema.kind == "record" and types.is_struct(kind):
        return _record(schema, kind, path)
    if schema.kind == "array" and types.is_list(kind):
        item = _nullable(schema.item, kind.value_type, f"{path}[]")
        return lambda column: [
            zigzag(len(items)) + b"".join(items) + b"\0" if items else b"\0"
            for items in grouped(column, item(column.flatten()))
        ]
    if schema.kind == "map" and types.is_map(kind) and types.is_string(kind.key_type):
        return _map(schema, kind, path)
    leaf = _leaf(schema, kind, path)
    if leaf is None:
        raise SchemaError(f"{path or 'the column'} has the type {in_sql(kind)}, and its schema is {schema}: cast it")
    return leaf


def _union(schema: AvroType, kind: pa.DataType, path: str) -> Encode:
    members = schema.members
    if len(members) == 1:
        before = zigzag(schema.branches.index(members[0]))
        inner = _encode(members[0], kind, path)
        return lambda column: [before + value for value in inner(column)]
    names = [f"member{at}" for at in range(len(members))]
    if not types.is_struct(kind) or [field.name for field in kind] != names:
        raise SchemaError(f"{path or 'the column'} has to be a struct of {', '.join(names)}: its schema is {schema}")
    encodes = [_encode(member, field.type, path) for member, field in zip(members, kind, strict=True)]
    before_each = [zigzag(schema.branches.index(member)) for member in members]

    def encode(column: pa.Array) -> list[bytes]:
        parts = [with_nulls(inner, part) for inner, part in zip(encodes, column.flatten(), strict=True)]
        made = []
        for row in zip(*parts, strict=True):
            there = [at for at, value in enumerate(row) if value is not None]
            if len(there) != 1:
                raise BadRecordError(f"{path or 'a row'} has {len(there)} members of a union, of which one is set")
            made.append(before_each[there[0]] + (row[there[0]] or b""))
        return made

    return encode


def _record(schema: AvroType, kind: pa.DataType, path: str) -> Encode:
    given = {field.name: at for at, field in enumerate(kind)}
    unknown = [name for name in given if name not in {field.name for field in schema.fields}]
    if unknown:
        raise SchemaError(f"{below(path, unknown[0])} is no field of {schema}: leave it out, or add it to the schema")
    steps: list[tuple[int | None, Any]] = []
    for field in schema.fields:
        inner = below(path, field.name)
        if field.name in given:
            steps.append((given[field.name], _nullable(field.kind, kind.field(given[field.name]).type, inner)))
        elif field.has_default or field.kind.takes_null:
            steps.append((None, _constant(field.kind, field.default if field.has_default else None, inner)))
        else:
            raise SchemaError(f"{inner} is missing, and the schema has no default for it")

    def encode(column: pa.Array) -> list[bytes]:
        columns = column.flatten()
        rows = len(column)
        parts = [[step] * rows if at is None else step(columns[at]) for at, step in steps]
        return [b"".join(row) for row in zip(*parts, strict=True)] if parts else [b""] * rows

    return encode


def _constant(schema: AvroType, default: Any, path: str) -> bytes:
    try:
        made = builder(arrow_type(schema))
        made.add(plain_value(schema, default))
        (encoded,) = _nullable(schema, made.kind, path)(made.finish())
    except (BadRecordError, ValueError, TypeError) as error:
        raise SchemaError(f"the default of {path} does not fit its type: {error}") from None
    return encoded


def _map(schema: AvroType, kind: pa.DataType, path: str) -> Encode:
    item = _nullable(schema.item, kind.item_type, f"{path}[]")

    def encode(column: pa.Array) -> list[bytes]:
        keys, items = entries(column)
        pairs = [_sized(key.encode()) + value for key, value in zip(keys.to_pylist(), item(items), strict=True)]
        return [zigzag(len(group)) + b"".join(group) + b"\0" if group else b"\0" for group in grouped(column, pairs)]

    return encode


def _sized(value: bytes) -> bytes:
    return zigzag(len(value)) + value


def _leaf(schema: AvroType, kind: pa.DataType, path: str) -> Encode | None:
    match schema.kind:
        case "boolean" if types.is_boolean(kind):
            return lambda column: [b"\1" if value else b"\0" for value in column.to_pylist()]
        case "int" if schema.logical == "date" and types.is_date32(kind):
            return lambda column: [zigzag(value) for value in numbers(column)]
        case "int" if types.is_integer(kind) and kind.bit_width <= 32 and not schema.logical:
            return lambda column: [zigzag(value) for value in column.to_pylist()]
        case "long" if types.is_timestamp(kind) and schema.logical:
            if (kind.tz is None) != schema.logical.startswith("local-"):
                return None
            divisor = 1000 if schema.logical.endswith("-millis") else 1
            return lambda column: [zigzag(value // divisor) for value in numbers(column)]
        case "long" if types.is_integer(kind) and not schema.logical:
            return lambda column: [zigzag(value) for value in column.to_pylist()]
        case "float" if types.is_float32(kind):
            return lambda column: [struct.pack("<f", value) for value in column.to_pylist()]
        case "double" if types.is_floating(kind):
            return lambda column: [struct.pack("<d", value) for value in column.to_pylist()]
        case "bytes" | "fixed" if schema.logical == "decimal" and types.is_decimal(kind):
            fits = kind.scale == schema.scale and kind.precision <= schema.precision
            return _decimal(schema, path) if fits else None
        case "bytes" if types.is_binary(kind) and not schema.logical:
            return lambda column: [_sized(value) for value in column.to_pylist()]
        case "fixed" if types.is_binary(kind) and not schema.logical:
            return lambda column: [_fixed(value, schema, path) for value in column.to_pylist()]
        case "fixed" if schema.logical == "uuid" and types.is_string(kind):
            return lambda column: [_uuid(value, path) for value in column.to_pylist()]
        case "string" if types.is_string(kind):
            return lambda column: [_sized(value.encode()) for value in column.to_pylist()]
        case "enum" if types.is_string(kind):
            return _enum(schema, path)
    return None


def _fixed(value: bytes, schema: AvroType, path: str) -> bytes:
    if len(value) != schema.size:
        raise BadRecordError(f"{path or 'a row'} has {len(value)} bytes, and {schema} is of {schema.size}")
    return value


def _uuid(value: str, path: str) -> bytes:
    try:
        return uuid.UUID(value).bytes
    except ValueError:
        raise BadRecordError(f"{path or 'a row'} is {value!r}, which is no UUID") from None


def _enum(schema: AvroType, path: str) -> Encode:
    symbols = {symbol: zigzag(at) for at, symbol in enumerate(schema.symbols)}

    def encode(column: pa.Array) -> list[bytes]:
        values = column.to_pylist()
        for value in values:
            if value not in symbols:
                raise BadRecordError(f"{path or 'a row'} is {value!r}, which is no symbol of {schema}")
        return [symbols[value] for value in values]

    return encode


def _decimal(schema: AvroType, path: str) -> Encode:
    def encoded_decimal(value: Decimal) -> bytes:
        number = int(WIDE.scaleb(value, schema.scale))
        if schema.kind == "fixed":
            try:
                return number.to_bytes(schema.size, "big", signed=True)
            except OverflowError:
                raise BadRecordError(f"{path or 'a row'} is {value}, too large for {schema}") from None
        return _sized(number.to_bytes(((number if number >= 0 else ~number).bit_length() + 8) // 8, "big", signed=True))

    return lambda column: [encoded_decimal(value) for value in column.to_pylist()]


# -- schemas of types


def schema_of(kind: pa.DataType) -> str:
    """Return the Avro schema of a column's type, in which every field may be null, and is by default. SchemaError if
    Avro has no such type.
    """
    return json.dumps(_schema_of(kind, _ROOT, ""))


def _schema_of(kind: pa.DataType, name: str, space: str) -> Any:
    if types.is_struct(kind):
        inner = f"{space}.{name}" if space else name
        made: dict[str, Any] = {"type": "record", "name": name}
        if space:
            made["namespace"] = space
        made["fields"] = [
            {"name": field.name, "type": ["null", _schema_of(field.type, field.name, inner)], "default": None}
            for field in kind
        ]
        return made
    if types.is_list(kind):
        return {"type": "array", "items": ["null", _schema_of(kind.value_type, name, space)]}
    if types.is_map(kind) and types.is_string(kind.key_type):
        return {"type": "map", "values": ["null", _schema_of(kind.item_type, name, space)]}
    if types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if types.is_timestamp(kind):
        return {"type": "long", "logicalType": f"{'' if kind.equals(UTC) else 'local-'}timestamp-micros"}
    if types.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    if types.is_integer(kind):
        return "long" if kind.bit_width > 32 else "int"
    plain = {pa.bool_(): "boolean", pa.float32(): "float", pa.float64(): "double", pa.binary(): "bytes"}
    if kind in plain:
        return plain[kind]
    if types.is_string(kind):
        return "string"
    raise SchemaError(f"Avro has no type for {in_sql(kind)}: cast it")
