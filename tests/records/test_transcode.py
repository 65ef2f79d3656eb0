"""Kafka batches <-> Pulsar entries, in both twins: round trips, what native clients see, what is refused."""

from __future__ import annotations

import base64
import gzip
import json
import struct
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from records.transcode_kit import (
    INT64_MAX,
    INT64_MIN,
    MAX_SIZE,
    NATIVE,
    TWINS,
    back,
    entries,
    header_lists,
    native_batch,
    native_key,
    native_view,
    produced,
    properties,
    raw_entry,
    read,
    record_lists,
    refused,
    some_bytes,
    using,
)
from support.damaged_batches import PLAIN, batches, bomb, sealed

from kop.errors import ErrorCode, InternalError, PeerError
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.records import transcode, validation
from kop.records.batch import Codec, Record, build, iter_batches, iter_records, read_header, stamp_create_time
from kop.records.record import content_of, put_record
from kop.records.validation import RecordsRejectedError

pytestmark = pytest.mark.parametrize("twin", TWINS)
CODECS = list(Codec)


def plain(*names: bytes, size: int = 10) -> list[Record]:
    return [Record(index, 1_700_000_000_000 + index, name, b"v" * size) for index, name in enumerate(names)]


# Kafka -> Pulsar -> Kafka


@settings(deadline=None)
@given(records=record_lists(), codec=st.sampled_from(CODECS), base=st.integers(0, 2**62))
def test_what_kafka_wrote_comes_back_exactly(twin: ModuleType, records: list[Record], codec: Codec, base: int) -> None:
    with using(twin):
        (entry,) = entries(records, codec)
        header, read_back = back(entry.metadata, entry.payload, base)
    assert read_back == [record._replace(offset=base + record.offset) for record in records]
    assert (header.base_offset, header.last_offset, header.record_count) == (
        base,
        base + len(records) - 1,
        len(records),
    )
    assert header.codec in (codec, Codec.NONE)
    assert header.max_timestamp == max(record.timestamp for record in records)


@settings(deadline=None)
@given(records=record_lists())
def test_a_native_client_sees_what_kafka_wrote(twin: ModuleType, records: list[Record]) -> None:
    with using(twin):
        (entry,) = entries(records)
    for record, (single, value) in zip(records, native_view(entry), strict=True):
        assert native_key(single) == record.key
        assert single.null_value == (record.value is None)
        assert value == (record.value or b"")
        assert single.event_time == max(record.timestamp, 0)
        seen = {pair.key: pair.value for pair in single.properties if not pair.key.startswith("__kop_")}
        last = dict(record.headers)
        for name, text in seen.items():
            assert last[name.encode()] == text.encode()


@pytest.mark.parametrize("codec", CODECS)
def test_the_codec_is_kept_where_it_helps(twin: ModuleType, codec: Codec) -> None:
    with using(twin):
        (entry,) = entries(plain(b"k", b"l", size=2000), codec)
        assert [value for _, value in native_view(entry)] == [b"v" * 2000] * 2
        assert back(entry.metadata, entry.payload)[0].codec == codec


def test_metadata_is_what_pulsars_own_clients_expect(twin: ModuleType) -> None:
    with using(twin):
        (entry,) = entries(plain(b"k", b"l", b"m"))
    meta = pb.MessageMetadata.FromString(entry.metadata)
    assert meta.producer_name == "gateway-1"
    assert meta.publish_time == 1_700_000_000_123
    assert (meta.sequence_id, meta.highest_sequence_id, meta.num_messages_in_batch) == (1000, 1002, 3)
    assert not meta.HasField("compression")
    assert not meta.HasField("partition_key")


def test_one_record_is_a_batch_too(twin: ModuleType) -> None:
    with using(twin):
        (entry,) = entries(plain(b"k"))
    assert pb.MessageMetadata.FromString(entry.metadata).HasField("num_messages_in_batch")


@pytest.mark.parametrize(
    ("key", "shown", "flag"),
    [
        (None, None, False),
        (b"", "", False),
        ("grün".encode(), "grün", False),
        (b"\xff\x00", "/wA=", True),
        (b"\xed\xa0\x80", "7aCA", True),  # half a surrogate pair is not UTF-8
    ],
)
def test_keys_read_as_text_where_they_are_text(
    twin: ModuleType, key: bytes | None, shown: str | None, flag: bool
) -> None:
    with using(twin):
        (entry,) = entries([Record(0, 1, key, b"")])
        ((single, _),) = native_view(entry)
        assert back(entry.metadata, entry.payload)[1][0].key == key
    assert (single.partition_key if single.HasField("partition_key") else None) == shown
    assert single.partition_key_b64_encoded == flag


def shown_headers(twin: ModuleType, *headers: tuple[bytes, bytes | None]) -> list[tuple[str, str]]:
    with using(twin):
        (entry,) = entries([Record(0, 1, None, b"", headers)])
        assert tuple(back(entry.metadata, entry.payload)[1][0].headers) == headers
    ((single, _),) = native_view(entry)
    return [(pair.key, pair.value) for pair in single.properties]


def test_plain_headers_are_plain_properties_in_order(twin: ModuleType) -> None:
    assert shown_headers(twin, (b"b", b"1"), (b"a", b""), (b"entry.format", b"kafka")) == [
        ("b", "1"),
        ("a", ""),
        ("entry.format", "kafka"),
    ]


def test_headers_that_no_property_can_be_are_listed_beside_those_that_can(twin: ModuleType) -> None:
    listed, *shown = shown_headers(
        twin, (b"a", b"1"), (b"n", None), (b"b", b"\xff"), (b"a", b"2"), (b"\xff", b"x"), (b"c", b"3"), (b"c", None)
    )
    assert shown == [("a", "2")]
    assert listed[0] == "__kop_headers"
    assert base64.b64decode(listed[1], validate=True).startswith(b"\x0e\x02a\x021\x02n\x01")


@pytest.mark.parametrize("name", [b"__kop_headers", b"__kop_timestamp", b"__kop_new"])
def test_names_of_ours_in_a_kafka_header_come_back(twin: ModuleType, name: bytes) -> None:
    listed, *shown = shown_headers(twin, (name, b"0"))
    assert listed[0] == "__kop_headers"
    assert shown == []


@pytest.mark.parametrize("count", [1000, 1001, 200_000])
def test_of_very_many_headers_none_is_shown(twin: ModuleType, count: int) -> None:
    headers = [(b"%d" % index, b"x") for index in range(count)]
    shown = shown_headers(twin, *headers)
    if count == 1000:
        assert [(name.encode(), text.encode()) for name, text in shown] == headers
    else:
        assert [name for name, _ in shown] == ["__kop_headers"]


@pytest.mark.parametrize("timestamp", [0, -1, -2, INT64_MIN])
def test_times_that_pulsar_does_not_know_are_kept(twin: ModuleType, timestamp: int) -> None:
    with using(twin):
        (entry,) = entries([Record(0, timestamp, None, b"")])
        ((single, _),) = native_view(entry)
        assert back(entry.metadata, entry.payload)[1] == [Record(0, timestamp, None, b"")]
    assert not single.HasField("event_time")
    assert [(pair.key, pair.value) for pair in single.properties] == [("__kop_timestamp", str(timestamp))]


def test_timestamps_further_apart_than_a_delta_can_be(twin: ModuleType) -> None:
    body = bytearray()
    for index, timestamp in enumerate((INT64_MAX, INT64_MIN, 5)):
        put_record(body, timestamp, index, content_of(None, b"", ()))
    batch, _ = produced([Record(0, 0, None, b"x"), Record(2, 0, None, b"x")])
    wide = bytearray(batch[:61]) + body
    struct.pack_into(">i", wide, 8, len(wide) - 12)
    struct.pack_into(">i", wide, 57, 3)
    with using(twin):
        (entry,) = transcode.to_entries(
            wide, read_header(wide), producer_name="p", sequence_base=0, publish_time=1, max_size=MAX_SIZE
        )
        _, read_back = back(entry.metadata, entry.payload)
    assert [record.timestamp for record in read_back] == [INT64_MAX, INT64_MIN, 5]


def test_log_append_time_is_every_records_time(twin: ModuleType) -> None:
    with using(twin):
        (entry,) = entries(plain(b"a", b"b"))
        header, read_back = back(entry.metadata, entry.payload, 5, log_append_time=777)
    assert header.log_append_time
    assert header.max_timestamp == 777
    assert [record.timestamp for record in read_back] == [777, 777]


# splitting


@settings(deadline=None)
@given(records=record_lists(), codec=st.sampled_from(CODECS), room=st.integers(0, 400))
def test_pieces_are_in_order_within_the_limit_and_hold_all(
    twin: ModuleType, records: list[Record], codec: Codec, room: int
) -> None:
    with using(twin):
        try:
            pieces = entries(records, codec, max_size=transcode.ENTRY_ROOM + room)
        except PeerError as error:
            assert error.code is ErrorCode.MESSAGE_TOO_LARGE  # noqa: PT017
            return
        read_back: list[Record] = []
        for entry in pieces:
            assert len(entry.payload) <= room
            meta = pb.MessageMetadata.FromString(entry.metadata)
            assert entry.first == len(read_back)
            assert meta.sequence_id == 1000 + entry.first
            assert meta.highest_sequence_id == 1000 + entry.first + entry.num_messages - 1
            read_back += back(entry.metadata, entry.payload, entry.first)[1]
    assert read_back == records


def test_pieces_do_not_depend_on_names_numbers_and_codecs(twin: ModuleType) -> None:
    records = plain(*[b"key"] * 100, size=3000)
    with using(twin):
        counts = []
        for codec in CODECS:
            batch, header = produced(records, codec)
            for name, sequence, now in (("p", 0, 1), ("p" * 256, 2**62, 2**62)):
                pieces = transcode.to_entries(
                    batch, header, producer_name=name, sequence_base=sequence, publish_time=now, max_size=64_000
                )
                counts.append([entry.num_messages for entry in pieces])
                assert all(len(entry.metadata) + len(entry.payload) + 16 <= 64_000 for entry in pieces)
    assert counts == [[21, 21, 21, 21, 16]] * len(counts)


def test_a_record_that_fits_only_compressed_is_taken(twin: ModuleType) -> None:
    records = [Record(0, 1, b"a", b"x" * 10), Record(1, 1, b"b", b"x" * 200_000), Record(2, 1, b"c", b"x")]
    with using(twin):
        pieces = entries(records, Codec.ZSTD, max_size=10_000)
        assert [entry.num_messages for entry in pieces] == [1, 1, 1]
        with pytest.raises(PeerError, match="record 1 takes") as caught:
            entries(records, max_size=10_000)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_record_that_could_not_be_read_again_is_refused(twin: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcode, "MAX_UNCOMPRESSED", 50_000)
    records = [Record(0, 1, b"a", b"x" * 50_000)]
    with using(twin), pytest.raises(PeerError, match="without compression") as caught:
        entries(records, Codec.ZSTD)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
    with using(twin):
        assert len(entries([Record(0, 1, b"a", b"x" * 49_000)], Codec.ZSTD)) == 1


# empty values, which Pulsar's compaction takes for deletions


@pytest.mark.parametrize("codec", CODECS)
def test_an_empty_value_has_a_payload_on_a_compacted_topic(twin: ModuleType, codec: Codec) -> None:
    headers = ((b"a", b"1"), (b"__kop_empty", b"1"))
    records = [
        Record(0, 1, b"empty", b"", headers),
        Record(1, -1, b"deleted", None),
        Record(2, 1, b"zero", b"\0"),
        Record(3, -1, b"also empty", b""),
    ]
    batch, header = produced(records, codec)
    with using(twin):
        (entry,) = transcode.to_entries(
            batch, header, producer_name="p", sequence_base=0, publish_time=1, max_size=MAX_SIZE, compacted=True
        )
        assert back(entry.metadata, entry.payload)[1] == records
        (elsewhere,) = entries(records, codec)
        assert back(elsewhere.metadata, elsewhere.payload)[1] == records
    assert [value for _, value in native_view(entry)] == [b"\0", b"", b"\0", b"\0"]
    assert [[pair.key for pair in single.properties] for single, _ in native_view(entry)] == [
        ["__kop_headers", "a", "__kop_empty"],
        ["__kop_timestamp"],
        [],
        ["__kop_timestamp", "__kop_empty"],
    ]
    assert [value for _, value in native_view(elsewhere)] == [b"", b"", b"\0", b""]


def test_a_payload_that_a_native_client_put_in_the_place_of_an_empty_one_is_the_value(twin: ModuleType) -> None:
    copied = pb.SingleMessageMetadata(
        properties=properties(("__kop_empty", "1"), ("a", "1")), partition_key="k", event_time=1
    )
    metadata, payload = native_batch([(copied, b"new")])
    with using(twin):
        assert back(metadata, payload)[1] == [Record(0, 1, b"k", b"new", ((b"a", b"1"),))]


# what is refused on the way in


def test_null_keys_are_named_for_compacted_topics(twin: ModuleType) -> None:
    batch, header = produced([Record(0, 1, None, b""), Record(1, 1, b"", b""), Record(2, 1, None, b"")])
    with using(twin), pytest.raises(RecordsRejectedError) as caught:
        transcode.to_entries(
            batch, header, producer_name="p", sequence_base=0, publish_time=1, max_size=MAX_SIZE, compacted=True
        )
    assert [index for index, _ in caught.value.records] == [0, 2]


@pytest.mark.parametrize(
    ("control", "code"),
    [(False, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT), (True, ErrorCode.INVALID_RECORD)],
    ids=["transactional", "control"],
)
@pytest.mark.parametrize("raw", [False, True])
def test_transactions_are_refused(twin: ModuleType, control: bool, code: ErrorCode, raw: bool) -> None:
    batch = bytes(
        build(plain(b"k"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=not control, control=control)
    )
    make = raw_entry if raw else transcode.to_entries
    with using(twin), pytest.raises(PeerError) as caught:
        make(batch, read_header(batch), producer_name="p", sequence_base=0, publish_time=1, max_size=MAX_SIZE)
    assert caught.value.code is code


@pytest.mark.parametrize(("at", "byte"), [(61, 0x7F), (61, 0x06), (64, 0x02), (65, 0x40), (67, 0x40), (69, 0x02)])
def test_malformed_records_are_invalid(twin: ModuleType, at: int, byte: int) -> None:
    batch = bytearray(produced([Record(0, 1, b"k", b"v")])[0])
    batch[at] = byte
    with using(twin), pytest.raises(PeerError) as caught:
        transcode.to_entries(
            batch, read_header(batch), producer_name="p", sequence_base=0, publish_time=1, max_size=MAX_SIZE
        )
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_a_batch_that_inflates_beyond_the_bound_is_invalid(twin: ModuleType) -> None:
    batch, header = produced([Record(0, 1, b"k", bytes(100_000))], Codec.GZIP)
    with using(twin), pytest.raises(PeerError) as caught:
        transcode.to_entries(
            batch, header, producer_name="p", sequence_base=0, publish_time=1, max_size=MAX_SIZE, max_bytes=99_999
        )
    assert caught.value.code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(("name", "sequence", "time"), [("p" * 257, 0, 1), ("p", -1, 1), ("p", 0, -1)])
def test_what_a_caller_of_ours_may_not_ask(twin: ModuleType, name: str, sequence: int, time: int) -> None:
    batch, header = produced(plain(b"k"))
    with using(twin), pytest.raises(InternalError):
        transcode.to_entries(
            batch, header, producer_name=name, sequence_base=sequence, publish_time=time, max_size=MAX_SIZE
        )


# KoP's `kafka` format


def raw(records: list[Record], codec: int = Codec.NONE, count: int | None = None) -> tuple[bytes, bytes]:
    """As KoP writes it."""
    batch, header = produced(records, codec)
    meta = pb.MessageMetadata(
        producer_name="",
        sequence_id=0,
        publish_time=1_700_000_000_999,
        properties=properties(("entry.format", "kafka")),
        num_messages_in_batch=header.record_count if count is None else count,
    )
    return meta.SerializeToString(), batch


@settings(deadline=None)
@given(records=record_lists(), codec=st.sampled_from(CODECS))
def test_raw_entries_keep_the_batch_byte_for_byte(twin: ModuleType, records: list[Record], codec: Codec) -> None:
    batch, header = produced(records, codec)
    if header.max_timestamp < -1:  # no record has a time
        stamped = bytearray(batch)
        stamp_create_time(stamped, -1)
        batch = bytes(stamped)
    with using(twin):
        entry = raw_entry(batch, header, producer_name="p", sequence_base=5, publish_time=1, max_size=MAX_SIZE)
        read_back = transcode.to_batch(entry.metadata, entry.payload, base_offset=50, log_append_time=None)
    assert read_back[17:] == batch[17:]
    assert read_header(read_back).base_offset == 50
    assert entry.payload == batch
    meta = pb.MessageMetadata.FromString(entry.metadata)
    assert [(pair.key, pair.value) for pair in meta.properties] == [("entry.format", "kafka")]
    assert (meta.sequence_id, meta.highest_sequence_id) == (5, 5 + len(records) - 1)


def test_kops_entries_of_several_batches(twin: ModuleType) -> None:
    (meta, first), (_, second) = raw(plain(b"a", b"b"), count=5), raw(plain(b"c", b"d", b"e"))
    with using(twin):
        read_back = transcode.to_batch(meta, first + second, base_offset=100, log_append_time=None)
    assert [header.base_offset for _, header in iter_batches(read_back)] == [100, 102]


def test_raw_entries_get_the_brokers_time(twin: ModuleType) -> None:
    with using(twin):
        _, read_back = back(*raw(plain(b"a", b"b"), Codec.LZ4), log_append_time=99)
    assert [record.timestamp for record in read_back] == [99, 99]


def test_raw_entries_that_are_not_right(twin: ModuleType) -> None:
    meta, batch = raw(plain(b"a", b"b"))
    assert refused(twin, meta, b"") == "damaged"
    assert refused(twin, meta, batch[:-1]) == "damaged"
    assert refused(twin, meta, batch[:-1] + b"\x01") == "damaged"
    assert refused(twin, meta, batch + batch) == "damaged"
    old = bytearray(batch)
    old[16] = 1
    assert refused(twin, meta, bytes(old)) == "damaged"
    marked = bytes(build(plain(b"a", b"b"), transactional=True, producer_id=1, producer_epoch=0, base_sequence=0))
    assert refused(twin, meta, marked) == "transactional"


def test_raw_entries_have_a_limit_too(twin: ModuleType) -> None:
    batch, header = produced(plain(b"a"))
    with using(twin), pytest.raises(PeerError) as caught:
        raw_entry(batch, header, producer_name="p", sequence_base=0, publish_time=1, max_size=len(batch))
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def keyless(twin: ModuleType, meta: bytes, payload: bytes) -> list[int]:
    """What a reader hears of messages that compaction will drop."""
    keyless_offsets: list[int] = []
    with using(twin):
        transcode.to_batch(meta, payload, base_offset=0, log_append_time=None, on_keyless=keyless_offsets.append)
    return keyless_offsets


@pytest.mark.parametrize("compression", range(5))
def test_messages_without_a_key_are_told(twin: ModuleType, compression: int) -> None:
    """No key is what compaction takes for none: a `partition_key`, be it empty, is one, an ordering key is not."""
    single = pb.SingleMessageMetadata
    batch = [
        (single(payload_size=0), b"x" * 100),
        (single(payload_size=0, partition_key="k"), b"y" * 100),
        (single(payload_size=0, ordering_key=b"o"), b"z" * 100),
        (single(payload_size=0, partition_key=""), b""),
        (single(payload_size=0, null_partition_key=True), b""),
        (single(payload_size=0, compacted_out=True), b""),
    ]
    assert keyless(twin, *native_batch(batch, compression)) == [3]
    assert keyless(twin, *native_batch(batch[1:2], compression)) == []


def test_single_messages_and_raw_batches_without_a_key(twin: ModuleType) -> None:
    assert keyless(twin, pb.MessageMetadata(**NATIVE).SerializeToString(), b"v") == [1]
    assert keyless(twin, pb.MessageMetadata(**NATIVE, ordering_key=b"o").SerializeToString(), b"v") == [1]
    assert keyless(twin, pb.MessageMetadata(**NATIVE, partition_key="k").SerializeToString(), b"v") == []
    assert keyless(twin, *raw([Record(0, 1, None, b"v")])) == [], "compaction does not look into them"


# the rest


def test_empty_batches_cover_offsets(twin: ModuleType) -> None:
    with using(twin):
        batch = transcode.empty_batch(5, 5 + 2**31 - 1)
        header, read_back = read(batch)
        assert read_back == []
        assert (header.base_offset, header.last_offset) == (5, 5 + 2**31 - 1)
        with pytest.raises(InternalError):
            transcode.empty_batch(5, 5 + 2**31)


@settings(deadline=None)
@given(
    meta=st.builds(
        pb.MessageMetadata,
        sequence_id=st.integers(0, 2**64 - 1),
        publish_time=st.integers(0, 2**63 - 1),
        highest_sequence_id=st.integers(0, 2**64 - 1),
        event_time=st.integers(0, 2**63 - 1),
        num_messages_in_batch=st.integers(1, 2**31 - 1),
        uncompressed_size=st.integers(0, 2**32 - 1),
        compression=st.sampled_from(pb.CompressionType.keys()),
        txnid_least_bits=st.integers(0, 2**64 - 1),
        txnid_most_bits=st.integers(0, 2**64 - 1),
        marker_type=st.integers(0, 30),
        uuid=st.text(max_size=5),
        producer_name=st.text(max_size=5),
        partition_key=st.text(max_size=5),
        replicate_to=st.lists(st.text(max_size=3), max_size=2),
    )
)
def test_a_view_says_what_protobuf_says(twin: ModuleType, meta: pb.MessageMetadata) -> None:
    with using(twin):
        view = transcode.parse_entry(memoryview(meta.SerializeToString()))
    assert view == transcode.EntryView(
        producer_name=meta.producer_name,
        sequence_id=meta.sequence_id,
        highest_sequence_id=meta.highest_sequence_id,
        publish_time=meta.publish_time,
        event_time=meta.event_time,
        num_messages=meta.num_messages_in_batch,
        batched=True,
        compression=meta.compression,
        uncompressed_size=meta.uncompressed_size,
        raw=False,
        encrypted=False,
        marker_type=meta.marker_type,
        chunk_id=-1,
        num_chunks=1,
        total_chunk_size=0,
        uuid=meta.uuid,
        txn_most=meta.txnid_most_bits,
        txn_least=meta.txnid_least_bits,
    )


@pytest.mark.parametrize("codec", Codec)
def test_a_raw_entry_is_walked_before_it_is_made(twin: ModuleType, codec: Codec) -> None:
    to_raw = partial(raw_entry, producer_name="p", sequence_base=0, publish_time=1, max_size=MAX_SIZE)
    with using(twin):
        for name, data in batches(codec).items():
            with pytest.raises(PeerError) as caught:
                to_raw(data, read_header(data))
            assert caught.value.code is ErrorCode.INVALID_RECORD, name
        grown, header = produced([Record(0, 1, None, bytes(5000))], codec)
        assert to_raw(grown, header, max_bytes=6000).payload == grown
        if codec:
            with pytest.raises(PeerError, match="decompress to more than 4000 bytes") as caught:
                to_raw(grown, header, max_bytes=4000)
            assert caught.value.code is ErrorCode.INVALID_RECORD


def frames_of(error: BaseException) -> list[str]:
    """Names of the functions whose frames an error holds."""
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_errors_hold_no_frame_with_what_was_decompressed(twin: ModuleType, codec: Codec) -> None:
    to_entries = partial(transcode.to_entries, producer_name="p", sequence_base=0, publish_time=1, max_size=MAX_SIZE)
    to_raw = partial(
        transcode.to_raw_frame,
        producer_id=0,
        producer_name="p",
        sequence_base=0,
        publish_time=1,
        max_size=MAX_SIZE,
    )
    grown, damaged = bomb(codec, 1 << 20), sealed(bytes(50_000), 1, codec)
    calls: list[Callable[[bytes], object]] = [
        lambda data: to_entries(data, read_header(data), max_bytes=100_000),
        lambda data: to_raw(data, read_header(data), max_bytes=100_000),
        lambda data: validation.check_records(data, read_header(data), False, 100_000),
        lambda data: validation.inflated(data, read_header(data).codec, 1000),
    ]
    with using(twin):
        for call in calls:
            for data in (grown, damaged):
                with pytest.raises(PeerError) as caught:
                    call(data)
                error = caught.value
                assert (error.__cause__, error.__context__) == (None, None)
                inside = frames_of(error)[2:]  # behind this function and the lambda
                assert inside == ["call"], "the frame of the decorator holds what was given, and nothing else is left"


@settings(deadline=None)
@given(headers=header_lists, key=st.one_of(st.none(), some_bytes))
def test_a_consumer_of_ours_and_kafkas_walk_read_the_same(
    twin: ModuleType, headers: list[tuple[bytes, bytes | None]], key: bytes | None
) -> None:
    """What `check_records` takes, `to_entries` takes: no header list that only one of them can read."""
    batch, _ = produced([Record(0, 1, key, b"v", tuple(headers))])
    with using(twin):
        (entry,) = entries(iter_records(batch, max_bytes=1 << 20))
        assert tuple(back(entry.metadata, entry.payload)[1][0].headers) == tuple(headers)
    assert crc32c(batch[21:]) == read_header(batch).crc


JAVA = Path(__file__).parents[2] / "conformance" / "vectors" / "batches.jsonl.gz"


def test_batches_that_java_made_come_back(twin: ModuleType) -> None:
    """Every codec and level of Kafka's own producer; what is no producer's batch is refused."""
    tried = refused_ones = 0
    with gzip.open(JAVA, "rt", encoding="utf-8") as lines, using(twin):
        vectors = [json.loads(line) for line in lines]
        for vector in vectors:
            if vector["name"].startswith("magic-"):
                continue
            raw = base64.b64decode(vector["bytes"])
            for pos, header in iter_batches(raw):
                batch = raw[pos : pos + header.size]
                to_entries = partial(
                    transcode.to_entries, producer_name="p", sequence_base=0, publish_time=1, max_size=MAX_SIZE
                )
                dense = header.record_count == header.last_offset_delta + 1 > 0
                if header.transactional or header.control or not dense:
                    refused_ones += 1
                    with pytest.raises(PeerError):
                        to_entries(batch, header)
                    continue
                tried += 1
                read_back = []
                for entry in to_entries(batch, header):
                    read_back += back(entry.metadata, entry.payload, header.base_offset + entry.first)[1]
                assert read_back == list(iter_records(batch, max_bytes=1 << 26))
    assert tried > 50
    assert refused_ones > 0


def test_a_refused_batch_is_told_which_of_its_records_is_malformed(twin: ModuleType) -> None:
    data = sealed(PLAIN * 2, 2)  # two records with offset delta 0
    with using(twin), pytest.raises(PeerError, match="record 1 of 2"):
        validation.check_records(data, read_header(data), False, 1 << 20)
