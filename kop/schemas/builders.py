"""Columns of pyarrow out of values that come one by one, nested ones too, and without a Python object for each row.

Owns: how a nested column is put together, and how the values of a record that turned out bad are taken back.
Must not know: formats.

A builder takes plain values: integers for times (days, or microseconds), dictionaries for structs, and a mapping or a
list of pairs for maps. Readers that want to be quick append to `values`, `offsets` and `valid` themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyarrow import types

from kop.schemas.errors import BadRecordError


class Leaf:
    """A column of plain values; None is null."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self.values: list[Any] = []
        if types.is_timestamp(kind):
            self._stored = pa.int64()
        elif types.is_date32(kind):
            self._stored = pa.int32()
        else:
            self._stored = kind

    def add(self, value: Any) -> None:
        """Append a value, or None for null."""
        self.values.append(value)

    def add_null(self) -> None:
        """Append null."""
        self.values.append(None)

    def truncate(self, rows: int) -> None:
        """Remove all rows behind the first `rows`."""
        del self.values[rows:]

    def finish(self) -> pa.Array:
        """Return the column of all rows since the last call, and begin an empty one."""
        made = pa.array(self.values, self._stored)
        self.values.clear()
        return made if self._stored is self.kind else made.view(self.kind)


class _Runs:
    """A column in which a row is a run of items, whose parts are in `columns`."""

    def __init__(self, kind: pa.DataType, made: type[pa.Array], columns: Sequence[Builder]) -> None:
        self.kind = kind
        self.offsets = [0]
        self.nulls: list[bool] = []
        self.count = 0
        """The number of items so far; who appends to the columns counts them here, and calls `close`."""
        self._made = made
        self._columns = columns

    def close(self) -> None:
        """End a row: the items that were added since the last row are its content."""
        self.offsets.append(self.count)
        self.nulls.append(False)

    def add_null(self) -> None:
        """Append a row that is null."""
        self.offsets.append(self.count)
        self.nulls.append(True)

    def truncate(self, rows: int) -> None:
        """Remove all rows behind the first `rows` with their items, also items of a row that is not ended."""
        del self.offsets[rows + 1 :]
        del self.nulls[rows:]
        self.count = self.offsets[-1]
        for column in self._columns:
            column.truncate(self.count)

    def finish(self) -> pa.Array:
        """Return the column of all rows since the last call, and begin an empty one."""
        mask = pa.array(self.nulls, pa.bool_()) if True in self.nulls else None
        offsets = pa.array(self.offsets, pa.int32())
        parts = [column.finish() for column in self._columns]
        made = self._made.from_arrays(offsets, *parts, type=self.kind, mask=mask)
        del self.offsets[1:]
        self.nulls.clear()
        self.count = 0
        return made


class Lists(_Runs):
    """A column of lists."""

    def __init__(self, kind: pa.DataType) -> None:
        self.items = builder(kind.value_type)
        super().__init__(kind, pa.ListArray, [self.items])

    def add(self, value: Any) -> None:
        """Append a list, or None for null."""
        if value is None:
            self.add_null()
            return
        for item in value:
            self.items.add(item)
            self.count += 1
        self.close()


class Maps(_Runs):
    """A column of maps with texts as keys, or whatever the type says."""

    def __init__(self, kind: pa.DataType) -> None:
        self.keys = builder(kind.key_type)
        self.items = builder(kind.item_type)
        super().__init__(kind, pa.MapArray, [self.keys, self.items])

    def close(self) -> None:
        """End a map: the entries that were added since the last row are its content. BadRecordError if two have the
        same key.
        """
        keys = self.keys.values[self.offsets[-1] : self.count] if isinstance(self.keys, Leaf) else []
        if len(set(keys)) < len(keys):
            raise BadRecordError(f"a map has the key {next(key for key in keys if keys.count(key) > 1)!r} twice")
        super().close()

    def add(self, value: Any) -> None:
        """Append a map, or None for null."""
        if value is None:
            self.add_null()
            return
        for key, item in value.items() if isinstance(value, Mapping) else value:
            self.keys.add(key)
            self.items.add(item)
            self.count += 1
        self.close()


class Structs:
    """A column of structs; each of `fields` has as many rows as the struct."""

    def __init__(self, kind: pa.DataType) -> None:
        self.kind = kind
        self.fields = [builder(field.type) for field in kind]
        self.names = [field.name for field in kind]
        self.valid: list[bool] = []

    def add(self, value: Any) -> None:
        """Append a struct, whose missing fields are null, or None for null."""
        if value is None:
            self.add_null()
            return
        for name, field in zip(self.names, self.fields, strict=True):
            field.add(value.get(name))
        self.valid.append(True)

    def add_null(self) -> None:
        """Append null."""
        for field in self.fields:
            field.add_null()
        self.valid.append(False)

    def truncate(self, rows: int) -> None:
        """Remove all rows behind the first `rows`, also those that only some of the fields have."""
        del self.valid[rows:]
        for field in self.fields:
            field.truncate(rows)

    def finish(self) -> pa.Array:
        """Return the column of all rows since the last call, and begin an empty one."""
        rows = len(self.valid)
        mask = pa.array([not valid for valid in self.valid], pa.bool_()) if False in self.valid else None
        self.valid.clear()
        if not self.fields:
            made = pa.array([{}] * rows, self.kind)
            return made if mask is None else pa.array([None if null else {} for null in mask.to_pylist()], self.kind)
        columns = [field.finish() for field in self.fields]
        return pa.StructArray.from_arrays(columns, fields=list(self.kind), mask=mask)


Builder = Leaf | Lists | Maps | Structs


def builder(kind: pa.DataType) -> Builder:
    """Return a builder of columns of a type."""
    if types.is_struct(kind):
        return Structs(kind)
    if types.is_map(kind):
        return Maps(kind)
    if types.is_list(kind):
        return Lists(kind)
    return Leaf(kind)
