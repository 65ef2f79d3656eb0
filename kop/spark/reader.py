"""The readers that PySpark calls: the one of a batch, and those of a stream for its old and new versions.

Owns: what each call of Spark means, and the one connection of each worker process.
Must not know: how options are written, how records are decoded.

Spark makes a reader in the driver and pickles it, so it holds its options alone; `read` runs in executors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from kafka import errors
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from kop.allocator import keep_large_buffers
from kop.client.properties import ConnectionProperties
from kop.client.read_client import ReadClient
from kop.spark.clients import read_client
from kop.spark.fetching import ReadSettings, read_range
from kop.spark.offsets import OffsetDict, from_dict, to_dict
from kop.spark.options import ReadOptions
from kop.spark.planning import OffsetRange, split
from kop.spark.stream_state import StreamState
from kop.spark.subscription import find_ranges

if TYPE_CHECKING:
    import pyarrow as pa

_clients: dict[str, ReadClient] = {}
"""The clients of this process, by their settings: Spark reuses a worker process for many tasks, one after the other."""


def client_of_process(connection: ConnectionProperties) -> ReadClient:
    """Return the connected client of this worker process for these options; it is made by the first call, and kept."""
    key = repr(connection)
    if key not in _clients:
        _clients[key] = read_client(connection.settings, connection.patience_ms)
    return _clients[key]


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """A task of a read in Spark's terms, with the range of offsets that it reads."""

    value: OffsetRange


def read_settings(options: ReadOptions, *, schema_versions: bool = False) -> ReadSettings:
    """Return the settings that a task needs, by the options of the read. With `schema_versions` the rows get the column
    `schemaVersion`. Headers are read for a decoder too, which gets them even if the rows do not keep them.
    """
    return ReadSettings(
        replace(options.fetch, schemas=schema_versions),
        options.include_headers or options.decoder is not None,
        options.fail_on_data_loss,
        options.poll_timeout_ms,
        options.event_times,
    )


class RowMaker(Protocol):
    """A maker of the rows of a task out of its records; it may keep what it knows from one batch to the next."""

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that a batch of records becomes, one for each record. RecordDecodeError for a bad record,
        unless bad records are to be null.
        """


class Columns(Protocol):
    """A maker of columns that are no bytes: a decoder or the plan of typed columns, pickled for the tasks."""

    @property
    def schema_versions(self) -> bool:
        """True if the batches have to have the column of the versions of Pulsar's schemas."""

    def make(self) -> RowMaker:
        """Return the object that turns batches of records into rows, for one task."""


def read_task(
    options: ReadOptions, columns: Columns | None, partition: InputPartition | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task as batches; none for a task without a range, which Spark 4.3 and later gives as a
    partition without a value. Large buffers of the process are kept for reuse from then on. After an error of Kafka the
    process's connection is closed and forgotten, and the error raised.
    """
    if partition is None or partition.value is None:
        return
    keep_large_buffers()
    maker = None if columns is None else columns.make()
    settings = read_settings(options, schema_versions=columns is not None and columns.schema_versions)
    client = client_of_process(options.connection)
    try:
        for batch in read_range(client, partition.value, settings):
            made = batch if maker is None else maker.add(batch)
            with_headers = options.include_headers or "headers" not in made.schema.names
            yield made if with_headers else made.drop_columns(["headers"])
    except errors.KafkaError:
        _clients.pop(repr(options.connection)).close()  # the task's next attempt makes a connection
        raise


def as_tasks(options: ReadOptions, ranges: list[OffsetRange]) -> list[RangePartition]:
    """Return the tasks that Spark runs for these ranges of offsets, cut by minPartitions and maxRecordsPerPartition."""
    return [RangePartition(r) for r in split(ranges, options.min_partitions, options.max_records_per_partition)]


class KopBatchReader(DataSourceReader):
    """The reader of a batch query: a read of the records that exist when Spark plans it."""

    def __init__(self, options: ReadOptions, columns: Columns | None = None) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[RangePartition]:
        """Return the tasks of the read, from its starting offsets to its ending ones as they are now; the servers are
        asked. Errors are those of `find_ranges`.
        """
        return as_tasks(self._options, find_ranges(client_of_process(self._options.connection), self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows that a task of a batch query reads, as batches that are read while they are taken."""
        return read_task(self._options, self._columns, partition)


class KopStreamReader(DataSourceStreamReader):
    """The reader of a stream without `latestOffset`, which differs between versions of PySpark."""

    def __init__(self, options: ReadOptions, columns: Columns | None = None) -> None:
        self.options = options
        self._columns = columns
        self._state: StreamState | None = None

    @property
    def stream(self) -> StreamState:
        """The state of the streaming query, made when it is first asked for; it exists in the driver only."""
        if self._state is None:
            self._state = StreamState(client_of_process(self.options.connection), self.options)
        return self._state

    def initialOffset(self) -> OffsetDict:
        """Return the offsets at which a new query starts, the same in each call."""
        return to_dict(self.stream.initial())

    def partitions(self, start: OffsetDict, end: OffsetDict) -> list[RangePartition]:
        """Return the tasks of a batch, which reads from the offsets `start` up to `end`, without those of `end`.
        DataLossError if records between them are gone, unless failOnDataLoss is off.
        """
        return as_tasks(self.options, self.stream.ranges(from_dict(start), from_dict(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows that a task of a streaming query reads, as batches that are read while they are taken."""
        return read_task(self.options, self._columns, partition)


class KopPlainStreamReader(KopStreamReader):
    """A stream for PySpark 4.0 and 4.1, whose `latestOffset` has no arguments.

    For a new query Spark calls `latestOffset` and then `initialOffset` there. For one that goes on from its checkpoint
    it calls `partitions(committed, committed)` first, which tells where the query stands.
    """

    def latestOffset(self) -> OffsetDict:
        """Return the offsets at which the next batch ends; the batch begins where the one before has ended."""
        return to_dict(self.stream.next_end())
