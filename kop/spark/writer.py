"""The writers of `format("kop")` as PySpark calls them, batch and stream, with Arrow where the version has it.

Owns: what crosses from the driver to the tasks, the connections that a worker process keeps, what a task is called.
Must not know: how rows are written (`kop.spark.producing`), the steps of an exactly-once task.

A writer is made on the driver, pickled, and run in the tasks. Nothing is to be done at commit and abort: a task's
records are durable, or its transaction has ended, when `write` returns.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyspark.sql.datasource as api
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from kop.allocator import keep_large_buffers
from kop.client.write_client import WriteClient
from kop.spark.arrow_types import arrow_type
from kop.spark.clients import naming_options, write_client
from kop.spark.exactly_once import SinkError, SinkTask, TaskTransactions, write_task
from kop.spark.producing import ClientTransactions, ProduceSettings, RowProducer
from kop.spark.sink_columns import SinkColumns
from kop.spark.write_options import ExactlyOnce, WriteOptions, write_options

if TYPE_CHECKING:
    import pyarrow as pa

    from kop.schemas.writing import WritePlan

QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"
"""The property of Spark that tells a task the number of its batch. Such names are not documented; a test holds them."""

HAS_ARROW_STREAMS: Final = hasattr(api, "DataSourceStreamArrowWriter")
"""True if this PySpark has Arrow writers of streams: from 4.1 on."""
_ArrowStreamBase: Any = getattr(api, "DataSourceStreamArrowWriter", DataSourceStreamWriter)


@dataclass
class Written(WriterCommitMessage):
    """The message of a finished task to the driver."""

    rows: int
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """The settings and columns of a write, pickled for its tasks."""

    options: WriteOptions
    columns: SinkColumns
    transactions: Callable[[WriteClient, SinkTask, ProduceSettings], TaskTransactions] = ClientTransactions
    """The function that makes the transactions through which an exactly-once task writes."""

    def batch(self, rows: Iterable[pa.RecordBatch]) -> Written:
        """Write the rows of a task of a batch query, and return the message for the driver: how many rows, and if an
        earlier attempt had written them. The rows are durable, or their transaction has ended, when this returns.
        """
        return self._write(rows, None, None)

    def stream(self, rows: Iterable[pa.RecordBatch]) -> Written:
        """Write the rows of a task of a streaming query, and return the message for the driver: how many rows, and if
        an earlier attempt had written them. For an exactly-once sink Spark has to tell the task the number of its
        batch, and the query's id unless exactlyOnceId is set; else SinkError.
        """
        context = _context()
        query, batch = context.getLocalProperty(QUERY_PROPERTY), context.getLocalProperty(BATCH_PROPERTY)
        return self._write(rows, query, None if batch is None else int(batch))

    def _write(self, rows: Iterable[pa.RecordBatch], query: str | None, batch: int | None) -> Written:
        wanted = self.options.exactly_once
        if wanted is None:
            return Written(_at_least_once(self.options, rows))
        task = _task(wanted, query, batch)
        with _connected(self.options) as connected:
            outcome = write_task(task, rows, self.transactions(connected.client, task, self.options.produce))
        return Written(outcome.rows, outcome.repeated)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "a writer runs in a task"
    return context


def _task(wanted: ExactlyOnce, query: str | None, batch: int | None) -> SinkTask:
    sink_id = wanted.sink_id or query
    number = batch if wanted.batch is None else wanted.batch
    if sink_id is None or number is None:
        raise SinkError(
            "this Spark does not tell a task its query and batch: write with kop.spark.write_stream(...) instead of "
            'format("kop")'
        )
    return SinkTask(sink_id, number, _context().partitionId(), wanted.tasks, wanted.first_batch)


# -- what a worker process keeps from task to task


class _Kept:
    """The connections of this process to one cluster, kept between tasks, and the producer of records that need no
    transaction.
    """

    def __init__(self, options: WriteOptions) -> None:
        self.client = write_client(options.connection.settings, options.patience)
        self.producer: RowProducer | None = None


_kept: dict[tuple[int, str], _Kept] = {}
"""The kept connections, by process and options: Spark forks its worker processes, and each runs one task at a time."""


@contextmanager
def _connected(options: WriteOptions) -> Iterator[_Kept]:
    """Yield the kept connections for a task. They are given up if it fails, since what they know may be wrong."""
    keep_large_buffers()
    key = os.getpid(), repr((options.connection.settings, options.patience, options.produce))
    if key not in _kept:
        _kept[key] = _Kept(options)
    try:
        yield _kept[key]
    except BaseException:
        _kept.pop(key).client.close()
        raise


def _at_least_once(options: WriteOptions, rows: Iterable[pa.RecordBatch]) -> int:
    """Write rows as an idempotent producer, and return how many there were. The producer, with its producer id, is kept
    for the next tasks of the process: brokers need not know one for each task. If a task fails, the connection and the
    producer are given up.
    """
    count = 0
    with _connected(options) as connected:
        for batch in rows:
            if connected.producer is None:
                with naming_options():
                    identity = connected.client.init_producer(None, options.produce.transaction_timeout_ms)
                connected.producer = RowProducer(connected.client, identity, options.produce)
            connected.producer.write(batch)
            count += batch.num_rows
    return count


# -- PySpark's classes


class BatchWriter(DataSourceArrowWriter):
    """The writer of a batch query, `df.write.format("kop")`."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task to topics, and return the message for the driver with their number. SinkError for a
        row that cannot be written.
        """
        return self._write.batch(map(self._write.columns.batch, iterator))

    def commit(self, messages: list[Any]) -> None:
        """Raise SinkError if the batch was written exactly once, and by another number of tasks than exactlyOnceTasks
        says. Nothing else is to be done: the records are durable already.
        """
        exactly_once = self._write.options.exactly_once
        _check_tasks(exactly_once, messages, 0 if exactly_once is None else exactly_once.batch or 0)


class _StreamEnd:
    """The end of a stream's batch, after all its tasks, for both writers of streams."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def commit(self, messages: list[Any], batchId: int) -> None:
        """Raise SinkError if the batch was written exactly once, and by another number of tasks than exactlyOnceTasks
        says. Nothing else is to be done: the records are durable already.
        """
        _check_tasks(self._write.options.exactly_once, messages, batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Do nothing: a transaction that did not end is aborted by the next attempt, or by its timeout."""


class ArrowStreamWriter(_StreamEnd, _ArrowStreamBase):
    """The writer of a streaming query, `df.writeStream.format("kop")`, from PySpark 4.1 on."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task, which come as Arrow batches, and return the message for the driver with their
        number. SinkError for a row that cannot be written.
        """
        return self._write.stream(map(self._write.columns.batch, iterator))


class RowStreamWriter(_StreamEnd, DataSourceStreamWriter):
    """The writer of a streaming query, `df.writeStream.format("kop")`, with PySpark 4.0, which gives one row after the
    other.
    """

    def write(self, iterator: Iterator[Any]) -> Written:
        """Write the rows of a task, which come one by one, and return the message for the driver with their number.
        SinkError for a row that cannot be written.
        """
        return self._write.stream(self._write.columns.batches(iterator))


def _check_tasks(wanted: ExactlyOnce | None, messages: list[Any], batch: int) -> None:
    """Raise SinkError for an exactly-once batch that was written by another number of tasks, one of `messages` each,
    than `wanted` says: the next batch might have more, with rows in other tasks. None for `wanted` is no exactly-once
    sink.

    A task is not told how many others there are, so this is found out when the batch is written.
    """
    if wanted is not None and len(messages) != wanted.tasks:
        raise SinkError(
            f"write df.repartition({wanted.tasks}, column), and set spark.sql.adaptive.enabled to false if it still "
            f"has fewer: the batch was written by {len(messages)} tasks, and exactlyOnceTasks says {wanted.tasks}. Its "
            f"rows are in the topic already, under markers that do not fit {wanted.tasks} tasks: delete them, or have "
            f"them twice, and write it again with another exactlyOnceId and exactlyOnceFrom={batch}."
        )


def make_write(options: Mapping[str, str], schema: Any, *, streaming: bool) -> Write:
    """Return the settings and columns that the tasks of a write need; for columns with formats, schema registries are
    asked. OptionError or SinkError says what is wrong.
    """
    made = write_options(options, streaming=streaming)
    fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    return Write(made, SinkColumns.of(fields, made.topic, _plans(made, schema)))


def _plans(options: WriteOptions, schema: Any) -> dict[str, WritePlan]:
    """Return, by column, how the columns that have formats are encoded; see `plan_writes`. OptionError if a column has
    no usable schema.
    """
    if options.formats is None:
        return {}
    from kop.spark.typed_columns import plan_writes  # noqa: PLC0415 (a module that takes pyarrow along)

    kinds = {
        field.name.lower(): arrow_type(field.dataType)
        for field in schema.fields
        if field.name.lower() in options.formats.columns
    }
    return plan_writes(options, kinds)


def make_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> BatchWriter:
    """Return the writer of a batch query; OptionError or SinkError says what is wrong. SinkError also for `overwrite`,
    since a topic cannot be overwritten.
    """
    if overwrite:
        raise SinkError('write with .mode("append"): a topic cannot be overwritten')
    return BatchWriter(make_write(options, schema, streaming=False))


def make_stream_writer(options: Mapping[str, str], schema: Any, overwrite: bool) -> Any:
    """Return the writer of a streaming query; OptionError or SinkError says what is wrong. `overwrite` is complete
    mode, in which the rows of each batch are written behind those of the last one.
    """
    write = make_write(options, schema, streaming=True)
    if write.columns.plans and not HAS_ARROW_STREAMS:
        raise SinkError("write with kop.spark.write_stream(...), or PySpark 4.1: before, a sink gets no typed columns")
    return ArrowStreamWriter(write) if HAS_ARROW_STREAMS else RowStreamWriter(write)
