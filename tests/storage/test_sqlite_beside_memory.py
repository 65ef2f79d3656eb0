"""The embedded engine makes of transactions what the memory engine makes, also over restarts, kills, failed commits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from storage.batches import NOW, append, first, make
from storage.engines import MemoryStore
from storage.marked_producer import committed_records, keyed
from storage.sqlite_tools import InterceptedStore, fail_inserts, image, stored_bytes

from kop.errors import KopError
from kop.records.batch import build, read_header
from kop.storage.base import Engine, MarkedLog

CONFIGS = {"min_cleanable_dirty_ratio": "0", "delete_retention_ms": "1000", "retention_ms": "50000"}
PRODUCERS = 4
MIXED = {"beside_batch_bytes": 90, "beside_commit_bytes": 1, "segment_bytes": 8192}
"""Batches of two and three records lie in files, each of which takes those of two commits."""
STEPS = [*["put"] * 6, *["plain"] * 2, *["end"] * 4, "again", "stale", "delete", "maintain", "restart", "kill"]


class Pair:
    """A log in each of the two engines, to which the same happens."""

    def __init__(self, directory: Path, cleanup: str, rng: random.Random, settings: dict[str, int]) -> None:
        self.directory = directory
        self.settings = settings
        self.rng = rng
        self.configs = CONFIGS | {"cleanup_policy": cleanup}
        self.sqlite = InterceptedStore(self.directory / "0", **settings)
        self.sqlite.path.parent.mkdir()
        self.kills = 0
        self.now = NOW
        self.aborted = self.held_back = 0
        """The most of aborted transactions, and of records behind the last stable offset."""
        self.epochs = [0] * PRODUCERS
        self.sequences = [0] * PRODUCERS

    async def open(self) -> None:
        self.memory_engine: Engine = await MemoryStore().open()
        self.engine = await self.sqlite.open()
        self.memory: MarkedLog = await make(self.memory_engine, "t", 1, **self.configs)
        self.log = await make(self.engine, "t", 1, **self.configs)

    async def restart(self) -> None:
        await self.engine.close()
        self.engine = await self.sqlite.open()
        self.log = first(self.engine)

    async def kill(self) -> None:
        """Go on with what a crash would have left of the file."""
        self.kills += 1
        target = self.directory / str(self.kills)
        await self.engine.writer.run(lambda _: image(self.engine, target), transaction=False)
        await self.engine.close()
        self.sqlite = InterceptedStore(target, **self.settings)
        self.engine = await self.sqlite.open()
        self.log = first(self.engine)

    async def step(self) -> None:
        """One random step."""
        rng, producer = self.rng, self.rng.randrange(PRODUCERS)
        kind = rng.choice(STEPS)
        if rng.random() < 0.1 and kind in ("put", "end"):
            await self.fail(producer)
        self.now += rng.randrange(500)
        if kind == "put":
            await self.put(producer)
        elif kind == "plain":
            data = build([record._replace(timestamp=self.now) for record in keyed(f"k{rng.randrange(6)}")])
            await self.both(lambda log: append(log, bytearray(data), self.now))
        elif kind in ("end", "again", "stale"):
            epoch = self.epochs[producer] + (kind == "end") - (kind == "stale")
            commit = rng.random() < 0.6

            async def end(log: MarkedLog) -> None:
                await self.end(log, producer, epoch, commit)

            if await self.both(end) is None and kind == "end":
                self.epochs[producer], self.sequences[producer] = epoch, 0
        elif kind == "delete":
            low, high = self.memory.log_start_offset, self.memory.high_watermark
            to = rng.randint(low, min(low + 4, high))
            await self.both(lambda log: log.delete_records(to))
        elif kind == "maintain":
            await self.memory_engine.maintain(self.now)
            await self.engine.maintain(self.now)
        else:
            await (self.restart() if kind == "restart" else self.kill())

    async def fail(self, producer: int) -> None:
        """A commit fails: it is as if nothing had been asked for."""
        undo = self.sqlite.intercept(fail_inserts)
        futures = [
            append(self.log, self.batch(producer), self.now),
            self.end(self.log, producer, self.epochs[producer] + 1, self.rng.random() < 0.5),
            self.end(self.log, (producer + 1) % PRODUCERS, 30_000, True),
        ]
        for future in futures:
            with pytest.raises(KopError):
                await future
        undo()

    def batch(self, producer: int) -> bytearray:
        values = [f"k{self.rng.randrange(6)}" for _ in range(self.rng.randint(1, 3))]
        return build(
            [record._replace(timestamp=self.now) for record in keyed(*values)],
            producer_id=producer,
            producer_epoch=self.epochs[producer],
            base_sequence=self.sequences[producer],
            transactional=True,
        )

    async def put(self, producer: int) -> None:
        data = self.batch(producer)
        result = await self.both(lambda log: append(log, bytearray(data), self.now))
        assert result.base_offset >= 0
        again = await self.both(lambda log: append(log, bytearray(data), self.now))
        assert again.base_offset == result.base_offset
        self.sequences[producer] += read_header(data).record_count

    def end(self, log: MarkedLog, producer: int, epoch: int, commit: bool) -> Any:
        return log.end_transaction(
            producer, epoch, commit=commit, coordinator_epoch=0, bumps_epoch=True, now_ms=self.now
        )

    async def both(self, call: Any) -> Any:
        """What both say, results or errors."""
        said = []
        for log in (self.memory, self.log):
            try:
                said.append(await call(log))
            except KopError as error:
                said.append(error.code)
        assert said[0] == said[1]
        return said[1]

    async def check(self) -> None:
        memory, log = self.memory, self.log
        bounds = [
            (each_log.log_start_offset, each_log.last_stable_offset, each_log.high_watermark)
            for each_log in (memory, log)
        ]
        assert bounds[0] == bounds[1]
        assert memory.producers() == log.producers()
        self.aborted = max(self.aborted, len(log.aborted_between(log.log_start_offset, log.last_stable_offset)))
        self.held_back = max(self.held_back, log.high_watermark - log.last_stable_offset)
        seen = [
            [(record.offset, record.value) for record in await committed_records(each_log)]
            for each_log in (memory, log)
        ]
        assert seen[0] == seen[1]
        assert await stored_bytes(self.engine.path, log) == log.size_bytes


@pytest.mark.parametrize("cleanup", ["delete", "compact", "compact,delete"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize("settings", [{}, MIXED], ids=["rows", "rows-and-files"])
async def test_the_same_happens_to_both(tmp_path: Path, cleanup: str, seed: int, settings: dict[str, int]) -> None:
    pair = Pair(tmp_path, cleanup, random.Random(seed), settings)
    await pair.open()
    for _ in range(150):
        await pair.step()
        await pair.check()
    await pair.engine.close()
    await pair.memory_engine.close()
    assert pair.kills > 2
    assert pair.aborted > 3
    assert pair.held_back > 3
