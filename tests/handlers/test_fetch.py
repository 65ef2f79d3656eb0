"""Fetch: limits, both ends of the log, long polls, sessions."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from support.gateway import RawClient, batch, fetch_fields, gateway, log_of, produce_fields, run, topic_of
from support.waiting import until

from kop.errors import ErrorCode, PeerError
from kop.handlers import fetch_sessions
from kop.records.batch import iter_batches, read_header
from kop.records.compression import Codec
from kop.wire.messages import FetchRequest, OffsetCommitRequest

NEWEST = 12
"""The newest version that goes by name."""


async def filled(serving: Any, batches: int, *, size: int = 100, name: str = "t", partitions: int = 1) -> RawClient:
    """A client, and a topic whose partition 0 has so many batches of two records."""
    await serving.gateway.engine.topics.create(name, partitions, {"retention.ms": "-1"})
    client = await RawClient.connect(serving)
    for _ in range(batches):
        await append(client, name, size=size)
    return client


async def append(client: RawClient, name: str = "t", *, partition: int = 0, size: int = 100) -> None:
    records = batch([b"x" * size, b"y" * size])
    answer = await client.call(0, NEWEST, **produce_fields(name, records, version=NEWEST, partition=partition))
    assert answer.responses[0].partition_responses[0].error_code == 0


async def fetch(client: RawClient, offset: int, *, name: Any = "t", version: int = NEWEST, **how: Any) -> Any:
    answer = await client.call(1, version, **fetch_fields(name, offset, version=version, **how))
    return answer.responses[0].partitions[0]


def bases(part: Any) -> list[int]:
    return [header.base_offset for _, header in iter_batches(part.records or b"")]


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_reads_what_was_written(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await filled(serving, 3)
            part = await fetch(client, 0, name=topic_of(serving).topic_id if version >= 13 else "t", version=version)
            assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 6, 6)
            assert bases(part) == [0, 2, 4]
            if version >= 5:
                assert part.log_start_offset == 0

    run(main())


def test_from_the_middle_of_a_batch_the_whole_batch_is_answered(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await filled(serving, 3)
            assert bases(await fetch(client, 3)) == [2, 4]

    run(main())


def test_the_first_batch_is_answered_even_above_the_limits(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await filled(serving, 3, size=5000)
            for limits in ({"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0, "partition_max_bytes": 0}):
                assert bases(await fetch(client, 0, **limits)) == [0]
            batch_size = len((await fetch(client, 0, max_bytes=1)).records)
            assert bases(await fetch(client, 0, max_bytes=2 * batch_size)) == [0, 2]
            assert bases(await fetch(client, 0, partition_max_bytes=2 * batch_size + 1)) == [0, 2]

    run(main())


def test_both_ends_out_of_range_answer_the_log_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await filled(serving, 3)
            await log_of(serving).delete_records(2)
            for offset in (-1, 0, 1, 7, 2**62):
                part = await fetch(client, offset)
                assert (part.error_code, part.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2), offset
            assert bases(await fetch(client, 2)) == [2, 4]
            end = await fetch(client, 6)
            assert (end.error_code, bases(end), end.high_watermark) == (0, [], 6)

    run(main())


def test_unknown_topics_ids_partitions_and_epochs(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await filled(serving, 1)
            assert (await fetch(client, 0, name="no")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert (await fetch(client, 0, partition=7)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert (await fetch(client, 0, name=uuid4(), version=13)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
            assert (await fetch(client, 0, current_leader_epoch=0)).error_code == 0
            assert (await fetch(client, 0, current_leader_epoch=1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH

    run(main())


def test_a_long_poll_ends_with_its_time_and_not_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await filled(serving, 1)
            began = time.monotonic()
            part = await fetch(client, 2, max_wait_ms=300)
            assert 0.25 < time.monotonic() - began < 60
            assert (part.error_code, bases(part)) == (0, [])

    run(main())


def test_a_long_poll_is_woken_at_once_by_a_record(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await filled(serving, 0)
            writer = await RawClient.connect(serving)
            for base in range(0, 20, 2):
                client.send(1, NEWEST, **fetch_fields("t", base, version=NEWEST, max_wait_ms=150_000))
                await asyncio.sleep(0.01)  # the Fetch may wait by then, or come later: both are answered
                began = time.monotonic()
                await append(writer)
                _, answer = await client.receive(1, NEWEST)
                assert time.monotonic() - began < 60
                assert bases(answer.responses[0].partitions[0]) == [base]

    run(main())


def test_min_bytes_waits_for_enough(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await filled(serving, 0)
            writer = await RawClient.connect(serving)
            client.send(1, NEWEST, **fetch_fields("t", 0, version=NEWEST, max_wait_ms=150_000, min_bytes=700))
            for _ in range(3):
                await append(writer)
                await asyncio.sleep(0.02)  # each append may wake the Fetch by itself
            _, answer = await client.receive(1, NEWEST)
            part = answer.responses[0].partitions[0]
            assert len(part.records) >= 700
            assert bases(part) == [0, 2, 4]

    run(main())


@pytest.mark.parametrize(
    "how",
    [
        {"partition_max_bytes": 2**20, "min_bytes": 2**20, "max_bytes": 50 << 20},
        {"partition_max_bytes": 2**20, "min_bytes": 2**21, "max_bytes": 2**20},
        {"partition_max_bytes": 30_000, "min_bytes": 2**31 - 1, "max_bytes": 30_000},
    ],
)
def test_min_bytes_counts_what_is_there_up_to_the_limits_and_not_the_batches_that_fit(
    tmp_path: Path, how: dict[str, int]
) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client = await filled(serving, 100, size=5500)
            began = time.monotonic()
            part = await fetch(client, 0, max_wait_ms=150_000, **how)
            assert time.monotonic() - began < 60
            batch_size = len(part.records) // len(bases(part))
            assert len(bases(part)) == how["partition_max_bytes"] // batch_size < 100

    run(main())


def test_min_bytes_is_no_more_than_the_broker_gives(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:", fetch_max_bytes="2000") as serving:
            client = await filled(serving, 3, size=500)
            part = await fetch(client, 0, max_wait_ms=150_000, min_bytes=100_000)
            assert bases(part) == [0]

    run(main())


def test_min_bytes_counts_partitions_that_an_answer_has_no_room_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client = await filled(serving, 1, size=5500, partitions=2)
            await append(client, size=5500, partition=1)
            sizes = {"min_bytes": 15_000, "max_bytes": 15_000, "max_wait_ms": 150_000}
            answer = await session_fetch(client, 0, -1, ("t", 0, 0), ("t", 1, 0), **sizes)
            assert answered(answer) == [("t", 0, [0]), ("t", 1, [])]

    run(main())


def test_without_records_a_fetch_waits_whatever_the_limits(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client = await filled(serving, 1)
            for limits in ({"max_bytes": 0}, {"partition_max_bytes": 0}):
                began = time.monotonic()
                assert bases(await fetch(client, 2, max_wait_ms=300, **limits)) == []
                assert time.monotonic() - began > 0.25

    run(main())


def test_an_error_in_any_partition_answers_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await filled(serving, 1, partitions=2)
            fields = fetch_fields("t", 2, version=NEWEST, max_wait_ms=150_000)
            fields["topics"] += fetch_fields("t", 7, version=NEWEST, partition=1)["topics"]
            fields["topics"] += fetch_fields("no", 0, version=NEWEST)["topics"]
            began = time.monotonic()
            answer = await client.call(1, NEWEST, **fields)
            assert time.monotonic() - began < 60
            codes = [part.error_code for topic in answer.responses for part in topic.partitions]
            assert codes == [0, ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    run(main())


@pytest.mark.parametrize("version", [4, 12, 13])
def test_a_partition_that_is_not_there_waits_for_the_others(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await filled(serving, 1)
            writer = await RawClient.connect(serving)
            name, other = (topic_of(serving).topic_id, uuid4()) if version >= 13 else ("t", "no")
            fields = fetch_fields(other, 0, version=version, max_wait_ms=150_000)
            fields["topics"] += fetch_fields(name, 2, version=version)["topics"]
            fields["topics"] += fetch_fields(name, 0, version=version, partition=7)["topics"]
            client.send(1, version, **fields)
            log: Any = log_of(serving)
            await until(lambda: log.observed)
            await append(writer)
            _, answer = await client.receive(1, version)
            parts = [part for topic in answer.responses for part in topic.partitions]
            missing = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert [part.error_code for part in parts] == [missing, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
            assert bases(parts[1]) == [2]
            began = time.monotonic()  # where nothing else is asked for there is nothing to wait for
            assert (await fetch(client, 0, name=other, version=version, max_wait_ms=150_000)).error_code == missing
            assert time.monotonic() - began < 60

    run(main())


@pytest.mark.parametrize("others", [False, True])
def test_deleting_the_topic_ends_a_long_poll(tmp_path: Path, others: bool) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await filled(serving, 1)
            await serving.gateway.engine.topics.create("other", 1, {})
            fields = fetch_fields("t", 2, version=NEWEST, max_wait_ms=150_000)
            if others:
                fields["topics"] += fetch_fields("other", 0, version=NEWEST)["topics"]
                fields["topics"] += fetch_fields("no", 0, version=NEWEST)["topics"]
            client.send(1, NEWEST, **fields)
            topics = serving.gateway.engine.topics
            made = topics.get("t")
            assert made is not None
            log: Any = serving.gateway.topics.log(made.topic_id, 0)
            await until(lambda: log.observed)
            await topics.delete(made.topic_id)
            _, answer = await client.receive(1, NEWEST, timeout=60)
            assert answer.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(main())


def test_what_is_not_in_the_cache_is_read_from_storage(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, kop_cache_bytes="0") as serving:
            client = await filled(serving, 20)
            assert bases(await fetch(client, 0, max_wait_ms=60_000)) == list(range(0, 40, 2))
            assert bases(await fetch(client, 39, max_wait_ms=60_000)) == [38]
            assert bases(await fetch(client, 40, max_wait_ms=50)) == []

    run(main())


# --- sessions (KIP-227)


def partitions(*wanted: tuple[str, int, int]) -> list[Any]:
    part = FetchRequest.FetchTopic.FetchPartition
    return [
        FetchRequest.FetchTopic(
            version=NEWEST,
            topic=topic,
            partitions=[part(version=NEWEST, partition=index, fetch_offset=offset, partition_max_bytes=2**20)],
        )
        for topic, index, offset in wanted
    ]


async def session_fetch(
    client: RawClient, session_id: int, epoch: int, *wanted: tuple[str, int, int], **how: Any
) -> Any:
    fields = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 2**20, "session_id": session_id, "session_epoch": epoch}
    return await client.call(1, NEWEST, **(fields | {"topics": partitions(*wanted)} | how))


def answered(answer: Any) -> list[tuple[str, int, list[int]]]:
    return [(topic.topic, part.partition_index, bases(part)) for topic in answer.responses for part in topic.partitions]


def test_a_session_answers_only_what_is_new(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await filled(serving, 1, partitions=2)
            first = await session_fetch(client, 0, 0, ("t", 0, 2), ("t", 1, 0))
            assert first.session_id != 0
            assert answered(first) == [("t", 0, []), ("t", 1, [])]
            sid = first.session_id
            assert answered(await session_fetch(client, sid, 1)) == []
            await append(client, partition=1)
            assert answered(await session_fetch(client, sid, 2)) == [("t", 1, [0])]
            assert answered(await session_fetch(client, sid, 3, ("t", 1, 2))) == []
            await append(client, partition=0)
            forgotten = [FetchRequest.ForgottenTopic(topic="t", partitions=[0])]
            assert answered(await session_fetch(client, sid, 4, forgotten_topics_data=forgotten)) == []
            await append(client, partition=0)
            assert answered(await session_fetch(client, sid, 5)) == [], "a forgotten partition is not looked at"

    run(main())


def test_a_session_that_loses_its_last_partition_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await filled(serving, 1, partitions=2)
            sid = (await session_fetch(client, 0, 0, ("t", 0, 0), ("t", 1, 0))).session_id
            forgotten = [FetchRequest.ForgottenTopic(topic="t", partitions=[0])]
            less = await session_fetch(client, sid, 1, forgotten_topics_data=forgotten)
            assert less.session_id == sid
            forgotten = [FetchRequest.ForgottenTopic(topic="t", partitions=[1])]
            last = await session_fetch(client, sid, 2, forgotten_topics_data=forgotten, max_wait_ms=150_000)
            assert (last.error_code, last.session_id, answered(last)) == (0, 0, [])
            assert len(serving.gateway.fetch_sessions) == 0
            gone = await session_fetch(client, sid, 3)
            assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    run(main())


def test_a_request_that_forgets_all_that_it_names_is_answered_without_a_session(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await filled(serving, 1)
            forgotten = [FetchRequest.ForgottenTopic(topic="t", partitions=[0])]
            sid = (await session_fetch(client, 0, 0, ("t", 0, 2))).session_id
            answer = await session_fetch(client, sid, 1, ("t", 0, 0), forgotten_topics_data=forgotten)
            assert (answer.session_id, answered(answer)) == (0, [("t", 0, [0])])
            assert len(serving.gateway.fetch_sessions) == 0

    run(main())


def test_a_session_by_id_tells_a_deleted_topic_from_a_recreated_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await filled(serving, 1)
            topics = serving.gateway.engine.topics
            old = topic_of(serving).topic_id

            async def code(session_id: int, epoch: int, *, ask: bool) -> tuple[int, int]:
                fields = fetch_fields(old, 0, version=18, session_id=session_id, session_epoch=epoch)
                answer = await client.call(1, 18, **(fields if ask else fields | {"topics": []}))
                [[part]] = [topic.partitions for topic in answer.responses]
                return answer.session_id, part.error_code

            sid, first = await code(0, 0, ask=True)
            assert first == 0
            await topics.delete(old)
            assert await code(sid, 1, ask=False) == (sid, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            assert await code(sid, 2, ask=True) == (sid, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), "asked for once more"
            await topics.create("t", 1, {})
            assert await code(sid, 3, ask=False) == (sid, ErrorCode.INCONSISTENT_TOPIC_ID)
            assert await code(sid, 4, ask=True) == (sid, ErrorCode.INCONSISTENT_TOPIC_ID)
            assert (await code(0, 0, ask=True))[1] == ErrorCode.UNKNOWN_TOPIC_ID, "a new session knows the id alone"

    run(main())


def test_a_session_does_not_take_a_topic_for_recreated_whose_log_is_gone_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await filled(serving, 1)

            def read_cached(*_: object, **__: object) -> None:
                raise PeerError("the log is deleted", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

            monkeypatch.setattr(type(log_of(serving)), "read_cached", read_cached)
            part = await fetch(client, 0, name=topic_of(serving).topic_id, version=18, session_epoch=0)
            assert part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(main())


def test_session_errors(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await filled(serving, 1)
            unknown = await session_fetch(client, 12345, 1)
            assert (unknown.error_code, unknown.session_id) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)
            sid = (await session_fetch(client, 0, 0, ("t", 0, 0))).session_id
            wrong = await session_fetch(client, sid, 7)
            assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
            assert (await session_fetch(client, sid, 1)).error_code == 0, "a wrong epoch leaves the session as it is"
            closed = await session_fetch(client, sid, -1)
            assert (closed.error_code, closed.session_id) == (0, 0)
            gone = await session_fetch(client, sid, 2)
            assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND

    run(main())


def test_sessions_are_bounded_and_an_evicted_one_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with gateway(tmp_path, max_incremental_fetch_session_cache_slots="2") as serving:
            client = await filled(serving, 1)
            ids = [(await session_fetch(client, 0, 0, ("t", 0, 0))).session_id for _ in range(3)]
            assert all(ids[:2])
            assert ids[2] == 0, "all slots are in use: the client goes on without a session"
            sessions = serving.gateway.fetch_sessions
            monkeypatch.setattr(fetch_sessions, "EVICT_AFTER_MS", 0)
            new = (await session_fetch(client, 0, 0, ("t", 0, 0))).session_id
            assert new != 0
            assert (await session_fetch(client, ids[0], 1)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            assert (await session_fetch(client, ids[1], 1)).error_code == 0
            assert len(sessions) == 2

    run(main())


def test_a_session_that_finds_no_room_for_a_partition_ends_and_that_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await filled(serving, 1, partitions=2)
            monkeypatch.setattr(fetch_sessions, "MOST_BYTES", 600)
            assert (await session_fetch(client, 0, 0, ("t", 0, 0), ("t", 1, 0))).session_id == 0
            sid = (await session_fetch(client, 0, 0, ("t", 1, 0))).session_id
            assert sid
            last = await session_fetch(client, sid, 1, ("t", 0, 0))
            assert (last.error_code, last.session_id, answered(last)) == (0, 0, [("t", 0, [0])])
            gone = await session_fetch(client, sid, 2)
            assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            assert (await session_fetch(client, 0, 0, ("t", 0, 0))).session_id

    run(main())


def test_partitions_take_turns_when_the_limit_is_small(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await filled(serving, 2, partitions=2)
            for _ in range(2):
                await append(client, partition=1)
            first = await session_fetch(client, 0, 0, ("t", 0, 0), ("t", 1, 0), max_bytes=1)
            assert [row for row in answered(first) if row[2]] == [("t", 0, [0])]
            second = await session_fetch(client, first.session_id, 1, max_bytes=1)
            assert answered(second) == [("t", 1, [0])]

    run(main())


def test_the_offsets_topic_is_readable(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, offsets_topic_num_partitions="1") as serving:
            client = await filled(serving, 1)
            topic = OffsetCommitRequest.OffsetCommitRequestTopic
            part = topic.OffsetCommitRequestPartition(
                version=8, partition_index=0, committed_offset=1, committed_metadata=""
            )
            committed = await client.call(
                8,
                8,
                group_id="g",
                generation_id_or_member_epoch=-1,
                member_id="",
                topics=[topic(version=8, name="t", partitions=[part])],
            )
            assert committed.topics[0].partitions[0].error_code == 0
            part_answer = await fetch(client, 0, name="__consumer_offsets")
            assert part_answer.error_code == 0
            assert read_header(part_answer.records).record_count == 1

    run(main())


@pytest.mark.parametrize("version", [4, 9, 10])
def test_zstd_goes_out_in_every_version(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            topics = serving.gateway.engine.topics
            await topics.create("plain", 1, {"retention.ms": "-1"})
            await topics.create("zstd", 1, {"retention.ms": "-1", "compression.type": "zstd"})
            client = await RawClient.connect(serving)
            for name in ("plain", "zstd"):
                sent = batch([b"a" * 100], codec=Codec.ZSTD)
                answer = await client.call(0, NEWEST, **produce_fields(name, sent, version=NEWEST))
                assert answer.responses[0].partition_responses[0].error_code == 0
                part = await fetch(client, 0, name=name, version=version)
                assert (part.error_code, read_header(part.records).codec) == (0, Codec.ZSTD)

    run(main())
