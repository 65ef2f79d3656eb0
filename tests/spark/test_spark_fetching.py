"""A task reads its range to the end, whatever lies at the end, and says when records of it are gone."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from support.waiting import wait_until

from kop.client.offsets import LATEST
from kop.client.read_client import Fetched, ReadClient
from kop.records.arrow import UnreadableRecordsError
from kop.spark.fetching import EventTimeError, ReadSettings, read_range
from kop.spark.options import batch_options
from kop.spark.planning import DataLossError, OffsetRange
from kop.spark.subscription import find_partitions
from kop.testing.broker import Broker

_numbers = itertools.count()


class Topic:
    """A topic of one partition, and what a reader of it needs."""

    def __init__(self, broker: Broker, client: ReadClient) -> None:
        self.name = f"fetched-{next(_numbers)}"
        self.bootstrap = broker.bootstrap
        self.client = client
        broker.create_topic(self.name)

    def send(self, *values: bytes, **config: Any) -> None:
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, linger_ms=20, **config)
        try:
            for value in values:
                producer.send(self.name, value, b"k", partition=0)
            producer.flush()
        finally:
            producer.close()

    def in_a_transaction(self, *values: bytes, commit: bool) -> None:
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, transactional_id=f"tx-{self.name}-{next(_numbers)}")
        try:
            producer.init_transactions()
            producer.begin_transaction()
            for value in values:
                producer.send(self.name, value, partition=0)
            producer.flush()
            (producer.commit_transaction if commit else producer.abort_transaction)()
        finally:
            producer.close()

    def admin(self) -> KafkaAdminClient:
        return KafkaAdminClient(bootstrap_servers=self.bootstrap)

    def end(self, isolation: int = 0) -> int:
        return self.client.list_offsets({(self.name, 0): LATEST}, isolation)[self.name, 0]

    def topic_id(self) -> str | None:
        return self.client.topics({self.name})[self.name].topic_id

    def read(
        self, start: int = 0, end: int | None = None, fail: bool = True, **options: str
    ) -> list[tuple[int, bytes]]:
        said = {f"kafka.{name.replace('_', '.')}": value for name, value in options.items()}
        made = batch_options({"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.name} | said)
        settings = ReadSettings(made.fetch, headers=False, fail_on_data_loss=fail, poll_timeout_ms=1000)
        stop = self.end(made.fetch.isolation) if end is None else end
        batches = read_range(self.client, OffsetRange(self.name, self.topic_id(), 0, start, stop), settings)
        return [(row["offset"], row["value"]) for batch in batches for row in batch.to_pylist()]


@pytest.fixture
def client(kop_shared_broker: Broker) -> Iterator[ReadClient]:
    made = ReadClient({"bootstrap_servers": [kop_shared_broker.bootstrap]}, 20_000)
    yield made
    made.close()


@pytest.fixture
def topic(kop_shared_broker: Broker, client: ReadClient) -> Topic:
    return Topic(kop_shared_broker, client)


def test_a_range_is_read_from_within_batches(topic: Topic) -> None:
    topic.send(*(b"%d" % i for i in range(100)), compression_type="gzip", batch_size=1 << 20)
    assert topic.read() == [(i, b"%d" % i) for i in range(100)]
    assert topic.read(13, 57) == [(i, b"%d" % i) for i in range(13, 57)]
    assert topic.read(5, 5) == []


def test_a_range_is_read_in_pieces_that_are_smaller_than_a_batch(topic: Topic) -> None:
    for part in range(0, 50, 10):
        topic.send(*(b"x" * 1000 + b"%d" % i for i in range(part, part + 10)), batch_size=1 << 20)
    rows = topic.read(max_partition_fetch_bytes="100", fetch_max_bytes="100")
    assert [offset for offset, _ in rows] == list(range(50))


@pytest.mark.parametrize("commit", [True, False])
def test_a_log_that_ends_in_a_transaction_is_read_to_its_end(topic: Topic, commit: bool) -> None:
    """The last offset is the marker of the transaction: no record comes, and the range is over."""
    topic.send(b"before")
    topic.in_a_transaction(b"a", b"b", commit=commit)
    wait_until(lambda: topic.end() == 4, "the marker, which comes behind the answer to the end of the transaction")
    assert [value for _, value in topic.read()] == [b"before", b"a", b"b"]
    expected = [b"before", b"a", b"b"] if commit else [b"before"]
    assert [value for _, value in topic.read(isolation_level="read_committed")] == expected
    assert topic.read(1, 4, isolation_level="read_committed") == ([(1, b"a"), (2, b"b")] if commit else [])
    assert topic.read(3, 4) == []


def test_records_that_were_deleted_are_lost(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    topic.send(*(b"%d" % i for i in range(10)))
    with topic.admin() as admin:
        admin.delete_records({TopicPartition(topic.name, 0): 6})
    with pytest.raises(DataLossError, match=r"set failOnDataLoss to false.*begins at offset 6 now, 2 is out of range"):
        topic.read(2)
    with caplog.at_level(logging.WARNING):
        assert [offset for offset, _ in topic.read(2, fail=False)] == [6, 7, 8, 9]
        assert topic.read(2, 5, fail=False) == []
    assert "some data may have been lost" in caplog.text


def test_a_range_beyond_the_end_is_lost(topic: Topic) -> None:
    topic.send(b"1", b"2")
    with pytest.raises(DataLossError, match="gave nothing at offset 2 for 1000 ms"):
        topic.read(0, 5)
    with pytest.raises(DataLossError, match="ends before offset 4, 5 was its end"):
        topic.read(4, 5)
    assert topic.read(0, 5, fail=False) == [(0, b"1"), (1, b"2")]


def test_a_topic_that_was_made_again_is_not_read_in_the_place_of_the_old_one(topic: Topic) -> None:
    topic.send(b"old")
    old = OffsetRange(topic.name, topic.topic_id(), 0, 0, 1)
    with topic.admin() as admin:
        admin.delete_topics([topic.name])
        admin.create_topics({topic.name: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    topic.send(b"new")
    made = batch_options({"kafka.bootstrap.servers": topic.bootstrap, "subscribe": topic.name})
    with pytest.raises(DataLossError, match="was deleted, or made again"):
        list(read_range(topic.client, old, ReadSettings(made.fetch, False, True, 1000)))
    assert list(read_range(topic.client, old, ReadSettings(made.fetch, False, False, 1000))) == []
    assert topic.read() == [(0, b"new")]


def test_rows_of_other_times_are_left_out(topic: Topic) -> None:
    """The times of events do not ascend."""
    times = [30, 10, 50, 20, 40]
    with KafkaProducer(bootstrap_servers=topic.bootstrap) as producer:
        for time in times:
            producer.send(topic.name, b"%d" % time, partition=0, timestamp_ms=time)
    made = batch_options({"kafka.bootstrap.servers": topic.bootstrap, "subscribe": topic.name})
    wanted = OffsetRange(topic.name, None, 0, 0, 5)

    def times_between(*bounds: int | None) -> list[int]:
        settings = ReadSettings(made.fetch, False, True, 1000, event_times=(bounds[0], bounds[1]))
        return [int(row["value"]) for batch in read_range(topic.client, wanted, settings) for row in batch.to_pylist()]

    assert times_between(None, None) == times
    assert times_between(20, None) == [30, 50, 20, 40]
    assert times_between(None, 40) == [30, 10, 20]
    assert times_between(20, 41) == [30, 20, 40]
    assert times_between(60, None) == []


def test_a_time_of_the_server_is_none_of_an_event(topic: Topic) -> None:
    name = f"{topic.name}-appended"
    with topic.admin() as admin:
        configs = {"message.timestamp.type": "LogAppendTime"}
        admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1, "configs": configs}})
    with KafkaProducer(bootstrap_servers=topic.bootstrap) as producer:
        producer.send(name, b"x").get(10)
    made = batch_options({"kafka.bootstrap.servers": topic.bootstrap, "subscribe": name})
    settings = ReadSettings(made.fetch, False, True, 1000, event_times=(5, None))
    with pytest.raises(EventTimeError, match=f"set startingTimestamp.*records of {name} have the time of the server"):
        list(read_range(topic.client, OffsetRange(name, None, 0, 0, 1), settings))


def test_records_that_cannot_be_read_are_named_with_what_to_do(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    topic.send(b"a")
    topic.send(b"b")
    real = ReadClient.fetch

    def fetch(*asked: Any) -> Fetched:
        answer = real(*asked)
        return dataclasses.replace(answer, records=answer.records[:-1] + b"!")

    monkeypatch.setattr(ReadClient, "fetch", fetch)
    with pytest.raises(UnreadableRecordsError, match=rf"end the read before offset 1 by.*{topic.name}-0 at offset 1"):
        topic.read(0, 2)


def test_asking_for_a_topic_makes_none(topic: Topic) -> None:
    assert topic.client.topics({"not-there"}) == {}
    assert "not-there" not in topic.client.topics(None)
    said = batch_options({"kafka.bootstrap.servers": topic.bootstrap, "subscribe": f"{topic.name}-partition-0"})
    assert list(find_partitions(topic.client, said)) == [(topic.name, 0)]
