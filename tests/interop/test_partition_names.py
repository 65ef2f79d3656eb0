"""Names with `-partition-` in them, which Pulsar keeps for the partitions of its topics."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from interop.interop_kit import Interop, raw, run
from support.pulsar_admin import PulsarAdmin
from support.waiting import SECONDS

from kop.errors import ErrorCode
from kop.pulsar_client import PulsarError
from kop.wire.messages import REQUESTS

REFUSED = ErrorCode.INVALID_TOPIC_EXCEPTION
NAMES = ("{}-partition-1", "{}-partition-01", "{}-partition-", "{}-partition-a", "{}-partition-1y", "-partition-{}")
TAKEN = ("{}-partition", "{}-partition1", "partition-{}", "{}-PARTITION-1", "{}_partition_1")


def names(interop: Interop, forms: tuple[str, ...]) -> list[str]:
    stem = interop.name("n")
    return [form.format(stem) for form in forms]


def metadata(interop: Interop, *asked: str) -> dict[str, int]:
    """Error codes of a Metadata request that may make topics."""
    row = REQUESTS[3].MetadataRequestTopic
    topics = [row(version=12, name=name, topic_id=None) for name in asked]
    fields: dict[str, Any] = {"allow_auto_topic_creation": True, "include_topic_authorized_operations": False}

    async def do() -> Any:
        async with raw(interop.gateway) as client:
            return await client.call(3, 12, topics=topics, **fields)

    return {topic.name: topic.error_code for topic in run(do()).topics}


def create(interop: Interop, asked: list[str], *, validate_only: bool) -> dict[str, tuple[int, str]]:
    """Codes and texts of CreateTopics."""
    row = REQUESTS[19].CreatableTopic
    topics = [
        row(version=7, name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[]) for name in asked
    ]

    async def do() -> Any:
        async with raw(interop.gateway) as client:
            return await client.call(19, 7, topics=topics, timeout_ms=10_000, validate_only=validate_only)

    return {topic.name: (topic.error_code, topic.error_message or "") for topic in run(do()).topics}


@pytest.mark.parametrize("validate_only", [True, False])
def test_create_topics_refuses_what_pulsar_refuses_and_takes_what_it_takes(
    interop: Interop, validate_only: bool
) -> None:
    bad, good = names(interop, NAMES), names(interop, TAKEN)
    answers = create(interop, bad, validate_only=validate_only)
    assert {name: code for name, (code, _) in answers.items()} == dict.fromkeys(bad, REFUSED)
    assert all("Pulsar names the partitions of its topics" in text for _, text in answers.values())
    for name in good:  # in one request some of them would collide
        assert create(interop, [name], validate_only=validate_only) == {name: (0, "")}


def test_pulsar_makes_no_such_topic_itself(interop: Interop) -> None:
    for name in names(interop, NAMES):
        with pytest.raises(PulsarError, match="-partition-"):
            interop.admin(
                partial(PulsarAdmin.create_partitioned, topic=interop.full(name), partitions=1, properties={})
            )


def test_a_full_name_is_held_to_the_same(interop: Interop) -> None:
    bad = [interop.full(name) for name in names(interop, NAMES)]
    bad += [f"{interop.pulsar.namespace}-other/{name}" for name in names(interop, NAMES)]
    answers = create(interop, bad, validate_only=True)
    assert {name: code for name, (code, _) in answers.items()} == dict.fromkeys(bad, REFUSED)


def test_metadata_makes_no_such_topic(interop: Interop) -> None:
    bad = names(interop, NAMES)
    assert metadata(interop, *bad) == dict.fromkeys(bad, REFUSED)


def test_a_producer_is_told_at_once(interop: Interop) -> None:
    (name,) = names(interop, NAMES[:1])
    told: list[Any] = []
    producer = ck.Producer({"bootstrap.servers": interop.gateway.bootstrap, "message.timeout.ms": 60_000})
    begin = time.monotonic()
    producer.produce(name, b"x", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(50) == 0
    assert told[0].code() in {ck.KafkaError.TOPIC_EXCEPTION, ck.KafkaError._UNKNOWN_TOPIC}
    assert time.monotonic() - begin < 45  # not by the message's own time limit


def values_from(interop: Interop, name: str, offset: int) -> list[bytes | None]:
    return [record.value for record in interop.read(name, offset, interop.ends(name)[1], interop.gateway)]


def test_a_topic_that_pulsar_clients_gave_such_a_name_stays_in_use(interop: Interop) -> None:
    (name,) = names(interop, ("{}-partition-1y",))
    interop.admin(lambda admin: admin.create_plain(interop.full(name), {}))
    interop.known(name)
    interop.send(interop.full(name), [{"content": b"native"}])
    interop.ended(name, 1)
    assert metadata(interop, name) == {name: 0}
    assert values_from(interop, name, 0) == [b"native"]
    assert create(interop, [name], validate_only=False)[name][0] == ErrorCode.TOPIC_ALREADY_EXISTS
    producer = ck.Producer({"bootstrap.servers": interop.gateway.bootstrap})
    producer.produce(name, b"kafka")
    assert producer.flush(SECONDS) == 0
    assert values_from(interop, name, 1) == [b"kafka"]
    admin = AdminClient({"bootstrap.servers": interop.gateway.bootstrap})
    with pytest.raises(ck.KafkaException, match="already exists"):
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(SECONDS)
