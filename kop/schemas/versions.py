"""Avro records that do not say by which version of their schema they were written: the one that they fit.

Owns: when a record is surely of a version, and when it is not.
Must not know: registries, pyspark.

Every record is read by each version. It is a row if the versions that its bytes fit to the last byte give the same row;
else it is a bad record, for nothing says which of them is right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from kop.schemas.avro_compiled import avro_reader
from kop.schemas.avro_reading import AvroChecker
from kop.schemas.avro_schema import AvroType, arrow_type
from kop.schemas.errors import SchemaError, UnresolvableError
from kop.schemas.schema_reader import SchemaReader
from kop.schemas.types import with_leaves

Fetch = Callable[[], Mapping[int, AvroType]]
"""A function that returns the versions that there are now."""


def _own_reader(schema: AvroType) -> SchemaReader:
    """Return the reader that tells which records are of a version."""
    try:
        return avro_reader(schema, schema)
    except SchemaError:  # a record that holds itself is no column
        return AvroChecker(schema)


def _as_bits(kind: pa.DataType) -> pa.DataType:
    """Return a type with whole numbers of the same bits in place of its floating ones, at any depth, as which a column
    can be viewed: NaN equals nothing, its bits equal themselves.
    """
    bits = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}
    return with_leaves(kind, lambda leaf: bits.get(leaf, leaf))


class _Version:
    """One version: records of it as rows of the reader's schema, if they can be."""

    def __init__(self, writer: AvroType, reader: AvroType) -> None:
        self._own = _own_reader(writer)
        self._into: SchemaReader | None = None
        self._reason = ""
        try:
            self._into = avro_reader(writer, reader)
        except UnresolvableError as error:
            self._reason = str(error)

    def decode(self, records: Sequence[bytes], nothing: pa.DataType) -> tuple[pa.Array, dict[int, str], dict[int, str]]:
        """Return the rows, the errors of records that are not of this version, and the errors of records that are of it
        but cannot be rows of the reader's schema; the errors are by row, and such rows are null. `nothing` is the type
        of the column of nulls that is returned if no record of the version can be a row.
        """
        if self._into is None:
            _, wrong = self._own.decode(records)
            fits = dict.fromkeys((row for row in range(len(records)) if row not in wrong), self._reason)
            return pa.nulls(len(records), nothing), wrong, fits
        values, failures = self._into.decode(records)
        rows = list(failures)
        _, wrong_at = self._own.decode([records[row] for row in rows])
        wrong = {rows[at]: reason for at, reason in wrong_at.items()}
        return values, wrong, {row: reason for row, reason in failures.items() if row not in wrong}


class VersionsReader:
    """The reader of records of any version of a schema; `fetch` is asked again if a record fits none."""

    def __init__(self, reader: AvroType, fetch: Fetch) -> None:
        self._reader = reader
        self._kind = arrow_type(reader)
        self._bits = _as_bits(self._kind)
        self._fetch = fetch
        self._versions = self._made(fetch())

    def _made(self, versions: Mapping[int, AvroType]) -> dict[int, _Version]:
        return {number: _Version(schema, self._reader) for number, schema in versions.items()}

    def decode(self, records: Sequence[bytes], start: int = 0) -> tuple[pa.Array, dict[int, str]]:
        """Return a column with a row for each record, and by row the errors of records that are null because they are
        bad: no version fits, or two that fit give different rows, or the reader's schema cannot have it. The encoding
        begins at the byte `start`. If a record fits no version, the versions are fetched again, and if there are others
        by then, all records are read once more.
        """
        if start:
            records = [record[start:] for record in records]
        values, failures, strange = self._by_each(records)
        if strange:
            versions = self._fetch()
            if versions.keys() != self._versions.keys():
                self._versions = self._made(versions)
                values, failures, _ = self._by_each(records)
        return values, failures

    def _by_each(self, records: Sequence[bytes]) -> tuple[pa.Array, dict[int, str], bool]:
        """Return the column and the errors that `decode` returns, by the versions known so far, and true if a record
        fits none of them.
        """
        decoded = {number: version.decode(records, self._kind) for number, version in self._versions.items()}
        bits = {number: values.view(self._bits) for number, (values, _, _) in decoded.items()}
        failures: dict[int, str] = {}
        places: list[int | None] = []
        strange = False
        for row in range(len(records)):
            fitting = [number for number, (_, wrong, _) in decoded.items() if row not in wrong]
            numbers = " and ".join(map(str, fitting))
            places.append(None)
            if not fitting:
                strange = True
                number, (_, wrong, _) = max(decoded.items(), default=(0, (None, {}, {})))
                failures[row] = f"it fits no version of its schema; by version {number} {wrong.get(row, 'it is none')}"
                continue
            refused = next((decoded[number][2][row] for number in fitting if row in decoded[number][2]), None)
            first = bits[fitting[0]]
            if refused is not None:
                failures[row] = f"version {numbers} of its schema cannot be resolved: {refused}"
            elif all(first[row].equals(bits[number][row]) for number in fitting[1:]):
                places[row] = list(decoded).index(fitting[0]) * len(records) + row
            else:
                failures[row] = f"it fits the versions {numbers} of its schema, and is another row by each"
        if not decoded:
            return pa.nulls(len(records), self._kind), failures, strange
        made = pa.concat_arrays([values for values, _, _ in decoded.values()]).take(pa.array(places, pa.int64()))
        return made, failures, strange
