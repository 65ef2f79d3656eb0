"""Fences: the entries by which a partition knows that a transaction is open on it.

Owns: the Pulsar producers that write them, one for each partition, from the first fence until it is idle.
Must not know: who decides about transactions, what is written behind a fence.

A fence is sent in its Pulsar transaction, batches are not: they only name it. So the fence has the Pulsar broker hold
readers back from it on, until the transaction ends. A fence that may have been stored is not sent again by itself: in a
transaction that has ended meanwhile it would hold readers back for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from kop.background import cancel
from kop.pulsar_client import DUPLICATE, Position, Producer, PulsarError, TxnId
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.layout import FENCE_MARKER
from kop.storage.pulsar.partition.log import PulsarLog

_SEND_SECONDS: Final = 10.0
_LANE: Final = "fences"
"""The lane of the fences' producers, so that they have a connection of their own: a broker that throttles a topic stops
reading from a whole connection.
"""


class _FenceProducer:
    """The Pulsar producer of fences on one partition."""

    def __init__(self, producer: Producer, now: float) -> None:
        self.producer = producer
        self.used = now
        self._next = producer.last_sequence_id + 1

    def put(self, txn: TxnId, now: float) -> asyncio.Future[Position]:
        self.used = now
        sequence_id, self._next = self._next, self._next + 1
        return self.producer.send_marker(FENCE_MARKER, sequence_id=sequence_id, txn=txn)


class Fences:
    """The fences of one broker. `producer_name()` returns the name of their producers."""

    def __init__(self, context: PulsarContext, producer_name: Callable[[], str]) -> None:
        self._context = context
        self._producer_name = producer_name
        self._open: dict[str, _FenceProducer] = {}
        self._opening: dict[str, asyncio.Task[_FenceProducer]] = {}

    async def put(self, partition: PulsarLog, txn: TxnId, still_open: Callable[[], Awaitable[None]]) -> None:
        """Write a fence, the entry that opens a transaction on a partition, wait until it is stored, and tell the
        partition its position. PulsarError or KopError if that fails.

        `still_open` is awaited before it is sent, if a producer had to be opened first: that may take long.
        """
        name, now = partition.partition_name, self._context.loop.time
        fences = self._open.get(name)
        if fences is None:
            fences = await self._opened(partition)
            await still_open()
        position = await fences.put(txn, now())
        if position == DUPLICATE:
            raise PulsarError("ProducerBusy", f"a fence of {partition.title} was dropped as a duplicate")
        partition.fenced(position)

    async def _opened(self, partition: PulsarLog) -> _FenceProducer:
        name = partition.partition_name
        task = self._opening.get(name)
        if task is None:
            task = self._opening[name] = self._context.loop.create_task(self._make(partition))
            task.add_done_callback(lambda done: self._made(name, done))
        return await asyncio.shield(task)

    async def _make(self, partition: PulsarLog) -> _FenceProducer:
        await partition.check_exists()
        name = partition.partition_name
        producer = await self._context.client.open_producer(
            name,
            name=self._producer_name(),
            before_attach=partition.check_exists,
            confirm=partition.confirm,
            on_lost=lambda error: self._lost(name),
            lane=_LANE,
            send_timeout=_SEND_SECONDS,
            resend=False,
        )
        return _FenceProducer(producer, self._context.loop.time())

    def _made(self, name: str, task: asyncio.Task[_FenceProducer]) -> None:
        self._opening.pop(name, None)
        if not task.cancelled() and task.exception() is None:
            self._open[name] = task.result()

    def _lost(self, name: str) -> None:
        """Forget a producer that is lost: the next fence of its partition opens another one."""
        self._open.pop(name, None)

    def close_idle(self, now: float, seconds: float) -> None:
        """Close producers that wrote no fence for `seconds`; `now` is the loop's time."""
        for name, fences in tuple(self._open.items()):
            if not fences.producer.pending and now - fences.used > seconds:
                del self._open[name]
                self._context.spawn(fences.producer.close())

    async def close(self) -> None:
        """Close all producers of fences."""
        opening, self._opening = list(self._opening.values()), {}
        await cancel(*opening)
        producers, self._open = list(self._open.values()), {}
        await asyncio.gather(*(fences.producer.close() for fences in producers), return_exceptions=True)
