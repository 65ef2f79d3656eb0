"""The admin REST interface of a real Pulsar: what each request does, and what is refused how."""

from __future__ import annotations

import asyncio
import base64
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import aiohttp
import pytest
from support.gateway import run
from support.pulsar import OwnBroker, Pulsar, Urls, fresh_namespace
from support.pulsar_admin import PulsarAdmin
from support.waiting import until

from kop.background import retried
from kop.pulsar_client.admin import FOREVER, IDLE_TOPICS_STAY, Retention
from kop.pulsar_client.errors import PulsarError


async def refusal(call: Awaitable[Any]) -> PulsarError:
    with pytest.raises(PulsarError) as caught:
        await call
    return caught.value


async def publish(pulsar: Pulsar | Urls, topic: str, count: int) -> None:
    """Send `count` messages as one entry through the broker's WebSocket door."""
    path = topic.replace("://", "/")
    query = f"batchingEnabled=true&batchingMaxMessages={count}&batchingMaxPublishDelay=20000&compressionType=LZ4"
    url = f"{pulsar.admin_url.replace('http', 'ws')}/ws/v2/producer/{path}?{query}"
    async with aiohttp.ClientSession() as session, session.ws_connect(url) as socket:
        for i in range(count):
            await socket.send_json({"payload": base64.b64encode(b"v%d" % i).decode(), "key": "k"})
        for _ in range(count):
            assert (await socket.receive_json())["result"] == "ok"


def real(pulsar: Pulsar, main: Callable[[PulsarAdmin], Awaitable[None]]) -> None:
    async def opened() -> None:
        async with PulsarAdmin(pulsar.admin_url, timeout=100) as admin:
            await main(admin)

    run(opened())


def test_a_partitioned_topic_from_birth_to_death(pulsar: Pulsar) -> None:
    topic = pulsar.topic("ä b%?#&")

    async def main(admin: PulsarAdmin) -> None:
        await admin.create_partitioned(topic, 2, {"id": "1", "text": "ü\n\"'"})
        metadata = await admin.partitioned_metadata(topic)
        assert (metadata.partitions, metadata.properties) == (2, {"id": "1", "text": "ü\n\"'"})
        for again in (admin.create_partitioned(topic, 3, {"id": "2"}), admin.create_plain(topic, {})):
            assert (await refusal(again)).code == "Conflict"
        assert (await admin.properties(topic))["id"] == "1"
        await admin.set_properties(topic, {"more": "x"})
        await admin.remove_property(topic, "text")
        await admin.remove_property(topic, "never was")
        assert await admin.properties(topic) == {"id": "1", "more": "x"}
        await admin.grow(topic, 3)
        await admin.grow(topic, 3)
        assert (await refusal(admin.grow(topic, 2))).code == "BadRequest"
        metadata = await admin.partitioned_metadata(topic)
        assert (metadata.partitions, metadata.properties) == (3, {"id": "1", "more": "x"})
        assert topic in await admin.list_partitioned(pulsar.namespace)
        assert {f"{topic}-partition-{i}" for i in range(3)} <= set(await admin.list_topics(pulsar.namespace))
        assert (await refusal(admin.delete_plain(topic))).code == "Conflict"
        await admin.delete_partitioned(topic)
        for call in (admin.partitioned_metadata(topic), admin.properties(topic), admin.delete_partitioned(topic)):
            assert (await refusal(call)).code == "NotFound"
        assert not [name for name in await admin.list_topics(pulsar.namespace) if name.startswith(topic)]

    real(pulsar, main)


def test_a_plain_topic_hides_the_brokers_own_property(pulsar: Pulsar) -> None:
    topic = pulsar.topic()

    async def main(admin: PulsarAdmin) -> None:
        await admin.create_plain(topic, {"id": "1"})
        metadata = await admin.partitioned_metadata(topic)
        assert (metadata.partitions, metadata.properties) == (0, {})
        assert await admin.properties(topic) == {"id": "1"}
        for call in (
            admin.set_properties(topic, {"index": "5"}),
            admin.remove_property(topic, "index"),
            admin.create_plain(topic, {"index": "5"}),
        ):
            assert (await refusal(call)).code == "BadRequest"
        assert await admin.closed_index(topic) == -1
        await admin.delete_plain(topic)
        assert (await refusal(admin.closed_index(topic))).code == "NotFound"

    real(pulsar, main)


def test_policies_are_read_back(pulsar: Pulsar) -> None:
    topic = pulsar.topic()

    async def main(admin: PulsarAdmin) -> None:
        await admin.create_partitioned(topic, 1, {})
        assert await admin.get_retention(topic) is None
        assert await admin.get_retention(topic, applied=True) == FOREVER
        # One that is set while another is on its way may undo that, see `kop.storage.pulsar.topics.policies`.
        await admin.set_retention(topic, Retention(10080, -1))
        await until(lambda: admin.get_retention(topic))
        await admin.set_deduplication(topic, True)
        await until(lambda: admin.get_deduplication(topic))
        await admin.set_compaction_threshold(topic, 2**40)
        await until(lambda: admin.get_compaction_threshold(topic))
        await admin.set_max_message_size(topic, 1_000_000)
        await until(lambda: admin.get_max_message_size(topic))
        await admin.keep_when_idle(topic)
        await until(lambda: admin.policy(topic, "inactiveTopicPolicies"))
        assert not await admin.has_publish_rate(topic)
        await admin.set_publish_rate(topic, messages=100)
        await until(lambda: admin.has_publish_rate(topic))

        async def in_force() -> bool:
            return (
                await admin.get_retention(topic)
                == Retention(10080, -1)
                == await admin.get_retention(topic, applied=True)
                and await admin.get_deduplication(topic, applied=True) is True
                and await admin.get_compaction_threshold(topic) == 2**40
                and await admin.get_max_message_size(topic, applied=True) == 1_000_000
                and await admin.policy(topic, "inactiveTopicPolicies") == IDLE_TOPICS_STAY
                and (await admin.policy(topic, "publishRate"))["publishThrottlingRateInMsg"] == 100
            )

        await until(in_force)
        assert (await refusal(admin.set_retention(topic, Retention(0, -1)))).code == "BadRequest"
        await admin.remove_retention(topic)

        async def retention_is_removed() -> bool:
            return await admin.get_retention(topic) is None

        await until(retention_is_removed)
        await admin.remove_policy(topic, "deduplicationEnabled")

        async def both_are_removed() -> bool:
            return await admin.get_retention(topic) is None and await admin.get_deduplication(topic) is None

        await until(both_are_removed)
        missing = pulsar.topic("missing")
        assert (await refusal(admin.set_retention(missing, FOREVER))).code == "NotFound"

    real(pulsar, main)


def test_namespaces_and_tenants(pulsar: Pulsar) -> None:
    tenant = f"tenant-{secrets.token_hex(4)}"
    namespace = f"{tenant}/ns"

    async def main(admin: PulsarAdmin) -> None:
        assert await admin.clusters()
        assert await admin.version()
        settings = await admin.broker_config()
        assert settings["brokerDeduplicationEnabled"] in {"true", "false"}
        assert int(settings["maxMessageSize"]) > 0
        assert (await refusal(admin.create_namespace(namespace))).code == "NotFound"
        await admin.create_tenant(tenant)
        assert (await refusal(admin.create_tenant(tenant))).code == "Conflict"
        assert not await admin.namespace_exists(namespace)
        retention = {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1}
        await admin.create_namespace(namespace, {"retention_policies": retention, "deduplicationEnabled": True})
        assert await admin.namespace_exists(namespace)
        assert (await refusal(admin.create_namespace(namespace))).code == "Conflict"
        assert await admin.get_namespace_retention(namespace) == Retention(5, -1)
        assert await admin.namespace_policy(namespace, "deduplication") is True
        assert (await admin.namespace_policies(namespace))["retention_policies"] == retention
        await admin.set_namespace_retention(namespace, FOREVER)
        await admin.set_namespace_policy(namespace, "inactiveTopicPolicies", IDLE_TOPICS_STAY)
        await admin.set_namespace_policy(namespace, "compactionThreshold", 5)
        assert await admin.get_namespace_retention(namespace) == FOREVER
        assert await admin.namespace_policy(namespace, "compactionThreshold") == 5
        await admin.remove_namespace_policy(namespace, "retention")
        assert await admin.get_namespace_retention(namespace) is None
        topic = f"persistent://{namespace}/x"
        await admin.create_plain(topic, {})
        assert (await refusal(admin.delete_namespace(namespace))).code == "Conflict"
        before = await admin.bundles(namespace)
        bundle = await admin.bundle_of(topic)
        assert bundle in before
        await admin.split_bundle(namespace, bundle)
        assert len(await admin.bundles(namespace)) == len(before) + 1
        await admin.unload_bundle(namespace, await admin.bundle_of(topic))
        assert await admin.properties(topic) == {}
        await admin.delete_plain(topic)
        # Pulsar deletes its own topics there, too, and refuses that while the unload closes one of them.
        delete = partial(admin.delete_namespace, namespace)
        await retried("delete the namespace", delete, passes=lambda error: "fenced" in str(error), seconds=30)
        assert (await refusal(admin.list_topics(namespace))).code == "NotFound"
        await admin.delete_tenant(tenant)

    real(pulsar, main)


def test_a_look_into_the_log(pulsar: Pulsar) -> None:
    topic = pulsar.topic()

    async def main(admin: PulsarAdmin) -> None:
        begin = int(time.time() * 1000)
        await admin.create_plain(topic, {})
        await publish(pulsar, topic, 5)
        await asyncio.sleep(0.05)  # Pulsar counts in milliseconds
        between = int(time.time() * 1000)
        await publish(pulsar, topic, 3)
        stats = await admin.internal_stats(topic)
        ledger = stats["ledgers"][0]["ledgerId"]
        assert stats["lastConfirmedEntry"] == f"{ledger}:1"
        assert (await admin.stats(topic))["msgInCounter"] == 8
        first, second = await admin.entry(topic, ledger, 0), await admin.entry(topic, ledger, 1)
        assert (first.index, first.num_messages) == (4, 5)
        assert (second.index, second.num_messages) == (7, 3)
        assert b"v4" in first.payload  # decompressed
        assert first.headers["X-Pulsar-compression"] == "LZ4"
        assert first.broker_timestamp
        for missing in ((ledger, 2), (ledger, 99), (2**40, 0)):
            assert (await refusal(admin.entry(topic, *missing))).code == "NotFound"
        assert await admin.message_id_by_time(topic, begin - 1000) == (ledger, 0)
        assert await admin.message_id_by_time(topic, between) == (ledger, 1)
        assert await admin.message_id_by_time(topic, between + 3_600_000) == (ledger, 2)

    real(pulsar, main)


def test_the_end_of_an_emptied_log_is_still_known(pulsar: Pulsar) -> None:
    topic = pulsar.topic()

    async def main(admin: PulsarAdmin) -> None:
        await admin.create_plain(topic, {"id": "1"})
        await publish(pulsar, topic, 5)
        await publish(pulsar, topic, 5)
        assert await admin.closed_index(topic) == -1  # the ledger is open
        await admin.unload(topic)

        async def loaded() -> bool:
            return await admin.closed_index(topic) == 9

        await until(loaded)
        await admin.truncate(topic)

        async def emptied() -> bool:
            await admin.trim(topic)
            return (await admin.internal_stats(topic))["numberOfEntries"] == 0

        await until(emptied)
        await admin.unload(topic)
        await admin.set_properties(topic, {"other": "2"})
        assert await until(lambda: admin.closed_index(topic)) == 9
        await publish(pulsar, topic, 2)
        ledger = (await admin.internal_stats(topic))["ledgers"][-1]["ledgerId"]
        assert (await admin.entry(topic, ledger, 0)).index == 11
        assert await admin.properties(topic) == {"id": "1", "other": "2"}

    real(pulsar, main)


def test_subscriptions_move_and_never_bring_a_topic_back(pulsar: Pulsar) -> None:
    topic = pulsar.topic()

    async def main(admin: PulsarAdmin) -> None:
        assert (await refusal(admin.create_subscription(topic, "s", 0, 0))).code == "NotFound"
        assert topic not in await admin.list_topics(pulsar.namespace)
        await admin.create_plain(topic, {})
        for _ in range(4):
            await publish(pulsar, topic, 2)
        ledger = (await admin.internal_stats(topic))["ledgers"][0]["ledgerId"]

        async def marked() -> str:
            return str((await admin.internal_stats(topic))["cursors"]["g%2F1"]["markDeletePosition"])

        await admin.create_subscription(topic, "g/1", ledger, 1)
        assert (await refusal(admin.create_subscription(topic, "g/1", ledger, 1))).code == "Conflict"
        assert await marked() == f"{ledger}:0"
        await admin.expire_messages(topic, "g/1", ledger, 2)

        async def moved() -> bool:
            return await marked() == f"{ledger}:2"

        await until(moved)
        await admin.reset_cursor(topic, "g/1", ledger, 1)
        assert await marked() == f"{ledger}:0"
        await admin.delete_subscription(topic, "g/1")
        assert (await refusal(admin.delete_subscription(topic, "g/1"))).code == "NotFound"

    real(pulsar, main)


def test_compaction_runs_to_its_end(pulsar: Pulsar) -> None:
    topic = pulsar.topic()

    async def main(admin: PulsarAdmin) -> None:
        await admin.create_plain(topic, {})
        await publish(pulsar, topic, 5)
        assert (await admin.compaction_status(topic)).status == "NOT_RUN"
        await admin.compact(topic)

        async def done() -> bool:
            return (await admin.compaction_status(topic)).status == "SUCCESS"

        await until(done)

        async def told() -> bool:  # the compaction has ended when its last word to the topic is on its way
            return bool((await admin.internal_stats(topic))["compactedLedger"]["entries"] == 1)

        await until(told)
        assert (await refusal(admin.compact(pulsar.topic("missing")))).code == "NotFound"

    real(pulsar, main)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_end_of_a_log_survives_a_killed_broker(own_broker: OwnBroker) -> None:
    urls = own_broker.start()
    topic = "persistent://public/default/x"

    async def before() -> None:
        async with PulsarAdmin(urls.admin_url, timeout=100) as admin:
            await admin.create_plain(topic, {})
            await admin.set_retention(topic, FOREVER)
            for _ in range(2):
                await publish(urls, topic, 5)

    async def after(end: int) -> None:
        async with PulsarAdmin(urls.admin_url, timeout=100) as admin:
            assert await admin.closed_index(topic) == end
            await publish(urls, topic, 5)

    run(before())
    own_broker.kill()
    assert own_broker.start() == urls
    run(after(9))
    own_broker.stop()
    assert own_broker.start() == urls
    run(after(14))


def test_a_namespace_is_gone_after_its_tests(pulsar_urls: Urls) -> None:
    with fresh_namespace(pulsar_urls) as pulsar:
        topic = pulsar.topic()

        async def fill() -> None:
            async with PulsarAdmin(pulsar.admin_url, timeout=100) as admin:
                assert await admin.get_namespace_retention(pulsar.namespace) == FOREVER
                await admin.create_partitioned(topic, 2, {})
                await admin.create_plain(pulsar.topic(), {})
                await admin.create_namespace(f"{pulsar.namespace}-kop")
                await admin.create_partitioned(f"persistent://{pulsar.namespace}-kop/x", 2, {})

        run(fill())

    async def gone() -> None:
        async with PulsarAdmin(pulsar.admin_url, timeout=100) as admin:
            assert not [name for name in await admin.list_namespaces("public") if name.startswith(pulsar.namespace)]

    run(gone())
