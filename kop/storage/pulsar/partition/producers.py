"""The Pulsar producers of one partition: one for each idempotent producer id, one for everything else, or the leader's.

Owns: which of them takes a batch, when an idle one goes; which transaction a producer id writes in; the writer lease,
whose producer is the leader's: if that is surely still exclusive, and the one call when another broker has taken it.
Must not know: how a batch is sent, offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from kop.errors import KopError
from kop.pulsar_client import PulsarError
from kop.records.batch import BatchHeader
from kop.records.transcode import EntryTransaction
from kop.storage.base import AppendWaiter, ProducerView
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Refused
from kop.storage.pulsar.offsets.entry import EntryWithOffsets
from kop.storage.pulsar.partition.appends import InFlightEntry
from kop.storage.pulsar.partition.direct_batches import DirectBatches
from kop.storage.pulsar.partition.producer import PartitionProducer, WritePath

if TYPE_CHECKING:
    from kop._native import DirectWriter

SURE_SECONDS: Final = 4.0
"""The seconds for which an answer of Pulsar confirms the lease. They are less than the 5 s for which a Pulsar broker
waits for a silent producer before another one may replace it (connectionLivenessCheckTimeoutMillis). A Pulsar broker
that takes the producer for dead may fence it at any time; this broker then answers from memory for no longer than this.
"""


class WriterLease:
    """The lease of one log: the right to be its only writer. `producer` is set while this broker holds the lease.

    `make_producer()` gives a producer that fences all others when it is opened; `attach` and `refresh` are the log's.
    """

    def __init__(
        self,
        context: PulsarContext,
        title: str,
        make_producer: Callable[[], PartitionProducer],
        attach: Callable[[], Awaitable[None]],
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        self.producer: PartitionProducer | None = None
        self._context = context
        self._title = title
        self._make_producer = make_producer
        self._attach = attach
        self._refresh = refresh
        self._lost: Callable[[], None] | None = None
        self._asking: asyncio.Task[None] | None = None

    async def begin(self, lost: Callable[[], None]) -> None:
        """Become the only writer: fence the former holder, by the topic's epoch in Pulsar, then read what it wrote.
        KopError or PulsarError if that fails; then this broker holds no lease. `lost` is called when another broker
        becomes the writer, or the producer fails.
        """
        await self.end()
        await self._attach()
        producer = self._make_producer()
        try:
            await producer.open()
        except BaseException:
            await producer.close()
            raise
        self.producer, self._lost = producer, lost
        try:
            await self._refresh()
        except BaseException:
            await self.end()
            raise

    @property
    def confirmed(self) -> bool:
        """True if this broker surely holds the lease: Pulsar said so within the last 4 seconds, so that no other can
        have taken it.
        """
        return self.producer is not None and self._context.loop.time() - self.producer.sure_at < SURE_SECONDS

    async def make_sure(self) -> None:
        """Ask Pulsar if this broker still holds the lease, so that `confirmed` tells it. Callers at the same time share
        the answer; a failure is logged and counted, not raised. Nothing is asked without a lease.
        """
        if self.producer is None:
            return
        if self._asking is None:
            self._asking = self._context.loop.create_task(self._ask(self.producer))
        await asyncio.shield(self._asking)

    async def _ask(self, producer: PartitionProducer) -> None:
        try:
            await producer.verify()
        except PulsarError as error:
            self._context.faults.refused(error, Refused.REQUESTS, f"cannot tell who leads {self._title}")
        finally:
            self._asking = None

    async def end(self) -> None:
        """Give the lease up, and close its producer: batches that wait in it fail. `lost` is not called."""
        producer, self.producer, self._lost = self.producer, None, None
        if producer is not None:
            await producer.close()

    def ended(self, producer: PartitionProducer) -> bool:
        """Handle that a producer accepts no more batches. If it was the producer of the lease, forget the lease, call
        its `lost`, and return true.
        """
        if producer is not self.producer:
            return False
        lost, self.producer, self._lost = self._lost, None, None
        if lost is not None:
            lost()
        return True


class PartitionProducers:
    """The Pulsar producers of one log, by Kafka's producer id; -1 is the broker's own, for all batches without an id.

    `attach` is the log's.
    """

    def __init__(self, path: WritePath, attach: Callable[[], Awaitable[None]]) -> None:
        self._path = path
        self.lease = WriterLease(path.context, path.log.title, self._leaders, attach, path.refresh)
        self._producers: dict[int, PartitionProducer] = {}
        self._joined: dict[int, tuple[int, EntryTransaction]] = {}
        """The epochs of producer ids, with the Pulsar transactions that they write in."""
        self._parked: dict[int, DirectBatches] = {}
        """The batches of compiled code that have a receipt and wait, by the entry of the first one."""
        self._going_on = False

    def __bool__(self) -> bool:
        return bool(self._producers)

    @property
    def idle(self) -> bool:
        """True if no batch waits in any of the producers."""
        return all(producer.idle for producer in self._producers.values())

    @property
    def in_transactions(self) -> bool:
        """True if transactions are known in which producer ids write."""
        return bool(self._joined)

    def join(self, producer_id: int, producer_epoch: int, txn: EntryTransaction) -> None:
        """Write transactional batches of this producer id and epoch into the Pulsar transaction `txn` from now on."""
        self._joined[producer_id] = producer_epoch, txn
        if (producer := self._producers.get(producer_id)) is not None:
            producer.end_direct()  # a batch outside of the transaction has to be refused

    def in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Return true if this producer id and epoch write in a transaction now."""
        joined = self._joined.get(producer_id)
        return joined is not None and joined[0] == producer_epoch

    def transaction_of(self, header: BatchHeader) -> EntryTransaction | None:
        """Return the transaction of a batch; None if its producer is in none, or not any more."""
        epoch, txn = self._joined.get(header.producer_id, (-1, None))
        return txn if epoch == header.producer_epoch else None

    def of(self, header: BatchHeader) -> PartitionProducer:
        """Return the producer that a batch has to go through, made if there is none."""
        leader = self.lease.producer
        if leader is not None:
            return leader
        producer_id = max(header.producer_id, -1)
        producer = self._producers.get(producer_id)
        if producer is None:
            name = self._path.services.producer_naming().of(producer_id)
            producer = self._producers[producer_id] = PartitionProducer(
                self._path,
                name,
                idempotent=producer_id >= 0,
                transactional=header.transactional,
                on_ended=self._ended,
                park=self._park,
            )
        return producer

    async def nobody_else_writes(self, producer_id: int) -> bool:
        """Return true once no other broker has the Pulsar producer of a producer id; false if Pulsar does not tell.

        A Pulsar broker gives a producer's name to one connection at a time, and to the next one when it has handled all
        that the former sent. So the name is asked for, until it is free or the caller cancels this.
        """
        path, name = self._path, self._path.services.producer_naming().of(producer_id)
        pause = 0.02
        while True:
            producer = self._producers.get(producer_id)
            if producer is not None and producer.connected:
                return True
            try:
                taken = await path.context.client.open_producer(
                    path.log.partition_name,
                    name=name,
                    before_attach=path.check_exists,
                    confirm=partial(path.services.confirm, path.log),
                    lane=path.throttle.lane,
                )
            except PulsarError as error:
                if error.code != "ProducerBusy":
                    return False
            except KopError:
                return False
            else:
                await taken.close()
                return True
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.5)

    def direct_writer(self, header: BatchHeader) -> DirectWriter | None:
        """Return the compiled writer for further batches of the producer of this batch; None if they have to go the
        ordinary way, as those of a leader or in a transaction have to.
        """
        if self.lease.producer is not None or header.producer_id in self._joined:  # whatever the batch's own epoch
            return None
        producer = self._producers.get(max(header.producer_id, -1))
        return None if producer is None else producer.direct_writer()

    def submit_directly(self, batch: bytearray, header: BatchHeader, waiter: AppendWaiter, place: int) -> bool:
        """Give a batch to compiled code; return false if there is none for its producer, or it does not accept the
        batch.
        """
        producer = self._producers.get(max(header.producer_id, -1))
        return producer is not None and producer.submit_directly(batch, header, waiter, place)

    def brought_directly(self, stored: EntryWithOffsets) -> bool:
        """Give compiled code an entry that the tail brought, and that lies behind the log's end. Return true if it was
        the next one of a producer of this broker there, and is placed.
        """
        for producer in self._producers.values():
            if producer.name == stored.info.producer_name:
                return producer.brought_directly(stored)
        return False

    def _park(self, entry: int, batches: DirectBatches) -> None:
        """Let batches of compiled code wait until the log ends directly before the entry with this number, at most
        until all receipts of this read of the socket were handled.
        """
        if not self._parked:
            self._path.context.loop.call_soon(self._give_up_parked)
        self._parked[entry] = batches

    def placed(self) -> None:
        """Go on with the batches of compiled code that were parked until the log ends where it ends now; called after
        each move of the log's end.
        """
        if self._going_on:
            return
        self._going_on = True
        try:
            while (batches := self._parked.pop(self._path.log.last_position.entry + 1, None)) is not None:
                batches.go_on()
        finally:
            self._going_on = False

    def _give_up_parked(self) -> None:
        parked, self._parked = self._parked, {}
        for batches in parked.values():
            batches.give_up()

    def end_direct(self) -> None:
        """Take over what compiled code has under way, and make batches go to the producers' `add`. It lasts until
        `direct_writer` is called again, a second later at the earliest.
        """
        for producer in self._producers.values():
            producer.end_direct()

    def brought(self, producer_name: str, sequence_id: int, count: int) -> InFlightEntry | None:
        """Return the entry of this broker that the tail brought, if it has no receipt, or one that says "duplicate"
        because an earlier one was lost; else None.

        Its `count` messages are known as stored from now on.
        """
        self._path.stored.add(producer_name, sequence_id + count - 1)
        leader = self.lease.producer
        for producer in self._producers.values() if leader is None else (leader,):
            if producer.name == producer_name:
                return producer.find(sequence_id, count)
        return None

    def _leaders(self) -> PartitionProducer:
        name = self._path.services.producer_naming().leader
        return PartitionProducer(
            self._path, name, idempotent=False, exclusive=True, on_ended=self._ended, park=self._park
        )

    def move(self) -> None:
        """Make the producers, except the leader's, use the connection that the partition is written over now."""
        for producer in self._producers.values():
            producer.move()

    def _ended(self, producer: PartitionProducer) -> None:
        """Forget a producer that takes no more batches, with the transaction of its producer id, or the lease if it was
        the leader's: the next batch gets a new one.
        """
        if self.lease.ended(producer):
            return
        for producer_id, known in self._producers.items():
            if known is producer:
                del self._producers[producer_id]
                self._joined.pop(producer_id, None)
                return

    def fail(self, error: KopError) -> None:
        """End all producers, the leader's too; what waits in them fails with `error`."""
        producers, self._producers = list(self._producers.values()), {}
        self._joined.clear()
        if self.lease.producer is not None:
            producers.append(self.lease.producer)
        for producer in producers:
            producer.fail(error)
            self._path.context.spawn(producer.close())

    def views(self) -> Sequence[ProducerView]:
        """Return the idempotent producers that this broker serves now, with the sequences of their last batches. Their
        batches go to `add` from now on.
        """
        return [
            ProducerView(producer_id, known.epoch, known.last_sequence, known.last_timestamp)
            for producer_id, producer in sorted(self._producers.items())
            if (known := producer.settled_sequences()) is not None and known.epoch >= 0
        ]

    def close_idle(self, now: float, seconds: float) -> None:
        """Close producers of producer ids that took no batch for `seconds`, since another broker may want their names;
        `now` is the loop's time. The one for batches without an id stays.

        With them, and for producer ids without a batch at all, the transaction that they write in is forgotten.
        """
        for producer_id, producer in tuple(self._producers.items()):
            if producer_id >= 0 and producer.idle and now - producer.used > seconds:
                del self._producers[producer_id]
                producer.end_direct()  # at once: the next batch opens another one
                self._path.context.spawn(producer.close())
        for producer_id in self._joined.keys() - self._producers.keys():
            del self._joined[producer_id]

    async def close(self) -> None:
        """Close all producers but the leader's. The batches that wait in them fail."""
        await asyncio.gather(*(producer.close() for producer in tuple(self._producers.values())))
