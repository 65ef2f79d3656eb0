"""Keys and values of the group coordinator's records, byte for byte those of Kafka 4.3's `__consumer_offsets`.

Owns: the formats of OffsetCommit (keys 0 and 1, values 0 to 4) and GroupMetadata (key 2, values 0 to 4), and one of
this gateway's own, PendingOffset (key 1000, value 0): an offset that is committed when its transaction is.
Must not know: groups, partitions, which version is the newest that somebody else writes.

Values of version 4 are in the flexible encoding (KIP-482); of their tagged fields only the topic id of a committed
offset is known, and in a pending one the name of its transaction. Readers of Kafka's records step over kinds that they
do not know.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from kop.errors import StateRecordError
from kop.varints import varint_bytes
from kop.wire.state_encoding import LONGEST_STRING, Buffer, RecordReader, RecordWriter, short_string
from kop.wire.transaction_state import STORAGE_TRANSACTION

OFFSET_VALUE_VERSION: Final = 4
"""The version of a committed offset's value that Kafka 4.3 writes, unless it has a retention of its own."""
EXPIRING_OFFSET_VALUE_VERSION: Final = 1
"""The one version of a committed offset's value that has room for `expire_timestamp`."""
GROUP_VALUE_VERSION: Final = 3
"""The version of a group's value that Kafka 4.3 writes."""

PENDING_OFFSET_KIND: Final = 1000
"""The kind of a key of a pending offset. Kafka's own kinds are below 1000."""
PENDING_OFFSET_VALUE_VERSION: Final = 0

_OFFSET_KEY_KIND: Final = b"\0\1"
_OFFSET_HEAD: Final = struct.Struct(">hqi")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_TOPIC_ID_TAG: Final = 0
_TOPIC_ID_HEAD: Final = bytes((1, _TOPIC_ID_TAG, 16))
"""The encoded bytes before a topic id that is the only tagged field: number of fields, tag, size."""
_ZERO_ID: Final = UUID(int=0)


@dataclass(frozen=True, slots=True)
class OffsetCommitKey:
    """The key of one committed offset. Kinds 0 and 1 have the same fields; 1 is written."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupMetadataKey:
    """The key of the metadata of one group of the classic protocol. Kind 2."""

    group: str


@dataclass(frozen=True, slots=True)
class PendingOffsetKey:
    """The key of a pending offset, which a producer commits with its transaction. Kind 1000."""

    group: str
    topic: str
    partition: int
    producer_id: int


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A key of a kind that is not known here: a later coordinator's record, to be stepped over."""

    kind: int


Key: TypeAlias = OffsetCommitKey | GroupMetadataKey | PendingOffsetKey | UnknownKey


class OffsetCommitValue(NamedTuple):
    """The value of a committed offset. Times are milliseconds since the epoch, -1 for none."""

    offset: int
    leader_epoch: int = -1
    """The leader epoch of the committed offset, from version 3 on."""
    metadata: str = ""
    commit_timestamp: int = -1
    expire_timestamp: int = -1
    """The time at which the offset expires, in version 1 only: from OffsetCommit requests that name a retention time
    (versions 2 to 4).
    """
    topic_id: UUID | None = None
    """The id of the topic, from version 4 on; None before that."""


@dataclass(frozen=True, slots=True)
class PendingOffsetValue:
    """The value of a pending offset: it is committed when the transaction of the producer is."""

    producer_epoch: int
    offset: OffsetCommitValue
    storage_transaction: bytes = b""
    """The name that storage gives the transaction; empty if storage gives it none."""


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """A group's member in the value of the group's metadata."""

    member_id: str
    instance_id: str | None
    """The group.instance.id of a static member, from version 3 on (KIP-345); None for others."""
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    """The member's rebalance timeout, from version 1 on; else -1."""
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadataValue:
    """The value of a group's metadata: generation, protocol and members; an empty group has none."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp: int = -1
    """The time at which the group came into its state, in ms since the epoch, from version 2 on; -1 before that."""
    members: tuple[MemberMetadata, ...] = field(default=())


def fits(name: str) -> bool:
    """Return true if a record has room for a name: strings are limited to 32,767 bytes."""
    return len(name.encode()) <= LONGEST_STRING


def encode_key(key: OffsetCommitKey | GroupMetadataKey | PendingOffsetKey) -> bytes:
    """Return the bytes of a key: of a committed offset (kind 1), a group (2) or a pending offset (1000).
    StateRecordError if a name is too long.
    """
    if isinstance(key, OffsetCommitKey):
        return encode_offset_key(key.group, key.topic, key.partition)
    if isinstance(key, GroupMetadataKey):
        writer = RecordWriter(2)
        writer.string(key.group)
        return bytes(writer.out)
    writer = RecordWriter(PENDING_OFFSET_KIND)
    writer.string(key.group)
    writer.string(key.topic)
    writer.int32(key.partition)
    writer.int64(key.producer_id)
    return bytes(writer.out)


def encode_offset_key(group: str, topic: str, partition: int) -> bytes:
    """Return the bytes of an `OffsetCommitKey` of these fields, put together without a `RecordWriter`, since there is
    one for each committed offset.
    """
    return b"".join((_OFFSET_KEY_KIND, short_string(group), short_string(topic), _INT32.pack(partition)))


def decode_key(data: Buffer) -> Key:
    """Return the key in `data`, of a kind that is known or not. StateRecordError if it is malformed."""
    reader = RecordReader(data)
    kind = reader.int16()
    if kind in (0, 1):
        return OffsetCommitKey(reader.string(), reader.string(), reader.int32())
    if kind == 2:
        return GroupMetadataKey(reader.string())
    if kind == PENDING_OFFSET_KIND:
        return PendingOffsetKey(reader.string(), reader.string(), reader.int32(), reader.int64())
    return UnknownKey(kind)


def encode_offset_value(
    value: OffsetCommitValue, version: int | None = None, own_tags: Mapping[int, bytes] = MappingProxyType({})
) -> bytes:
    """Return the bytes of a committed offset, in `version`, or in the one that Kafka 4.3 would choose.

    `own_tags` are further tagged fields, which versions below 4 have no room for.
    """
    if version is None and value.expire_timestamp < 0:
        return _encode_newest_offset_value(value)
    version = _known(EXPIRING_OFFSET_VALUE_VERSION if version is None else version)
    writer = RecordWriter(version, flexible=version >= 4)
    writer.int64(value.offset)
    if version >= 3:
        writer.int32(value.leader_epoch)
    writer.string(value.metadata)
    writer.int64(value.commit_timestamp)
    if version == 1:
        writer.int64(value.expire_timestamp)
    if version >= 4:
        tags = dict(own_tags)
        if value.topic_id is not None and value.topic_id != _ZERO_ID:
            tags[_TOPIC_ID_TAG] = value.topic_id.bytes
        writer.tags(tags)
    return bytes(writer.out)


def _encode_newest_offset_value(value: OffsetCommitValue) -> bytes:
    """Return the bytes of a committed offset in version 4, put together without a `RecordWriter`, since there is one
    for each committed offset.
    """
    offset, leader_epoch, metadata, commit_timestamp, _, topic_id = value
    raw = metadata.encode()
    tags = b"\0" if topic_id is None or not topic_id.int else _TOPIC_ID_HEAD + topic_id.bytes
    return b"".join(
        (
            _OFFSET_HEAD.pack(OFFSET_VALUE_VERSION, offset, leader_epoch),
            varint_bytes(len(raw) + 1),
            raw,
            _INT64.pack(commit_timestamp),
            tags,
        )
    )


def decode_offset_value(data: Buffer) -> OffsetCommitValue:
    """Return the committed offset in `data`. StateRecordError if it is malformed."""
    return _read_offset_value(RecordReader(data))[0]


def _read_offset_value(reader: RecordReader) -> tuple[OffsetCommitValue, Mapping[int, bytes]]:
    """Read a committed offset and its tagged fields, by their numbers, from the rest of the record; StateRecordError if
    it is malformed.
    """
    version = _known(reader.int16())
    reader.flexible = version >= 4
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.string()
    commit_timestamp = reader.int64()
    expire_timestamp = reader.int64() if version == 1 else -1
    tags = reader.tags()
    raw_id = tags.get(_TOPIC_ID_TAG)
    topic_id = None
    if raw_id is not None:
        if len(raw_id) != 16:
            raise StateRecordError(f"a topic id of {len(raw_id)} bytes")
        topic_id = UUID(bytes=raw_id)
    return OffsetCommitValue(offset, leader_epoch, metadata, commit_timestamp, expire_timestamp, topic_id), tags


def encode_pending_value(value: PendingOffsetValue) -> bytes:
    """Return the bytes of a pending offset: the producer's epoch, then the committed offset as it will be.

    The name of its transaction is a tagged field of that offset.
    """
    writer = RecordWriter(PENDING_OFFSET_VALUE_VERSION)
    writer.int16(value.producer_epoch)
    if value.storage_transaction:
        own_tags = {STORAGE_TRANSACTION: value.storage_transaction}
        writer.out += encode_offset_value(value.offset, OFFSET_VALUE_VERSION, own_tags)
    else:
        writer.out += encode_offset_value(value.offset)
    return bytes(writer.out)


def decode_pending_value(data: Buffer) -> PendingOffsetValue:
    """Return the pending offset in `data`. StateRecordError if it is malformed."""
    reader = RecordReader(data)
    version = reader.int16()
    if version != PENDING_OFFSET_VALUE_VERSION:
        raise StateRecordError(f"version {version} of a pending offset is not known")
    epoch = reader.int16()
    offset, tags = _read_offset_value(reader)
    return PendingOffsetValue(epoch, offset, tags.get(STORAGE_TRANSACTION, b""))


def encode_group_value(value: GroupMetadataValue, version: int = GROUP_VALUE_VERSION) -> bytes:
    """Return the bytes of the value of a group's metadata in this version. StateRecordError if a name is too long for
    it, or the version is not known.
    """
    _known(version)
    writer = RecordWriter(version, flexible=version >= 4)
    writer.string(value.protocol_type)
    writer.int32(value.generation)
    writer.string(value.protocol)
    writer.string(value.leader)
    if version >= 2:
        writer.int64(value.current_state_timestamp)
    writer.count(len(value.members))
    for member in value.members:
        writer.string(member.member_id)
        if version >= 3:
            writer.string(member.instance_id)
        writer.string(member.client_id)
        writer.string(member.client_host)
        if version >= 1:
            writer.int32(member.rebalance_timeout_ms)
        writer.int32(member.session_timeout_ms)
        writer.blob(member.subscription)
        writer.blob(member.assignment)
        writer.tags()
    writer.tags()
    return bytes(writer.out)


def decode_group_value(data: Buffer) -> GroupMetadataValue:
    """Return the group's metadata in `data`. StateRecordError if it is no such value."""
    reader = RecordReader(data)
    version = _known(reader.int16())
    reader.flexible = version >= 4
    value = GroupMetadataValue(
        protocol_type=reader.string(),
        generation=reader.int32(),
        protocol=reader.nullable_string(),
        leader=reader.nullable_string(),
        current_state_timestamp=reader.int64() if version >= 2 else -1,
        members=tuple(_member(reader, version) for _ in range(reader.count())),
    )
    reader.tags()
    return value


def _member(reader: RecordReader, version: int) -> MemberMetadata:
    member = MemberMetadata(  # arguments are read in their order
        member_id=reader.string(),
        instance_id=reader.nullable_string() if version >= 3 else None,
        client_id=reader.string(),
        client_host=reader.string(),
        rebalance_timeout_ms=reader.int32() if version >= 1 else -1,
        session_timeout_ms=reader.int32(),
        subscription=reader.blob(),
        assignment=reader.blob(),
    )
    reader.tags()
    return member


def _known(version: int) -> int:
    if not 0 <= version <= 4:
        raise StateRecordError(f"version {version} of a value is not known")
    return version
