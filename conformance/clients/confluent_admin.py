"""confluent-kafka: librdkafka's admin client."""

from __future__ import annotations

import time
from functools import partial

from checks import check_codec, stored, values
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    ElectionType,
    KafkaError,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from confluent_kit import Member, Sender, admin, consumer, fill, make_topic, refused, suite, take
from suite import Run, eventually, same


def config_of(run: Run, topic: str) -> dict[str, tuple[str | None, ConfigSource]]:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    entries = admin(run).describe_configs([resource])[resource].result(10)
    return {name: (entry.value, ConfigSource(entry.source)) for name, entry in entries.items()}


@suite.case(factor=(-1, 1, 3))
def create_topic_with_replication_factor(run: Run, factor: int) -> None:
    topic = run.name()
    a = admin(run)
    a.create_topics([NewTopic(topic, 3, factor)])[topic].result(10)
    eventually(lambda: len(a.list_topics(topic, timeout=20).topics[topic].partitions) == 3)
    same({len(p.replicas) for p in a.list_topics(topic, timeout=20).topics[topic].partitions.values()}, {1})


@suite.case()
def create_topic_refusals(run: Run) -> None:
    topic, other = make_topic(run), run.name()
    a = admin(run)

    def create(new: NewTopic) -> None:
        a.create_topics([new])[new.topic].result(10)

    refused(KafkaError.TOPIC_ALREADY_EXISTS, lambda: create(NewTopic(topic, 1, 1)))
    for name in (".", "..", "a/b", "x" * 250):
        refused(KafkaError.TOPIC_EXCEPTION, partial(create, NewTopic(name, 1, 1)))
    refused(KafkaError.INVALID_PARTITIONS, lambda: create(NewTopic(other, 0, 1)))
    refused(KafkaError.INVALID_REPLICATION_FACTOR, lambda: create(NewTopic(other, 1, 0)))
    refused(KafkaError.INVALID_CONFIG, lambda: create(NewTopic(other, 1, 1, config={"retention.ms": "soon"})))
    refused(KafkaError.INVALID_CONFIG, lambda: create(NewTopic(other, 1, 1, config={"no.such": "1"})))
    a.create_topics([NewTopic(other, 1, 1)], validate_only=True)[other].result(10)
    assert other not in a.list_topics(timeout=20).topics, "validate_only created the topic"


@suite.case()
def delete_topic(run: Run) -> None:
    topic = make_topic(run)
    a = admin(run)
    a.delete_topics([topic])[topic].result(10)
    eventually(lambda: topic not in a.list_topics(timeout=20).topics)
    refused(KafkaError.UNKNOWN_TOPIC_OR_PART, lambda: a.delete_topics([topic])[topic].result(10))


@suite.case()
def create_partitions_grows_only(run: Run) -> None:
    topic = make_topic(run, partitions=2)
    a = admin(run)
    a.create_partitions([NewPartitions(topic, 4)])[topic].result(10)
    eventually(lambda: len(a.list_topics(topic, timeout=20).topics[topic].partitions) == 4)
    refused(KafkaError.INVALID_PARTITIONS, lambda: a.create_partitions([NewPartitions(topic, 3)])[topic].result(10))


@suite.case()
def delete_records_moves_the_log_start(run: Run) -> None:
    topic = make_topic(run)
    fill(run, topic, 10)
    tp = TopicPartition(topic, 0, 4)
    a = admin(run)
    same(a.delete_records([tp])[tp].result(10).low_watermark, 4)
    with consumer(run, topic) as c:
        same([r.offset() for r in take(c, 6)], list(range(4, 10)))
        same(c.get_watermark_offsets(TopicPartition(topic, 0), timeout=20), (4, 10))
    beyond = TopicPartition(topic, 0, 11)
    refused(KafkaError.OFFSET_OUT_OF_RANGE, lambda: a.delete_records([beyond])[beyond].result(10))


@suite.case()
def list_offsets_by_every_spec(run: Run) -> None:
    topic = make_topic(run)
    base = int(time.time() * 1000) - 60_000
    sender = Sender(run, linger_ms=50)
    for t in (0, 500, 100):
        sender.send(topic, b"x", timestamp=base + t)
    sender.flush()
    tp = TopicPartition(topic, 0)

    def at(spec: OffsetSpec) -> tuple[int, int]:
        position = admin(run).list_offsets({tp: spec})[tp].result(10)
        return position.offset, position.timestamp

    same(at(OffsetSpec.earliest()), (0, -1), "earliest")
    same(at(OffsetSpec.latest()), (3, -1), "latest")
    same(at(OffsetSpec.max_timestamp()), (1, base + 500), "max timestamp")
    same(at(OffsetSpec.for_timestamp(base + 50)), (1, base + 500), "by time")
    same(at(OffsetSpec.for_timestamp(base + 501)), (-1, -1), "beyond the end")


@suite.case()
def incremental_alter_configs(run: Run) -> None:
    topic = make_topic(run, retention_ms="1000000", segment_bytes="2000000")
    a = admin(run)

    def alter(name: str, value: str | None, operation: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        a.incremental_alter_configs([resource])[resource].result(10)

    dynamic, default = ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DEFAULT_CONFIG
    alter("retention.ms", "2000000", AlterConfigOpType.SET)
    eventually(lambda: config_of(run, topic)["retention.ms"] == ("2000000", dynamic))
    same(config_of(run, topic)["segment.bytes"], ("2000000", dynamic))
    alter("cleanup.policy", "compact", AlterConfigOpType.APPEND)
    eventually(lambda: config_of(run, topic)["cleanup.policy"][0] == "delete,compact")
    alter("retention.ms", None, AlterConfigOpType.DELETE)
    eventually(lambda: config_of(run, topic)["retention.ms"] == ("604800000", default))
    refused(KafkaError.INVALID_CONFIG, lambda: alter("retention.ms", "soon", AlterConfigOpType.SET))


@suite.case()
def alter_configs_replaces_all_settings(run: Run) -> None:
    topic = make_topic(run, retention_ms="1000000", segment_bytes="2000000")
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, set_config={"retention.ms": "5000000"})
    admin(run).alter_configs([resource])[resource].result(10)
    eventually(lambda: config_of(run, topic)["retention.ms"][0] == "5000000")
    same(config_of(run, topic)["segment.bytes"], ("1073741824", ConfigSource.DEFAULT_CONFIG))


@suite.case()
def describe_broker_configs(run: Run) -> None:
    a = admin(run)
    broker = next(iter(a.list_topics(timeout=20).brokers))
    resource = ConfigResource(ConfigResource.Type.BROKER, str(broker))
    entries = a.describe_configs([resource])[resource].result(10)
    same(entries["node.id"].value, str(broker))
    assert entries["num.partitions"].value, "num.partitions is empty"


@suite.case()
def describe_topics_and_cluster(run: Run) -> None:
    topic = make_topic(run, partitions=3)
    a = admin(run)
    absent = run.name("absent")
    descriptions = a.describe_topics(TopicCollection([topic, absent]), include_authorized_operations=True)
    description = descriptions[topic].result(10)
    same((description.name, len(description.partitions), description.is_internal), (topic, 3, False))
    assert str(description.topic_id) != "AAAAAAAAAAAAAAAAAAAAAA", "no topic id"
    refused(KafkaError.UNKNOWN_TOPIC_OR_PART, lambda: descriptions[absent].result(10))
    cluster = a.describe_cluster(include_authorized_operations=True).result(10)
    same(len(cluster.cluster_id), 22)
    assert cluster.controller.id in {n.id for n in cluster.nodes}, "the controller is no broker"
    same({len(p.isr) for p in description.partitions}, {1})


@suite.case()
def describe_and_list_groups_by_state_and_type(run: Run) -> None:
    topic, group = make_topic(run, partitions=2), run.group()
    member = Member(run, group, topic, client_id="the-member", partition_assignment_strategy="roundrobin")
    eventually(lambda: member.partitions == {0, 1}, 15)
    a = admin(run)
    description = a.describe_consumer_groups([group])[group].result(10)
    same((description.state, description.partition_assignor), (ConsumerGroupState.STABLE, "roundrobin"))
    same([m.client_id for m in description.members], ["the-member"])
    same({p.partition for p in description.members[0].assignment.topic_partitions}, {0, 1})

    def listed(**filters: object) -> bool:
        return group in {g.group_id for g in a.list_consumer_groups(**filters).result(10).valid}

    assert listed(), "not listed"
    assert listed(states={ConsumerGroupState.STABLE}), "not listed as Stable"
    assert not listed(states={ConsumerGroupState.EMPTY}), "listed as Empty"
    assert listed(types={ConsumerGroupType.CLASSIC}), "not listed as classic"
    assert not listed(types={ConsumerGroupType.CONSUMER}), "listed as of the consumer protocol"
    member.leave()
    eventually(lambda: listed(states={ConsumerGroupState.EMPTY}))


@suite.case()
def describe_an_unknown_group(run: Run) -> None:
    group = run.group()
    description = admin(run).describe_consumer_groups([group])[group].result(10)
    same(description.state, ConsumerGroupState.DEAD)


@suite.case()
def delete_groups(run: Run) -> None:
    topic, group = make_topic(run), run.group()
    fill(run, topic, 2)
    member = Member(run, group, topic)
    eventually(lambda: len(member.values) == 2, 15)
    a = admin(run)
    refused(KafkaError.NON_EMPTY_GROUP, lambda: a.delete_consumer_groups([group])[group].result(10))
    member.leave()
    a.delete_consumer_groups([group])[group].result(10)
    refused(KafkaError.GROUP_ID_NOT_FOUND, lambda: a.delete_consumer_groups([group])[group].result(10))


@suite.case()
def list_and_alter_group_offsets(run: Run) -> None:
    topic, group = make_topic(run, partitions=2), run.group()
    a = admin(run)
    wanted = [TopicPartition(topic, 0, 3), TopicPartition(topic, 1, 0)]
    a.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)])[group].result(10)
    offsets = a.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(10)
    same(sorted((p.partition, p.offset) for p in offsets.topic_partitions), [(0, 3), (1, 0)])
    stable = a.list_consumer_group_offsets(
        [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])], require_stable=True
    )[group].result(10)
    same([(p.partition, p.offset) for p in stable.topic_partitions], [(0, 3)])
    member = Member(run, group, topic)
    eventually(lambda: member.partitions, 15)
    answer = a.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)])[group].result(10)
    same({p.error and p.error.name() for p in answer.topic_partitions}, {"UNKNOWN_MEMBER_ID"})
    member.leave()


@suite.case()
def elect_leaders_is_not_needed(run: Run) -> None:
    topic = make_topic(run)
    tp = TopicPartition(topic, 0)
    a = admin(run)
    errors = a.elect_leaders(ElectionType.PREFERRED, [tp]).result(10)
    same(errors[tp].name(), "ELECTION_NOT_NEEDED")


@suite.case(codec=("gzip", "zstd", "uncompressed"))
def topic_compression_type_recompresses(run: Run, codec: str) -> None:
    topic = make_topic(run, compression_type=codec)
    sender = Sender(run, compression_type="lz4", linger_ms=50)
    wanted = values(50)
    for value in wanted:
        sender.send(topic, value)
    sender.flush()
    check_codec(run, topic, "none" if codec == "uncompressed" else codec)
    with consumer(run, topic) as c:
        same([(r.offset(), r.value()) for r in take(c, 50)], list(enumerate(wanted)))


@suite.case()
def timestamps_out_of_bounds_are_refused(run: Run) -> None:
    topic = make_topic(run, message_timestamp_before_max_ms="60000", message_timestamp_after_max_ms="60000")
    now = int(time.time() * 1000)
    for stamp in (now - 120_000, now + 120_000):
        sender = Sender(run)
        sender.send(topic, b"x", timestamp=stamp)
        sender.client.flush(10)
        same([e.name() for e in sender.errors], ["INVALID_TIMESTAMP"])
    sender = Sender(run)
    sender.send(topic, b"x", timestamp=now)
    same(sender.flush()[0].offset(), 0)


@suite.case()
def null_key_on_a_compacted_topic_is_refused(run: Run) -> None:
    topic = make_topic(run, cleanup_policy="compact")
    sender = Sender(run)
    sender.send(topic, b"no key")
    sender.client.flush(10)
    same([e.name() for e in sender.errors], ["INVALID_RECORD"])
    sender.errors.clear()
    sender.send(topic, b"v", b"k")
    same(sender.flush()[0].offset(), 0)
    same(sum(b.count for b in stored(run, topic)), 1)
