"""Transactions written straight to a log, as a producer and its coordinator would have them written."""

from __future__ import annotations

from kop.records.batch import Record, build, read_header
from kop.storage.base import MarkedLog


class TransactionalWriter:
    """A producer whose client goes by version 2 of transactions: each end bumps its epoch."""

    def __init__(self, log: MarkedLog, producer_id: int) -> None:
        self.log = log
        self.producer_id = producer_id
        self.epoch = 0
        self.sequence = 0

    async def put(self, *values: bytes, timestamp: int = 1_000) -> int:
        """Append one batch, whose keys are its values and whose records are a millisecond apart; returns its offset."""
        batch = build(
            [Record(index, timestamp + index, value, value) for index, value in enumerate(values)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=True,
        )
        self.sequence += len(values)
        return (await self.log.append(batch, read_header(batch), now_ms=timestamp)).base_offset

    async def end(self, *, commit: bool, now_ms: int = 1_000) -> None:
        """Write the marker."""
        self.epoch, self.sequence = self.epoch + 1, 0
        await self.log.end_transaction(
            self.producer_id, self.epoch, commit=commit, coordinator_epoch=0, bumps_epoch=True, now_ms=now_ms
        )
