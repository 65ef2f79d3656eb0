"""The `kafka` entry format over a real Pulsar: the behavioural suite again, both formats in one log, what is kept.

Owns: `kop.entry.format=kafka` as the engine sees it, and what a topic that had it can no longer be.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from storage.batches import NOW, append, attached, batch, first, make, read_all, read_values, records, refused
from storage.engines import PulsarStore, policy_of
from storage.test_engine_suite import (  # noqa: F401 - run again here, over raw entries
    test_a_duplicate_joins_its_original,
    test_any_buffer_is_taken_and_stamped,
    test_log_append_time,
    test_look_ups_by_time,
    test_offsets_follow_the_order_of_calls,
    test_reads_take_whole_batches_up_to_a_limit,
    test_restart_keeps_everything,
    test_sequences_and_epochs,
)
from support.pulsar import Urls, fresh_namespace
from support.waiting import SECONDS, until

from kop.errors import ErrorCode
from kop.pulsar_client import EARLIEST, Entry
from kop.records import transcode
from kop.records.batch import Codec, iter_batches, read_header, stamp_create_time
from kop.storage.base import LogPolicy, PartitionLog, TimestampOffset, TopicInfo
from kop.storage.pulsar.engine import PulsarEngine
from kop.storage.pulsar.layout import RAW_PROPERTY
from kop.storage.pulsar.partition.log import PulsarLog

KAFKA = {"kop.entry.format": "kafka"}


@pytest.fixture
def pulsar_store(pulsar_urls: Urls) -> Iterator[PulsarStore]:
    with fresh_namespace(pulsar_urls) as pulsar:
        yield PulsarStore(pulsar.service_url, pulsar.admin_url, pulsar.namespace)


def always_raw(topic: TopicInfo) -> LogPolicy:
    """As with a broker-wide kop.entry.format=kafka."""
    return replace(policy_of(topic), raw_entries=not policy_of(topic).compact)


@pytest.fixture
def store(pulsar_store: PulsarStore) -> PulsarStore:
    """For the imported tests."""
    pulsar_store.policy = always_raw
    return pulsar_store


async def entries(log: PulsarLog) -> list[tuple[Entry, transcode.EntryView]]:
    """Of the whole partition, as Pulsar has them."""
    await log.refresh()
    stored: list[tuple[Entry, transcode.EntryView]] = []
    done = asyncio.Event()

    def on_entry(entry: Entry) -> None:
        stored.append((entry, transcode.parse_entry(entry.metadata)))
        if entry.index == log.high_watermark - 1:
            done.set()

    reader = await log.context.client.open_reader(log.partition_name, EARLIEST, permits=1000, on_entry=on_entry)
    async with asyncio.timeout(SECONDS):
        await done.wait()
    await reader.close()
    return stored


@asynccontextmanager
async def reopened(store: PulsarStore) -> AsyncIterator[PartitionLog]:
    """The log of "t" in an engine that wrote nothing of it."""
    async with store.opened() as engine:
        yield await attached(engine)


async def test_both_formats_in_one_topic_read_as_one_log(pulsar_store: PulsarStore) -> None:
    """From the tail, by catch-up from any offset, by time; in a gateway that wrote them and one that did not."""
    async with pulsar_store.opened() as engine, pulsar_store.opened() as other:
        log = await make(engine)
        topic = log.topic
        number, wrote = 0, []
        for round_ in range(6):
            await engine.topics.set_configs(topic.topic_id, KAFKA if round_ % 2 else {})
            for codec in (Codec.NONE, Codec.LZ4, Codec.ZSTD, Codec.GZIP, Codec.SNAPPY):
                values = [f"{number + i}" for i in range(3)]
                data = batch(values, keys=["k"] * 3, timestamp=NOW + number, codec=codec, producer=7, sequence=number)
                assert (await append(log, data)).base_offset == number
                wrote.append((round_ % 2 == 1, codec, bytes(data)))
                number += 3
        assert [view.raw for _, view in await entries(log)] == [raw for raw, _, _ in wrote]
        await until(lambda: other.topics.get("t"))
        tail = await attached(other)
        await tail.refresh()
        for each_log in (log, tail):
            assert await read_values(each_log) == [str(i) for i in range(number)]
            assert await read_values(each_log, cached=True) == [str(i) for i in range(number)]
    async with reopened(pulsar_store) as fresh:
        assert await read_values(fresh) == [str(i) for i in range(number)]
        for offset in range(number):
            read_back = records((await fresh.read(offset, 1, min_one=True)).buffers)
            assert read_back[0].offset <= offset <= read_back[-1].offset
            later = -(-offset // 3) * 3  # all records of a batch have the time of its first one
            expected = TimestampOffset(later, NOW + later) if later < number else None
            assert await fresh.find_by_time(NOW + offset) == expected
        stored: list[bytes] = []
        while (end := read_header(stored[-1]).next_offset if stored else 0) < number:
            for buffer in (await fresh.read(end, 1 << 20, min_one=True)).buffers:
                stored += [bytes(buffer[at : at + header.size]) for at, header in iter_batches(buffer)]
        for (raw, codec, came), now in zip(wrote, stored, strict=True):
            header = read_header(now)
            if raw:
                assert now[12:] == came[12:], "with its producer, sequence and codec"
                assert (header.producer_id, header.base_sequence) == (7, header.base_offset)
            assert header.codec in {codec, Codec.NONE}


@pytest.mark.parametrize("stored", ["raw", "raw, with the mistake", "messages"])
async def test_records_are_found_by_time_whatever_their_producer_made_of_the_header(
    pulsar_store: PulsarStore, monkeypatch: pytest.MonkeyPatch, stored: str
) -> None:
    """Clients leave the largest timestamp unset, and an earlier version stored it so."""
    claims, codecs = (-1, 0, 10**6), (Codec.NONE, Codec.LZ4, Codec.GZIP)
    count, offset = len(claims) * len(codecs), 0
    honest: list[bytes] = []
    async with pulsar_store.opened() as engine:
        log = await make(engine)
        if stored != "messages":
            await engine.topics.set_configs(log.topic.topic_id, KAFKA)
        if stored == "raw, with the mistake":
            monkeypatch.setattr(transcode, "stamp_create_time", lambda *_: None)
        for codec in codecs:
            for claimed in claims:
                base = NOW + 1000 * len(honest)
                data = batch(["a", "b", "c"], timestamp=[base, base + 500, base + 200], codec=codec)
                honest.append(bytes(data))
                stamp_create_time(data, claimed if claimed < 0 else base + claimed)
                await append(log, data)
        monkeypatch.undo()
        assert {view.raw for _, view in await entries(log)} == {stored != "messages"}
    async with reopened(pulsar_store) as fresh:
        assert await fresh.max_timestamp() == TimestampOffset(3 * count - 2, NOW + 1000 * count - 500)
        for number in range(count):
            base, offset = NOW + 1000 * number, 3 * number
            assert await fresh.find_by_time(base + 1) == TimestampOffset(offset + 1, base + 500)
            following = None if number + 1 == count else TimestampOffset(offset + 3, base + 1000)
            assert await fresh.find_by_time(base + 501) == following
            (buffer,) = (await fresh.read(offset, 1, min_one=True)).buffers
            told, header = read_header(buffer).max_timestamp, read_header(honest[number])
            plausible = header.codec and number % len(claims) and stored == "raw, with the mistake"
            assert plausible or told == header.max_timestamp
        assert await fresh.find_by_time(NOW + 1000 * count) is None


async def test_a_retry_after_a_change_of_format_is_stored_once(pulsar_store: PulsarStore) -> None:
    async with pulsar_store.opened() as engine:
        log = await make(engine, kop_entry_format="kafka")
        data = batch(["a", "b"], producer=3, sequence=0)
        assert (await append(log, bytearray(data))).base_offset == 0
        topic_id = log.topic.topic_id
    for format_ in ("pulsar", "kafka", "pulsar"):
        async with pulsar_store.opened() as engine:
            await engine.topics.set_configs(topic_id, {"kop.entry.format": format_})
            log = first(engine)
            assert (await append(log, bytearray(data))).base_offset == 0
            await log.attach()
            assert log.high_watermark == 2
    async with pulsar_store.opened() as engine:
        log = first(engine)
        assert (await append(log, batch(["c"], producer=3, sequence=2))).base_offset == 2
        assert await read_values(log) == ["a", "b", "c"]


async def test_a_raw_batch_beyond_the_brokers_limit_is_too_large(pulsar_store: PulsarStore) -> None:
    async with pulsar_store.opened() as engine:
        log = await make(engine, kop_entry_format="kafka")
        half = "v" * (engine.client.max_message_size // 2)
        with refused(ErrorCode.MESSAGE_TOO_LARGE):
            await append(log, batch([half, half], producer=3, sequence=0))
        assert (await append(log, batch([half], producer=3, sequence=0))).base_offset == 0
        await engine.topics.set_configs(log.topic.topic_id, {})
        assert (await append(log, batch([half, half], producer=3, sequence=1))).base_offset == 1
        assert [(view.raw, view.num_messages) for _, view in await entries(log)] == [(True, 1), (False, 1), (False, 1)]
        assert [len(record.value or b"") for record in await read_all(log)] == [len(half)] * 3


async def properties(engine: PulsarEngine, topic: TopicInfo) -> dict[str, str]:
    metadata = await engine.admin.partitioned_metadata(engine.topics.pulsar(topic.topic_id).full_name)
    return dict(metadata.properties)


async def test_a_topic_that_had_raw_batches_cannot_be_compacted(pulsar_store: PulsarStore) -> None:
    async with pulsar_store.opened() as engine:
        log = await make(engine, kop_entry_format="kafka")
        assert (await properties(engine, log.topic))[RAW_PROPERTY] == "true"
        topic_id = log.topic.topic_id
        await engine.topics.set_configs(topic_id, {})
        for configs in ({"cleanup.policy": "compact"}, {"cleanup.policy": "compact,delete", "retention.ms": "-1"}):
            with refused(ErrorCode.INVALID_CONFIG):
                await engine.topics.set_configs(topic_id, configs)
        assert (await engine.topics.set_configs(topic_id, {"retention.ms": "1000000"})).configs
        plain = await make(engine, "plain")
        assert RAW_PROPERTY not in await properties(engine, plain.topic)
        changed = await engine.topics.set_configs(plain.topic.topic_id, {"cleanup.policy": "compact"})
        assert changed.configs == {"cleanup.policy": "compact"}


async def test_a_broker_wide_format_is_noted_beside_each_topic_before_its_first_raw_batch(
    pulsar_store: PulsarStore,
) -> None:
    broker_wide = False

    def policy(topic: TopicInfo) -> LogPolicy:
        return always_raw(topic) if broker_wide else policy_of(topic)

    pulsar_store.policy = policy
    async with pulsar_store.opened() as engine:
        open_, later, idle = await make(engine, "t"), await make(engine, "later"), await make(engine, "idle")
        await append(open_, batch(["a"]))
        broker_wide = True
        engine.policies_changed()
        await append(later, batch(["a"]))
        assert [view.raw for _, view in await entries(later)] == [True]
        async with asyncio.timeout(SECONDS):
            for _ in range(200):
                await append(open_, batch(["b"]))
                if (await entries(open_))[-1][1].raw:
                    break
        for log in (open_, later):
            assert (await properties(engine, log.topic))[RAW_PROPERTY] == "true"
            assert not set(await read_values(log)) - {"a", "b"}
        assert RAW_PROPERTY not in await properties(engine, idle.topic)
        with refused(ErrorCode.INVALID_CONFIG):
            await engine.topics.set_configs(open_.topic.topic_id, {"cleanup.policy": "compact"})
