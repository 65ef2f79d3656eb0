"""What `kop check` and `kop offsets` say with a Pulsar behind them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator

import pytest
from cli.cli_support import Invoke
from support.pulsar import Pulsar, Urls, fresh_namespace
from support.pulsar_gateway import PulsarGateway
from support.waiting import SECONDS

from kop.cli import check, common
from kop.cli import pulsar as pulsar_rest
from kop.cli.check_pulsar import LOOKS, Caution
from kop.cli.common import CliError
from kop.pulsar_client.admin import Admin

AS_IT_SHOULD_BE = {
    "brokerEntryMetadataInterceptors": "[org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor, "
    "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor]",
    "exposingBrokerEntryMetadataToClientEnabled": "true",
    "systemTopicEnabled": "true",
    "topicLevelPoliciesEnabled": "true",
    "brokerDeduplicationEnabled": "false",
    "brokerDeduplicationMaxNumberOfProducers": "10000",
    "brokerDeduplicationProducerInactivityTimeoutMinutes": "360",
    "brokerDeduplicationEntriesInterval": "1000",
    "brokerDeduplicationSnapshotIntervalSeconds": "120",
    "maxMessageSize": "5242880",
}


def look(name: str, **changed: str) -> str:
    return dict(LOOKS)[name](AS_IT_SHOULD_BE | changed)


def test_settings_as_they_come_are_well_and_said_in_words() -> None:
    said = {name: look(name) for name, _ in LOOKS}
    assert not [name for name, text in said.items() if isinstance(text, Caution)]
    assert "10,000 producers, each until it is idle for 6 h" in said["idempotence"]
    assert "UNKNOWN_PRODUCER_ID" in said["idempotence"]
    assert "every 1,000 entries or 120 s" in said["snapshots"]
    assert "off by default" in said["deduplication"]
    assert look("deduplication", brokerDeduplicationEnabled="true") == "on for every topic"
    assert "5,242,880 bytes" in said["message size"]


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        (
            "entry index",
            {"brokerEntryMetadataInterceptors": "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"},
            "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor",
        ),
        ("idempotence", {"brokerDeduplicationMaxNumberOfProducers": "100"}, "raise brokerDeduplicationMaxNumberOf"),
        ("idempotence", {"brokerDeduplicationProducerInactivityTimeoutMinutes": "5"}, "idle for 5 minutes"),
        ("idempotence", {"brokerDeduplicationMaxNumberOfProducers": ""}, "does not say"),
        ("snapshots", {"brokerDeduplicationEntriesInterval": "1000000"}, "lower brokerDeduplicationEntriesInterval"),
        ("snapshots", {"brokerDeduplicationSnapshotIntervalSeconds": "0"}, "quiet topic"),
        ("message size", {"maxMessageSize": "65536"}, "raise maxMessageSize"),
        ("message size", {"maxMessageSize": ""}, "does not say"),
    ],
)
def test_small_values_are_noted(name: str, changed: dict[str, str], said: str) -> None:
    verdict = look(name, **changed)
    assert isinstance(verdict, Caution)
    assert said in verdict


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("entry index", {"brokerEntryMetadataInterceptors": "[]"}, "brokerEntryMetadataInterceptors=org.apache"),
        ("entry index", {"exposingBrokerEntryMetadataToClientEnabled": "false"}, "ToClientEnabled=true"),
        ("topic policies", {"topicLevelPoliciesEnabled": "false"}, "topicLevelPoliciesEnabled must be true"),
        ("topic policies", {"systemTopicEnabled": "false"}, "systemTopicEnabled must be true"),
        ("idempotence", {"brokerDeduplicationMaxNumberOfProducers": "many"}, "no number"),
    ],
)
def test_what_cannot_work_fails(name: str, changed: dict[str, str], said: str) -> None:
    with pytest.raises(CliError, match=said):
        look(name, **changed)


# --- with a real one


@pytest.fixture(scope="module")
def checked(pulsar_urls: Urls) -> Iterator[Pulsar]:
    """A namespace in which no other test makes or deletes topics while the check looks at all of them."""
    with fresh_namespace(pulsar_urls) as namespace:
        yield namespace


@pytest.fixture(scope="module")
def served(checked: Pulsar) -> Iterator[PulsarGateway]:
    gateway = PulsarGateway(checked, f"cli-{secrets.token_hex(2)}")
    gateway.start()
    yield gateway
    gateway.stop()


def test_check_looks_at_pulsar_where_its_address_is_given(
    served: PulsarGateway, checked: Pulsar, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loaded machine may take longer than a user's patience, by which the check judges."""
    monkeypatch.setattr(check, "STEP_SECONDS", SECONDS)
    monkeypatch.setattr(common, "BOOTSTRAP_MS", int(SECONDS * 1000))
    monkeypatch.setattr(pulsar_rest, "ANSWER_SECONDS", SECONDS)
    arguments = "check", "--bootstrap", served.bootstrap, "--admin-url", checked.admin_url
    result = invoke(*arguments, env={"KOP_PULSAR_NAMESPACE": checked.namespace})
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    marks = {line[6:].split("  ")[0]: line.split()[0] for line in lines[:-1]}
    assert {"Pulsar", "older entries", *(name for name, _ in LOOKS)} <= marks.keys()
    assert set(marks.values()) == {"ok"}, result.output
    assert lines[-1].startswith(f"Everything works: all {15 + 2 + len(LOOKS)} steps")


def test_check_takes_the_address_from_the_environment_and_tells_of_a_wrong_one(invoke: Invoke) -> None:
    environ = {"KOP_PULSAR_ADMIN_URL": "http://127.0.0.1:1", "KOP_PULSAR_AUTH": "token:very-secret"}
    result = invoke("check", "--bootstrap", "127.0.0.1:1", env=environ)
    assert result.exit_code == 1
    assert "FAIL  connect" in result.stdout
    assert "FAIL  Pulsar" in result.stdout
    assert "no connection to http://127.0.0.1:1 (Connection refused); see --admin-url" in result.stdout
    assert "Pulsar says" not in result.stdout, "it said nothing"
    assert "very-secret" not in result.output
    wrong = invoke("check", "--bootstrap", "127.0.0.1:1", env=environ | {"KOP_PULSAR_AUTH": "very-secret"})
    assert "kop.pulsar.auth" in wrong.stdout
    assert "very-secret" not in wrong.output


def test_offsets_of_a_topic_by_its_full_name(pulsar: Pulsar, invoke: Invoke) -> None:
    from kop.pulsar_client import Client
    from kop.pulsar_client.proto import pulsar_pb2 as pb

    topic = pulsar.topic("offsets")

    async def write() -> str:
        async with Admin(pulsar.admin_url) as admin:
            await admin.create_partitioned(topic, 1, {})
        client = Client(pulsar.service_url)
        await client.start()
        producer = await client.open_producer(f"{topic}-partition-0")
        for number in range(3):
            metadata = pb.MessageMetadata(producer_name=producer.name, sequence_id=number, publish_time=1)
            place = await producer.send(
                metadata.SerializeToString(), b"x", sequence_id=number, highest_sequence_id=None, num_messages=1
            )
        await producer.close()
        await client.close()
        return f"{place.ledger}:{place.entry}"

    message_id = asyncio.run(write())
    for name in (topic, topic.removeprefix("persistent://")):
        result = invoke("offsets", name, "--message-id", message_id, "--admin-url", pulsar.admin_url)
        assert (result.exit_code, result.stdout) == (0, "2\n"), result.output
        back = invoke("offsets", name, "--offset", "2", "--admin-url", pulsar.admin_url)
        assert back.stdout == f"{message_id}:0\n"
    both = invoke("offsets", topic, "--offset", "2", "--namespace", "a/b")
    assert both.exit_code == 2
