"""The base of the writers of all formats: columns without nulls become a list of encoded values.

Owns: where nulls go, what an error about a value says.
Must not know: formats.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyarrow import types

from kop.schemas.errors import BadRecordError
from kop.varints import varint_bytes

Encode = Callable[[pa.Array], list[bytes]]
"""A function that encodes each value of a column without nulls; BadRecordError names the field that cannot be."""


def with_nulls(encode: Encode, column: pa.Array) -> list[bytes | None]:
    """Return the encoded values of a column, None for null; `encode` gets those that are not null."""
    if not column.null_count:
        return list(encode(column))
    valid = column.is_valid()
    encoded = iter(encode(column.filter(valid)))
    return [next(encoded) if there else None for there in valid.to_pylist()]


def without_nulls(column: pa.Array, path: str) -> pa.Array:
    """Return the column itself. BadRecordError, which names the field by `path`, if it has a null."""
    if column.null_count:
        raise BadRecordError(f"{path or 'a row'} is null, which its schema does not take")
    return column


def grouped(column: pa.Array, items: list[Any]) -> list[list[Any]]:
    """Return the items of each list, or map, of a column that has no nulls; `items` are those of all rows, one after
    the other, whatever was made of them.
    """
    made, at = [], 0
    for size in column.value_lengths().to_pylist() if types.is_list(column.type) else _lengths(column):
        made.append(items[at : at + size])
        at += size
    return made


def _lengths(column: pa.Array) -> list[int]:
    offsets = column.offsets.to_pylist()
    return [end - start for start, end in pairwise(offsets)]


def entries(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the keys and the items of all maps of a column without nulls, one after the other."""
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return column.keys.slice(first, last - first), column.items.slice(first, last - first)


def zigzag(value: int) -> bytes:
    """Return a whole number of up to 64 bits, zigzag in groups of 7 bits, as Avro and message indexes have it."""
    return varint_bytes((value << 1) ^ (value >> 63))


def numbers(column: pa.Array) -> list[int]:
    """Return the values of a column of dates as days, or of one of times as microseconds, since 1970-01-01."""
    plain = pa.int32() if types.is_date(column.type) else pa.int64()
    values: list[int] = column.cast(plain).to_pylist()
    return values
