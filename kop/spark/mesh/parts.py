"""The sources, sinks and queries of a mesh as streaming queries: between formats of Spark and topics, and from topics
to a topic.

Owns: which columns go between topics and formats, which options of the mesh reach which part.
Must not know: components, when queries start and end.

Into a topic all is written by the exactly-once sink of `format("kop")`. Out of topics only what is committed is read;
a format that takes streams keeps its own promise (files have each row once), a table of a database has each row once
by its batch and its place (`table_sink`), any other format gets each batch at least once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Final, TypeAlias

from pyspark.errors import AnalysisException, PySparkException

from kop.client.errors import ClientError
from kop.mesh.spec import QueryPart, SinkPart, SourcePart, View
from kop.spark import options as read
from kop.spark import write_options as write
from kop.spark.decoding import ERROR
from kop.spark.formats import PULSAR_OPTIONS, REGISTRY_OPTIONS
from kop.spark.given import Given, OptionError
from kop.spark.listener import track_progress
from kop.spark.mesh import table_sink
from kop.spark.source import KopDataSource
from kop.spark.streams import write_stream
from kop.spark.tables import make_view

Part: TypeAlias = SourcePart | SinkPart | QueryPart

TASKS: Final = 2
"""The number of tasks that write a batch into a topic; exactly-once writing depends on this number."""
_READ: Final = (*read.OPTIONS, *read.CONNECTION_OPTIONS, *read.FETCH_OPTIONS)
_WRITE: Final = (*write.OPTIONS, *write.PRODUCER_OPTIONS, *read.CONNECTION_OPTIONS)
_WITH_REGISTRY: Final = ("avro", "protobuf", "auto")
"""The formats that have their schemas from a registry that is named for all parts."""
_TYPED: Final = ("json", *_WITH_REGISTRY)
_TEXT_FORMATS: Final = ("csv", "json", "text", "xml", "console")
"""Formats in which bytes would be unreadable."""
_FLAT_FORMATS: Final = ("csv", "text", table_sink.FORMAT)
"""Formats whose columns hold no other columns."""
_NESTED: Final = ("struct<", "array<", "map<")
_PLAIN: Final = ("binary", "string")
_NO_STREAMS: Final = (
    "does not support streamed writing",
    "STREAMED_OPERATOR_UNSUPPORTED",
    "streamWriter is not implemented",
)
"""The words of Spark's errors if a format takes batches alone."""
_OF_TIME: Final = ("STREAMING_OUTPUT_MODE", "outputMode", "output mode", "watermark")
"""The words of Spark's errors if a query needs another output mode, or a watermark."""


class PartQueries:
    """Starts the queries of parts in a session. `kafka` are options of `format("kop")` for the connection, `shared` are
    those of the mesh.
    """

    def __init__(self, spark: Any, kafka: Mapping[str, str], shared: Mapping[str, str]) -> None:
        self._spark = spark
        self._kafka = dict(kafka)
        self._shared = dict(shared)
        self._sinks: dict[str, Any] = {}
        """The last query of each sink that its format writes as a stream, by name."""

    def check(self, part: Part) -> None:
        """Raise ClientError if an option of `format("kop")` is unknown, or does not fit another one."""
        known = {name.lower() for name in (*_READ, *_WRITE)}
        for name in self._shared:
            if name.lower() not in known:
                raise ClientError(f'leave {name} out of kopOptions of the mesh: format("kop") has no such option')
        try:
            if not isinstance(part, SourcePart):
                for options in self._reads(part).values():
                    read.stream_options(options)
            if not isinstance(part, SinkPart):
                write.write_options({"exactlyOnceId": "query", **self._write(part)}, streaming=False)
        except OptionError as error:
            raise ClientError(f"{part.kind} {part.name}: {error}") from None

    def start(self, part: Part, *, checkpoint: str, trigger: Mapping[str, Any], name: str, group: str) -> Any:
        """Start the query of a part. The offsets that it has read are committed to `group`, so that users see its
        progress.
        """
        spark = _own_session(self._spark) if isinstance(part, QueryPart) else self._spark
        with suppress(PySparkException):  # PySpark 4.0 has it already
            spark.dataSource.register(KopDataSource)
        listener = None
        if not isinstance(part, SourcePart):
            listener = track_progress(spark, group=group, options=self._kafka, query_name=name)
        try:
            if isinstance(part, SinkPart):
                return self._sink(spark, part, checkpoint, trigger, name)
            frame = self._source(spark, part) if isinstance(part, SourcePart) else self._query(spark, part)
            mode = part.output_mode if isinstance(part, QueryPart) else "append"
            options = {**self._write(part), "exactlyOnceId": f"kop.mesh/{name}"}
            formats = (Given(options).value(option).lower() for option in ("valueFormat", "keyFormat"))
            rows = to_rows(frame, *formats)
            return write_stream(
                rows, options=options, checkpoint=checkpoint, output_mode=mode, trigger=dict(trigger), name=name
            )
        except Exception as error:
            if listener is not None:
                spark.streams.removeListener(listener)
            if isinstance(part, QueryPart) and isinstance(error, AnalysisException):
                raise ClientError(f"{_remedy(part, str(error))}{error}") from None
            raise

    # -- each kind

    def _source(self, spark: Any, part: SourcePart) -> Any:
        reader = spark.readStream.format(part.format).options(**part.options)
        if part.schema:
            reader = reader.schema(part.schema)
        return reader.load()

    def _query(self, spark: Any, part: QueryPart) -> Any:
        for table, options in self._reads(part).items():
            make_view(spark.readStream, table, options, part.views[table].watermark)
        frame = spark.sql(part.sql)
        if not frame.isStreaming:
            raise ClientError(f"let sql of the query {part.name} select from a topic: it is no stream")
        return frame

    def _sink(self, spark: Any, part: SinkPart, checkpoint: str, trigger: Mapping[str, Any], name: str) -> Any:
        (options,) = self._reads(part).values()
        read_rows = spark.readStream.format("kop").options(**options).load()
        rows = from_rows(read_rows, part)
        rows = table_sink.with_places(rows, read_rows, part) if part.format == table_sink.FORMAT else rows
        writer = rows.writeStream.queryName(name).option("checkpointLocation", checkpoint).trigger(**trigger)
        if part.format == table_sink.FORMAT:
            return writer.foreachBatch(table_sink.once(part)).start()
        if self._takes_streams(part):
            try:
                query = writer.format(part.format).options(**part.options).start()
            except Exception as error:
                if not _is_without_streams(error):
                    raise
            else:
                self._sinks[part.name] = query
                return query

        def append(batch: Any, _number: int) -> None:
            batch.write.format(part.format).options(**part.options).mode("append").save()

        return writer.foreachBatch(append).start()

    def _takes_streams(self, part: SinkPart) -> bool:
        """Return false if the last query of a sink has failed since its format takes batches alone, which formats in
        Python tell no sooner.
        """
        last = self._sinks.get(part.name)
        return last is None or not _is_without_streams(last.exception())

    # -- options

    def _reads(self, part: SinkPart | QueryPart) -> dict[str, dict[str, str]]:
        """Return the options of each read of a part by the name of its table; a sink has one read."""
        if isinstance(part, SinkPart):
            formats = {
                name: value for name, value in _formats(part).items() if value in _TYPED
            }  # of a text, what is no UTF-8 is no bad record for a sink
            views = {"": View(",".join(part.inputs), {**formats, **part.kop_options})}
        else:
            views = dict(part.views)
        return {
            table: {
                **self._kafka,
                "startingOffsets": "earliest",
                "kafka.isolation.level": "read_committed",
                **self._of_mesh(_READ, view.options),
                **view.options,
                "subscribe": view.topic,
            }
            for table, view in views.items()
        }

    def _write(self, part: SourcePart | QueryPart) -> dict[str, str]:
        own = {**{name: value for name, value in _formats(part).items() if value in _TYPED}, **part.kop_options}
        return {
            **self._kafka,
            **self._of_mesh(_WRITE, own),
            "deliveryGuarantee": "exactly-once",
            "exactlyOnceTasks": str(TASKS),
            **own,
            "topic": part.output,
        }

    def _of_mesh(self, known: Collection[str], own: Mapping[str, str]) -> dict[str, str]:
        """Return the mesh's options whose names are in `known`, those that a read or a write has. Options of registries
        are left out if no format of the mesh or in `own` needs one.
        """
        names = {name.lower() for name in known}
        both = Given({**self._shared, **own})
        formats = {both.value(option).lower() for option in ("valueFormat", "keyFormat")}
        if not formats.intersection(_WITH_REGISTRY):
            names -= {name.lower() for name in (*REGISTRY_OPTIONS, *PULSAR_OPTIONS)}
        return {name: value for name, value in self._shared.items() if name.lower() in names}


def _is_without_streams(error: object) -> bool:
    """Return if an error says that a format takes batches alone."""
    return any(text in str(error) for text in _NO_STREAMS)


def _own_session(spark: Any) -> Any:
    """Return a session with the same settings and no views, so that those of a query are its own."""
    session = spark.newSession()
    for name, value in spark.conf.getAll.items():
        if spark.conf.isModifiable(name):
            session.conf.set(name, value)
    return session


def _formats(part: Part) -> dict[str, str]:
    given = {"valueFormat": part.value_format, "keyFormat": part.key_format}
    return {name: value for name, value in given.items() if value}


def _remedy(part: QueryPart, error: str) -> str:
    """Return what goes before an error of Spark: advice if the error is about watermarks or output modes, else only the
    query's name.
    """
    if not any(text in error for text in _OF_TIME):
        return f"query {part.name}: "
    table = next(iter(part.views))
    other = "update, or complete," if part.output_mode == "append" else "append"
    return (
        f"let outputMode of the query {part.name} be {other} or give a view a watermark, "
        f"views: {{{table}: {{watermark: timestamp 10 minutes}}}}, and group by its window: "
    )


def to_rows(frame: Any, value_format: str = "", key_format: str = "") -> Any:
    """Return a frame with the columns of a topic, `value` and, if it has one, `key`.

    Its column `value` is the value if it is text or bytes, a struct, or of a format that has types; else the value is
    the row without its key: a struct for such a format, and JSON without one.
    """
    types = {column.lower(): kind for column, kind in frame.dtypes}
    key = []
    if "key" in types:
        is_key = key_format in _TYPED or types["key"] in _PLAIN
        key = ["key"] if is_key else ["cast(key AS string) AS key"]
    names = [column.replace("`", "``") for column in frame.columns if column.lower() != "key"]
    row = f"struct({', '.join(f'`{name}`' for name in names)})"
    value = types.get("value", "")
    if value_format in _TYPED:
        return frame.selectExpr(*key, "value" if value else f"{row} AS value")
    if value in _PLAIN:
        return frame.selectExpr(*key, "value")
    return frame.selectExpr(*key, f"to_json({'value' if value.startswith('struct<') else row}) AS value")


def from_rows(frame: Any, part: SinkPart) -> Any:
    """Return the rows of topics with the columns that a sink writes; ClientError if its format does not take them."""
    types = dict(frame.dtypes)
    if part.columns:
        rows = frame.selectExpr(*part.columns)
    else:
        key, value = (
            f"string({name}) AS {name}" if types[name] == "binary" and _is_text(part, given) else name
            for name, given in (("key", part.key_format), ("value", part.value_format))
        )
        if part.format == "text":
            return frame.selectExpr(f"to_json({value}) AS value" if types["value"].startswith(_NESTED) else value)
        more = [ERROR] if ERROR in frame.columns else []
        rows = frame.selectExpr(key, value, "topic", "partition", "offset", "timestamp", *more)
    if part.format in _FLAT_FORMATS:
        for name, kind in rows.dtypes:
            if kind.startswith(_NESTED):
                told = f"columns: [value.ID, ...] of the sink {part.name}"
                raise ClientError(f"name fields, {told}: {part.format} has no place for the {kind} of {name}")
    return rows


def _is_text(part: SinkPart, given: str) -> bool:
    return given == "string" or (part.format in _TEXT_FORMATS and not given)
