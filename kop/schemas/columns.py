"""Columns of bytes into columns of their schemas' types: what a format, a registry and a version mean together.

Owns: which schema a column is read by, which schemas its records name.
Must not know: pyspark, how options are written.

A `ColumnPlan` is made where a query is planned, and holds all that a task needs, so it can be pickled; a `ColumnReader`
is what a task makes of it. Records are grouped by the schemas that they name, read group by group, and put back in
order.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import pyarrow as pa
from pyarrow import compute

from kop.schemas import avro_schema, json_schema, protobuf
from kop.schemas.access import PulsarAccess, RegistryAccess
from kop.schemas.avro_compiled import avro_reader
from kop.schemas.by_version import ByVersionReader, Versions, named
from kop.schemas.confluent import HEAD, ConfluentRegistry, Schema, schema_id_of
from kop.schemas.errors import BadRecordError, SchemaError, UnknownSchemaError, UnresolvableError
from kop.schemas.json_text import JsonReader
from kop.schemas.primitives import PRIMITIVES, PrimitiveReader, split_pair
from kop.schemas.protobuf import ProtobufReader, ProtobufSchema, read_indexes
from kop.schemas.pulsar import KEY_VALUE, PulsarSchema, topic_schema, topic_schemas
from kop.schemas.schema_reader import Decoded, SchemaReader, in_order, present
from kop.schemas.types import in_sql, widened
from kop.schemas.versions import VersionsReader

AUTO: Final = "auto"
FORMATS_OF_REGISTRY: Final = {"AVRO": "avro", "JSON": "json", "PROTOBUF": "protobuf"}
"""The formats by the types that Confluent's registry names."""
FORMATS_OF_PULSAR: Final = {"AVRO": "avro", "JSON": "json", "PROTOBUF_NATIVE": "protobuf"}


@dataclass(frozen=True, slots=True)
class SchemaSource:
    """The place in which the schema of a column is found, as a user says it."""

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
    part: str = ""
    """The part of the topic's schema that this is the plan of: `key` or `value` of a pair; empty for all of it."""
    separated: bool = False
    """True if the pair's key is the message's key."""
    pair: tuple[ColumnPlan, ...] = ()
    """The plans of the key and the value of a pair."""
    known_kind: pa.DataType | None = None
    """The type of the column, as Spark made it of `ddl`."""

    @property
    def names_versions(self) -> bool:
        """True if the column is read by the versions of Pulsar's schema that the records name."""
        return self.pulsar is not None or any(plan.names_versions for plan in self.pair)

    @property
    def sql(self) -> str:
        """The type of the column in Spark's words. SchemaError if its schema can have none."""
        return f"STRUCT<{self.ddl}>" if self.ddl else in_sql(self.kind)

    def of_type(self, kind: pa.DataType) -> ColumnPlan:
        """Return the plan for a column that Spark made with the type `kind`. A plan that knows its fields in Spark's
        words alone takes the type over; for any other, SchemaError if the schema gives another type.
        """
        if self.ddl:
            in_sql(widened(kind))
            return replace(self, known_kind=widened(kind))
        if not widened(kind).equals(self.kind):
            raise SchemaError(f"has the type {in_sql(self.kind)} by its schema, not {in_sql(widened(kind))}")
        return self

    @property
    def kind(self) -> pa.DataType:
        """The type of the column. SchemaError if its schema can have none."""
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
        """The reader's schema, parsed, of a plan whose schema is Avro's; SchemaError if it is malformed."""
        return avro_schema.parse(self.schema.text, self.schema.reference_texts)

    @property
    def protobuf(self) -> ProtobufSchema:
        """The reader's schema, parsed, of a plan whose schema is Protobuf's; SchemaError if it is malformed."""
        return ProtobufSchema(self.schema.text, self.schema.references)


# -- plans


def plan(source: SchemaSource) -> ColumnPlan:
    """Return the plan by which a column is read. A schema that the user did not give is asked of the registry, or of
    Pulsar, and fixed for the whole read. SchemaError if there is no usable schema, or whoever is asked does not answer.
    """
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
        if schema.separated:
            return _part_of_pair(source, schema, source.column)
        if source.column == "key":
            return ColumnPlan("string")
        return ColumnPlan("pair", pair=tuple(_part_of_pair(source, schema, part) for part in ("key", "value")))
    if source.column == "key":
        return ColumnPlan("string")  # the keys of Pulsar's messages are texts, unless a pair says otherwise
    return _of_versions(source, schema, _of_pulsar_schema(schema, source.format, source.topic))


def _part_of_pair(source: SchemaSource, schema: PulsarSchema, part: str) -> ColumnPlan:
    made = _of_versions(source, schema, _of_pulsar_schema(schema.part(part), AUTO, source.topic))
    return replace(made, part=part, separated=schema.separated) if made.pulsar is not None else made


def _of_versions(source: SchemaSource, schema: PulsarSchema, made: ColumnPlan) -> ColumnPlan:
    """Return the plan `made`, extended for records that may name any version of the topic's schema; `schema` is the
    version that `made` is of. Plans of texts are returned as they are: all versions are read alike.
    """
    if made.format == "string":
        return made
    own = replace(made.schema, version=schema.version)
    return replace(made, schema=own, pulsar=source.pulsar, topic=source.topic)


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


class ColumnReader(Protocol):
    """The reader of a column's records."""

    def read(self, column: pa.Array, versions: pa.Array | None = None) -> Decoded:
        """Return the column of the plan's type, and by row the errors of bad records, which are null in it; null stays
        null. `versions` has for each row the version of Pulsar's schema that the record names, null for none; None if
        that is not known of any.
        """


def reader_of(plan: ColumnPlan) -> ColumnReader:
    """Return the reader of a plan, for one task. SchemaError if the plan's own schema cannot be used. A reader may ask
    registries while it reads, and keeps what it learns.
    """
    if plan.format == "string":
        return TextReader()
    if plan.registry is not None:
        return FramedReader(plan, plan.registry)
    if plan.format == "pair":
        return PairReader(plan)
    return BareReader(plan)


def _reader_of_records(plan: ColumnPlan) -> ByVersionReader:
    """Return the reader of records that have no frame (an id of their schema) in front. If the plan is of a topic of
    Pulsar, each is read by the version that it names.
    """
    own = functools.partial(_reader_of_schema, plan, plan)
    if plan.pulsar is None:
        return ByVersionReader(plan.kind, own)
    fetch = functools.partial(_versions, plan.pulsar, plan.topic)
    unversioned = functools.partial(_of_any_version, plan, fetch) if plan.format == "avro" else own
    versions = Versions(
        fetch, lambda schema: _reader_of_schema(_written_by(plan, schema), plan), own, plan.schema.version
    )
    return ByVersionReader(plan.kind, unversioned, versions)


def _reader_of_schema(written: ColumnPlan, plan: ColumnPlan) -> SchemaReader:
    """Return the reader of records that the schema of the plan `written` wrote, into columns of `plan`, which has the
    same format. UnresolvableError if no such record can be read so.
    """
    match plan.format:
        case "avro":
            return avro_reader(written.avro, plan.avro)
        case "protobuf":
            return ProtobufReader(written.protobuf.message(written.message), plan.protobuf.message(plan.message))
        case "json":
            return JsonReader(plan.kind)
    return PrimitiveReader("STRING" if plan.format == "string" else plan.format)


def _versions(access: PulsarAccess, topic: str) -> dict[int, PulsarSchema]:
    return {schema.version or 0: schema for schema in topic_schemas(access, topic)}


def _written_by(plan: ColumnPlan, schema: PulsarSchema) -> ColumnPlan:
    """Return the plan of the schema that wrote records: a version of the topic's schema, or its part that the column
    has. SchemaError if the version is of another kind or format than the column.
    """
    if (schema.kind == KEY_VALUE) != bool(plan.part):
        raise SchemaError(f"it is {schema.kind}")
    if plan.part:
        if schema.separated != plan.separated:
            raise SchemaError("its keys are " + ("those of messages" if schema.separated else "in the messages"))
        schema = schema.part(plan.part)
    written = _of_pulsar_schema(schema, AUTO, plan.topic)
    if written.format != plan.format:
        raise SchemaError(f"it is {schema.kind}")
    return written


def _of_any_version(plan: ColumnPlan, fetch: Callable[[], dict[int, PulsarSchema]]) -> SchemaReader:
    """Return the reader of Avro records that do not name their version: it tries all versions, which `fetch`
    returns.
    """

    def avro() -> dict[int, avro_schema.AvroType]:
        made = {}
        for version, schema in fetch().items():
            with contextlib.suppress(SchemaError):
                made[version] = _written_by(plan, schema).avro
        return made

    return VersionsReader(plan.avro, avro)


class TextReader:
    """The reader of texts of UTF-8."""

    def read(self, column: pa.Array, versions: pa.Array | None = None) -> Decoded:
        """Return the column as texts, and by row the errors of values that are no UTF-8, which are null in it.
        `versions` does not matter.
        """
        try:
            return column.cast(pa.string()), {}
        except pa.ArrowInvalid:
            pass
        rows, records = present(column)
        values, failures = PrimitiveReader("STRING").decode(records)
        return in_order(pa.string(), len(column), [(rows, values)]), {rows[at]: why for at, why in failures.items()}


class BareReader:
    """The reader of records without anything before them."""

    def __init__(self, plan: ColumnPlan) -> None:
        self._kind = plan.kind
        self._reader = _reader_of_records(plan)

    def read(self, column: pa.Array, versions: pa.Array | None = None) -> Decoded:
        """Return the column of the plan's type, and by row the errors of bad records, which are null in it; null stays
        null. `versions` has for each row the version of Pulsar's schema that the record names.
        """
        rows, records = present(column)
        values, failures = self._reader.decode(records, named(versions, rows))
        return in_order(self._kind, len(column), [(rows, values)]), {rows[at]: why for at, why in failures.items()}


class PairReader:
    """The reader of Pulsar's pairs of key and value in one message."""

    def __init__(self, plan: ColumnPlan) -> None:
        self._kind = plan.kind
        self._parts = [_reader_of_records(part) for part in plan.pair]

    def read(self, column: pa.Array, versions: pa.Array | None = None) -> Decoded:
        """Return the structs of key and value, and by row the errors of records whose key or value is bad, which are
        null as a whole; null stays null. `versions` has for each row the version of Pulsar's schema that the record
        names.
        """
        failures: dict[int, str] = {}
        halves: list[tuple[list[int], list[bytes]]] = [([], []), ([], [])]
        valid = [False] * len(column)
        for row, data in zip(*present(column), strict=True):
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
            values, bad = reader.decode(records, named(versions, rows))
            columns.append(in_order(inner.type, len(column), [(rows, values)]))
            for at, reason in bad.items():
                failures.setdefault(rows[at], f"its {name}: {reason}")
        mask = pa.array([not (valid[row] and row not in failures) for row in range(len(column))], pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=list(self._kind), mask=mask), failures


Group = tuple[int, tuple[int, ...], int]
"""The things that records of one reader have in common: the id of their schema, their message indexes, and the byte
at which their encoding begins.
"""


class FramedReader:
    """The reader of records with a registry's id before them; each id has a reader of its own."""

    def __init__(self, plan: ColumnPlan, registry: RegistryAccess) -> None:
        self._registry = registry_of_process(registry)
        self._plan = plan
        self._kind = plan.kind
        self._readers: dict[tuple[int, tuple[int, ...]], SchemaReader | str] = {}
        self._wanted = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}[plan.format]

    def read(self, column: pa.Array, versions: pa.Array | None = None) -> Decoded:
        """Return the column of the plan's type, and by row the errors of bad records, which are null in it: also of
        those without a frame, and of those whose schema cannot be had or read. Null stays null. The registry is asked
        for an id that comes for the first time; SchemaError if it cannot be. `versions` does not matter.
        """
        groups, failures = self._groups(column)
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

    def _groups(self, column: pa.Array) -> tuple[dict[Group, tuple[list[int], list[bytes]]], dict[int, str]]:
        """Return, for each group of records that one reader reads, the indexes of its rows and its records; and by row
        the errors of records that have no proper frame.
        """
        rows, records = present(column)
        group = self._group(records[0]) if records else ""
        if not isinstance(group, str):  # Mostly all records are of one group: nothing is done for each of them then.
            heads = compute.binary_slice(column, 0, group[2]).unique().drop_null()
            if len(heads) == 1:
                return {group: (rows, records)}, {}
        groups: dict[Group, tuple[list[int], list[bytes]]] = {}
        failures: dict[int, str] = {}
        known: dict[bytes, Group | str] = {}
        for row, data in zip(rows, records, strict=True):
            head = data[:HEAD]
            if head in known:
                group = known[head]
            else:
                group = self._group(data)
                if self._wanted != "PROTOBUF":  # whose message indexes are no part of the head
                    known[head] = group
            if isinstance(group, str):
                failures[row] = group
                continue
            of_group = groups.setdefault(group, ([], []))
            of_group[0].append(row)
            of_group[1].append(data)
        return groups, failures

    def _group(self, data: bytes) -> Group | str:
        """Return the group of a record, or as a text the reason why its frame is bad."""
        schema_id = schema_id_of(data)
        if schema_id is None:
            return "it does not begin with 0 and the id of a schema, as records of a registry do"
        if self._wanted != "PROTOBUF":
            return schema_id, (), HEAD
        try:
            return schema_id, *read_indexes(data, HEAD)
        except BadRecordError as error:
            return f"by schema {schema_id} {error}"

    def _reader(self, schema_id: int, indexes: tuple[int, ...]) -> SchemaReader | str:
        """Return the reader of the schema with this id, or as a text the reason why none of its records can be read.
        `indexes` name the message in a Protobuf schema. What is returned is kept, unless the registry does not know the
        id: it is asked again then. SchemaError if it cannot be asked.
        """
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
            by = replace(self._plan, schema=written)
            if self._wanted == "PROTOBUF":
                by = replace(by, message=by.protobuf.at(indexes).full_name)
            return _reader_of_schema(by, self._plan)
        except UnresolvableError as error:
            return f"schema {schema_id} cannot be resolved: {error}"
        except BadRecordError as error:
            return f"by schema {schema_id} {error}"
        except SchemaError as error:
            return f"schema {schema_id} is malformed: {error}"
