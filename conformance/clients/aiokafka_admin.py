"""aiokafka: the admin client."""

from __future__ import annotations

from aiokafka import TopicPartition
from aiokafka import errors as E
from aiokafka.admin import NewPartitions, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka_kit import (
    QUICK,
    admin,
    consumer,
    create,
    eventually,
    fill,
    make_topic,
    owns,
    refused,
    suite,
    take,
    visible,
)
from suite import Run, same


@suite.case(factor=(-1, 1, 3))
async def create_topic_with_replication_factor(run: Run, factor: int) -> None:
    topic = run.name()
    async with admin(run) as a:
        same(await create(a, topic, 3, factor), 0, "CreateTopics")
        same(len((await visible(a, topic))["partitions"]), 3)


@suite.case()
async def create_topic_refusals(run: Run) -> None:
    topic = await make_topic(run)
    async with admin(run) as a:
        same(await create(a, topic), E.TopicAlreadyExistsError.errno)
        for name in ("", ".", "..", "a/b", "x" * 250):
            same(await create(a, name), E.InvalidTopicError.errno, f"topic name {name[:9]!r}")
        same(await create(a, run.name(), 0), E.InvalidPartitionsError.errno, "no partitions")
        same(await create(a, run.name(), 1, 0), E.InvalidReplicationFactorError.errno, "replication factor 0")
        same(await create(a, run.name(), 1, 1, retention_ms="soon"), E.InvalidConfigurationError.errno)


@suite.case()
async def delete_topic(run: Run) -> None:
    topic = await make_topic(run)
    async with admin(run) as a:
        answer = await a.delete_topics([topic, topic + "-absent"])
        codes = {code[0]: code[1] for code in answer.topic_error_codes}
        same(codes, {topic: 0, topic + "-absent": E.UnknownTopicOrPartitionError.errno})

        async def gone() -> bool:
            return topic not in await a.list_topics()

        await eventually(gone)


@suite.case()
async def create_partitions_grows_only(run: Run) -> None:
    topic = await make_topic(run, partitions=2)
    async with admin(run) as a:
        await a.create_partitions({topic: NewPartitions(4)})

        async def grown() -> bool:
            return len((await visible(a, topic))["partitions"]) == 4

        await eventually(grown)
        await refused(E.InvalidPartitionsError, a.create_partitions({topic: NewPartitions(3)}))


@suite.case()
async def delete_records_moves_the_log_start(run: Run) -> None:
    topic = await make_topic(run)
    await fill(run, topic, 10)
    tp = TopicPartition(topic, 0)
    async with admin(run) as a:
        same(await a.delete_records({tp: RecordsToDelete(4)}), {tp: 4})
        await refused(E.OffsetOutOfRangeError, a.delete_records({tp: RecordsToDelete(11)}))
    async with consumer(run, topic) as c:
        same((await c.beginning_offsets([tp]))[tp], 4)
        same([r.offset for r in await take(c, 6)], list(range(4, 10)))


@suite.case()
async def alter_configs_replaces_and_reads_back(run: Run) -> None:
    topic = await make_topic(run, retention_ms="1000000", segment_bytes="2000000")
    async with admin(run) as a:

        async def value(name: str) -> str:
            answer = await a.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {name: None})])
            code, _, _, _, entries = answer[0].resources[0]
            same((code, [e[0] for e in entries]), (0, [name]), "DescribeConfigs of one name")
            return str(entries[0][1])

        same(await value("retention.ms"), "1000000")
        answer = await a.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "5000000"})])
        same(answer[0].resources[0][0], 0)

        async def changed() -> bool:
            return await value("retention.ms") == "5000000"

        await eventually(changed)
        same(await value("segment.bytes"), "1073741824", "a setting that was not named goes back to its default")


@suite.case()
async def list_and_describe_groups(run: Run) -> None:
    topic, group = await make_topic(run, partitions=2), run.group()
    async with consumer(run, topic, group_id=group, client_id="the-member", **QUICK) as c, admin(run) as a:

        async def joined() -> bool:
            return owns(c) == {0, 1}

        await eventually(joined)
        group_row = (await a.describe_consumer_groups([group]))[0].groups[0]
        same((group_row[0], group_row[1], group_row[2], group_row[3]), (0, group, "Stable", "consumer"))
        member = group_row[5][0]
        assert member[0].startswith("the-member"), f"member id {member[0]}"
        same(member[2] if len(member) > 5 else member[1], "the-member", "client id")
        assert (group, "consumer") in await a.list_consumer_groups(), "not listed"
        absent = (await a.describe_consumer_groups([group + "-absent"]))[0].groups[0]
        same((absent[0], absent[2]), (0, "Dead"), "an unknown group before version 6")


@suite.case()
async def describe_cluster(run: Run) -> None:
    async with admin(run) as a:
        cluster = await a.describe_cluster()
        same(len(cluster["cluster_id"]), 22)
        assert cluster["controller_id"] in {b["node_id"] for b in cluster["brokers"]}, "the controller is no broker"
