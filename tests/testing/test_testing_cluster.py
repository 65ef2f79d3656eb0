"""Several brokers in the test's process: leaders and coordinators move, clients follow, nothing is lost."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from support.waiting import SECONDS

from kop.errors import KopError
from kop.storage.memory.shared import SharedMemory
from kop.testing import Broker, Cluster
from kop.testing.broker import ClusterPlace
from kop.testing.loop_thread import LoopThread

PARTITIONS = 100
"""Ids of topics are random and leaders go by them: of 12 partitions one broker in 40 runs leads none."""


def test_clients_see_all_brokers_and_a_leader_for_each_partition(kop_cluster: Cluster) -> None:
    kop_cluster.brokers[0].create_topic("t", partitions=PARTITIONS)
    seen = AdminClient({"bootstrap.servers": kop_cluster.bootstrap}).list_topics(timeout=SECONDS)
    assert {f"{broker.host}:{broker.port}" for broker in seen.brokers.values()} == set(kop_cluster.bootstrap.split(","))
    leaders = {partition: metadata.leader for partition, metadata in seen.topics["t"].partitions.items()}
    assert leaders == {at: kop_cluster.leader("t", at).node_id for at in range(PARTITIONS)}
    assert len(set(leaders.values())) == 3


@pytest.mark.kop(brokers=2)
def test_a_leader_that_stops_and_comes_back(kop_cluster: Cluster) -> None:
    kop_cluster.brokers[0].create_topic("t", partitions=1)
    leader = kop_cluster.leader("t")
    producer = Producer({"bootstrap.servers": kop_cluster.bootstrap, "enable.idempotence": True, "log_level": 0})
    producer.produce("t", b"one")
    assert producer.flush(SECONDS) == 0
    leader.stop()
    other = kop_cluster.leader("t")
    assert other is not leader
    producer.produce("t", b"two")
    assert producer.flush(SECONDS) == 0
    leader.start()
    assert kop_cluster.leader("t") is leader
    producer.produce("t", b"three")
    assert producer.flush(SECONDS) == 0
    assert [record.value for record in leader.records("t")] == [b"one", b"two", b"three"]


def test_a_group_goes_on_at_another_coordinator(kop_cluster: Cluster) -> None:
    kop_cluster.brokers[0].produce("t", ["a", "b"])

    async def main() -> list[bytes]:
        values = []
        async with AIOKafkaConsumer(
            "t",
            bootstrap_servers=kop_cluster.bootstrap,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            retry_backoff_ms=20,
            metadata_max_age_ms=500,
            session_timeout_ms=3000,
            heartbeat_interval_ms=100,
        ) as consumer:
            values.append((await consumer.getone()).value)
            await consumer.commit({TopicPartition("t", 0): 1})
            former = kop_cluster.coordinator("g")
            assert former.committed("g") == {("t", 0): 1}
            await asyncio.to_thread(former.stop)
            now = kop_cluster.coordinator("g")
            assert now is not former
            values.append((await consumer.getone()).value)
            await consumer.commit({TopicPartition("t", 0): 2})
            assert now.committed("g") == {("t", 0): 2}
            await asyncio.to_thread(former.start)
            assert kop_cluster.coordinator("g") is former
            await consumer.commit({TopicPartition("t", 0): 2})
            assert former.committed("g") == {("t", 0): 2}
            assert now.committed("g") == {}
        return values

    assert asyncio.run(main()) == [b"a", b"b"]


def test_transactions_go_on_at_another_coordinator(kop_cluster: Cluster) -> None:
    kop_cluster.brokers[0].create_topic("t", partitions=3)
    producer = Producer(
        {"bootstrap.servers": kop_cluster.bootstrap, "transactional.id": "x", "log_level": 0, "retry.backoff.ms": 20}
    )
    producer.init_transactions(SECONDS)
    for at in range(3):
        producer.begin_transaction()
        producer.produce("t", b"%d" % at, partition=at)
        if at:
            kop_cluster.brokers[at - 1].restart()
        producer.commit_transaction(SECONDS)
    reader = kop_cluster.brokers[2]
    deadline = time.monotonic() + SECONDS
    while len(values := [record.value for record in reader.records("t", isolation_level="read_committed")]) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)  # markers follow the answer to the commit, and nothing tells when
    assert values == [b"0", b"1", b"2"]


def test_one_broker_of_a_cluster_is_made_to_fail(kop_cluster: Cluster) -> None:
    kop_cluster.brokers[0].create_topic("t", partitions=1)
    leader = kop_cluster.leader("t")
    leader.fail("Produce", "NOT_LEADER_OR_FOLLOWER", times=1)

    async def main() -> int:
        async with AIOKafkaProducer(bootstrap_servers=kop_cluster.bootstrap, retry_backoff_ms=10) as producer:
            return (await producer.send_and_wait("t", b"v")).offset

    assert asyncio.run(main()) == 0
    others = [broker for broker in kop_cluster.brokers if broker is not leader]
    assert not any(seen.api == "Produce" for broker in others for seen in broker.requests())


def test_a_cluster_starts_empty_again_and_cannot_be_used_when_stopped() -> None:
    cluster = Cluster(brokers=2)
    with cluster:
        cluster.brokers[1].produce("t", ["v"])
        assert cluster.brokers[0].topics() == {"t": 1}
    with pytest.raises(RuntimeError, match="no broker of the cluster runs"):
        cluster.leader("t")
    with cluster:
        assert cluster.brokers[0].topics() == {}
    with pytest.raises(ValueError, match="at least one"):
        Cluster(brokers=0)


@pytest.mark.kop(brokers=2)
def test_a_consumer_reads_through_any_broker(kop_cluster: Cluster) -> None:
    first, other = kop_cluster.brokers
    first.produce("t", ["a"])
    other.produce("t", ["b"])
    consumer = Consumer({"bootstrap.servers": other.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    values: list[bytes | None] = []
    while len(values) < 2:
        message = consumer.poll(SECONDS)
        assert message is not None
        if message.error() is None:
            values.append(message.value())
    consumer.close()
    assert values == [b"a", b"b"]


def test_a_broker_that_cannot_join_leaves_nothing_behind() -> None:
    thread, memory = LoopThread(), SharedMemory()
    try:
        place = ClusterPlace(thread, memory.open_engine)
        with Broker(_place=place, node_id=2) as broker:
            with pytest.raises(KopError, match="broker 2 is live already"):
                Broker(_place=place, node_id=2).start()
            assert [live.node_id for live in memory.brokers] == [2]
            assert broker.produce("t", ["v"])[0].offset == 0
    finally:
        thread.stop()  # a listener that nobody closed would keep it
