"""Produce by hand (API 0, versions 0 to 13): views into the frame come out, no object per record.

Owns: the request's and the response's layout.
Must not know: what a record batch holds, whether a topic exists.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from kop.varints import varint_bytes
from kop.wire.primitives import (
    MOST_ELEMENTS,
    DecodeError,
    compact_count,
    compact_string,
    encode_nullable,
    nullable_string,
    old_count,
    skip_tags,
    too_many,
    uvarint,
)

_ACKS_TIMEOUT = struct.Struct(">hi")
_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")
_HEADER = struct.Struct(">ii")
_PARTITION = struct.Struct(">ihqqq")
_PARTITION_OLD = struct.Struct(">ihq")
_NO_ERRORS_FLEXIBLE = b"\x01\x00\x00"  # empty record errors, null message, no tags


class ProducePartition(NamedTuple):
    """The records for one partition of a Produce; None if the client sent null."""

    partition: int
    records: memoryview | None


class ProduceTopic(NamedTuple):
    """A topic by name (up to version 12) or by id (from 13)."""

    topic: str | UUID
    partitions: list[ProducePartition]


class ProduceCall(NamedTuple):
    """A decoded Produce request. `topics` keeps the client's order."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


class ProducePartitionAnswer(NamedTuple):
    """The answer for one partition of a Produce: error or offset, and rejected records."""

    partition: int
    error_code: int = 0
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    message: str | None = None
    record_errors: Sequence[tuple[int, str | None]] = ()


def parse(body: memoryview, version: int) -> ProduceCall:
    """Parse the body of a Produce request. DecodeError if it is malformed. The records are views into `body`."""
    try:
        return _parse_flexible(body, version) if version >= 9 else _parse_old(body, version)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise DecodeError(f"Produce v{version}: {error}") from None


def _parse_flexible(body: memoryview, version: int) -> ProduceCall:
    end = len(body)
    length, pos = uvarint(body, 0)
    transactional_id, pos = compact_string(body, pos, length, end)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(body, pos)
    count, pos = compact_count(body, pos + 6, end)
    room = MOST_ELEMENTS - count
    topics = []
    for _ in range(count):
        topic: str | UUID
        if version >= 13:
            if pos + 16 > end:
                raise DecodeError("a topic id reaches beyond the frame")
            topic = UUID(bytes=bytes(body[pos : pos + 16]))
            pos += 16
        else:
            length, pos = uvarint(body, pos)
            name, pos = compact_string(body, pos, length, end)
            if name is None:
                raise DecodeError("a topic name is null")
            topic = name
        partition_count, pos = compact_count(body, pos, end)
        room -= partition_count
        if room < 0:
            raise too_many()
        partitions = []
        for _ in range(partition_count):
            (index,) = _INT32.unpack_from(body, pos)
            size, pos = uvarint(body, pos + 4)
            records = None
            if size:
                stop = pos + size - 1
                if stop > end:
                    raise DecodeError("records reach beyond the frame")
                records = body[pos:stop]
                pos = stop
            pos = pos + 1 if body[pos] == 0 else skip_tags(body, pos, end)
            partitions.append(ProducePartition(index, records))
        pos = pos + 1 if body[pos] == 0 else skip_tags(body, pos, end)
        topics.append(ProduceTopic(topic, partitions))
    pos = pos + 1 if body[pos] == 0 else skip_tags(body, pos, end)
    if pos != end:
        raise DecodeError(f"Produce v{version}: {end - pos} bytes after its end")
    return ProduceCall(transactional_id, acks, timeout_ms, topics)


def _parse_old(body: memoryview, version: int) -> ProduceCall:
    end = len(body)
    pos = 0
    transactional_id = None
    if version >= 3:
        transactional_id, pos = nullable_string(body, 0, end)
    acks, timeout_ms = _ACKS_TIMEOUT.unpack_from(body, pos)
    count, pos = old_count(body, pos + 6, end)
    room = MOST_ELEMENTS - count
    topics = []
    for _ in range(count):
        name, pos = nullable_string(body, pos, end)
        if name is None:
            raise DecodeError("a topic name is null")
        partition_count, pos = old_count(body, pos, end)
        room -= partition_count
        if room < 0:
            raise too_many()
        partitions = []
        for _ in range(partition_count):
            (index,) = _INT32.unpack_from(body, pos)
            (size,) = _INT32.unpack_from(body, pos + 4)
            pos += 8
            records = None
            if size >= 0:
                stop = pos + size
                if stop > end:
                    raise DecodeError("records reach beyond the frame")
                records = body[pos:stop]
                pos = stop
            elif size != -1:
                raise DecodeError("records have a negative size")
            partitions.append(ProducePartition(index, records))
        topics.append(ProduceTopic(name, partitions))
    if pos != end:
        raise DecodeError(f"Produce v{version}: {end - pos} bytes after its end")
    return ProduceCall(transactional_id, acks, timeout_ms, topics)


def appended_row(version: int, partition: int, base_offset: int, log_append_time: int, log_start_offset: int) -> bytes:
    """Return the encoded answer for one partition whose batch was appended: the same bytes as of `encode_partition`, in
    less time.
    """
    if version >= 9:
        return _PARTITION.pack(partition, 0, base_offset, log_append_time, log_start_offset) + _NO_ERRORS_FLEXIBLE
    return encode_partition(
        version, ProducePartitionAnswer(partition, 0, base_offset, log_append_time, log_start_offset)
    )


def encode_rows(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[str | bytes | UUID, Sequence[bytes]]],
    throttle_ms: int = 0,
) -> bytes:
    """Return a whole Produce response frame: size, header, body. The answers of partitions come encoded; topics come as
    a name, an id, or the 16 bytes of an id.
    """
    flexible = version >= 9
    parts = [b"\0" + varint_bytes(len(topics) + 1) if flexible else _INT32.pack(len(topics))]
    for topic, rows in topics:
        if isinstance(topic, str):
            name = topic.encode()
            parts.append((varint_bytes(len(name) + 1) if flexible else _INT16.pack(len(name))) + name)
        else:
            parts.append(topic if isinstance(topic, bytes) else topic.bytes)
        parts.append(varint_bytes(len(rows) + 1) if flexible else _INT32.pack(len(rows)))
        parts += rows
        if flexible:
            parts.append(b"\0")
    if version >= 1:
        parts.append(_INT32.pack(throttle_ms))
    if flexible:
        parts.append(b"\0")
    body = b"".join(parts)
    return _HEADER.pack(len(body) + 4, correlation_id) + body


def encode_response(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[str | bytes | UUID, Sequence[ProducePartitionAnswer]]],
    throttle_ms: int = 0,
) -> bytes:
    """Return a whole Produce response frame, as `encode_rows` does, of answers that are not encoded yet."""
    rows = [(topic, [encode_partition(version, answer) for answer in answers]) for topic, answers in topics]
    return encode_rows(correlation_id, version, rows, throttle_ms)


def encode_partition(version: int, answer: ProducePartitionAnswer) -> bytes:
    """Return the encoded answer for one partition of a Produce, in this version of the API."""
    parts: list[bytes] = []
    _encode_partition(parts, answer, version, version >= 9)
    return b"".join(parts)


def _encode_partition(parts: list[bytes], answer: ProducePartitionAnswer, version: int, flexible: bool) -> None:
    parts.append(_PARTITION_OLD.pack(answer.partition, answer.error_code, answer.base_offset))
    if version >= 2:
        parts.append(answer.log_append_time.to_bytes(8, "big", signed=True))
    if version >= 5:
        parts.append(answer.log_start_offset.to_bytes(8, "big", signed=True))
    if version < 8:
        return
    if flexible and not answer.record_errors and answer.message is None:
        parts.append(_NO_ERRORS_FLEXIBLE)
        return
    errors = answer.record_errors
    parts.append(varint_bytes(len(errors) + 1) if flexible else _INT32.pack(len(errors)))
    for index, message in errors:
        parts.append(_INT32.pack(index) + encode_nullable(message, flexible) + (b"\0" if flexible else b""))
    parts.append(encode_nullable(answer.message, flexible))
    if flexible:
        parts.append(b"\0")
