"""The senders of one partition: one for each idempotent producer, one for everything else, or the leader's alone.

Owns: which sender takes a batch, when an idle one goes.
Must not know: how a batch is sent, offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kop.errors import KopError
from kop.records.batch import BatchHeader
from kop.storage.base import ProducerView
from kop.storage.pulsar.partition.appends import InFlightEntry
from kop.storage.pulsar.partition.producer import Sender

if TYPE_CHECKING:
    from kop.storage.pulsar.partition.log import PulsarLog


class Senders:
    """Senders of one log, by producer id; -1: the gateway's own."""

    def __init__(self, log: PulsarLog) -> None:
        self._log = log
        self._senders: dict[int, Sender] = {}

    def __bool__(self) -> bool:
        return bool(self._senders)

    @property
    def idle(self) -> bool:
        """Nothing waits in any."""
        return all(sender.idle for sender in self._senders.values())

    def of(self, header: BatchHeader) -> Sender:
        """The one that takes the batch."""
        leader = self._log.leading.sender
        if leader is not None:
            return leader
        producer_id = max(header.producer_id, -1)
        sender = self._senders.get(producer_id)
        if sender is None:
            name = self._log.engine.producer_naming.of(producer_id)
            sender = self._senders[producer_id] = Sender(self._log, name, idempotent=producer_id >= 0)
        return sender

    def find(self, producer_name: str, sequence_id: int) -> InFlightEntry | None:
        """Ours whose receipt is not here yet, or says "duplicate" because an earlier one was lost."""
        leader = self._log.leading.sender
        for sender in self._senders.values() if leader is None else (leader,):
            if sender.name == producer_name:
                return sender.pending.get(sequence_id)
        return None

    def ended(self, sender: Sender) -> None:
        """It takes no more batches."""
        if self._log.leading.ended(sender):
            return
        for producer_id, known in self._senders.items():
            if known is sender:
                del self._senders[producer_id]
                return

    def fail(self, error: KopError) -> None:
        """All of them end, the leader's too."""
        senders, self._senders = list(self._senders.values()), {}
        if self._log.leading.sender is not None:
            senders.append(self._log.leading.sender)
        for sender in senders:
            sender.fail(error)
            self._log.spawn(sender.close())

    def views(self) -> Sequence[ProducerView]:
        """Idempotent producers that this gateway serves now."""
        return [
            ProducerView(producer_id, known.epoch, known.last_sequence, known.last_timestamp)
            for producer_id, sender in sorted(self._senders.items())
            if (known := sender.sequences) is not None and known.epoch >= 0
        ]

    def close_idle(self, now: float, seconds: float) -> None:
        """Let those go that nobody used for a while: another gateway may want the names."""
        for producer_id, sender in tuple(self._senders.items()):
            if producer_id >= 0 and sender.idle and now - sender.used > seconds:
                del self._senders[producer_id]
                self._log.spawn(sender.close())

    async def close(self) -> None:
        """Let all go; what waits in them fails."""
        await asyncio.gather(*(sender.close() for sender in tuple(self._senders.values())))
