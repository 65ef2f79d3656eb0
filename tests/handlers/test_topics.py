"""CreateTopics, DeleteTopics, CreatePartitions, DeleteRecords: answers compared with a real Kafka 4.3.1's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from handlers.admin_gateway import Admin, creatable, create_request

from kop.errors import ErrorCode
from kop.wire.messages import CreatePartitionsRequest, DeleteRecordsRequest, DeleteTopicsRequest

SOME_ID = UUID("05b16a01-46c6-56dd-bd6e-c6dfb4a1427a")
E = ErrorCode


@pytest.fixture
def admin() -> Iterator[Admin]:
    admin = Admin()
    yield admin
    admin.close()


def make(admin: Admin, *topics: Any, **options: Any) -> list[Any]:
    rows: list[Any] = admin.call(create_request(*topics, **options)).topics
    return rows


# --- CreateTopics


@pytest.mark.parametrize("version", range(2, 8))
def test_create_in_every_version(admin: Admin, version: int) -> None:
    [row] = make(admin, creatable("t", 3, 1, configs={"retention.ms": "1000"}), version=version)
    info = admin.gw.engine.topics.get("t")
    assert info is not None
    assert (info.partitions, dict(info.configs)) == (3, {"retention.ms": "1000"})
    assert (row.error_code, row.error_message) == (0, None)
    if version >= 5:
        assert (row.num_partitions, row.replication_factor) == (3, 1)
        configs = {config.name: config for config in row.configs}
        assert len(configs) == 34
        assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1000", 1)
        assert (configs["cleanup.policy"].value, configs["cleanup.policy"].config_source) == ("delete", 5)
    if version >= 7:
        assert row.topic_id == info.topic_id


def test_create_takes_the_defaults() -> None:
    admin = Admin(num_partitions=6)
    [row] = make(admin, creatable("t", -1, -1))
    assert (row.error_code, row.num_partitions, row.replication_factor) == (0, 6, 1)
    admin.close()


def test_create_accepts_any_replication_factor_and_reports_one(admin: Admin) -> None:
    rows = make(admin, *(creatable(f"t{replicas}", 1, replicas) for replicas in (-1, 1, 3, 32767)))
    assert [(row.error_code, row.replication_factor) for row in rows] == [(0, 1)] * 4


def test_a_name_like_that_of_a_partition_of_pulsar_is_any_name_on_the_embedded_engine(admin: Admin) -> None:
    assert make(admin, creatable("x-partition-1"))[0].error_code == 0


REFUSED_TOPICS: dict[str, tuple[Any, ErrorCode, str]] = {
    "no partitions": (creatable("t", 0), E.INVALID_PARTITIONS, "non-positive"),
    "fewer than -1 partitions": (creatable("t", -2), E.INVALID_PARTITIONS, "non-positive"),
    "no replicas": (creatable("t", 1, 0), E.INVALID_REPLICATION_FACTOR, "larger than 0"),
    "fewer than -1 replicas": (creatable("t", 1, -2), E.INVALID_REPLICATION_FACTOR, "larger than 0"),
    "too many partitions": (creatable("t", 10_001), E.POLICY_VIOLATION, "Excessively large number of partitions"),
    "empty name": (creatable(""), E.INVALID_TOPIC_EXCEPTION, ""),
    "dot": (creatable("."), E.INVALID_TOPIC_EXCEPTION, ""),
    "slash": (creatable("a/b"), E.INVALID_TOPIC_EXCEPTION, ""),
    "250 characters": (creatable("x" * 250), E.INVALID_TOPIC_EXCEPTION, ""),
    "exists": (creatable("there.is"), E.TOPIC_ALREADY_EXISTS, "Topic 'there.is' already exists."),
    "collides": (creatable("there_is"), E.INVALID_TOPIC_EXCEPTION, "collides with existing topic: there.is"),
    "reserved __offsets": (creatable("__offsets"), E.INVALID_TOPIC_EXCEPTION, "prohibited"),
    "reserved __consumer_offsets": (creatable("__consumer_offsets"), E.INVALID_TOPIC_EXCEPTION, "prohibited"),
    "reserved __transaction_state": (creatable("__transaction_state"), E.INVALID_TOPIC_EXCEPTION, "prohibited"),
    "__cluster_metadata": (creatable("__cluster_metadata"), E.INVALID_REQUEST, "prohibited"),
    "unknown config": (
        creatable("t", configs={"retention.mz": "1"}),
        E.INVALID_CONFIG,
        "Unknown topic config name: retention.mz; did you mean retention.ms?",
    ),
    "bad config": (
        creatable("t", configs={"retention.ms": "abc"}),
        E.INVALID_CONFIG,
        "Invalid value abc for configuration retention.ms: Not a number of type LONG",
    ),
    "null config": (creatable("t", configs={"retention.ms": None}), E.INVALID_CONFIG, "Null value not supported"),
    "assignment with partitions": (creatable("t", 1, -1, {0: [1]}), E.INVALID_REQUEST, "numPartitions was not set"),
    "assignment with replicas": (creatable("t", -1, 1, {0: [1]}), E.INVALID_REQUEST, "replication factor was not"),
    "assignment with a gap": (creatable("t", -1, -1, {0: [1], 2: [1]}), E.INVALID_REPLICA_ASSIGNMENT, "consecutive"),
    "assignment below 0": (creatable("t", -1, -1, {-1: [1]}), E.INVALID_REPLICA_ASSIGNMENT, "consecutive"),
    "assignment twice": (creatable("t", -1, -1, [(0, [1]), (0, [1])]), E.INVALID_REPLICA_ASSIGNMENT, "multiple"),
    "assignment to a stranger": (creatable("t", -1, -1, {0: [9]}), E.INVALID_REPLICA_ASSIGNMENT, "includes broker 9"),
    "assignment to nobody": (creatable("t", -1, -1, {0: []}), E.INVALID_REPLICA_ASSIGNMENT, "an empty replica list"),
    "assignment to us twice": (creatable("t", -1, -1, {0: [1, 1]}), E.INVALID_REPLICA_ASSIGNMENT, "more than once"),
}


@pytest.mark.parametrize("case", REFUSED_TOPICS)
@pytest.mark.parametrize("validate_only", [False, True])
def test_create_refuses(admin: Admin, case: str, validate_only: bool) -> None:
    admin.create("there.is")
    topic, code, message = REFUSED_TOPICS[case]
    [row] = make(admin, topic, validate_only=validate_only)
    assert (row.error_code, row.num_partitions, row.replication_factor, row.configs) == (code, -1, -1, [])
    assert message in row.error_message
    assert [topic.name for topic in admin.gw.engine.topics.all()] == ["there.is"]


def test_create_takes_a_policy_that_is_named_twice_for_one(admin: Admin) -> None:
    assert make(admin, creatable("t", configs={"cleanup.policy": "delete,delete"}))[0].error_code == 0


def test_create_with_assignments(admin: Admin) -> None:
    [row] = make(admin, creatable("t", -1, -1, {1: [1], 0: [1]}))
    assert (row.error_code, row.num_partitions, row.replication_factor) == (0, 2, 1)


def test_validate_only_makes_nothing_and_gives_no_id(admin: Admin) -> None:
    [row] = make(admin, creatable("t", 3), validate_only=True)
    assert (row.error_code, row.num_partitions, row.topic_id, len(row.configs)) == (0, 3, None, 34)
    assert admin.gw.engine.topics.all() == []


def test_a_name_twice_in_a_request_is_answered_once_and_the_others_are_made(admin: Admin) -> None:
    rows = make(admin, creatable("twice"), creatable("once"), creatable("twice"))
    assert [(row.name, row.error_code) for row in rows] == [("twice", E.INVALID_REQUEST), ("once", 0)]
    assert [topic.name for topic in admin.gw.engine.topics.all()] == ["once"]


def test_names_of_the_same_request_collide(admin: Admin) -> None:
    rows = make(admin, creatable("a.b"), creatable("a_b"))
    assert [row.error_code for row in rows] == [0, E.INVALID_TOPIC_EXCEPTION]


def test_partitions_of_a_request_are_limited_together(admin: Admin) -> None:
    rows = make(admin, creatable("a", 6000), creatable("b", 6000), creatable("c", 1), validate_only=True)
    assert [row.error_code for row in rows] == [0, E.POLICY_VIOLATION, 0]


def test_partitions_in_all_are_limited() -> None:
    admin = Admin(kop_max_partitions=3)
    rows = make(admin, creatable("a", 2), creatable("b", 2), creatable("c", 1))
    assert [row.error_code for row in rows] == [0, E.POLICY_VIOLATION, 0]
    assert "kop.max.partitions" in rows[1].error_message
    [row] = grow(admin, ("a", 3, None))
    assert row.error_code == E.POLICY_VIOLATION
    admin.close()


def test_what_two_requests_make_at_once_is_limited_together() -> None:
    admin = Admin(kop_max_partitions=10)

    async def both() -> list[int]:
        answers = await asyncio.gather(
            admin.answer(create_request(creatable("a.b", 6))), admin.answer(create_request(creatable("c", 6)))
        )
        collision = await asyncio.gather(
            admin.answer(create_request(creatable("x.y"))), admin.answer(create_request(creatable("x_y")))
        )
        return [answer.topics[0].error_code for answer in (*answers, *collision)]

    assert admin.run(both()) == [0, E.POLICY_VIOLATION, 0, E.INVALID_TOPIC_EXCEPTION]
    assert make(admin, creatable("d", 3))[0].error_code == 0, "what was refused takes no room"
    assert make(admin, creatable("e", 1))[0].error_code == E.POLICY_VIOLATION
    admin.close()


def test_consumer_offsets_that_is_there_exists_for_clients(admin: Admin) -> None:
    admin.create("__offsets", internal=True)
    [row] = make(admin, creatable("__consumer_offsets"))
    assert row.error_code == E.TOPIC_ALREADY_EXISTS


# --- DeleteTopics


def delete(admin: Admin, *names_or_ids: Any, version: int = 6) -> list[Any]:
    state = DeleteTopicsRequest.DeleteTopicState
    if version < 6:
        request = DeleteTopicsRequest(version=version, topic_names=list(names_or_ids), timeout_ms=1000)
    else:
        states = [
            state(
                name=name_or_id
                if isinstance(name_or_id, str)
                else name_or_id[0]
                if isinstance(name_or_id, tuple)
                else None,
                topic_id=name_or_id
                if isinstance(name_or_id, UUID)
                else name_or_id[1]
                if isinstance(name_or_id, tuple)
                else None,
            )
            for name_or_id in names_or_ids
        ]
        request = DeleteTopicsRequest(version=version, topics=states, timeout_ms=1000)
    rows: list[Any] = admin.call(request).responses
    return rows


@pytest.mark.parametrize("version", range(1, 7))
def test_delete_by_name_in_every_version(admin: Admin, version: int) -> None:
    topic_id = admin.create("t")
    rows = delete(admin, "t", "nope", version=version)
    assert [(row.name, row.error_code) for row in rows] == [("t", 0), ("nope", E.UNKNOWN_TOPIC_OR_PARTITION)]
    assert admin.gw.engine.topics.get("t") is None
    if version >= 6:
        assert [row.topic_id for row in rows] == [topic_id, None]


def test_delete_by_id_answers_the_name(admin: Admin) -> None:
    topic_id = admin.create("t")
    [row] = delete(admin, topic_id)
    assert (row.name, row.topic_id, row.error_code) == ("t", topic_id, 0)


def test_a_topic_made_again_has_another_id(admin: Admin) -> None:
    [first] = make(admin, creatable("t"))
    assert delete(admin, "t")[0].error_code == 0
    [second] = make(admin, creatable("t"))
    assert second.topic_id not in {first.topic_id, None}
    assert delete(admin, first.topic_id)[0].error_code == E.UNKNOWN_TOPIC_ID
    assert admin.gw.engine.topics.get("t") is not None


def test_delete_refuses_what_is_named_badly(admin: Admin) -> None:
    topic_id = admin.create("t")
    cases: dict[str, tuple[tuple[Any, ...], list[tuple[str | None, UUID | None, ErrorCode]]]] = {
        "unknown id": ((SOME_ID,), [(None, SOME_ID, E.UNKNOWN_TOPIC_ID)]),
        "both": ((("t", SOME_ID),), [("t", SOME_ID, E.INVALID_REQUEST)]),
        "neither": (((None, None),), [(None, None, E.INVALID_REQUEST)]),
        "name twice": (("t", "t"), [("t", None, E.INVALID_REQUEST)]),
        "id twice": ((topic_id, topic_id), [(None, topic_id, E.INVALID_REQUEST)]),
        "name and its id": ((topic_id, "t"), [("t", topic_id, E.INVALID_REQUEST)]),
        "id twice and its name": (
            (topic_id, topic_id, "t"),
            [(None, topic_id, E.INVALID_REQUEST), ("t", topic_id, E.INVALID_REQUEST)],
        ),
        "nothing": ((), []),
    }
    for case, (asked, expected) in cases.items():
        rows = delete(admin, *asked)
        assert [(row.name, row.topic_id, row.error_code) for row in rows] == expected, case
    assert admin.gw.engine.topics.get("t") is not None


@pytest.mark.parametrize("version", [1, 5, 6])
@pytest.mark.parametrize("name", ["__consumer_offsets", "__offsets", "__transaction_state"])
def test_reserved_topics_are_not_deleted(admin: Admin, version: int, name: str) -> None:
    topic_id = admin.create("__offsets", internal=True)
    assert delete(admin, name, version=version)[0].error_code == E.INVALID_TOPIC_EXCEPTION
    assert delete(admin, topic_id)[0].error_code == E.INVALID_TOPIC_EXCEPTION
    assert admin.gw.engine.topics.get("__offsets") is not None


@pytest.mark.parametrize(
    ("version", "code"), [(1, E.INVALID_REQUEST), (2, E.INVALID_REQUEST), (3, E.TOPIC_DELETION_DISABLED)]
)
def test_deletion_can_be_disabled(version: int, code: ErrorCode) -> None:
    admin = Admin(delete_topic_enable="false")
    admin.create("t")
    assert [row.error_code for row in delete(admin, "t", "nope", version=version)] == [code, code]
    assert admin.gw.engine.topics.get("t") is not None
    admin.close()


# --- CreatePartitions


def grow(admin: Admin, *asked: tuple[str, int, list[list[int]] | None], version: int = 3, **options: Any) -> list[Any]:
    topic = CreatePartitionsRequest.CreatePartitionsTopic
    assignment = topic.CreatePartitionsAssignment
    topics = [
        topic(
            name=name,
            count=count,
            assignments=None if brokers is None else [assignment(broker_ids=ids) for ids in brokers],
        )
        for name, count, brokers in asked
    ]
    options = {"timeout_ms": 1000, "validate_only": False} | options
    rows: list[Any] = admin.call(CreatePartitionsRequest(version=version, topics=topics, **options)).results
    return rows


@pytest.mark.parametrize("version", range(4))
def test_grow_in_every_version(admin: Admin, version: int) -> None:
    topic_id = admin.create("t", 2)
    [row] = grow(admin, ("t", 5, [[1], [1], [1]]), version=version)
    assert (row.error_code, row.error_message) == (0, None)
    assert admin.gw.engine.log(topic_id, 4) is not None


REFUSED_GROWTH: dict[str, tuple[int, list[list[int]] | None, ErrorCode, str]] = {
    "the same": (6, None, E.INVALID_PARTITIONS, "Topic already has 6 partition(s)."),
    "fewer": (5, None, E.INVALID_PARTITIONS, "The topic t currently has 6 partition(s); 5 would not be an increase."),
    "negative": (-1, None, E.INVALID_PARTITIONS, "-1 would not be an increase."),
    "too many": (100_000, None, E.POLICY_VIOLATION, "Excessively large number"),
    "assignments missing": (8, [[1]], E.INVALID_REPLICA_ASSIGNMENT, "but only 1 assignment(s) were specified."),
    "assignments left over": (7, [[1], [1]], E.INVALID_REPLICA_ASSIGNMENT, "only 2 assignment(s)"),
    "a stranger": (7, [[9]], E.INVALID_REPLICA_ASSIGNMENT, "includes broker 9, but no such broker"),
    "us twice": (7, [[1, 1]], E.INVALID_REPLICA_ASSIGNMENT, "more than once"),
    "nobody": (7, [[]], E.INVALID_REPLICA_ASSIGNMENT, "an empty replica list"),
}


@pytest.mark.parametrize("case", REFUSED_GROWTH)
def test_grow_refuses(admin: Admin, case: str) -> None:
    admin.create("t", 6)
    count, brokers, code, message = REFUSED_GROWTH[case]
    [row] = grow(admin, ("t", count, brokers))
    assert row.error_code == code
    assert message in row.error_message
    assert [topic.partitions for topic in admin.gw.engine.topics.all()] == [6]


def test_grow_stands_for_each_topic(admin: Admin) -> None:
    admin.create("t")
    admin.create("u")
    admin.create("__offsets", 2, internal=True)
    rows = grow(
        admin, ("t", 2, None), ("nope", 2, None), ("u", 3, None), ("u", 4, None), ("__consumer_offsets", 9, None)
    )
    assert {row.name: row.error_code for row in rows} == {
        "t": 0,
        "nope": E.UNKNOWN_TOPIC_OR_PARTITION,
        "u": E.INVALID_REQUEST,
        "__consumer_offsets": E.INVALID_TOPIC_EXCEPTION,
    }
    assert [topic.partitions for topic in admin.gw.engine.topics.all()] == [2, 2, 1]


def test_grow_validate_only(admin: Admin) -> None:
    admin.create("t")
    assert grow(admin, ("t", 2, None), validate_only=True)[0].error_code == 0
    assert [topic.partitions for topic in admin.gw.engine.topics.all()] == [1]


# --- DeleteRecords


def truncate(admin: Admin, name: str, offsets: dict[int, int], version: int = 2) -> dict[int, tuple[int, int]]:
    topic = DeleteRecordsRequest.DeleteRecordsTopic
    partitions = [topic.DeleteRecordsPartition(partition_index=i, offset=offset) for i, offset in offsets.items()]
    topics = [topic(name=name, partitions=partitions)]
    [row] = admin.call(DeleteRecordsRequest(version=version, topics=topics, timeout_ms=1000)).topics
    assert row.name == name
    return {part.partition_index: (part.error_code, part.low_watermark) for part in row.partitions}


@pytest.mark.parametrize("version", range(3))
def test_delete_records_in_every_version(admin: Admin, version: int) -> None:
    topic_id = admin.create("t", 3)
    admin.append("t", 5, 0)
    admin.append("t", 5, 1)
    answer = truncate(admin, "t", {0: 2, 1: -1, 2: 0, 3: 0}, version)
    assert answer == {0: (0, 2), 1: (0, 5), 2: (0, 0), 3: (E.UNKNOWN_TOPIC_OR_PARTITION, -1)}
    log = admin.gw.engine.log(topic_id, 0)
    assert log is not None
    assert (log.log_start_offset, log.high_watermark) == (2, 5)


def test_delete_records_bounds(admin: Admin) -> None:
    admin.create("t")
    admin.append("t", 5)
    assert truncate(admin, "t", {0: 6}) == {0: (E.OFFSET_OUT_OF_RANGE, -1)}
    assert truncate(admin, "t", {0: -2}) == {0: (E.OFFSET_OUT_OF_RANGE, -1)}
    assert truncate(admin, "t", {0: 3}) == {0: (0, 3)}
    assert truncate(admin, "t", {0: 1}) == {0: (0, 3)}, "below the log start nothing changes"
    assert truncate(admin, "t", {-1: 0}) == {-1: (E.UNKNOWN_TOPIC_OR_PARTITION, -1)}
    assert truncate(admin, "nope", {0: 0}) == {0: (E.UNKNOWN_TOPIC_OR_PARTITION, -1)}


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("compact", (E.POLICY_VIOLATION, -1)), ("compact,delete", (0, 0)), ("", (0, 0)), ("delete", (0, 0))],
)
def test_delete_records_goes_by_the_cleanup_policy(admin: Admin, policy: str, expected: tuple[int, int]) -> None:
    admin.create("t", cleanup_policy=policy)
    assert truncate(admin, "t", {0: 0}) == {0: expected}


def test_delete_records_of_internal_topics_is_refused(admin: Admin) -> None:
    admin.create("__offsets", internal=True)
    assert truncate(admin, "__consumer_offsets", {0: -1}) == {0: (E.INVALID_TOPIC_EXCEPTION, -1)}
