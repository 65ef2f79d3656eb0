"""The readers of records of one schema each, and the order of a column whose records are read by several of them.

Owns: what such a reader is, which rows it reads, how they are put back in order.
Must not know: formats, registries, pyspark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

Decoded = tuple[pa.Array, dict[int, str]]
"""A column, and what is wrong with records that are null in it because they are bad, by row."""


class SchemaReader(Protocol):
    """The reader of records of one schema."""

    def decode(self, records: Sequence[bytes], start: int = 0) -> Decoded:
        """Return a column with a row for each record, and by row the errors of bad records, which are null in it. The
        encoding of a record begins at its byte `start`.
        """


def present(column: pa.Array) -> tuple[list[int], list[bytes]]:
    """Return the indexes of the rows of a column that are not null, and in the same order their values."""
    values = column.to_pylist()
    if not column.null_count:
        return list(range(len(values))), values
    rows = [row for row, value in enumerate(values) if value is not None]
    return rows, [values[row] for row in rows]


def in_order(kind: pa.DataType, count: int, parts: Sequence[tuple[list[int], pa.Array]]) -> pa.Array:
    """Return one column of `count` rows, put together from parts: each is the indexes of rows, and a column with their
    values in that order. Rows that no part has are null.
    """
    if len(parts) == 1 and len(parts[0][0]) == count:
        return parts[0][1]
    if not parts:
        return pa.nulls(count, kind)
    places: list[int | None] = [None] * count
    behind = 0
    for rows, values in parts:
        for at, row in enumerate(rows, behind):
            places[row] = at
        behind += len(values)
    return pa.concat_arrays([values for _, values in parts]).take(pa.array(places, pa.int64()))
