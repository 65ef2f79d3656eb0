"""The process that is killed: an engine and idempotent producers, five batches in flight for each of four partitions.

Writes a line `partition sequence offset` for each acknowledged record. Goes on where it was killed: it sends again from
the first sequence that was not acknowledged, as a client would.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import uvloop
from storage.batches import append, batch
from storage.engines import SqliteStore

from kop.storage.base import AppendResult

PARTITIONS = 4
IN_FLIGHT = 5


async def main(path: str, acked: dict[str, int], settings: dict[str, int]) -> None:
    store = SqliteStore(Path(path).parent, kop_wal_bytes=1 << 20, **settings)
    store.path = Path(path)
    engine = await store.open()
    topic = engine.topics.get("t") or await engine.topics.create("t", PARTITIONS, {})
    os.write(1, b"ready\n")

    async def produce(partition: int) -> None:
        log = engine.log(topic.topic_id, partition)
        assert log is not None
        window: list[asyncio.Future[AppendResult]] = []
        sequence = acked.get(str(partition), 0)
        while True:
            count = sequence % 3 + 1
            values = [str(sequence + i) for i in range(count)]
            future = append(log, batch(values, producer=100 + partition, sequence=sequence))

            def acknowledged(
                future: asyncio.Future[AppendResult], sequence: int = sequence, count: int = count
            ) -> None:
                base = future.result().base_offset
                # One write: a batch is reported whole or not at all.
                os.write(1, b"".join(b"%d %d %d\n" % (partition, sequence + i, base + i) for i in range(count)))

            future.add_done_callback(acknowledged)
            window.append(future)
            sequence += count
            if len(window) == IN_FLIGHT:
                await window.pop(0)

    await asyncio.gather(*[produce(partition) for partition in range(PARTITIONS)])


uvloop.run(main(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])))
