"""Avro's records into columns by compiled code, if that was built: `make schemas`.

Owns: which reader reads a pair of schemas, and the wrapping of the compiled reader's buffers.
Must not know: registries, frames, pyspark.

The compiled reader takes no record that the one in Python refuses: what it does not take is read again there, which
says what is wrong with it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from kop.schemas.avro_program import Program, program_of
from kop.schemas.avro_reading import AvroReader
from kop.schemas.avro_schema import AvroType
from kop.schemas.schema_reader import Decoded, SchemaReader, in_order

FORMAT: Final = 1
"""The version of what passes to the compiled module and back: one of another version is not used."""


def avro_reader(writer: AvroType, reader: AvroType) -> SchemaReader:
    """Return the reader of records of the `writer` schema into columns of the `reader` schema: the compiled one if it
    is there and takes these schemas. UnresolvableError if no record of the writer's schema can be read as the reader's.
    """
    readable = AvroReader(writer, reader)
    native = compiled_module()
    program = None if native is None else program_of(writer, reader)
    return readable if program is None else CompiledReader(native, program, readable)


@functools.cache
def compiled_module() -> Any:
    """Return the compiled module, the same in each call; None if it was not built, or if what it takes and returns is
    of another version than this code's.
    """
    try:
        native = import_module("kop_schemas")
    except ImportError:
        return None
    return native if getattr(native, "FORMAT", None) == FORMAT else None


class CompiledReader:
    """The compiled reader of a pair of schemas."""

    def __init__(self, native: Any, program: Program, readable: AvroReader) -> None:
        """Read by `program`; records that the compiled module `native` does not take go to `readable`."""
        self._program = program
        self._native = native.AvroDecoder(program.columns, program.step)
        self._readable = readable

    def decode(self, records: Sequence[bytes], start: int = 0) -> Decoded:
        """Return a column with a row for each record, and by row the errors of malformed records, which are null in it.
        The encoding of a record begins at its byte `start`. Records that the compiled module does not take are read by
        the reader in Python, which has the last word.
        """
        program = self._program
        rows, parts = self._native.decode(records if isinstance(records, list) else list(records), start)
        values = _column(program.kind, program.columns, parts, 0)
        if not rows:
            return values, {}
        again, failures = self._readable.decode([records[row] for row in rows], start)
        if len(failures) < len(rows):
            left = sorted(set(range(len(records))) - set(rows))
            kept = values.take(pa.array(left, pa.int64()))
            values = in_order(program.kind, len(records), [(left, kept), (rows, again)])
        return values, {rows[at]: reason for at, reason in failures.items()}


def _column(kind: pa.DataType, columns: list[tuple[Any, ...]], parts: list[tuple[Any, ...]], at: int) -> pa.Array:
    """Return the column of type `kind`, made of the compiled reader's buffers without copying them. `at` is its number
    in `columns`, which describe all columns, and in `parts`, which have their rows, nulls and buffers.
    """
    rows, nulls, buffers = parts[at]
    own = [None if buffer is None else pa.py_buffer(buffer) for buffer in buffers]
    inner: list[pa.DataType] = []
    if types.is_struct(kind):
        inner = [field.type for field in kind]
    elif types.is_map(kind):
        inner = [kind.key_type, kind.item_type]
    elif types.is_list(kind):
        inner = [kind.value_type]
    described = columns[at][1:]
    numbers = described[0] if types.is_struct(kind) else described
    children = [_column(of_part, columns, parts, part) for of_part, part in zip(inner, numbers, strict=True)]
    if types.is_map(kind):
        children = [pa.StructArray.from_arrays(children, fields=[kind.key_field, kind.item_field])]
    return pa.Array.from_buffers(kind, rows, own, nulls, children=children)
