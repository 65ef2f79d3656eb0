"""The gateways' own topics after Pulsar has compacted them: what is read at a takeover, what is kept, who is told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping

import pytest
from prometheus_client import generate_latest
from storage.engines import PulsarStore
from support.pulsar import Urls, fresh_namespace
from support.pulsar_admin import PulsarAdmin
from support.pulsar_gateway import PulsarGateway
from support.waiting import until, wait_until

from kop.cluster.client_topics import OFFSETS_TOPIC
from kop.coordination.state_log import StateLog, StateTopic
from kop.errors import ErrorCode
from kop.pulsar_client import PulsarError
from kop.pulsar_client.admin import FOREVER, Retention
from kop.storage.pulsar.engine import PulsarEngine
from kop.storage.pulsar.partition.log import PulsarLog
from kop.storage.pulsar.topics import compaction
from kop.storage.pulsar.topics.compaction import (
    AFTERWARDS,
    LATE_BYTES,
    LATE_SECONDS,
    Uncompacted,
    retention_of,
    uncompacted,
)
from kop.storage.pulsar.topics.policies import OWN_COMPACTION_THRESHOLD

NOW = 1_700_000_000_000


@pytest.fixture
def pulsar_store(pulsar_urls: Urls) -> Iterator[PulsarStore]:
    with fresh_namespace(pulsar_urls) as pulsar:
        yield PulsarStore(pulsar.service_url, pulsar.admin_url, pulsar.namespace)


async def opened(engine: PulsarEngine, partitions: int = 1) -> StateLog:
    """The offsets topic, every partition led by this engine."""
    state_log = StateLog(engine, StateTopic(OFFSETS_TOPIC, partitions, {"cleanup.policy": "compact"}), lambda: NOW)
    await state_log.open()
    for partition in range(partitions):
        await state_log.lead(partition, lambda: None)
    return state_log


def partition_of(engine: PulsarEngine, index: int = 0) -> PulsarLog:
    topic = engine.topics.get(OFFSETS_TOPIC)
    assert topic is not None
    log = engine.log(topic.topic_id, index)
    assert log is not None
    return log


async def write(log: StateLog, records: Mapping[bytes, bytes | None], partition: int = 0) -> None:
    """Each record in a batch of its own."""
    waiting = []
    for record in records.items():
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        log.write(partition, [record], future.set_result)
        log.flush()
        waiting.append(future)
    assert set(await asyncio.gather(*waiting)) <= {ErrorCode.NONE}


async def compact(engine: PulsarEngine, log: PulsarLog) -> None:
    await engine.admin.compact(log.partition_name)

    async def done() -> bool:
        status = await engine.admin.compaction_status(log.partition_name)
        assert status.status != "ERROR", status
        return status.status == "SUCCESS"

    await until(done, "the compaction")


async def drop_originals(engine: PulsarEngine, log: PulsarLog, admin_url: str) -> None:
    """What retention lets go in a day and some ledgers, now."""
    full_name = log.partition_name.removesuffix("-partition-0")
    before = (await engine.admin.internal_stats(log.partition_name))["ledgers"]
    # Its cursor moves after 1,000 entries or two minutes only, and holds retention back until then.
    await engine.admin.set_deduplication(full_name, False)

    async def applied() -> bool:
        return not await engine.admin.get_deduplication(full_name, applied=True)

    # Pulsar may lose a policy when another one of the topic is set before it has heard of the first.
    await until(applied, "deduplication is off")
    await engine.admin.set_retention(full_name, Retention(0, 0))

    async def gone() -> bool:
        async with PulsarAdmin(admin_url) as admin:
            await admin.trim(log.partition_name)
        stats = await engine.admin.internal_stats(log.partition_name)
        return {ledger["ledgerId"] for ledger in stats["ledgers"]}.isdisjoint(
            ledger["ledgerId"] for ledger in before[:-1]
        )

    await until(gone, "retention drops the ledgers")


@pytest.mark.parametrize("more", [True, False], ids=["written to since", "emptied"])
async def test_a_takeover_reads_what_compaction_kept_where_the_log_is_gone(
    pulsar_store: PulsarStore, more: bool
) -> None:
    async with pulsar_store.opened() as engine:
        groups = await opened(engine)
        log = partition_of(engine)
        await write(groups, {b"rare": b"kept", b"gone": b"x"})
        for number in range(20):
            await write(groups, {b"k%d" % key: b"%d" % number for key in range(5)})
        await write(groups, {b"gone": None})
        await compact(engine, log)
        expected: dict[bytes, bytes | None] = {b"rare": b"kept", **{b"k%d" % key: b"19" for key in range(5)}}
        await groups.resign(0)
        await engine.admin.unload(log.partition_name)
        await engine.client.partitions(log.partition_name)
        if more:
            await groups.lead(0, lambda: None)
            await write(groups, {b"k0": b"newest", b"new": b"1"})
            expected |= {b"k0": b"newest", b"new": b"1"}
            await log.refresh()  # in a new ledger producers may be answered before the tail has come so far
            await groups.resign(0)
        end = log.high_watermark
        await drop_originals(engine, log, pulsar_store.urls[1])

    async with pulsar_store.opened() as engine:
        groups = await opened(engine)
        log = partition_of(engine)
        assert (log.log_start_offset, log.high_watermark) == (0, end)
        values = await groups.read(0)
        assert {key: value for key, value in values.items() if value is not None} == expected
        # It goes on: what is written now is there for the next one.
        await write(groups, {b"rare": b"changed"})
        await log.refresh()  # where the log was empty the write may be answered before the tail has brought it
        assert log.high_watermark == end + 1
    async with pulsar_store.opened() as engine:
        groups = await opened(engine)
        assert (await groups.read(0))[b"rare"] == b"changed"


async def test_the_log_start_moves_to_what_compaction_kept(pulsar_store: PulsarStore) -> None:
    """Not to what retention left: that would cut off the oldest keys."""
    async with pulsar_store.opened() as engine:
        groups = await opened(engine)
        log = partition_of(engine)
        await write(groups, {b"a": b"1"})
        await write(groups, {b"rare": b"kept"})
        await write(groups, {b"a": b"2"})
        await compact(engine, log)
        await groups.resign(0)
        await engine.admin.unload(log.partition_name)
        await groups.lead(0, lambda: None)
        await write(groups, {b"b": b"1"})
        await log.refresh()  # in a new ledger producers may be answered before the tail has come so far
        await drop_originals(engine, log, pulsar_store.urls[1])
        await log.ask_start()  # `refresh_start` may share an answer from before, for a second
        assert (log.log_start_offset, log.high_watermark) == (1, 4)
        assert await groups.read(0) == {b"rare": b"kept", b"a": b"2", b"b": b"1"}


async def test_a_log_of_tombstones_alone_ends_where_it_ended(pulsar_store: PulsarStore) -> None:
    async with pulsar_store.opened() as engine:
        groups = await opened(engine)
        log = partition_of(engine)
        await write(groups, {b"a": b"1"})
        await write(groups, {b"a": None})
        await compact(engine, log)
        await groups.resign(0)
        await engine.admin.unload(log.partition_name)
        await engine.client.partitions(log.partition_name)
        await drop_originals(engine, log, pulsar_store.urls[1])
    async with pulsar_store.opened() as engine:
        groups = await opened(engine)
        assert await groups.read(0) == {}
        assert partition_of(engine).high_watermark == 2


async def test_all_is_kept_until_a_compaction_has_succeeded(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compaction, "RETENTION_EVERY", 0.0)
    async with pulsar_store.opened() as engine:
        groups = await opened(engine, 2)
        log = partition_of(engine)
        full_name = log.partition_name.removesuffix("-partition-0")

        async def kept() -> Retention | None:
            await engine.compactions.look()
            return await engine.admin.get_retention(full_name, applied=True)

        assert await engine.admin.get_compaction_threshold(full_name, applied=True) == OWN_COMPACTION_THRESHOLD
        await write(groups, {b"k": b"%d" % 1})
        assert await kept() == FOREVER
        uncompacted = engine.compactions.uncompacted
        assert uncompacted[OFFSETS_TOPIC, 0].size > 0
        assert uncompacted[OFFSETS_TOPIC, 1] == Uncompacted(0, 0.0)
        await compact(engine, log)

        async def lifted() -> bool:
            return await kept() == AFTERWARDS

        await until(lifted, "the retention after a compaction")
        assert engine.compactions.uncompacted[OFFSETS_TOPIC, 0] == Uncompacted(0, 0.0)
        # Another retention is the operator's choice.
        await engine.admin.set_retention(full_name, Retention(7 * 24 * 60, -1))

        async def chosen() -> bool:
            return await kept() == Retention(7 * 24 * 60, -1)

        await until(chosen, "the operator's retention")
        assert await kept() == Retention(7 * 24 * 60, -1)
        # Without the cursor nothing holds what was not compacted.
        async with PulsarAdmin(pulsar_store.urls[1]) as admin:

            async def forever() -> bool:
                # Pulsar makes the cursor anew where it hears only now of the policy that was set before.
                with contextlib.suppress(PulsarError):
                    await admin.delete_subscription(partition_of(engine, 1).partition_name, compaction.CURSOR)
                return await kept() == FOREVER

            await until(forever, "all is kept again")
        assert engine.counts["compactions_without_cursor"] > 0
        assert "has lost its subscription __compaction" in caplog.text


async def test_a_late_compaction_is_told_once_and_started(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compaction, "LATE_BYTES", 1)
    monkeypatch.setattr(compaction, "LATE_SECONDS", -1.0)
    caplog.set_level(logging.WARNING, "kop")
    async with pulsar_store.opened() as engine:
        groups = await opened(engine)
        await write(groups, {b"k": b"%d" % 1})

        async def started() -> bool:
            await engine.compactions.look()
            return engine.compactions.uncompacted[OFFSETS_TOPIC, 0].size == 0

        await until(started, "the compaction that the gateway starts")
        assert engine.counts["compactions_late"] > 0
        # The shared gateway of the interop tests runs in another thread of this process, with the same limits.
        here = [record for record in caplog.records if record.thread == threading.get_ident()]
        told = [record for record in here if "no compaction has seen" in record.getMessage()]
        assert len(told) == 1
        assert "brokerServiceCompactionMonitorIntervalInSeconds" in told[0].getMessage()


def test_metrics_tell_what_no_compaction_has_seen(pulsar_urls: Urls) -> None:
    with fresh_namespace(pulsar_urls) as pulsar:
        gateway = PulsarGateway(pulsar, offsets_topic_num_partitions="2").start()
        try:

            def looked_at_both() -> bool:
                gateway.call(gateway.engine.compactions.look())
                return {(OFFSETS_TOPIC, 0), (OFFSETS_TOPIC, 1)} <= gateway.engine.compactions.uncompacted.keys()

            wait_until(looked_at_both, "the gateway leads both partitions")  # it may lead one only after its start
            assert gateway.serving is not None
            text = generate_latest(gateway.serving.gateway.metrics.registry).decode()
        finally:
            gateway.stop()
    for partition in range(2):
        assert f'kop_uncompacted_bytes{{partition="{partition}",topic="__offsets"}} 0.0' in text
        assert f'kop_uncompacted_seconds{{partition="{partition}",topic="__offsets"}} 0.0' in text


def test_what_is_late_is_large_and_old() -> None:
    assert Uncompacted(LATE_BYTES, LATE_SECONDS).late
    assert not Uncompacted(LATE_BYTES, LATE_SECONDS - 1).late, "written just now"
    assert not Uncompacted(LATE_BYTES - 1, 1e9).late, "a quiet partition never reaches the threshold"


def test_uncompacted_from_stats() -> None:
    cursor = {"backlogSize": 10, "earliestMsgPublishTimeInBacklog": NOW - 5000}
    assert uncompacted({"subscriptions": {"__compaction": cursor}}, NOW) == Uncompacted(10, 5.0)
    done = {"backlogSize": 0, "earliestMsgPublishTimeInBacklog": -1}
    assert uncompacted({"subscriptions": {"__compaction": done}}, NOW) == Uncompacted(0, 0.0)
    assert uncompacted({"subscriptions": {}}, NOW) is None


def test_retention_needs_every_cursor_and_one_success() -> None:
    new = {"cursors": {"__compaction": {}}, "compactedLedger": {"ledgerId": -1}}
    compacted = {"cursors": {"__compaction": {}}, "compactedLedger": {"ledgerId": 7}}
    without = {"cursors": {}, "compactedLedger": {"ledgerId": -1}}
    assert retention_of([new, new]) == FOREVER
    assert retention_of([new, compacted]) == AFTERWARDS
    assert retention_of([without, compacted]) == FOREVER
