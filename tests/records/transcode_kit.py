"""What the transcoder's tests share: the twins, strategies, and entries through protobuf's own runtime."""

from __future__ import annotations

import base64
import contextlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, TypedDict

import lz4.block
import pytest
import snappy
import zstandard
from crc32c import crc32c
from hypothesis import strategies as st

from kop.compiled import compiled
from kop.errors import ErrorCode
from kop.pulsar_client.proto import pulsar_pb2 as pb
from kop.records import _pure, transcode, validation
from kop.records.batch import BatchHeader, Buffer, Codec, Record, build, iter_records, read_header

LIMIT = 1 << 26
MAX_SIZE = 5 * 1024 * 1024
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


TWINS = [pytest.param(_pure, id="pure")]
"""The plain transcoder and, where it was built, the compiled one."""
if transcode.NATIVE:
    TWINS.append(pytest.param(compiled(_pure), id="native"))


@contextlib.contextmanager
def using(twin: ModuleType) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for user in (transcode, validation):
            patch.setattr(user, "twin", twin)
        yield


# Kafka

text_bytes = st.text(max_size=12).map(str.encode)
some_bytes = st.one_of(text_bytes, st.binary(max_size=12))
header_names = st.one_of(
    some_bytes, st.sampled_from([b"a", b"b", b"", b"__kop_headers", b"__kop_timestamp", b"__kop_", b"entry.format"])
)
header_lists = st.lists(st.tuples(header_names, st.one_of(st.none(), some_bytes)), max_size=5)
timestamps = st.one_of(
    st.integers(1_700_000_000_000, 1_700_000_100_000), st.sampled_from([-1, 0, 1, -2, 2**62 - 1, -(2**62)])
)


@st.composite
def record_lists(draw: st.DrawFn, max_size: int = 6) -> list[Record]:
    count = draw(st.integers(1, max_size))
    return [
        Record(
            index,
            draw(timestamps),
            draw(st.one_of(st.none(), some_bytes)),
            draw(st.one_of(st.none(), some_bytes)),
            tuple(draw(header_lists)),
        )
        for index in range(count)
    ]


def produced(records: Iterable[Record], codec: int = Codec.NONE) -> tuple[bytes, BatchHeader]:
    batch = bytes(build(records, codec=codec))
    return batch, read_header(batch)


def entries(
    records: Iterable[Record], codec: int = Codec.NONE, *, max_size: int = MAX_SIZE
) -> list[transcode.PulsarEntry]:
    batch, header = produced(records, codec)
    return transcode.to_entries(
        batch, header, producer_name="gateway-1", sequence_base=1000, publish_time=1_700_000_000_123, max_size=max_size
    )


def raw_entry(batch: Buffer, header: BatchHeader, **given: Any) -> transcode.PulsarEntry:
    """A Kafka batch as it is in an entry without a frame around it; what is given, and errors, as of `to_raw_frame`."""
    made = transcode.to_raw_frame(batch, header, producer_id=0, **given)
    return transcode.PulsarEntry(*transcode.entry_in(made.frame), made.num_messages, made.first)


def read(batch: Buffer) -> tuple[BatchHeader, list[Record]]:
    """Header and records of one batch that has to be right."""
    header = read_header(batch)
    assert header.size == len(batch)
    assert crc32c(batch[21:]) == header.crc
    assert header.leader_epoch == 0
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    return header, list(iter_records(batch, header, max_bytes=LIMIT))


def back(
    metadata: bytes, payload: bytes, base_offset: int = 0, log_append_time: int | None = None
) -> tuple[BatchHeader, list[Record]]:
    return read(transcode.to_batch(metadata, payload, base_offset=base_offset, log_append_time=log_append_time))


def refused(twin: ModuleType, meta: bytes, payload: bytes, max_bytes: int = transcode.MAX_UNCOMPRESSED) -> str:
    """The reason for which an entry is refused."""
    with using(twin), pytest.raises(transcode.UndecodableEntryError) as caught:
        transcode.to_batch(meta, payload, base_offset=0, log_append_time=None, max_bytes=max_bytes)
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE
    return caught.value.reason


# Pulsar, through protobuf's own runtime and other codecs


def squeeze(compression: int, data: bytes) -> bytes:
    match compression:
        case 0:
            return data
        case 1:
            return lz4.block.compress(data, store_size=False)
        case 2:
            return zlib.compress(data)
        case 3:
            return zstandard.compress(data)
        case 4:
            return snappy.compress(data)
    raise AssertionError(compression)


def unsqueeze(compression: int, data: bytes, size: int) -> bytes:
    match compression:
        case 0:
            return data
        case 1:
            return lz4.block.decompress(data, uncompressed_size=size)
        case 2:
            return zlib.decompress(data)
        case 3:
            return zstandard.decompress(data, max_output_size=size)
        case 4:
            return snappy.decompress(data)
    raise AssertionError(compression)


class Required(TypedDict):
    """The fields of MessageMetadata without which Pulsar has no entry."""

    producer_name: str
    sequence_id: int
    publish_time: int


NATIVE: Required = {"producer_name": "native", "sequence_id": 7, "publish_time": 1_700_000_000_999}
"""What a native producer's entry says in these tests."""


def compressed(compression: int, size: int) -> pb.MessageMetadata:
    """The two fields of a payload that has `size` bytes when it is decompressed."""
    return pb.MessageMetadata(compression=pb.CompressionType.Name(compression), uncompressed_size=size)


def properties(*pairs: tuple[str, str]) -> list[pb.KeyValue]:
    return [pb.KeyValue(key=key, value=value) for key, value in pairs]


def native_batch(
    messages: Sequence[tuple[pb.SingleMessageMetadata, bytes]], compression: int = 0, event_time: int | None = None
) -> tuple[bytes, bytes]:
    """A batched entry as a native producer writes it."""
    payload = b""
    for single, value in messages:
        single.payload_size = len(value)
        data = single.SerializeToString()
        payload += len(data).to_bytes(4, "big") + data + value
    meta = pb.MessageMetadata(**NATIVE, num_messages_in_batch=len(messages), event_time=event_time)
    if compression:
        meta.MergeFrom(compressed(compression, len(payload)))
    return meta.SerializeToString(), squeeze(compression, payload)


def native_view(entry: transcode.PulsarEntry) -> list[tuple[pb.SingleMessageMetadata, bytes]]:
    """The messages of an entry of ours as a native consumer takes them apart."""
    meta = pb.MessageMetadata.FromString(entry.metadata)
    payload = unsqueeze(meta.compression, entry.payload, meta.uncompressed_size)
    messages, pos = [], 0
    for _ in range(meta.num_messages_in_batch):
        size = int.from_bytes(payload[pos : pos + 4], "big")
        single = pb.SingleMessageMetadata.FromString(payload[pos + 4 : pos + 4 + size])
        pos += 4 + size
        messages.append((single, payload[pos : pos + single.payload_size]))
        pos += single.payload_size
    assert pos == len(payload)
    return messages


def native_key(message: pb.SingleMessageMetadata) -> bytes | None:
    """What a native client answers when it is asked for the key's bytes."""
    if not message.HasField("partition_key"):
        return None
    if message.partition_key_b64_encoded:
        return base64.b64decode(message.partition_key, validate=True)
    return message.partition_key.encode()
