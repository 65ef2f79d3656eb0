"""Columns into Protobuf's messages.

Owns: which types of columns a message takes.
Must not know: registries, frames, pyspark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from google.protobuf.message import EncodeError
from google.protobuf.message_factory import GetMessageClass
from pyarrow import types

from kop.schemas.avro_schema import UTC
from kop.schemas.encoders import with_nulls
from kop.schemas.errors import BadRecordError, SchemaError, below
from kop.schemas.protobuf import Descriptor, arrow_type
from kop.schemas.types import in_sql, with_leaves

Set = Callable[[Any, Any], None]


def encoder(message: Descriptor, kind: pa.DataType) -> Callable[[pa.Array], list[bytes | None]]:
    """Return the function that encodes a column as messages, None for null; it raises BadRecordError for a row that the
    message does not take. SchemaError if the message does not take such columns at all.
    """
    _compare(arrow_type(message), kind, "")
    made = GetMessageClass(message)
    fill = _filler(message)

    def encode(column: pa.Array) -> list[bytes]:
        encoded = []
        for row in _without_times(column).to_pylist():
            filled = made()
            try:
                fill(filled, row)
                encoded.append(filled.SerializeToString(deterministic=True))
            except (ValueError, TypeError, OverflowError, EncodeError) as error:
                raise BadRecordError(f"a row does not fit the message {message.full_name}: {error}") from None
        return encoded

    return lambda column: with_nulls(encode, column)


def _compare(wanted: pa.DataType, given: pa.DataType, path: str) -> None:
    """Raise SchemaError if a column has a field that the message does not have, or has with another type; narrower
    integers are taken. `path` names the field in the error.
    """
    if types.is_struct(wanted) and types.is_struct(given):
        known = {field.name: field.type for field in wanted}
        for field in given:
            inner = below(path, field.name)
            if field.name not in known:
                raise SchemaError(f"{inner} is no field of the message: leave it out, or add it to the schema")
            _compare(known[field.name], field.type, inner)
    elif types.is_list(wanted) and types.is_list(given):
        _compare(wanted.value_type, given.value_type, f"{path}[]")
    elif types.is_map(wanted) and types.is_map(given):
        _compare(wanted.key_type, given.key_type, f"{path}[]")
        _compare(wanted.item_type, given.item_type, f"{path}[]")
    elif not (wanted.equals(given) or _narrower(given, wanted)):
        raise SchemaError(f"{path or 'the column'} has the type {in_sql(given)}, not {in_sql(wanted)}: cast it")


def _narrower(given: pa.DataType, wanted: pa.DataType) -> bool:
    if types.is_decimal(wanted):  # a number without a sign of 64 bits
        return bool(types.is_integer(given) or (types.is_decimal(given) and given.scale == 0))
    return bool(types.is_integer(given) and types.is_integer(wanted) and given.bit_width <= wanted.bit_width)


def _without_times(column: pa.Array) -> pa.Array:
    """Return a column with times, at any depth, as microseconds since 1970-01-01, since Python's types cannot hold all
    times.
    """
    return column.cast(with_leaves(column.type, lambda kind: pa.int64() if kind.equals(UTC) else kind))


def _filler(message: Descriptor) -> Set:
    """Return the function that sets the fields of a message of this type from a row, a dict by field; null leaves a
    field unset. It raises ValueError, TypeError or OverflowError for a value that the field does not take.
    """
    if message.full_name == "google.protobuf.Timestamp":

        def fill_time(made: Any, micros: int) -> None:
            made.seconds, rest = divmod(micros, 1_000_000)
            made.nanos = rest * 1000

        return fill_time
    fields = {field.name: _setter(field) for field in message.fields}
    choices = [(choice.name, [field.name for field in choice.fields]) for choice in message.oneofs]

    def fill(made: Any, row: dict[str, Any]) -> None:
        made.SetInParent()
        for choice, members in choices:
            given = [name for name in members if row.get(name) is not None]
            if len(given) > 1:
                raise ValueError(f"{' and '.join(given)} are both set, and {choice} is one of them")
        for name, value in row.items():
            if value is not None:
                fields[name](made, value)

    return fill


def _setter(field: Any) -> Set:
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        return _map_setter(name, entry["key"], entry["value"])
    inner = None if field.message_type is None else _filler(field.message_type)
    convert = _converter(field)
    if field.is_repeated:

        def extend(made: Any, values: list[Any]) -> None:
            target = getattr(made, name)
            for value in values:
                if value is None:
                    raise ValueError(f"{name} has a null in it, which Protobuf has not")
                if inner is None:
                    target.append(convert(value))
                else:
                    inner(target.add(), value)

        return extend
    if inner is None:
        return lambda made, value: setattr(made, name, convert(value))
    return lambda made, value: inner(getattr(made, name), value)


def _map_setter(name: str, key_field: Any, item: Any) -> Set:
    inner = None if item.message_type is None else _filler(item.message_type)
    convert_key, convert = _converter(key_field), _converter(item)

    def put(made: Any, pairs: list[tuple[Any, Any]]) -> None:
        target = getattr(made, name)
        for key, value in pairs:
            if value is None:
                raise ValueError(f"{name} has a null in it, which Protobuf has not")
            made_key = convert_key(key)
            if inner is None:
                target[made_key] = convert(value)
            else:
                inner(target[made_key], value)

    return put


def _converter(field: Any) -> Callable[[Any], Any]:
    if field.enum_type is not None:
        numbers = {name: value.number for name, value in field.enum_type.values_by_name.items()}

        def number(value: str) -> int:
            if value not in numbers:
                raise ValueError(f"{field.name} is {value!r}, which is no symbol of {field.enum_type.full_name}")
            made: int = numbers[value]
            return made

        return number
    return int if field.cpp_type == field.CPPTYPE_UINT64 else lambda value: value
