"""Keys and values of the transaction coordinator's records, byte for byte those of Kafka 4.3's `__transaction_state`.

Owns: the formats of TransactionLogKey (kind 0) and TransactionLogValue (versions 0 and 1).
Must not know: what a transaction may do next, which partition keeps it.

Version 1 is in the flexible encoding (KIP-890): its tagged fields hold the producer ids before and behind the present
one, and the version of transactions that the client goes by. Tags from 10,000 on are this gateway's own: Kafka steps
over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from kop.errors import StateRecordError
from kop.wire.primitives import OWN_TAGS
from kop.wire.state_encoding import Buffer, RecordReader, RecordWriter

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
VALUE_VERSION: Final = 1
"""The version of a transactional id's value that Kafka 4.3 writes if `transaction.version` is 1 or 2."""
STORAGE_TRANSACTION: Final = OWN_TAGS
"""The tag of the name that the open transaction has in storage."""

_KEY_KIND: Final = 0
_PREVIOUS_ID, _NEXT_ID, _CLIENT_VERSION, _NEXT_EPOCH = range(4)


class TransactionStatus(IntEnum):
    """The state of a transactional id, by the number in its record."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The name that clients see: `PrepareCommit`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


@dataclass(frozen=True, slots=True)
class TransactionValue:
    """The value of a transactional id's record. Times are ms since the epoch, -1 for none."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    status: TransactionStatus
    partitions: frozenset[tuple[str, int]] = frozenset()
    """The partitions in the transaction, as topic name and partition number."""
    last_update_timestamp: int = -1
    start_timestamp: int = -1
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer id that the transactional id had before, whose epochs ran out; from version 1 on."""
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id that takes the present one's place when the transaction has ended; from version 1 on."""
    client_version: int = 0
    """The version of transactions that the client goes by (0 to 2); from version 1 on."""
    next_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch of the next producer id (KIP-939); from version 1 on."""
    own: Mapping[int, bytes] = field(default_factory=dict)
    """The tagged fields of kop's own, with numbers from `OWN_TAGS` up; from version 1 on."""


def encode_transaction_key(transactional_id: str) -> bytes:
    """Return the bytes of a transactional id's key. StateRecordError if the id is too long."""
    writer = RecordWriter(_KEY_KIND)
    writer.string(transactional_id)
    return bytes(writer.out)


def decode_transaction_key(data: Buffer) -> str | None:
    """Return the transactional id in the bytes of a key; None for a key of another kind. StateRecordError if it is
    malformed.
    """
    reader = RecordReader(data)
    return reader.string() if reader.int16() == _KEY_KIND else None


def encode_transaction_value(value: TransactionValue, version: int = VALUE_VERSION) -> bytes:
    """Return the bytes of the value of a transactional id's record in this version. StateRecordError if the version is
    not known.
    """
    _check(version)
    writer = RecordWriter(version, flexible=version >= 1)
    writer.int64(value.producer_id)
    writer.int16(value.producer_epoch)
    writer.int32(value.timeout_ms)
    writer.out += value.status.to_bytes(1, "big")
    if value.status is TransactionStatus.EMPTY:
        writer.count(-1)  # null, as Kafka writes it
    else:
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(value.partitions):
            topics.setdefault(topic, []).append(partition)
        writer.count(len(topics))
        for topic, partitions in topics.items():
            writer.string(topic)
            writer.count(len(partitions))
            for partition in partitions:
                writer.int32(partition)
            writer.tags()
    writer.int64(value.last_update_timestamp)
    writer.int64(value.start_timestamp)
    tags = dict(value.own)
    if value.previous_producer_id != NO_PRODUCER_ID:
        tags[_PREVIOUS_ID] = value.previous_producer_id.to_bytes(8, "big", signed=True)
    if value.next_producer_id != NO_PRODUCER_ID:
        tags[_NEXT_ID] = value.next_producer_id.to_bytes(8, "big", signed=True)
    if value.client_version:
        tags[_CLIENT_VERSION] = value.client_version.to_bytes(2, "big", signed=True)
    if value.next_producer_epoch != NO_PRODUCER_EPOCH:
        tags[_NEXT_EPOCH] = value.next_producer_epoch.to_bytes(2, "big", signed=True)
    writer.tags(tags)
    return bytes(writer.out)


def decode_transaction_value(data: Buffer) -> TransactionValue:
    """Return the state of a transactional id in the bytes of its value. StateRecordError if it is malformed."""
    reader = RecordReader(data)
    version = _check(reader.int16())
    reader.flexible = version >= 1
    producer_id = reader.int64()
    producer_epoch = reader.int16()
    timeout_ms = reader.int32()
    (raw_status,) = reader.take(1)
    try:
        status = TransactionStatus(raw_status)
    except ValueError:
        raise StateRecordError(f"a transaction of the status {raw_status}") from None
    partitions: set[tuple[str, int]] = set()
    for _ in range(max(reader.nullable_count(), 0)):
        topic = reader.string()
        partitions.update((topic, reader.int32()) for _ in range(reader.count()))
        reader.tags()
    last_update_timestamp = reader.int64()
    start_timestamp = reader.int64()
    tags = reader.tags()
    return TransactionValue(
        producer_id,
        producer_epoch,
        timeout_ms,
        status,
        frozenset(partitions),
        last_update_timestamp,
        start_timestamp,
        _number(tags, _PREVIOUS_ID, 8, NO_PRODUCER_ID),
        _number(tags, _NEXT_ID, 8, NO_PRODUCER_ID),
        _number(tags, _CLIENT_VERSION, 2, 0),
        _number(tags, _NEXT_EPOCH, 2, NO_PRODUCER_EPOCH),
        {tag: raw for tag, raw in tags.items() if tag >= OWN_TAGS},
    )


def _number(tags: Mapping[int, bytes], tag: int, size: int, default: int) -> int:
    raw = tags.get(tag)
    if raw is None:
        return default
    if len(raw) != size:
        raise StateRecordError(f"tagged field {tag} of {len(raw)} bytes")
    return int.from_bytes(raw, "big", signed=True)


def _check(version: int) -> int:
    if version not in (0, 1):
        raise StateRecordError(f"version {version} of a transaction's value is not known")
    return version
