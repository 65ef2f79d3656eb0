"""Records that were read, as columns: a row of them is made if somebody asks for it.

Owns: offsets and values of records in a row, and how rows are made of them once.
Must not know: requests, batches, who uses the records.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, overload

Headers: TypeAlias = Sequence[tuple[str, bytes | None]]
StoredRecord: TypeAlias = tuple[int, int, bytes | None, bytes | None, Headers]
"""Offset, milliseconds since the epoch (-1 for none), key, value, headers."""


class RecordColumns(Sequence[StoredRecord]):
    """Records of one partition, in the order of their offsets; as a sequence it has them as rows. A slice has a step of
    1, and shares the rows with what it is a slice of.
    """

    __slots__ = ("_rows", "_start", "offsets", "values")

    def __init__(
        self,
        offsets: Sequence[int],
        values: Sequence[bytes | None],
        rows: Callable[[], Sequence[StoredRecord]],
        start: int = 0,
    ) -> None:
        """`rows` returns rows among which those of these records begin at the index `start`."""
        self.offsets = offsets
        self.values = values
        self._rows = rows
        self._start = start

    @classmethod
    def of(cls, records: Sequence[StoredRecord]) -> RecordColumns:
        """Return columns of rows; columns are returned as they are."""
        if isinstance(records, RecordColumns):
            return records
        return cls([record[0] for record in records], [record[3] for record in records], lambda: records)

    @overload
    def __getitem__(self, index: int) -> StoredRecord: ...
    @overload
    def __getitem__(self, index: slice) -> RecordColumns: ...
    def __getitem__(self, index: int | slice) -> StoredRecord | RecordColumns:
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self.values))
            return RecordColumns(self.offsets[start:stop], self.values[start:stop], self._rows, self._start + start)
        return self._rows()[self._start + range(len(self.values))[index]]

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[StoredRecord]:
        return iter(self._rows()[self._start : self._start + len(self.values)])

    def before(self, offset: int) -> RecordColumns:
        """Return the records before an offset."""
        return self[: bisect_left(self.offsets, offset)]

    def since(self, offset: int) -> RecordColumns:
        """Return the records from an offset on."""
        return self[bisect_left(self.offsets, offset) :]


def made_once(make: Callable[[], Sequence[StoredRecord]]) -> Callable[[], Sequence[StoredRecord]]:
    """Return a function that returns the rows that `make` makes: it is called at the first call, and let go then."""
    made: list[Any] = []
    maker = [make]

    def rows() -> Sequence[StoredRecord]:
        if not made:
            made.append(maker[0]())
            maker.clear()
        rows_made: Sequence[StoredRecord] = made[0]
        return rows_made

    return rows
