"""What a reader asks the servers: many partitions by one request, and what is done where one of them fails."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaAdminClient, errors
from kafka.protocol.consumer import ListOffsetsRequest

from kop.client import connection
from kop.client.batches import StoredRecords
from kop.client.connection import ClusterConnection
from kop.client.errors import UnreachableError
from kop.client.offsets import EARLIEST, LATEST, TopicPartition
from kop.client.read_client import Fetched, FetchRequest, FetchSettings, ReadClient
from kop.testing import Broker, Cluster, KafkaRecord

_numbers = itertools.count()
SOON = FetchSettings(wait_ms=10)


@pytest.fixture
def broker(kop_shared_broker: Broker) -> Broker:
    return kop_shared_broker


@pytest.fixture
def client(broker: Broker) -> Iterator[ReadClient]:
    with closing(ReadClient({"bootstrap_servers": [broker.bootstrap]}, 20_000)) as made:
        yield made


@pytest.fixture
def name(broker: Broker) -> str:
    """A topic of one partition."""
    name = f"read-{next(_numbers)}"
    broker.create_topic(name)
    return name


def values(answer: Fetched | Exception, place: TopicPartition, start: int = 0) -> list[bytes | None]:
    assert isinstance(answer, Fetched), answer
    return [record[3] for records in StoredRecords(answer, place, start) for record in records]


# -- many partitions


def test_many_partitions_by_one_request(broker: Broker, client: ReadClient, name: str) -> None:
    other = f"{name}-other"
    broker.create_topic(other, partitions=3)
    broker.produce(name, [b"a", b"b"])
    for partition in range(2):
        broker.produce(other, [KafkaRecord(b"%d" % partition, partition=partition)])
    offsets = {(name, 0): 1, (other, 0): 0, (other, 1): 0, (other, 2): 0}
    ids = {topic: described.topic_id or "" for topic, described in client.topics({name, other}).items()}
    for known in ({}, ids):
        client_id = f"reader-{next(_numbers)}"
        with closing(ReadClient({"bootstrap_servers": [broker.bootstrap], "client_id": client_id}, 20_000)) as reader:
            answers = reader.fetch_many(offsets, SOON, known)
        assert [seen.api for seen in broker.requests() if seen.client_id == client_id].count("Fetch") == 1
        got = {place: values(answer, place, offsets[place]) for place, answer in answers.items()}
        assert got == {(name, 0): [b"b"], (other, 0): [b"0"], (other, 1): [b"1"], (other, 2): []}
    assert client.fetch_many({}, SOON) == {}


def test_a_partition_that_fails_does_not_hold_up_the_others(broker: Broker, client: ReadClient, name: str) -> None:
    broker.produce(name, [b"a"])
    answers = client.fetch_many({(name, 0): 0, ("not-there", 0): 0}, SOON)
    assert values(answers[name, 0], (name, 0)) == [b"a"]
    assert isinstance(answers["not-there", 0], errors.UnknownTopicOrPartitionError)
    other = f"{name}-other"
    broker.create_topic(other)
    answers = client.fetch_many({(name, 0): 0, (other, 0): 7}, SOON)
    assert values(answers[name, 0], (name, 0)) == [b"a"]
    assert isinstance(answers[other, 0], errors.OffsetOutOfRangeError)


def test_partitions_that_all_fail_for_a_time_are_asked_for_again(broker: Broker, client: ReadClient, name: str) -> None:
    broker.produce(name, [b"a"])
    broker.fail("Fetch", "NOT_LEADER_OR_FOLLOWER", times=2)
    assert values(client.fetch_many({(name, 0): 0}, SOON)[name, 0], (name, 0)) == [b"a"]


def test_an_answer_with_room_for_one_partition_gives_each_its_turn(
    broker: Broker, client: ReadClient, name: str
) -> None:
    other = f"{name}-other"
    broker.create_topic(other)
    for topic in (name, other):
        broker.produce(topic, [b"x" * 10_000])
    small = FetchSettings(wait_ms=10, max_bytes=1, partition_bytes=1)
    offsets = {(name, 0): 0, (other, 0): 0}
    answers = [client.fetch_many(offsets, small) for _ in range(2)]
    seen = [place for of_call in answers for place, answer in of_call.items() if values(answer, place)]
    assert sorted(seen) == sorted(offsets)


def test_a_topic_that_was_made_again_is_another_one(
    broker: Broker, client: ReadClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.produce(name, [b"old"])
    old = client.topics({name})[name].topic_id
    assert old is not None
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.delete_topics([name])
        admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    broker.produce(name, [b"new"])
    monkeypatch.setattr(connection, "SETTLE_SECONDS", 0.1)
    with pytest.raises(errors.UnknownTopicIdError):
        client.fetch_many({(name, 0): 0}, SOON, {name: old})
    assert values(client.fetch_many({(name, 0): 0}, SOON)[name, 0], (name, 0)) == [b"new"]


@pytest.mark.kop(brokers=2)
def test_partitions_of_several_leaders(kop_cluster: Cluster) -> None:
    count = 20  # which broker leads one is chance
    kop_cluster.brokers[0].create_topic("t", partitions=count)
    kop_cluster.brokers[0].produce("t", [KafkaRecord(b"%d" % at, partition=at) for at in range(count)])
    offsets = dict.fromkeys((("t", at) for at in range(count)), 0)
    with closing(ReadClient({"bootstrap_servers": kop_cluster.bootstrap.split(",")}, 20_000)) as client:
        answers = client.fetch_many(offsets, SOON)
        assert {place: values(answer, place) for place, answer in answers.items()} == {
            ("t", at): [b"%d" % at] for at in range(count)
        }


# -- one partition


def test_servers_that_do_not_answer_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(UnreachableError, match=rf"^set bootstrap\.servers to .*127\.0\.0\.1:{port}"):
            ReadClient({"bootstrap_servers": [f"127.0.0.1:{port}"]}, 300)


def test_sizes_of_logs(broker: Broker, client: ReadClient, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = (name, 0)
    empty = client.log_sizes([place])[place]
    broker.produce(name, [b"x" * 5000])
    assert client.log_sizes([place])[place] >= empty + 5000
    monkeypatch.setattr(connection, "SETTLE_SECONDS", 0.2)
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        client.log_sizes([("not-there", 0)])


def test_a_partition_that_a_client_does_not_know_yet_is_looked_for(
    broker: Broker, client: ReadClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker keeps its client from batch to batch, and the driver alone looks for new partitions."""
    assert list(client.topics({name})[name].leaders) == [0]
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_partitions({name: 2})
    place = (name, 1)
    assert client.list_offsets({place: LATEST}, 0) == {place: 0}
    monkeypatch.setattr(connection, "SETTLE_SECONDS", 0.2)
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        client.list_offsets({(name, 2): LATEST}, 0)


def test_a_partition_that_its_leader_has_not_heard_of_yet_is_asked_for_again(
    broker: Broker, client: ReadClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another gateway made it, and names the leader already."""
    broker.produce(name, [b"a"])
    real = ClusterConnection.send
    answers = 0

    def send(self: ClusterConnection, request: Any, node: int | None = None) -> Any:
        nonlocal answers
        answer = real(self, request, node)
        if isinstance(request, ListOffsetsRequest):
            answers += 1
            if answers <= 3:
                answer.topics[0].partitions[0].error_code = errors.UnknownTopicOrPartitionError.errno
        return answer

    monkeypatch.setattr(ClusterConnection, "send", send)
    place = (name, 0)
    assert client.list_offsets({place: LATEST}, 0) == {place: 1}
    assert answers == 4


def test_a_topic_that_metadata_does_not_have_yet_is_asked_for_again(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker asks another gateway than the driver did."""
    broker.produce(name, [b"a"])
    real = ClusterConnection.metadata
    answers = 0

    def metadata(self: ClusterConnection, names: Collection[str] | None, *, make: bool = False) -> list[Any]:
        nonlocal answers
        described = real(self, names, make=make)
        answers += 1
        return described if answers > 3 else []

    place = (name, 0)
    asking: list[Callable[[ReadClient], object]] = [
        lambda client: client.list_offsets({place: LATEST}, 0),
        lambda client: client.log_sizes([place]),
        lambda client: client.fetch(place, None, 0, SOON).records,
    ]
    monkeypatch.setattr(ClusterConnection, "metadata", metadata)
    monkeypatch.setattr(connection, "SETTLE_SECONDS", 20.0)
    for ask in asking:
        with closing(ReadClient({"bootstrap_servers": [broker.bootstrap]}, 20_000)) as new:
            answers = 0
            assert ask(new)
            assert answers > 3


def test_the_server_of_the_own_rack_is_asked_where_the_leader_names_one(
    broker: Broker, client: ReadClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-392: a leader that has a replica in the client's rack names it, and gives no records."""
    broker.produce(name, [b"a"])
    real = ClusterConnection.send_all
    asked: list[str] = []

    def send_all(self: ClusterConnection, requests: Iterable[tuple[int | None, Any]]) -> list[Any]:
        requests = list(requests)
        answers = real(self, requests)
        for (node, request), answer in zip(requests, answers, strict=True):
            if isinstance(request, FetchRequest):
                asked.append(request.rack_id)
                if len(asked) == 1:
                    (partition,) = answer.responses[0].partitions
                    partition.records, partition.preferred_read_replica = None, node
        return answers

    monkeypatch.setattr(ClusterConnection, "send_all", send_all)
    settings = FetchSettings(rack="near", wait_ms=10)
    assert client.fetch((name, 0), None, 0, settings).records
    assert asked == ["near", "near"]


def test_an_answer_without_records_for_a_quota_is_asked_again(
    broker: Broker, client: ReadClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka answers a Fetch beyond a quota at once, with no topic in it."""
    broker.produce(name, [b"a"])
    real = ClusterConnection.send_all
    throttled = iter([True, False])

    def send_all(self: ClusterConnection, requests: Iterable[tuple[int | None, Any]]) -> list[Any]:
        requests = list(requests)
        answers = real(self, requests)
        for (_, request), answer in zip(requests, answers, strict=True):
            if isinstance(request, FetchRequest) and next(throttled):
                answer.responses.clear()
        return answers

    monkeypatch.setattr(ClusterConnection, "send_all", send_all)
    assert client.fetch((name, 0), None, 0, SOON).records


def test_times_are_found(broker: Broker, client: ReadClient, name: str) -> None:
    broker.produce(name, [b"1"])
    place = (name, 0)
    assert client.list_offsets({place: 1}, 0) == {place: 0}
    assert client.list_offsets({place: 2**62}, 0) == {place: -1}
    assert client.list_offsets({place: EARLIEST}, 1) == {place: 0}
