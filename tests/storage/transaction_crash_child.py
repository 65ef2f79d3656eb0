"""The process that is killed: an engine and a transactional producer for each of three partitions of a compacted topic.

Writes a line `partition number` for each transaction whose end was answered. Every third one is aborted. Snapshots,
compaction and checkpoints go on all the time. Where it was killed it goes on as a coordinator would: it aborts the
transaction that was under way, under an epoch above all that it may have had.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import uvloop
from storage.engines import policy_of
from storage.marked_producer import TransactionalProducer, committed_values
from support.settings import settings_of

from kop.storage.sqlite import maintenance
from kop.storage.sqlite.engine import open_engine
from kop.storage.sqlite.settings import SqliteSettings

PARTITIONS = 3


async def main(path: str, ended: dict[str, int], settings: dict[str, Any]) -> None:
    maintenance.SNAPSHOT_BATCHES = 20
    maintenance.TICK_SECONDS = 0.005
    engine = await open_engine(
        Path(path),
        policy=policy_of,
        settings=settings_of(
            SqliteSettings,
            kop_min_free_bytes=0,
            kop_wal_bytes=1 << 20,
            cleaner_interval_ms=lambda: 10,
            **settings,
        ),
    )
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    topic = engine.topics.get("t") or await engine.topics.create("t", PARTITIONS, configs)
    os.write(1, b"ready\n")

    async def produce(partition: int) -> None:
        log = engine.log(topic.topic_id, partition)
        assert log is not None
        number = ended.get(str(partition), 0)
        epoch = 0
        for view in log.producers():
            epoch = view.producer_epoch
            if view.current_txn_start_offset >= 0:
                epoch += 1
                await TransactionalProducer(log, view.producer_id).end(commit=False, epoch=epoch)
        if f"{number}-0" in await committed_values(log):  # it was killed between the end and the report
            os.write(1, b"%d %d\n" % (partition, number))
            number += 1
        producer = TransactionalProducer(log, 100 + partition, epoch)
        while True:
            puts = [producer.put(f"{number}-{i}") for i in range(number % 4 + 1)]
            await asyncio.gather(*puts, producer.end(commit=number % 3 > 0))
            os.write(1, b"%d %d\n" % (partition, number))
            number += 1

    await asyncio.gather(*[produce(partition) for partition in range(PARTITIONS)])


uvloop.run(main(sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])))
