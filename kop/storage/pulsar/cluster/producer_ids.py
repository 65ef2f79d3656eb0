"""Producer ids, unique over all brokers and for good: blocks of them are counted by messages of a topic.

Owns: that topic's producer, the size of a block.
Must not know: who gets an id.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kop.errors import BackendError, ErrorCode
from kop.pulsar_client import Client, Entry, Position, Producer, PulsarError
from kop.records.record import Record
from kop.storage.pulsar.offsets.entry import INDEX_HELP, NO_TIMES_HELP
from kop.storage.pulsar.own_records import send_records

_BLOCK: Final = 1000
"""The number of producer ids in a block, which one message stands for."""


log = logging.getLogger(__name__)


class ProducerIdBlocks:
    """The blocks of producer ids, which no two brokers share. Errors are KopErrors and PulsarErrors."""

    def __init__(
        self, client: Client, partition: str, name: str, first_id: Callable[[Position, int], int | None]
    ) -> None:
        """Prepare the topic that ids come from: `partition`, its full name, and `name`, that of the only producer to
        it.

        Each message there reserves a block of ids. `first_id` returns the first id of the block, given the message's
        position and the number of ids of a block; if it returns None, the index that the Pulsar broker gave the message
        decides.
        """
        self._client = client
        self._partition = partition
        self._name = name
        self._first_id = first_id
        self._producer: Producer | None = None
        self._opening = asyncio.Lock()
        self._sequence = 0
        self._spare: range | None = None
        """The block of ids that `start` took and nobody has yet; None if it is given away."""
        self._told = False
        """True if a log line has said that Pulsar brokers send no times of entries."""

    async def start(self) -> None:
        """Reserve a first block, which the next `take` returns. BackendError if the Pulsar brokers do not send what
        offsets are made of, which this shows.
        """
        self._spare = await self._take()

    async def take(self) -> range:
        """Return a block of ids that no other broker has or had: once the one that `start` reserved, then a new one
        each time.
        """
        block, self._spare = self._spare, None
        return await self._take() if block is None else block

    async def _take(self) -> range:
        """Write a message, and return the block of ids that follows from the message's place in the topic, which no
        other message has. BackendError if the Pulsar brokers send no index that tells it; PulsarError if the message
        cannot be written, or is not read back within 10 seconds.
        """
        async with self._opening:  # two writers at once would take the name from each other
            if self._producer is None:
                self._producer = await self._client.open_producer(self._partition, name=self._name, on_lost=self._lost)
        producer = self._producer
        sequence = self._sequence
        self._sequence += 1
        position = await send_records(self._client, producer, [Record(0, 0, None, b"")], sequence)
        if position.ledger < 0:
            raise BackendError(
                "Pulsar took a new block of producer ids for a duplicate", ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
        if (first := self._first_id(position, _BLOCK)) is not None:
            return range(first, first + _BLOCK)
        arrived: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()

        def on_entry(entry: Entry) -> None:
            if not arrived.done():
                arrived.set_result(entry)

        reader = await self._client.open_reader(self._partition, position, permits=1, on_entry=on_entry)
        try:
            async with asyncio.timeout(10):
                taken = await arrived
        except TimeoutError:
            text = f"{self._partition}: the new block of producer ids was not delivered in time"
            raise PulsarError("Timeout", text, retriable=True) from None
        finally:
            await reader.close()
        if taken.index is None:
            raise BackendError(INDEX_HELP)
        if not taken.broker_timestamp and not self._told:
            self._told = True
            log.warning("%s", NO_TIMES_HELP)
        return range(taken.index * _BLOCK, (taken.index + 1) * _BLOCK)

    def _lost(self, error: PulsarError) -> None:
        """Forget the producer, which is lost: the next call that needs ids opens another one."""
        self._producer = None
