"""kafka-python: the admin client, which speaks nearly every admin API in its newest version."""

from __future__ import annotations

import time
import uuid
from typing import Any

from checks import stored
from kafka import TopicPartition
from kafka import errors as E
from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    AlterConfigOp,
    ConfigResource,
    KafkaAdminClient,
    OffsetSpec,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.structs import OffsetAndMetadata
from kafka_python_kit import RACE, Member, admin, consumer, fill, make_topic, producer, suite, take
from suite import Run, eventually, same


def refused(error: type[Exception], call: Any, *args: Any, **kwargs: Any) -> None:
    """The call must raise exactly this error."""
    try:
        answer = call(*args, **kwargs)
    except error:
        return
    except Exception as other:
        raise AssertionError(f"{type(other).__name__} instead of {error.__name__}: {other}") from other
    raise AssertionError(f"no {error.__name__} but {answer!r}")


def create(a: KafkaAdminClient, topic: str, **options: Any) -> Any:
    return a.create_topics({topic: options})


def config_of(a: KafkaAdminClient, topic: str, name: str) -> tuple[str, str]:
    """(value, source) of a topic's setting."""
    entry = a.describe_configs([ConfigResource("TOPIC", topic)], config_filter="all")["topic"][topic][name]
    return entry["value"], entry["config_source"]


def alter(a: KafkaAdminClient, topic: str, configs: dict[str, Any], **options: Any) -> None:
    answer = a.alter_configs([ConfigResource("TOPIC", topic, configs)], **options)["topic"][topic]
    same(answer, "OK", "answer of alter configs")


@suite.case(factor=(-1, 1, 3))
def create_topic_with_replication_factor(run: Run, factor: int) -> None:
    topic = run.name()
    with admin(run) as a:
        create(a, topic, num_partitions=3, replication_factor=factor)
        description = eventually(lambda: [t for t in a.describe_topics([topic]) if t["error_code"] == 0])[0]
        same(len(description["partitions"]), 3)
        same({len(p["replica_nodes"]) for p in description["partitions"]}, {1}, "replicas of a partition")


@suite.case()
def create_topic_defaults_assignments_and_validate_only(run: Run) -> None:
    plain, placed, checked = run.name(), run.name(), run.name()
    with admin(run) as a:
        create(a, plain)
        broker = a.describe_cluster()["brokers"][0]["broker_id"]
        create(a, placed, assignments={0: [broker], 1: [broker]})
        a.create_topics({checked: {}}, validate_only=True)
        eventually(lambda: {plain, placed} <= set(a.list_topics()))
        same(len(a.describe_topics([placed])[0]["partitions"]), 2)
        assert a.describe_topics([plain])[0]["partitions"], "no partitions"
        assert checked not in a.list_topics(), "validate_only created the topic"


@suite.case()
def create_topic_refusals(run: Run) -> None:
    topic = make_topic(run)
    with admin(run) as a:
        refused(E.TopicAlreadyExistsError, create, a, topic)
        for name in ("", ".", "..", "a/b", "a b", "x" * 250):
            refused(E.InvalidTopicError, create, a, name)
        other = run.name()
        refused(E.InvalidPartitionsError, create, a, other, num_partitions=0)
        refused(E.InvalidReplicationFactorError, create, a, other, num_partitions=1, replication_factor=0)
        refused(E.InvalidReplicationFactorError, create, a, other, num_partitions=1, replication_factor=-2)
        refused(E.InvalidConfigurationError, create, a, other, configs={"no.such.config": "1"})
        refused(E.InvalidConfigurationError, create, a, other, configs={"retention.ms": "soon"})
        refused(E.InvalidReplicationAssignmentError, create, a, other, assignments={0: [4711]})
        assert other not in a.list_topics(), "a refused topic exists"


@suite.case()
def names_that_differ_in_dot_and_underscore_collide(run: Run) -> None:
    topic = make_topic(run, "col.lide")
    with admin(run) as a:
        refused(E.InvalidTopicError, create, a, topic.replace("col.lide", "col_lide"))


@suite.case(attempts=RACE)
def internal_topics_cannot_be_made_or_deleted(run: Run) -> None:
    topic = make_topic(run)
    fill(run, topic, 1)
    with consumer(run, topic, group_id=run.group()) as c:
        take(c, 1)
        c.commit()
    with admin(run) as a:
        refused(E.TopicAlreadyExistsError, create, a, "__consumer_offsets")
        description = a.describe_topics(["__consumer_offsets"])[0]
        same((description["error_code"], description["is_internal"]), (0, True))


@suite.case()
def describing_a_missing_topic_does_not_create_it(run: Run) -> None:
    topic = run.name("absent")
    with admin(run) as a:
        same(a.describe_topics([topic])[0]["error_code"], 3)
        assert topic not in a.list_topics(), "the topic was created"


@suite.case(by=("name", "id"))
def delete_topic(run: Run, by: str) -> None:
    topic = make_topic(run)
    with admin(run) as a:
        topic_id = a.describe_topics([topic])[0]["topic_id"]
        a.delete_topics([topic if by == "name" else uuid.UUID(str(topic_id))])
        eventually(lambda: topic not in a.list_topics())
        refused(E.UnknownTopicOrPartitionError, a.delete_topics, [topic])
        refused(E.UnknownTopicIdError, a.delete_topics, [uuid.uuid4()])


@suite.case()
def create_partitions_grows_only(run: Run) -> None:
    topic = make_topic(run, partitions=2)
    fill(run, topic, 3)
    with admin(run) as a:
        a.create_partitions({topic: 4}, validate_only=True)
        same(len(a.describe_topics([topic])[0]["partitions"]), 2)
        a.create_partitions({topic: 4})
        eventually(lambda: len(a.describe_topics([topic])[0]["partitions"]) == 4)
        refused(E.InvalidPartitionsError, a.create_partitions, {topic: 3})
        refused(E.InvalidPartitionsError, a.create_partitions, {topic: 4})
        refused(E.UnknownTopicOrPartitionError, a.create_partitions, {run.name(): 3})
    fill(run, topic, 2, partition=3)
    with consumer(run, topic) as c:
        same({(r.partition, r.offset) for r in take(c, 5)}, {(0, 0), (0, 1), (0, 2), (3, 0), (3, 1)})


@suite.case()
def delete_records_moves_the_log_start(run: Run) -> None:
    topic = make_topic(run)
    fill(run, topic, 10)
    tp = TopicPartition(topic, 0)
    with admin(run) as a, consumer(run) as c:
        same(a.delete_records({tp: 4})[tp]["low_watermark"], 4)
        same((c.beginning_offsets([tp])[tp], c.end_offsets([tp])[tp]), (4, 10))
        c.assign([tp])
        c.seek(tp, 0)
        same([r.offset for r in take(c, 6)], list(range(4, 10)))
        refused(E.OffsetOutOfRangeError, a.delete_records, {tp: 11})
        same(a.delete_records({tp: -1})[tp]["low_watermark"], 10)
        same(c.beginning_offsets([tp])[tp], 10)
        refused(E.UnknownTopicOrPartitionError, a.delete_records, {TopicPartition(run.name(), 0): 0})
    fill(run, topic, 1)
    with consumer(run, topic) as c:
        same(take(c, 1)[0].offset, 10)


@suite.case()
def max_timestamp_and_special_list_offsets(run: Run) -> None:
    topic, empty = make_topic(run), make_topic(run)
    base = int(time.time() * 1000) - 60_000
    with producer(run, linger_ms=50) as p:
        for f in [p.send(topic, b"x", timestamp_ms=base + t) for t in (0, 500, 100)]:
            f.get(timeout=10)
    tp, tp_empty = TopicPartition(topic, 0), TopicPartition(empty, 0)
    with admin(run) as a:

        def at(spec: Any, where: TopicPartition = tp) -> tuple[int, int]:
            position = a.list_partition_offsets({where: spec})[where]
            return position.offset, position.timestamp

        same(at(OffsetSpec.EARLIEST), (0, -1), "earliest")
        same(at(OffsetSpec.LATEST), (3, -1), "latest")
        same(at(OffsetSpec.MAX_TIMESTAMP), (1, base + 500), "max timestamp")
        same(at(OffsetSpec.MAX_TIMESTAMP, tp_empty), (-1, -1), "max timestamp of an empty partition")
        same(at(base + 50), (1, base + 500), "by time")
        same(at(base + 501), (-1, -1), "beyond the end")
        same(at(OffsetSpec.EARLIEST_LOCAL), (0, -1), "earliest local")
        refused(E.UnknownTopicOrPartitionError, at, OffsetSpec.LATEST, TopicPartition(topic, 9))


@suite.case()
def describe_configs_shows_defaults_and_what_was_set(run: Run) -> None:
    topic = make_topic(run, retention_ms="123456", cleanup_policy="compact")
    with admin(run) as a:
        same(config_of(a, topic, "retention.ms"), ("123456", "DYNAMIC_TOPIC_CONFIG"))
        same(config_of(a, topic, "cleanup.policy"), ("compact", "DYNAMIC_TOPIC_CONFIG"))
        same(config_of(a, topic, "segment.bytes"), ("1073741824", "DEFAULT_CONFIG"))
        same(config_of(a, topic, "max.message.bytes"), ("1048588", "DEFAULT_CONFIG"))
        same(config_of(a, topic, "compression.type"), ("producer", "DEFAULT_CONFIG"))
        only = a.describe_configs([ConfigResource("TOPIC", topic)])["topic"][topic]
        same(set(only), {"retention.ms", "cleanup.policy"}, "settings that are not default")


@suite.case()
def describe_broker_configs(run: Run) -> None:
    with admin(run) as a:
        broker = str(a.describe_cluster()["brokers"][0]["broker_id"])
        entries = a.describe_configs([ConfigResource("BROKER", broker)], config_filter="all")["broker"][broker]
        same(entries["node.id"]["value"], broker)
        assert int(entries["num.partitions"]["value"]) > 0, "num.partitions"
        assert entries["auto.create.topics.enable"]["value"] in ("true", "false"), "auto.create.topics.enable"


@suite.case()
def incremental_alter_configs(run: Run) -> None:
    topic = make_topic(run, retention_ms="1000000", segment_bytes="2000000")
    with admin(run) as a:
        alter(a, topic, {"retention.ms": "2000000", "max.message.bytes": "5000"})
        eventually(lambda: config_of(a, topic, "retention.ms")[0] == "2000000")
        same(config_of(a, topic, "segment.bytes")[0], "2000000", "a setting that was not named")
        alter(a, topic, {"cleanup.policy": (AlterConfigOp.APPEND, "compact")})
        eventually(lambda: config_of(a, topic, "cleanup.policy")[0] == "delete,compact")
        alter(a, topic, {"cleanup.policy": (AlterConfigOp.SUBTRACT, "delete")})
        eventually(lambda: config_of(a, topic, "cleanup.policy")[0] == "compact")
        alter(a, topic, {"retention.ms": (AlterConfigOp.DELETE, None)})
        eventually(lambda: config_of(a, topic, "retention.ms") == ("604800000", "DEFAULT_CONFIG"))
        alter(a, topic, {"retention.ms": "5"}, validate_only=True)
        same(config_of(a, topic, "retention.ms")[0], "604800000", "after validate_only")
        answer = a.alter_configs([ConfigResource("TOPIC", topic, {"retention.ms": "soon"})])["topic"][topic]
        assert "InvalidConfiguration" in answer, answer
        gone = run.name()
        answer = a.alter_configs(
            [ConfigResource("TOPIC", gone, {"retention.ms": "1"})], raise_on_unknown=False, incremental=True
        )["topic"][gone]
        assert "UnknownTopicOrPartition" in answer, answer


@suite.case()
def alter_configs_replaces_all_settings(run: Run) -> None:
    topic = make_topic(run, retention_ms="1000000", segment_bytes="2000000")
    with admin(run) as a:
        # kafka-python adds the settings that it is not told to change; a full reset sends none.
        alter(a, topic, {"retention.ms": "3000000"}, incremental=False)
        eventually(lambda: config_of(a, topic, "retention.ms")[0] == "3000000")
        same(config_of(a, topic, "segment.bytes")[0], "2000000")
        a.reset_configs([ConfigResource("TOPIC", topic, [])], incremental=False)
        eventually(lambda: config_of(a, topic, "segment.bytes") == ("1073741824", "DEFAULT_CONFIG"))
        same(config_of(a, topic, "retention.ms"), ("604800000", "DEFAULT_CONFIG"))


@suite.case()
def altered_max_message_bytes_acts(run: Run) -> None:
    topic = make_topic(run)
    with admin(run) as a, producer(run, enable_idempotence=False) as p:
        p.send(topic, b"x" * 5000).get(timeout=10)
        alter(a, topic, {"max.message.bytes": "1000"})
        eventually(lambda: config_of(a, topic, "max.message.bytes")[0] == "1000")

        def is_refused() -> bool:
            try:
                p.send(topic, b"x" * 5000).get(timeout=10)
                return False
            except E.MessageSizeTooLargeError:
                return True

        eventually(is_refused, 5)
        p.send(topic, b"x" * 500).get(timeout=10)


@suite.case()
def altered_timestamp_type_acts(run: Run) -> None:
    topic = make_topic(run)
    with admin(run) as a, producer(run) as p:
        same(p.send(topic, b"x", timestamp_ms=1000).get(timeout=10).timestamp, 1000)
        alter(a, topic, {"message.timestamp.type": "LogAppendTime"})
        eventually(lambda: p.send(topic, b"x", timestamp_ms=1000).get(timeout=10).timestamp > 1_600_000_000_000, 5)


@suite.case(limit=40)
def altered_retention_ms_acts(run: Run) -> None:
    topic = make_topic(run, retention_ms="-1")
    tp = TopicPartition(topic, 0)
    with producer(run) as p:
        for _ in range(3):
            p.send(topic, b"old", timestamp_ms=int(time.time() * 1000) - 3_600_000).get(timeout=10)
    with admin(run) as a, consumer(run) as c:
        same(c.beginning_offsets([tp])[tp], 0)
        alter(a, topic, {"retention.ms": "60000"})
        eventually(lambda: c.beginning_offsets([tp])[tp] == 3, 30)
        same(c.end_offsets([tp])[tp], 3)
    fill(run, topic, 1)
    with consumer(run, topic) as c:
        same([r.offset for r in take(c, 1)], [3])


@suite.case(slow=True, limit=60)
def altered_retention_bytes_acts(run: Run) -> None:
    topic = make_topic(run, segment_bytes="1048576")
    tp = TopicPartition(topic, 0)
    with producer(run, linger_ms=5) as p:
        for f in [p.send(topic, b"x" * 10_000) for _ in range(500)]:
            f.get(timeout=10)
    with admin(run) as a, consumer(run) as c:
        same(c.beginning_offsets([tp])[tp], 0)
        alter(a, topic, {"retention.bytes": "1500000"})
        start = eventually(lambda: c.beginning_offsets([tp])[tp], 30)
        assert 100 < start <= 352, f"log start {start}: 149 of 500 records must stay, and not many more"
        same(c.end_offsets([tp])[tp], 500)
        c.assign([tp])
        c.seek(tp, start)
        take(c, 500 - start)


@suite.case(slow=True, limit=60)
def compaction_keeps_the_last_value_of_each_key(run: Run) -> None:
    topic = make_topic(
        run, cleanup_policy="compact", segment_ms="200", min_cleanable_dirty_ratio="0.001", delete_retention_ms="0"
    )
    with producer(run) as p:
        for i in range(20):
            for key in (b"a", b"b", b"c"):
                p.send(topic, b"%d" % i, key).get(timeout=10)
        p.send(topic, None, b"c").get(timeout=10)
        refusal = p.send(topic, b"no key")
        refused(E.InvalidRecordError, refusal.get, timeout=10)

    def compacted() -> bool:
        # Kafka compacts closed segments only: another record after segment.ms closes the one before.
        time.sleep(0.3)
        with producer(run) as p:
            p.send(topic, b"x", b"roll").get(timeout=10)
        return sum(b.count for b in stored(run, topic)) <= 10

    eventually(compacted, 40)
    with consumer(run, topic) as c:
        end = c.end_offsets([TopicPartition(topic, 0)])[TopicPartition(topic, 0)]
        records: list[Any] = []
        while not records or records[-1].offset < end - 1:
            for batch in c.poll(timeout_ms=200).values():
                records += batch
    same([(r.key, r.value, r.offset) for r in records if r.key in (b"a", b"b")], [(b"a", b"19", 57), (b"b", b"19", 58)])
    assert all(r.value is None for r in records if r.key == b"c"), "a value outlived its tombstone"


# Groups


@suite.case(attempts=RACE)
def describe_and_list_groups_by_state(run: Run) -> None:
    topic, group = make_topic(run, partitions=2), run.group()
    member = Member(run, group, topic, client_id="the-member", group_instance_id="the-instance")
    with admin(run) as a:
        eventually(lambda: member.partitions == {0, 1}, 15)
        description = eventually(lambda: (g := a.describe_groups([group])[group])["group_state"] == "Stable" and g)
        same((description["protocol_type"], description["protocol_data"]), ("consumer", "range"))
        its_member = description["members"][0]
        same((its_member["client_id"], its_member["group_instance_id"]), ("the-member", "the-instance"))
        assert its_member["client_host"], "no client host"
        same(its_member["member_assignment"]["assigned_partitions"][0]["partitions"], [0, 1])

        def listed(*states: str) -> list[tuple[str, str]]:
            return [
                (g["group_state"], g["protocol_type"])
                for g in a.list_groups(states_filter=states)
                if g["group_id"] == group
            ]

        same(listed(), [("Stable", "consumer")])
        same(listed("Stable"), [("Stable", "consumer")])
        same(listed("Empty", "Dead"), [])
        classic = [g for g in a.list_groups(types_filter=["classic"]) if g["group_id"] == group]
        same([g["group_type"].lower() for g in classic], ["classic"])
        member.leave()
        from kafka.admin import MemberToRemove

        a.remove_group_members(group, [MemberToRemove(group_instance_id="the-instance")])
        eventually(lambda: listed("Empty") == [("Empty", "consumer")], 15)


@suite.case()
def describe_an_unknown_group(run: Run) -> None:
    group = run.group()
    with admin(run) as a:
        description = a.describe_groups([group])[group]
        same(description["group_state"], "Dead")
        assert "GroupIdNotFound" in str(description["error"]), f"error {description['error']}"


@suite.case(attempts=RACE)
def delete_groups(run: Run) -> None:
    topic, group = make_topic(run), run.group()
    fill(run, topic, 2)
    member = Member(run, group, topic)
    with admin(run) as a:
        eventually(lambda: len(member.values) == 2, 15)
        same(a.delete_groups([group])[group], "NonEmptyGroupError")
        member.leave()
        eventually(lambda: a.delete_groups([group])[group] == "OK")
        assert group not in {g["group_id"] for g in a.list_groups()}, "still listed"
        same(a.delete_groups([group])[group], "GroupIdNotFoundError")


@suite.case(attempts=RACE)
def list_alter_and_delete_group_offsets(run: Run) -> None:
    topic, group = make_topic(run, partitions=2), run.group()
    fill(run, topic, 5)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with admin(run) as a:
        answer = a.alter_group_offsets(
            group, {first: OffsetAndMetadata(3, "note", -1), second: OffsetAndMetadata(0, "", -1)}
        )
        same(set(answer.values()), {E.NoError})
        offsets = a.list_group_offsets(group)[group]
        same({tp: (o.offset, o.metadata) for tp, o in offsets.items()}, {first: (3, "note"), second: (0, "")})
        same(a.list_group_offsets({group: [first]})[group][first].offset, 3)
        same(a.reset_group_offsets(group, {first: OffsetSpec.EARLIEST})[first]["offset"], 0)
        with consumer(run, topic, group_id=group) as c:
            same([r.offset for r in take(c, 5)], list(range(5)))
            c.commit()
            active = a.alter_group_offsets(group, {first: OffsetAndMetadata(1, "", -1)})
            same(active[first], E.UnknownMemberIdError, "alter while a member is there")
            same(a.delete_group_offsets(group, [first])[first], E.GroupSubscribedToTopicError)
        eventually(lambda: a.delete_group_offsets(group, [first])[first] is E.NoError)
        same(set(a.list_group_offsets(group)[group]), {second})


@suite.case()
def deleting_a_topic_deletes_its_committed_offsets(run: Run) -> None:
    topic, group = make_topic(run), run.group()
    tp = TopicPartition(topic, 0)
    with admin(run) as a:
        a.alter_group_offsets(group, {tp: OffsetAndMetadata(1, "", -1)})
        same(a.list_group_offsets(group)[group][tp].offset, 1)
        a.delete_topics([topic])
        eventually(lambda: tp not in a.list_group_offsets(group)[group])
        create(a, topic, num_partitions=1, replication_factor=1)
        eventually(lambda: topic in a.list_topics())
        assert tp not in a.list_group_offsets(group)[group], "the new topic has the old one's commit"


# The cluster


@suite.case()
def describe_cluster_and_quorum(run: Run) -> None:
    with admin(run) as a:
        cluster = a.describe_cluster()
        same(len(cluster["cluster_id"]), 22, "length of the cluster id")
        brokers = {b["broker_id"]: b for b in cluster["brokers"]}
        assert cluster["controller_id"] in brokers, f"controller {cluster['controller_id']} of {set(brokers)}"
        assert run.port in {b["port"] for b in brokers.values()}, f"{run.port} of {brokers}"
        same(a.describe_cluster()["cluster_id"], cluster["cluster_id"])
        quorum = a.describe_metadata_quorum()["topics"][0]["partitions"][0]
        same(len(quorum["current_voters"]), 1)
        same(quorum["current_voters"][0]["replica_id"], quorum["leader_id"])


@suite.case()
def describe_log_dirs_shows_sizes(run: Run) -> None:
    topic = make_topic(run, partitions=2)
    fill(run, topic, 10)
    with admin(run) as a:
        dirs = [d for broker in a.describe_log_dirs({topic: [0, 1]}) for d in broker["log_dirs"]]
        same([d["error_code"] for d in dirs], [0] * len(dirs))
        sizes = {
            p["partition_index"]: p["partition_size"]
            for d in dirs
            for t in d["topics"]
            if t["name"] == topic
            for p in t["partitions"]
        }
        same(set(sizes), {0, 1})
        assert sizes[0] >= 10 * 8, f"size {sizes[0]}"
        same(sizes[1], 0, "size of the empty partition")


@suite.case()
def describe_producers_shows_the_idempotent_one(run: Run) -> None:
    topic = make_topic(run)
    tp = TopicPartition(topic, 0)
    fill(run, topic, 5, enable_idempotence=True)
    with admin(run) as a:
        producers = a.describe_producers([tp])[tp].active_producers
        same(len(producers), 1)
        same((producers[0].last_sequence, producers[0].current_transaction_start_offset), (4, -1))
        same(producers[0].producer_id, stored(run, topic)[0].producer_id)


@suite.case()
def describe_topic_partitions_by_page(run: Run) -> None:
    topic = make_topic(run, partitions=5)
    with admin(run) as a:
        seen: list[int] = []
        cursor = None
        for _ in range(5):
            page = a.describe_topic_partitions([topic], response_partition_limit=2, cursor=cursor)
            same(page["topics"][0]["error_code"], 0)
            seen += [p["partition_index"] for p in page["topics"][0]["partitions"]]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        same(seen, [0, 1, 2, 3, 4])


@suite.case()
def reassignments_elections_and_acls_answer_truthfully(run: Run) -> None:
    topic = make_topic(run)
    with admin(run) as a:
        same(a.list_partition_reassignments(), {})
        election = a.elect_leaders(0, {topic: [0]}, raise_errors=False).to_dict()
        same(
            election["replica_election_results"][0]["partition_result"][0]["error_code"],
            84,
            "ELECTION_NOT_NEEDED is 84",
        )
        anything = ACLFilter(
            None,
            None,
            ACLOperation.ANY,
            ACLPermissionType.ANY,
            ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
        )
        if run.security is None:
            refused(E.SecurityDisabledError, a.describe_acls, anything)
        else:
            acls, _ = a.describe_acls(anything)
            same({acl.principal for acl in acls}, {f"User:{run.security.user}"}, "whom ACLs are about")


@suite.case()
def list_config_resources(run: Run) -> None:
    topic = make_topic(run)
    with admin(run) as a:
        resources = a.list_config_resources()
        assert topic in resources["topic"], "the topic is missing"
        broker = str(a.describe_cluster()["brokers"][0]["broker_id"])
        assert broker in resources["broker"], f"broker {broker} not in {resources['broker']}"
