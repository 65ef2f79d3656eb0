"""Ways around a refusal: other names and ids of a topic, topics of the gateway itself, long requests, waiting ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from handlers.authorized_gateway import Client, Place, Rights, place
from prometheus_client import generate_latest
from support.gateway import run

from conformance.authorization.requests import CLUSTER
from conformance.authorization.world import GROUP, HIDDEN, SEEN
from kop.errors import ErrorCode
from kop.server.request import RequestPipeline
from kop.storage.memory.engine import MemoryTopics

HOME = "public/default"
REFUSED, UNKNOWN = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
FORMS = ("", f"{HOME}/", f"persistent://{HOME}/")
"""What stands before the three names of a topic of the home namespace."""


@pytest.fixture(autouse=True)
def _namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let topics of the memory engine have the names and ids that they have over Pulsar."""
    monkeypatch.setattr(MemoryTopics, "namespace", property(lambda _: HOME))


def _row(rows: Any, *path: str) -> int:
    """Return the code of the only row."""
    (row,) = rows
    for each in path:
        (row,) = getattr(row, each)
    return int(row.error_code)


async def _metadata(client: Client, name: str | None, topic_id: UUID | None = None) -> int:
    topics = [{"name": name, "topic_id": topic_id}]
    answer = await client.call(3, 12, topics=topics, allow_auto_topic_creation=False)
    if topic_id is not None:
        assert answer.topics[0].name is None or not answer.topics[0].error_code
    return _row(answer.topics)


async def _fetch(client: Client, version: int, topic: dict[str, Any], **more: Any) -> Any:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 2**20} | more.pop("partition", {})
    fields = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 2**20, "session_epoch": -1} | more
    topics = [topic | {"partitions": [partition]}]
    return await client.call(1, version, topics=topics, forgotten_topics_data=[], **fields)


async def _fetch_name(client: Client, name: str) -> int:
    return _row((await _fetch(client, 12, {"topic": name})).responses, "partitions")


async def _fetch_id(client: Client, topic_id: UUID) -> int:
    return _row((await _fetch(client, 13, {"topic_id": topic_id})).responses, "partitions")


async def _delete(client: Client, **topic: Any) -> int:
    answer = await client.call(20, 6, topics=[{"name": None} | topic], timeout_ms=1000)
    if topic["topic_id"] is not None:
        assert answer.responses[0].name is None
    return _row(answer.responses)


async def _list_offsets(client: Client, name: str) -> int:
    partition = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}
    answer = await client.call(2, 6, replica_id=-1, topics=[{"name": name, "partitions": [partition]}])
    return _row(answer.topics, "partitions")


async def _leader_epoch(client: Client, name: str) -> int:
    partition = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    answer = await client.call(23, 4, replica_id=-1, topics=[{"topic": name, "partitions": [partition]}])
    return _row(answer.topics, "partitions")


async def _configs(client: Client, name: str) -> int:
    resource = {"resource_type": 2, "resource_name": name, "configuration_keys": None}
    return _row((await client.call(32, 4, resources=[resource])).results)


async def _alter(client: Client, name: str) -> int:
    config = {"name": "retention.ms", "value": "1", "config_operation": 0}
    resource = {"resource_type": 2, "resource_name": name, "configs": [config]}
    return _row((await client.call(44, 1, resources=[resource], validate_only=False)).responses)


async def _delete_records(client: Client, name: str) -> int:
    topic = {"name": name, "partitions": [{"partition_index": 0, "offset": 1}]}
    return _row((await client.call(21, 2, topics=[topic], timeout_ms=1000)).topics, "partitions")


async def _grow(client: Client, name: str) -> int:
    answer = await client.call(37, 2, topics=[{"name": name, "count": 9, "assignments": None}], timeout_ms=1000)
    return _row(answer.results)


async def _commit(client: Client, name: str) -> int:
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    answer = await client.call(
        8, 8, group_id=GROUP, generation_id_or_member_epoch=-1, member_id="",
        topics=[{"name": name, "partitions": [partition]}],
    )  # fmt: skip
    return _row(answer.topics, "partitions")


async def _committed(client: Client, name: str) -> int:
    answer = await client.call(9, 7, group_id=GROUP, topics=[{"name": name, "partition_indexes": [0]}])
    assert answer.topics[0].partitions[0].committed_offset == -1
    return _row(answer.topics, "partitions")


async def _uncommit(client: Client, name: str) -> int:
    answer = await client.call(47, 0, group_id=GROUP, topics=[{"name": name, "partitions": [{"partition_index": 0}]}])
    return _row(answer.topics, "partitions")


async def _producers(client: Client, name: str) -> int:
    return _row((await client.call(61, 0, topics=[{"name": name, "partition_indexes": [0]}])).topics, "partitions")


async def _partitions(client: Client, name: str) -> int:
    return _row((await client.call(75, 0, topics=[{"name": name}], response_partition_limit=9)).topics)


BY_NAME: dict[str, Callable[[Client, str], Awaitable[int]]] = {
    "Produce": Client.produce,
    "Fetch": _fetch_name,
    "ListOffsets": _list_offsets,
    "Metadata": _metadata,
    "OffsetCommit": _commit,
    "OffsetFetch": _committed,
    "OffsetDelete": _uncommit,
    "OffsetForLeaderEpoch": _leader_epoch,
    "DeleteRecords": _delete_records,
    "DescribeConfigs": _configs,
    "IncrementalAlterConfigs": _alter,
    "CreatePartitions": _grow,
    "DescribeProducers": _producers,
    "DescribeTopicPartitions": _partitions,
    "DeleteTopics": lambda client, name: _delete(client, name=name, topic_id=None),
}
BY_ID: dict[str, Callable[[Client, UUID], Awaitable[int]]] = {
    "Produce": Client.produce,
    "Fetch": _fetch_id,
    "Metadata": lambda client, topic_id: _metadata(client, None, topic_id),
    "DeleteTopics": lambda client, topic_id: _delete(client, topic_id=topic_id),
}
OF_GROUP = {f"{each} GROUP {GROUP}" for each in ("READ", "DESCRIBE", "DELETE")}
EVERYTHING = {f"ALL TOPIC {SEEN}", *OF_GROUP}


async def _around(at: Place) -> None:
    """A topic that may not be touched is not touched under another name or id, and one that may be is under all."""
    client = Client(RequestPipeline(at.serving.gateway), "User:alice")
    before = await at.state()
    at.rights.give(EVERYTHING)
    for api, ask in BY_NAME.items():
        assert {form: await ask(client, form + HIDDEN) for form in FORMS} == dict.fromkeys(FORMS, REFUSED), api
    hidden = at.world.topic_ids[HIDDEN]
    for api, ask_id in BY_ID.items():
        codes = [await ask_id(client, UUID(int=hidden.int ^ bit)) for bit in (0, 1, 2)]
        assert codes == [REFUSED] * 3, api
        assert await ask_id(client, UUID(int=hidden.int ^ 3)) == ErrorCode.UNKNOWN_TOPIC_ID
    assert await at.state() == before
    for form in FORMS:
        assert await client.produce(form + SEEN) == 0
        assert await _fetch_name(client, form + SEEN) == 0
    for bit in (0, 1, 2):
        assert await _fetch_id(client, UUID(int=at.world.topic_ids[SEEN].int ^ bit)) == 0


async def _own_topics(at: Place) -> None:
    """The gateway's own topics have no other names and ids, for super users neither."""
    gw = at.serving.gateway
    client = Client(RequestPipeline(gw), "User:root")
    gw.access.authorizer = None
    before = await at.state()
    own = {topic.name: topic.topic_id for topic in gw.engine.topics.all() if topic.internal}
    assert set(own) == {"__offsets", "__transactions", "__kop_security"}
    names = [*own, *(form + name for form in FORMS[1:] for name in (*own, "__consumer_offsets", "__transaction_state"))]
    for api, ask in BY_NAME.items():
        codes = {name: await ask(client, name) for name in names}
        missing = {UNKNOWN, ErrorCode.INVALID_TOPIC_EXCEPTION, 0 if api in {"OffsetFetch", "OffsetCommit"} else UNKNOWN}
        assert set(codes.values()) <= missing, (api, codes)
    security = own["__kop_security"].int
    unknown = [UUID(int=topic_id.int ^ bit) for topic_id in own.values() for bit in (1, 2, 3)]
    for api, ask_id in BY_ID.items():
        ids = {topic_id: await ask_id(client, topic_id) for topic_id in [UUID(int=security), *unknown]}
        assert set(ids.values()) == {ErrorCode.UNKNOWN_TOPIC_ID}, api
    after = await at.state()
    gw.access.authorizer = at.rights
    assert {place for place in before.keys() | after.keys() if before.get(place) != after.get(place)} <= {
        ("end", "__offsets"),
        *(place for place in after if place[0] in {"offset", "group"}),
    }


async def _created(at: Place) -> None:
    """A topic that may not be made is not made under another name."""
    client = Client(RequestPipeline(at.serving.gateway), "User:alice")

    async def asked(name: str) -> int:
        topics = [{"name": name, "topic_id": None}]
        return _row((await client.call(3, 12, topics=topics, allow_auto_topic_creation=True)).topics)

    async def made(name: str) -> int:
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1}
        return _row((await client.call(19, 7, topics=[topic], timeout_ms=1000)).topics)

    at.rights.give(["DESCRIBE TOPIC new", "CREATE TOPIC public/default/new", "CREATE TOPIC other"])
    assert [await ask(form + "new") for ask in (asked, made) for form in FORMS] == [REFUSED] * 6
    assert at.serving.engine.topics.get("new") is None
    at.rights.give(["DESCRIBE TOPIC new", "CREATE TOPIC new"])
    assert await asked(FORMS[2] + "new") == 0
    assert at.serving.engine.topics.get("new") is not None


async def _in_parts(at: Place) -> None:
    """A long request, which is answered in parts, is refused row by row as a short one is."""
    client = Client(RequestPipeline(at.serving.gateway), "User:alice")
    names = [f"topic-{number:090}" for number in range(250)]
    names[230:230] = [HIDDEN, SEEN]
    at.rights.give(EVERYTHING - OF_GROUP)
    partition = {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1, "offset": 0}
    topics = [{"name": name, "partitions": [partition], "partition_indexes": [0]} for name in names]
    answers = {
        2: (await client.call(2, 6, replica_id=-1, topics=topics)).topics,
        21: (await client.call(21, 2, topics=topics, timeout_ms=1000)).topics,
        23: (await client.call(23, 3, replica_id=-1, topics=[{"topic": name, **topic} for name, topic in zip(
            names, ({"partitions": [{"partition": 0, "leader_epoch": 0}]} for _ in names), strict=True)])).topics,
        61: (await client.call(61, 0, topics=topics)).topics,
    }  # fmt: skip
    for key, rows in answers.items():
        codes = [row.partitions[0].error_code for row in rows]
        assert codes[:231] + codes[232:] == [REFUSED] * 251, key
        assert codes[231] == 0, key
    resources = [{"resource_type": 2, "resource_name": name, "configuration_keys": []} for name in names]
    configs = (await client.call(32, 4, resources=resources)).results
    assert [bool(row.error_code) for row in configs] == [name != SEEN for name in names]
    groups = [f"group-{number:090}" for number in range(250)]
    groups[230] = GROUP
    described = (await client.call(15, 5, groups=groups)).groups
    deleted = (await client.call(42, 2, groups_names=groups)).results
    denied = [ErrorCode.GROUP_AUTHORIZATION_FAILED] * 250
    assert [row.error_code for row in described] == [row.error_code for row in deleted] == denied
    commits = [topic | {"partitions": [{"partition_index": 0, "committed_offset": 1}]} for topic in topics]
    committed = await client.call(8, 8, group_id=GROUP, generation_id_or_member_epoch=-1, member_id="", topics=commits)
    assert {row.partitions[0].error_code for row in committed.topics} == set(denied)


async def _waiting(at: Place) -> None:
    """A Fetch that waits gives nothing of what comes once the right has gone."""
    gw = at.serving.gateway
    pipeline = RequestPipeline(gw)
    client, writer = Client(pipeline, "User:alice"), Client(pipeline, "User:writer")
    at.rights.others = {"User:writer": Rights([f"WRITE TOPIC {SEEN}"])}
    at.rights.give([f"READ TOPIC {SEEN}"])
    log = gw.topics.log(at.world.topic_ids[SEEN], 0)
    assert log is not None
    end = {"fetch_offset": log.high_watermark}
    waiting = asyncio.create_task(_fetch(client, 12, {"topic": SEEN}, max_wait_ms=60_000, partition=end))
    await asyncio.sleep(0)
    assert not waiting.done()
    at.rights.give([])
    assert await writer.produce(SEEN) == 0
    (partition,) = (await waiting).responses[0].partitions
    assert (partition.error_code, partition.records) == (REFUSED, b"")


async def _metrics(at: Place) -> None:
    """The metrics name no topic of the gateway that clients do not see, and nobody writes lines of his own there."""
    hostile = 'x"} 1\nkop_up{a="'
    client = Client(RequestPipeline(at.serving.gateway), f"User:{hostile}")
    at.rights.give([f"ALTER {CLUSTER}", f"READ GROUP {hostile}", f"READ TOPIC {SEEN}"])
    partition = {"partition_index": 0, "committed_offset": 0}
    answer = await client.call(
        8, 8, group_id=hostile, generation_id_or_member_epoch=-1, member_id="",
        topics=[{"name": SEEN, "partitions": [partition]}],
    )  # fmt: skip
    assert _row(answer.topics, "partitions") == 0
    page = generate_latest(at.serving.gateway.metrics.registry).decode()
    assert "kop_security_acls" in page
    assert "__kop_security" not in page
    assert "\nkop_up" not in page
    assert 'x\\"} 1\\nkop_up' in page


def test_a_page_that_tells_names_to_all_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def warned(host: str) -> bool:
        caplog.clear()
        async with place(tmp_path, http=f"{host}:0"):
            return any("/metrics names topics and groups to all" in message for message in caplog.messages)

    assert [run(warned(host)) for host in ("127.0.0.1", "0.0.0.0")] == [False, True]


def test_no_way_leads_around_a_refusal(tmp_path: Path) -> None:
    async def main() -> None:
        async with place(tmp_path, auto_create_topics_enable="true") as at:
            for way in (_around, _own_topics, _created, _in_parts, _waiting, _metrics):
                await way(at)
            assert not at.internal_errors()

    run(main())
