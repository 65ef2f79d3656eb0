"""The lease of a log's only writer: Pulsar's exclusive producer.

Owns: that producer, whether it is surely still exclusive, and the one call when another broker has taken it.
Must not know: what is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from kop.pulsar_client import PulsarError
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.faults import Refused
from kop.storage.pulsar.partition.producer import PartitionProducer

SURE_SECONDS: Final = 4.0
"""How long an answer of Pulsar confirms the lease. It is less than the 5 s for which a Pulsar broker waits for a silent
producer before another one may replace it (connectionLivenessCheckTimeoutMillis). A Pulsar broker that takes the
producer for dead may fence it at any time; this broker then answers from memory for no longer than this."""


class WriterLease:
    """The lease of one log. `producer` is there while this broker holds the lease.

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
        """Fence the former holder, by the topic's epoch in Pulsar, then read what it wrote. KopError, PulsarError."""
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
        """Whether this broker surely holds the lease: Pulsar said so lately enough that no other can have taken it."""
        return self.producer is not None and self._context.loop.time() - self.producer.sure_at < SURE_SECONDS

    async def make_sure(self) -> None:
        """Ask Pulsar whether this broker still holds the lease. Callers at the same time share the answer."""
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
        """Give the lease up."""
        producer, self.producer, self._lost = self.producer, None, None
        if producer is not None:
            await producer.close()

    def ended(self, producer: PartitionProducer) -> bool:
        """Note that a producer takes no more batches. True where it was the producer of the lease."""
        if producer is not self.producer:
            return False
        lost, self.producer, self._lost = self._lost, None, None
        if lost is not None:
            lost()
        return True
