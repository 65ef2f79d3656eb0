"""kop.entry.format=kafka: batches in Pulsar as they came, as KoP stores them, beside Pulsar's own messages.

pulsar-client cannot be the referee here: it takes such entries for its own batches and reads past their end. Pulsar's
REST shows what is stored.
"""

from __future__ import annotations

import json
from functools import partial

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient
from interop.interop_kit import NOW, SECONDS, Interop, raw, run
from interop.test_policies import alter, described
from support.gateway import produce_fields
from support.pulsar_admin import PulsarAdmin

from kop.errors import ErrorCode
from kop.pulsar_client.admin import StoredEntry
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.records.batch import Codec, build, read_header
from kop.records.record import Record


def entries(interop: Interop, topic: str) -> list[StoredEntry]:
    """Of partition 0, by Pulsar's REST."""
    partition = interop.partition(topic)
    stats = interop.admin(lambda admin: admin.internal_stats(partition))
    last_ledger, last_entry = map(int, stats["lastConfirmedEntry"].split(":"))
    counts = [(ledger["ledgerId"], ledger["entries"]) for ledger in stats["ledgers"]]
    counts = [(ledger, last_entry + 1 if ledger == last_ledger else count) for ledger, count in counts]
    return [
        interop.admin(partial(PulsarAdmin.entry, partition=partition, ledger=ledger, entry=entry))
        for ledger, count in counts
        for entry in range(count)
    ]


def is_raw(entry: StoredEntry) -> bool:
    return json.loads(entry.headers.get("X-Pulsar-PROPERTY", "{}")) == {"entry.format": "kafka"}


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name.lower())
def test_pulsar_has_the_batch_as_it_came_under_kops_mark(interop: Interop, codec: Codec) -> None:
    topic = interop.create(interop.name("raw"), kop_entry_format="kafka")
    records = [
        Record(i, NOW + i, b"k%d" % i, b"value %d " % i * 100, ((b"h", b"\xff"), (b"h", None))) for i in range(20)
    ]
    assert interop.write(topic, records, codec=codec) == [0]
    (entry,) = entries(interop, topic)
    assert is_raw(entry)
    assert (entry.index, entry.num_messages) == (19, 20)
    assert entry.payload == bytes(build(records, codec=codec))
    assert interop.read(topic, 0, 20, interop.gateway) == records
    assert interop.read(topic, 0, 20, interop.other) == records
    messages = [message[1:] for message in interop.consume(topic, 20, gateway=interop.other)]
    assert messages == [(r.key, r.value, r.timestamp, [("h", b"\xff"), ("h", None)]) for r in records]


def test_a_topic_has_both_formats_and_native_messages_between(interop: Interop) -> None:
    topic = interop.create(interop.name("both"))
    wrote: list[bytes] = []
    for number, codec in enumerate((Codec.NONE, Codec.LZ4, Codec.ZSTD)):
        for format_ in ("kafka", "pulsar"):
            alter(interop, topic, kop_entry_format=format_)
            values = [b"%s %d %d" % (format_.encode(), number, i) for i in range(3)]
            assert interop.write(
                topic, [Record(i, NOW, b"k", value) for i, value in enumerate(values)], codec=codec
            ) == [len(wrote)]
            wrote += values
        native = [b"native %d %d" % (number, i) for i in range(2)]
        interop.send(interop.partition(topic), [{"content": value} for value in native])
        wrote += native
        interop.ended(topic, len(wrote))
    assert [is_raw(entry) for entry in entries(interop, topic)][:2] == [True, False]
    for gateway in (interop.gateway, interop.other):
        assert interop.ended(topic, len(wrote), gateway) == (0, len(wrote))
        assert [record.value for record in interop.read(topic, 0, len(wrote), gateway)] == wrote
        for offset in range(len(wrote)):
            (record,) = interop.read(topic, offset, offset + 1, gateway)
            assert (record.offset, record.value) == (offset, wrote[offset])


def test_entries_of_several_batches_with_holes_such_as_kops(interop: Interop) -> None:
    """Another offset in front, several batches in an entry, records that are not there: places keep their offsets."""
    topic = interop.create(interop.name("holes"))
    first = build([Record(7, NOW + 5, b"a", b"1"), Record(9, NOW, b"b", b"2")], last_offset=10, codec=Codec.GZIP)
    second = build([Record(0, NOW + 9, b"c", b"3"), Record(1, NOW + 1, b"d", b"4")])
    mark = [pb.KeyValue(key="entry.format", value="kafka")]
    for payload, count in ((bytes(first + second), 6), (bytes(second), 2)):
        interop.send_made(
            interop.partition(topic), ({"properties": mark, "num_messages_in_batch": count}, payload), count=count
        )
    for gateway in (interop.gateway, interop.other):
        interop.ended(topic, 8, gateway)
        values = [(record.offset, record.value) for record in interop.read(topic, 0, 8, gateway)]
        assert values == [(0, b"1"), (2, b"2"), (4, b"3"), (5, b"4"), (6, b"3"), (7, b"4")]
        for offset, value in ((1, b"2"), (3, b"3"), (5, b"4")):
            assert interop.consume(topic, 1, offset=offset, gateway=gateway)[0].value == value
        assert interop.offsets(topic, NOW + 6, NOW + 2, -3, gateway=gateway) == [
            (4, NOW + 9), (0, NOW + 5), (4, NOW + 9)
        ]  # fmt: skip
    assert interop.write(topic, [Record(0, NOW, None, b"next")]) == [8]


def test_log_append_time_is_the_brokers_in_both_formats(interop: Interop) -> None:
    topic = interop.create(
        interop.name("time"), message_timestamp_type="LogAppendTime", kop_entry_format="kafka", retention_ms="-1"
    )
    interop.write(topic, [Record(0, NOW, b"k", b"raw"), Record(1, NOW, b"k", b"raw")], codec=Codec.ZSTD)
    alter(interop, topic, kop_entry_format=None)
    interop.write(topic, [Record(0, NOW, b"k", b"pulsar")])
    here = interop.read(topic, 0, 3, interop.gateway)
    assert here == interop.read(topic, 0, 3, interop.other)
    assert here[0].timestamp == here[1].timestamp <= here[2].timestamp
    assert here[0].timestamp > NOW + 86_400_000, "today's"
    assert interop.offsets(topic, here[0].timestamp) == [(0, here[0].timestamp)]


def test_an_idempotent_producer_over_a_change_of_format(interop: Interop) -> None:
    topic = interop.create(interop.name("idempotent"), kop_entry_format="kafka")
    producer = ck.Producer({"bootstrap.servers": interop.gateway.bootstrap, "enable.idempotence": True, "linger.ms": 0})
    failed: list[object] = []
    for number in range(60):
        if number % 20 == 10:
            alter(interop, topic, kop_entry_format="pulsar" if number % 40 == 10 else "kafka")
        producer.produce(
            topic, b"%d" % number, partition=0, on_delivery=lambda error, _: failed.append(error) if error else None
        )
        assert producer.flush(SECONDS) == 0
    assert not failed
    assert [record.value for record in interop.read(topic, 0, 60)] == [b"%d" % number for number in range(60)]
    assert {is_raw(entry) for entry in entries(interop, topic)} == {True, False}


def test_a_raw_batch_beyond_pulsars_limit_is_too_large_and_a_pulsar_one_is_split(interop: Interop) -> None:
    topic = interop.create(interop.name("large"), kop_entry_format="kafka", max_message_bytes=str(16 << 20))
    value = b"x" * (3 << 20)
    batch = bytes(build([Record(i, NOW, None, value) for i in range(2)]))

    async def refused() -> int:
        async with raw(interop.gateway) as client:
            answer = await client.call(0, 9, **produce_fields(topic, batch, version=9))
            return int(answer.responses[0].partition_responses[0].error_code)

    assert run(refused()) == ErrorCode.MESSAGE_TOO_LARGE
    assert interop.ends(topic) == (0, 0)
    assert interop.write(topic, [Record(0, NOW, None, value)]) == [0]
    alter(interop, topic, kop_entry_format="pulsar")
    assert interop.write(topic, [Record(i, NOW, None, value) for i in range(2)]) == [1]
    assert [(is_raw(entry), entry.num_messages) for entry in entries(interop, topic)] == [
        (True, 1), (False, 1), (False, 1)
    ]  # fmt: skip
    assert [record.value for record in interop.read(topic, 0, 3)] == [value] * 3


def test_the_setting_is_described_altered_and_checked(interop: Interop) -> None:
    topic = interop.create(interop.name("setting"))
    assert described(interop, topic)["kop.entry.format"] == ("pulsar", True)
    alter(interop, topic, kop_entry_format="kafka")
    assert described(interop, topic)["kop.entry.format"] == ("kafka", False)
    for values in ({"cleanup_policy": "compact"}, {"kop_entry_format": "avro"}):
        with pytest.raises(ck.KafkaException) as caught:
            alter(interop, topic, **values)
        assert caught.value.args[0].code() == ErrorCode.INVALID_CONFIG
    alter(interop, topic, kop_entry_format=None)
    with pytest.raises(ck.KafkaException, match="cannot compact it") as caught:
        alter(interop, topic, cleanup_policy="compact")
    assert caught.value.args[0].code() == ErrorCode.INVALID_CONFIG
    assert described(interop, topic)["cleanup.policy"] == ("delete", True)
    admin = AdminClient({"bootstrap.servers": interop.gateway.bootstrap})
    with pytest.raises(ck.KafkaException) as caught:
        interop.create(interop.name("refused"), kop_entry_format="kafka", cleanup_policy="compact")
    assert caught.value.args[0].code() == ErrorCode.INVALID_CONFIG
    assert admin.list_topics(topic, timeout=SECONDS).topics[topic].error is None


def test_read_header_of_what_is_stored(interop: Interop) -> None:
    """A KoP that takes over, or its payload processor, finds whole batches of magic 2 with their producer fields."""
    topic = interop.create(interop.name("header"), kop_entry_format="kafka")
    producer = ck.Producer({"bootstrap.servers": interop.gateway.bootstrap, "enable.idempotence": True})
    for number in range(2):
        producer.produce(topic, b"v", partition=0)
        assert producer.flush(SECONDS) == 0
        header = read_header(entries(interop, topic)[number].payload)
        assert (header.magic, header.base_sequence, header.record_count) == (2, number, 1)
        assert header.producer_id >= 0
