"""DescribeCluster, DescribeLogDirs, DescribeQuorum, ElectLeaders, reassignments, ACLs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from handlers.admin_gateway import NOW, Admin
from support.gateway import RawClient, gateway, run

from kop.errors import ErrorCode
from kop.wire.messages import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeClusterRequest,
    DescribeLogDirsRequest,
    DescribeQuorumRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)

E = ErrorCode


@pytest.fixture
def admin() -> Iterator[Admin]:
    admin = Admin(node_id=5)
    yield admin
    admin.close()


@pytest.fixture
def admin_on_disk(tmp_path: Path) -> Iterator[Admin]:
    admin = Admin(tmp_path, node_id=5)
    yield admin
    admin.close()


# --- DescribeCluster


@pytest.mark.parametrize("version", range(3))
def test_cluster_is_this_broker(admin: Admin, version: int) -> None:
    answer = admin.call(DescribeClusterRequest(version=version))
    assert (answer.error_code, answer.cluster_id, answer.controller_id) == (0, admin.gw.engine.cluster_id, 5)
    [broker] = answer.brokers
    assert (broker.broker_id, broker.host, broker.port, broker.rack) == (5, "192.0.2.1", 9092, None)
    assert answer.authorized_operations is None


def test_cluster_operations_only_when_asked_for(admin: Admin) -> None:
    answer = admin.call(DescribeClusterRequest(version=2, include_cluster_authorized_operations=True))
    assert answer.authorized_operations == {5, 7, 8, 9, 10, 11, 12}


@pytest.mark.parametrize(
    ("kind", "code"),
    [(0, E.UNSUPPORTED_ENDPOINT_TYPE), (2, E.MISMATCHED_ENDPOINT_TYPE), (7, E.UNSUPPORTED_ENDPOINT_TYPE)],
)
def test_cluster_refuses_other_endpoints(admin: Admin, kind: int, code: ErrorCode) -> None:
    answer = admin.call(DescribeClusterRequest(version=2, endpoint_type=kind))
    assert (answer.error_code, answer.cluster_id, answer.controller_id, answer.brokers) == (code, "", -1, [])


# --- DescribeLogDirs


def log_dirs(admin: Admin, topics: dict[str, list[int]] | None, version: int = 5) -> Any:
    row = DescribeLogDirsRequest.DescribableLogDirTopic
    asked = None if topics is None else [row(topic=name, partitions=parts) for name, parts in topics.items()]
    answer = admin.call(DescribeLogDirsRequest(version=version, topics=asked))
    [result] = answer.results
    return result


def sizes(result: Any) -> dict[str, dict[int, int]]:
    assert all(part.offset_lag == 0 and not part.is_future_key for topic in result.topics for part in topic.partitions)
    return {
        topic.name: {part.partition_index: part.partition_size for part in topic.partitions} for topic in result.topics
    }


@pytest.mark.parametrize("version", range(1, 6))
def test_log_dirs_in_every_version(admin_on_disk: Admin, tmp_path: Path, version: int) -> None:
    result = filled_log_dirs(admin_on_disk, version)
    assert result.log_dir == str(tmp_path)
    if version >= 4:
        assert 0 < result.usable_bytes < result.total_bytes


@pytest.mark.parametrize("version", range(1, 6))
def test_log_dirs_where_there_is_no_disk(admin: Admin, version: int) -> None:
    result = filled_log_dirs(admin, version)
    assert result.log_dir == ""
    if version >= 4:
        assert (result.usable_bytes, result.total_bytes) == (-1, -1)


def filled_log_dirs(admin: Admin, version: int) -> Any:
    """The answer where a partition has records; sizes are checked."""
    topic_id = admin.create("t", 2)
    admin.append("t", 3)
    log = admin.gw.engine.log(topic_id, 0)
    assert log is not None
    assert log.size_bytes > 0
    result = log_dirs(admin, {"t": [0, 7], "nope": [0]}, version)
    assert result.error_code == 0
    assert sizes(result) == {"t": {0: log.size_bytes}}
    return result


def test_log_dirs_all_none_and_empty(admin: Admin) -> None:
    admin.create("t", 2)
    admin.create("__offsets", internal=True)
    assert sizes(log_dirs(admin, None)) == {"t": {0: 0, 1: 0}, "__consumer_offsets": {0: 0}}
    assert sizes(log_dirs(admin, {})) == {}
    assert sizes(log_dirs(admin, {"t": []})) == {}


class Cold:
    """A partition that is not attached: its size is asked for, and told when the test says so, or never."""

    attached = False

    def __init__(self, size: int) -> None:
        self.size = size
        self.asked, self.told, self.ended = (asyncio.Event() for _ in range(3))

    async def measure(self) -> int:
        self.asked.set()
        try:
            await self.told.wait()
        finally:
            self.ended.set()
        return self.size


def cold_partitions(admin: Admin, monkeypatch: pytest.MonkeyPatch, count: int) -> list[Cold]:
    """Of the topic `t`."""
    admin.create("t", count)
    logs = [Cold(index + 1) for index in range(count)]
    monkeypatch.setattr(admin.gw.topics, "log", lambda topic_id, index: logs[index])
    return logs


def test_sizes_that_are_not_told_in_time_are_left_out(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("kop.handlers.in_time.ANSWER_SECONDS", 0.1)
    logs = cold_partitions(admin, monkeypatch, 40)
    logs[0].told.set()
    assert sizes(log_dirs(admin, None)) == {"t": {0: 1}}
    assert "sizes of 39 of 40 partitions were not known" in caplog.text
    assert all(log.ended.is_set() or not log.asked.is_set() for log in logs)


def test_sizes_are_asked_for_no_longer_when_the_request_ends(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = cold_partitions(admin, monkeypatch, 3)

    async def cancelled() -> None:
        request = asyncio.ensure_future(admin.answer(DescribeLogDirsRequest(version=5, topics=None)))
        for log in logs:
            await log.asked.wait()
        request.cancel()
        await asyncio.wait({request})
        assert request.cancelled()
        assert all(log.ended.is_set() for log in logs)

    admin.run(cancelled())


# --- DescribeQuorum


def quorum(admin: Admin, *topics: tuple[str, int], version: int = 2) -> Any:
    row = DescribeQuorumRequest.TopicData
    asked = [row(topic_name=name, partitions=[row.PartitionData(partition_index=index)]) for name, index in topics]
    return admin.call(DescribeQuorumRequest(version=version, topics=asked))


@pytest.mark.parametrize("version", range(3))
def test_quorum_has_one_voter(admin: Admin, version: int) -> None:
    admin.create("t")
    answer = quorum(admin, ("__cluster_metadata", 0), version=version)
    part = answer.topics[0].partitions[0]
    assert (answer.error_code, part.error_code, part.leader_id, part.leader_epoch) == (0, 0, 5, 0)
    [voter] = part.current_voters
    assert (voter.replica_id, voter.log_end_offset, part.observers) == (5, part.high_watermark, [])
    assert part.high_watermark == admin.gw.topics.version > 0
    if version >= 1:
        assert voter.last_fetch_timestamp == NOW
    if version >= 2:
        [node] = answer.nodes
        assert [(place.host, place.port) for place in node.listeners] == [("192.0.2.1", 9092)]


@pytest.mark.parametrize("asked", [[("t", 0)], [("__cluster_metadata", 1)], [("__cluster_metadata", 0), ("t", 0)]])
def test_quorum_of_anything_else_is_unknown(admin: Admin, asked: list[tuple[str, int]]) -> None:
    answer = quorum(admin, *asked)
    codes = [part.error_code for topic in answer.topics for part in topic.partitions]
    assert codes == [E.UNKNOWN_TOPIC_OR_PARTITION] * len(asked)
    assert answer.nodes == []


# --- ElectLeaders, ListPartitionReassignments


def elect(admin: Admin, topics: dict[str, list[int]] | None, version: int = 2, kind: int = 0) -> Any:
    row = ElectLeadersRequest.TopicPartitions
    asked = None if topics is None else [row(topic=name, partitions=parts) for name, parts in topics.items()]
    return admin.call(ElectLeadersRequest(version=version, election_type=kind, topic_partitions=asked, timeout_ms=1000))


def elected(answer: Any) -> dict[tuple[str, int], int]:
    return {
        (topic.topic, part.partition_id): part.error_code
        for topic in answer.replica_election_results
        for part in topic.partition_result
    }


@pytest.mark.parametrize("version", range(3))
def test_elections_are_not_needed(admin: Admin, version: int) -> None:
    admin.create("t")
    answer = elect(admin, {"t": [0, 9], "nope": [0]}, version)
    assert elected(answer) == {
        ("t", 0): E.ELECTION_NOT_NEEDED,
        ("t", 9): E.UNKNOWN_TOPIC_OR_PARTITION,
        ("nope", 0): E.UNKNOWN_TOPIC_OR_PARTITION,
    }


def test_election_of_all_and_of_an_unknown_type(admin: Admin) -> None:
    admin.create("t")
    answer = elect(admin, None)
    assert (answer.error_code, elected(answer)) == (0, {})
    answer = elect(admin, {"t": [0]}, kind=5)
    assert (answer.error_code, elected(answer)) == (E.INVALID_REQUEST, {("t", 0): E.INVALID_REQUEST})


def test_no_partition_is_being_moved(admin: Admin) -> None:
    admin.create("t")
    row = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    for topics in (None, [row(name="t", partition_indexes=[0])]):
        answer = admin.call(ListPartitionReassignmentsRequest(version=0, topics=topics, timeout_ms=1000))
        assert (answer.error_code, answer.topics) == (0, [])


# --- ACLs


@pytest.mark.parametrize("version", range(1, 4))
def test_acls_need_an_authorizer(admin: Admin, version: int) -> None:
    described = admin.call(
        DescribeAclsRequest(
            version=version, resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
        )
    )
    assert (described.error_code, described.resources) == (E.SECURITY_DISABLED, [])
    acl = CreateAclsRequest.AclCreation(
        resource_type=2, resource_name="t", resource_pattern_type=3, principal="User:a", host="*", operation=3,
        permission_type=3,
    )  # fmt: skip
    created = admin.call(CreateAclsRequest(version=version, creations=[acl, acl]))
    assert [row.error_code for row in created.results] == [E.SECURITY_DISABLED] * 2
    some = DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=2, pattern_type_filter=1, operation=1, permission_type=1
    )
    deleted = admin.call(DeleteAclsRequest(version=version, filters=[some]))
    assert [(row.error_code, row.matching_acls) for row in deleted.filter_results] == [(E.SECURITY_DISABLED, [])]


@pytest.mark.parametrize("version", [2, 3])
def test_one_byte_too_many_is_kafka_gos_way_to_describe_acls(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            every = b"\x01\0\x01\0\0\x01\x01" + b"\0"  # types and names of any kind, the filter's tagged fields
            client.send_body(29, version, every + b"\0")
            _, answer = await client.receive(29, version)
            assert answer.error_code == E.SECURITY_DISABLED
            client.send_body(29, version, every + b"\0\0")
            assert await client.closed(), "two bytes too many are a broken frame"

    run(main())
