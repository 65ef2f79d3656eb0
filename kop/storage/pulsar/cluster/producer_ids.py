"""Producer ids, unique over all gateways and for good: blocks of them are counted by messages of a topic.

Owns: that topic's producer, the block in hand.
Must not know: who gets an id.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Final

from kop.errors import BackendError, ErrorCode
from kop.pulsar_client import Client, Entry, Producer, PulsarError
from kop.records import transcode
from kop.records.batch import build, read_header
from kop.records.record import Record
from kop.storage.pulsar.offsets.mapping import Numbering
from kop.storage.pulsar.reading.stream import INDEX_HELP, NO_TIMES_HELP

_BLOCK: Final = 1000
"""Producer ids that a message stands for."""


log = logging.getLogger(__name__)


class ProducerIds:
    """The ids of one gateway, from `partition`. Errors are KopErrors and PulsarErrors."""

    def __init__(self, client: Client, numbering: Numbering, partition: str, name: str) -> None:
        self._client = client
        self._numbering = numbering
        self._partition = partition
        self._name = name
        self._producer: Producer | None = None
        self._opening = asyncio.Lock()
        self._sequence = 0
        self._blocks: list[int] = []
        self._told = False
        """That brokers send no times of entries."""

    async def start(self) -> None:
        """Take the first block: tells whether the brokers send what offsets are made of."""
        self._blocks.append(await self._take_blocks(1))

    async def take(self, count: int) -> int:
        """Reserve `count` ids; returns the first."""
        blocks = -(-count // _BLOCK)
        if blocks == 1 and self._blocks:
            return self._blocks.pop()
        return await self._take_blocks(blocks)

    async def _take_blocks(self, blocks: int) -> int:
        """Write messages to our own topic: where they lie, which nobody else has, says which ids are ours."""
        async with self._opening:  # two at once would take the name from each other
            if self._producer is None:
                self._producer = await self._client.open_producer(self._partition, name=self._name, on_lost=self._lost)
        producer = self._producer
        batch = build([Record(index, 0, None, b"") for index in range(blocks)])
        sequence = self._sequence
        self._sequence += blocks
        (entry,) = transcode.to_entries(
            batch,
            read_header(batch),
            producer_name=producer.name,
            sequence_base=sequence,
            publish_time=int(time.time() * 1000),
            max_size=self._client.max_message_size,
        )
        position = await producer.send(
            entry.metadata,
            entry.payload,
            sequence_id=sequence,
            highest_sequence_id=sequence + blocks - 1,
            num_messages=blocks,
        )
        if position.ledger < 0:
            raise BackendError(
                "Pulsar took a new block of producer ids for a duplicate", ErrorCode.COORDINATOR_NOT_AVAILABLE
            )
        if (first := self._numbering.first_id(position, blocks * _BLOCK)) is not None:
            return first
        arrived: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()

        def on_entry(found: Entry) -> None:
            if not arrived.done():
                arrived.set_result(found)

        reader = await self._client.open_reader(self._partition, position, permits=1, on_entry=on_entry)
        try:
            async with asyncio.timeout(10):
                found = await arrived
        except TimeoutError:
            text = f"{self._partition}: the new block of producer ids was not delivered in time"
            raise PulsarError("Timeout", text, retriable=True) from None
        finally:
            await reader.close()
        if found.index is None:
            raise BackendError(INDEX_HELP)
        if not found.broker_timestamp and not self._told:
            self._told = True
            log.warning("%s", NO_TIMES_HELP)
        return (found.index - blocks + 1) * _BLOCK

    def _lost(self, error: PulsarError) -> None:
        """The next who needs ids opens another one."""
        self._producer = None
