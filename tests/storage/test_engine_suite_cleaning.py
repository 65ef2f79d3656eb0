"""What every engine does, continued: deleting records, retention, compaction."""

from __future__ import annotations

from storage.batches import LIMIT, NOW, append, batch, fill, first, make, put, read_all, read_values, refused
from storage.engines import Store

from kop.errors import ErrorCode
from kop.records.batch import read_header
from kop.storage.base import TimestampOffset

DAY = 86_400_000


# Deleting records, retention


async def test_delete_records(store: Store) -> None:
    async with store.opened() as engine:
        log = await make(engine)
        for i in range(4):
            await append(log, batch([f"{i}.{j}" for j in range(5)]))
        for offset in (21, -2):
            with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
                await log.delete_records(offset)
        assert await log.delete_records(12) == 12
        assert await log.delete_records(3) == 12
        assert log.log_start_offset == 12
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            log.read_cached(11, LIMIT, min_one=True)
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            await log.read(11, LIMIT, min_one=True)
        await store.maintain(engine, NOW)
        assert read_header((await log.read(12, LIMIT, min_one=True)).buffers[0]).base_offset == 10
        assert [record.offset for record in await read_all(log)] == list(range(12, 20))
        assert (await append(log, batch(["x"]))).log_start_offset == 12
        assert await log.delete_records(-1) == 21
        await store.maintain(engine, NOW)
        assert (log.log_start_offset, log.high_watermark, log.size_bytes) == (21, 21, 0)
    async with store.opened() as engine:
        log = first(engine)
        assert (log.log_start_offset, log.high_watermark, log.size_bytes) == (21, 21, 0)
        assert (await append(log, batch(["y"]))).base_offset == 21
        assert await read_values(log) == ["y"]


async def test_retention_by_time(store: Store) -> None:
    async with store.opened() as engine:
        log = await make(engine, retention_ms="1000")
        other = await make(engine, "unlimited", retention_ms="-1")
        compacted = await make(engine, "compacted", cleanup_policy="compact", retention_ms="1000")
        for each_log in (log, other, compacted):
            for i in range(10):
                await put(each_log, f"key {i}", "v", NOW + i * 100)
        await store.maintain(engine, NOW + 1000)
        assert log.log_start_offset == 0
        await store.maintain(engine, NOW + 1301)
        assert log.log_start_offset == 4
        # a batch with a newer time keeps what follows it
        await put(log, "k", "v", NOW + 100_000)
        await put(log, "k", "v", NOW)
        await store.maintain(engine, NOW + 50_000)
        assert (log.log_start_offset, log.high_watermark) == (10, 12)
        await store.maintain(engine, NOW + DAY)
        assert (log.log_start_offset, log.high_watermark, log.size_bytes) == (12, 12, 0)
        assert [kept_log.log_start_offset for kept_log in (other, compacted)] == [0, 0]
    async with store.opened() as engine:
        assert (await append(first(engine), batch(["next"]))).base_offset == 12
        assert len(await read_all(first(engine, "unlimited"))) == 10


async def test_retention_of_records_without_a_time_counts_from_their_append(store: Store) -> None:
    async with store.opened() as engine:
        log = await make(engine, retention_ms="1000")
        await append(log, batch(["a"], timestamp=-1), NOW)
        await store.maintain(engine, NOW + 1000)
        assert log.log_start_offset == 0
        await store.maintain(engine, NOW + 1001)
        assert log.log_start_offset == 1


async def test_retention_by_size(store: Store) -> None:
    async with store.opened() as engine:
        size = len(batch(["x" * 100]))
        log = await make(engine, retention_bytes=str(3 * size))
        await fill(log, *["x" * 100] * 3)
        await store.maintain(engine, NOW)
        assert log.log_start_offset == 0
        await fill(log, *["x" * 100] * 7)
        await store.maintain(engine, NOW)
        assert (log.log_start_offset, log.size_bytes) == (7, 3 * size)
        await engine.topics.set_configs(log.topic.topic_id, {"retention.bytes": str(3 * size // 2)})
        await store.maintain(engine, NOW)
        assert (log.log_start_offset, log.size_bytes) == (8, 2 * size)
        await engine.topics.set_configs(log.topic.topic_id, {"retention.bytes": "0"})
        await store.maintain(engine, NOW)
        assert (log.log_start_offset, log.size_bytes) == (10, 0)


# Compaction


async def test_compaction_keeps_the_newest_of_each_key(store: Store) -> None:
    async with store.opened() as engine:
        log = await make(engine, cleanup_policy="compact")
        expected: dict[str, tuple[int, str]] = {}
        for i in range(200):
            keys = [f"k{(i * 7 + j) % 13}" for j in range(4)]
            base = (await append(log, batch([f"{i}.{j}" for j in range(4)], keys=keys, codec=i % 5))).base_offset
            for j, key in enumerate(keys):
                expected[key] = (base + j, f"{i}.{j}")
        before = log.size_bytes
        await store.maintain(engine, NOW)
        kept = await read_all(log)
        newest = {
            record.key.decode(): (record.offset, record.value.decode())
            for record in kept
            if record.key and record.value
        }
        assert newest == expected
        assert len(kept) < 30
        assert log.size_bytes < before / 4
        assert (log.log_start_offset, log.high_watermark) == (0, 800)
        # every offset can still be asked for, the next batch answers
        for offset in range(0, 800, 37):
            result = await log.read(offset, LIMIT, min_one=True)
            assert read_header(result.buffers[0]).last_offset >= offset
        assert await read_all(log, cached=True) == kept
        size = log.size_bytes
    async with store.opened() as engine:
        log = first(engine)
        assert (log.log_start_offset, log.high_watermark, log.size_bytes) == (0, 800, size)
        assert await read_all(log) == kept


async def test_tombstones_stay_for_a_while(store: Store) -> None:
    async with store.opened() as engine:
        log = await make(engine, cleanup_policy="compact", delete_retention_ms="1000", min_cleanable_dirty_ratio="0")
        await put(log, "a", "1")
        await put(log, "b", "1")
        await put(log, "a", None)
        await put(log, "c", "1")
        await store.maintain(engine, NOW)
        assert await read_values(log) == ["1", None, "1"]
        await put(log, "d", "1")
        await store.maintain(engine, NOW + 999)
        assert await read_values(log) == ["1", None, "1", "1"]
        await put(log, "e", "1")
        await store.maintain(engine, NOW + 1000)
        assert [record.key for record in await read_all(log)] == [b"b", b"c", b"d", b"e"]
        assert [record.offset for record in await read_all(log)] == [1, 3, 4, 5]


async def test_limits_of_kafkas_largest_number_keep_everything(store: Store) -> None:
    largest = str(2**63 - 1)
    async with store.opened() as engine:
        log = await make(engine, cleanup_policy="compact", delete_retention_ms=largest, min_cleanable_dirty_ratio="0")
        kept = await make(engine, "kept", retention_ms=largest, retention_bytes=largest)
        await put(kept, "a", "1", NOW)
        await put(log, "a", "1")
        await put(log, "a", None)
        for i in range(3):
            await put(log, f"{i}", "1")
            await store.maintain(engine, NOW + i * 100 * 365 * DAY)
        assert [(record.key, record.value) for record in await read_all(log)] == [
            (b"a", None), (b"0", b"1"), (b"1", b"1"), (b"2", b"1")
        ]  # fmt: skip
        assert await read_values(kept) == ["1"]


async def test_a_batch_that_inflates_a_thousandfold_is_compacted_and_looked_up(store: Store) -> None:
    """If compaction passed over such a batch, a tombstone behind it would go before the record that it deletes."""
    async with store.opened() as engine:
        log = await make(engine, cleanup_policy="compact", delete_retention_ms="0", min_cleanable_dirty_ratio="0")
        await store.maintain(engine, NOW)
        await append(log, batch(["v" * (70 << 20), "old"], keys=["large", "key"], codec=4, timestamp=[NOW, NOW + 1]))
        assert await log.find_by_time(NOW + 1) == TimestampOffset(1, NOW + 1)
        assert await log.max_timestamp() == TimestampOffset(1, NOW + 1)
        await put(log, "key", None, NOW + 2)
        for i in range(3):
            await put(log, f"other {i}", "v", NOW + 3)
            await store.maintain(engine, NOW + 10 * (i + 1))
        assert [record.key for record in await read_all(log)] == [b"large", b"other 0", b"other 1", b"other 2"]


async def test_compaction_waits_for_ratio_and_lag(store: Store) -> None:
    async with store.opened() as engine:
        log = await make(
            engine,
            cleanup_policy="compact",
            min_cleanable_dirty_ratio="0.5",
            min_compaction_lag_ms="1000",
            max_compaction_lag_ms="5000",
        )
        for i in range(4):
            await put(log, f"k{i % 2}", str(i))
        await store.maintain(engine, NOW + 999)
        assert len(await read_all(log)) == 4
        await store.maintain(engine, NOW + 1000)
        assert await read_values(log) == ["2", "3"]
        for i in range(20):
            await put(log, f"n{i}", "x" * 100, NOW)
        await put(log, "young", "", NOW + 3000)
        await store.maintain(engine, NOW + 2000)
        await put(log, "n0", "new", NOW + 3000)
        await put(log, "last", "", NOW + 3000)
        await store.maintain(engine, NOW + 7000)  # a small dirty part
        assert (await read_values(log)).count("x" * 100) == 20
        await store.maintain(engine, NOW + 8001)  # too old to wait
        assert (await read_values(log)).count("x" * 100) == 19


async def test_compact_and_delete(store: Store) -> None:
    async with store.opened() as engine:
        log = await make(engine, cleanup_policy="compact,delete", retention_ms="1000")
        for i in range(6):
            await put(log, f"k{i % 2}", str(i), NOW + 500 * i)
        await store.maintain(engine, NOW + 2001)
        assert log.log_start_offset == 3
        assert await read_values(log) == ["4", "5"]


async def test_windows_survive_what_removes_their_batches(store: Store) -> None:
    async with store.opened() as engine:
        compacted = await make(engine, "c", cleanup_policy="compact")
        deleted = await make(engine, "d")
        for log in (compacted, deleted):
            for i in range(4):
                await append(log, batch(["v"], keys=["k"], producer=5, sequence=i))
        await append(compacted, batch(["v"], keys=["k"]))
        await deleted.delete_records(-1)
        await store.maintain(engine, NOW)
        assert len(await read_all(compacted)) == 1
    async with store.opened() as engine:
        for name in "cd":
            log = first(engine, name)
            assert [view.last_sequence for view in log.producers()] == [3]
            assert (await append(log, batch(["v"], keys=["k"], producer=5, sequence=3))).base_offset == 3
