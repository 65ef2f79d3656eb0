"""What Kafka tools set on a topic holds in Pulsar, and reads back true."""

from __future__ import annotations

from functools import partial

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from interop.interop_kit import SECONDS, Interop
from support.waiting import wait_until

from kop.pulsar_client import PulsarError
from kop.pulsar_client.admin import Retention
from kop.storage.pulsar.topics.policies import set_retention

DAY = 86_400_000


def described(interop: Interop, topic: str) -> dict[str, tuple[str, bool]]:
    """Value, and whether it is a default, of each config of a topic."""
    admin = AdminClient({"bootstrap.servers": interop.gateway.bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries = admin.describe_configs([resource])[resource].result(SECONDS)
    return {name: (entry.value, entry.is_default) for name, entry in entries.items()}


def alter(interop: Interop, topic: str, **values: str | None) -> None:
    """IncrementalAlterConfigs; None takes a value back."""
    entries = [
        ConfigEntry(
            name.replace("_", "."),
            value or "",
            incremental_operation=AlterConfigOpType.SET if value is not None else AlterConfigOpType.DELETE,
        )
        for name, value in values.items()
    ]
    admin = AdminClient({"bootstrap.servers": interop.gateway.bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(SECONDS)


def policies(interop: Interop, topic: str) -> tuple[Retention | None, int]:
    """Retention and compaction threshold that hold for a topic in Pulsar."""
    full = interop.full(topic)
    retention = interop.admin(lambda admin: admin.get_retention(full, applied=True))
    return retention, interop.admin(lambda admin: admin.get_compaction_threshold(full, applied=True)) or 0


def retains(interop: Interop, topic: str, retention: Retention) -> bool:
    """Whether this retention holds for a topic in Pulsar."""
    return policies(interop, topic)[0] == retention


def test_a_new_topic_has_kafkas_retention_in_pulsar(interop: Interop) -> None:
    topic = interop.create(interop.name("defaults"))
    assert policies(interop, topic) == (Retention(7 * 24 * 60, -1), 0)
    configs = described(interop, topic)
    assert configs["retention.ms"] == (str(7 * DAY), True)
    assert configs["cleanup.policy"] == ("delete", True)
    full = interop.full(topic)
    idle = interop.admin(lambda admin: admin.policy(full, "inactiveTopicPolicies", applied=True))
    assert idle["deleteWhileInactive"] is False


def test_configs_of_a_new_topic_hold_and_read_back(interop: Interop) -> None:
    topic = interop.create(interop.name("given"), retention_ms=str(DAY), retention_bytes=str(64 << 20))
    assert policies(interop, topic) == (Retention(24 * 60, 64), 0)
    configs = described(interop, topic)
    assert (configs["retention.ms"], configs["retention.bytes"]) == ((str(DAY), False), (str(64 << 20), False))
    assert configs["segment.bytes"][1]


def test_retention_that_pulsar_cannot_count_is_for_ever_there_and_reads_back_as_given(interop: Interop) -> None:
    """Debezium gives its schema history topic the largest number."""
    largest, most_minutes = 2**63 - 1, (2**31 - 1) // 60
    topic = interop.create(interop.name("largest"), retention_ms=str(largest), retention_bytes=str(largest))
    for ms, minutes in ((largest, -1), (most_minutes * 60_000, most_minutes), (most_minutes * 60_000 + 1, -1)):
        alter(interop, topic, retention_ms=str(ms))
        assert policies(interop, topic)[0] == Retention(minutes, -1)
        configs = described(interop, topic)
        assert (configs["retention.ms"], configs["retention.bytes"]) == ((str(ms), False), (str(largest), False))


def test_altered_configs_hold_and_read_back(interop: Interop) -> None:
    topic = interop.create(interop.name("altered"))
    alter(interop, topic, retention_ms=str(2 * DAY))
    assert policies(interop, topic) == (Retention(2 * 24 * 60, -1), 0)
    assert described(interop, topic)["retention.ms"] == (str(2 * DAY), False)
    alter(interop, topic, cleanup_policy="compact", retention_ms=None)
    retention, threshold = policies(interop, topic)
    assert (retention, threshold > 0) == (Retention(-1, -1), True)
    configs = described(interop, topic)
    assert (configs["cleanup.policy"], configs["retention.ms"]) == (("compact", False), (str(7 * DAY), True))
    alter(interop, topic, cleanup_policy=None)
    assert policies(interop, topic) == (Retention(7 * 24 * 60, -1), 0)


def test_what_somebody_changed_in_pulsar_is_told(interop: Interop) -> None:
    topic = interop.create(interop.name("elsewhere"))
    full = interop.full(topic)
    for retention, ms, size in ((Retention(60, 5), 3_600_000, 5 << 20), (Retention(-1, -1), -1, -1)):
        interop.admin(partial(set_retention, full_name=full, retention=retention))
        wait_until(partial(retains, interop, topic, retention), "the policy holds")
        configs = described(interop, topic)
        assert (configs["retention.ms"], configs["retention.bytes"]) == ((str(ms), False), (str(size), False))
        assert configs["cleanup.policy"] == ("delete", True)
    interop.admin(lambda admin: admin.set_compaction_threshold(full, 1 << 20))
    wait_until(lambda: policies(interop, topic)[1] == 1 << 20, "the policy holds")
    assert described(interop, topic)["cleanup.policy"] == ("compact", False)


@pytest.mark.parametrize("own", [True, False], ids=["with its own", "without its own"])
def test_a_value_that_somebody_changed_in_pulsar_is_set_again(interop: Interop, own: bool) -> None:
    name = interop.name("again")
    topic = interop.create(name, retention_ms=str(7 * DAY)) if own else interop.create(name)
    full, hour = interop.full(topic), Retention(60, -1)
    for value in (str(7 * DAY), None):
        interop.admin(partial(set_retention, full_name=full, retention=hour))
        wait_until(partial(retains, interop, topic, hour), "the policy holds")
        assert described(interop, topic)["retention.ms"] == ("3600000", False)
        alter(interop, topic, segment_ms="1000000")
        assert policies(interop, topic)[0] == hour  # nobody asked for another one
        alter(interop, topic, retention_ms=value)
        assert policies(interop, topic)[0] == Retention(7 * 24 * 60, -1)
        assert described(interop, topic)["retention.ms"] == (str(7 * DAY), value is None)


def test_a_topic_of_pulsar_clients_gets_the_default_that_is_asked_for(interop: Interop) -> None:
    topic = interop.name("asked")
    interop.admin(lambda admin: admin.create_partitioned(interop.full(topic), 1, {}))
    interop.known(topic)
    assert policies(interop, topic) == (Retention(-1, -1), 0)
    alter(interop, topic, retention_ms=str(7 * DAY), cleanup_policy="delete")
    assert policies(interop, topic) == (Retention(7 * 24 * 60, -1), 0)
    assert described(interop, topic)["retention.ms"] == (str(7 * DAY), False)


def test_a_topic_of_pulsar_clients_shows_the_policies_of_its_namespace(interop: Interop) -> None:
    topic = interop.name("foreign")
    interop.admin(lambda admin: admin.create_partitioned(interop.full(topic), 1, {}))
    interop.known(topic)
    assert policies(interop, topic) == (Retention(-1, -1), 0)
    configs = described(interop, topic)
    assert (configs["retention.ms"], configs["retention.bytes"]) == (("-1", False), ("-1", False))


def entry_limit(interop: Interop, topic: str) -> int | None:
    """The most bytes of an entry that hold for a topic in Pulsar."""
    return interop.admin(lambda admin: admin.get_max_message_size(interop.full(topic), applied=True))


def is_taken(interop: Interop, partition: str, size: int) -> bool:
    """Whether Pulsar takes an entry of so many bytes; False where a limit forbids that."""
    try:
        interop.send_made(partition, ({}, b"x" * size))
    except PulsarError as error:
        if "size" not in error.message:
            raise
        return False
    return True


def test_pulsars_producers_are_held_to_a_topics_max_message_bytes(interop: Interop) -> None:
    topic = interop.create(interop.name("bounded"), max_message_bytes="100000")
    assert entry_limit(interop, topic) == 6 * 100_000 + 64 * 1024
    assert described(interop, topic)["max.message.bytes"] == ("100000", False)
    partition = interop.partition(topic)
    interop.send_made(partition, ({}, b"x" * 90_000))
    with pytest.raises(PulsarError, match="size"):  # pulsar-client would send it again and again
        interop.send_made(partition, ({}, b"x" * 700_000))
    # Small records with headers grow most on their way into an entry.
    record = {"key": b"\xff", "value": None, "headers": [("h", None)]}
    sizes = {"message.max.bytes": 100_000, "batch.size": 100_000, "batch.num.messages": 100_000, "linger.ms": 200}
    assert interop.produce(topic, [record] * 8000, sizes) == list(range(1, 8001))
    alter(interop, topic, max_message_bytes=None)
    wait_until(lambda: entry_limit(interop, topic) in (None, 0, 5 << 20), "only the broker's limit holds")
    wait_until(lambda: is_taken(interop, partition, 700_000), "it holds for the partition that is loaded, too")
    interop.admin(lambda admin: admin.set_max_message_size(interop.full(topic), 50_000))
    wait_until(lambda: entry_limit(interop, topic) == 50_000, "the policy holds")
    assert described(interop, topic)["max.message.bytes"] == ("50000", False)


def test_a_topic_without_a_limit_of_its_own_leaves_pulsars_producers_alone(interop: Interop) -> None:
    topic = interop.create(interop.name("unbounded"))
    producer = interop.native.create_producer(interop.full(topic))
    producer.send(b"x" * 4_000_000)
    producer.close()
    assert described(interop, topic)["max.message.bytes"] == ("1048588", True)
