"""TxnOffsetCommit in all versions, and OffsetFetch while a transaction is open, with a stand-in for transactions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from support.bodies import encode_body
from support.commits import commit
from support.faulty_engine import FaultyEngine, FaultyStore
from support.waiting import until

from kop.cluster.client_topics import ClientTopics
from kop.errors import ErrorCode as E
from kop.groups.classic.messages import JoinRequest
from kop.groups.offsets import Commit
from kop.groups.runtime import GroupCoordinator
from kop.groups.settings import GroupSettings
from kop.handlers.access import AccessControl
from kop.handlers.api import ConnectionInfo, Context
from kop.handlers.group_offsets import offset_fetch
from kop.handlers.txn_offset_commit import txn_offset_commit
from kop.security.audit import Audit, AuditLines
from kop.transactions.runtime import VerifiedPartitions
from kop.transactions.verification import TransactionalProducer
from kop.wire import codec
from kop.wire.messages import REQUESTS, RESPONSES

VERSIONS = range(6)
PRODUCER, EPOCH = 4001, 3


@dataclass
class Transactions:
    """Answers what the test says; remembers what was asked."""

    answer: E = E.NONE
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    gate: asyncio.Event | None = None
    first: E | None = None
    """The answer to the first that asks, if it is another."""
    name: bytes = b""
    """What storage calls the transaction."""

    async def verify_offsets(
        self, producer: TransactionalProducer, offsets_partition: int, *, add: bool
    ) -> VerifiedPartitions:
        self.asked.append((*producer, offsets_partition, add))
        if self.gate is not None:
            await self.gate.wait()
        first, self.first = self.first, None
        return VerifiedPartitions(self.answer if first is None else first, storage_transaction=self.name)


class World:
    """A group coordinator with a topic `t` of two partitions; requests and answers go through the codec."""

    engine: FaultyEngine
    topics: ClientTopics
    groups: GroupCoordinator

    def __init__(self) -> None:
        self.store = FaultyStore()
        self.verifier = self.transactions = Transactions()

    async def __aenter__(self) -> World:
        self.engine = await self.store.open()
        await self.engine.topics.create("t", 2, {})
        self.topics = ClientTopics(self.engine)
        self.access = AccessControl(self.topics, Audit(AuditLines(""), 1))
        settings = GroupSettings(
            offsets_topic_num_partitions=3, group_initial_rebalance_delay_ms=0, offset_metadata_max_bytes=5
        )
        self.groups = GroupCoordinator(self.engine, settings)
        await self.groups.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.groups.stop()
        await self.engine.close()

    async def ask(self, handler: Any, key: int, version: int, **fields: Any) -> Any:
        request = REQUESTS[key](version=version, **fields)
        ctx = Context(key, version, "c", 1_700_000_000_000, ConnectionInfo("127.0.0.1", "127.0.0.1", 9092), self.access)
        answer = handler(self, ctx, codec.decode(REQUESTS[key], version, memoryview(encode_body(request))))
        if asyncio.iscoroutine(answer):
            answer = await answer
        return codec.decode(RESPONSES[key], version, memoryview(encode_body(answer.message())))

    async def commit(
        self, version: int, *parts: int, metadata: str | None = "m", topic: str = "t", **fields: Any
    ) -> Any:
        """The error of each partition."""
        row = REQUESTS[28].TxnOffsetCommitRequestTopic
        partitions = [
            row.TxnOffsetCommitRequestPartition(
                version=version,
                partition_index=part,
                committed_offset=7,
                committed_leader_epoch=2,
                committed_metadata=metadata if part != 1 else "m",
            )
            for part in parts or (0,)
        ]
        topics = [row(version=version, name=topic, partitions=partitions)]
        sent = {
            "transactional_id": "x",
            "group_id": "g",
            "producer_id": PRODUCER,
            "producer_epoch": EPOCH,
            "topics": topics,
        }
        answer = await self.ask(txn_offset_commit, 28, version, **sent | fields)
        [topic_row] = answer.topics
        assert topic_row.name == topic
        assert [partition.partition_index for partition in topic_row.partitions] == list(parts or (0,))
        return [E(partition.error_code) for partition in topic_row.partitions]

    async def fetch(self, version: int, *parts: int, stable: bool = True) -> list[tuple[int, int, E]]:
        """Partition, offset and error; all that are committed where no partition is named."""
        request = REQUESTS[9]
        flags = {"require_stable": stable} if version >= 7 else {}
        if version < 8:
            row = request.OffsetFetchRequestTopic
            topics = [row(version=version, name="t", partition_indexes=list(parts))] if parts else None
            answer = await self.ask(offset_fetch, 9, version, group_id="g", topics=topics, **flags)
            rows = answer.topics
        else:
            group = request.OffsetFetchRequestGroup
            info = self.engine.topics.get("t")
            assert info is not None
            name = {"name": "t"} if version < 10 else {"topic_id": info.topic_id}
            row = group.OffsetFetchRequestTopics
            topics = [row(version=version, partition_indexes=list(parts), **name)] if parts else None
            asked = group(version=version, group_id="g", topics=topics)
            rows = (await self.ask(offset_fetch, 9, version, groups=[asked], **flags)).groups[0].topics
        return [
            (partition.partition_index, partition.committed_offset, E(partition.error_code))
            for topic in rows
            for partition in topic.partitions
        ]

    async def fetch_again_and_again(self, times: int) -> list[str]:
        """The groups of the answer to a request that names two groups, the second one so many times."""
        group = REQUESTS[9].OffsetFetchRequestGroup
        asked = [group(version=8, group_id=name, topics=None) for name in ("g", *["h"] * times, "g")]
        answer = await self.ask(offset_fetch, 9, 8, groups=asked, require_stable=False)
        return [row.group_id for row in answer.groups]

    async def member(self) -> str:
        """Join as the only member, of generation 1."""
        request = JoinRequest("", "i", "c", "/", "consumer", (("range", b""),), 10_000, 10_000, False)
        answer = self.groups.join("g", request)
        self.groups.deadlines.tick()
        return (await answer if isinstance(answer, asyncio.Future) else answer).member_id


@pytest.mark.parametrize("version", VERSIONS)
async def test_offsets_are_pending_once_the_transaction_says_so(version: int) -> None:
    async with World() as world:
        assert await world.commit(version, 0, 1) == [E.NONE, E.NONE]
        partition = world.groups.state_log.partition_of("g")
        assert world.transactions.asked == [("x", PRODUCER, EPOCH, partition, version >= 5)]
        offsets = world.groups.offsets("g")
        assert offsets is not None
        assert offsets.get("t", 0) is None
        assert await world.groups.end_transaction([partition], PRODUCER, EPOCH, commit=True) == E.NONE
        value = offsets.get("t", 0)
        assert value is not None
        topic = world.engine.topics.get("t")
        assert topic is not None
        assert (value.offset, value.leader_epoch, value.metadata) == (7, 2 if version >= 2 else -1, "m")
        assert value.topic_id == topic.topic_id


async def test_offsets_are_of_the_transaction_that_was_verified() -> None:
    async with World() as world:
        world.transactions.name = b"next"
        assert await world.commit(5) == [E.NONE]
        for name, left in ((b"late", 1), (b"next", 0)):
            partition = world.groups.state_log.partition_of("g")
            end = world.groups.end_transaction([partition], PRODUCER, EPOCH, commit=True, storage_transaction=name)
            assert await end == E.NONE
            assert world.groups.pending_offsets == left


@pytest.mark.parametrize("version", VERSIONS)
async def test_what_is_not_there_asks_nobody(version: int) -> None:
    async with World() as world:
        assert await world.commit(version, topic="nowhere") == [E.UNKNOWN_TOPIC_OR_PARTITION]
        assert await world.commit(version, 2, -1) == [E.UNKNOWN_TOPIC_OR_PARTITION] * 2
        assert world.transactions.asked == []
        assert await world.commit(version, 9, 0) == [E.UNKNOWN_TOPIC_OR_PARTITION, E.NONE]


@pytest.mark.parametrize("version", VERSIONS)
async def test_metadata_of_one_partition_is_too_large(version: int) -> None:
    async with World() as world:
        assert await world.commit(version, 0, 1, metadata="x" * 6) == [E.OFFSET_METADATA_TOO_LARGE, E.NONE]
        assert await world.commit(version, 0, metadata="x" * 6) == [E.OFFSET_METADATA_TOO_LARGE]
        assert await world.commit(version, 0, metadata=None) == [E.NONE]
        world.transactions.answer = E.INVALID_PRODUCER_ID_MAPPING
        assert await world.commit(version, 0, metadata="x" * 6) == [E.INVALID_PRODUCER_ID_MAPPING]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (E.INVALID_PRODUCER_ID_MAPPING, E.INVALID_PRODUCER_ID_MAPPING),
        (E.INVALID_PRODUCER_EPOCH, E.INVALID_PRODUCER_EPOCH),
        (E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH),
        (E.INVALID_TXN_STATE, E.INVALID_TXN_STATE),
        (E.CONCURRENT_TRANSACTIONS, E.CONCURRENT_TRANSACTIONS),
        (E.NOT_COORDINATOR, E.NOT_COORDINATOR),
        (E.NOT_ENOUGH_REPLICAS, E.COORDINATOR_NOT_AVAILABLE),
        (E.NETWORK_EXCEPTION, E.COORDINATOR_LOAD_IN_PROGRESS),
        (E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_LOAD_IN_PROGRESS),
        (E.TRANSACTION_ABORTABLE, E.TRANSACTION_ABORTABLE),
    ],
)
async def test_errors_of_the_transaction(version: int, answer: E, told: E) -> None:
    if told == E.COORDINATOR_LOAD_IN_PROGRESS and version < 2:
        told = E.COORDINATOR_NOT_AVAILABLE
    if told == E.TRANSACTION_ABORTABLE and version < 4:
        told = E.INVALID_TXN_STATE
    async with World() as world:
        world.transactions.answer = answer
        assert await world.commit(version, 0, 1, 5) == [told, told, E.UNKNOWN_TOPIC_OR_PARTITION]
        assert world.groups.pending_offsets == 0
        assert world.groups.list() == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_errors_of_the_group(version: int) -> None:
    async with World() as world:
        assert await world.commit(version, group_id="") == [E.INVALID_GROUP_ID]
        member_id = await world.member()
        assert await world.commit(version) == [E.NONE], "without a member"
        if version < 3:
            return
        for member, instance, generation, code in [
            (member_id, "i", 1, E.NONE),
            (member_id, None, 2, E.ILLEGAL_GENERATION),
            ("another", None, 1, E.UNKNOWN_MEMBER_ID),
            ("another", "i", 1, E.FENCED_INSTANCE_ID),
        ]:
            fields: dict[str, Any] = {"member_id": member, "group_instance_id": instance, "generation_id": generation}
            assert await world.commit(version, **fields) == [code]
        fields = {"member_id": "m", "group_instance_id": None, "generation_id": 1}
        assert await world.commit(version, group_id="unknown", **fields) == [E.ILLEGAL_GENERATION]


@pytest.mark.parametrize("version", VERSIONS[3:])  # older ones cannot name such a group
async def test_a_group_id_that_no_record_can_hold(version: int) -> None:
    async with World() as world:
        assert await world.commit(version, 0, 9, group_id="g" * 32_768) == [
            E.UNKNOWN_SERVER_ERROR,
            E.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert world.groups.list() == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_coordinator_that_stops_and_storage_that_fails(version: int) -> None:
    async with World() as world:
        for partition in range(3):
            world.store.log("__offsets", partition).append_error = E.KAFKA_STORAGE_ERROR
        assert await world.commit(version, 0, 4) == [E.NOT_COORDINATOR, E.UNKNOWN_TOPIC_OR_PARTITION]
        asked = len(world.transactions.asked)
        await world.groups.stop()
        assert await world.commit(version) == [E.COORDINATOR_NOT_AVAILABLE]
        world.groups = GroupCoordinator(world.engine)
        loading = E.COORDINATOR_LOAD_IN_PROGRESS if version >= 2 else E.COORDINATOR_NOT_AVAILABLE
        assert await world.commit(version) == [loading]
        assert len(world.transactions.asked) == asked


@pytest.mark.parametrize(
    ("end_epoch", "answer"),
    [
        pytest.param(EPOCH, E.NONE, id="the one before"),
        pytest.param(EPOCH + 1, E.INVALID_PRODUCER_EPOCH, id="this one"),
    ],
)
async def test_a_transaction_that_ends_while_it_is_asked_is_asked_again(end_epoch: int, answer: E) -> None:
    async with World() as world:
        world.transactions.gate = asyncio.Event()
        committing = asyncio.create_task(world.commit(5))
        await until(lambda: bool(world.transactions.asked))
        partition = world.groups.state_log.partition_of("g")
        assert await world.groups.end_transaction([partition], PRODUCER, end_epoch, commit=False) == E.NONE
        world.transactions.first, world.transactions.answer = E.NONE, answer
        world.transactions.gate.set()
        assert await committing == [answer]
        assert len(world.transactions.asked) == 2
        assert world.groups.pending_offsets == (not answer)


@pytest.mark.parametrize("made_again", [True, False])
async def test_offsets_of_a_topic_that_is_deleted_while_the_transaction_is_asked_are_not_committed(
    made_again: bool,
) -> None:
    """Consumers of the new topic would begin behind records that they never got."""
    async with World() as world:
        world.transactions.gate = asyncio.Event()
        committing = asyncio.create_task(world.commit(5))
        await until(lambda: bool(world.transactions.asked))
        topic = world.engine.topics.get("t")
        assert topic is not None
        await world.engine.topics.delete(topic.topic_id)
        if made_again:
            await world.engine.topics.create("t", 2, {})
        world.transactions.gate.set()
        assert await committing == [E.UNKNOWN_TOPIC_OR_PARTITION]
        assert world.groups.pending_offsets == 0
        partition = world.groups.state_log.partition_of("g")
        assert await world.groups.end_transaction([partition], PRODUCER, EPOCH, commit=True) == E.NONE
        assert list(world.groups.committed()) == []


@pytest.mark.parametrize("version", range(1, 11))
async def test_offsets_of_an_open_transaction_are_unstable(version: int) -> None:
    async with World() as world:
        topic = world.engine.topics.get("t")
        assert topic is not None
        await commit(world.groups, "g", [Commit("t", topic.topic_id, index, 5) for index in range(2)])
        await world.commit(5, 1)
        unstable = (1, -1, E.UNSTABLE_OFFSET_COMMIT) if version >= 7 else (1, 5, E.NONE)
        assert await world.fetch(version, 0, 1) == [(0, 5, E.NONE), unstable]
        assert await world.fetch(version, 0, 1, stable=False) == [(0, 5, E.NONE), (1, 5, E.NONE)]
        if version >= 2:
            assert await world.fetch(version) == [(0, 5, E.NONE), unstable]
            assert await world.fetch(version, stable=False) == [(0, 5, E.NONE), (1, 5, E.NONE)]
        partition = world.groups.state_log.partition_of("g")
        assert await world.groups.end_transaction([partition], PRODUCER, EPOCH, commit=True) == E.NONE
        assert await world.fetch(version, 0, 1) == [(0, 5, E.NONE), (1, 7, E.NONE)]


async def test_a_first_offset_of_an_open_transaction_is_unstable() -> None:
    """As in Kafka it is not among all offsets of the group until it is committed."""
    async with World() as world:
        await world.commit(5, 1)
        assert await world.fetch(9, 0, 1) == [(0, -1, E.NONE), (1, -1, E.UNSTABLE_OFFSET_COMMIT)]
        assert await world.fetch(9) == []


async def test_a_group_that_is_named_again_and_again_is_answered_sixteen_times() -> None:
    """A request of 19 KiB that names a group 4,000 times took gigabytes."""
    async with World() as world:
        assert await world.fetch_again_and_again(1000) == ["g", *["h"] * 16, "g"]
