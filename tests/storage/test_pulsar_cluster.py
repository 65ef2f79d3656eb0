"""Two engines on the same namespaces of a real Pulsar: what one does, the other sees; who leads, leads alone."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from storage.batches import append, attached, batch, first, make, read_values, refused
from storage.engines import PulsarStore
from support.child import Child
from support.commits import commit
from support.pulsar import Urls, fresh_namespace
from support.slowness import beyond_slowness
from support.waiting import SECONDS, until

from conformance.faulty_link import link
from kop import clock
from kop.cluster import liveness
from kop.cluster.client_topics import OFFSETS_TOPIC
from kop.cluster.cluster_view import ClusterView
from kop.coordination.state_log import StateLog, StateTopic
from kop.errors import ErrorCode, KopError
from kop.groups.offsets import Commit
from kop.groups.runtime import GroupCoordinator
from kop.groups.settings import GroupSettings
from kop.pulsar_client import Producer, PulsarError
from kop.pulsar_client.admin import Admin
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.storage.base import LiveBroker, TopicInfo
from kop.storage.pulsar.cluster.producer_ids import ProducerIdBlocks
from kop.storage.pulsar.engine import PulsarEngine
from kop.storage.pulsar.layout import (
    CONFIGS_PROPERTY,
    CREATED_PROPERTY,
    DELETING_PROPERTY,
    ID_PROPERTY,
    NAME_PROPERTY,
    UNFINISHED_PROPERTY,
)
from kop.storage.pulsar.partition import log as log_module
from kop.storage.pulsar.partition import producer as producer_module
from kop.storage.pulsar.partition import tail_demand
from kop.storage.pulsar.partition.log import PulsarLog
from kop.storage.topic_table import new_uuid


@pytest.fixture
def pulsar_store(pulsar_urls: Urls) -> Iterator[PulsarStore]:
    with fresh_namespace(pulsar_urls) as pulsar:
        yield PulsarStore(pulsar.service_url, pulsar.admin_url, pulsar.namespace)


@asynccontextmanager
async def two_engines(store: PulsarStore) -> AsyncIterator[tuple[PulsarEngine, PulsarEngine]]:
    async with store.opened() as first_engine, store.opened() as second_engine:
        await first_engine.join(LiveBroker(1, "host-1", 9001))
        await second_engine.join(LiveBroker(2, "host-2", 9002))
        yield first_engine, second_engine


def broker_process(store: PulsarStore, folder: Path, *, node_id: str) -> Child:
    """A broker in a process of its own, on the same data as the engines of this process."""
    return Child(
        folder,
        store=["--store", store.urls[0], "--admin-url", store.urls[1]],
        node_id=node_id,
        kop_pulsar_namespace=store.settings.kop_pulsar_namespace,
        kop_pulsar_metadata_namespace=store.settings.kop_pulsar_metadata_namespace,
    )


async def test_each_sees_the_other_come_and_go(pulsar_store: PulsarStore) -> None:
    async with pulsar_store.opened() as engine:
        heard: list[list[int]] = []
        engine.on_brokers(lambda: heard.append([broker.node_id for broker in engine.brokers]))
        await engine.join(LiveBroker(1, "host-1", 9001))
        async with pulsar_store.opened() as other:
            await other.join(LiveBroker(2, "host-2", 9002))
            assert list(other.brokers) == [LiveBroker(1, "host-1", 9001), LiveBroker(2, "host-2", 9002)]
            await until(lambda: list(engine.brokers) == list(other.brokers))
        await until(lambda: [broker.node_id for broker in engine.brokers] == [1])
        # A look that took long is told of, too, although nothing has changed.
        assert [ids for ids, _ in itertools.groupby(heard)] == [[1], [1, 2], [1]]


async def test_a_producer_of_brokers_that_names_no_instance_is_no_broker(
    pulsar_store: PulsarStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with pulsar_store.opened() as engine:
        await engine.join(LiveBroker(1, "host-1", 9001))
        partition = f"{engine.context.naming.brokers_topic}-partition-0"
        await engine.client.open_producer(partition, name="kop-broker-2", properties={"host": "h", "port": "1"})
        await until(lambda: "kop-broker-2" in caplog.text)
        assert "is of an unreleased kop and does not count as a broker: stop that one" in caplog.text
        assert [broker.node_id for broker in engine.brokers] == [1]


async def test_a_gateway_that_stops_says_so_and_nobody_waits_for_it(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kop.storage.pulsar.cluster.live_brokers.ABSENT_SECONDS", 1e6)
    async with pulsar_store.opened() as engine:
        await engine.join(LiveBroker(1, "host-1", 9001))
        async with pulsar_store.opened() as other:
            await other.join(LiveBroker(2, "host-2", 9002))
            await until(lambda: [broker.node_id for broker in engine.brokers] == [1, 2])
        await until(lambda: [broker.node_id for broker in engine.brokers] == [1])


async def test_both_have_one_cluster_id_and_never_the_same_producer_ids(pulsar_store: PulsarStore) -> None:
    async with two_engines(pulsar_store) as (first_engine, second_engine):
        assert first_engine.cluster_id == second_engine.cluster_id
        blocks = await asyncio.gather(
            *[engine.reserve_producer_ids() for engine in (first_engine, second_engine) for _ in range(5)]
        )
        assert len(set().union(*blocks)) == sum(map(len, blocks)) >= 10


@pytest.mark.parametrize("producer", [0, -1])
async def test_clusters_that_share_a_pulsar_do_not_take_each_others_records_for_their_own(
    pulsar_store: PulsarStore, producer: int
) -> None:
    """Both clusters hand out the same producer ids, and Pulsar deduplicates by the producer's name."""
    second = PulsarStore(*pulsar_store.urls, pulsar_store.settings.kop_pulsar_namespace)
    second.settings = second.settings.model_copy(
        update={"kop_pulsar_metadata_namespace": f"{second.settings.kop_pulsar_namespace}-kop2"}
    )
    async with pulsar_store.opened() as engine, second.opened() as other:
        assert engine.cluster_id != other.cluster_id
        here = await make(engine)
        await until(lambda: other.topics.get("t"))
        there = await attached(other)
        stored: list[int] = []
        for number in range(25):
            for log in (here, there):
                data = batch([f"{number}"], producer=producer, sequence=number)
                stored.append((await append(log, data)).base_offset)
        assert stored == list(range(50))
        await here.refresh()
        assert await read_values(here) == [f"{number}" for number in range(25) for _ in range(2)]


async def test_those_who_need_producer_ids_at_once_behind_a_lost_producer_share_the_next_one(
    pulsar_store: PulsarStore,
) -> None:
    async with pulsar_store.opened() as engine:
        partition = f"{engine.context.naming.own_topic}-partition-0"
        unopened = ProducerIdBlocks(engine.client, partition, "ids", engine.mapping.first_id)
        blocks = await asyncio.gather(*(unopened.take() for _ in range(5)))
        assert len(set().union(*blocks)) == sum(map(len, blocks))


async def test_topics_configs_and_deletions_of_one_are_seen_by_the_other(pulsar_store: PulsarStore) -> None:
    async with two_engines(pulsar_store) as (first_engine, second_engine):
        topic = await first_engine.topics.create("t", 2, {"max.message.bytes": "1000"})
        await until(lambda: second_engine.topics.get("t") == topic)
        changed = await first_engine.topics.set_configs(topic.topic_id, {"max.message.bytes": "2000"})
        await until(lambda: second_engine.topics.get("t") == changed)
        grown = await second_engine.topics.grow(topic.topic_id, 3)
        await until(lambda: first_engine.topics.get("t") == grown)
        await first_engine.topics.delete(topic.topic_id)
        await until(lambda: second_engine.topics.get("t") is None)


async def test_what_one_changed_is_seen_by_the_other_that_looks_again_or_is_told(pulsar_store: PulsarStore) -> None:
    async with two_engines(pulsar_store) as (first_engine, second_engine):
        topic = await first_engine.topics.create("t", 1, {})
        await until(lambda: second_engine.topics.get("t"))
        for size in ("1000", "2000", "3000"):
            changed = await first_engine.topics.set_configs(topic.topic_id, {"max.message.bytes": size})
            await second_engine.topics.refresh(topic.topic_id)
            assert second_engine.topics.get("t") == changed
        told = asyncio.Event()
        second_engine.on_state(told.set)
        await first_engine.put_state("k", "v")
        async with asyncio.timeout(SECONDS):
            await told.wait()
        assert await second_engine.get_state("k") == "v"


async def test_where_both_make_a_topic_at_once_both_have_the_one_that_came_first(pulsar_store: PulsarStore) -> None:
    async with two_engines(pulsar_store) as (first_engine, second_engine):
        made = await asyncio.gather(
            *(engine.topics.create("t", 2, {}) for engine in (first_engine, second_engine)), return_exceptions=True
        )
        (topic,) = (result for result in made if isinstance(result, TopicInfo))
        (error,) = (result for result in made if isinstance(result, KopError))
        assert error.code is ErrorCode.TOPIC_ALREADY_EXISTS
        assert first_engine.topics.get("t") == second_engine.topics.get("t") == topic


async def test_a_topic_that_a_gateway_left_without_policies_gets_them_from_another(pulsar_store: PulsarStore) -> None:
    async with two_engines(pulsar_store) as (first_engine, second_engine):
        admin, now = first_engine.admin, int(time.time() * 1000)
        naming = first_engine.context.naming
        old, young = naming.full_name("old", False), naming.full_name("young", False)
        for name, made in ((old, now - 3_600_000), (young, now)):
            properties = {
                ID_PROPERTY: str(new_uuid()),
                NAME_PROPERTY: name,
                CONFIGS_PROPERTY: '{"retention.ms": "7200000"}',
                CREATED_PROPERTY: str(made),
                UNFINISHED_PROPERTY: "true",
            }
            await admin.create_partitioned(name, 1, properties)
        await second_engine.topics.load()
        assert await admin.get_retention(old) is not None
        assert UNFINISHED_PROPERTY not in (await admin.partitioned_metadata(old)).properties
        assert await admin.get_retention(young) is None  # somebody may be about to finish it
        whole = await first_engine.topics.create("whole", 1, {})
        known = first_engine.topics.pulsar(whole.topic_id)
        assert UNFINISHED_PROPERTY not in known.properties
        assert (await admin.partitioned_metadata(known.full_name)).properties == known.properties


@pytest.mark.parametrize("hours", [-2, 2])
async def test_gateways_whose_clocks_differ_agree_on_what_is_under_way(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    async with pulsar_store.opened() as engine:
        topics = [await engine.topics.create(name, 1, {}) for name in ("deleted", "made")]
        deleted, made = (engine.topics.pulsar(topic.topic_id) for topic in topics)
        await engine.admin.set_properties(deleted.full_name, {DELETING_PROPERTY: str(engine.admin.now_ms())})
        properties = {CREATED_PROPERTY: str(engine.admin.now_ms()), UNFINISHED_PROPERTY: "true"}
        await engine.admin.set_properties(made.full_name, properties)
    wall_ns = clock.wall_ns
    monkeypatch.setattr(clock, "wall_ns", lambda: wall_ns() + hours * 3600 * 10**9)
    async with pulsar_store.opened() as other:
        log = other.log(topics[0].topic_id, 0)
        assert log is not None
        assert not await other.deletion_guard.still_there(log)
        known = other.topics.pulsar(topics[1].topic_id)
        assert known.is_being_made(other.admin.now_ms())
        assert known.is_young(other.admin.now_ms())
        long_ago = str(other.admin.now_ms() - 3_600_000)
        await other.admin.set_properties(deleted.full_name, {DELETING_PROPERTY: long_ago})
        assert await other.deletion_guard.still_there(log, since=other.loop.time())


@pytest.mark.parametrize("code", ["Timeout", "NotAllowedError"])
async def test_a_topic_whose_policies_fail_is_not_taken_from_those_who_write_to_it(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """A broker that is busy with 50 new partitions was seen to need more than 10 s for the last of the settings."""
    async with two_engines(pulsar_store) as (first_engine, second_engine):
        name = first_engine.context.naming.full_name("t", False)
        native = None

        async def fails(full_name: str, key: str) -> None:
            nonlocal native
            if native is None:
                native = await second_engine.context.client.open_producer(f"{name}-partition-0", name="native")
                metadata = pb.MessageMetadata(producer_name="native", sequence_id=0, publish_time=1)
                await native.send(metadata.SerializeToString(), b"stored", sequence_id=0)
            raise PulsarError(code, "so says the test", retriable=code == "Timeout")

        with monkeypatch.context() as failing:
            failing.setattr(first_engine.admin, "remove_property", fails)
            with pytest.raises(KopError):
                await first_engine.topics.create("t", 1, {})
            await second_engine.topics.load()
            monkeypatch.setattr("kop.storage.pulsar.topics.table.MAKER_SECONDS", 0.2)
            with refused(ErrorCode.LEADER_NOT_AVAILABLE):  # nobody may load its partitions yet
                await first(second_engine).attach()
        monkeypatch.setattr("kop.storage.pulsar.topics.table.MAKER_SECONDS", SECONDS)
        for engine in (first_engine, second_engine):
            assert await read_values(await attached(engine)) == ["stored"]
        assert UNFINISHED_PROPERTY not in (await first_engine.admin.partitioned_metadata(name)).properties


async def test_a_topic_that_cannot_get_its_policies_is_deleted_where_nobody_uses_it(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pulsar_store.opened() as engine:

        async def fails(full_name: str, key: str) -> None:
            raise PulsarError("NotAllowedError", "so says the test")

        with monkeypatch.context() as failing:
            failing.setattr(engine.admin, "remove_property", fails)
            with pytest.raises(KopError):
                await engine.topics.create("t", 1, {})
        name = engine.context.naming.full_name("t", False)
        assert name not in await engine.admin.list_partitioned(engine.context.naming.namespace)
        await engine.topics.create("t", 1, {})


async def test_gateways_that_start_at_once_share_the_offsets_topic(pulsar_store: PulsarStore) -> None:
    async with two_engines(pulsar_store) as (first_engine, second_engine):
        topic = StateTopic(OFFSETS_TOPIC, 2, {"cleanup.policy": "compact"})
        logs = [StateLog(engine, topic, lambda: 0) for engine in (first_engine, second_engine)]
        await asyncio.gather(*(log.open() for log in logs))
        assert [log.partitions for log in logs] == [2, 2]
        assert logs[0].topic_id == logs[1].topic_id


async def test_what_one_writes_the_other_reads_at_the_same_offsets(pulsar_store: PulsarStore) -> None:
    async with two_engines(pulsar_store) as (first_engine, second_engine):
        here = await make(first_engine)
        await until(lambda: second_engine.topics.get("t"))
        there = await attached(second_engine)
        for number in range(20):
            log = (here, there)[number % 2]
            assert (await append(log, batch([f"{number}.0", f"{number}.1"]))).base_offset == 2 * number
        await until(lambda: here.high_watermark == there.high_watermark == 40)
        assert await read_values(here) == await read_values(there) == [f"{n}.{i}" for n in range(20) for i in range(2)]
        assert not beyond_slowness(first_engine.counts)
        assert not beyond_slowness(second_engine.counts)


async def test_a_gateway_that_was_cut_off_goes_on_behind_what_another_wrote_for_the_same_producer(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client's producer moves to another gateway and back, and the first one had no connection meanwhile."""
    pulsar_store.settings = pulsar_store.settings.model_copy(update={"idle_seconds": 60.0})
    connected = asyncio.Event()
    connected.set()
    check_exists = PulsarLog.check_exists

    async def after_the_cut(log: PulsarLog) -> None:
        if log is here:
            await connected.wait()
        await check_exists(log)

    monkeypatch.setattr(PulsarLog, "check_exists", after_the_cut)
    async with pulsar_store.opened() as engine:
        here = await make(engine)
        assert (await append(here, batch(["0"], producer=7))).base_offset == 0
        connected.clear()
        async with pulsar_store.opened() as other, Admin(pulsar_store.urls[1]) as admin:
            await admin.unload(f"persistent://{pulsar_store.settings.kop_pulsar_namespace}/t")
            there = await attached(other)
            await append(there, batch(["1", "2"], producer=7, sequence=1))
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):  # clients try again
            await append(here, batch(["3"], producer=7, sequence=3))
        connected.set()
        assert (await append(here, batch(["3"], producer=7, sequence=3))).base_offset == 3
        await here.refresh()
        assert await read_values(here) == ["0", "1", "2", "3"]


async def test_leaders_whose_tails_pause_read_what_others_wrote_between(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tail of a state topic pauses while its leader writes much; the lead goes there and back."""
    monkeypatch.setattr(tail_demand, "CALM_SECONDS", 0.0)
    monkeypatch.setattr(tail_demand, "SLOWEST_SECONDS", 3600.0)  # it pauses on a slow machine, too
    monkeypatch.setattr(log_module, "LOOK_SECONDS", 3600.0)  # silence does not make it go on
    async with two_engines(pulsar_store) as (first_engine, second_engine):
        topic = StateTopic("__state", 1, {"cleanup.policy": "compact"})
        first_log, second_log = (StateLog(engine, topic, lambda: 0) for engine in (first_engine, second_engine))
        await first_log.open()
        await until(lambda: second_engine.topics.get("__state") is not None)
        await second_log.open()
        written: dict[bytes, bytes | None] = {}
        for turn, (engine, state_log) in enumerate([(first_engine, first_log), (second_engine, second_log)] * 2):
            await state_log.lead(0, lambda: None)
            assert await state_log.read(0) == written
            partition = first(engine, "__state")
            number = 0
            while not partition.tail_pauses:
                number += 1
                key, value = b"%d.%d" % (turn, number), b"%d" % number
                ended: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
                state_log.write(0, [(key, value)], ended.set_result)
                assert await asyncio.wait_for(ended, SECONDS) is ErrorCode.NONE
                written[key] = value
            await state_log.resign(0)


async def test_a_new_leader_fences_the_old_one_and_reads_all_that_it_wrote(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_module, "LIVE_HOLDER_SECONDS", 0.5)  # the old one is live and does not leave
    async with two_engines(pulsar_store) as (first_engine, second_engine):
        topic = await first_engine.topics.create("__state", 1, {"cleanup.policy": "compact"}, internal=True)
        await until(lambda: second_engine.topics.get("__state") is not None)
        old, new = first(first_engine, topic), await attached(second_engine, "__state")
        with refused(ErrorCode.NOT_LEADER_OR_FOLLOWER):
            await append(old, batch(["nobody leads"], keys=["k"]))
        lost: list[str] = []
        await old.lead(lambda: lost.append("old"))
        for number in range(5):
            await append(old, batch([str(number)], keys=["k"]))
        await new.lead(lambda: lost.append("new"))
        assert new.high_watermark == 5
        assert await read_values(new) == ["0", "1", "2", "3", "4"]
        await append(new, batch(["5"], keys=["k"]))
        with pytest.raises(Exception, match=r"NOT_LEADER_OR_FOLLOWER|KAFKA_STORAGE_ERROR"):
            await append(old, batch(["too late"], keys=["k"]))
        await until(lambda: lost == ["old"])
        assert (await append(new, batch(["6"], keys=["k"]))).base_offset == 6
        assert await read_values(new) == ["0", "1", "2", "3", "4", "5", "6"]


async def test_a_leader_that_leaves_is_followed_without_being_fenced(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Pulsar broker may hang for ever where a producer is fenced at the moment in which its client closes it."""
    modes: list[str] = []
    async with two_engines(pulsar_store) as (first_engine, second_engine):
        topic = await first_engine.topics.create("__state", 1, {"cleanup.policy": "compact"}, internal=True)
        await until(lambda: second_engine.topics.get("__state") is not None)
        old, new = first(first_engine, topic), await attached(second_engine, "__state")
        await old.lead(lambda: None)
        open_producer = second_engine.client.open_producer

        async def watched(topic: str, **how: Any) -> Producer:
            modes.append(how["access"])
            return await open_producer(topic, **how)

        monkeypatch.setattr(second_engine.client, "open_producer", watched)
        taking_over = asyncio.ensure_future(new.lead(lambda: None))
        await until(lambda: bool(modes))
        await old.resign()
        await taking_over
        assert set(modes) == {"exclusive"}
        await append(new, batch(["0"], keys=["k"]))


async def test_a_leader_that_may_be_taken_for_dead_leaves_with_its_connection(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must close no producer that another pushes out at that moment: a Pulsar broker may hang for ever then."""
    async with two_engines(pulsar_store) as (first_engine, second_engine):
        topics = [
            await first_engine.topics.create(name, 1, {"cleanup.policy": "compact"}, internal=True)
            for name in ("__left", "__kept")
        ]
        await until(lambda: all(second_engine.topics.get(topic.name) for topic in topics))
        left, kept = (first(first_engine, topic) for topic in topics)
        for log in (left, kept):
            await log.lead(lambda: None)
        await append(kept, batch(["0"], keys=["k"]))

        services = second_engine.services
        name = first_engine.producer_naming.leader
        assert services.leader_is_live(name)
        assert services.leader_is_live(f"{name}-of-nobody-who-was-seen") is None
        await until(first_engine.services.counts_as_live)  # again, where its last look at Pulsar took some seconds
        asked = asyncio.Event()

        async def no_answer(topic: str) -> dict[str, Any]:
            await asked.wait()
            raise PulsarError("ConnectionLost", "so says the test")

        monkeypatch.setattr(first_engine.admin, "stats", no_answer)
        await until(lambda: not first_engine.services.counts_as_live())
        asked.set()
        taking_over = asyncio.ensure_future((await attached(second_engine, "__left")).lead(lambda: None))
        await left.resign()
        await taking_over
        await append(await attached(second_engine, "__left"), batch(["1"], keys=["k"]))
        await append(kept, batch(["1"], keys=["k"]))
        assert await read_values(kept) == ["0", "1"]


class Given:
    """Live brokers of which this one coordinates all partitions of `__offsets`, or none."""

    def __init__(self) -> None:
        self.mine = True
        self.changed: Callable[[], None] = lambda: None

    def leader(self, topic_id: UUID, partition: int) -> int:
        return 1 if self.is_leader(topic_id, partition) else 2

    def is_leader(self, topic_id: UUID, partition: int) -> bool:
        return self.mine

    def on_change(self, callback: Callable[[], None]) -> None:
        self.changed = callback

    def give(self, mine: bool) -> None:
        self.mine = mine
        self.changed()


async def test_a_lead_that_is_lost_during_the_replay_serves_nothing_that_another_gateway_deleted(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kop.coordination.ownership.FIRST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(producer_module, "LIVE_HOLDER_SECONDS", 0.5)  # the first one is live and does not leave
    settings = GroupSettings(offsets_topic_num_partitions=1)
    async with two_engines(pulsar_store) as (first_engine, second_engine):
        topic = await first_engine.topics.create("t", 1, {})
        await until(lambda: second_engine.topics.get("t"))
        commits = [Commit("t", topic.topic_id, 0, 5)]
        here, there = Given(), Given()
        first = GroupCoordinator(first_engine, settings, leader_choice=here)
        await first.start()
        await until(lambda: not first.refusal_of("kept"))
        assert not await commit(first, "deleted", commits)
        assert not await commit(first, "kept", commits)
        await first.stop()

        replayed, go_on = asyncio.Event(), asyncio.Event()
        again = GroupCoordinator(first_engine, settings, leader_choice=here)
        read = again.state_log.read

        async def held(partition: int) -> Mapping[bytes, bytes | None]:
            values = await read(partition)
            if not replayed.is_set():
                replayed.set()
                await go_on.wait()
            return values

        monkeypatch.setattr(again.state_log, "read", held)
        starting = asyncio.create_task(again.start())
        async with asyncio.timeout(SECONDS):
            await replayed.wait()
        second = GroupCoordinator(second_engine, settings, leader_choice=there)
        await second.start()
        await until(lambda: not second.refusal_of("kept"))
        deleted = second.delete("deleted")
        assert isinstance(deleted, asyncio.Future)
        assert await deleted == ErrorCode.NONE
        assert not await commit(second, "kept", [Commit("t", topic.topic_id, 0, 7)])
        there.give(False)
        await until(lambda: second.refusal_of("kept"))
        await until(lambda: not again.state_log.leads(0))  # it takes its own word for some seconds
        await again.verify([0])
        go_on.set()
        await starting
        await until(lambda: not again.refusal_of("kept"))
        assert again.offsets("deleted") is None
        kept = again.offsets("kept")
        assert kept is not None
        committed = kept.get("t", 0)
        assert committed is not None
        assert committed.offset == 7
        await asyncio.gather(again.stop(), second.stop())


@pytest.mark.timeout(600)
async def test_unloads_of_the_membership_topic_change_no_leader_and_a_killed_gateway_is_replaced_in_seconds(
    pulsar_store: PulsarStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "kop.storage.pulsar.cluster.broker_registry.POLL_SECONDS", 0.1
    )  # sees every moment in which some are missing
    third = broker_process(pulsar_store, tmp_path, node_id="3")

    async def answers(broker: LiveBroker) -> bool:
        """Engines alone listen nowhere: those of this process are alive."""
        return broker.node_id in {1, 2} or await liveness.answers(broker)

    pulsar_store.answers = answers
    try:
        await asyncio.to_thread(third.start)
        async with two_engines(pulsar_store) as engines:
            views = [ClusterView(engine, number) for number, engine in enumerate(engines, 1)]
            await until(lambda: all(list(view.ids) == [1, 2, 3] for view in views))
            before = [view.version for view in views]
            snapshots = [Snapshots(engine, monkeypatch) for engine in engines]
            admin, topic = engines[0].admin, engines[0].context.naming.brokers_topic

            async def all_are_back() -> bool:
                return publishers(await admin.stats(f"{topic}-partition-0")) == {1, 2, 3}

            for _ in range(10):
                await admin.unload(topic)
                await until(all_are_back)
                # Who is absent from all snapshots of many unloads is rightly taken for cut off: each engine has to see
                # that all are back before the next one.
                for snapshot in snapshots:
                    snapshot.last = set()
                await until(lambda: all(snapshot.last == {1, 2, 3} for snapshot in snapshots))
            assert [view.version for view in views] == before
            assert not any(engine.counts.get("outages/gateway") for engine in engines)
            third.signal(signal.SIGKILL)
            await until(lambda: all(list(view.ids) == [1, 2] for view in views))
    finally:
        third.kill()


def may_commit(groups: GroupCoordinator, group: str) -> bool:
    return not groups.check_commit(group, "", None, -1, says_not_found=True)


def is_answered(groups: GroupCoordinator, group: str) -> bool:
    return not groups.refusal_of(group, surely=True)


@pytest.mark.parametrize("how", ["refused", "silent"])
async def test_groups_are_coordinated_while_rest_does_not_answer(
    pulsar_store: PulsarStore, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The times in which members are known, and a lead is sure, are short here: many of them pass."""
    fresh, sure = 0.5, 1.0
    monkeypatch.setattr("kop.storage.pulsar.cluster.broker_registry.FRESH_SECONDS", fresh)
    monkeypatch.setattr("kop.storage.pulsar.cluster.broker_registry.POLL_SECONDS", 0.1)
    monkeypatch.setattr("kop.storage.pulsar.partition.producers.SURE_SECONDS", sure)
    monkeypatch.setattr("kop.coordination.ownership.CONFIRM_SECONDS", 0.1)
    async with link(int(pulsar_store.urls[1].rpartition(":")[2])) as rest:
        pulsar_store.urls = pulsar_store.urls[0], f"http://127.0.0.1:{rest.port}"
        async with pulsar_store.opened() as engine:
            await engine.join(LiveBroker(1, "host-1", 9001))
            topic = await engine.topics.create("t", 1, {})
            groups = GroupCoordinator(
                engine, GroupSettings(offsets_topic_num_partitions=2), leader_choice=ClusterView(engine, 1)
            )
            await groups.start()
            await until(lambda: groups.waiting_for is None)
            if how == "refused":
                rest.refuse = True
                rest.cut()
            else:
                rest.stall()
            await until(lambda: not engine.brokers_fresh)
            await until(lambda: not groups.refusal_of("a") and not groups.refusal_of("b"))
            began, offset = time.monotonic(), 0
            while time.monotonic() - began < 4 * (fresh + sure):
                offset += 1
                for group in ("a", "b"):
                    await until(partial(may_commit, groups, group), "the lead is sure")
                    assert not await commit(groups, group, [Commit("t", topic.topic_id, 0, offset)])
                    # What is read is answered from memory, as soon as a slow Pulsar has said again who leads.
                    await until(partial(is_answered, groups, group), "the lead is sure")
                await asyncio.sleep(0.05)  # at the pace of a client: what matters is how much time passes
            assert not engine.brokers_fresh
            rest.refuse = False
            rest.go_on()
            await until(lambda: engine.brokers_fresh)
            assert not groups.refusal_of("a")
            await groups.stop()


async def test_a_gateway_that_dies_while_rest_does_not_answer_is_found_by_its_name(
    pulsar_store: PulsarStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kop.storage.pulsar.cluster.broker_registry.FRESH_SECONDS", 0.5)
    monkeypatch.setattr("kop.storage.pulsar.cluster.broker_registry.POLL_SECONDS", 0.1)
    monkeypatch.setattr("kop.storage.pulsar.cluster.broker_registry.PROBE_SECONDS", 0.2)
    pulsar_store.answers = liveness.answers
    other = broker_process(pulsar_store, tmp_path, node_id="2")
    try:
        await asyncio.to_thread(other.start)
        async with link(int(pulsar_store.urls[1].rpartition(":")[2])) as rest:
            pulsar_store.urls = pulsar_store.urls[0], f"http://127.0.0.1:{rest.port}"
            async with pulsar_store.opened() as engine:
                await engine.join(LiveBroker(1, "host-1", 9001))
                await until(lambda: [broker.node_id for broker in engine.brokers] == [1, 2])
                rest.refuse = True
                rest.cut()
                await until(lambda: not engine.brokers_fresh)
                await asyncio.sleep(1)  # some questions for its name, which it holds
                assert [broker.node_id for broker in engine.brokers] == [1, 2]
                other.signal(signal.SIGKILL)
                await until(lambda: [broker.node_id for broker in engine.brokers] == [1])
                assert not engine.brokers_fresh
                assert engine.counts["outages/gateway"] == 1
                rest.refuse = False
    finally:
        other.kill()


class Snapshots:
    """The gateways that the broker knows of, as an engine was told when it last asked."""

    def __init__(self, engine: PulsarEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.last: set[int] = set()
        ask = engine.admin.stats

        async def asked(partition: str, **how: bool) -> dict[str, Any]:
            stats = await ask(partition, **how)
            if partition == f"{engine.context.naming.brokers_topic}-partition-0":
                self.last = publishers(stats)
            return stats

        monkeypatch.setattr(engine.admin, "stats", asked)


def publishers(stats: dict[str, Any]) -> set[int]:
    """Ids of the gateways that the broker knows of."""
    return {int(publisher["producerName"].rpartition("-")[2]) for publisher in stats["publishers"]}


async def test_an_id_is_taken_once(pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kop.storage.pulsar.cluster.broker_registry.BUSY_SECONDS", 1.0)
    async with pulsar_store.opened() as first_engine, pulsar_store.opened() as second_engine:
        await first_engine.join(LiveBroker(1, "host-1", 9001))
        with refused(ErrorCode.BROKER_ID_NOT_REGISTERED):
            await second_engine.join(LiveBroker(1, "host-2", 9002))


async def test_an_offset_that_one_gave_out_is_never_out_of_range_to_the_other(pulsar_store: PulsarStore) -> None:
    async with two_engines(pulsar_store) as (first_engine, second_engine):
        here = await make(first_engine)
        await until(lambda: second_engine.topics.get("t"))
        there = await attached(second_engine)
        for number in range(30):
            end = (await append(here, batch([str(number)]))).base_offset + 1
            result = there.read_cached(end, 1000, min_one=True) or await there.read(end, 1000, min_one=True)
            assert result.size == 0
            assert there.high_watermark == end
        await append(here, batch(["the last"]))
        await there.refresh()
        assert there.high_watermark == 31
        for engine in (first_engine, second_engine):
            log = await attached(engine)
            with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
                await log.read(32, 1000, min_one=True)


async def test_what_one_deletes_of_a_log_is_gone_for_the_other(pulsar_store: PulsarStore) -> None:
    async with two_engines(pulsar_store) as (first_engine, second_engine):
        here = await make(first_engine)
        await until(lambda: second_engine.topics.get("t"))
        there = await attached(second_engine)
        for number in range(10):
            await append(here, batch([str(number)]))
        assert await here.delete_records(4) == 4
        await until(lambda: there.log_start_offset == 4)
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            await there.read(3, 1000, min_one=True)


async def test_a_partition_that_nobody_asks_for_is_let_go_and_comes_back_as_it_was(pulsar_store: PulsarStore) -> None:
    async with pulsar_store.opened() as engine:
        log = await make(engine)
        for number in range(3):
            await append(log, batch([str(number)], producer=7, sequence=number))
        undo = log.on_advance(lambda: None)
        now = engine.loop.time()
        long_after = now + engine.settings.tail_seconds + 1
        log.close_idle(now, 10)
        log.close_idle(long_after, 10)
        assert log.attached  # somebody waits for it
        undo()
        looks = itertools.count(2)

        def is_let_go() -> bool:
            log.close_idle(next(looks) * long_after, 10)
            return not log.attached

        await until(is_let_go)  # the last append may still be under way at the first look
        assert (await append(log, batch(["3"], producer=7, sequence=3))).base_offset == 3
        await until(lambda: log.attached)
        await log.refresh()  # it may have been attached before the record was stored, and the tail brings that later
        assert await read_values(log) == ["0", "1", "2", "3"]
        assert not beyond_slowness(engine.counts)


async def test_a_gateway_that_does_not_answer_is_seen_within_seconds(
    pulsar_store: PulsarStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pulsar itself would see it after 30 to 60 s; asked for its name it looks at once."""
    monkeypatch.setattr("kop.storage.pulsar.cluster.broker_registry.PROBE_SECONDS", 1.0)
    other = broker_process(pulsar_store, tmp_path, node_id="2")

    def ids() -> list[int]:
        return [broker.node_id for broker in engine.brokers]

    try:
        await asyncio.to_thread(other.start)
        async with pulsar_store.opened() as engine:
            await engine.join(LiveBroker(1, "host-1", 9001))
            await until(lambda: ids() == [1, 2])
            await asyncio.sleep(2.5)  # nothing can be waited for: some questions pass, and nobody leaves
            assert ids() == [1, 2], "one that answers stays, however often it is asked"
            assert not beyond_slowness(engine.counts)
            other.signal(signal.SIGSTOP)
            await until(lambda: ids() == [1])
            assert beyond_slowness(engine.counts) == {"outages/gateway": 1}
            other.signal(signal.SIGCONT)
            await until(lambda: ids() == [1, 2])
    finally:
        other.kill()
