"""The sources, sinks and queries of a mesh as streaming queries: between formats of Spark and topics, and from topics
to a topic.

Owns: how the query of each kind of part is started.
Must not know: components, when queries start and end, which options and columns they have (`part_options`,
`part_rows`).

Into a topic all is written by the exactly-once sink of `format("kop")`. Out of topics only what is committed is read;
a format that takes streams keeps its own promise (files have each row once), a table of a database has each row once
by its batch and its place (`table_sink`), any other format gets each batch at least once.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from pyspark.errors import AnalysisException, PySparkException

from kop.client.errors import ClientError
from kop.mesh.spec import QueryPart, SinkPart, SourcePart
from kop.spark.given import Given
from kop.spark.listener import ProgressListener, track_progress
from kop.spark.mesh import table_sink
from kop.spark.mesh.error_texts import told
from kop.spark.mesh.part_options import Part, PartOptions
from kop.spark.mesh.part_rows import TABLE, from_rows, to_rows
from kop.spark.source import KopDataSource
from kop.spark.streams import write_stream
from kop.spark.tables import make_view

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
    those of the mesh. `listeners` are the sessions and listeners of queries that were started, by the name in Spark.
    """

    def __init__(
        self,
        spark: Any,
        kafka: Mapping[str, str],
        shared: Mapping[str, str],
        listeners: dict[str, tuple[Any, ProgressListener]],
    ) -> None:
        self._spark = spark
        self._kafka = dict(kafka)
        self._options = PartOptions(kafka, shared)
        self._listeners = listeners
        self._sinks: dict[str, Any] = {}
        """The last query of each sink that its format writes as a stream, by name."""

    def check(self, part: Part) -> None:
        """Raise ClientError if `format("kop")` has no option of a name that the mesh gives, or refuses the options of
        the part: one is unknown, has a wrong value, or does not fit another one.
        """
        self._options.check(part)

    def start(self, part: Part, *, checkpoint: str, trigger: Mapping[str, Any], name: str, group: str) -> Any:
        """Start the query of a part under the name `name` in Spark, with its checkpoint in the folder `checkpoint`;
        returns Spark's query. The offsets that a sink or a query has read are committed to the group `group`, so that
        users see its progress; a query that was started under that name before must have ended.

        ClientError if Spark does not take the SQL of a query, if that reads no topic, or if a sink's format does not
        take its columns; other errors of Spark as they are.
        """
        spark = _own_session(self._spark) if isinstance(part, QueryPart) else self._spark
        _make_active(spark)
        with suppress(PySparkException):  # PySpark 4.0 has it already
            spark.dataSource.register(KopDataSource)
        self._untrack(name)
        if not isinstance(part, SourcePart):
            listener = track_progress(spark, group=group, options=self._kafka, query_name=name)
            self._listeners[name] = spark, listener
        try:
            if isinstance(part, SinkPart):
                return self._sink(spark, part, checkpoint, trigger, name)
            frame = self._source(spark, part) if isinstance(part, SourcePart) else self._query(spark, part)
            mode = part.output_mode if isinstance(part, QueryPart) else "append"
            options = {**self._options.write(part), "exactlyOnceId": f"kop.mesh/{name}"}
            formats = (Given(options).value(option).lower() for option in ("valueFormat", "keyFormat"))
            rows = to_rows(frame, *formats)
            return write_stream(
                rows, options=options, checkpoint=checkpoint, output_mode=mode, trigger=dict(trigger), name=name
            )
        except Exception as error:
            self._untrack(name)
            if isinstance(part, QueryPart) and isinstance(error, AnalysisException):
                raise ClientError(f"{_remedy(part, str(error))}{told(str(error))}") from None
            raise

    def _untrack(self, name: str) -> None:
        if name in self._listeners:
            session, listener = self._listeners.pop(name)
            listener.close(session)

    # -- each kind

    def _source(self, spark: Any, part: SourcePart) -> Any:
        reader = spark.readStream.format(part.format).options(**part.options)
        if part.schema:
            reader = reader.schema(part.schema)
        return reader.load()

    def _query(self, spark: Any, part: QueryPart) -> Any:
        for table, options in self._options.reads(part).items():
            make_view(spark.readStream, table, options, part.views[table].watermark)
        frame = spark.sql(part.sql)
        if not frame.isStreaming:
            raise ClientError(f"let sql of the query {part.name} select from a topic: it is no stream")
        return frame

    def _sink(self, spark: Any, part: SinkPart, checkpoint: str, trigger: Mapping[str, Any], name: str) -> Any:
        (options,) = self._options.reads(part).values()
        read_rows = spark.readStream.format("kop").options(**options).load()
        rows = from_rows(read_rows, part)
        rows = table_sink.with_places(rows, read_rows, part) if part.format == TABLE else rows
        writer = rows.writeStream.queryName(name).option("checkpointLocation", checkpoint).trigger(**trigger)
        if part.format == TABLE:
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
            _make_active(batch.sparkSession)
            batch.write.format(part.format).options(**part.options).mode("append").save()

        return writer.foreachBatch(append).start()

    def _takes_streams(self, part: SinkPart) -> bool:
        """Return if a sink is to be written as a stream: False if the last query that wrote it so has failed because
        the sink's format takes batches alone, which formats in Python tell no sooner.
        """
        last = self._sinks.get(part.name)
        return last is None or not _is_without_streams(last.exception())


def _is_without_streams(error: object) -> bool:
    """Return if an error of Spark says that a format takes batches alone, no streams; False for None."""
    return any(text in str(error) for text in _NO_STREAMS)


def _make_active(spark: Any) -> None:
    """Make a session the active one of this thread: Spark looks for formats in Python there, and not in the session
    that a reader or a writer is of.
    """
    spark.createDataFrame([], "nothing INT")  # does so first of all


def _own_session(spark: Any) -> Any:
    """Return a new session of the same Spark, with the same settings and no views, so that a query has its own ones."""
    session = spark.newSession()
    for name, value in spark.conf.getAll.items():
        if spark.conf.isModifiable(name):
            session.conf.set(name, value)
    return session


def _remedy(part: QueryPart, error: str) -> str:
    """Return the words that are put before the text of Spark's error about a query's SQL: advice if the error is about
    watermarks or output modes, else only the query's name.
    """
    if not any(text in error for text in _OF_TIME):
        return f"query {part.name}: "
    table = next(iter(part.views))
    other = "update, or complete," if part.output_mode == "append" else "append"
    return (
        f"let outputMode of the query {part.name} be {other} or give a view a watermark, "
        f"views: {{{table}: {{watermark: timestamp 10 minutes}}}}, and group by its window: "
    )
