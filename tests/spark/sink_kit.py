"""Attempts of tasks of a sink, which may be given up between any two steps, and what consumers see afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, Self

import pyarrow as pa
from kafka import KafkaConsumer, TopicPartition
from support.waiting import wait_until

from kop.client.offsets import LATEST
from kop.client.read_client import ReadClient
from kop.client.write_client import WriteClient
from kop.spark.exactly_once import SinkTask, TaskOutcome, write_task
from kop.spark.producing import ClientTransactions, ProduceSettings
from kop.spark.sink_columns import SinkColumns


class GivenUpError(Exception):
    """The attempt died here."""


class GivenUp:
    """Transactions of an attempt that dies before or after one of its steps, or in the middle of its rows."""

    def __init__(self, transactions: ClientTransactions, point: str) -> None:
        self._of = transactions
        self._point = point

    def _at(self, point: str) -> None:
        if point == self._point:
            raise GivenUpError(point)

    def fence(self) -> None:
        self._at("before fence")
        self._of.fence()
        self._at("after fence")

    def read_markers(self) -> Mapping[int, tuple[int, str]]:
        markers = self._of.read_markers()
        self._at("after markers")
        return markers

    def produce(self, rows: Iterable[pa.RecordBatch]) -> None:
        def some() -> Iterator[pa.RecordBatch]:
            for batch in rows:
                yield batch
                self._at("amid produce")

        self._of.produce(some())
        self._at("after produce")

    def commit_marker(self, offset: int, metadata: str) -> None:
        self._of.commit_marker(offset, metadata)
        self._at("after commit")

    def end(self) -> None:
        self._of.end()
        self._at("after end")


POINTS = ("before fence", "after fence", "after markers", "amid produce", "after produce", "after commit", "after end")


class Sink:
    """A sink of a topic: each attempt of a task has a client of its own, as each has a worker process of its own."""

    def __init__(self, bootstrap: str, name: str, topic: str, tasks: int = 2) -> None:
        self.bootstrap, self.name, self.topic, self.tasks = bootstrap, name, topic, tasks
        self._stack = ExitStack()

    def client(self) -> WriteClient:
        made = WriteClient({"bootstrap_servers": [self.bootstrap], "client_id": "test"}, 20.0)
        self._stack.callback(made.close)
        return made

    def write(
        self,
        batch: int,
        task: int,
        rows: Iterable[pa.RecordBatch],
        *,
        give_up: str = "",
        client: WriteClient | None = None,
        **more: Any,
    ) -> TaskOutcome:
        """One attempt of a task; GivenUpError where it dies."""
        described = SinkTask(self.name, batch, task, more.pop("tasks", self.tasks), **more)
        made = ClientTransactions(client or self.client(), described, ProduceSettings())
        return write_task(described, rows, GivenUp(made, give_up) if give_up else made)

    def rows(self, values: Sequence[str], size: int = 3) -> list[pa.RecordBatch]:
        """Rows with these values, also their keys, in batches of `size`."""
        columns = SinkColumns.of([("key", "string"), ("value", "string")], self.topic)
        parts = [list(values[start : start + size]) for start in range(0, len(values), size)]
        return [columns.batch(pa.record_batch({"key": part, "value": part})) for part in parts]

    def committed(self) -> list[str]:
        """What a consumer with read_committed gets, sorted, once no transaction is open.

        The end of a transaction is answered when it is decided: what readers need of it comes a moment later.
        """
        with closing(ReadClient({"bootstrap_servers": [self.bootstrap]}, 20_000)) as client:
            topic = client.topics({self.topic})[self.topic]
            ends = {(self.topic, partition): LATEST for partition in topic.leaders}
            wait_until(lambda: client.list_offsets(ends, 1) == client.list_offsets(ends, 0), "all transactions end")
        return sorted(value for value, *_ in read(self.bootstrap, self.topic, "read_committed"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def read(bootstrap: str, topic: str, isolation: str = "read_uncommitted") -> list[tuple[str, Any]]:
    """The value and the whole record of each row of a topic, up to what `isolation` lets a consumer see."""
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level=isolation, auto_offset_reset="earliest", enable_auto_commit=False
    )
    with consumer:
        places = [TopicPartition(topic, partition) for partition in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(places)
        ends = consumer.end_offsets(places)
        rows = []
        while any(consumer.position(place) < ends[place] for place in places):
            for records in consumer.poll(timeout_ms=200).values():
                rows += [((record.value or b"").decode(), record) for record in records]
        return rows
