"""Records in and out of a test's broker without a client.

Owns: `KafkaRecord`, how one is made of what a test gives, batches of them for a log, and records of a log's batches.
Must not know: which broker has the log, the wire.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kop import clock
from kop.records import batch as batches
from kop.records.batch import iter_batches, iter_records, read_header
from kop.records.partitioning import partition_of
from kop.storage.base import MOST_UNCOMPRESSED, PartitionLog

_READ_BYTES: Final = 4 << 20
_AT_ONCE: Final = 1000
"""The number of records in a batch."""


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """A record of a test. Those that a test reads have a partition, an offset and a timestamp."""

    value: bytes | None
    """The value; None for a tombstone."""
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None
    """The timestamp in ms since the epoch; None for now."""
    partition: int | None = None
    """The partition; None to let the key decide, as with Kafka's own producer; records without a key are spread."""
    offset: int | None = None
    """The offset of a record that was stored; None for one to be produced."""


Given = KafkaRecord | bytes | str | None | tuple[bytes | str | None, bytes | str | None]
"""The type of a record as a test may give it: whole, as its value, or as key and value."""


def record_of(given: Given) -> KafkaRecord:
    """Return the record for a value, a pair of key and value, or a record that a test gives. TypeError for anything
    else.
    """
    if isinstance(given, KafkaRecord):
        return given
    if isinstance(given, tuple) and len(given) == 2:
        key, value = given
        return KafkaRecord(_bytes(value), _bytes(key))
    if given is None or isinstance(given, bytes | str):
        return KafkaRecord(_bytes(given))
    raise TypeError(f"a record is bytes, text, None, (key, value) or kop.testing.KafkaRecord, not {given!r}")


def by_partition(given: Iterable[Given], partitions: int) -> Mapping[int, list[KafkaRecord]]:
    """Return the records for each partition of a topic, in their order. A record without a partition goes by its key,
    as Kafka's producer does it; without a key they go to the partitions in turns. ValueError for a partition that the
    topic does not have.
    """
    placed: dict[int, list[KafkaRecord]] = defaultdict(list)
    turns = itertools.cycle(range(partitions))
    for item in given:
        record = record_of(item)
        partition = record.partition
        if partition is None:
            partition = next(turns) if record.key is None else partition_of(record.key, partitions)
        if not 0 <= partition < partitions:
            raise ValueError(f"there is no partition {partition}: the topic has {partitions}")
        placed[partition].append(record)
    return placed


async def append(log: PartitionLog, records: Sequence[KafkaRecord]) -> list[KafkaRecord]:
    """Append records to a partition; return them with partition, offset and the timestamp that they are stored with,
    which is the present time for those without one, and for all if the log stamps records itself. Raises the KopError
    of the log if it refuses them.
    """
    appended: list[KafkaRecord] = []
    for begin in range(0, len(records), _AT_ONCE):
        now = clock.wall_ms()
        part = [
            replace(item, timestamp=now if item.timestamp is None else item.timestamp)
            for item in records[begin:][:_AT_ONCE]
        ]
        batch = batches.build(
            batches.Record(
                at, item.timestamp or 0, item.key, item.value, [(name.encode(), value) for name, value in item.headers]
            )
            for at, item in enumerate(part)
        )
        result = await log.append(batch, read_header(batch), now_ms=now)
        if result.log_append_time >= 0:
            part = [replace(item, timestamp=result.log_append_time) for item in part]
        appended += [replace(item, partition=log.index, offset=result.base_offset + at) for at, item in enumerate(part)]
    return appended


async def read(log: PartitionLog, *, committed: bool) -> list[KafkaRecord]:
    """Return all records of a partition in their order, without markers; with `committed` those that a read_committed
    consumer gets.
    """
    await log.attach()
    records: list[KafkaRecord] = []
    offset, end = log.log_start_offset, log.last_stable_offset if committed else log.high_watermark
    aborted = log.aborted_between(offset, end) if committed else ()
    while offset < end:
        result = await log.read(offset, _READ_BYTES, min_one=True)
        if not result.size:
            break
        for buffer in result.buffers:
            for position, header in iter_batches(buffer):
                begin, offset = offset, header.next_offset
                if header.control or any(
                    header.transactional
                    and header.producer_id == transaction.producer_id
                    and transaction.first_offset <= header.base_offset <= transaction.last_offset
                    for transaction in aborted
                ):
                    continue
                whole = memoryview(buffer)[position : position + header.size]
                records += _records(whole, log.index, begin, end)
    return records


def _records(batch: memoryview, partition: int, begin: int, end: int) -> Iterator[KafkaRecord]:
    for record in iter_records(batch, max_bytes=MOST_UNCOMPRESSED):
        if begin <= record.offset < end:
            headers = tuple((name.decode(errors="replace"), value) for name, value in record.headers)
            yield KafkaRecord(record.value, record.key, headers, record.timestamp, partition, record.offset)


def _bytes(text: bytes | str | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
