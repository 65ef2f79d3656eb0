"""Columns of types into records: the schema that a write is by, its id, and the encoding.

Owns: which schema a column is written by, what is registered, what stands before each record.
Must not know: pyspark, how options are written.

A `WritePlan` is made where a write is planned, and pickled for its tasks.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from kop.schemas import avro_schema, avro_writing, json_schema, json_writing, primitives, protobuf_writing
from kop.schemas.columns import AUTO, ColumnPlan, SchemaSource, plan, registry_of_process
from kop.schemas.confluent import ConfluentRegistry, Reference, Schema, frame
from kop.schemas.encoders import Encode, with_nulls
from kop.schemas.errors import SchemaError
from kop.schemas.protobuf import ProtobufFile, ProtobufSchema, split, write_indexes

_KINDS: Final = {"avro": "AVRO", "json": "JSON", "protobuf": "PROTOBUF"}


@dataclass(frozen=True, slots=True)
class WritePlan:
    """The way in which a column is written: its format, its schema and type, and what stands before each record."""

    format: str
    """The format, as a `ColumnPlan` has it."""
    kind: pa.DataType
    schema: Schema = field(default_factory=Schema)
    message: str = ""
    before: bytes = b""
    pair: tuple[WritePlan, ...] = ()
    """The plans of the key and the value of a pair."""


def plan_writing(source: SchemaSource, kind: pa.DataType, *, register: bool) -> WritePlan:
    """Return how a column of a type is written. The schema is the source's own; if it has none, with `register` one
    made from the type, else the version that the subject or Pulsar's topic has. With `register` the schema is
    registered under the subject, unless it is there; without, one that a registry gives an id has to be there.
    SchemaError if there is no fitting schema, or the registry refuses or does not answer.
    """
    if source.registry is not None and source.format != "string":
        made = _with_id(source, kind, register)
    elif source.format == "json" and not source.text and source.pulsar is None:
        made = WritePlan("json", kind)
    else:
        made = _bare(plan(source), kind)
    writer_of(made)
    return made


def _bare(by: ColumnPlan, kind: pa.DataType) -> WritePlan:
    """Return how a column is written without anything before its records. SchemaError if the schema is a pair and the
    column no struct of key and value, or if the Avro schema by which Pulsar describes its JSON does not take the
    column.
    """
    parts: tuple[WritePlan, ...] = ()
    if by.format == "pair":
        if not pa.types.is_struct(kind) or [part.name for part in kind] != ["key", "value"]:
            raise SchemaError("has to be a struct of key and value: its schema is a pair of them")
        parts = tuple(_bare(part, inner.type) for part, inner in zip(by.pair, kind, strict=True))
    elif by.format == "json" and by.schema.kind == "AVRO":
        plain = json.loads(by.schema.text, object_hook=_without_logical_types)
        avro_writing.encoder(avro_schema.parse(json.dumps(plain)), kind)  # what Avro does not take, the schema has not
    return WritePlan(by.format, kind, by.schema, by.message, pair=parts)


def _without_logical_types(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != "logicalType"}


def _with_id(source: SchemaSource, kind: pa.DataType, register: bool) -> WritePlan:
    assert source.registry is not None
    registry = registry_of_process(source.registry)
    if register or source.text:
        schema_id = _enter(registry, source, kind, register)
        schema, format_, message = registry.by_id(schema_id), source.format, source.message
    else:
        by = plan(source)
        assert by.schema.id is not None
        schema, schema_id, format_, message = by.schema, by.schema.id, by.format, by.message
    before = frame(schema_id)
    if format_ == "protobuf":
        file = ProtobufSchema(schema.text, schema.references)
        chosen = file.message(message)
        before, message = before + write_indexes(file.indexes(chosen)), chosen.full_name
    return WritePlan(format_, kind, schema, message, before)


def _enter(registry: ConfluentRegistry, source: SchemaSource, kind: pa.DataType, register: bool) -> int:
    """Return the id of the schema that the source has, or that is made of the type. With `register` the schema and the
    files that it imports are registered; without, they have to be registered already. SchemaError if they are not, are
    refused, or refer to schemas that are not known.
    """
    text = source.text or _schema_of(source.format, kind)
    if source.format == "json" and not text.lstrip().startswith("{"):
        text = json_writing.schema_of(kind)  # columns in Spark's words are those of the type
    wanted = Schema(_KINDS[source.format], text)
    references: tuple[Reference, ...] = ()
    if source.format == "protobuf":
        whole = ProtobufSchema(text)  # checked first, so that nothing is registered of what is not whole
        whole.indexes(whole.message(source.message))
        files = split(text)
        wanted = replace(wanted, text=files[-1].text)
        references = _imports(registry, files[-1], {file.name: file for file in files}, register)
    else:
        _check_whole(source, text)
    if register:
        return registry.register(source.subject, wanted, references)
    return registry.find(source.subject, wanted, references)[0]


def _imports(
    registry: ConfluentRegistry, file: ProtobufFile, files: Mapping[str, ProtobufFile], register: bool
) -> tuple[Reference, ...]:
    """Return the references of a file of Protobuf to the files that it imports, in the form that a registry takes;
    their subjects are their names, as Confluent's serializers have it. With `register` the imported files are
    registered first; without, UnknownSchemaError if one is not there.
    """
    references = []
    for name in file.imports:
        imported = Schema("PROTOBUF", files[name].text)
        own = _imports(registry, files[name], files, register)
        if register:
            registry.register(name, imported, own)
        references.append(Reference(name, name, registry.find(name, imported, own)[1]))
    return tuple(references)


def _check_whole(source: SchemaSource, text: str) -> None:
    """Raise SchemaError if a schema of Avro or JSON refers to others: there is no option that says which they are."""
    try:
        if source.format == "avro":
            avro_schema.parse(text)
        elif names := json_schema.others(text):
            raise SchemaError(f"the JSON Schema refers to {', '.join(names)}")
    except SchemaError as error:
        raise SchemaError(
            f"let {source.column}Schema have all of its types in it; or leave it out, and registerSchema, to write by "
            f"the version that {source.subject} has, with its references: {error}"
        ) from None


def _schema_of(format_: str, kind: pa.DataType) -> str:
    if format_ == "avro":
        return avro_writing.schema_of(kind)
    if format_ == "json":
        return json_writing.schema_of(kind)
    what = "a format" if format_ == AUTO else "the schema of the message"
    raise SchemaError(f"name {what}: it cannot be made of the type of the column")


@functools.lru_cache(32)
def writer_of(plan: WritePlan) -> Callable[[pa.Array], pa.Array]:
    """Return the function that encodes a column of the plan's type as bytes; null stays null. That function raises
    BadRecordError for a value that the schema does not take. SchemaError if the schema does not take such columns at
    all.
    """
    encode = _encoder(plan)
    before = plan.before

    def write(column: pa.Array) -> pa.Array:
        encoded = encode(column)
        valid = column.is_valid().to_pylist()
        rows = zip(encoded, valid, strict=True)
        return pa.array([before + value if there and value is not None else None for value, there in rows], pa.binary())

    return write


def _encoder(plan: WritePlan) -> Callable[[pa.Array], list[bytes | None]]:
    """Return the function that encodes each value of a column of the plan's type, without what stands before a record;
    null gives None, or the encoded null if the plan's Avro schema has null. SchemaError if the schema does not take
    such columns.
    """
    match plan.format:
        case "string":
            if not pa.types.is_string(plan.kind):
                raise SchemaError("has to be a text for the format string: cast it")
            return lambda column: list(column.cast(pa.binary()).to_pylist())
        case "avro":
            schema = avro_schema.parse(plan.schema.text, plan.schema.reference_texts)
            return avro_writing.encoder(schema, plan.kind)
        case "json":
            return json_writing.encoder(plan.kind)
        case "protobuf":
            file = ProtobufSchema(plan.schema.text, plan.schema.references)
            return protobuf_writing.encoder(file.message(plan.message), plan.kind)
        case "pair":
            return functools.partial(with_nulls, _pairs(plan))
    return functools.partial(with_nulls, primitives.encoder(plan.format, plan.kind))


def _pairs(plan: WritePlan) -> Encode:
    encodes = [_encoder(part) for part in plan.pair]

    def encode(column: pa.Array) -> list[bytes]:
        parts = [inner(part) for inner, part in zip(encodes, column.flatten(), strict=True)]
        return [primitives.joined_pair(row) for row in zip(*parts, strict=True)]

    return encode
