"""Fetch by hand (API 1, versions 4 to 18): the response is a list of buffers, records go out as storage gave them.

Owns: the request's and the response's layout.
Must not know: sessions, offsets, whether a topic exists.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from kop.varints import varint_bytes
from kop.wire.primitives import (
    MOST_ELEMENTS,
    OWN_TAGS,
    DecodeError,
    compact_count,
    compact_string,
    nullable_string,
    old_count,
    read_tags,
    skip_tags,
    too_many,
    uvarint,
)

_INT32 = struct.Struct(">i")
_HEAD = {
    # replica id (to 14), max wait, min bytes, max bytes, isolation, then session id and epoch (from 7)
    (False, False): struct.Struct(">iiib"),
    (False, True): struct.Struct(">iiibii"),
    (True, False): struct.Struct(">iiiib"),
    (True, True): struct.Struct(">iiiibii"),
}
_PARTITION = {
    # partition, [leader epoch from 9], fetch offset, [last fetched epoch from 12], [log start from 5], max bytes
    4: struct.Struct(">iqi"),
    5: struct.Struct(">iqqi"),
    9: struct.Struct(">iiqqi"),
    12: struct.Struct(">iiqiqi"),
}
_ANSWER_4 = struct.Struct(">ihqqi")
_ANSWER_5 = struct.Struct(">ihqqqi")
_ANSWER_11 = struct.Struct(">ihqqqii")
_ANSWER_12 = struct.Struct(">ihqqqBi")
_BEFORE_ABORTED_4 = struct.Struct(">ihqq")
_BEFORE_ABORTED_5 = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_RESPONSE_HEAD_4 = struct.Struct(">iiii")  # size, correlation, throttle, topics
_RESPONSE_HEAD_7 = struct.Struct(">iiihii")  # ..., error, session, topics
_RESPONSE_HEAD_12 = struct.Struct(">iibihi")  # ..., header tags, throttle, error, session


class FetchPartition(NamedTuple):
    """One partition of a Fetch request. `topic` is a name up to version 12, an id from 13."""

    topic: str | UUID
    partition: int
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1


class FetchCall(NamedTuple):
    """A decoded Fetch request."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    partitions: list[FetchPartition]
    forgotten: list[tuple[str | UUID, int]]
    tags: frozenset[int] = frozenset()
    """The numbers of the request's tagged fields that are kop's own, not Kafka's."""


class FetchPartitionAnswer(NamedTuple):
    """The answer for one partition of a Fetch. `size` is the number of bytes in `buffers`."""

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    buffers: Sequence[bytes | bytearray | memoryview] = ()
    size: int = 0
    aborted: Sequence[tuple[int, int]] | None = None
    """Producer id and first offset of each aborted transaction; None if the request reads uncommitted records, too."""
    tags: bytes = b"\0"
    """The partition's encoded section of tagged fields."""


def parse(body: memoryview, version: int) -> FetchCall:
    """Parse the body of a Fetch request. DecodeError if it is malformed."""
    try:
        return _parse(body, version)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise DecodeError(f"Fetch v{version}: {error}") from None


def _parse(body: memoryview, version: int) -> FetchCall:
    end = len(body)
    flexible = version >= 12
    head = _HEAD[version <= 14, version >= 7]
    values = head.unpack_from(body, 0)
    pos = head.size
    replica_id = -1
    if version <= 14:
        replica_id, *rest = values
    else:
        rest = list(values)
    max_wait, min_bytes, max_bytes, isolation = rest[:4]
    session_id, session_epoch = (rest[4], rest[5]) if version >= 7 else (0, -1)
    layout = _PARTITION[12 if version >= 12 else 9 if version >= 9 else 5 if version >= 5 else 4]
    unpack, size = layout.unpack_from, layout.size
    partitions: list[FetchPartition] = []
    count, pos = compact_count(body, pos, end) if flexible else old_count(body, pos, end)
    room = MOST_ELEMENTS - count
    for _ in range(count):
        topic, pos = _topic(body, pos, end, version)
        inner, pos = compact_count(body, pos, end) if flexible else old_count(body, pos, end)
        room -= inner
        if room < 0:
            raise too_many()
        for _ in range(inner):
            row = unpack(body, pos)
            pos += size
            if flexible:
                pos = pos + 1 if body[pos] == 0 else skip_tags(body, pos, end)
                partitions.append(FetchPartition(topic, row[0], row[2], row[5], row[1], row[3]))
            elif version >= 9:
                partitions.append(FetchPartition(topic, row[0], row[2], row[4], row[1]))
            else:
                partitions.append(FetchPartition(topic, row[0], row[1], row[-1]))
        if flexible:
            pos = pos + 1 if body[pos] == 0 else skip_tags(body, pos, end)
    forgotten: list[tuple[str | UUID, int]] = []
    if version >= 7:
        count, pos = compact_count(body, pos, end) if flexible else old_count(body, pos, end)
        room -= count
        for _ in range(count):
            topic, pos = _topic(body, pos, end, version)
            inner, pos = compact_count(body, pos, end) if flexible else old_count(body, pos, end)
            room -= inner
            if room < 0:
                raise too_many()
            forgotten += [(topic, index) for index in struct.unpack_from(f">{inner}i", body, pos)]
            pos += 4 * inner
            if flexible:
                pos = pos + 1 if body[pos] == 0 else skip_tags(body, pos, end)
    if version >= 11:
        if flexible:
            length, pos = uvarint(body, pos)
            _, pos = compact_string(body, pos, length, end)
        else:
            _, pos = nullable_string(body, pos, end)
    tags: frozenset[int] = frozenset()
    if flexible and pos + 1 == end and body[pos] == 0:
        pos += 1
    elif flexible:
        pos, replica_id, tags = _tail_tags(body, pos, end, replica_id)
    if pos != end:
        raise DecodeError(f"Fetch v{version}: {end - pos} bytes after its end")
    return FetchCall(
        replica_id, max_wait, min_bytes, max_bytes, isolation, session_id, session_epoch, partitions, forgotten, tags
    )


def _topic(body: memoryview, pos: int, end: int, version: int) -> tuple[str | UUID, int]:
    if version >= 13:
        if pos + 16 > end:
            raise DecodeError("a topic id reaches beyond the frame")
        return UUID(bytes=bytes(body[pos : pos + 16])), pos + 16
    if version >= 12:
        length, pos = uvarint(body, pos)
        name, pos = compact_string(body, pos, length, end)
    else:
        name, pos = nullable_string(body, pos, end)
    if name is None:
        raise DecodeError("a topic name is null")
    return name, pos


def _tail_tags(body: memoryview, pos: int, end: int, replica_id: int) -> tuple[int, int, frozenset[int]]:
    """Read the tagged fields at the end of a Fetch request; return the position after them, the replica id (KIP-903),
    and the numbers of the fields that are kop's own.
    """
    tags, pos = read_tags(body, pos, end)
    if len(state := tags.get(1, b"")) >= 4:
        (replica_id,) = _INT32.unpack_from(state)
    return pos, replica_id, frozenset(tag for tag in tags if tag >= OWN_TAGS)


def encode_response(
    correlation_id: int,
    version: int,
    topics: Sequence[tuple[str | UUID, Sequence[FetchPartitionAnswer]]],
    *,
    error_code: int = 0,
    session_id: int = 0,
) -> list[bytes | bytearray | memoryview]:
    """Encode a whole Fetch response frame as buffers to be written one after the other; records are not copied.
    `error_code` is that of the whole request.
    """
    flexible = version >= 12
    out: list[bytes | bytearray | memoryview] = []
    head = bytearray()
    if flexible:
        head += _RESPONSE_HEAD_12.pack(0, correlation_id, 0, 0, error_code, session_id) + varint_bytes(len(topics) + 1)
    elif version >= 7:
        head += _RESPONSE_HEAD_7.pack(0, correlation_id, 0, error_code, session_id, len(topics))
    else:
        head += _RESPONSE_HEAD_4.pack(0, correlation_id, 0, len(topics))
    first = part = head
    total = 0
    for topic, answers in topics:
        if isinstance(topic, UUID):
            part += topic.bytes
        else:
            name = topic.encode()
            part += (varint_bytes(len(name) + 1) if flexible else len(name).to_bytes(2, "big")) + name
        part += varint_bytes(len(answers) + 1) if flexible else _INT32.pack(len(answers))
        for answer in answers:
            index, error, high_watermark, stable, log_start, buffers, size, aborted, tags = answer
            count = -1 if aborted is None else 0
            if aborted:
                part += _with_aborted(version, answer, aborted)
            elif flexible:  # aborted transactions: null or an empty array; preferred read replica: none
                part += _ANSWER_12.pack(index, error, high_watermark, stable, log_start, count + 1, -1)
                part += varint_bytes(size + 1)
            elif version >= 11:
                part += _ANSWER_11.pack(index, error, high_watermark, stable, log_start, count, -1) + _INT32.pack(size)
            elif version >= 5:
                part += _ANSWER_5.pack(index, error, high_watermark, stable, log_start, count) + _INT32.pack(size)
            else:
                part += _ANSWER_4.pack(index, error, high_watermark, stable, count) + _INT32.pack(size)
            if buffers:
                out.append(part)
                out.extend(buffers)
                total += len(part) + size
                part = bytearray()
            if flexible:
                part += tags
        if flexible:
            part += b"\0"
    if flexible:
        part += b"\0"
    if part:
        out.append(part)
        total += len(part)
    _INT32.pack_into(first, 0, total - 4)
    return out


def _with_aborted(version: int, answer: FetchPartitionAnswer, aborted: Sequence[tuple[int, int]]) -> bytearray:
    """Return the encoded bytes of a partition's answer before its records, for an answer that names aborted
    transactions.
    """
    flexible = version >= 12
    head = (answer.partition, answer.error_code, answer.high_watermark, answer.last_stable_offset)
    if version >= 5:
        part = bytearray(_BEFORE_ABORTED_5.pack(*head, answer.log_start_offset))
    else:
        part = bytearray(_BEFORE_ABORTED_4.pack(*head))
    part += varint_bytes(len(aborted) + 1) if flexible else _INT32.pack(len(aborted))
    for producer_id, first_offset in aborted:
        part += _ABORTED.pack(producer_id, first_offset)
        if flexible:
            part += b"\0"
    if version >= 11:
        part += _INT32.pack(-1)  # preferred read replica
    part += varint_bytes(answer.size + 1) if flexible else _INT32.pack(answer.size)
    return part
