"""Requests with names that no topic can have, and with more names than any client sends: answered, in turns."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.bodies import encode_body
from support.gateway import RawClient, fetch_fields, gateway, run

from kop.cluster.client_topics import ClientTopics
from kop.wire.messages import REQUESTS

MANY = 100_000
HOLD_SECONDS = 0.3
"""CPU time of the loop between two turns; unparted requests of so many names take 0.5 to 2.5 seconds."""


def topics(
    key: int,
    version: int,
    row: str,
    *,
    fields: dict[str, Any],
    attribute: str = "topics",
    name: str = "name",
    values: dict[str, Any] | None = None,
    nested: tuple[str, str, dict[str, Any]] | None = None,
) -> Any:
    """Makes a request of names: a `row` with these `values` for each. `nested`: a partition's list, class, values."""
    made = getattr(REQUESTS[key], row)

    def body(names: list[str]) -> tuple[int, int, bytes]:
        rest = dict(values or {})
        if nested is not None:
            rest[nested[0]] = [getattr(made, nested[1])(version=version, **nested[2])]
        rows = [made(version=version, **{name: each}, **rest) for each in names]
        return key, version, encode_body(REQUESTS[key](version=version, **{attribute: rows}, **fields))

    return body


def plain(key: int, version: int, attribute: str, **fields: Any) -> Any:
    def body(names: list[str]) -> tuple[int, int, bytes]:
        return key, version, encode_body(REQUESTS[key](version=version, **{attribute: names}, **fields))

    return body


def fetch(names: list[str]) -> tuple[int, int, bytes]:
    fields = fetch_fields("", 0, version=12)
    rows = [fetch_fields(name, 0, version=12)["topics"][0] for name in names]
    return 1, 12, encode_body(REQUESTS[1](version=12, **{**fields, "topics": rows}))


def produce(names: list[str]) -> tuple[int, int, bytes]:
    row = REQUESTS[0].TopicProduceData
    rows = [
        row(version=9, name=name, partition_data=[row.PartitionProduceData(version=9, index=0, records=b"")])
        for name in names
    ]
    fields = {"transactional_id": None, "acks": -1, "timeout_ms": 1000, "topic_data": rows}
    return 0, 9, encode_body(REQUESTS[0](version=9, **fields))


RESOURCE = {"resource_type": 2}
ASK: dict[str, Callable[[list[str]], tuple[int, int, bytes]]] = {
    "Produce": produce,
    "Fetch": fetch,
    "Metadata": topics(
        3,
        9,
        "MetadataRequestTopic",
        fields={
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
            "include_cluster_authorized_operations": False,
        },
    ),
    "ListOffsets": topics(
        2,
        5,
        "ListOffsetsTopic",
        nested=(
            "partitions",
            "ListOffsetsPartition",
            {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1},
        ),
        fields={"replica_id": -1, "isolation_level": 0},
    ),
    "OffsetCommit": topics(
        8,
        8,
        "OffsetCommitRequestTopic",
        nested=(
            "partitions",
            "OffsetCommitRequestPartition",
            {
                "partition_index": 0,
                "committed_offset": 1,
                "committed_leader_epoch": -1,
                "committed_metadata": "",
            },
        ),
        fields={"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None},
    ),
    "OffsetFetch": topics(
        9,
        7,
        "OffsetFetchRequestTopic",
        values={"partition_indexes": [0]},
        fields={"group_id": "g", "require_stable": False},
    ),
    "CreateTopics": topics(
        19, 5, "CreatableTopic", values={"num_partitions": 1, "replication_factor": 1}, fields={"timeout_ms": 1000}
    ),
    "DeleteTopics": plain(20, 5, "topic_names", timeout_ms=1000),
    "DeleteRecords": topics(
        21,
        2,
        "DeleteRecordsTopic",
        nested=("partitions", "DeleteRecordsPartition", {"partition_index": 0, "offset": 0}),
        fields={"timeout_ms": 1000},
    ),
    "OffsetForLeaderEpoch": topics(
        23,
        3,
        "OffsetForLeaderTopic",
        name="topic",
        nested=(
            "partitions",
            "OffsetForLeaderPartition",
            {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0},
        ),
        fields={"replica_id": -1},
    ),
    "DescribeConfigs": topics(
        32,
        1,
        "DescribeConfigsResource",
        attribute="resources",
        name="resource_name",
        values={**RESOURCE, "configuration_keys": None},
        fields={"include_synonyms": False},
    ),
    "AlterConfigs": topics(
        33,
        1,
        "AlterConfigsResource",
        attribute="resources",
        name="resource_name",
        values={**RESOURCE, "configs": []},
        fields={"validate_only": False},
    ),
    "IncrementalAlterConfigs": topics(
        44,
        0,
        "AlterConfigsResource",
        attribute="resources",
        name="resource_name",
        values={**RESOURCE, "configs": []},
        fields={"validate_only": False},
    ),
    "CreatePartitions": topics(
        37,
        1,
        "CreatePartitionsTopic",
        values={"count": 3, "assignments": None},
        fields={"timeout_ms": 1000, "validate_only": False},
    ),
    "DescribeGroups": plain(15, 1, "groups"),
    "DeleteGroups": plain(42, 1, "groups_names"),
    "DescribeProducers": topics(61, 0, "TopicRequest", values={"partition_indexes": [0]}, fields={}),
    "AddPartitionsToTxn": topics(
        24,
        3,
        "AddPartitionsToTxnTopic",
        attribute="v3_and_below_topics",
        values={"partitions": [0]},
        fields={
            "v3_and_below_transactional_id": "tx",
            "v3_and_below_producer_id": 1,
            "v3_and_below_producer_epoch": 0,
        },
    ),
    "TxnOffsetCommit": topics(
        28,
        3,
        "TxnOffsetCommitRequestTopic",
        nested=(
            "partitions",
            "TxnOffsetCommitRequestPartition",
            {
                "partition_index": 0,
                "committed_offset": 1,
                "committed_leader_epoch": -1,
                "committed_metadata": "",
            },
        ),
        fields={
            "transactional_id": "tx",
            "group_id": "g",
            "producer_id": 1,
            "producer_epoch": 0,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
        },
    ),
    "DescribeTransactions": plain(65, 0, "transactional_ids"),
    "DescribeTopicPartitions": topics(75, 0, "TopicRequest", fields={"response_partition_limit": 2000, "cursor": None}),
}


@pytest.mark.parametrize("version", ["here", "elsewhere"])
def test_the_longest_names_are_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture, version: str) -> None:
    names = [letter * 32_700 for letter in "ab"]
    if version == "elsewhere":
        names = [f"a/b/{name}" for name in names]

    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            for ask in ASK.values():
                key, number, body = ask(names)
                client.send_body(key, number, body)
                await client.receive(key, number)
            key, number, body = ASK["CreateTopics"](names)
            client.send_body(key, number, body)
            _, created = await client.receive(key, number)
            assert {row.error_code for row in created.topics} == {17}
            assert all(len(row.error_message) < 2000 for row in created.topics)

    with caplog.at_level(logging.ERROR):
        run(main())
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("topics", [None, []], ids=["null", "empty"])
def test_a_large_metadata_request_that_names_no_topic_is_answered_as_a_small_one(
    tmp_path: Path, topics: list[str] | None
) -> None:
    fields = dict.fromkeys(("include_topic_authorized_operations", "include_cluster_authorized_operations"), False)
    body = encode_body(REQUESTS[3](version=9, topics=topics, allow_auto_topic_creation=True, **fields))
    large = body[:-1] + b"\x01\x64" + b"\xa0\x9c\x01" + bytes(20_000)  # one tagged field that nobody knows

    async def main() -> None:
        async with gateway(tmp_path) as serving:
            await serving.gateway.engine.topics.create("t", 1, {})
            client = await RawClient.connect(serving)
            client.send_body(3, 9, body)
            _, small = await client.receive(3, 9)
            client.send_body(3, 9, large)
            _, answer = await client.receive(3, 9)
            assert answer == small
            assert ("t" in [topic.name for topic in answer.topics]) == (topics is None)

    run(main())


def test_storage_is_not_asked_for_names_that_it_cannot_have() -> None:
    class Topics:
        namespace = "public/default"

        def get(self, name: str) -> None:
            return None

        def missing(self, name: str) -> None:
            return None

    class Engine:
        topics = Topics()

    client_topics = ClientTopics(Engine())  # type: ignore[arg-type]  # the names to find ask for no more of an engine
    assert list(client_topics.names_to_find(["a/b/" + "c" * 250])) == ["a/b/" + "c" * 250]
    assert not client_topics.names_to_find(["a/b/" + "c" * 32_000])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Metadata", "empty"),
        ("Metadata", "unknown"),
        *(
            pytest.param(name, "unknown", marks=pytest.mark.slow)
            for name in (
                "OffsetFetch",
                "AddPartitionsToTxn",
                "OffsetCommit",
                "DescribeGroups",
                "ListOffsets",
                "TxnOffsetCommit",
                "DescribeTransactions",
            )
        ),
    ],
)
def test_a_hundred_thousand_names_leave_others_their_turn(tmp_path: Path, name: str, kind: str) -> None:
    key, version, body = ASK[name]([""] * MANY if kind == "empty" else [f"no-{index}" for index in range(MANY)])

    async def main() -> float:
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            before = time.thread_time()
            while True:
                await asyncio.sleep(0)
                now = time.thread_time()
                longest, before = max(longest, now - before), now

        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            watching = asyncio.create_task(watch())
            client.send_body(key, version, body)
            answer = await client.receive_frame()
            watching.cancel()
            assert kind == "empty" or len(answer) > MANY  # one name is answered once
        return longest

    gc.collect()
    gc.freeze()  # what the tests before left is none of the gateway's: a collection that walks it takes 0.2 s
    try:
        # Work beside the test adds to a turn's CPU time, too, by the caches it takes: the least of some tells.
        assert any(run(main()) < HOLD_SECONDS for _ in range(8))
    finally:
        gc.unfreeze()
