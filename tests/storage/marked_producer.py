"""Transactions in logs that take markers: producers, and what readers make of such a log."""

from __future__ import annotations

import asyncio

from storage.batches import LIMIT, NOW, append

from kop.records.batch import Record, build, iter_batches, iter_records
from kop.records.markers import read_marker
from kop.storage.base import AppendResult, Buffer, MarkedLog, ReadResult
from kop.storage.transaction_index import AbortedRecords


def keyed(*values: str) -> list[Record]:
    """Records whose keys are their values."""
    return [Record(index, NOW, value.encode(), value.encode()) for index, value in enumerate(values)]


class TransactionalProducer:
    """A producer whose client goes by version 2 of transactions: each end bumps its epoch."""

    def __init__(self, log: MarkedLog, producer_id: int, epoch: int = 0) -> None:
        self.log = log
        self.producer_id = producer_id
        self.epoch = epoch
        self.sequence = 0

    def batch(self, *records: Record) -> Buffer:
        """The producer's next batch."""
        data = build(
            records,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=True,
        )
        self.sequence += len(records)
        return data

    def put(self, *values: str) -> asyncio.Future[AppendResult]:
        """Append a batch of records whose keys are their values."""
        return append(self.log, self.batch(*keyed(*values)))

    def end(self, *, commit: bool, epoch: int | None = None, now_ms: int = NOW) -> asyncio.Future[AppendResult]:
        """End the transaction; with `epoch` again, under that epoch."""
        if epoch is None:
            self.epoch, self.sequence = self.epoch + 1, 0
            epoch = self.epoch
        return self.log.end_transaction(
            self.producer_id, epoch, commit=commit, coordinator_epoch=0, bumps_epoch=True, now_ms=now_ms
        )


async def batches_of(log: MarkedLog) -> list[Buffer]:
    """Every batch, from the log start to the high watermark."""
    batches: list[Buffer] = []
    offset = log.log_start_offset
    while offset < log.high_watermark:
        read = await log.read(offset, LIMIT, min_one=True)
        for buffer in read.buffers:
            for start, header in iter_batches(buffer):
                batches.append(memoryview(buffer)[start : start + header.size])
                offset = header.next_offset
    return batches


def kinds(read: ReadResult) -> list[str]:
    """What lies in the log: `data`, `commit`, `abort`."""
    kinds_read = []
    for buffer in read.buffers:
        for pos, header in iter_batches(buffer):
            marker = read_marker(memoryview(buffer)[pos : pos + header.size]) if header.control else None
            kinds_read.append("data" if marker is None else "commit" if marker.commit else "abort")
    return kinds_read


async def committed_records(log: MarkedLog) -> list[Record]:
    """What a reader of committed records sees."""
    start, end = log.log_start_offset, log.last_stable_offset
    aborted = AbortedRecords(log.aborted_between(start, end))
    committed: list[Record] = []
    for data in await batches_of(log):
        for _, header in iter_batches(data):
            gone = header.transactional and aborted.hold(header.producer_id, header.base_offset)
            if not header.control and not gone:
                committed += [
                    record for record in iter_records(data, header, max_bytes=LIMIT) if start <= record.offset
                ]
    return [record for record in committed if record.offset < end]


async def committed_values(log: MarkedLog) -> list[str]:
    """As `committed_records`, their values."""
    return [(record.value or b"").decode() for record in await committed_records(log)]
