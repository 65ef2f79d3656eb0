"""Pulsar entries of native producers -> Kafka batches, in both twins: all that they may write, and what is refused."""

from __future__ import annotations

import random
import tracemalloc
import zlib
from types import ModuleType

import pytest
from records.transcode_kit import (
    NATIVE,
    TWINS,
    back,
    compressed,
    entries,
    native_batch,
    native_view,
    properties,
    refused,
    squeeze,
    using,
)

from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.records import transcode
from kop.records.batch import Record
from kop.records.transcode import UndecodableEntryError

pytestmark = pytest.mark.parametrize("twin", TWINS)


@pytest.mark.parametrize("compression", range(5))
def test_native_batches_in_all_compressions(twin: ModuleType, compression: int) -> None:
    messages = [
        (pb.SingleMessageMetadata(partition_key="k", event_time=5, sequence_id=3), b"one" * 500),
        (pb.SingleMessageMetadata(partition_key="/wA=", partition_key_b64_encoded=True), b""),
        (pb.SingleMessageMetadata(ordering_key=b"\x00o", null_value=True), b""),
        (pb.SingleMessageMetadata(properties=properties(("b", "2"), ("a", "1"), ("b", "ü"))), b"two"),
        (pb.SingleMessageMetadata(partition_key="p", ordering_key=b"o", null_partition_key=False), b""),
        (pb.SingleMessageMetadata(partition_key="p", null_partition_key=True), b""),
    ]
    with using(twin):
        header, records = back(*native_batch(messages, compression), base_offset=40)
    now = 1_700_000_000_999
    assert records == [
        Record(40, 5, b"k", b"one" * 500),
        Record(41, now, b"\xff\x00", b""),
        Record(42, now, b"\x00o", None),
        Record(43, now, None, b"two", ((b"b", b"2"), (b"a", b"1"), (b"b", "ü".encode()))),
        Record(44, now, b"p", b""),
        Record(45, now, None, b""),
    ]
    assert header.codec == (0, 3, 1, 4, 2)[compression]


@pytest.mark.parametrize("compression", range(5))
@pytest.mark.parametrize("value", [b"", b"value" * 300])
def test_native_single_messages(twin: ModuleType, compression: int, value: bytes) -> None:
    meta = pb.MessageMetadata(
        **NATIVE,
        partition_key="k",
        event_time=9,
        properties=properties(("p", "q"), ("entry.format", "kafka")),  # no batch: not KoP's format
        compression=pb.CompressionType.Name(compression),
        uncompressed_size=len(value),
        schema_version=b"\x00",
        deliver_at_time=5,
    ).SerializeToString()
    with using(twin):
        _, records = back(meta, squeeze(compression, value), base_offset=3)
    assert records == [Record(3, 9, b"k", value, ((b"p", b"q"), (b"entry.format", b"kafka")))]


def test_the_entrys_event_time_stands_for_missing_ones_as_in_native_clients(twin: ModuleType) -> None:
    entry = native_batch(
        [(pb.SingleMessageMetadata(), b"v"), (pb.SingleMessageMetadata(event_time=4), b"v")], event_time=6
    )
    with using(twin):
        assert [record.timestamp for record in back(*entry)[1]] == [6, 4]


def test_an_event_time_before_1970_that_lost_its_sign(twin: ModuleType) -> None:
    with using(twin):
        _, records = back(*native_batch([(pb.SingleMessageMetadata(event_time=2**64 - 1000), b"v")]))
    assert records[0].timestamp == -1000


def test_compacted_stubs_are_gaps(twin: ModuleType) -> None:
    stub = pb.SingleMessageMetadata(compacted_out=True, partition_key="k")
    messages = [(stub, b""), (pb.SingleMessageMetadata(partition_key="l", event_time=8), b"v"), (stub, b"")]
    with using(twin):
        header, records = back(*native_batch(messages), base_offset=10)
        nothing, none = back(*native_batch([(stub, b""), (stub, b"")]), base_offset=10)
    assert records == [Record(11, 8, b"l", b"v")]
    assert (header.base_offset, header.last_offset, header.record_count) == (10, 12, 1)
    assert none == []
    assert (nothing.base_offset, nothing.last_offset, nothing.record_count) == (10, 11, 0)


def test_markers_are_empty_batches(twin: ModuleType) -> None:
    meta = pb.MessageMetadata(**NATIVE, marker_type=21, txnid_least_bits=1, txnid_most_bits=2).SerializeToString()
    with using(twin):
        header, records = back(meta, b"whatever", base_offset=77)
    assert records == []
    assert (header.base_offset, header.last_offset) == (77, 77)


def test_bytes_behind_the_last_message_are_ignored_as_native_clients_do(twin: ModuleType) -> None:
    meta, payload = native_batch([(pb.SingleMessageMetadata(event_time=1), b"v")])
    with using(twin):
        assert back(meta, payload + b"more")[1] == [Record(0, 1, None, b"v")]


# what native clients do to messages of ours that they pass on


def passed_on(
    twin: ModuleType, headers: list[tuple[bytes, bytes | None]], change: dict[str, str | None]
) -> list[object]:
    with using(twin):
        (entry,) = entries([Record(0, -1, b"k", b"v", tuple(headers))])
        ((single, value),) = native_view(entry)
        seen = {pair.key: pair.value for pair in single.properties}
        for name, text in change.items():
            if text is None:
                del seen[name]
            else:
                seen[name] = text
        again = pb.SingleMessageMetadata(properties=properties(*sorted(seen.items())))
        return list(back(*native_batch([(again, value)]))[1][0].headers)


def test_a_map_in_another_order_changes_nothing(twin: ModuleType) -> None:
    headers: list[tuple[bytes, bytes | None]] = [(b"z", b"1"), (b"a", b"\xff"), (b"b", b"2"), (b"z", b"3")]
    assert passed_on(twin, headers, {}) == headers


def test_properties_that_were_changed_removed_or_added_win(twin: ModuleType) -> None:
    headers: list[tuple[bytes, bytes | None]] = [
        (b"z", b"1"),
        (b"a", b"\xff"),
        (b"b", b"2"),
        (b"c", None),
        (b"z", b"3"),
    ]
    records = passed_on(twin, headers, {"z": "new", "b": None, "d": "added", "c": "set"})
    assert records == [(b"a", b"\xff"), (b"c", b"set"), (b"d", b"added"), (b"z", b"new")]


def test_properties_added_to_very_many_headers_follow_them(twin: ModuleType) -> None:
    headers: list[tuple[bytes, bytes | None]] = [(b"%d" % index, None) for index in range(1001)]
    assert passed_on(twin, headers, {"5": "added"}) == [*headers, (b"5", b"added")]


def test_a_message_of_too_many_properties(twin: ModuleType) -> None:
    most = pb.SingleMessageMetadata(properties=properties(("a", "b")) * 100_000, event_time=1)
    with using(twin):
        assert len(back(*native_batch([(most, b"v")]))[1][0].headers) == 100_000
    most.properties.add(key="a", value="b")
    assert refused(twin, *native_batch([(most, b"v")])) == "damaged"


@pytest.mark.parametrize("text", ["no base64!", "AAA", "", "/////w8=", "BA==", "-0", "1", "0x1", " 0", "9" * 30])
@pytest.mark.parametrize("name", ["__kop_headers", "__kop_timestamp"])
def test_unreadable_properties_of_ours_are_headers_like_others(twin: ModuleType, name: str, text: str) -> None:
    message = pb.SingleMessageMetadata(properties=properties((name, text)))
    with using(twin):
        (record,) = back(*native_batch([(message, b"v")]))[1]
    assert record.headers == ((name.encode(), text.encode()),)
    assert record.timestamp == 1_700_000_000_999


# chunks


def test_a_chunked_message_put_together(twin: ModuleType) -> None:
    value = bytes(range(256)) * 100
    chunk = pb.MessageMetadata(
        **NATIVE,
        uuid="native-7",
        num_chunks_from_msg=3,
        total_chunk_msg_size=len(value),
        chunk_id=2,
        partition_key="k",
        event_time=1,
    ).SerializeToString()
    with using(twin):
        view = transcode.parse_entry(chunk)
        assert (view.uuid, view.num_chunks, view.total_chunk_size, view.chunk_id) == ("native-7", 3, len(value), 2)
        assert back(chunk, value, base_offset=12)[1] == [Record(12, 1, b"k", value)]
        with pytest.raises(UndecodableEntryError) as caught:
            back(chunk, value[:-1])
    assert caught.value.reason == "chunk"


# what is refused on the way out


def test_encrypted_entries_are_named(twin: ModuleType) -> None:
    meta = pb.MessageMetadata(
        **NATIVE,
        num_messages_in_batch=1,
        encryption_keys=[pb.EncryptionKeys(key="k", value=b"x")],
        encryption_param=b"y",
    )
    with using(twin):
        assert transcode.parse_entry(meta.SerializeToString()).encrypted
    assert refused(twin, meta.SerializeToString(), b"secret") == "encrypted"


@pytest.mark.parametrize("compression", range(1, 5))
def test_bombs_and_lies_about_sizes(twin: ModuleType, compression: int) -> None:
    _, payload = native_batch([(pb.SingleMessageMetadata(), bytes(1000))], compression)
    size = 1000 + 4 + len(pb.SingleMessageMetadata(payload_size=1000).SerializeToString())

    def said(uncompressed: int) -> bytes:
        meta = pb.MessageMetadata(**NATIVE, num_messages_in_batch=1)
        meta.MergeFrom(compressed(compression, uncompressed))
        return meta.SerializeToString()

    with using(twin):
        assert len(back(said(size), payload)[1]) == 1
    assert refused(twin, said(size), payload, max_bytes=size - 1) == "too_large"
    assert refused(twin, said(2**32 - 1), payload) == "too_large"
    for lie in (0, size - 1, size + 1, 100_000_000):
        assert refused(twin, said(lie), payload) == "damaged"
    assert refused(twin, said(size), payload[:-6]) == "damaged"
    assert refused(twin, said(size), b"\xff" * 50) == "damaged"


def flushed(data: bytes) -> bytes:
    """`data` as Pulsar's Java code compresses it with ZLIB: flushed, without a last block and a checksum."""
    packer = zlib.compressobj()
    return packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)


@pytest.mark.parametrize("count", [1, 500])
@pytest.mark.parametrize("size", [0, 1, 20, 3000])
def test_zlib_without_a_last_block_is_read_to_its_end(twin: ModuleType, count: int, size: int) -> None:
    rng = random.Random(size)
    messages = [(pb.SingleMessageMetadata(), rng.randbytes(size)) for _ in range(count)]
    meta, plain = native_batch(messages)
    data = flushed(plain)

    def said(uncompressed: int) -> bytes:
        made = pb.MessageMetadata.FromString(meta)
        made.MergeFrom(compressed(2, uncompressed))
        return made.SerializeToString()

    with using(twin):
        _, records = back(said(len(plain)), data)
    assert [record.value for record in records] == [value for _, value in messages]
    assert refused(twin, said(len(plain) + 1), data) == "damaged"
    assert refused(twin, said(len(plain) - 1), data) == "damaged"
    assert refused(twin, said(len(plain)), flushed(plain + b"\0")) == "damaged"
    assert refused(twin, said(len(plain)), flushed(plain[:-1])) == "damaged"
    assert refused(twin, said(len(plain)), data[: len(data) // 2]) == "damaged"
    assert refused(twin, said(len(plain)), data[:-5] + b"\xff" * 20) == "damaged", "a block that is none behind it all"


def test_a_checksum_of_zlib_is_looked_at_where_there_is_one(twin: ModuleType) -> None:
    meta, payload = native_batch([(pb.SingleMessageMetadata(), bytes(1000))], 2)
    assert refused(twin, meta, payload[:-1] + bytes([payload[-1] ^ 1])) == "damaged"


def test_a_bomb_of_zlib_takes_no_memory(twin: ModuleType) -> None:
    meta = pb.MessageMetadata(**NATIVE, num_messages_in_batch=1)
    meta.MergeFrom(compressed(2, 1000))
    payload = flushed(bytes(64 << 20))
    tracemalloc.start()
    try:
        assert refused(twin, meta.SerializeToString(), payload) == "damaged"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("compression", range(1, 5))
def test_nothing_that_was_compressed_to_nothing(twin: ModuleType, compression: int) -> None:
    meta = pb.MessageMetadata(**NATIVE, event_time=9)
    meta.MergeFrom(compressed(compression, 0))
    with using(twin):
        assert back(meta.SerializeToString(), b"")[1] == [Record(0, 9, None, b"")]
    meta.uncompressed_size = 1
    assert refused(twin, meta.SerializeToString(), b"") == "damaged"


@pytest.mark.parametrize(("size", "payload"), [(5, b"hello"), (0, b"")])
def test_a_compression_that_is_none(twin: ModuleType, size: int, payload: bytes) -> None:
    meta = pb.MessageMetadata(**NATIVE, num_messages_in_batch=1, uncompressed_size=size)
    assert refused(twin, meta.SerializeToString() + b"\x40\x09", payload) == "compression"


SINGLE = pb.SingleMessageMetadata(payload_size=1).SerializeToString()


@pytest.mark.parametrize(
    ("count", "payload"),
    [
        (1, b""),
        (1, b"\x00\x00\x00"),
        (1, b"\x00\x00\x00\x02" + SINGLE),
        (1, b"\x00\x00\x00\x09" + SINGLE + b"v"),
        (1, b"\xff\xff\xff\xff" + SINGLE + b"v"),
        (1, b"\x00\x00\x00\x00" + b"12345678"),
        (1, b"\x00\x00\x00\x0b\x18" + b"\xff" * 9 + b"\x01" + b"v"),  # payload_size -1
        (1, b"\x00\x00\x00\x02\x18\x80" + b"vvvv"),
        (1, b"\x00\x00\x00\x02\x1b\x00" + b"vvvv"),  # a group
        (1, b"\x00\x00\x00\x02\x00\x01" + b"vvvv"),  # field 0
        (1, b"\x00\x00\x00\x04\x0a\x00\x18\x01" + b"vvvv"),  # a property of nothing
        (2, b"\x00\x00\x00\x02" + SINGLE + b"v"),
        (2**31 - 1, b"\x00\x00\x00\x02" + SINGLE + b"v"),
        (0, b"\x00\x00\x00\x02" + SINGLE + b"v"),
        (-1, b"\x00\x00\x00\x02" + SINGLE + b"v"),
    ],
)
def test_damaged_batches(twin: ModuleType, count: int, payload: bytes) -> None:
    meta = pb.MessageMetadata(**NATIVE, num_messages_in_batch=count)
    assert refused(twin, meta.SerializeToString(), payload) == "damaged"


@pytest.mark.parametrize("key", ["no base64", "abcde", "a===", "YQ===", "AA=A", "YQ==\n"])
def test_a_key_marked_as_base64_that_is_none(twin: ModuleType, key: str) -> None:
    message = pb.SingleMessageMetadata(partition_key=key, partition_key_b64_encoded=True)
    assert refused(twin, *native_batch([(message, b"v")])) == "damaged"


def test_metadata_that_is_none(twin: ModuleType) -> None:
    whole = pb.MessageMetadata(**NATIVE, num_messages_in_batch=1).SerializeToString()
    for cut in range(len(whole) - 2):
        assert refused(twin, whole[:cut], b"v") == "damaged"
    assert refused(twin, b"\xff" * 11, b"v") == "damaged"
