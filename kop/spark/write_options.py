"""The options of a write, under the names that Spark's Kafka sink gives them where it has them.

Owns: every option's name and values, and what `kafka.*` of a producer means here.
Must not know: pyspark, sockets, columns.

Names are matched without regard to case, as Spark does. An option that is not known, or that cannot be kept, is an
error that says what to do: a write never runs with less than it was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kop.client.properties import ConnectionProperties, one_of, text, whole
from kop.client.write_client import REQUEST_BYTES, REQUEST_ROOM
from kop.records.batch import LOG_OVERHEAD, Codec
from kop.spark.formats import FORMAT_OPTIONS, PULSAR_OPTIONS, Formats, pulsar_access, take_formats, wants_schemas
from kop.spark.given import Given, OptionError, flag
from kop.spark.options import CONNECTION_OPTIONS, INT32, connection_options, refuse_unknown
from kop.spark.producing import ProduceSettings

AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"

OPTIONS: Final = (
    "topic",
    "deliveryGuarantee",
    "exactlyOnceTasks",
    "exactlyOnceId",
    "exactlyOnceFrom",
    "exactlyOnceBatch",
    "checkpointLocation",
    "path",
    "registerSchema",
    *FORMAT_OPTIONS,
    *PULSAR_OPTIONS,
)
PRODUCER_OPTIONS: Final = (
    "kafka.compression.type",
    "kafka.acks",
    "kafka.max.request.size",
    "kafka.batch.size",
    "kafka.transaction.timeout.ms",
    "kafka.delivery.timeout.ms",
    "kafka.enable.idempotence",
    "kafka.linger.ms",
    "kafka.retries",
    "kafka.retry.backoff.ms",
    "kafka.max.in.flight.requests.per.connection",
    "kafka.buffer.memory",
    "kafka.max.block.ms",
)
REFUSED_HERE: Final = {
    "kafka.key.serializer": "set keyFormat instead: no Java class runs in this sink",
    "kafka.value.serializer": "set valueFormat instead: no Java class runs in this sink",
    "kafka.partitioner.class": "leave it out: no Java class runs in this sink; give rows a column partition",
    "kafka.interceptor.classes": "leave it out: no Java class runs in this sink",
    "kafka.transactional.id": "set deliveryGuarantee=exactly-once, and exactlyOnceId for the name",
    "outputMode": "set it by .outputMode(...)",
    "includeHeaders": "leave it out: headers are written where the DataFrame has the column",
}
_IGNORED: Final[Mapping[str, Callable[[str], Any]]] = {
    "kafka.linger.ms": whole(0),
    "kafka.retries": whole(0),
    "kafka.retry.backoff.ms": whole(0),
    "kafka.max.in.flight.requests.per.connection": whole(1),
    "kafka.buffer.memory": whole(1),
    "kafka.max.block.ms": whole(0),
    "checkpointLocation": str,
    "path": str,
}
"""The options that are accepted and have no effect, so that users of Spark's Kafka sink need not remove them: each
batch of rows is sent at once.
"""


@dataclass(frozen=True, slots=True)
class ExactlyOnce:
    """The options of an exactly-once sink."""

    tasks: int
    sink_id: str | None = None
    """The name of the sink; None for the id of the streaming query."""
    first_batch: int = 0
    batch: int | None = None
    """The number of the batch that is written; None for that of the streaming query."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """All options of a write."""

    patience: float
    """The seconds for which a request that fails for a time is tried again."""
    produce: ProduceSettings
    topic: str | None
    exactly_once: ExactlyOnce | None
    """The options of an exactly-once sink; None for at-least-once."""
    connection: ConnectionProperties
    formats: Formats | None = None
    """The options of typed columns; None if keys and values are bytes or texts."""
    register_schema: bool = False
    """True if the schemas of the columns are registered where the subject has not got them."""


def write_options(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Return the options of `df.write` or, with `streaming`, of `df.writeStream`. OptionError, which says what to do,
    if one is unknown, wrong, missing or contradicts another.
    """
    given = Given(options)
    connection = connection_options(given)
    topic = given.take("topic", text, "") or None
    guarantee = given.take("deliveryGuarantee", one_of(AT_LEAST_ONCE, EXACTLY_ONCE), AT_LEAST_ONCE)
    acks = given.take("kafka.acks", one_of("all", "-1", "1", "0"), "all")
    if acks not in ("all", "-1"):
        raise OptionError(f"leave kafka.acks out: with {acks} a record that is lost would not be written again")
    if given.take("kafka.enable.idempotence", one_of("true", "false"), "true") == "false":
        raise OptionError("leave kafka.enable.idempotence out: records are written by an idempotent producer")
    most = given.take("kafka.max.request.size", whole(LOG_OVERHEAD + REQUEST_ROOM), REQUEST_BYTES)
    most_of_batch = most - REQUEST_ROOM
    produce = ProduceSettings(
        codec=Codec[given.take("kafka.compression.type", one_of(*_CODECS), "none").upper()],
        max_batch_bytes=min(most_of_batch, max(given.take("kafka.batch.size", whole(1), most_of_batch), 16_384)),
        max_request_bytes=most,
        transaction_timeout_ms=given.take("kafka.transaction.timeout.ms", whole(1, INT32), 300_000),
    )
    patience = given.take("kafka.delivery.timeout.ms", whole(1), 120_000) / 1000
    typed = wants_schemas(given)
    access = pulsar_access(given) if given.has("pulsar.admin.url") and typed else None
    formats = take_formats(given, access, writing=True)
    register_schema = given.take("registerSchema", flag, False)
    if register_schema and (formats is None or formats.registry is None):
        raise OptionError("set schema.registry.url and valueFormat, or leave registerSchema out: nothing is registered")
    for name, parse in _IGNORED.items():
        given.take(name, parse, None)
    exactly_once = _exactly_once(given, streaming) if guarantee == EXACTLY_ONCE else None
    if exactly_once is None:
        for name in ("exactlyOnceTasks", "exactlyOnceId", "exactlyOnceFrom", "exactlyOnceBatch"):
            if given.has(name):
                raise OptionError(f"set deliveryGuarantee to exactly-once, or leave {name} out")
    elif given.has("exactlyOnceBatch"):
        raise OptionError("leave exactlyOnceBatch out: a streaming query numbers its batches")
    for name in PULSAR_OPTIONS:
        if given.has(name) and typed:
            raise OptionError(f"set pulsar.admin.url as well, or leave {name} out")
        if given.has(name):
            raise OptionError(
                f"set valueFormat or keyFormat to a format that has a schema, or leave {name} out: Pulsar has schemas"
            )
    lowered = {name.lower(): advice for name, advice in REFUSED_HERE.items()}
    for name in given.left():
        if name.lower() in lowered:
            raise OptionError(f'option {name} of format("kop"): {lowered[name.lower()]}')
    refuse_unknown(given, (*OPTIONS, *PRODUCER_OPTIONS, *CONNECTION_OPTIONS), "the options of a write")
    return WriteOptions(patience, produce, topic, exactly_once, connection, formats, register_schema)


_CODECS: Final = tuple(codec.name.lower() for codec in Codec)


def _exactly_once(given: Given, streaming: bool) -> ExactlyOnce:
    if not given.has("exactlyOnceTasks"):
        raise OptionError(
            "set exactlyOnceTasks to the number of tasks that write each batch, and give the DataFrame as many by "
            "df.repartition(N, column): a batch that is repeated has to have its rows in the same tasks"
        )
    if not streaming and not given.has("exactlyOnceId"):
        raise OptionError(
            "set exactlyOnceId to a name of this write: the same write under the same name is done once, however "
            "often the job runs"
        )
    return ExactlyOnce(
        tasks=given.take("exactlyOnceTasks", whole(1), 1),
        sink_id=given.take("exactlyOnceId", _name, "") or None,
        first_batch=given.take("exactlyOnceFrom", whole(0), 0),
        batch=given.take("exactlyOnceBatch", whole(0), 0) if not streaming else None,
    )


def _name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._:/-]{1,200}", value.strip()):
        raise ValueError("is not 1 to 200 letters, digits, and . _ : / -")
    return value.strip()
