"""Metadata and DescribeTopicPartitions."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from support.gateway import RawClient, gateway, run, topic_of
from support.waiting import SECONDS, until

from kop.errors import ErrorCode, PeerError
from kop.handlers import auto_creation
from kop.security.quotas import Entity, QuotaKind
from kop.wire.messages import DescribeTopicPartitionsRequest, MetadataRequest

NOT_ASKED = None
"""kafka-python's decoder gives None for -2147483648."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics are made before the answer, however slow the machine is."""
    monkeypatch.setattr(auto_creation, "WAIT_SECONDS", SECONDS)


def asked(*names: str | None, version: int, topic_id: Any = None) -> list[Any]:
    known = {"topic_id": topic_id} if version >= 10 else {}
    return [MetadataRequest.MetadataRequestTopic(version=version, name=name, **known) for name in names]


async def with_topics(serving: Any) -> RawClient:
    for name, partitions in (("one", 1), ("two", 3)):
        await serving.gateway.engine.topics.create(name, partitions, {})
    return await RawClient.connect(serving)


@pytest.mark.parametrize("version", range(14))
def test_all_topics_are_an_empty_list_in_version_0_and_null_from_1_on(tmp_path: Path, version: int) -> None:
    async def main() -> tuple[Any, Any]:
        async with gateway(tmp_path) as serving:
            client = await with_topics(serving)
            everything = await client.call(3, version, topics=[] if version == 0 else None)
            return everything, await client.call(3, version, topics=[])

    everything, empty = run(main())
    assert [topic.name for topic in everything.topics] == ["__consumer_offsets", "one", "two"]
    assert [len(topic.partitions) for topic in everything.topics] == [4, 1, 3]
    assert len(empty.topics) == (3 if version == 0 else 0)
    broker = everything.brokers[0]
    assert (broker.node_id, broker.host) == (1, "127.0.0.1")
    if version >= 1:
        assert everything.controller_id == 1
        assert [topic.is_internal for topic in everything.topics] == [True, False, False]
    if version >= 2:
        assert len(everything.cluster_id) == 22
    if version >= 10:
        assert all(topic.topic_id is not None for topic in everything.topics)
    for part in everything.topics[2].partitions:
        assert (part.error_code, part.leader_id, part.replica_nodes, part.isr_nodes) == (0, 1, [1], [1])
        if version >= 7:
            assert part.leader_epoch == 0
    if version >= 8:
        assert everything.topics[1].authorized_operations is NOT_ASKED
    if 8 <= version <= 10:
        assert everything.authorized_operations is NOT_ASKED


@pytest.mark.parametrize("version", [12, 13])
def test_ids_are_accepted_and_an_unknown_one_is_unknown_topic_id(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await with_topics(serving)
            topic_id = topic_of(serving, "two").topic_id
            answer = await client.call(3, version, topics=asked(None, version=version, topic_id=topic_id))
            assert [(t.error_code, t.name, t.topic_id) for t in answer.topics] == [(0, "two", topic_id)]
            answer = await client.call(3, version, topics=asked("", version=version, topic_id=topic_id))
            assert [(t.error_code, t.name) for t in answer.topics] == [(0, "two")], "Java sends an empty name beside"
            unknown = uuid4()
            missing = await client.call(3, version, topics=asked(None, version=version, topic_id=unknown))
            assert [(t.error_code, t.name, t.topic_id) for t in missing.topics] == [
                (ErrorCode.UNKNOWN_TOPIC_ID, None, unknown)
            ]

    run(main())


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("others", [0, 1000])
def test_ids_in_versions_that_only_answer_them_make_the_whole_request_invalid(
    tmp_path: Path, version: int, others: int
) -> None:
    async def main() -> Any:
        async with gateway(tmp_path) as serving:
            client = await with_topics(serving)
            topics = asked("one", *[f"missing-{number:010}" for number in range(others)], version=version)
            topics += asked(None, version=version, topic_id=topic_of(serving, "two").topic_id)
            answer = await client.call(3, version, topics=topics, allow_auto_topic_creation=True)
            assert {topic.name for topic in serving.gateway.topics.all()} == {"__consumer_offsets", "one", "two"}
            return answer

    answer = run(main())
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.INVALID_REQUEST] * (others + 2)
    assert (answer.topics[0].name, answer.topics[-1].name) == ("one", "")
    assert (answer.brokers, answer.cluster_id, answer.controller_id) == ([], None, -1)


@pytest.mark.parametrize("version", [0, 9, 13])
def test_a_topic_that_is_named_twice_is_answered_once(tmp_path: Path, version: int) -> None:
    async def main() -> Any:
        async with gateway(tmp_path) as serving:
            client = await with_topics(serving)
            return await client.call(3, version, topics=asked("two", "missing", "two", "missing", version=version))

    assert [topic.name for topic in run(main()).topics] == ["two", "missing"]


def test_a_topic_that_is_named_twice_is_answered_once_by_a_large_answer_too(tmp_path: Path) -> None:
    async def main() -> Any:
        async with gateway(tmp_path) as serving:
            client = await with_topics(serving)
            names = [f"missing-{number}-of-a-long-list-of-names" for number in range(1000)]
            assert sum(map(len, names)) > 16 * 1024
            request = {"topics": asked(*names, *names, version=12), "allow_auto_topic_creation": False}
            return names, await client.call(3, 12, **request)

    names, answer = run(main())
    assert [topic.name for topic in answer.topics] == names


def test_names_are_not_looked_at_where_a_topic_id_is_asked_for(tmp_path: Path) -> None:
    async def main() -> Any:
        async with gateway(tmp_path) as serving:
            client = await with_topics(serving)
            topics = asked(None, version=13, topic_id=topic_of(serving, "two").topic_id)
            topics += topics + asked("two", "one", "missing", version=13)
            answer = await client.call(3, 13, topics=topics, allow_auto_topic_creation=True)
            assert serving.gateway.topics.get("missing") is None
            return answer

    assert [topic.name for topic in run(main()).topics] == ["two"]


def test_a_deleted_and_recreated_topic_is_a_new_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await with_topics(serving)
            topics = serving.gateway.engine.topics
            old = topic_of(serving, "one").topic_id
            await topics.delete(old)
            new = (await topics.create("one", 2, {})).topic_id
            answer = await client.call(3, 13, topics=asked("one", version=13))
            assert (answer.topics[0].topic_id, len(answer.topics[0].partitions)) == (new, 2)
            assert new != old
            answer = await client.call(3, 13, topics=asked(None, version=13, topic_id=old))
            assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID

    run(main())


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("version", "allowed", "setting", "created"),
    [
        (1, None, "true", True),
        (4, True, "true", True),
        (4, False, "true", False),
        (13, True, "true", True),
        (13, True, "false", False),
    ],
)
def test_auto_creation_asks_the_setting_and_from_version_4_the_request(
    tmp_path: Path, version: int, allowed: bool | None, setting: str, created: bool
) -> None:
    async def main() -> Any:
        async with gateway(tmp_path, auto_create_topics_enable=setting, num_partitions="3") as serving:
            client = await RawClient.connect(serving)
            wish = {} if allowed is None else {"allow_auto_topic_creation": allowed}
            return await client.call(3, version, topics=asked("new", version=version), **wish)

    topic = run(main()).topics[0]
    if created:
        assert (topic.error_code, len(topic.partitions)) == (0, 3)
    else:
        assert (topic.error_code, topic.partitions) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])


@pytest.mark.usefixtures("patient")
def test_auto_creation_makes_nothing_that_create_topics_would_refuse(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ["a.b", "__cluster_metadata", *[f"m{i}" for i in range(300)]]

    async def main() -> list[str]:
        async with gateway(tmp_path, kop_max_partitions="20", num_partitions="4") as serving:
            topics = serving.gateway.engine.topics
            await topics.create("a_b", 4, {})
            client = await RawClient.connect(serving)
            answer = await client.call(3, 9, topics=asked(*names, version=9), allow_auto_topic_creation=True)
            assert [topic.name for topic in answer.topics] == names
            assert [topic.error_code for topic in answer.topics[:2]] == [
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                ErrorCode.INVALID_REQUEST,
            ]
            codes = Counter(topic.error_code for topic in answer.topics[2:])
            assert codes.keys() == {0, ErrorCode.POLICY_VIOLATION}
            assert 16 < sum(topic.partitions for topic in serving.gateway.topics.all()) <= 20
            again = await client.call(3, 9, topics=asked("m299", version=9), allow_auto_topic_creation=True)
            assert again.topics[0].error_code == ErrorCode.POLICY_VIOLATION
            first = topics.get("m0")
            assert first is not None
            await topics.delete(first.topic_id)
            again = await client.call(3, 9, topics=asked("m299", version=9), allow_auto_topic_creation=True)
            assert again.topics[0].error_code == 0, "what was refused takes no room"
            return [record.message for record in caplog.records if "is not made" in record.message]

    assert len(run(main())) <= 3, "one line for each kind of refusal"


class SlowCreations:
    """Takes the place of an engine's `create`: that of topics named `slow...` waits until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, topics: Any) -> None:
        self.asked: list[str] = []
        self.waiting = 0
        self.go_on = asyncio.Event()
        self.error: Exception | None = None
        create = topics.create

        async def slow(name: str, partitions: int, configs: Any) -> Any:
            self.asked.append(name)
            if name.startswith("slow"):
                self.waiting += 1
                try:
                    await self.go_on.wait()
                finally:
                    self.waiting -= 1
                if self.error is not None:
                    raise self.error
            return await create(name, partitions, configs)

        monkeypatch.setattr(topics, "create", slow)


async def codes(client: RawClient, *names: str) -> list[int]:
    answer = await client.call(3, 12, topics=asked(*names, version=12), allow_auto_topic_creation=True)
    assert [topic.name for topic in answer.topics] == list(names)
    return [topic.error_code for topic in answer.topics]


def test_a_topic_that_is_slow_to_make_keeps_no_other_one_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_creation, "WAIT_SECONDS", 0.1)
    late = ErrorCode.LEADER_NOT_AVAILABLE

    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await with_topics(serving)
            slow = SlowCreations(monkeypatch, serving.gateway.engine.topics)
            assert await codes(client, "one", "slow") == [0, late]
            assert await codes(await RawClient.connect(serving), "slow", "two") == [late, 0]

            async def others_are_made() -> bool:
                return await codes(client, "slow", "quick", "slow2", "quick2") == [late, 0, late, 0]

            await until(others_are_made)
            slow.go_on.set()

            async def all_are_made() -> bool:
                return await codes(client, "slow", "slow2") == [0, 0]

            await until(all_are_made)
            assert sorted(slow.asked) == ["quick", "quick2", "slow", "slow2"], "a second request joins the creation"

    run(main())


async def held_for(client: RawClient, name: str) -> tuple[int, int]:
    """The code of the answer about a topic, and the ms for which it says that the client is held."""
    answer = await client.call(3, 12, topics=asked(name, version=12), allow_auto_topic_creation=True)
    return answer.topics[0].error_code, answer.throttle_time_ms


@pytest.mark.parametrize("late", [False, True])
def test_a_creation_counts_for_the_request_that_begins_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    monkeypatch.setattr(auto_creation, "WAIT_SECONDS", 0.1 if late else SECONDS)

    async def main() -> None:
        async with gateway(tmp_path, num_partitions="30") as serving:
            serving.gateway.security.quotas.put(Entity("ANONYMOUS"), QuotaKind.MUTATIONS, 1.0)
            slow = SlowCreations(monkeypatch, serving.gateway.engine.topics)
            first, second = [await RawClient.connect(serving) for _ in range(2)]
            begun = asyncio.create_task(held_for(first, "slow"))
            await until(lambda: slow.waiting == 1)
            joined = asyncio.create_task(held_for(second, "slow"))
            if late:
                await asyncio.wait([begun, joined])
            else:
                await (await RawClient.connect(serving)).call(18, 0)  # the request that joins has come before
            slow.go_on.set()
            code = ErrorCode.LEADER_NOT_AVAILABLE if late else 0
            assert await joined == (code, 0)
            assert await begun == (code, pytest.approx(20_000, abs=2000))
            assert slow.asked == ["slow"]

    run(main())


def test_a_creation_that_fails_when_nobody_waits_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(auto_creation, "WAIT_SECONDS", 0.1)

    async def main() -> None:
        async with gateway(tmp_path, kop_max_partitions="9", num_partitions="5") as serving:
            client = await RawClient.connect(serving)
            slow = SlowCreations(monkeypatch, serving.gateway.engine.topics)
            assert await codes(client, "slow") == [ErrorCode.LEADER_NOT_AVAILABLE]
            assert await codes(client, "other") == [ErrorCode.POLICY_VIOLATION], "what is being made counts"
            slow.error = PeerError("Pulsar says no", ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            slow.go_on.set()
            await until(lambda: "topic slow, which a client asked for, is not made: Pulsar says no" in caplog.text)

            async def is_made() -> bool:
                return await codes(client, "slow") == [0]

            slow.error = None
            await until(is_made)
            assert slow.asked == ["slow", "slow"]

    run(main())


@pytest.mark.usefixtures("patient")
def test_a_creation_that_fails_by_a_fault_of_the_program_fails_no_other_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await with_topics(serving)
            slow = SlowCreations(monkeypatch, serving.gateway.engine.topics)
            slow.error = RuntimeError("a fault")
            slow.go_on.set()
            assert await codes(client, "one", "slow") == [0, ErrorCode.UNKNOWN_SERVER_ERROR]
            assert "RuntimeError: a fault" in caplog.text

    run(main())


def test_a_creation_under_way_does_not_keep_the_gateway_from_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_creation, "WAIT_SECONDS", 0.1)

    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            slow = SlowCreations(monkeypatch, serving.gateway.engine.topics)
            assert await codes(client, "slow") == [ErrorCode.LEADER_NOT_AVAILABLE]
            assert slow.waiting == 1
        assert slow.waiting == 0

    run(main())


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "x" * 250, "naïve"])
def test_an_illegal_name_is_invalid_topic_and_not_made(tmp_path: Path, name: str) -> None:
    async def main() -> Any:
        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            answer = await client.call(3, 9, topics=asked(name, version=9), allow_auto_topic_creation=True)
            assert serving.gateway.topics.get(name) is None
            return answer

    assert run(main()).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_the_name_in_storage_of_the_offsets_topic_is_not_for_clients(tmp_path: Path) -> None:
    async def main() -> Any:
        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            return await client.call(3, 9, topics=asked("__offsets", version=9), allow_auto_topic_creation=True)

    assert run(main()).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_authorized_operations_are_answered_when_asked_for(tmp_path: Path) -> None:
    async def main() -> Any:
        async with gateway(tmp_path) as serving:
            client = await with_topics(serving)
            return await client.call(
                3,
                10,
                topics=asked("one", version=10),
                include_topic_authorized_operations=True,
                include_cluster_authorized_operations=True,
            )

    answer = run(main())
    assert answer.topics[0].authorized_operations == {3, 4, 5, 6, 7, 8, 10, 11}
    assert answer.authorized_operations == {5, 7, 8, 9, 10, 11, 12}


@pytest.mark.parametrize("name", ["missing", "bad name"])
def test_authorized_operations_are_answered_of_a_name_that_is_no_topic(tmp_path: Path, name: str) -> None:
    async def main() -> Any:
        async with gateway(tmp_path) as serving:
            client = await with_topics(serving)
            yes = {"include_topic_authorized_operations": True}
            answer = await client.call(3, 13, topics=asked(name, version=13), allow_auto_topic_creation=False, **yes)
            named = [DescribeTopicPartitionsRequest.TopicRequest(version=0, name=name)]
            description = await client.call(75, 0, topics=named, response_partition_limit=10, cursor=None)
            return answer.topics[0], description.topics[0]

    of_metadata, described = run(main())
    assert of_metadata.error_code == described.error_code != 0
    assert of_metadata.authorized_operations == {3, 4, 5, 6, 7, 8, 10, 11}
    assert described.topic_authorized_operations == sum(1 << bit for bit in of_metadata.authorized_operations)


def test_the_cluster_id_is_the_same_after_a_restart(tmp_path: Path) -> None:
    async def ask() -> str:
        async with gateway(tmp_path) as serving:
            client = await RawClient.connect(serving)
            answer: str = (await client.call(3, 9, topics=[])).cluster_id
            return answer

    assert run(ask()) == run(ask())


def test_advertise_wins_over_the_address_connected_to(tmp_path: Path) -> None:
    async def main() -> Any:
        async with gateway(tmp_path, advertise="kafka.example:19092") as serving:
            client = await RawClient.connect(serving)
            return await client.call(3, 9, topics=[])

    broker = run(main()).brokers[0]
    assert (broker.host, broker.port) == ("kafka.example", 19092)


def test_a_wildcard_listener_answers_with_the_address_connected_to(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path, listen="0.0.0.0:0") as serving:
            port = serving.listeners[0][1]
            for host in ("127.0.0.1", "127.0.0.2"):
                serving.listeners[0] = (host, port)
                client = await RawClient.connect(serving)
                broker = (await client.call(3, 9, topics=[])).brokers[0]
                assert (broker.host, broker.port) == (host, port)

    run(main())


def test_describe_topic_partitions_goes_page_by_page(tmp_path: Path) -> None:
    async def main() -> list[tuple[str, int]]:
        async with gateway(tmp_path) as serving:
            client = await with_topics(serving)
            cursor, seen = None, []
            for _ in range(10):
                answer = await client.call(75, 0, topics=[], response_partition_limit=2, cursor=cursor)
                seen += [(t.name, p.partition_index) for t in answer.topics for p in t.partitions]
                cursor = answer.next_cursor
                if cursor is None:
                    return seen
            raise AssertionError("no end")

    assert run(main()) == [("__consumer_offsets", i) for i in range(4)] + [
        ("one", 0),
        ("two", 0),
        ("two", 1),
        ("two", 2),
    ]


def test_describe_topic_partitions_refuses_a_cursor_before_the_first_partition(tmp_path: Path) -> None:
    async def main() -> Any:
        async with gateway(tmp_path) as serving:
            client = await with_topics(serving)
            row = DescribeTopicPartitionsRequest.TopicRequest
            cursor = DescribeTopicPartitionsRequest.Cursor(version=0, topic_name="two", partition_index=-1)
            return await client.call(
                75, 0, topics=[row(version=0, name="two")], response_partition_limit=2000, cursor=cursor
            )

    [topic] = run(main()).topics
    assert (topic.name, topic.error_code, topic.partitions) == ("two", ErrorCode.INVALID_REQUEST, [])


@pytest.mark.parametrize("at", ["a", "other", "z"])
def test_describe_topic_partitions_refuses_a_cursor_at_a_topic_that_is_not_named(tmp_path: Path, at: str) -> None:
    """No rows and no cursor would be the end of the list to a client that goes page by page."""

    async def main() -> tuple[Any, Any]:
        async with gateway(tmp_path) as serving:
            client = await with_topics(serving)
            named = [DescribeTopicPartitionsRequest.TopicRequest(version=0, name=name) for name in ("two", "one")]
            cursor = DescribeTopicPartitionsRequest.Cursor(version=0, topic_name=at, partition_index=0)
            refused = await client.call(75, 0, topics=named, response_partition_limit=2000, cursor=cursor)
            return refused, await client.call(75, 0, topics=[], response_partition_limit=2000, cursor=cursor)

    refused, of_all = run(main())
    assert [(topic.name, topic.error_code, topic.partitions) for topic in refused.topics] == [
        ("one", ErrorCode.INVALID_REQUEST, []),
        ("two", ErrorCode.INVALID_REQUEST, []),
    ]
    assert refused.next_cursor is None
    assert all(topic.error_code == 0 for topic in of_all.topics), "who asks for all may be at a topic that is gone"


@pytest.mark.parametrize("version", [9, 12, 13])
def test_three_bytes_too_many_are_librdkafkas_way_to_ask_for_all_topics(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            client = await with_topics(serving)
            flags = b"\0\0\0" if version <= 10 else b"\0\0"
            client.send_body(3, version, b"\0" + flags + b"\0" + b"\x01\0\0")
            _, answer = await client.receive(3, version)
            assert len(answer.topics) == 3
            client.send_body(3, version, b"\0" + flags + b"\0" + b"\x01\0\0\0")
            assert await client.closed(), "four bytes too many are a broken frame"

    run(main())
