"""DescribeProducers: what this broker and the others remember of idempotent producers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from handlers.admin_gateway import Admin

from kop.cluster.cluster_view import ClusterView
from kop.coordination.peers import PeerAnswer, Peers
from kop.errors import ErrorCode, KopError
from kop.handlers.describe_producers import merged
from kop.storage.base import Engine, ProducerView
from kop.transactions.machine import Transaction
from kop.transactions.runtime import TransactionCoordinator
from kop.wire.messages import DescribeProducersRequest, DescribeProducersResponse, Message
from kop.wire.transaction_state import TransactionStatus

E = ErrorCode


@pytest.fixture
def admin() -> Iterator[Admin]:
    admin = Admin(node_id=5)
    yield admin
    admin.close()


def test_producers(admin: Admin) -> None:
    admin.create("t")
    admin.append("t", 3, producer=42)
    row = DescribeProducersRequest.TopicRequest
    asked = [row(name="t", partition_indexes=[0, 5]), row(name="nope", partition_indexes=[0])]
    asked.append(row(name="bad name", partition_indexes=[0]))
    answer = admin.call(DescribeProducersRequest(version=0, topics=asked))
    codes = {
        (topic.name, part.partition_index): part.error_code for topic in answer.topics for part in topic.partitions
    }
    assert codes == {
        ("t", 0): 0,
        ("t", 5): E.UNKNOWN_TOPIC_OR_PARTITION,
        ("nope", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
        ("bad name", 0): E.INVALID_TOPIC_EXCEPTION,
    }
    [producer] = answer.topics[0].partitions[0].active_producers
    assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (42, 0, 2)
    assert (producer.coordinator_epoch, producer.current_txn_start_offset) == (-1, -1)


class OtherBroker:
    """Broker 6 of the cluster: it answers with its producers of `t-0`, or not at all."""

    def __init__(self, *producers: tuple[int, int, int]) -> None:
        self.producers = producers
        self.asked: list[Message] = []
        self.answers = True

    async def call(self, broker_id: int, message: Message) -> PeerAnswer:
        self.asked.append(message)
        if not self.answers:
            raise KopError(f"broker {broker_id} does not answer", E.NETWORK_EXCEPTION)
        topic = DescribeProducersResponse.TopicResponse
        part = topic.PartitionResponse
        rows = [
            part.ProducerState(
                producer_id=producer_id,
                producer_epoch=epoch,
                last_sequence=sequence,
                last_timestamp=0,
                coordinator_epoch=-1,
                current_txn_start_offset=-1,
            )
            for producer_id, epoch, sequence in self.producers
        ]
        told = part(partition_index=0, error_code=0, error_message=None, active_producers=rows)
        return PeerAnswer(DescribeProducersResponse(version=0, topics=[topic(name="t", partitions=[told])]), {})


def beside(admin: Admin, other: OtherBroker) -> None:
    admin.gw.peers = cast(Peers, other)
    admin.gw.cluster = cast(ClusterView, SimpleNamespace(ids=[5, 6], broker_id=5))


def asked(admin: Admin) -> Any:
    topics = [DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0])]
    [topic] = admin.call(DescribeProducersRequest(version=0, topics=topics)).topics
    return topic.partitions[0]


def test_producers_of_every_broker(admin: Admin) -> None:
    admin.create("t")
    admin.append("t", 3, producer=42)
    beside(admin, OtherBroker((7, 1, 9), (42, 1, 0)))
    producers = [(each.producer_id, each.producer_epoch, each.last_sequence) for each in asked(admin).active_producers]
    assert producers == [(7, 1, 9), (42, 1, 0)]


def test_clients_try_again_while_a_broker_is_silent(admin: Admin, caplog: pytest.LogCaptureFixture) -> None:
    admin.create("t")
    other = OtherBroker()
    other.answers = False
    beside(admin, other)
    answer = asked(admin)
    assert (answer.error_code, answer.active_producers) == (E.NOT_LEADER_OR_FOLLOWER, [])
    assert "broker 6 does not answer" in answer.error_message
    assert "start that broker" in caplog.text


class Coordinator:
    """The transaction coordinator of this broker, beside an engine whose logs hold no markers."""

    def __init__(self, admin: Admin, *transactions: Transaction) -> None:
        self.transactions = transactions
        self.error = E.NONE
        promises = replace(admin.engine.promises, writes_markers=False)
        admin.gw.engine = cast(Engine, SimpleNamespace(promises=promises, close=admin.engine.close))
        admin.gw.transactions = cast(TransactionCoordinator, self)

    def listed(self) -> tuple[list[tuple[str, Transaction]], ErrorCode]:
        if self.error:
            return [], self.error
        return [(f"id {index}", each) for index, each in enumerate(self.transactions)], E.NONE


def transaction(producer_id: int, epoch: int, status: TransactionStatus, *partitions: tuple[str, int]) -> Transaction:
    return Transaction(producer_id, epoch, 1000, status, frozenset(partitions), last_update_timestamp=5)


def test_open_transactions_are_told_where_logs_do_not_know_them(admin: Admin) -> None:
    admin.create("t")
    admin.append("t", 3, producer=42)
    here = ("t", 0)
    Coordinator(
        admin,
        transaction(42, 0, TransactionStatus.ONGOING, here, ("other", 0)),
        transaction(43, 7, TransactionStatus.PREPARE_ABORT, here),
        transaction(44, 0, TransactionStatus.ONGOING, ("t", 1)),
        transaction(45, 0, TransactionStatus.COMPLETE_COMMIT, here),
        transaction(46, 0, TransactionStatus.EMPTY),
    )
    beside(admin, OtherBroker((43, 6, 9), (47, 0, 1)))
    told = [
        (each.producer_id, each.producer_epoch, each.last_sequence, each.current_txn_start_offset)
        for each in asked(admin).active_producers
    ]
    assert told == [(42, 0, 2, 3), (43, 7, -1, 3), (47, 0, 1, -1)]


def test_clients_try_again_while_transactional_ids_are_loaded(admin: Admin) -> None:
    admin.create("t")
    Coordinator(admin).error = E.COORDINATOR_LOAD_IN_PROGRESS
    answer = asked(admin)
    assert (answer.error_code, answer.active_producers) == (E.NOT_LEADER_OR_FOLLOWER, [])


def view(producer_id: int, epoch: int, sequence: int, timestamp: int = 0, start: int = -1) -> ProducerView:
    return ProducerView(producer_id, epoch, sequence, timestamp, start)


@pytest.mark.parametrize(
    ("of_brokers", "expected"),
    [
        ([], []),
        ([[view(2, 0, 1)], [view(1, 0, 1)]], [view(1, 0, 1), view(2, 0, 1)]),
        ([[view(1, 0, 9, 9)], [view(1, 1, 0, 5)]], [view(1, 1, 0, 5)]),
        ([[view(1, 0, 9, 9)], [view(1, 0, 12, 10)]], [view(1, 0, 12, 10)]),
        ([[view(1, 0, 9, 9, 70)], [view(1, 0, 12, 10, 80)]], [view(1, 0, 12, 10, 70)]),
        ([[view(1, 0, 9, 9, 70)], [view(1, 0, 12, 10)]], [view(1, 0, 12, 10, 70)]),
        ([[view(1, 0, 9, 9, 70)], [view(1, 1, 0, 10)]], [view(1, 1, 0, 10)]),
        ([[view(1, 0, 9, 9)], [view(1, 0, -1, 10, 60)]], [view(1, 0, 9, 9, 60)]),
    ],
    ids=[
        "nobody",
        "others",
        "newer epoch",
        "later batch",
        "earliest start",
        "one start",
        "start of an old epoch",
        "its coordinator",
    ],
)
def test_each_producer_is_told_once(of_brokers: list[list[ProducerView]], expected: list[ProducerView]) -> None:
    assert merged(*of_brokers) == expected
    assert merged(*reversed(of_brokers)) == expected
