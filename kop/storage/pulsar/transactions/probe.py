"""The probe whether Pulsar treats batches that name a transaction as those that are sent in it.

Owns: what is tried on a topic of its own, and what has to come of it.
Must not know: what follows from the answer.

See docs/quirks.md, "A batch in a transaction has one index". It is tried before the first transaction: one that is
aborted, one that is committed, what a reader gets while they are open, at their end, and after an unload.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Final

from kop.errors import BackendError
from kop.pulsar_client import EARLIEST, Entry, Position, Producer, PulsarError, Reader, Transactions, TxnId
from kop.records.record import Record
from kop.storage.pulsar.context import PulsarContext
from kop.storage.pulsar.layout import FENCE_MARKER
from kop.storage.pulsar.own_records import send_records

PROBE_SECONDS: Final = 60.0
"""The seconds that the probe may take. A new topic's transaction buffer was seen to take more than 10 s on a busy
broker.
"""
_TTL_MS: Final = 600_000
_MESSAGES: Final = 3


async def whole_batches_unfit(context: PulsarContext, transactions: Transactions, topic: str) -> str | None:
    """Try transactions on a new topic; return the reason why whole batches cannot be in Pulsar's, None if they can.

    `topic` is one that does not exist; it is made, and deleted in the background at the end. PulsarError or KopError if
    that cannot be found out now, or not within 60 seconds.
    """
    await context.admin.create_partitioned(topic, 1, {})
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            return await _Probe(context, transactions, f"{topic}-partition-0").run()
    except TimeoutError:
        raise BackendError(f"trying transactions on {topic} took more than {PROBE_SECONDS:.0f} s") from None
    finally:
        context.spawn(_delete(context, topic))


async def _delete(context: PulsarContext, topic: str) -> None:
    try:
        await context.admin.delete_partitioned(topic)
    except PulsarError as error:
        context.faults.tell(
            ("probe", topic), f"the topic {topic} is not needed any more and cannot be deleted: {error}"
        )


class _Probe:
    def __init__(self, context: PulsarContext, transactions: Transactions, partition: str) -> None:
        self._context = context
        self._transactions = transactions
        self._partition = partition
        self._sequence = 0
        self._fence = 0

    async def run(self) -> str | None:
        client = self._context.client
        async with AsyncExitStack() as opened:
            data = await client.open_producer(self._partition, name="kop-probe")
            opened.push_async_callback(data.close)
            fences = await client.open_producer(self._partition, name="kop-probe-fences")
            opened.push_async_callback(fences.close)
            came = asyncio.Event()

            async def read_into(entries: list[Entry]) -> Reader:
                def on_entry(entry: Entry) -> None:
                    entries.append(entry)
                    came.set()

                reader = await client.open_reader(self._partition, EARLIEST, permits=100, on_entry=on_entry)
                opened.push_async_callback(reader.close)
                return reader

            seen: list[Entry] = []
            reader = await read_into(seen)
            expected: list[tuple[Position, int]] = []
            index = -1
            for commit in (False, True):
                txn = await self._transactions.new(_TTL_MS)
                await self._transactions.add(txn, [self._partition])
                await fences.send_marker(FENCE_MARKER, sequence_id=self._next_fence(), txn=txn)
                held = await self._send(data, txn)
                plain = await self._send(data, None)
                last = await reader.last_position()
                if last >= held:
                    return f"a batch that names an open transaction is given to readers, up to {last}"
                await self._transactions.end(txn, commit=commit)
                index += 1 + _MESSAGES  # the fence has one
                if commit:
                    expected.append((held, index))
                index += _MESSAGES
                expected.append((plain, index))
                index += 1  # Pulsar's marker of the end
                while not seen or seen[-1].position < plain:
                    came.clear()
                    await came.wait()
                if (wrong := _differs(seen, expected)) is not None:
                    return wrong
            await self._context.admin.unload(self._partition)
            again: list[Entry] = []
            await read_into(again)
            while len(again) < len(expected):
                came.clear()
                await came.wait()
            return _differs(again, expected)

    def _next_fence(self) -> int:
        self._fence += 1
        return self._fence - 1

    async def _send(self, producer: Producer, txn: TxnId | None) -> Position:
        records = [Record(number, 0, b"key", b"value") for number in range(_MESSAGES)]
        first, self._sequence = self._sequence, self._sequence + _MESSAGES
        return await send_records(self._context.client, producer, records, first, txn)


def _differs(seen: list[Entry], expected: list[tuple[Position, int]]) -> str | None:
    """Return the difference between the entries that a reader got and those that it has to get; None if there is
    none.
    """
    positions = [entry.position for entry in seen]
    if positions != [position for position, _ in expected]:
        return (
            f"readers get the entries {positions}, those of committed transactions are {[each for each, _ in expected]}"
        )
    indexes = [entry.index for entry in seen]
    if any(index is not None for index in indexes) and indexes != [index for _, index in expected]:
        return f"entries have the indexes {indexes}, their messages make it {[index for _, index in expected]}"
    return None
