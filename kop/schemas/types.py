"""Types of columns in Spark's words.

Owns: how a type of pyarrow is named in SQL.
Must not know: pyspark, formats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
from pyarrow import types

from kop.schemas.errors import SchemaError

_NAMES: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
    pa.timestamp("us", tz="UTC"): "TIMESTAMP",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
}


def in_sql(kind: pa.DataType) -> str:
    """Return a type in Spark's words, as a column's declaration has it. SchemaError if Spark has no such type."""
    if types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{quoted(field.name)}: {in_sql(field.type)}' for field in kind)}>"
    if types.is_map(kind):
        return f"MAP<{in_sql(kind.key_type)}, {in_sql(kind.item_type)}>"
    if types.is_list(kind):
        return f"ARRAY<{in_sql(kind.value_type)}>"
    if types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if kind not in _NAMES:
        raise SchemaError(f"a column cannot have the type {kind}")
    return _NAMES[kind]


def quoted(name: str) -> str:
    """Return a name in backticks, as SQL of Spark takes it, whatever characters it has."""
    escaped = name.replace("`", "``")
    return f"`{escaped}`"


def widened(kind: pa.DataType) -> pa.DataType:
    """Return a type in the form that types of schemas have, with everything in it nullable and an array's items named
    `element`; Spark's own differ in that.
    """
    return with_leaves(kind, lambda leaf: leaf)


def with_leaves(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a type with what `change` makes of each type in it that has no parts, at any depth; everything in it is
    nullable, and an array's items are named `element`.
    """
    if types.is_struct(kind):
        return pa.struct([(field.name, with_leaves(field.type, change)) for field in kind])
    if types.is_map(kind):
        return pa.map_(with_leaves(kind.key_type, change), with_leaves(kind.item_type, change))
    if types.is_list(kind):
        return pa.list_(pa.field("element", with_leaves(kind.value_type, change)))
    return change(kind)
