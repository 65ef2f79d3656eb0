"""Pulsar's schemas of one value: numbers, texts, times, and pairs of a key and a value.

Owns: how Pulsar's clients write each of them, and the type of a column that it is.
Must not know: registries, pyspark.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import pyarrow as pa

from kop.schemas.avro_schema import LOCAL, UTC
from kop.schemas.builders import Leaf, builder
from kop.schemas.encoders import Encode, numbers
from kop.schemas.errors import BadRecordError, SchemaError
from kop.schemas.types import in_sql

_INT64: Final = struct.Struct(">q")
_PAIR: Final = struct.Struct(">qi")
_TWO: Final = struct.Struct(">qq")
_DAY_NANOS: Final = 86_400_000_000_000


def _boolean(data: bytes) -> bool:
    if data not in (b"\0", b"\1"):
        raise BadRecordError(f"it is {data[:4]!r}, no boolean")
    return data == b"\1"


def _number(form: str) -> Callable[[bytes], Any]:
    unpack = struct.Struct(form).unpack
    return lambda data: unpack(data)[0]


def _instant(data: bytes) -> int:
    seconds, nanos = _PAIR.unpack(data)
    if not 0 <= nanos < 1_000_000_000:
        raise BadRecordError(f"its time has {nanos} nanoseconds")
    return _in_range(seconds * 1_000_000 + nanos // 1000)


def _local_date_time(data: bytes) -> int:
    day, nanos = _TWO.unpack(data)
    if not 0 <= nanos < _DAY_NANOS:
        raise BadRecordError(f"its time of the day is {nanos} nanoseconds")
    return _in_range(day * 86_400_000_000 + nanos // 1000)


def _in_range(micros: int) -> int:
    if not -(2**63) <= micros < 2**63:
        raise BadRecordError("its time is beyond what a column holds")
    return micros


def _local_date(data: bytes) -> int:
    (day,) = _INT64.unpack(data)
    if not -(2**31) <= day < 2**31:
        raise BadRecordError(f"its day is {day}, beyond what a column holds")
    made: int = day
    return made


_NUMBERS: Final = {
    "INT8": (pa.int8(), ">b"),
    "INT16": (pa.int16(), ">h"),
    "INT32": (pa.int32(), ">i"),
    "INT64": (pa.int64(), ">q"),
    "FLOAT": (pa.float32(), ">f"),
    "DOUBLE": (pa.float64(), ">d"),
    "TIME": (pa.int64(), ">q"),
    "LOCAL_TIME": (pa.int64(), ">q"),
}
PRIMITIVES: Final[dict[str, tuple[pa.DataType, Callable[[bytes], Any]]]] = {
    "NONE": (pa.binary(), bytes),
    "BYTES": (pa.binary(), bytes),
    "STRING": (pa.string(), bytes.decode),
    "BOOLEAN": (pa.bool_(), _boolean),
    **{name: (kind, _number(form)) for name, (kind, form) in _NUMBERS.items()},
    "DATE": (UTC, lambda data: _in_range(_INT64.unpack(data)[0] * 1000)),
    "TIMESTAMP": (UTC, lambda data: _in_range(_INT64.unpack(data)[0] * 1000)),
    "INSTANT": (UTC, _instant),
    "LOCAL_DATE": (pa.date32(), _local_date),
    "LOCAL_DATE_TIME": (LOCAL, _local_date_time),
}
"""The type of a column of each, and the function that reads a value. TIME is milliseconds, LOCAL_TIME nanoseconds."""


class PrimitiveReader:
    """The reader of the values of one of Pulsar's primitive schemas."""

    def __init__(self, name: str) -> None:
        self.kind, self._convert = PRIMITIVES[name]
        self._into = builder(self.kind)

    def decode(self, records: Sequence[bytes], start: int = 0) -> tuple[pa.Array, dict[int, str]]:
        """Return a column with a row for each record, and by row the errors of malformed records, which are null in it.
        The value of a record begins at its byte `start`.
        """
        into, convert = self._into, self._convert
        assert isinstance(into, Leaf)
        failures: dict[int, str] = {}
        for row, record in enumerate(records):
            try:
                into.values.append(convert(record[start:]))
                continue
            except struct.error:
                reason = f"it has {len(record) - start} bytes, which is not the size of its type"
            except UnicodeDecodeError:
                reason = "it is no UTF-8"
            except BadRecordError as error:
                reason = str(error)
            into.add_null()
            failures[row] = reason
        return into.finish(), failures


def split_pair(data: bytes) -> tuple[bytes | None, bytes | None]:
    """Return the key and the value of a key-value pair that Pulsar keeps in one message (INLINE); None for one that is
    null. BadRecordError if the message is no such pair.
    """
    parts: list[bytes | None] = []
    at = 0
    for _ in range(2):
        if at + 4 > len(data):
            raise BadRecordError("it is cut short")
        size = int.from_bytes(data[at : at + 4], "big", signed=True)
        at += 4
        if size < -1 or at + max(size, 0) > len(data):
            raise BadRecordError("it is cut short, or the length of its key or value is wrong")
        parts.append(None if size < 0 else data[at : at + size])
        at += max(size, 0)
    if at < len(data):
        raise BadRecordError(f"there are {len(data) - at} bytes behind it")
    return parts[0], parts[1]


# -- writing

_TIMES: Final[dict[str, Callable[[int], bytes]]] = {
    "DATE": lambda micros: _INT64.pack(micros // 1000),
    "TIMESTAMP": lambda micros: _INT64.pack(micros // 1000),
    "INSTANT": lambda micros: _PAIR.pack(micros // 1_000_000, micros % 1_000_000 * 1000),
    "LOCAL_DATE": _INT64.pack,
    "LOCAL_DATE_TIME": lambda micros: _TWO.pack(micros // 86_400_000_000, micros % 86_400_000_000 * 1000),
}


def encoder(name: str, kind: pa.DataType) -> Encode:
    """Return the function that encodes columns of type `kind` without nulls by the primitive schema of Pulsar with this
    name, such as INT32. SchemaError if the schema does not take such columns.
    """
    wanted = PRIMITIVES[name][0]
    narrower = pa.types.is_integer(kind) and pa.types.is_integer(wanted) and kind.bit_width <= wanted.bit_width
    if not (kind.equals(wanted) or narrower):
        raise SchemaError(f"the column has the type {in_sql(kind)}, and its schema is {name}: cast it")
    if name in _TIMES:
        pack_time = _TIMES[name]
        return lambda column: [pack_time(value) for value in numbers(column)]
    if name == "BOOLEAN":
        return lambda column: [b"\1" if value else b"\0" for value in column.to_pylist()]
    if name not in _NUMBERS:
        return lambda column: list(column.cast(pa.binary()).to_pylist())
    pack = struct.Struct(_NUMBERS[name][1]).pack
    return lambda column: [pack(value) for value in column.to_pylist()]


def joined_pair(parts: Iterable[bytes | None]) -> bytes:
    """Return the message that holds a key and a value, of which each may be None, as Pulsar keeps a pair in one message
    and `split_pair` takes it.
    """
    return b"".join(b"\xff\xff\xff\xff" if part is None else len(part).to_bytes(4, "big") + part for part in parts)
