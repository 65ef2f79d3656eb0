"""Columns of bytes into columns of their schemas' types: what a format, a registry and a version mean together.

Owns: which schema a column is read by, which schemas its records name, the order of rows.
Must not know: pyspark, how options are written, topics but for their names.

A `Plan` is made where a query is planned, and holds all that a task needs, so it can be pickled. `ColumnReader` is what
a task makes of it. Records are grouped by the schemas that they name, read group by group, and put back in order.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from kop.schemas import avro_schema
from kop.schemas.avro_reading import AvroReader
from kop.schemas.confluent import HEAD, ConfluentRegistry, RegistryOptions, Schema, schema_id_of
from kop.schemas.errors import SchemaError, UnknownSchemaError, UnresolvableError
from kop.schemas.types import in_sql

FORMATS: Final = ("bytes", "string", "json", "avro", "protobuf", "auto")


@dataclass(frozen=True, slots=True)
class Source:
    """Where the schema of a column is found, as a user says it."""

    format: str
    registry: RegistryOptions | None = None
    subject: str = ""
    version: int | None = None
    """The version of the subject that is the reader's schema; None for the latest when the query is planned."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The way in which a column is read: its format, and the reader's schema, which is fixed."""

    format: str
    schema: Schema
    registry: RegistryOptions | None = None
    """The registry whose ids stand before records; None if nothing stands there."""

    @property
    def sql(self) -> str:
        """The type of the column in Spark's words."""
        return in_sql(self.kind)

    def of_type(self, kind: pa.DataType) -> Plan:
        """Return the plan for a column whose type is known; SchemaError if the schema says another one."""
        if not kind.equals(self.kind):
            raise SchemaError(f"has the type {in_sql(self.kind)} by its schema, not {in_sql(kind)}")
        return self

    @property
    def kind(self) -> pa.DataType:
        """The type of the column."""
        return avro_schema.arrow_type(avro_schema.parse(self.schema.text, self.schema.reference_texts))


def plan(source: Source) -> Plan:
    """Return how a column is read, asking the registry for what the user left open; SchemaError."""
    assert source.registry is not None
    schema = registry_of_process(source.registry).of_subject(source.subject, source.version)
    return Plan(source.format, schema, source.registry)


@functools.lru_cache(16)
def registry_of_process(options: RegistryOptions) -> ConfluentRegistry:
    """Return the registry of this process for these options, which keeps the schemas that it has fetched."""
    return ConfluentRegistry(options)


Decoded = tuple[pa.Array, dict[int, str]]
"""A column, and what is wrong with records that are null in it because they are bad, by row."""


class ColumnReader(Protocol):
    """The reader of a column's records."""

    def read(self, column: pa.Array) -> Decoded:
        """Return the column of the plan's type; null stays null."""


class FramedReader:
    """The reader of records with a registry's id before them; each id has a reader of its own."""

    def __init__(self, plan: Plan) -> None:
        assert plan.registry is not None
        self._registry = registry_of_process(plan.registry)
        self._kind = plan.kind
        self._schema = avro_schema.parse(plan.schema.text, plan.schema.reference_texts)
        self._readers: dict[int, AvroReader | str] = {}

    def read(self, column: pa.Array) -> Decoded:
        """Return the column of the plan's type; null stays null."""
        groups: dict[int, tuple[list[int], list[bytes]]] = {}
        failures: dict[int, str] = {}
        for row, data in enumerate(column.to_pylist()):
            if data is None:
                continue
            schema_id = schema_id_of(data)
            if schema_id is None:
                failures[row] = "it does not begin with 0 and the id of a schema, as records of a registry do"
                continue
            rows, records = groups.setdefault(schema_id, ([], []))
            rows.append(row)
            records.append(data)
        decoded = []
        for schema_id, (rows, records) in groups.items():
            reader = self._reader(schema_id)
            if isinstance(reader, str):
                failures |= dict.fromkeys(rows, reader)
            else:
                values, bad = reader.decode(records, HEAD)
                decoded.append((rows, values))
                failures |= {rows[at]: f"by schema {schema_id} {reason}" for at, reason in bad.items()}
        return in_order(self._kind, len(column), decoded), failures

    def _reader(self, schema_id: int) -> AvroReader | str:
        """Return the reader of a schema, or why none of its records can be read."""
        if schema_id not in self._readers:
            try:
                written = self._registry.by_id(schema_id)
            except UnknownSchemaError as error:
                return f"schema {schema_id} is not known: {error}"  # it may be there later
            self._readers[schema_id] = self._made(schema_id, written)
        return self._readers[schema_id]

    def _made(self, schema_id: int, written: Schema) -> AvroReader | str:
        if written.kind != "AVRO":
            return f"schema {schema_id} is {written.kind}, not AVRO"
        try:
            return AvroReader(avro_schema.parse(written.text, written.reference_texts), self._schema)
        except UnresolvableError as error:
            return f"schema {schema_id} cannot be resolved: {error}"
        except SchemaError as error:
            return f"schema {schema_id} is malformed: {error}"


def in_order(kind: pa.DataType, count: int, parts: Sequence[tuple[list[int], pa.Array]]) -> pa.Array:
    """Return one column of `count` rows out of parts, each with the rows to which its values belong; the others are
    null.
    """
    if len(parts) == 1 and len(parts[0][0]) == count:
        return parts[0][1]
    places: list[int | None] = [None] * count
    behind = 0
    for rows, values in parts:
        for at, row in enumerate(rows, behind):
            places[row] = at
        behind += len(values)
    if not parts:
        return pa.nulls(count, kind)
    return pa.concat_arrays([values for _, values in parts]).take(pa.array(places, pa.int64()))


def reader_of(plan: Plan) -> ColumnReader:
    """Return the reader of a plan, for one task."""
    return FramedReader(plan)
