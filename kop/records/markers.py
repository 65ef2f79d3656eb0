"""The control batches that end transactions (KIP-98): one record each, byte for byte as Kafka writes them.

Owns: their layout. Must not know: which transactions there are.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from kop.errors import ErrorCode, PeerError
from kop.records.batch import Buffer, build, iter_records, read_header
from kop.records.record import Record

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1
_MOST_BYTES: Final = 1024


class EndMarker(NamedTuple):
    """A marker that ends a transaction: commit or abort, and the coordinator's epoch. The producer is in the header of
    its batch.
    """

    commit: bool
    coordinator_epoch: int


def build_marker(
    producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int, timestamp: int, offset: int = 0
) -> bytearray:
    """Return the control batch that ends a producer's transaction. `timestamp` is in milliseconds since the epoch."""
    key = _KEY.pack(0, _COMMIT if commit else _ABORT)
    return build(
        [Record(offset, timestamp, key, _VALUE.pack(0, coordinator_epoch))],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_marker(batch: Buffer) -> EndMarker | None:
    """Return the transaction's end that a control batch stands for; None for another kind of control record.

    PeerError CORRUPT_MESSAGE if it is no control batch or has no whole marker, INVALID_RECORD if its record is
    malformed.
    """
    header = read_header(batch)
    record = next(iter_records(batch, header, max_bytes=_MOST_BYTES), None)
    if not header.control or record is None or record.key is None or len(record.key) < _KEY.size:
        raise PeerError("a control batch without a key that says its kind", ErrorCode.CORRUPT_MESSAGE)
    _, kind = _KEY.unpack_from(record.key)
    if kind not in (_ABORT, _COMMIT):
        return None
    if record.value is None or len(record.value) < _VALUE.size:
        raise PeerError("a marker without the epoch of its coordinator", ErrorCode.CORRUPT_MESSAGE)
    return EndMarker(kind == _COMMIT, _VALUE.unpack_from(record.value)[1])
