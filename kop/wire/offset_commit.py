"""OffsetCommit by hand (API 8, versions 2 to 10), which every member of a group sends again and again.

Owns: the request's and the response's layout. What is read, and what is refused, is what the strict decoder of the
schema (codec.py) would read and refuse, and the answer has the same bytes.
Must not know: groups, whether a topic exists.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias
from uuid import UUID

from kop.varints import varint_bytes
from kop.wire.primitives import (
    MOST_ELEMENTS,
    DecodeError,
    compact_count,
    compact_string,
    nullable_string,
    old_count,
    skip_tags,
    too_many,
    uvarint,
)

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_PARTITION = struct.Struct(">iqi")
_PARTITION_OLD = struct.Struct(">iq")
_HEAD = {
    # size, correlation id, [tags of the header from 8], [throttle time from 3]
    2: struct.Struct(">ii"),
    3: struct.Struct(">iii"),
    8: struct.Struct(">iixi"),
}
_ANSWER = struct.Struct(">ih")
_ANSWER_FLEXIBLE = struct.Struct(">ihx")
_NO_ID = bytes(16)


class OffsetCommitPartition(NamedTuple):
    """The offset that is to be committed for one partition."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    """The leader epoch of the committed offset, from version 6 on; -1 before that."""
    committed_metadata: str | None


class OffsetCommitTopic(NamedTuple):
    """One topic of an OffsetCommit, by name, or from version 10 on by id (None for the id of zeros)."""

    name: str
    topic_id: UUID | None
    partitions: Sequence[OffsetCommitPartition]


@dataclass(slots=True)
class OffsetCommitCall:
    """A decoded OffsetCommit request; the names are the schema's."""

    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    group_instance_id: str | None
    """The group.instance.id of a static member, from version 7 on; None before that, and for other members."""
    retention_time_ms: int
    """The ms for which to keep the offsets, in versions 2 to 4; -1 in all others."""
    topics: Sequence[OffsetCommitTopic]


AnsweredTopic: TypeAlias = tuple[str, UUID | None, Sequence[tuple[int, int]]]
"""The type of a topic in the answer: its name and id, and the index and error code of each of its partitions in the
request's order.
"""


@dataclass(slots=True)
class OffsetCommitAnswer:
    """An OffsetCommit response."""

    topics: list[AnsweredTopic]


def parse(body: memoryview, version: int) -> OffsetCommitCall:
    """Parse the body of an OffsetCommit request. DecodeError if it is malformed."""
    try:
        return _parse(body, version)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise DecodeError(f"OffsetCommitRequest v{version}: {error}") from None


def _parse(body: memoryview, version: int) -> OffsetCommitCall:
    end = len(body)
    flexible = version >= 8
    text = _compact_string if flexible else nullable_string
    array = compact_count if flexible else old_count
    group_id, pos = text(body, 0, end)
    (generation,) = _INT32.unpack_from(body, pos)
    member_id, pos = text(body, pos + 4, end)
    instance_id, retention_ms = None, -1
    if version >= 7:
        instance_id, pos = text(body, pos, end)
    elif version <= 4:
        (retention_ms,) = _INT64.unpack_from(body, pos)
        pos += 8
    count, pos = array(body, pos, end)
    room = MOST_ELEMENTS - count
    if room < 0:
        raise too_many()
    topics: list[OffsetCommitTopic] = []
    for _ in range(count):
        name: str | None = ""
        topic_id = None
        if version >= 10:
            topic_id, pos = _topic_id(body, pos, end)
        else:
            name, pos = text(body, pos, end)
        partition_count, pos = array(body, pos, end)
        room -= partition_count
        if room < 0:
            raise too_many()
        partitions: list[OffsetCommitPartition] = []
        for _ in range(partition_count):
            epoch = -1
            if version >= 6:
                index, offset, epoch = _PARTITION.unpack_from(body, pos)
                pos += _PARTITION.size
            else:
                index, offset = _PARTITION_OLD.unpack_from(body, pos)
                pos += _PARTITION_OLD.size
            metadata, pos = text(body, pos, end)
            if flexible:
                pos = pos + 1 if body[pos] == 0 else skip_tags(body, pos, end)
            partitions.append(OffsetCommitPartition(index, offset, epoch, metadata))
        if flexible:
            pos = pos + 1 if body[pos] == 0 else skip_tags(body, pos, end)
        if name is None:
            raise DecodeError("a topic name is null")
        topics.append(OffsetCommitTopic(name, topic_id, partitions))
    if flexible:
        pos = pos + 1 if body[pos] == 0 else skip_tags(body, pos, end)
    if group_id is None or member_id is None:
        raise DecodeError("the group id or the member id is null")
    if pos != end:
        raise DecodeError(f"OffsetCommitRequest v{version}: {end - pos} bytes after its end")
    return OffsetCommitCall(group_id, generation, member_id, instance_id, retention_ms, topics)


def _compact_string(body: memoryview, pos: int, end: int) -> tuple[str | None, int]:
    length = body[pos]
    if length >= 0x80:
        length, pos = uvarint(body, pos)
        return compact_string(body, pos, length, end)
    stop = pos + (length or 1)  # most strings are short: this is `compact_string` behind a length of one byte
    if stop > end:
        raise DecodeError("a string reaches beyond the frame")
    return (str(body[pos + 1 : stop], "utf-8") if length else None), stop


def _topic_id(body: memoryview, pos: int, end: int) -> tuple[UUID | None, int]:
    stop = pos + 16
    if stop > end:
        raise DecodeError("a topic id reaches beyond the frame")
    raw = bytes(body[pos:stop])
    return (UUID(bytes=raw) if raw != _NO_ID else None), stop


def encode_response(correlation_id: int, version: int, answer: OffsetCommitAnswer) -> tuple[set[int], bytes]:
    """Return the set of error codes in an OffsetCommit answer, and the whole response frame: size, header, body."""
    flexible = version >= 8
    pack = _ANSWER_FLEXIBLE.pack if flexible else _ANSWER.pack
    codes = set()
    parts = [b"", _size(len(answer.topics), flexible)]
    for name, topic_id, partitions in answer.topics:
        if version >= 10:
            parts.append(_NO_ID if topic_id is None else topic_id.bytes)
        else:
            raw = name.encode()
            parts += [varint_bytes(len(raw) + 1) if flexible else _INT16.pack(len(raw)), raw]
        parts.append(_size(len(partitions), flexible))
        for index, code in partitions:
            parts.append(pack(index, code))
            if code:
                codes.add(code)
        if flexible:
            parts.append(b"\0")
    if flexible:
        parts.append(b"\0")
    head = _HEAD[8 if flexible else min(version, 3)]
    size = head.size - 4 + sum(map(len, parts))
    parts[0] = head.pack(size, correlation_id, 0) if version >= 3 else head.pack(size, correlation_id)
    return codes, b"".join(parts)


def _size(count: int, flexible: bool) -> bytes:
    return varint_bytes(count + 1) if flexible else _INT32.pack(count)
