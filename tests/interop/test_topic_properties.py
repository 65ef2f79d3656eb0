"""Properties that people and tools of Pulsar spoil or copy: what Kafka clients keep of a topic."""

from __future__ import annotations

from functools import partial

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from interop.interop_kit import SECONDS, Interop
from support.pulsar_admin import PulsarAdmin
from support.waiting import wait_until

from kop.pulsar_client.admin import FOREVER
from kop.storage.pulsar.layout import CONFIGS_PROPERTY, ID_PROPERTY, NAME_PROPERTY


def produce(interop: Interop, topic: str, *values: bytes) -> None:
    producer = ck.Producer({"bootstrap.servers": interop.gateway.bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(SECONDS) == 0


def values(interop: Interop, topic: str) -> list[bytes | None]:
    return [record.value for record in interop.read(topic, 0, interop.ends(topic)[1], interop.gateway)]


def committed(interop: Interop, group: str, topic: str) -> int:
    consumer = ck.Consumer({"bootstrap.servers": interop.gateway.bootstrap, "group.id": group})
    (position,) = consumer.committed([ck.TopicPartition(topic, 0)], SECONDS)
    consumer.close()
    return int(position.offset)


def looked_at(interop: Interop, topic: str, key: str) -> None:
    """Wait until the gateway has met a property that does not parse, or one that was copied."""
    engine, before = interop.gateway.engine, dict(interop.gateway.engine.counts)
    engine.loop.call_soon_threadsafe(engine.topics.watched, None, [interop.full(topic)], ())
    wait_until(lambda: engine.counts.get(key, 0) > before.get(key, 0), key)


def test_commits_outlive_configs_that_do_not_parse_and_a_client_mends_them(interop: Interop) -> None:
    topic = interop.create(interop.name("spoiled"), flush_ms="60000")
    produce(interop, topic, b"a", b"b")
    group = interop.name("group")
    consumer = ck.Consumer({"bootstrap.servers": interop.gateway.bootstrap, "group.id": group})
    consumer.commit(offsets=[ck.TopicPartition(topic, 0, 2)], asynchronous=False)
    consumer.close()
    admin = AdminClient({"bootstrap.servers": interop.gateway.bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    full = interop.full(topic)
    for text in ("{oops", "[]"):
        interop.admin(partial(PulsarAdmin.set_properties, topic=full, properties={CONFIGS_PROPERTY: text}))
        looked_at(interop, topic, "topic_settings/property_not_parsed")
        assert committed(interop, group, topic) == 2
        described = admin.describe_configs([resource])[resource].result(SECONDS)
        assert described["flush.ms"].value == "60000"
        assert values(interop, topic) == [b"a", b"b"]
    change = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[ConfigEntry("segment.ms", "7200000", incremental_operation=AlterConfigOpType.SET)],
    )
    admin.incremental_alter_configs([change])[change].result(SECONDS)
    kept = interop.admin(lambda client: client.partitioned_metadata(full)).properties[CONFIGS_PROPERTY]
    assert kept == '{"flush.ms": "60000", "segment.ms": "7200000"}'


def test_records_of_a_topic_that_was_cloned_with_its_properties_go_to_each_by_itself(interop: Interop) -> None:
    original, clone = interop.create(interop.name("original")), interop.name("clone")
    produce(interop, original, b"first")
    properties = interop.admin(lambda client: client.partitioned_metadata(interop.full(original))).properties
    interop.admin(lambda client: client.create_partitioned(interop.full(clone), 1, properties))
    interop.admin(lambda client: client.set_retention(interop.full(clone), FOREVER))
    for gateway in (interop.gateway, interop.other):
        interop.known(clone, gateway)
    produce(interop, original, b"second")
    produce(interop, clone, b"of the clone")
    assert values(interop, original) == [b"first", b"second"]
    assert values(interop, clone) == [b"of the clone"]
    ids = []
    for gateway in (interop.gateway, interop.other):
        topics = [gateway.engine.topics.get(name) for name in (original, clone)]
        ids.append([topic.topic_id for topic in topics if topic is not None])
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 2
    kept = interop.admin(lambda client: client.partitioned_metadata(interop.full(clone))).properties
    assert kept[NAME_PROPERTY] == interop.full(clone)
    assert kept[ID_PROPERTY] != properties[ID_PROPERTY]
