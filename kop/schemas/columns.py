"""Columns of bytes into columns of their schemas' types: what a format, a registry and a version mean together.

Owns: which schema a column is read by, which schemas its records name, the order of rows.
Must not know: pyspark, how options are written.

A `ColumnPlan` is made where a query is planned, and holds all that a task needs, so it can be pickled; a `ColumnReader`
is what a task makes of it. Records are grouped by the schemas that they name, read group by group, and put back in
order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import pyarrow as pa

from kop.schemas import avro_schema, json_schema, protobuf
from kop.schemas.access import PulsarAccess, RegistryAccess
from kop.schemas.avro_reading import AvroReader
from kop.schemas.confluent import HEAD, ConfluentRegistry, Schema, schema_id_of
from kop.schemas.errors import BadRecordError, SchemaError, UnknownSchemaError, UnresolvableError
from kop.schemas.json_text import JsonReader
from kop.schemas.primitives import PRIMITIVES, PrimitiveReader, split_pair
from kop.schemas.protobuf import ProtobufReader, ProtobufSchema, read_indexes
from kop.schemas.pulsar import KEY_VALUE, PulsarSchema, topic_schema, topic_schemas
from kop.schemas.types import in_sql, widened
from kop.schemas.versions import VersionsReader

AUTO: Final = "auto"
FORMATS_OF_REGISTRY: Final = {"AVRO": "avro", "JSON": "json", "PROTOBUF": "protobuf"}
"""The formats by the types that Confluent's registry names."""
FORMATS_OF_PULSAR: Final = {"AVRO": "avro", "JSON": "json", "PROTOBUF_NATIVE": "protobuf"}


@dataclass(frozen=True, slots=True)
class SchemaSource:
    """Where the schema of a column is found, as a user says it."""

    column: str
    """The column: `key` or `value`."""
    format: str
    text: str = ""
    """The schema itself, if it is given: columns in Spark's words, Avro's JSON, or a descriptor in base64."""
    message: str = ""
    registry: RegistryAccess | None = None
    subject: str = ""
    pulsar: PulsarAccess | None = None
    topic: str = ""
    """The topic as Pulsar names it in full."""
    version: int | None = None
    """The version that is the reader's schema; None for the latest when the query is planned."""


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """The way in which a column is read: its format, and the reader's schema, which is fixed."""

    format: str
    """The format: string, json, avro, protobuf; `pair` for Pulsar's KeyValue in one message, or the name of one of
    Pulsar's primitive schemas.
    """
    schema: Schema = field(default_factory=Schema)
    ddl: str = ""
    """The fields of the column in Spark's words, if they are all that is known of its type."""
    message: str = ""
    registry: RegistryAccess | None = None
    """The registry whose ids stand before records; None if nothing stands there."""
    pulsar: PulsarAccess | None = None
    topic: str = ""
    """The topic of Pulsar whose schema's versions the records may have; empty if all have the plan's own."""
    pair: tuple[ColumnPlan, ...] = ()
    """The plans of the key and the value of a pair."""
    known_kind: pa.DataType | None = None
    """The type of the column, as Spark made it of `ddl`."""

    @property
    def sql(self) -> str:
        """The type of the column in Spark's words."""
        return f"STRUCT<{self.ddl}>" if self.ddl else in_sql(self.kind)

    def of_type(self, kind: pa.DataType) -> ColumnPlan:
        """Return the plan for a column whose type is known; SchemaError if the schema says another one."""
        if self.ddl:
            in_sql(widened(kind))
            return replace(self, known_kind=widened(kind))
        if not widened(kind).equals(self.kind):
            raise SchemaError(f"has the type {in_sql(self.kind)} by its schema, not {in_sql(widened(kind))}")
        return self

    @property
    def kind(self) -> pa.DataType:
        """The type of the column; SchemaError if its schema has none."""
        if self.known_kind is not None:
            return self.known_kind
        match self.format:
            case "string":
                return pa.string()
            case "avro":
                return avro_schema.arrow_type(self.avro)
            case "protobuf":
                return protobuf.arrow_type(self.protobuf.message(self.message))
            case "json":
                if self.schema.kind == "AVRO":  # Pulsar describes its JSON so, and its numbers are those of the text
                    return avro_schema.arrow_type(self.avro, logical=False)
                return json_schema.arrow_type(self.schema.text, dict(self.schema.references))
            case "pair":
                return pa.struct([(name, plan.kind) for name, plan in zip(("key", "value"), self.pair, strict=True)])
        return PRIMITIVES[self.format][0]

    @property
    def avro(self) -> avro_schema.AvroType:
        """The reader's schema, if it is Avro's."""
        return avro_schema.parse(self.schema.text, self.schema.reference_texts)

    @property
    def protobuf(self) -> ProtobufSchema:
        """The reader's schema, if it is Protobuf's."""
        return ProtobufSchema(self.schema.text, self.schema.references)


# -- plans


def plan(source: SchemaSource) -> ColumnPlan:
    """Return how a column is read, asking the registry for what the user left open; SchemaError."""
    if source.format == "string":
        made = ColumnPlan("string")
    elif source.text:
        made = _of_text(source)
    elif source.registry is not None:
        made = _of_registry(source, source.registry)
    else:
        made = _of_pulsar(source)
    if not made.ddl:
        in_sql(made.kind)  # so that what Spark cannot have is told here
    return made


def _of_text(source: SchemaSource) -> ColumnPlan:
    match source.format:
        case "avro":
            return ColumnPlan("avro", Schema("AVRO", source.text), registry=source.registry)
        case "protobuf":
            schema = Schema("PROTOBUF", source.text)
            message = ProtobufSchema(source.text).message(source.message).full_name
            return ColumnPlan("protobuf", schema, message=message, registry=source.registry)
    if source.text.lstrip().startswith("{"):
        return ColumnPlan("json", Schema("JSON", source.text), registry=source.registry)
    return ColumnPlan("json", ddl=source.text, registry=source.registry)


def _of_registry(source: SchemaSource, access: RegistryAccess) -> ColumnPlan:
    schema = registry_of_process(access).of_subject(source.subject, source.version)
    known = FORMATS_OF_REGISTRY.get(schema.kind, "")
    if not known or source.format not in (AUTO, known):
        raise SchemaError(f"set the format to {known or 'bytes'}: the subject {source.subject} is {schema.kind}")
    message = ""
    if known == "protobuf":
        message = ProtobufSchema(schema.text, schema.references).message(source.message).full_name
    return ColumnPlan(known, schema, message=message, registry=access)


def _of_pulsar(source: SchemaSource) -> ColumnPlan:
    assert source.pulsar is not None
    schema = topic_schema(source.pulsar, source.topic, source.version)
    if schema.kind == KEY_VALUE:
        if source.format != AUTO:
            raise SchemaError(f"set the format to auto: the schema of {source.topic} is a pair of key and value")
        key, value = schema.pair()
        if schema.separated:
            return _of_pulsar_schema(key if source.column == "key" else value, AUTO, source.topic)
        if source.column == "key":
            return ColumnPlan("string")
        return ColumnPlan("pair", pair=tuple(_of_pulsar_schema(part, AUTO, source.topic) for part in (key, value)))
    if source.column == "key":
        return ColumnPlan("string")  # the keys of Pulsar's messages are texts, unless a pair says otherwise
    made = _of_pulsar_schema(schema, source.format, source.topic)
    return replace(made, pulsar=source.pulsar, topic=source.topic) if made.format == "avro" else made


def _of_pulsar_schema(schema: PulsarSchema, wanted: str, topic: str) -> ColumnPlan:
    known = FORMATS_OF_PULSAR.get(schema.kind, "")
    if not known and schema.kind not in PRIMITIVES:
        raise SchemaError(f"set the format to bytes: the schema of {topic} is {schema.kind}, which is not read")
    if wanted not in (AUTO, known):
        raise SchemaError(f"set the format to {known or AUTO}: the schema of {topic} is {schema.kind}")
    if not known:
        return ColumnPlan("string" if schema.kind == "STRING" else schema.kind)
    if known == "protobuf":
        text, message = protobuf.native_schema(schema.text)
        return ColumnPlan("protobuf", Schema("PROTOBUF", text), message=message)
    return ColumnPlan(known, Schema("AVRO", schema.text, version=schema.version))


@functools.lru_cache(16)
def registry_of_process(access: RegistryAccess) -> ConfluentRegistry:
    """Return the registry of this process for this access, which keeps the schemas that it has fetched."""
    return ConfluentRegistry(access)


# -- reading


Decoded = tuple[pa.Array, dict[int, str]]
"""A column, and what is wrong with records that are null in it because they are bad, by row."""


class SchemaReader(Protocol):
    """The reader of records of one schema."""

    def decode(self, records: Sequence[bytes], start: int = 0) -> Decoded:
        """Return a column with a row for each record, whose encoding begins at `start`."""


class ColumnReader(Protocol):
    """The reader of a column's records."""

    def read(self, column: pa.Array) -> Decoded:
        """Return the column of the plan's type; null stays null."""


def reader_of(plan: ColumnPlan) -> ColumnReader:
    """Return the reader of a plan, for one task; SchemaError."""
    if plan.format == "string":
        return TextReader()
    if plan.registry is not None:
        return FramedReader(plan, plan.registry)
    if plan.format == "pair":
        return PairReader(plan)
    return BareReader(plan)


def _record_reader(plan: ColumnPlan) -> SchemaReader:
    """Return the reader of records that the plan's own schema wrote."""
    match plan.format:
        case "avro" if plan.pulsar is not None:
            return VersionsReader(plan.avro, functools.partial(_versions, plan.pulsar, plan.topic))
        case "avro":
            return AvroReader(plan.avro, plan.avro)
        case "protobuf":
            message = plan.protobuf.message(plan.message)
            return ProtobufReader(message, message)
        case "json":
            return JsonReader(plan.kind)
    return PrimitiveReader("STRING" if plan.format == "string" else plan.format)


def _versions(access: PulsarAccess, topic: str) -> dict[int, avro_schema.AvroType]:
    """Return the versions of a topic's schema, but for those of other formats."""
    schemas = [schema for schema in topic_schemas(access, topic) if schema.kind == "AVRO"]
    return {schema.version or 0: avro_schema.parse(schema.text) for schema in schemas}


class TextReader:
    """The reader of texts of UTF-8."""

    def read(self, column: pa.Array) -> Decoded:
        """Return the column as texts."""
        try:
            return column.cast(pa.string()), {}
        except pa.ArrowInvalid:
            pass
        rows, records = _present(column)
        values, failures = PrimitiveReader("STRING").decode(records)
        return in_order(pa.string(), len(column), [(rows, values)]), {rows[at]: why for at, why in failures.items()}


class BareReader:
    """The reader of records without anything before them."""

    def __init__(self, plan: ColumnPlan) -> None:
        self._kind = plan.kind
        self._reader = _record_reader(plan)

    def read(self, column: pa.Array) -> Decoded:
        """Return the column of the plan's type; null stays null."""
        rows, records = _present(column)
        values, failures = self._reader.decode(records)
        return in_order(self._kind, len(column), [(rows, values)]), {rows[at]: why for at, why in failures.items()}


class PairReader:
    """The reader of Pulsar's pairs of key and value in one message."""

    def __init__(self, plan: ColumnPlan) -> None:
        self._kind = plan.kind
        self._parts = [_record_reader(part) for part in plan.pair]

    def read(self, column: pa.Array) -> Decoded:
        """Return the column of the plan's type; null stays null."""
        failures: dict[int, str] = {}
        halves: list[tuple[list[int], list[bytes]]] = [([], []), ([], [])]
        valid = [False] * len(column)
        for row, data in zip(*_present(column), strict=True):
            try:
                parts = split_pair(data)
            except BadRecordError as error:
                failures[row] = str(error)
                continue
            valid[row] = True
            for (rows, records), part in zip(halves, parts, strict=True):
                if part is not None:
                    rows.append(row)
                    records.append(part)
        columns = []
        for name, reader, (rows, records), inner in zip(("key", "value"), self._parts, halves, self._kind, strict=True):
            values, bad = reader.decode(records)
            columns.append(in_order(inner.type, len(column), [(rows, values)]))
            for at, reason in bad.items():
                failures.setdefault(rows[at], f"its {name}: {reason}")
        mask = pa.array([not (valid[row] and row not in failures) for row in range(len(column))], pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=list(self._kind), mask=mask), failures


Group = tuple[int, tuple[int, ...], int]
"""What records of one reader have in common: the id of their schema, their message indexes, and where their encoding
begins.
"""


class FramedReader:
    """The reader of records with a registry's id before them; each id has a reader of its own."""

    def __init__(self, plan: ColumnPlan, registry: RegistryAccess) -> None:
        self._registry = registry_of_process(registry)
        self._kind = plan.kind
        self._readers: dict[tuple[int, tuple[int, ...]], SchemaReader | str] = {}
        self._wanted = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}[plan.format]
        self._make: Callable[[Schema, tuple[int, ...]], SchemaReader]
        if plan.format == "avro":
            reader = plan.avro
            self._make = lambda schema, _: AvroReader(avro_schema.parse(schema.text, schema.reference_texts), reader)
        elif plan.format == "json":
            texts = JsonReader(self._kind)
            self._make = lambda schema, indexes: texts
        else:
            message = plan.protobuf.message(plan.message)
            self._make = lambda schema, indexes: ProtobufReader(
                ProtobufSchema(schema.text, schema.references).at(indexes), message
            )

    def read(self, column: pa.Array) -> Decoded:
        """Return the column of the plan's type; null stays null."""
        groups: dict[Group, tuple[list[int], list[bytes]]] = {}
        failures: dict[int, str] = {}
        with_indexes = self._wanted == "PROTOBUF"
        for row, data in zip(*_present(column), strict=True):
            schema_id = schema_id_of(data)
            if schema_id is None:
                failures[row] = "it does not begin with 0 and the id of a schema, as records of a registry do"
                continue
            indexes: tuple[int, ...] = ()
            start = HEAD
            if with_indexes:
                try:
                    indexes, start = read_indexes(data, HEAD)
                except BadRecordError as error:
                    failures[row] = f"by schema {schema_id} {error}"
                    continue
            rows, records = groups.setdefault((schema_id, indexes, start), ([], []))
            rows.append(row)
            records.append(data)
        decoded = []
        for (schema_id, indexes, start), (rows, records) in groups.items():
            reader = self._reader(schema_id, indexes)
            if isinstance(reader, str):
                failures |= dict.fromkeys(rows, reader)
            else:
                values, bad = reader.decode(records, start)
                decoded.append((rows, values))
                failures |= {rows[at]: f"by schema {schema_id} {reason}" for at, reason in bad.items()}
        return in_order(self._kind, len(column), decoded), failures

    def _reader(self, schema_id: int, indexes: tuple[int, ...]) -> SchemaReader | str:
        """Return the reader of a schema, or why none of its records can be read."""
        key = schema_id, indexes
        if key not in self._readers:
            try:
                written = self._registry.by_id(schema_id)
            except UnknownSchemaError as error:
                return f"schema {schema_id} is not known: {error}"  # it may be there later
            self._readers[key] = self._made(schema_id, written, indexes)
        return self._readers[key]

    def _made(self, schema_id: int, written: Schema, indexes: tuple[int, ...]) -> SchemaReader | str:
        if written.kind != self._wanted:
            return f"schema {schema_id} is {written.kind}, not {self._wanted}"
        try:
            return self._make(written, indexes)
        except UnresolvableError as error:
            return f"schema {schema_id} cannot be resolved: {error}"
        except BadRecordError as error:
            return f"by schema {schema_id} {error}"
        except SchemaError as error:
            return f"schema {schema_id} is malformed: {error}"


def _present(column: pa.Array) -> tuple[list[int], list[bytes]]:
    """Return the rows of a column that are not null, and their values."""
    values = column.to_pylist()
    if not column.null_count:
        return list(range(len(values))), values
    rows = [row for row, value in enumerate(values) if value is not None]
    return rows, [values[row] for row in rows]


def in_order(kind: pa.DataType, count: int, parts: Sequence[tuple[list[int], pa.Array]]) -> pa.Array:
    """Return one column of `count` rows out of parts, each with the rows to which its values belong; the others are
    null.
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
