"""The option `decoder`: a user's function is called for each record, and its results become a column.

Owns: how the function is imported and called, and what becomes of its errors.
Must not know: pyspark, where records come from, how options are written.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from kop.spark.entry_metadata import MESSAGE_ID, METADATA, PUBLISH_TIME

if TYPE_CHECKING:
    import pyarrow as pa

DECODED: Final = "decoded"
ERROR: Final = "decodeError"
_NO_METADATA: Final = {MESSAGE_ID: None, PUBLISH_TIME: None}


class RecordDecodeError(Exception):
    """An error for a record that the user's function cannot decode, or for a function that does not exist; the text
    names the record, and what to do.
    """


@dataclass(frozen=True, slots=True)
class DecoderOptions:
    """The options of the decoder: the user's function, its result's columns, and the handling of its errors."""

    function: str
    """The name of the function, `module:function`. It gets a DecoderRecord, and returns a mapping of names to values,
    or None for null.
    """
    schema: str
    """The columns of the function's result, in Spark's words: `id BIGINT, name STRING`."""
    permissive: bool
    """True if a record that the function refuses gets null and the error's text, instead of ending the read."""

    def columns(self) -> str:
        """Return the columns that the decoder adds behind a record's own, in Spark's words."""
        error = f", {ERROR} STRING" if self.permissive else ""
        return f"{DECODED} STRUCT<{self.schema}>{error}"


class DecoderRecord(NamedTuple):
    """A record as the user's function gets it."""

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: datetime
    timestamp_type: int
    """The kind of the timestamp: 0 for CreateTime, 1 for LogAppendTime."""
    headers: list[tuple[str, bytes | None]]
    message_id: str | None = None
    """Pulsar's message id, LEDGER:ENTRY:BATCH-INDEX; None without the option includeMetadata, as in the next field."""
    publish_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class DecoderFactory:
    """The decoder of a read as it goes to tasks; `kind` is the Arrow type of the column `decoded`."""

    options: DecoderOptions
    kind: pa.DataType
    schema_versions: ClassVar[bool] = False
    """False: a decoder is not told the versions of schemas."""

    def make(self) -> Decoder:
        """Return the decoder of one task. RecordDecodeError if the user's function cannot be imported."""
        return Decoder(self.options, self.kind)


class Decoder:
    """The user's function, imported; `kind` is the Arrow type of the column `decoded`."""

    def __init__(self, options: DecoderOptions, kind: pa.DataType) -> None:
        self._options = options
        self._kind = kind
        self._function = _imported(options.function)

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Call the function for each row, and return the rows with its results added as the column `decoded`. A row
        that it refuses, or whose result does not fit the column, raises RecordDecodeError; but if the decoder is
        permissive, it gets null, and the column `decodeError` is added with the text of the error, null for good rows.
        The rows have to have headers as their last column, or before the column `metadata`.
        """
        import pyarrow as pa  # noqa: PLC0415

        values: list[Any] = []
        failures: list[str | None] = []
        for record in _records(batch):
            value, failure = self._decoded(record)
            values.append(value)
            failures.append(failure)
        try:
            column = self._column(values)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            # One of them does not fit the schema: find out which.
            for at, record in enumerate(_records(batch)):
                values[at], failures[at] = self._fitting(record, values[at], failures[at])
            column = self._column(values)
        made = batch.append_column(pa.field(DECODED, self._kind), column)
        if self._options.permissive:
            made = made.append_column(pa.field(ERROR, pa.string()), pa.array(failures, pa.string()))
        return made

    def _column(self, values: list[Any]) -> pa.Array:
        import pyarrow as pa  # noqa: PLC0415

        column = pa.array(values, self._kind)
        for value in values:
            _refuse_fractions(value, self._kind)
        return column

    def _decoded(self, record: DecoderRecord) -> tuple[Any, str | None]:
        try:
            if record.timestamp is None:
                raise OverflowError("its timestamp is beyond the years 1 to 9999, which Python's datetime holds")
            return self._function(record), None
        except Exception as error:  # whatever the user's function raises
            return None, self._failure(record, error)

    def _fitting(self, record: DecoderRecord, value: Any, failure: str | None) -> tuple[Any, str | None]:
        import pyarrow as pa  # noqa: PLC0415

        try:
            self._column([value])
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            return None, self._failure(record, error)
        return value, failure

    def _failure(self, record: DecoderRecord, error: Exception) -> str:
        what = f"{type(error).__name__}: {error}".encode(errors="backslashreplace").decode()  # a lone surrogate
        if self._options.permissive:
            return what
        raise RecordDecodeError(
            f"set mode to PERMISSIVE to go on with null, or mend decoder {self._options.function}: it does not take "
            f"topic {record.topic} partition {record.partition} offset {record.offset}: {what}"
        ) from error


def _imported(name: str) -> Callable[[DecoderRecord], Any]:
    module, _, function = name.partition(":")
    try:
        decoder: Callable[[DecoderRecord], Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise RecordDecodeError(
            f"give every worker the module {module}, by spark.sparkContext.addPyFile or in its environment, with a "
            f"function {function}: {error}"
        ) from error
    return decoder


def _refuse_fractions(value: Any, kind: pa.DataType) -> None:
    """Raise ValueError if pyarrow would cut off the fraction of a number in `value` to make it a whole one; structs,
    lists and maps are looked through.
    """
    from pyarrow import types  # noqa: PLC0415

    if types.is_integer(kind):
        if isinstance(value, (float, Decimal)) and value != int(value):
            raise ValueError(f"{value} is no whole number")
    elif types.is_struct(kind):
        if isinstance(value, Mapping):
            for field in kind:
                _refuse_fractions(value.get(field.name), field.type)
        elif isinstance(value, tuple):
            for item, field in zip(value, kind, strict=False):
                _refuse_fractions(item, field.type)
    elif types.is_list(kind) and value is not None:
        for item in value:
            _refuse_fractions(item, kind.value_type)
    elif types.is_map(kind) and value is not None:
        for key, item in value.items() if isinstance(value, Mapping) else value:
            _refuse_fractions(key, kind.key_type)
            _refuse_fractions(item, kind.item_type)


def _records(batch: pa.RecordBatch) -> Iterator[DecoderRecord]:
    plain, metadata = batch, [_NO_METADATA] * batch.num_rows
    if METADATA in batch.schema.names:
        plain, metadata = batch.drop_columns([METADATA]), _values(batch.column(METADATA))
    *columns, headers = (_values(column) for column in plain.columns)
    for fields, of_record, entry in zip(zip(*columns, strict=True), headers, metadata, strict=True):
        named = [(header["key"], header["value"]) for header in of_record or ()]
        yield DecoderRecord._make((*fields, named, entry[MESSAGE_ID], entry[PUBLISH_TIME]))


def _values(column: pa.Array) -> list[Any]:
    """Return the values of a column as Python's; None for a time that Python cannot hold."""
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        values = [_value(scalar) for scalar in column]
    return values


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return None
