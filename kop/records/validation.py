"""The check that the records of a produced batch are what its header says, as Kafka's LogValidator looks at them.

Owns: the walk over the records before they are stored, and its errors.
Must not know: the header's own checks (`kop.records.batch.check_produced`), topics, requests.

Lengths that cannot be, records too many or too few, and offset deltas other than 0, 1, 2, ... are INVALID_RECORD. Where
Kafka is laxer or fails by accident, tests/records/test_record_vectors.py lists the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from kop.compiled import compiled
from kop.errors import ErrorCode, PeerError, raises_without_frames
from kop.records import _pure
from kop.records.batch import CODEC_MASK, HEADER_SIZE, BatchHeader, Buffer
from kop.records.compression import Codec, check_lz4_for_java, decompress
from kop.records.record import frames

MOST_NAMED = 5_000
"""The number of records in a batch above which none is named for its timestamp: 64 MiB can hold nine million."""

_REFUSAL_BYTES = 200
"""The bytes, roughly, that one refused record takes in an answer: a batch can have many in a few bytes."""

if TYPE_CHECKING:
    from kop import _native as twin
else:
    twin = compiled(_pure)


class RecordsRejectedError(PeerError):
    """An error for a produced batch that is refused because of single records (KIP-467)."""

    def __init__(self, code: ErrorCode, records: Sequence[tuple[int, str]], message: str = "") -> None:
        super().__init__(message or f"{len(records)} record(s) rejected, the first at index {records[0][0]}", code)
        self.records = tuple(records)
        """The index in the batch and the reason for each refused record, as Produce 8 and newer answers them in
        `record_errors`.
        """

    @classmethod
    def without_key(cls, indexes: Sequence[int]) -> RecordsRejectedError:
        """Return the error for a batch on a compacted topic whose records at `indexes` have no key."""
        text = "Compacted topic cannot accept message without key"
        return cls(ErrorCode.INVALID_RECORD, [(index, text) for index in indexes])


class CheckedRecords(NamedTuple):
    """The result of checking a batch's records: their timestamps, and their bytes."""

    earliest: int
    """The smallest timestamp (ms) that is a time; -1 if no record has one."""
    latest: int
    """The largest timestamp (ms); -1 if no record has one."""
    body: Buffer
    """The bytes of the records without compression."""


@raises_without_frames
def check_records(data: Buffer, header: BatchHeader, reject_null_keys: bool, max_bytes: int) -> CheckedRecords:
    """Check that the records of the batch that fills `data` are whole, as many as the header says, with offset deltas
    0, 1, 2, ... Return their timestamps and their bytes without compression.

    With `reject_null_keys` (compacted topics) records without a key are collected into a RecordsRejectedError. All is
    INVALID_RECORD, also a body that cannot be decompressed or grows beyond `max_bytes`: the checksum fits, so sending
    it again cannot help, and CORRUPT_MESSAGE would make clients do that. (Kafka answers UNKNOWN_SERVER_ERROR there.)
    """
    if header.attributes & CODEC_MASK:
        body, start = inflated(data, header.codec, max_bytes), 0
    else:
        body, start = data, HEADER_SIZE
    earliest, latest, without_key = twin.walk(body, start, header.record_count, header.base_timestamp, reject_null_keys)
    if without_key:
        raise RecordsRejectedError.without_key(without_key)
    return CheckedRecords(earliest, latest, memoryview(body)[start:])


class TimeLimits(NamedTuple):
    """The limits, in ms, of the distance between a record's timestamp and the clock."""

    before_max_ms: int = 2**63 - 1
    after_max_ms: int = 3_600_000

    def take(self, earliest: int, latest: int, now_ms: int) -> bool:
        """Return true if timestamps from `earliest` to `latest` are allowed at `now_ms`; -1 is no timestamp, and is
        allowed.
        """
        return (earliest < 0 or now_ms - earliest <= self.before_max_ms) and (
            latest < 0 or latest - now_ms <= self.after_max_ms
        )


NEAR_THE_CLOCK: Final = TimeLimits()
"""The limits of timestamps by Kafka's defaults."""


@raises_without_frames
def refuse_times(
    data: Buffer,
    header: BatchHeader,
    limits: TimeLimits,
    now_ms: int,
    *,
    reserve: Callable[[int], None],
    max_bytes: int,
    body: Buffer | None = None,
) -> NoReturn:
    """Raise INVALID_TIMESTAMP for the batch that fills `data`, with the records whose timestamps are not allowed,
    unless it has more than 5,000 records.

    The records of a LogAppendTime batch have its largest timestamp. `reserve` is called with the bytes of memory that
    this takes, or gives back if they are negative: up to `max_bytes` for the records without compression, which are
    `body` if the caller has them.
    """
    earliest, latest = now_ms - limits.before_max_ms, now_ms + limits.after_max_ms
    if header.record_count <= MOST_NAMED:
        reserve(header.record_count * _REFUSAL_BYTES)
        if body is None and header.codec:
            reserve(max_bytes)
            body = inflated(data, header.codec, max_bytes)
            reserve(len(body) - max_bytes)
        _name_times(memoryview(data)[HEADER_SIZE:] if body is None else body, header, earliest, latest)
    raise PeerError(
        f"a batch has timestamps out of range: the timestamp should be within [{earliest}, {latest}]",
        ErrorCode.INVALID_TIMESTAMP,
    )


def _name_times(records: Buffer, header: BatchHeader, earliest: int, latest: int) -> None:
    text = (
        "Timestamp {} of message with offset {} is out of range. "
        f"The timestamp should be within [{earliest}, {latest}]"
    )
    count = header.record_count
    append_time = header.max_timestamp if header.log_append_time else None
    rejected = [
        (index, text.format(timestamp, index))
        for index, timestamp, _, _ in frames(bytes(records), count, 0, count - 1, header.base_timestamp, append_time)
        if timestamp >= 0 and not earliest <= timestamp <= latest
    ]
    if rejected:
        message = "One or more records have been rejected due to invalid timestamp"
        raise RecordsRejectedError(ErrorCode.INVALID_TIMESTAMP, rejected, message)


@raises_without_frames
def inflated(data: Buffer, codec: int, max_bytes: int) -> Buffer:
    """Return the records of the batch that fills `data`, without compression and not checked. PeerError INVALID_RECORD
    if they cannot be decompressed, grow beyond `max_bytes`, or are in an lz4 that Java's consumers do not read.
    """
    packed = memoryview(data)[HEADER_SIZE:]
    try:
        body = decompress(codec, packed, max_bytes)
        if codec == Codec.LZ4:
            check_lz4_for_java(packed)
        return body
    except PeerError as error:
        raise PeerError(error.message, ErrorCode.INVALID_RECORD) from None
