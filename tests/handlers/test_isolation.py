"""Isolation levels of Fetch and ListOffsets: what readers of committed records get, are told and wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from support.faulty_engine import FaultyLog, FaultyStore
from support.gateway import RawClient, batch, fetch_fields, gateway, run, topic_of
from support.transactional import TransactionalWriter
from support.waiting import SECONDS, until

from kop.app import Serving
from kop.errors import ErrorCode
from kop.records.batch import iter_batches, read_header
from kop.records.transcode import empty_batch
from kop.wire.messages import FetchRequest, ListOffsetsRequest

NEWEST = 18
UNCOMMITTED, COMMITTED = 0, 1
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FaultyStore:
    """The store of the gateways of a test."""
    store = FaultyStore()
    monkeypatch.setattr("kop.storage.memory.engine.open_engine", store.open)
    return store


@asynccontextmanager
async def served(
    path: Path, store: FaultyStore, partitions: int = 1, **configs: str
) -> AsyncIterator[tuple[Serving, FaultyLog, RawClient]]:
    """A gateway with a topic `t`, the log of its partition 0, a client."""
    async with gateway(path, store="memory:") as serving:
        await store.engine.topics.create("t", partitions, {"retention.ms": "-1", **configs})
        yield serving, store.log("t"), await RawClient.connect(serving)


async def append(log: FaultyLog, data: bytes) -> int:
    return (await log.append(data, read_header(data), now_ms=0)).base_offset


def named(serving: Serving, version: int) -> Any:
    return topic_of(serving).topic_id if version >= 13 else "t"


async def fetch(
    client: RawClient,
    serving: Serving,
    offset: int,
    isolation_level: int = COMMITTED,
    version: int = NEWEST,
    **how: Any,
) -> Any:
    fields = fetch_fields(named(serving, version), offset, version=version, isolation_level=isolation_level, **how)
    return (await client.call(1, version, **fields)).responses[0].partitions[0]


def bases(part: Any) -> list[int]:
    return [header.base_offset for _, header in iter_batches(part.records or b"")]


def aborted(part: Any) -> list[tuple[int, int]] | None:
    if part.aborted_transactions is None:
        return None
    return [(row.producer_id, row.first_offset) for row in part.aborted_transactions]


# --- what there is to read


@pytest.mark.parametrize("version", range(4, NEWEST + 1))
def test_every_version_ends_at_the_oldest_open_transaction(tmp_path: Path, store: FaultyStore, version: int) -> None:
    async def main() -> None:
        async with served(tmp_path, store) as (serving, log, client):
            first, second, third = (TransactionalWriter(log, number) for number in (71, 72, 73))
            await append(log, batch([b"plain"]))
            await first.put(b"a", b"b")  # 1, 2
            await second.put(b"c")  # 3
            await first.end(commit=False)  # 4
            await second.end(commit=True)  # 5
            await third.put(b"d")  # 6
            await append(log, batch([b"behind"]))  # 7
            part = await fetch(client, serving, 0, version=version)
            assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 8, 6)
            assert bases(part) == [0, 1, 3, 4, 5]
            assert aborted(part) == [(71, 1)]
            part = await fetch(client, serving, 0, UNCOMMITTED, version)
            assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 8, 6)
            assert bases(part) == [0, 1, 3, 4, 5, 6, 7]
            assert aborted(part) is None
            for offset in (6, 7, 8):
                part = await fetch(client, serving, offset, version=version)
                assert (part.error_code, bases(part), aborted(part)) == (0, [], [])
                assert (part.high_watermark, part.last_stable_offset) == (8, 6)
            for offset in (-1, 9):
                part = await fetch(client, serving, offset, version=version)
                assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
            await third.end(commit=True)
            part = await fetch(client, serving, 4, version=version)
            assert (part.last_stable_offset, bases(part), aborted(part)) == (9, [4, 5, 6, 7, 8], [(71, 1)])

    run(main())


def test_the_aborted_transactions_are_those_of_the_batches_in_the_answer(tmp_path: Path, store: FaultyStore) -> None:
    async def main() -> None:
        async with served(tmp_path, store) as (serving, log, client):
            for producer_id in (1, 2, 3):  # data at 0, 3, 6; markers at 2, 5, 8
                writer = TransactionalWriter(log, producer_id)
                await writer.put(b"x", b"y")
                await writer.end(commit=False)
            assert aborted(await fetch(client, serving, 0)) == [(1, 0), (2, 3), (3, 6)]
            for offset, base, told in (
                (0, 0, [(1, 0)]),
                (1, 0, [(1, 0)]),
                (2, 2, [(1, 0)]),
                (3, 3, [(2, 3)]),
                (8, 8, [(3, 6)]),
            ):
                part = await fetch(client, serving, offset, max_bytes=1)
                assert (bases(part), aborted(part)) == ([base], told), offset
            assert aborted(await fetch(client, serving, 9)) == []

    run(main())


def test_no_aborted_transaction_is_told_once_compaction_took_its_marker(tmp_path: Path, store: FaultyStore) -> None:
    """Its producer's later records would be taken for aborted ones: no marker follows."""

    async def main() -> None:
        configs: dict[str, Any] = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0",
            "delete.retention.ms": "0",
        }
        async with served(tmp_path, store, **configs) as (serving, log, client):
            writer = TransactionalWriter(log, 1)
            await append(log, batch([b"kept"], keys=[b"kept"]))
            await writer.put(b"gone")
            await append(log, batch([b"kept too"], keys=[b"kept too"]))
            await writer.end(commit=False)
            await writer.put(b"committed")
            await writer.end(commit=True)
            # The first pass takes the aborted record, the second its marker: it goes a pass after its horizon was set.
            for now_ms, told in ((10, [(1, 1)]), (20, [])):
                await append(log, batch([b"last"], keys=[b"last"]))
                assert aborted(await fetch(client, serving, 0)) == told
                await store.engine.maintain(now_ms)
            part = await fetch(client, serving, 0)
            assert bases(part) == [0, 2, 4, 5, 7]
            assert aborted(part) == []

    run(main())


def test_what_is_read_from_storage_ends_there_too(tmp_path: Path, store: FaultyStore) -> None:
    async def main() -> None:
        async with served(tmp_path, store) as (serving, log, client):
            first, second = TransactionalWriter(log, 1), TransactionalWriter(log, 2)
            await first.put(b"a")
            await first.end(commit=False)
            await second.put(b"b")
            log.cold = True
            part = await fetch(client, serving, 0, max_wait_ms=30_000)
            assert (bases(part), aborted(part)) == ([0, 1], [(1, 0)])
            reads = log.reads
            assert bases(await fetch(client, serving, 2, max_wait_ms=50)) == []
            assert log.reads == reads, "of an open transaction nothing is read"
            assert bases(await fetch(client, serving, 2, UNCOMMITTED, max_wait_ms=30_000)) == [2]

    run(main())


def test_a_read_that_began_before_the_end_of_a_transaction_is_answered_by_what_holds_then(
    tmp_path: Path, store: FaultyStore
) -> None:
    async def main() -> None:
        async with served(tmp_path, store) as (_, log, client):
            first, second = TransactionalWriter(log, 1), TransactionalWriter(log, 2)
            await append(log, batch([b"plain"]))
            await first.put(b"a")
            await second.put(b"b")
            log.cold, log.gate = True, asyncio.Event()
            client.send(
                1, 12, **fetch_fields("t", 0, version=12, isolation_level=COMMITTED, max_wait_ms=int(SECONDS * 1000))
            )
            await until(lambda: log.reading == 1)
            await first.end(commit=False)
            log.gate.set()
            _, answer = await client.receive(1, 12)
            part = answer.responses[0].partitions[0]
            assert (bases(part), aborted(part), part.last_stable_offset) == ([0, 1], [(1, 1)], 2)

    run(main())


@pytest.mark.parametrize(("api_key", "version"), [(1, 4), (1, 12), (1, NEWEST), (2, 2), (2, 11)])
def test_a_level_that_there_is_not_closes_the_connection(
    tmp_path: Path, store: FaultyStore, api_key: int, version: int
) -> None:
    async def main() -> None:
        async with served(tmp_path, store) as (serving, _, client):
            if api_key == 1:
                fields = fetch_fields(named(serving, version), 0, version=version, isolation_level=2)
            else:
                fields = question(LATEST, 2, version)
            client.send(api_key, version, **fields)
            assert await client.closed()

    run(main())


# --- long polls


async def waits(client: RawClient, log: FaultyLog, offset: int, **how: Any) -> None:
    """Send a Fetch that waits: it is there once the log has an observer."""
    fields = fetch_fields(
        "t", offset, version=12, isolation_level=COMMITTED, **({"max_wait_ms": int(SECONDS * 1000)} | how)
    )
    client.send(1, 12, **fields)
    await until(lambda: log.observed)


async def answer_to(client: RawClient) -> Any:
    _, answer = await client.receive(1, 12)
    return answer.responses[0].partitions[0]


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_of_a_transaction_ends_a_long_poll_and_its_records_do_not(
    tmp_path: Path, store: FaultyStore, commit: bool
) -> None:
    async def main() -> None:
        async with served(tmp_path, store) as (_, log, client):
            await waits(client, log, 0)
            writer = TransactionalWriter(log, 1)
            await writer.put(b"a")
            await writer.put(b"b")
            await asyncio.sleep(0.05)  # nothing can be waited for: it must not be answered
            assert log.observed
            await writer.end(commit=commit)
            part = await answer_to(client)
            assert (bases(part), aborted(part)) == ([0, 1, 2], [] if commit else [(1, 0)])
            assert (part.high_watermark, part.last_stable_offset) == (3, 3)

    run(main())


def test_min_bytes_counts_what_may_be_read(tmp_path: Path, store: FaultyStore) -> None:
    async def main() -> None:
        async with served(tmp_path, store) as (_, log, client):
            await append(log, batch([b"x" * 100]))
            writer = TransactionalWriter(log, 1)
            await writer.put(b"y" * 1000)
            await append(log, batch([b"z" * 1000]))
            await waits(client, log, 0, min_bytes=1000)
            await writer.put(b"y" * 1000)
            await asyncio.sleep(0.05)  # nothing can be waited for: it must not be answered
            assert log.observed
            await writer.end(commit=True)
            part = await answer_to(client)
            assert bases(part) == [0, 1, 2, 3, 4]
            fields = fetch_fields("t", 5, version=12, isolation_level=COMMITTED, min_bytes=1000, max_wait_ms=300)
            client.send(1, 12, **fields)
            await asyncio.sleep(0.01)  # the Fetch may wait by then, come later, or have ended: each gets nothing
            await TransactionalWriter(log, 2).put(b"y" * 1000)
            assert bases(await answer_to(client)) == []

    run(main())


# --- sessions


async def session_fetch(client: RawClient, session_id: int, epoch: int, *wanted: tuple[int, int]) -> Any:
    part = FetchRequest.FetchTopic.FetchPartition
    parts = [
        part(version=12, partition=index, fetch_offset=offset, partition_max_bytes=2**20) for index, offset in wanted
    ]
    return await client.call(
        1,
        12,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=2**20,
        isolation_level=COMMITTED,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchRequest.FetchTopic(version=12, topic="t", partitions=parts)] if parts else [],
    )


def told(answer: Any) -> list[tuple[int, int, int, list[int]]]:
    return [
        (part.partition_index, part.high_watermark, part.last_stable_offset, bases(part))
        for topic in answer.responses
        for part in topic.partitions
    ]


def test_a_session_tells_where_the_last_stable_offset_is(tmp_path: Path, store: FaultyStore) -> None:
    async def main() -> None:
        async with served(tmp_path, store, partitions=2) as (_, log, client):
            first = await session_fetch(client, 0, 0, (0, 0), (1, 0))
            sid = first.session_id
            assert told(first) == [(0, 0, 0, []), (1, 0, 0, [])]
            writer = TransactionalWriter(log, 1)
            await writer.put(b"a")
            assert told(await session_fetch(client, sid, 1)) == [(0, 1, 0, [])]
            assert told(await session_fetch(client, sid, 2)) == []
            await writer.end(commit=True)
            assert told(await session_fetch(client, sid, 3)) == [(0, 2, 2, [0, 1])]
            assert told(await session_fetch(client, sid, 4, (0, 2))) == []

    run(main())


def test_a_last_stable_offset_that_moves_alone_is_news_in_a_session(
    tmp_path: Path, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with served(tmp_path, store) as (_, log, client):
            await append(log, batch([b"a", b"b"]))
            sid = (await session_fetch(client, 0, 0, (0, 2))).session_id
            assert told(await session_fetch(client, sid, 1)) == []
            monkeypatch.setattr(FaultyLog, "last_stable_offset", 1)
            assert told(await session_fetch(client, sid, 2)) == [(0, 2, 1, [])]
            assert told(await session_fetch(client, sid, 3)) == []

    run(main())


# --- batches without records, which stand for offsets that have none


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("level", [UNCOMMITTED, COMMITTED])
def test_batches_without_records_at_the_end_wait_for_records(
    tmp_path: Path, store: FaultyStore, level: int, cold: bool
) -> None:
    async def main() -> None:
        async with served(tmp_path, store) as (serving, log, client):
            await append(log, batch([b"a"]))
            assert await append(log, empty_batch(0, 3)) == 1
            assert await append(log, empty_batch(0, 0)) == 5
            log.cold = cold
            began = time.monotonic()
            part = await fetch(client, serving, 1, level, max_wait_ms=1000)
            assert time.monotonic() - began > 0.9
            assert (bases(part), part.high_watermark) == ([1, 5], 6), "positions come to the very end"
            assert bases(await fetch(client, serving, 1, level, max_wait_ms=0)) == [1, 5]
            assert bases(await fetch(client, serving, 0, level, max_wait_ms=int(SECONDS * 1000))) == [0, 1, 5]
            part = await fetch(client, serving, 1, level, max_bytes=1, max_wait_ms=int(SECONDS * 1000))
            assert bases(part)[:1] == [1], "there is more behind it"
            fields = fetch_fields("t", 1, version=12, isolation_level=level, max_wait_ms=int(SECONDS * 1000))
            client.send(1, 12, **fields)
            await until(lambda: log.observed)
            await append(log, batch([b"b"]))
            assert bases(await answer_to(client))[-1] in (5, 6)

    run(main())


def test_a_batch_without_records_takes_nobodys_turn(tmp_path: Path, store: FaultyStore) -> None:
    """The first batch with records goes out whatever its size, also behind one without."""

    async def main() -> None:
        async with served(tmp_path, store, partitions=2) as (_, log, client):
            await append(log, empty_batch(0, 0))
            await append(store.log("t", 1), batch([b"x" * 1000]))
            answer = await client.call(
                1,
                12,
                max_wait_ms=int(SECONDS * 1000),
                min_bytes=1,
                max_bytes=500,
                topics=[
                    FetchRequest.FetchTopic(
                        version=12,
                        topic="t",
                        partitions=[
                            FetchRequest.FetchTopic.FetchPartition(
                                version=12, partition=index, fetch_offset=0, partition_max_bytes=500
                            )
                            for index in (0, 1)
                        ],
                    )
                ],
            )
            assert [bases(part) for part in answer.responses[0].partitions] == [[0], [0]]

    run(main())


# --- ListOffsets


def question(timestamp: int, isolation_level: int, version: int) -> dict[str, Any]:
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    part = topic_class.ListOffsetsPartition(
        version=version, partition_index=0, timestamp=timestamp, current_leader_epoch=-1
    )
    topics = [topic_class(version=version, name="t", partitions=[part])]
    return {"replica_id": -1, "isolation_level": isolation_level, "topics": topics}


async def look_up(client: RawClient, timestamp: int, isolation_level: int, version: int) -> tuple[int, int, int]:
    answer = await client.call(2, version, **question(timestamp, isolation_level, version))
    row = answer.topics[0].partitions[0]
    return row.error_code, row.timestamp, row.offset


@pytest.mark.parametrize("version", range(2, 12))
def test_look_ups_of_offsets_end_at_the_oldest_open_transaction(
    tmp_path: Path, store: FaultyStore, version: int
) -> None:
    async def main() -> None:
        async with served(tmp_path, store) as (_, log, client):
            await append(log, batch([b"a", b"b"], timestamp=1000))
            writer = TransactionalWriter(log, 1)
            await writer.put(b"c", b"d", timestamp=5000)
            await append(log, batch([b"e"], timestamp=3000))
            asked = {LATEST: ((-1, 2), (-1, 5)), EARLIEST: ((-1, 0), (-1, 0)), 1001: ((1001, 1), (1001, 1))}
            asked |= {1002: ((-1, -1), (5000, 2)), 5001: ((-1, -1), (5001, 3)), 6000: ((-1, -1), (-1, -1))}
            if version >= 7:
                asked[MAX_TIMESTAMP] = ((-1, -1), (5001, 3))
            for question, (committed, uncommitted) in asked.items():
                assert await look_up(client, question, COMMITTED, version) == (0, *committed), question
                assert await look_up(client, question, UNCOMMITTED, version) == (0, *uncommitted), question
            await writer.end(commit=False, now_ms=2000)
            for question, (_, uncommitted) in asked.items():
                wanted = (-1, 6) if question == LATEST else uncommitted
                assert await look_up(client, question, COMMITTED, version) == (0, *wanted), question

    run(main())


# --- a client


def test_aiokafka_reads_committed_records_alone(tmp_path: Path, store: FaultyStore) -> None:
    async def main() -> None:
        async with served(tmp_path, store) as (serving, log, _):
            first, second, third = (TransactionalWriter(log, number) for number in (1, 2, 3))
            await append(log, batch([b"plain"]))
            for round_number in range(20):
                await first.put(b"aborted %d" % round_number)
                await second.put(b"committed %d" % round_number, b"too %d" % round_number)
                await first.put(b"aborted again %d" % round_number)
                await first.end(commit=round_number % 5 == 4)
                await second.end(commit=True)
            await third.put(b"open")
            await append(log, batch([b"behind"]))
            wanted = [b"plain"]
            for number in range(20):
                if number % 5 == 4:
                    wanted.append(b"aborted %d" % number)
                wanted += [b"committed %d" % number, b"too %d" % number]
                if number % 5 == 4:
                    wanted.append(b"aborted again %d" % number)
            host, port = serving.listeners[0]
            async with AIOKafkaConsumer(
                bootstrap_servers=f"{host}:{port}",
                isolation_level="read_committed",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                fetch_max_wait_ms=200,
                max_partition_fetch_bytes=300,
            ) as consumer:
                partition = TopicPartition("t", 0)
                consumer.assign([partition])
                assert await consumer.end_offsets([partition]) == {partition: log.last_stable_offset}

                async def take(count: int) -> list[bytes | None]:
                    async with asyncio.timeout(SECONDS):
                        return [(await consumer.getone()).value for _ in range(count)]

                assert await take(len(wanted)) == wanted
                await until(lambda: consumer.last_stable_offset(partition) == log.last_stable_offset)
                assert consumer.highwater(partition) == log.high_watermark
                assert await consumer.getmany(timeout_ms=500) == {}, "nothing of the open transaction"
                await third.end(commit=True)
                assert await take(2) == [b"open", b"behind"]
                await second.put(b"never")
                await second.end(commit=False)
                await append(log, batch([b"the end"]))
                assert await take(1) == [b"the end"]
                assert await consumer.position(partition) == log.high_watermark

    run(main())
