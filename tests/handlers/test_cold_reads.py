"""Fetches of partitions that memory does not hold: read side by side, and a slow one delays nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from support.faulty_engine import FaultyLog, FaultyStore
from support.gateway import RawClient, batch, gateway, produce_fields, run
from support.waiting import SECONDS, until

from kop.app import Serving
from kop.errors import BackendError, ErrorCode, KopError
from kop.handlers import cold_reads
from kop.handlers.cold_reads import ColdReads
from kop.read_budget import ReadBudget
from kop.records.batch import iter_batches, read_header
from kop.security.quotas import Entity, QuotaKind
from kop.wire.messages import FetchRequest

VERSION = 12


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FaultyStore:
    """The store of the gateways of a test."""
    store = FaultyStore()
    monkeypatch.setattr("kop.storage.memory.engine.open_engine", store.open)
    return store


def hang(store: FaultyStore, *partitions: int) -> asyncio.Event:
    """Let reads of these partitions wait for the event."""
    go_on = asyncio.Event()
    for partition in partitions:
        store.log("t", partition).gate = go_on
    return go_on


def reads_of(store: FaultyStore, partitions: int) -> list[int]:
    """How often each partition was read."""
    return [store.log("t", partition).reads for partition in range(partitions)]


async def filled(
    store: FaultyStore, serving: Serving, partitions: int, *, cold: Collection[int] | None = None
) -> RawClient:
    """A client, and a topic whose partitions have a batch of two records each; memory holds those that are not cold."""
    await store.engine.topics.create("t", partitions, {"retention.ms": "-1"})
    client = await RawClient.connect(serving)
    for partition in range(partitions):
        await append(client, partition)
        store.log("t", partition).cold = cold is None or partition in cold
    return client


async def append(client: RawClient, partition: int) -> None:
    fields = produce_fields("t", batch([b"x" * 100, b"y"]), version=12, partition=partition)
    assert (await client.call(0, 12, **fields)).responses[0].partition_responses[0].error_code == 0


def request(
    offsets: dict[int, int], session: tuple[int, int] = (0, -1), max_wait_ms: int = 500, min_bytes: int = 1
) -> dict[str, Any]:
    part = FetchRequest.FetchTopic.FetchPartition
    parts = [
        part(version=VERSION, partition=partition, fetch_offset=offset, partition_max_bytes=2**20)
        for partition, offset in offsets.items()
    ]
    topics = [FetchRequest.FetchTopic(version=VERSION, topic="t", partitions=parts)] if parts else []
    return {
        "max_wait_ms": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": 50 << 20,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": topics,
    }


async def fetch(client: RawClient, offsets: dict[int, int], **how: Any) -> tuple[dict[int, int], Any]:
    """Records by partition, and the answer."""
    answer = await client.call(1, VERSION, **request(offsets, **how))
    counts = {}
    for topic in answer.responses:
        for part in topic.partitions:
            assert part.error_code == 0
            if part.records:
                counts[part.partition_index] = sum(header.record_count for _, header in iter_batches(part.records))
    return counts, answer


def test_a_partition_that_hangs_delays_no_other(tmp_path: Path, store: FaultyStore) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client = await filled(store, serving, 300)
            hang(store, *range(100))  # more than are read side by side
            offsets = dict.fromkeys(range(300), 0)
            seen: dict[int, int] = {}
            began = time.monotonic()
            async with asyncio.timeout(SECONDS):
                while len(seen) < 200:
                    counts, _ = await fetch(client, {p: o for p, o in offsets.items() if p not in seen})
                    seen |= counts
            assert set(seen) == set(range(100, 300))
            # A hundred that hang are slow after a second each, in rounds of so many as run side by side.
            assert time.monotonic() - began < 60  # one after the other would take 100 s

    run(main())


def test_the_first_answer_is_there_at_max_wait_whatever_hangs(tmp_path: Path, store: FaultyStore) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client = await filled(store, serving, 2)
            hang(store, 0, 1)
            began = time.monotonic()
            counts, answer = await fetch(client, {0: 0, 1: 0}, max_wait_ms=700)
            assert 0.6 < time.monotonic() - began < 60
            assert counts == {}
            assert [part.high_watermark for part in answer.responses[0].partitions] == [2, 2]

    run(main())


def test_what_was_read_after_the_answer_is_found_by_the_next_fetch(tmp_path: Path, store: FaultyStore) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client = await filled(store, serving, 1)
            go_on = hang(store, 0)
            counts, answer = await fetch(client, {0: 0}, session=(0, 0), max_wait_ms=100)
            assert counts == {}
            go_on.set()
            counts, _ = await fetch(client, {}, session=(answer.session_id, 1))
            assert counts == {0: 2}
            assert reads_of(store, 1) == [1]

    run(main())


def test_what_an_answer_has_is_not_read_again_while_another_partition_is_read(
    tmp_path: Path, store: FaultyStore
) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client = await filled(store, serving, 2)
            first, second = hang(store, 0), hang(store, 1)
            counts, _ = await fetch(client, {0: 0, 1: 0}, max_wait_ms=100)
            assert counts == {}
            first.set()
            await until(lambda: store.engine.read_budget.held > 0)
            counts, _ = await fetch(client, {0: 0, 1: 0}, max_wait_ms=30_000)
            assert counts == {0: 2}
            second.set()
            counts, _ = await fetch(client, {1: 0}, max_wait_ms=30_000)
            assert counts == {1: 2}
            assert reads_of(store, 2) == [1, 1]

    run(main())


def test_records_that_come_while_another_partition_is_read_wake_the_fetch(tmp_path: Path, store: FaultyStore) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client, writer = await filled(store, serving, 2, cold={0}), await RawClient.connect(serving)
            hang(store, 0)
            client.send(1, VERSION, **request({0: 0, 1: 2}, max_wait_ms=30_000))
            await until(lambda: reads_of(store, 2) == [1, 0])
            await append(writer, 1)
            _, answer = await client.receive(1, VERSION, timeout=20)
            assert [bool(part.records) for part in answer.responses[0].partitions] == [False, True]

    run(main())


def test_what_is_in_memory_is_answered_at_once_and_the_rest_is_read_meanwhile(
    tmp_path: Path, store: FaultyStore
) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client = await filled(store, serving, 2, cold={0})
            go_on = hang(store, 0)
            counts, _ = await fetch(client, {0: 0, 1: 0}, max_wait_ms=30_000)
            assert counts == {1: 2}
            assert reads_of(store, 2) == [1, 0]
            go_on.set()
            counts, _ = await fetch(client, {0: 0, 1: 2}, max_wait_ms=30_000)
            assert counts == {0: 2}
            assert reads_of(store, 2) == [1, 0]

    run(main())


def test_a_read_that_brought_less_than_there_is_counts_as_enough(
    tmp_path: Path, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_reads, "MOST_BYTES", 1)  # the first batch alone

    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client = await filled(store, serving, 1)
            await append(client, 0)
            began = time.monotonic()
            for min_bytes in (1000, 10 << 20):  # the second is more than the limit of a partition
                counts, _ = await fetch(client, {0: 0}, max_wait_ms=150_000, min_bytes=min_bytes)
                assert counts == {0: 2}
            assert time.monotonic() - began < 60
            await until(lambda: reads_of(store, 1) == [4])  # each answer has read on

    run(main())


def test_what_follows_an_answer_is_read_ahead_to_the_end_and_no_further(
    tmp_path: Path, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_reads, "MOST_BYTES", 1)  # the first batch alone

    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client, budget = await filled(store, serving, 1), serving.gateway.engine.read_budget
            await append(client, 0)
            assert (await fetch(client, {0: 0}))[0] == {0: 2}
            await until(lambda: budget.held > 0)
            hang(store, 0)
            assert (await fetch(client, {0: 2}, max_wait_ms=100))[0] == {0: 2}
            assert (reads_of(store, 1), budget.held) == ([2], 0)

    run(main())


def test_what_memory_has_is_not_read_ahead(tmp_path: Path, store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_reads, "MOST_BYTES", 1)

    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client = await filled(store, serving, 1)
            await append(client, 0)
            go_on = hang(store, 0)
            assert (await fetch(client, {0: 0}, max_wait_ms=100))[0] == {}
            go_on.set()
            await until(lambda: serving.gateway.engine.read_budget.held > 0)
            store.log("t", 0).cold = False
            assert (await fetch(client, {0: 0}))[0] == {0: 2}
            assert (await fetch(client, {0: 2}))[0] == {0: 2}
            assert reads_of(store, 1) == [1]

    run(main())


def test_nothing_is_read_ahead_for_a_client_with_a_quota(
    tmp_path: Path, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_reads, "MOST_BYTES", 1)

    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client = await filled(store, serving, 1)
            await append(client, 0)
            serving.gateway.security.quotas.put(Entity("ANONYMOUS"), QuotaKind.CONSUMED, 1e9)
            assert (await fetch(client, {0: 0}))[0] == {0: 2}
            await turns()
            assert reads_of(store, 1) == [1]

    run(main())


def test_a_result_that_was_passed_is_dropped(
    tmp_path: Path, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_reads, "MOST_BYTES", 1)

    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client, budget = await filled(store, serving, 1), serving.gateway.engine.read_budget
            await append(client, 0)
            await append(client, 0)
            assert (await fetch(client, {0: 0}))[0] == {0: 2}
            await until(lambda: budget.held > 0)
            store.log("t", 0).cold = False
            assert (await fetch(client, {0: 4}))[0] == {0: 2}
            assert budget.held == 0

    run(main())


def test_results_that_a_seek_to_the_end_has_passed_make_room_for_other_partitions(
    tmp_path: Path, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_reads, "MOST_BYTES", 1)
    monkeypatch.setattr(cold_reads, "MOST_HELD", 1)

    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client, budget = await filled(store, serving, 2), serving.gateway.engine.read_budget
            await append(client, 0)
            assert (await fetch(client, {0: 0}))[0] == {0: 2}
            await until(lambda: budget.held > 0)
            store.log("t", 0).cold = False
            assert (await fetch(client, {0: 4, 1: 0}, max_wait_ms=60_000))[0] == {1: 2}

    run(main())


def test_min_bytes_counts_no_partition_that_is_still_read(tmp_path: Path, store: FaultyStore) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client = await filled(store, serving, 2, cold={0})
            go_on = hang(store, 0)
            size = store.log("t", 1).size_bytes
            client.send(1, VERSION, **request({0: 0, 1: 0}, max_wait_ms=150_000, min_bytes=2 * size))
            await until(lambda: reads_of(store, 2) == [1, 0])
            go_on.set()
            _, answer = await client.receive(1, VERSION)
            assert [len(part.records or b"") for part in answer.responses[0].partitions] == [size, size]

    run(main())


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR),
        (ErrorCode.POLICY_VIOLATION, ErrorCode.KAFKA_STORAGE_ERROR),
        (ErrorCode.CORRUPT_MESSAGE, ErrorCode.CORRUPT_MESSAGE),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
def test_consumers_are_told_errors_that_they_know(
    tmp_path: Path, store: FaultyStore, code: ErrorCode, told: ErrorCode
) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client = await filled(store, serving, 1)
            store.log("t").read_error = BackendError("so says the test", code)
            answer = await client.call(1, VERSION, **request({0: 0}, max_wait_ms=30_000))
            assert answer.responses[0].partitions[0].error_code == told

    run(main())


def test_an_error_is_told_though_other_partitions_always_have_records(tmp_path: Path, store: FaultyStore) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client = await filled(store, serving, 2, cold={0})
            store.log("t", 0).read_error = BackendError("so says the test", ErrorCode.CORRUPT_MESSAGE)

            async def is_told() -> bool:
                answer = await client.call(1, VERSION, **request({0: 0, 1: 0}))
                codes = [part.error_code for part in answer.responses[0].partitions]
                return bool(codes == [ErrorCode.CORRUPT_MESSAGE, 0])

            await until(is_told)

    run(main())


def test_records_that_were_deleted_since_they_were_read_are_not_answered(tmp_path: Path, store: FaultyStore) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client, budget = await filled(store, serving, 1), serving.gateway.engine.read_budget
            go_on, log = hang(store, 0), store.log("t")
            assert (await fetch(client, {0: 0}, max_wait_ms=100))[0] == {}
            go_on.set()
            await until(lambda: budget.held > 0)
            assert await log.delete_records(1) == 1
            answer = await client.call(1, VERSION, **request({0: 0}))
            part = answer.responses[0].partitions[0]
            assert (part.error_code, part.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 1)
            assert (await fetch(client, {0: 1}))[0] == {0: 2}
            assert budget.held == 0

    run(main())


def test_a_partition_that_a_fetch_names_twice_is_read_once(tmp_path: Path, store: FaultyStore) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client = await filled(store, serving, 1)
            await append(client, 0)
            fields = request({0: 0}, max_wait_ms=30_000)
            fields["topics"][0].partitions += request({0: 2})["topics"][0].partitions
            answer = await client.call(1, VERSION, **fields)
            assert [bool(part.records) for part in answer.responses[0].partitions] == [True, False]
            assert reads_of(store, 1) == [1]

    run(main())


# --- the reads of one connection


async def cold_logs(count: int) -> list[FaultyLog]:
    """Partitions with a batch of two records each, whose reads wait until the test lets them go on."""
    store = FaultyStore()
    engine = await store.open()
    await engine.topics.create("t", count, {})
    logs = [store.log("t", index) for index in range(count)]
    for log in logs:
        data = batch([b"x" * 100, b"y"])
        await log.append(data, read_header(data), now_ms=0)
        log.gate = asyncio.Event()
    return logs


def let_go(log: FaultyLog) -> None:
    assert log.gate is not None
    log.gate.set()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_so_many_run_side_by_side_and_slow_ones_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        reads = ColdReads(ReadBudget(1 << 30))
        logs = await cold_logs(cold_reads.AT_ONCE + 3)

        async def ask_all() -> None:
            for log in logs:
                log.gate = asyncio.Event()
                reads.ask(log, 0, 100)
            await turns()

        async def forget_all() -> None:
            for log in logs:
                reads.forget(log)
            await turns()
            assert not any(log.reading for log in logs)
            assert len(reads) == 0

        monkeypatch.setattr(cold_reads, "SLOW_SECONDS", 600.0)
        await ask_all()
        assert sum(log.reading for log in logs) == cold_reads.AT_ONCE
        let_go(logs[0])
        await turns()
        assert sum(log.reading for log in logs) == cold_reads.AT_ONCE, "the next one took its place"
        await forget_all()

        monkeypatch.setattr(cold_reads, "SLOW_SECONDS", 0.01)
        await ask_all()
        await until(lambda: all(log.reading for log in logs))
        await forget_all()

        monkeypatch.setattr(cold_reads, "SLOW_SECONDS", 600.0)
        await ask_all()
        assert sum(log.reading for log in logs) == cold_reads.AT_ONCE, "all places are free once more"
        await forget_all()

    run(main())


async def begins(reads: ColdReads) -> bool:
    """Whether a further read begins, where `MOST_HELD` is so small that nothing may be held."""
    [log] = await cold_logs(1)
    reads.ask(log, 0, 100)
    await turns()
    began = log.reading == 1
    reads.forget(log)
    await turns()
    return began


def test_what_nobody_asks_for_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_reads, "MOST_HELD", 1)
    monkeypatch.setattr(cold_reads, "KEPT_SECONDS", 1.0)

    async def main() -> None:
        reads = ColdReads(ReadBudget(1 << 30))
        done, running = await cold_logs(2)
        let_go(done)
        reads.ask(running, 0, 100)
        reads.ask(done, 0, 100)
        await turns()
        assert (len(reads), running.reading) == (2, 1)
        assert not await begins(reads), "what was found and not taken leaves no room for more"
        await until(lambda: not len(reads))
        await turns()
        assert running.reading == 0
        assert await begins(reads)

    run(main())


def test_results_of_partitions_that_are_not_wanted_any_more_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer pauses partitions, or loses them to another one: what was read of them keeps no others waiting."""
    monkeypatch.setattr(cold_reads, "MOST_HELD", 1)
    monkeypatch.setattr(cold_reads, "KEPT_SECONDS", 600.0)

    async def main() -> None:
        reads = ColdReads(ReadBudget(1 << 30))
        paused, wanted, other = await cold_logs(3)
        for log in (paused, wanted, other):
            let_go(log)
        reads.ask(paused, 0, 100)
        await turns()
        reads.ask(wanted, 0, 100)
        reads.make_room({paused, wanted}, 0)
        await turns()
        assert (paused.reads, wanted.reads) == (1, 0)
        undo = reads.on_news(lambda: None)
        reads.make_room({wanted}, 0)
        await turns()
        assert (len(reads), wanted.reads) == (2, 0), "a Fetch that waits may want the other one"
        reads.make_room({wanted}, 1)
        await turns()
        assert (len(reads), wanted.reads) == (1, 1)
        reads.make_room({other}, 1)
        await turns()
        assert len(reads) == 1, "nothing waits for room"
        undo()

    run(main())


def test_after_a_pause_other_partitions_are_read_at_once(
    tmp_path: Path, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_reads, "MOST_HELD", 1)
    monkeypatch.setattr(cold_reads, "KEPT_SECONDS", 600.0)

    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client = await filled(store, serving, 3)
            go_on = hang(store, 1)
            fetched, _ = await fetch(client, {0: 0, 1: 0})
            assert fetched == {0: 2}
            go_on.set()
            await until(lambda: store.log("t", 1).reading == 0)
            fetched, _ = await fetch(client, {2: 0})
            assert fetched == {2: 2}

    run(main())


def test_a_read_from_another_offset_takes_the_place_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_reads, "MOST_HELD", 1)

    async def main() -> None:
        reads = ColdReads(ReadBudget(1 << 30))
        [log] = await cold_logs(1)
        let_go(log)
        reads.ask(log, 0, 100)
        await turns()
        read = reads.find(log, 0)
        assert read is not None
        assert read.result is not None
        assert read.result.size == log.size_bytes
        log.gate = asyncio.Event()
        reads.ask(log, 1, 100)
        assert reads.find(log, 0) is None
        assert await begins(reads), "what was found before does not count any more"
        reads.forget(log)

    run(main())


def test_a_read_that_is_cancelled_before_it_begins_counts_no_longer() -> None:
    """A Fetch may name a partition twice, at two offsets."""

    async def main() -> None:
        reads = ColdReads(ReadBudget(1 << 30))
        [log] = await cold_logs(1)
        for _ in range(cold_reads.AT_ONCE):
            for offset in (0, 1):
                reads.ask(log, offset, 100)
            await turns()
            reads.forget(log)
            await turns()
        assert log.reads == cold_reads.AT_ONCE, "each second read began, and no first one"
        assert await begins(reads)

    run(main())


def test_results_that_are_not_wanted_any_more_make_room_in_a_full_budget() -> None:
    async def main() -> None:
        paused, kept, wanted, others = await cold_logs(4)
        budget = ReadBudget(2 * paused.size_bytes)
        reads, other = ColdReads(budget), ColdReads(budget)
        undo = reads.on_news(lambda: None), other.on_news(lambda: None)
        await read_ends(other, others)
        await read_ends(reads, paused)
        await read_ends(reads, wanted)
        assert (paused.reads, wanted.reads) == (1, 0)
        reads.make_room({wanted}, 1)
        await turns()
        assert (len(reads), wanted.reads) == (1, 1)
        await read_ends(reads, kept)
        assert kept.reads == 0
        other.forget(others)
        reads.make_room({wanted, kept}, 1)
        await turns()
        assert (len(reads), kept.reads) == (2, 1), "the budget has room again"
        for leave in undo:
            leave()

    run(main())


def test_reads_ahead_are_for_a_budget_with_room_and_no_read_that_waits() -> None:
    async def main() -> None:
        kept, wanted, ahead = await cold_logs(3)
        reads = ColdReads(ReadBudget(kept.size_bytes))
        undo = reads.on_news(lambda: None)
        await read_ends(reads, kept)
        await read_ends(reads, wanted)
        reads.ask_ahead(ahead, 0, 100)
        assert len(reads) == 2, "one waits for its turn"
        reads.forget(wanted)
        reads.ask_ahead(ahead, 0, 100)
        assert len(reads) == 1, "the budget is full"
        reads.forget(kept)
        await turns()
        assert wanted.reads == 0, "a queued read that was dropped never begins"
        reads.ask_ahead(ahead, 0, 100)
        assert len(reads) == 1
        undo()

    run(main())


def test_reads_ahead_that_are_under_way_count_in_the_budget() -> None:
    async def main() -> None:
        logs = await cold_logs(5)
        budget = ReadBudget(200)
        reads = ColdReads(budget)
        for log in logs[:3]:
            reads.ask_ahead(log, 0, 100)
        assert (len(reads), budget.expected) == (2, 200)
        let_go(logs[0])
        await turns()
        assert (budget.expected, budget.held) == (100, logs[0].size_bytes)
        reads.close()
        assert (budget.expected, budget.held) == (0, 0)

    run(main())


def test_reads_ahead_leave_half_of_the_turns_to_others() -> None:
    async def main() -> None:
        reads = ColdReads(ReadBudget(1 << 30))
        for log in await cold_logs(cold_reads.AT_ONCE):
            reads.ask_ahead(log, 0, 100)
        assert len(reads) == cold_reads.AT_ONCE // 2
        reads.close()

    run(main())


def test_a_fetch_of_less_than_a_result_has_is_not_given_it() -> None:
    async def main() -> None:
        (log,) = await cold_logs(1)
        data = batch([b"z"])
        await log.append(data, read_header(data), now_ms=0)
        reads = ColdReads(ReadBudget(1 << 30))
        let_go(log)
        first = reads.ask(log, 0, 1 << 20)
        await turns()
        assert first.result is not None
        size = first.result.size
        assert reads.ask(log, 0, size) is first
        smaller = reads.ask(log, 0, size - 1)
        assert smaller is not first
        await turns()
        assert smaller.result is not None
        assert len(smaller.result.buffers) == 1
        assert reads.ask(log, 0, 1) is smaller, "a first batch is given out whatever its size"
        more = ColdReads(ReadBudget(1 << 30))
        again = more.ask(log, 0, size - 1)
        await turns()
        assert again.result is not None
        again.result = first.result
        assert more.ask(log, 0, size - 1) is again, (
            "no smaller one can be had: Pulsar's batches without records come on top"
        )
        more.close()
        reads.close()

    run(main())


def test_an_error_is_kept_without_the_frames_that_it_came_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_reads, "KEPT_SECONDS", 1.0)

    async def main() -> None:
        reads = ColdReads(ReadBudget(1 << 30))
        [log] = await cold_logs(1)
        let_go(log)
        log.read_error = BackendError("so says the test")
        told: list[KopError] = []

        def tell() -> None:
            read = reads.find(log, 0)
            assert read is not None
            assert read.error is not None
            told.append(read.error)

        undo = reads.on_news(tell)
        reads.ask(log, 0, 100)
        await turns()
        assert [error.message for error in told] == ["so says the test"]
        assert told[0].__traceback__ is None
        undo()
        reads.forget(log)
        reads.ask(log, 0, 100)
        await turns()
        read = reads.find(log, 0)
        assert read is not None
        assert read.error is not None, "nobody waits: whoever asks next is told"
        await until(lambda: not len(reads))

    run(main())


async def read_ends(reads: ColdReads, log: FaultyLog) -> None:
    """Read a partition from its start, and wait until the result is there."""
    let_go(log)
    reads.ask(log, 0, 100)
    await turns()


def test_results_of_all_connections_count_in_one_budget_and_make_room_while_nobody_waits() -> None:
    async def main() -> None:
        logs = await cold_logs(4)
        size = logs[0].size_bytes
        budget = ReadBudget(2 * size)
        waits, leaves, third, fourth = (ColdReads(budget) for _ in logs)
        undo = waits.on_news(lambda: None)
        for reads, log in zip((waits, leaves), logs, strict=False):
            await read_ends(reads, log)
        assert budget.held == 2 * size
        await read_ends(third, logs[2])
        assert (len(waits), len(leaves), len(third)) == (1, 0, 1)
        await read_ends(fourth, logs[3])
        assert (len(waits), len(third), len(fourth)) == (1, 0, 1)
        undo()
        await read_ends(third, logs[2])
        assert (len(waits), len(third), len(fourth)) == (1, 1, 0), "that which was left longest goes first"
        for reads in waits, third:
            reads.close()
        assert budget.held == 0

    run(main())


def test_while_all_hold_too_much_who_holds_something_reads_no_more() -> None:
    async def main() -> None:
        logs = await cold_logs(3)
        budget = ReadBudget(1)
        holds, other = ColdReads(budget), ColdReads(budget)
        undo = holds.on_news(lambda: None), other.on_news(lambda: None)
        await read_ends(holds, logs[0])
        await read_ends(holds, logs[1])
        assert logs[1].reads == 0
        await read_ends(other, logs[2])
        assert logs[2].reads == 1, "who has nothing gets something"
        holds.forget(logs[0])
        await turns()
        assert logs[1].reads == 1
        for leave in undo:
            leave()

    run(main())


def test_reads_end_with_their_connection(tmp_path: Path, store: FaultyStore) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client = await filled(store, serving, 2)
            hang(store, 0, 1)
            client.send(1, VERSION, **request({0: 0, 1: 0}, max_wait_ms=30_000))
            await until(lambda: [store.log("t", index).reading for index in range(2)] == [1, 1])
            client.writer.transport.abort()
            await until(lambda: not any(store.log("t", index).reading for index in range(2)))
            leaves, budget = await RawClient.connect(serving), serving.gateway.engine.read_budget
            go_on = hang(store, 0)
            fetched, _ = await fetch(leaves, {0: 0}, max_wait_ms=100)
            assert fetched == {}
            go_on.set()
            await until(lambda: budget.held > 0)
            leaves.writer.transport.abort()
            await until(lambda: budget.held == 0)

    run(main())


def test_a_result_that_waits_is_taken_also_if_memory_holds_the_same_by_now(tmp_path: Path, store: FaultyStore) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client, budget = await filled(store, serving, 1), serving.gateway.engine.read_budget
            go_on = hang(store, 0)
            assert (await fetch(client, {0: 0}, max_wait_ms=100))[0] == {}
            go_on.set()
            await until(lambda: budget.held > 0)
            store.log("t", 0).cold = False
            assert (await fetch(client, {0: 0}))[0] == {0: 2}
            assert budget.held == 0

    run(main())
