"""What a writer asks the servers: transactions of records and offsets, topics, and what their errors tell the user."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from kafka import errors
from support.waiting import wait_until

from kop.client.batches import build
from kop.client.errors import ClientError, FencedError, NotAllowedError, NoTransactionsError
from kop.client.offsets import TopicPartition
from kop.client.write_client import Identity, WriteClient
from kop.testing import Broker

_numbers = itertools.count()


@pytest.fixture
def client(kop_shared_broker: Broker) -> Iterator[WriteClient]:
    with closing(client_of(kop_shared_broker)) as made:
        yield made


@pytest.fixture
def name() -> str:
    return f"written-{next(_numbers)}"


def client_of(broker: Broker, patience: float = 20.0) -> WriteClient:
    return WriteClient({"bootstrap_servers": [broker.bootstrap], "client_id": "test"}, patience)


def write(client: WriteClient, producer: Identity, place: TopicPartition, *values: bytes, sequence: int = 0) -> None:
    for batch, _ in build([(None, value, (), None) for value in values], producer, sequence, now=1):
        client.produce(producer, {place: batch})


def batches(producer: Identity, count: int, sequence: int = 0) -> list[bytearray]:
    """So many batches of one record each."""
    made = [build([(None, b"%d" % number, (), None)], producer, number, now=1) for number in range(sequence, count)]
    return [batch for some in made for batch, _ in some]


def committed_values(broker: Broker, topic: str) -> list[bytes | None]:
    return [record.value for record in broker.records(topic, isolation_level="read_committed")]


def test_a_transaction_commits_records_and_offsets_of_several_partitions(
    kop_shared_broker: Broker, client: WriteClient, name: str
) -> None:
    topics = [f"{name}-in-{number}" for number in range(2)]
    for topic in (name, *topics):
        kop_shared_broker.create_topic(topic, partitions=2)
    offsets = {(topics[0], 0): 5, (topics[0], 1): 7, (topics[1], 1): 9}
    producer = client.init_producer(name, 60_000)
    client.add_partitions(producer, [(name, 0)])
    write(client, producer, (name, 0), b"a", b"b")
    client.commit_in_transaction(producer, "g", offsets, "why")
    assert kop_shared_broker.committed("g") == {}
    client.end_transaction(producer)
    places = [*offsets, (topics[1], 0)]
    assert client.committed("g", places) == {place: (offset, "why") for place, offset in offsets.items()}
    wait_until(lambda: committed_values(kop_shared_broker, name) == [b"a", b"b"], "the end of the transaction")


def test_a_transaction_that_is_aborted_leaves_nothing(
    kop_shared_broker: Broker, client: WriteClient, name: str
) -> None:
    kop_shared_broker.create_topic(name)
    producer = client.init_producer(name, 60_000)
    group = f"group-{name}"
    for sequence, commit in enumerate((False, True)):
        client.add_partitions(producer, [(name, 0)])
        write(client, producer, (name, 0), b"%d" % commit, sequence=sequence)
        client.commit_in_transaction(producer, group, {(name, 0): 3 + commit})
        client.end_transaction(producer, commit=commit)
    assert client.committed(group, [(name, 0)]) == {(name, 0): (4, "")}
    wait_until(lambda: committed_values(kop_shared_broker, name) == [b"1"], "the end of the transaction")


def test_offsets_of_a_transaction_that_is_open_are_waited_for_or_left_out(
    kop_shared_broker: Broker, client: WriteClient, name: str
) -> None:
    kop_shared_broker.create_topic(name, partitions=2)
    group, places = f"group-{name}", [(name, 0), (name, 1)]
    client.commit(group, {(name, 1): 1})
    producer = client.init_producer(name, 60_000)
    client.commit_in_transaction(producer, group, {(name, 0): 3})
    assert client.committed(group, places, may_be_open=[(name, 0)]) == {(name, 1): (1, "")}
    with closing(client_of(kop_shared_broker, 1.0)) as other, pytest.raises(errors.UnstableOffsetCommitError):
        other.committed(group, places)
    client.end_transaction(producer)
    assert client.committed(group, places) == {(name, 0): (3, ""), (name, 1): (1, "")}


@pytest.mark.parametrize("what", ["records", "offsets", "end"])
def test_a_producer_that_a_newer_one_replaced_cannot_commit(
    kop_shared_broker: Broker, client: WriteClient, name: str, what: str
) -> None:
    kop_shared_broker.create_topic(name)
    old = client.init_producer(name, 60_000)
    client.add_partitions(old, [(name, 0)])
    client.init_producer(name, 60_000)
    ask: dict[str, Callable[[], object]] = {
        "records": lambda: client.add_partitions(old, [(name, 0)]),
        "offsets": lambda: client.commit_in_transaction(old, "g", {(name, 0): 1}),
        "end": lambda: client.end_transaction(old),
    }
    with pytest.raises(FencedError, match=r"newer producer of the same.* than transaction\.timeout\.ms"):
        ask[what]()


def test_the_end_of_the_last_transaction_is_waited_for_at_the_same_coordinator(kop_broker: Broker) -> None:
    kop_broker.create_topic("t")
    with closing(client_of(kop_broker)) as client:
        producer = client.init_producer("x", 60_000)
        kop_broker.fail("AddPartitionsToTxn", "CONCURRENT_TRANSACTIONS", times=2)
        client.add_partitions(producer, [("t", 0)])
    asked = [seen.api for seen in kop_broker.requests()]
    assert (asked.count("AddPartitionsToTxn"), asked.count("FindCoordinator")) == (3, 1)


def test_a_cluster_without_transactions_says_so(kop_broker: Broker) -> None:
    kop_broker.fail("InitProducerId", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", times=None)
    with closing(client_of(kop_broker)) as client:
        with pytest.raises(NoTransactionsError, match=r"transactionCoordinatorEnabled=true\); .* transactional id\.$"):
            client.init_producer("x", 60_000)
        kop_broker.heal()
        client.init_producer("x", 60_000)


def test_a_user_without_the_right_to_a_producer_id_is_told_which_right(kop_broker: Broker) -> None:
    kop_broker.fail("InitProducerId", "CLUSTER_AUTHORIZATION_FAILED", times=1)
    wanted = "let the user have a producer id by Write on a topic, or IdempotentWrite on the cluster"
    with closing(client_of(kop_broker)) as client:
        with pytest.raises(NotAllowedError, match=f"^{wanted}$"):
            client.init_producer(None, -1)
        client.init_producer(None, -1)


def test_a_transaction_that_may_not_be_as_long(client: WriteClient, name: str) -> None:
    with pytest.raises(ClientError, match=r"set transaction\.timeout\.ms to at most the cluster's transaction\.max"):
        client.init_producer(name, 2**31 - 1)


def test_a_topic_is_made_once_with_the_number_of_partitions_of_the_cluster(
    kop_broker_factory: Callable[..., Broker],
) -> None:
    broker = kop_broker_factory(auto_create_topics_enable=False, num_partitions=3)
    with closing(client_of(broker)) as client:
        assert client.leaders("t", make=False) == {}
        assert client.make_topic("t") is True
        assert list(client.leaders("t", make=False)) == [0, 1, 2]
        assert client.make_topic("t") is False
    with closing(client_of(broker)) as other:
        assert other.make_topic("t") is False
        with pytest.raises(ClientError, match="name another topic than no name: none can have this name"):
            other.make_topic("no name")
        broker.fail("CreateTopics", "TOPIC_AUTHORIZATION_FAILED")
        with pytest.raises(ClientError, match="make the topic u, or allow this user to"):
            other.make_topic("u")
    with (
        closing(client_of(broker, 1.0)) as hasty,
        pytest.raises(ClientError, match="create the topic u, or name anoth"),
    ):
        hasty.leaders("u")


def test_a_topic_that_another_one_makes_first_is_taken(kop_broker: Broker) -> None:
    kop_broker.create_topic("t")
    with closing(client_of(kop_broker)) as client:
        kop_broker.fail("Metadata", "UNKNOWN_TOPIC_OR_PARTITION")
        assert client.make_topic("t") is False
        assert [seen.outcome for seen in kop_broker.requests() if seen.api == "CreateTopics"]


@pytest.mark.parametrize("error", ["", "NOT_ENOUGH_REPLICAS", "NOT_LEADER_OR_FOLLOWER"])
@pytest.mark.parametrize("request_number", [1, 3])
def test_batches_of_a_partition_are_written_in_order_several_at_a_time(
    kop_broker: Broker, name: str, error: str, request_number: int
) -> None:
    kop_broker.create_topic(name, partitions=2)
    with closing(client_of(kop_broker)) as client:
        producer = client.init_producer(None, -1)
        client.produce_all(producer, {(name, 0): batches(producer, 1)})
        if error:
            if request_number > 1:
                kop_broker.delay("Produce", 0.05, times=request_number - 1)
            kop_broker.fail("Produce", error)
        client.produce_all(producer, {(name, 0): batches(producer, 20, 1), (name, 1): batches(producer, 3)})
        written = {partition: [r.value for r in kop_broker.records(name, partition)] for partition in range(2)}
    assert written == {0: [b"%d" % number for number in range(20)], 1: [b"0", b"1", b"2"]}


def test_the_first_batch_of_a_producer_goes_alone(kop_broker: Broker, name: str) -> None:
    kop_broker.create_topic(name)
    with closing(client_of(kop_broker)) as client:
        producer = client.init_producer(None, -1)
        kop_broker.fail("Produce", "NOT_ENOUGH_REPLICAS")
        client.produce_all(producer, {(name, 0): batches(producer, 6)})
    assert [record.value for record in kop_broker.records(name)] == [b"%d" % number for number in range(6)]
    assert len([seen for seen in kop_broker.requests() if seen.api == "Produce"]) == 7


def test_a_batch_that_is_refused_ends_what_is_behind_it(kop_broker: Broker, name: str) -> None:
    kop_broker.create_topic(name, configs={"max.message.bytes": 1_000})
    with closing(client_of(kop_broker)) as client:
        producer = client.init_producer(None, -1)
        some = batches(producer, 3)
        ((large, _),) = build([(None, b"x" * 2_000, (), None)], producer, 3, now=1)
        behind = batches(producer, 6, 4)
        with pytest.raises(errors.MessageSizeTooLargeError):
            client.produce_all(producer, {(name, 0): [*some, large, *behind]})
    assert [record.value for record in kop_broker.records(name)] == [b"0", b"1", b"2"]
