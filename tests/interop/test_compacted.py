"""Compacted topics: what Pulsar's compaction took leaves its offsets behind, so that no consumer stops or slips."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from interop.interop_kit import NOW, SECONDS, Interop, fetch, raw, run, take
from pulsar import CompressionType
from support.gateway import produce_fields
from support.pulsar_gateway import PulsarGateway
from support.waiting import wait_until

from kop.errors import ErrorCode
from kop.records.batch import Codec, build
from kop.records.record import Record


def compact(interop: Interop, topic: str) -> None:
    """Now, and wait until it is done."""
    partition = interop.partition(topic)
    interop.admin(lambda admin: admin.compact(partition))

    def done() -> bool:
        status = interop.admin(lambda admin: admin.compaction_status(partition))
        if status.status == "ERROR":  # a Pulsar broker on a busy machine loses its connection to itself
            interop.admin(lambda admin: admin.compact(partition))
        return status.status == "SUCCESS"

    wait_until(done, "the compaction")


def contents(records: list[Record]) -> Mapping[int, tuple[bytes | None, bytes | None]]:
    return {record.offset: (record.key, record.value) for record in records}


def from_storage(interop: Interop, topic: str, end: int) -> Mapping[int, tuple[bytes | None, bytes | None]]:
    """As a gateway has it that was started after the compaction."""
    gateway = PulsarGateway(interop.pulsar, interop.name("fresh"))
    try:
        gateway.start()
        assert interop.ends(topic, gateway) == (0, end)
        rows = contents(interop.read(topic, 0, end, gateway))
        with interop.consumer(topic, gateway=gateway) as consumer:
            assert [record.offset for record in take(consumer, len(rows))] == list(rows)
            assert [position.offset for position in consumer.position(consumer.assignment())] == [max(rows) + 1]
        return rows
    finally:
        gateway.stop()


def test_gaps_are_empty_batches_and_the_newest_of_each_key_keeps_its_offset(interop: Interop) -> None:
    topic = interop.create(interop.name("compact"), cleanup_policy="compact")
    for number in range(4):
        interop.write(topic, [Record(i, NOW, b"k%d" % i, b"%d.%d" % (number, i)) for i in range(3)])
    interop.send(interop.partition(topic), [{"content": b"native", "partition_key": "k0"}])
    interop.write(topic, [Record(0, NOW, b"last", b"of all")])
    compact(interop, topic)
    expected = {10: (b"k1", b"3.1"), 11: (b"k2", b"3.2"), 12: (b"k0", b"native"), 13: (b"last", b"of all")}
    assert from_storage(interop, topic, 14) == expected


def test_tombstones_go_also_where_they_are_the_last(interop: Interop) -> None:
    topic = interop.create(interop.name("tombstone"), cleanup_policy="compact")
    interop.write(topic, [Record(0, NOW, b"a", b"1"), Record(1, NOW, b"b", b"1")], [Record(0, NOW, b"a", None)])
    compact(interop, topic)
    assert from_storage(interop, topic, 3) == {1: (b"b", b"1")}
    interop.write(topic, [Record(0, NOW, b"c", b"1")])
    assert from_storage(interop, topic, 4) == {1: (b"b", b"1"), 3: (b"c", b"1")}


def test_an_empty_value_is_no_deletion(interop: Interop) -> None:
    """Pulsar's compaction takes a message without a payload for one."""
    topic = interop.create(interop.name("empty"), cleanup_policy="compact")
    interop.write(topic, [Record(0, NOW, b"a", b"1"), Record(1, NOW, b"b", b"1")], [Record(0, NOW, b"a", b"")])
    interop.write(topic, [Record(0, NOW, b"last", b"of all")])
    before = contents(interop.read(topic, 0, 4, interop.gateway))
    assert before[2] == (b"a", b"")
    compact(interop, topic)
    assert from_storage(interop, topic, 4) == {1: (b"b", b"1"), 2: (b"a", b""), 3: (b"last", b"of all")}


def test_what_pulsar_compressed_again_is_read_from_storage(interop: Interop) -> None:
    """Its compaction writes batches anew, in their codec: ZLIB, which is gzip's, without a last block."""
    topics = []
    for codec in Codec:
        topic = interop.create(interop.name(codec.name.lower()), cleanup_policy="compact")
        for number in range(2):
            interop.write(
                topic, [Record(i, NOW, b"k%d" % i, b"%d " % number * 100) for i in range(3 - number)], codec=codec
            )
        native = [{"content": b"native " * 20, "partition_key": key} for key in ("k0", "n")]
        codec_of_it = getattr(CompressionType, ("NONE", "ZLib", "SNAPPY", "LZ4", "ZSTD")[codec])
        interop.send(interop.partition(topic), native, compression_type=codec_of_it, batching_max_publish_delay_ms=9999)
        interop.ended(topic, 7)
        compact(interop, topic)
        topics.append(topic)
    expected = {
        2: (b"k2", b"0 " * 100),
        4: (b"k1", b"1 " * 100),
        5: (b"k0", b"native " * 20),
        6: (b"n", b"native " * 20),
    }
    gateway = PulsarGateway(interop.pulsar, interop.name("fresh"))
    try:
        gateway.start()
        for topic in topics:
            assert contents(interop.read(topic, 0, 7, gateway)) == expected, topic
    finally:
        gateway.stop()


def test_native_messages_without_a_key_vanish_and_leave_their_offsets(interop: Interop) -> None:
    topic = interop.create(interop.name("keyless"), cleanup_policy="compact")
    interop.write(topic, [Record(0, NOW, b"a", b"1")])
    interop.send(interop.partition(topic), [{"content": b"no key"}, {"content": b"k", "partition_key": "b"}])
    interop.send(interop.partition(topic), [{"content": b"none either"}])
    interop.ended(topic, 4)
    compact(interop, topic)
    assert from_storage(interop, topic, 4) == {0: (b"a", b"1"), 2: (b"b", b"k")}


def test_all_that_is_left_of_a_log_may_be_nothing(interop: Interop) -> None:
    topic = interop.create(interop.name("nothing"), cleanup_policy="compact")
    interop.write(topic, [Record(0, NOW, b"a", b"1")], [Record(0, NOW, b"a", None)])
    compact(interop, topic)
    gateway = PulsarGateway(interop.pulsar, interop.name("fresh"))
    try:
        gateway.start()
        assert interop.ends(topic, gateway) == (0, 2)
        assert interop.read(topic, 0, 2, gateway) == []
    finally:
        gateway.stop()


@pytest.mark.parametrize("offset", [0, 4, 7])
def test_a_fetch_inside_a_gap_answers_at_once(interop: Interop, offset: int) -> None:
    topic = interop.create(interop.name("gap"), cleanup_policy="compact")
    for number in range(8):
        interop.write(topic, [Record(0, NOW, b"k", b"%d" % number)])
    interop.write(topic, [Record(0, NOW, b"other", b"v")])
    compact(interop, topic)
    interop.known(topic, interop.other)
    fetched = fetch(interop.other, topic, offset, max_wait_ms=int(SECONDS * 500))
    assert fetched.error == ErrorCode.NONE
    assert fetched.batches[0][0] <= offset <= fetched.batches[0][1]
    assert contents(fetched.records) == {7: (b"k", b"7"), 8: (b"other", b"v")}


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_null_keys_are_refused(interop: Interop, codec: Codec) -> None:
    topic = interop.create(interop.name("nullkey"), cleanup_policy="compact")
    batch = bytes(build([Record(i, NOW, key, b"v") for i, key in enumerate((b"a", None, b"", None))], codec=codec))

    async def produce() -> Any:
        async with raw(interop.gateway) as client:
            answer = await client.call(0, 9, **produce_fields(topic, batch, version=9))
            return answer.responses[0].partition_responses[0]

    part = run(produce())
    assert part.error_code == ErrorCode.INVALID_RECORD
    reason = "Compacted topic cannot accept message without key"
    assert [(error.batch_index, error.batch_index_error_message) for error in part.record_errors] == [
        (1, reason),
        (3, reason),
    ]
    assert interop.ends(topic) == (0, 0)
    assert interop.write(topic, [Record(0, NOW, b"", b"v")], codec=codec) == [0]


@pytest.mark.parametrize("batching", [False, True])
def test_native_messages_without_a_key_are_warned_of_once_and_counted(
    interop: Interop, caplog: pytest.LogCaptureFixture, batching: bool
) -> None:
    what = "compaction/keyless_message"
    topic = interop.create(interop.name("warned"), partitions=2, cleanup_policy="compact")
    for index in range(2):
        interop.gateway.call(interop.gateway.log(topic, index).attach())
    before = interop.gateway.engine.counts.get(what, 0)
    interop.send(interop.partition(topic), [{"content": b"k", "partition_key": "k"}], batching_enabled=batching)
    interop.ended(topic, 1)
    assert interop.gateway.engine.counts.get(what, 0) == before
    for index in (0, 1, 0):
        interop.send(interop.partition(topic, index), [{"content": b"none"}], batching_enabled=batching)
    wait_until(lambda: interop.gateway.engine.counts.get(what, 0) == before + 3, "three entries are counted")
    ours = [line for line in caplog.messages if topic in line and "without a key" in line]
    assert ours == [line for line in ours[:1] if line.startswith(f"topic {topic}: a Pulsar client writes")]
    assert len(ours) == 1
    other = interop.create(interop.name("unwarned"))
    interop.ends(other)
    interop.send(interop.partition(other), [{"content": b"none"}], batching_enabled=batching)
    interop.ended(other, 1)
    assert interop.gateway.engine.counts[what] == before + 3
