"""The sources and sinks of a mesh as streaming queries: from a format of Spark to a topic, and from topics to one.

Owns: which columns go between topics and formats, and what holds for each kind of sink.
Must not know: components, when queries start and end.

Into a topic all is written by the exactly-once sink of `format("kop")`. Out of topics only what is committed is read;
a format that takes streams keeps its own promise (files have each row once), any other one gets each batch at least
once.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from pyspark.errors import PySparkException

from kop.client.errors import ClientError
from kop.mesh.spec import SinkPart, SourcePart
from kop.spark.listener import track_progress
from kop.spark.source import KopDataSource
from kop.spark.streams import write_stream

_PLAIN: Final = ("", "bytes", "string")
_TEXT_FORMATS: Final = ("csv", "json", "text", "xml", "console")
"""Formats in which bytes would be unreadable."""


def check_formats(part: SourcePart | SinkPart) -> None:
    """Raise ClientError if columns are wanted that nothing makes yet."""
    for name, given in (("valueFormat", part.value_format), ("keyFormat", part.key_format)):
        if given not in _PLAIN:
            raise ClientError(f"leave {name} of the {part.kind} {part.name} out, or set it to bytes or string: {given} "
                              "is not there yet")  # fmt: skip


def start_source(
    spark: Any,
    part: SourcePart,
    kafka: Mapping[str, str],
    checkpoint: str,
    trigger: dict[str, Any],
    name: str,
    tasks: int,
) -> Any:
    """Start the query of a source; `kafka` are options of `format("kop")` for the connection."""
    _register(spark)
    reader = spark.readStream.format(part.format).options(**part.options)
    if part.schema:
        reader = reader.schema(part.schema)
    options = {
        **kafka,
        "topic": part.output,
        "deliveryGuarantee": "exactly-once",
        "exactlyOnceTasks": str(tasks),
        "exactlyOnceId": f"kop.mesh/{name}",
    }
    return write_stream(to_rows(reader.load()), options=options, checkpoint=checkpoint, trigger=trigger, name=name)


def to_rows(frame: Any) -> Any:
    """Return a frame with the columns of a topic: `key` and `value` if it has a value, else each row as JSON."""
    types = {column.lower(): kind for column, kind in frame.dtypes}
    plain = {"binary", "string"}
    if types.get("value") in plain and types.get("key", "string") in plain:
        return frame.selectExpr(*[column for column in ("key", "value") if column in types])
    key = ["cast(key as string) AS key"] if "key" in types else []
    return frame.selectExpr(*key, "to_json(struct(*)) AS value")


def start_sink(
    spark: Any,
    part: SinkPart,
    kafka: Mapping[str, str],
    checkpoint: str,
    trigger: dict[str, Any],
    name: str,
    group: str,
) -> Any:
    """Start the query of a sink; what it has done is committed to a group, for people."""
    _register(spark)
    options = {
        **kafka,
        "subscribe": ",".join(part.inputs),
        "startingOffsets": "earliest",
        "kafka.isolation.level": "read_committed",
    }
    rows = from_rows(spark.readStream.format("kop").options(**options).load(), part)
    listener = track_progress(spark, group=group, options=dict(kafka), query_name=name)
    writer = rows.writeStream.queryName(name).option("checkpointLocation", checkpoint).trigger(**trigger)
    try:
        query = writer.format(part.format).options(**part.options).start()
    except Exception as error:
        if not _takes_no_streams(error):
            spark.streams.removeListener(listener)
            raise

        def write(batch: Any, _number: int) -> None:
            batch.write.format(part.format).options(**part.options).mode("append").save()

        query = writer.foreachBatch(write).start()
    return query


def _register(spark: Any) -> None:
    with suppress(PySparkException):  # PySpark 4.0 has it already
        spark.dataSource.register(KopDataSource)


def from_rows(frame: Any, part: SinkPart) -> Any:
    """Return the rows of topics with the columns that a sink writes."""
    texts = part.format in _TEXT_FORMATS
    value = "string(value)" if part.value_format == "string" or (texts and not part.value_format) else "value"
    key = "string(key)" if part.key_format == "string" or (texts and not part.key_format) else "key"
    if part.format == "text":
        return frame.selectExpr(f"{value} AS value")
    place = ("topic", "partition", "offset", "timestamp")
    return frame.selectExpr(f"{key} AS key", f"{value} AS value", *place)


def _takes_no_streams(error: Exception) -> bool:
    text = str(error)
    return "does not support streamed writing" in text or "STREAMED_OPERATOR_UNSUPPORTED" in text
