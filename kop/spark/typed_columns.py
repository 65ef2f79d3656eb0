"""Typed columns of a read: keys and values as what their schemas say, instead of bytes.

Owns: how options become the plan of a column, and what becomes of records that are bad.
Must not know: pyspark, formats, how registries are asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from kop.schemas import columns
from kop.schemas.errors import SchemaError
from kop.schemas.types import widened
from kop.schemas.writing import WritePlan, plan_writing
from kop.spark.clients import read_client
from kop.spark.decoding import ERROR, RecordDecodeError
from kop.spark.entry_metadata import SCHEMA_VERSION
from kop.spark.given import OptionError
from kop.spark.message_ids import SETTINGS, MessageBoundError, full_name

if TYPE_CHECKING:
    from kop.client.properties import ConnectionProperties
    from kop.spark.formats import Formats
    from kop.spark.options import ReadOptions
    from kop.spark.write_options import WriteOptions


@dataclass(frozen=True)
class TypedPlan:
    """The plan of the columns of a read that are no bytes, pickled for its tasks."""

    plans: Mapping[str, columns.ColumnPlan]
    permissive: bool

    @property
    def declared(self) -> dict[str, str]:
        """The types of the columns in Spark's words."""
        return {name: plan.sql for name, plan in self.plans.items()}

    def of_types(self, kinds: Mapping[str, pa.DataType]) -> TypedPlan:
        """Return the plan for columns of these types, by column, as Spark has them. OptionError if a schema gives
        another type than that.
        """
        made = {}
        for name, plan in self.plans.items():
            try:
                made[name] = plan.of_type(kinds[name])
            except SchemaError as error:
                raise OptionError(f"leave .schema() out: the column {name} {error}") from None
        return replace(self, plans=made)

    @property
    def schema_versions(self) -> bool:
        """True if the batches have to have the column of the versions of Pulsar's schemas."""
        return any(plan.names_versions for plan in self.plans.values())

    def make(self) -> TypedRows:
        """Return the object that makes the rows of one task."""
        return TypedRows(self)


class TypedRows:
    """The columns of one task; what they know of schemas they keep from batch to batch."""

    def __init__(self, plan: TypedPlan) -> None:
        self._permissive = plan.permissive
        self._readers = {name: columns.reader_of(of_column) for name, of_column in plan.plans.items()}

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with typed columns in place of bytes, without the column `schemaVersion`. The first bad
        record raises RecordDecodeError; but if bad records are to be null (mode=PERMISSIVE), the column `decodeError`
        is added, with the text of the error, null for good rows.
        """
        made, versions = batch, None
        if SCHEMA_VERSION in batch.schema.names:
            versions = batch.column(SCHEMA_VERSION)
            made = batch.drop_columns([SCHEMA_VERSION])
        reasons: dict[int, list[str]] = {}
        for name, reader in self._readers.items():
            place = made.schema.get_field_index(name)
            values, failures = reader.read(batch.column(place), versions)
            made = made.set_column(place, pa.field(name, values.type), values)
            for row, reason in failures.items():
                reasons.setdefault(row, []).append(f"{name}: {reason}")
        if reasons and not self._permissive:
            row = min(reasons)
            topic, partition, offset = (batch.column(name)[row] for name in ("topic", "partition", "offset"))
            raise RecordDecodeError(
                "set mode to PERMISSIVE to go on with null, or let the query begin behind it: the record of "
                f"topic {topic} partition {partition} offset {offset} is bad; {'; '.join(reasons[row])}"
            )
        if self._permissive:
            texts = [None if row not in reasons else "; ".join(reasons[row]) for row in range(batch.num_rows)]
            made = made.append_column(pa.field(ERROR, pa.string()), pa.array(texts, pa.string()))
        return made


def plan_columns(options: ReadOptions) -> TypedPlan | None:
    """Return the plan of the typed columns; None if all are bytes. Schema registries are asked. OptionError if an
    option is missing or wrong, or if a registry has no usable schema or does not answer.
    """
    formats = options.formats
    if formats is None:
        return None
    topics = {*options.topics, *(topic for topic, _ in options.assign)}
    topic = topics.pop() if len(topics) == 1 else None
    plans = {}
    for name in formats.columns:
        source = schema_source(name, formats, topic, options.connection)
        try:
            plans[name] = columns.plan(source)
        except SchemaError as error:
            raise OptionError(f"the column {name}: {error}") from None
    return TypedPlan(plans, options.permissive)


def plan_writes(options: WriteOptions, kinds: Mapping[str, pa.DataType]) -> dict[str, WritePlan]:
    """Return, by column, how the columns of a write that have formats are encoded; `kinds` are their Arrow types.
    Schema registries are asked. OptionError if an option is missing or wrong, if a registry has no fitting schema or
    does not answer, or if a schema does not fit the column's type.
    """
    assert options.formats is not None
    plans = {}
    for name, kind in kinds.items():
        source = schema_source(name, options.formats, options.topic, options.connection, writing=True)
        try:
            plans[name] = plan_writing(source, widened(kind), register=options.register_schema)
        except SchemaError as error:
            raise OptionError(f"the column {name}: {error}") from None
    return plans


def schema_source(
    name: str, formats: Formats, topic: str | None, connection: ConnectionProperties, *, writing: bool = False
) -> columns.SchemaSource:
    """Return the place of the schema of the column `name`. `topic` is None if the rows are of several topics: then
    OptionError, unless an option names the schema or its subject. The gateway is asked for the topic's full name if
    Pulsar has the schema and the name is short; OptionError if it does not tell it. `writing`: also a schema that is
    given needs a subject.
    """
    wanted = formats.columns[name]
    source = columns.SchemaSource(
        name, wanted.format, wanted.schema, wanted.message, subject=wanted.subject, version=wanted.version
    )
    if formats.registry is not None:
        source = replace(source, registry=formats.registry)
        if wanted.format != "string" and not wanted.subject and (writing or not wanted.schema):
            subject = f"{_only(topic, name, 'Subject', 'the subject')}-{name}"
            source = replace(source, subject=subject)
    if formats.pulsar is not None and wanted.format != "string" and not wanted.schema:
        named = wanted.subject or _only(topic, name, "Subject", "the topic")
        source = replace(source, pulsar=formats.pulsar, topic=_full_name(named, connection))
    return source


def _only(topic: str | None, name: str, option: str, what: str) -> str:
    if topic is None:
        raise OptionError(
            f"set {name}{option} to {what} whose schema the column {name} has: there is more than one topic"
        )
    return topic


def _full_name(topic: str, connection: ConnectionProperties) -> str:
    settings = {} if "/" in topic else server_configs(connection)
    try:
        return full_name(topic, settings)
    except MessageBoundError as error:
        raise OptionError(str(error)) from None


def server_configs(connection: ConnectionProperties) -> Mapping[str, str]:
    """Return those settings that the gateway tells this user of how topics are named, and offsets made, in Pulsar. A
    connection is made for it, and closed.
    """
    client = read_client(connection.settings, connection.patience_ms)
    try:
        return client.server_configs(SETTINGS)
    finally:
        client.close()
