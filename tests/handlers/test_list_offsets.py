"""ListOffsets and OffsetForLeaderEpoch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.gateway import RawClient, batch, gateway, log_of, produce_fields, run
from support.waiting import SECONDS, until

from kop.errors import BackendError, ErrorCode
from kop.handlers import in_time, list_offsets
from kop.handlers.gateway import SEARCHES_AT_ONCE
from kop.storage.base import PartitionLog, TimestampOffset
from kop.storage.sqlite.log import SqliteLog
from kop.wire.messages import ListOffsetsRequest, OffsetForLeaderEpochRequest

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = -1, -2, -3, -4, -5, -6


async def with_records(serving: Any) -> RawClient:
    """Topic `t`: offsets 0 to 5 with timestamps 1000, 1001, 5000, 5001, 3000, 3001; its log starts at 1."""
    topic = await serving.gateway.engine.topics.create("t", 1, {"retention.ms": "-1"})
    client = await RawClient.connect(serving)
    for timestamp in (1000, 5000, 3000):
        await client.call(0, 12, **produce_fields("t", batch([b"a", b"b"], timestamp=timestamp), version=12))
    await serving.gateway.topics.log(topic.topic_id, 0).delete_records(1)
    return client


async def ask(
    client: RawClient, timestamp: int, *, version: int = 11, name: str = "t", partition: int = 0, epoch: int = -1
) -> Any:
    part = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
        version=version, partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch
    )
    answer = await client.call(
        2,
        version,
        replica_id=-1,
        isolation_level=0,
        topics=[ListOffsetsRequest.ListOffsetsTopic(version=version, name=name, partitions=[part])],
    )
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", range(1, 12))
def test_what_each_question_is_answered(tmp_path: Path, version: int) -> None:
    questions = {LATEST: (-1, 6), EARLIEST: (-1, 1), 0: (1001, 1), 1001: (1001, 1), 1002: (5000, 2), 5001: (5001, 3)}
    questions |= {5002: (-1, -1), 2**62: (-1, -1)}
    if version >= 7:
        questions[MAX_TIMESTAMP] = (5001, 3)
    if version >= 8:
        questions[EARLIEST_LOCAL] = (-1, 1)
    if version >= 9:
        questions[LATEST_TIERED] = (-1, -1)
    if version >= 11:
        questions[PENDING_UPLOAD] = (-1, -1)

    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await with_records(serving)
            for timestamp, wanted in questions.items():
                answer = await ask(client, timestamp, version=version)
                assert (answer.error_code, (answer.timestamp, answer.offset)) == (0, wanted), timestamp
                if version >= 4:
                    assert answer.leader_epoch == (0 if answer.offset >= 0 else -1)

    run(main())


@pytest.mark.parametrize(("question", "first"), [(-3, 7), (-4, 8), (-5, 9), (-6, 11)])
def test_a_question_newer_than_the_version_is_unsupported(tmp_path: Path, question: int, first: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await with_records(serving)
            answer = await ask(client, question, version=first - 1)
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION

    run(main())


@pytest.mark.parametrize(("question", "version"), [(-3, 6), (-6, 10), (-7, 11)])
def test_an_unsupported_question_is_refused_before_its_partition_and_epoch(
    tmp_path: Path, question: int, version: int
) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await with_records(serving)
            for wrong in ({}, {"name": "no"}, {"partition": 3}, {"epoch": 1}):
                answer = await ask(client, question, version=version, **wrong)
                assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION, wrong

    run(main())


def test_unknown_partitions_and_epochs(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await with_records(serving)
            assert (await ask(client, LATEST, name="no")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert (await ask(client, LATEST, partition=3)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert (await ask(client, LATEST, epoch=0)).error_code == 0
            assert (await ask(client, LATEST, epoch=1)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH

    run(main())


def test_an_empty_log_answers_its_ends_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await with_records(serving)
            log = log_of(serving)
            assert await log.delete_records(-1) == 6
            answers = {q: await ask(client, q) for q in (LATEST, EARLIEST, MAX_TIMESTAMP, 0)}
            seen = {q: (answer.timestamp, answer.offset) for q, answer in answers.items()}
            assert seen == {LATEST: (-1, 6), EARLIEST: (-1, 6), MAX_TIMESTAMP: (-1, -1), 0: (-1, -1)}

    run(main())


@pytest.mark.parametrize(
    ("version", "late"), [(4, ErrorCode.LEADER_NOT_AVAILABLE), (5, ErrorCode.OFFSET_NOT_AVAILABLE), (11, 78)]
)
def test_who_asks_for_many_gets_what_is_there_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: int, late: int
) -> None:
    monkeypatch.setattr("kop.handlers.in_time.ANSWER_SECONDS", 0.1)

    async def attach(self: PartitionLog) -> None:
        if self is slow:
            await asyncio.Event().wait()

    slow: PartitionLog | None = None

    async def main() -> list[tuple[int, int]]:
        nonlocal slow
        async with gateway(tmp_path) as serving:
            topic = await serving.gateway.engine.topics.create("t", 3, {})
            slow = serving.gateway.topics.log(topic.topic_id, 1)
            monkeypatch.setattr(type(slow), "attach", attach)
            monkeypatch.setattr(type(slow), "sole_writer", False)
            client = await RawClient.connect(serving)
            topic_class = ListOffsetsRequest.ListOffsetsTopic
            parts = [
                topic_class.ListOffsetsPartition(
                    version=version, partition_index=p, timestamp=EARLIEST, current_leader_epoch=-1
                )
                for p in range(3)
            ]
            topics = [topic_class(version=version, name="t", partitions=parts)]
            answer = await client.call(2, version, replica_id=-1, isolation_level=0, topics=topics)
            return [(p.error_code, p.offset) for p in answer.topics[0].partitions]

    assert run(main()) == [(0, 0), (late, -1), (0, 0)]
    assert "offsets of 1 of 3 partitions were not known within" in caplog.text


def test_the_ends_of_a_log_with_one_writer_are_told_without_a_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await with_records(serving)
            monkeypatch.setattr(type(log_of(serving)), "attach", None)
            answers = {q: await ask(client, q) for q in (LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED)}
            seen = {q: (answer.timestamp, answer.offset) for q, answer in answers.items()}
            assert seen == {LATEST: (-1, 6), EARLIEST: (-1, 1), EARLIEST_LOCAL: (-1, 1), LATEST_TIERED: (-1, -1)}

    run(main())


def question(partitions: Sequence[int], timestamp: int) -> dict[str, Any]:
    topic_class = ListOffsetsRequest.ListOffsetsTopic
    parts = [
        topic_class.ListOffsetsPartition(
            version=11, partition_index=number, timestamp=timestamp, current_leader_epoch=-1
        )
        for number in partitions
    ]
    topics = [topic_class(version=11, name="t", partitions=parts)]
    return {"replica_id": -1, "isolation_level": 0, "topics": topics}


class Searches:
    """Takes the place of `find_by_time`: look-ups last until they are let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.running = self.most = 0
        self.go_on = asyncio.Event()

        async def find_by_time(log: PartitionLog, timestamp: int) -> TimestampOffset | None:
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                await self.go_on.wait()
            finally:
                self.running -= 1
            return TimestampOffset(log.index, timestamp)

        monkeypatch.setattr(SqliteLog, "find_by_time", find_by_time)


def test_look_ups_by_time_are_bounded_for_a_request_and_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        searches = Searches(monkeypatch)
        async with gateway(tmp_path) as serving:
            await serving.gateway.engine.topics.create("t", 100, {})
            clients = [await RawClient.connect(serving) for _ in range(5)]
            clients[0].send(2, 11, **question(range(100), 1000))
            await until(lambda: searches.running == list_offsets.SEARCHES_OF_ONE)
            for client in clients[1:]:
                client.send(2, 11, **question(range(100), 1000))
            await until(lambda: searches.running == SEARCHES_AT_ONCE)
            answer = await asyncio.wait_for(clients[0].open(*serving.listeners[0]), SECONDS)
            assert (await answer.call(2, 11, **question([0, 1], LATEST))).topics[0].partitions[1].offset == 0
            await answer.close()
            searches.go_on.set()
            for client in clients:
                _, offsets_answer = await client.receive(2, 11)
                assert [part.offset for part in offsets_answer.topics[0].partitions] == list(range(100))
            assert searches.most == SEARCHES_AT_ONCE

    run(main())


def test_a_look_up_of_one_partition_has_its_time_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_time, "ANSWER_SECONDS", 0.1)

    async def main() -> None:
        searches = Searches(monkeypatch)
        async with gateway(tmp_path) as serving:
            await serving.gateway.engine.topics.create("t", 1, {})
            client = await RawClient.connect(serving)
            answer = await client.call(2, 11, **question([0], 1000))
            assert answer.topics[0].partitions[0].error_code == ErrorCode.OFFSET_NOT_AVAILABLE
            await until(lambda: searches.running == 0)

    run(main())


@pytest.mark.parametrize("version", [2, 3, 4])
def test_epoch_0_ends_at_the_high_watermark_and_later_ones_are_unknown(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await with_records(serving)
            topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
            for epoch, current, wanted in (
                (0, -1, (0, 0, 6)),
                (0, 0, (0, 0, 6)),
                (1, 0, (0, -1, -1)),
                (0, 1, (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)),
            ):
                part = topic.OffsetForLeaderPartition(
                    version=version, partition=0, leader_epoch=epoch, current_leader_epoch=current
                )
                answer = await client.call(
                    23, version, replica_id=-1, topics=[topic(version=version, topic="t", partitions=[part])]
                )
                row = answer.topics[0].partitions[0]
                assert (row.error_code, row.leader_epoch, row.end_offset) == wanted

    run(main())


def ends_of(version: int, partitions: Sequence[int], epoch: int = 0) -> dict[str, Any]:
    topic_class = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    parts = [
        topic_class.OffsetForLeaderPartition(
            version=version, partition=number, leader_epoch=epoch, current_leader_epoch=-1
        )
        for number in partitions
    ]
    return {"replica_id": -1, "topics": [topic_class(version=version, topic="t", partitions=parts)]}


@pytest.mark.parametrize(
    ("version", "late"), [(2, ErrorCode.LEADER_NOT_AVAILABLE), (3, ErrorCode.OFFSET_NOT_AVAILABLE), (4, 78)]
)
def test_the_end_of_an_epoch_that_is_late_keeps_no_other_one_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, late: int
) -> None:
    monkeypatch.setattr(in_time, "ANSWER_SECONDS", 0.1)

    async def main() -> list[tuple[int, int, int]]:
        async with gateway(tmp_path) as serving:
            await serving.gateway.engine.topics.create("t", 4, {})
            client = await RawClient.connect(serving)
            await client.call(0, 12, **produce_fields("t", batch([b"a", b"b"]), version=12, partition=1))
            slow, broken = log_of(serving, partition=0), log_of(serving, partition=2)

            async def refresh(self: PartitionLog) -> None:
                if self is slow:
                    await asyncio.Event().wait()
                if self is broken:
                    raise BackendError("the storage is away")

            monkeypatch.setattr(type(slow), "refresh", refresh)
            monkeypatch.setattr(type(slow), "sole_writer", False)
            answer = await client.call(23, version, **ends_of(version, range(4)))
            rows = answer.topics[0].partitions
            assert [row.partition for row in rows] == [0, 1, 2, 3]
            return [(row.error_code, row.leader_epoch, row.end_offset) for row in rows]

    assert run(main()) == [(late, -1, -1), (0, 0, 2), (ErrorCode.KAFKA_STORAGE_ERROR, -1, -1), (0, 0, 0)]


def test_the_end_of_an_epoch_is_told_without_a_wait_where_the_log_has_one_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await with_records(serving)
            monkeypatch.setattr(type(log_of(serving)), "refresh", None)
            answer = await client.call(23, 4, **ends_of(4, [0]))
            row = answer.topics[0].partitions[0]
            assert (row.error_code, row.leader_epoch, row.end_offset) == (0, 0, 6)

    run(main())
