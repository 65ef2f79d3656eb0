"""Columns into JSON texts, as `kop.schemas.json_text` reads them; and the JSON Schema of a column's type.

Owns: how each type is written. Fields that are null are left out.
Must not know: registries, frames, pyspark.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from kop.schemas.encoders import Encode, entries, grouped, numbers, with_nulls
from kop.schemas.errors import BadRecordError, SchemaError, below
from kop.schemas.types import in_sql

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def encoder(kind: pa.DataType) -> Callable[[pa.Array], list[bytes | None]]:
    """Return the function that writes a column of type `kind` as JSON texts, None for null. That function raises
    BadRecordError for a value that JSON has not: NaN, infinity, a time or a day beyond the years 1 to 9999.
    SchemaError if JSON
    has no form for the type.
    """
    inner = _encode(kind, "")
    return lambda column: with_nulls(inner, column)


def _or_null(encode: Encode) -> Encode:
    return lambda column: [b"null" if value is None else value for value in with_nulls(encode, column)]


def _encode(kind: pa.DataType, path: str) -> Encode:
    if types.is_struct(kind):
        return _struct(kind, path)
    if types.is_list(kind):
        item = _or_null(_encode(kind.value_type, f"{path}[]"))
        return lambda column: [b"[" + b",".join(items) + b"]" for items in grouped(column, item(column.flatten()))]
    if types.is_map(kind) and types.is_string(kind.key_type):
        return _map(_or_null(_encode(kind.item_type, f"{path}[]")))
    if types.is_floating(kind):
        return lambda column: [_float(value, path) for value in column.to_pylist()]
    if types.is_timestamp(kind):
        end = "Z" if kind.tz is not None else ""
        return lambda column: [_time(value, end, path) for value in numbers(column)]
    if types.is_date32(kind):
        return lambda column: [_day(value, path) for value in numbers(column)]
    if types.is_binary(kind):
        return lambda column: [b'"' + base64.b64encode(value) + b'"' for value in column.to_pylist()]
    if types.is_decimal(kind):
        return lambda column: [format(value, "f").encode() for value in column.to_pylist()]
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_string(kind):
        return lambda column: [_text(value) for value in column.to_pylist()]
    raise SchemaError(f"{path or 'the column'} has the type {in_sql(kind)}, which JSON has not: cast it")


def _text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _float(value: float, path: str) -> bytes:
    if not math.isfinite(value):
        raise BadRecordError(f"{path or 'a row'} is {value}, which JSON has not")
    return json.dumps(value).encode()


def _time(micros: int, end: str, path: str) -> bytes:
    try:
        moment = _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise BadRecordError(f"{path or 'a row'} is a time beyond the years 1 to 9999") from None
    return f'"{moment.replace(tzinfo=None).isoformat()}{end}"'.encode()


def _day(days: int, path: str) -> bytes:
    try:
        day = _EPOCH.date() + timedelta(days)
    except OverflowError:
        raise BadRecordError(f"{path or 'a row'} is a day beyond the years 1 to 9999") from None
    return f'"{day.isoformat()}"'.encode()


def _struct(kind: pa.DataType, path: str) -> Encode:
    names = [_text(field.name) + b":" for field in kind]
    encodes = [_encode(field.type, below(path, field.name)) for field in kind]

    def encode(column: pa.Array) -> list[bytes]:
        parts = [
            [None if value is None else name + value for value in with_nulls(inner, part)]
            for name, inner, part in zip(names, encodes, column.flatten(), strict=True)
        ]
        if not parts:
            return [b"{}"] * len(column)
        return [b"{" + b",".join([part for part in row if part is not None]) + b"}" for row in zip(*parts, strict=True)]

    return encode


def _map(item: Encode) -> Encode:
    def encode(column: pa.Array) -> list[bytes]:
        keys, items = entries(column)
        pairs = [_text(key) + b":" + value for key, value in zip(keys.to_pylist(), item(items), strict=True)]
        return [b"{" + b",".join(group) + b"}" for group in grouped(column, pairs)]

    return encode


# -- schemas of types


def schema_of(kind: pa.DataType) -> str:
    """Return the JSON Schema of a column's type, as JSON text; no field is required."""
    return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#"} | _schema_of(kind))


def _schema_of(kind: pa.DataType) -> dict[str, Any]:
    if types.is_struct(kind):
        return {"type": "object", "properties": {field.name: _schema_of(field.type) for field in kind}}
    if types.is_list(kind):
        return {"type": "array", "items": _schema_of(kind.value_type)}
    if types.is_map(kind):
        return {"type": "object", "additionalProperties": _schema_of(kind.item_type)}
    if types.is_boolean(kind):
        return {"type": "boolean"}
    if types.is_integer(kind):
        return {"type": "integer"}
    if types.is_floating(kind) or types.is_decimal(kind):
        return {"type": "number"}
    if types.is_date32(kind):
        return {"type": "string", "format": "date"}
    if types.is_timestamp(kind) and kind.tz is not None:
        return {"type": "string", "format": "date-time"}
    return {"type": "string"}
