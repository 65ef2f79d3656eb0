"""Topics that Pulsar's side made in a namespace that retains nothing: what Kafka clients write stays, or is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from storage.batches import append, attached, batch, read_values, refused
from storage.engines import PulsarStore, policy_of
from support.pulsar import Urls, fresh_namespace
from support.pulsar_admin import PulsarAdmin
from support.waiting import SECONDS, until

from kop.errors import ErrorCode
from kop.pulsar_client import PulsarError
from kop.pulsar_client.admin import Retention
from kop.pulsar_client.outage import Outage
from kop.storage.base import LogPolicy, TopicInfo
from kop.storage.pulsar.engine import PulsarEngine
from kop.storage.pulsar.faults import Faults
from kop.storage.pulsar.layout import CONFIGS_PROPERTY
from kop.storage.pulsar.topics.write_checks import FRESH_SECONDS, OncePerTopic, WriteChecks

WEEK = Retention(7 * 24 * 60, -1)
SET = "topic_settings/without_retention"
REFUSED = "writes_refused/without_retention"


def kafka_policy(topic: TopicInfo) -> LogPolicy:
    """Kafka's default: seven days."""
    return replace(policy_of(topic), retention_ms=int(topic.configs.get("retention.ms", 7 * 24 * 3_600_000)))


# --- over a real Pulsar


@pytest.fixture
def forgetful(pulsar_urls: Urls) -> Iterator[PulsarStore]:
    """A namespace as `pulsar-admin namespaces create` makes it: the brokers' retention holds, which is nothing."""
    with fresh_namespace(pulsar_urls) as pulsar:
        asyncio.run(_forget(pulsar.admin_url, pulsar.namespace))
        yield PulsarStore(pulsar.service_url, pulsar.admin_url, pulsar.namespace, policy=kafka_policy)


async def _forget(admin_url: str, namespace: str) -> None:
    async with PulsarAdmin(admin_url) as admin:
        await admin.remove_namespace_policy(namespace, "retention")


async def known(engine: PulsarEngine, name: str) -> None:
    async with asyncio.timeout(SECONDS):
        while engine.topics.get(name) is None:
            if "/" in name:
                await engine.topics.find([name])
            await asyncio.sleep(0.02)  # Pulsar names it a bit later


async def make_native(admin: PulsarAdmin, full_name: str, kind: str) -> str:
    """A topic of Pulsar's side; returns the name of its first partition."""
    if kind == "plain":
        await admin.create_plain(full_name, {})
        return full_name
    await admin.create_partitioned(full_name, 2, {})
    return f"{full_name}-partition-0"


@pytest.mark.parametrize("kind", ["plain", "partitioned"])
async def test_what_is_acknowledged_on_a_native_topic_outlives_its_ledger(forgetful: PulsarStore, kind: str) -> None:
    full_name = f"persistent://{forgetful.settings.kop_pulsar_namespace}/native"
    async with PulsarAdmin(forgetful.urls[1]) as admin:
        partition = await make_native(admin, full_name, kind)
        assert await admin.get_retention(full_name, applied=True) == Retention(0, 0)
        async with forgetful.opened() as engine:
            await known(engine, "native")
            log = await attached(engine, "native")
            assert await read_values(log) == []
            assert await admin.get_retention(full_name) is None  # who only reads changes nothing
            await asyncio.gather(*(append(log, batch([str(number)])) for number in range(5)))
            counts = engine.counts
        await admin.unload(partition)
        await admin.trim(partition)
        async with forgetful.opened() as engine:
            await known(engine, "native")
            assert await read_values(await attached(engine, "native")) == ["0", "1", "2", "3", "4"]
        assert await admin.get_retention(full_name) == WEEK
        assert counts == {SET: 1}


@pytest.fixture
def elsewhere(pulsar_urls: Urls) -> Iterator[str]:
    """Another such namespace."""
    with fresh_namespace(pulsar_urls) as pulsar:
        asyncio.run(_forget(pulsar.admin_url, pulsar.namespace))
        yield pulsar.namespace


async def test_a_topic_of_another_namespace_keeps_its_records_too(forgetful: PulsarStore, elsewhere: str) -> None:
    full_name = f"persistent://{elsewhere}/native"
    async with PulsarAdmin(forgetful.urls[1]) as admin, forgetful.opened() as engine:
        await make_native(admin, full_name, "partitioned")
        await known(engine, f"{elsewhere}/native")
        await append(await attached(engine, f"{elsewhere}/native"), batch(["a"]))
        assert await admin.get_retention(full_name) == WEEK


@pytest.mark.parametrize("level", ["topic", "namespace"])
async def test_a_retention_that_somebody_chose_stays(forgetful: PulsarStore, level: str) -> None:
    hour = Retention(60, -1)
    full_name = f"persistent://{forgetful.settings.kop_pulsar_namespace}/native"
    async with PulsarAdmin(forgetful.urls[1]) as admin, forgetful.opened() as engine:
        if level == "namespace":
            await admin.set_namespace_retention(forgetful.settings.kop_pulsar_namespace, hour)
        await make_native(admin, full_name, "plain")
        if level == "topic":
            await admin.set_retention(full_name, hour)

        async def in_force() -> bool:
            return await admin.get_retention(full_name, applied=True) == hour

        await until(in_force)
        await known(engine, "native")
        await append(await attached(engine, "native"), batch(["a"]))
        assert await admin.get_retention(full_name, applied=True) == hour
        assert SET not in engine.counts


async def test_nothing_is_taken_while_the_retention_cannot_be_set(
    forgetful: PulsarStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_name = f"persistent://{forgetful.settings.kop_pulsar_namespace}/native"
    async with PulsarAdmin(forgetful.urls[1]) as admin, forgetful.opened() as engine:
        await make_native(admin, full_name, "partitioned")
        await known(engine, "native")
        log = await attached(engine, "native")

        async def forbidden(*_: object) -> None:
            raise PulsarError("Forbidden", "the role is no admin of the tenant")

        with monkeypatch.context() as patch:
            patch.setattr(engine.admin, "set_retention", forbidden)
            for producer in (-1, 5):
                with refused(ErrorCode.POLICY_VIOLATION) as refusal:
                    await append(log, batch(["a"], producer=producer))
                assert "pulsar-admin topics set-retention" in refusal.value.message
            assert engine.counts[REFUSED] == 2
        assert await read_values(log) == []
        await append(log, batch(["b"], producer=5))
        assert await read_values(log) == ["b"]
        assert await admin.get_retention(full_name) == WEEK


# --- without a Pulsar

TOPIC = UUID(int=1 << 70)
NAME = "persistent://public/default/t"


class FakeAdmin:
    """One topic's policies, with what Pulsar refuses to do."""

    def __init__(self) -> None:
        self.retention: Retention | None = Retention(0, 0)
        self.namespace: Retention | None = None
        self.defaults = {"defaultRetentionTimeInMinutes": "0", "defaultRetentionSizeInMB": "0"}
        self.read_error: PulsarError | None = None
        self.write_error: PulsarError | None = None
        self.reads = 0

    async def get_retention(self, topic: str, *, applied: bool) -> Retention | None:
        assert (topic, applied) == (NAME, True)
        self.reads += 1
        if self.read_error is not None:
            raise self.read_error
        return self.retention

    async def set_retention(self, topic: str, retention: Retention) -> None:
        if self.write_error is not None:
            raise self.write_error
        self.retention = retention

    async def get_namespace_retention(self, namespace: str) -> Retention | None:
        assert namespace == "public/default"
        return self.namespace

    async def broker_config(self) -> dict[str, str]:
        return self.defaults


@dataclass
class Clock:
    """Seconds, which stand still until the test moves them."""

    now: float = 1000.0


@dataclass
class Checks:
    """The checks of an engine that knows one topic."""

    checks: WriteChecks
    faults: Faults
    clock: Clock

    async def retains(self, topic_id: UUID) -> None:
        await self.checks.retains(topic_id)

    async def look_again(self) -> None:
        await self.checks.look_again()

    @property
    def counts(self) -> Mapping[str, int]:
        return self.faults.counts


def checks(admin: FakeAdmin, *, internal: bool = False, properties: dict[str, str] | None = None) -> Checks:
    """Of a topic with these properties in Pulsar."""
    loop = asyncio.get_running_loop()
    clock = Clock()
    faults = Faults(lambda: clock.now, Outage())
    topic = TopicInfo("t", TOPIC, 1, {}, internal)
    context: Any = SimpleNamespace(
        loop=SimpleNamespace(time=lambda: clock.now, create_task=loop.create_task),
        admin=admin,
        faults=faults,
        count=faults.count,
    )
    topics: Any = SimpleNamespace(
        by_id={TOPIC: topic}.get,
        pulsar={TOPIC: SimpleNamespace(full_name=NAME, properties=properties or {})}.__getitem__,
    )
    return Checks(WriteChecks(context, topics, kafka_policy), faults, clock)


async def test_retention_is_asked_once_in_half_a_minute_and_seen_when_it_changes() -> None:
    admin = FakeAdmin()
    ours = checks(admin)
    await asyncio.gather(*(ours.retains(TOPIC) for _ in range(20)))
    assert (admin.retention, admin.reads) == (WEEK, 2)
    admin.retention = Retention(0, 0)
    await ours.retains(TOPIC)
    assert admin.retention == Retention(0, 0)
    ours.clock.now += 31
    await ours.look_again()  # no producer has to be opened for it
    assert admin.retention == WEEK
    assert ours.counts[SET] == 2


@pytest.mark.parametrize(
    "retention", [Retention(60, 5), Retention(-1, -1), Retention(1, -1), Retention(-1, 1)], ids=str
)
async def test_whatever_keeps_something_is_left(retention: Retention) -> None:
    admin = FakeAdmin()
    admin.retention = retention
    ours = checks(admin)
    await ours.retains(TOPIC)
    assert admin.retention == retention
    assert ours.counts == {}


@pytest.mark.parametrize("retention", [Retention(0, 0), Retention(0, -1), Retention(-1, 0), None], ids=str)
async def test_one_limit_of_nothing_keeps_nothing(retention: Retention | None) -> None:
    admin = FakeAdmin()
    admin.retention = retention
    await checks(admin).retains(TOPIC)
    assert admin.retention == WEEK


REFUSALS = {
    "Forbidden": ErrorCode.POLICY_VIOLATION,
    "NotAllowed": ErrorCode.POLICY_VIOLATION,
    "Timeout": ErrorCode.REQUEST_TIMED_OUT,
    "ServerFailure": ErrorCode.KAFKA_STORAGE_ERROR,
    "TopicNotFound": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}


@pytest.mark.parametrize("code", REFUSALS)
async def test_a_retention_that_cannot_be_set_refuses_the_write(code: str, caplog: pytest.LogCaptureFixture) -> None:
    admin = FakeAdmin()
    admin.write_error = PulsarError(code, "says the test")
    ours = checks(admin)
    with refused(REFUSALS[code]) as refusal:
        await ours.retains(TOPIC)
    assert ours.counts[REFUSED] == 1
    if REFUSALS[code] is ErrorCode.POLICY_VIOLATION:
        assert "pulsar-admin topics set-retention" in refusal.value.message
        assert "pulsar-admin topics set-retention" in caplog.text
    admin.write_error = None
    await ours.retains(TOPIC)  # a refusal is not kept
    assert admin.retention == WEEK


@pytest.mark.parametrize(
    ("namespace", "default", "taken"),
    [(None, "0", False), (None, "60", True), (Retention(0, 0), "60", False), (Retention(60, -1), "0", True)],
)
async def test_without_policies_of_topics_the_namespace_decides(
    namespace: Retention | None, default: str, taken: bool
) -> None:
    admin = FakeAdmin()
    admin.read_error = admin.write_error = PulsarError("NotAllowed", "Topic level policies is disabled")
    admin.namespace = namespace
    admin.defaults = {"defaultRetentionTimeInMinutes": default, "defaultRetentionSizeInMB": default}
    ours = checks(admin)
    if taken:
        await ours.retains(TOPIC)
    else:
        with refused(ErrorCode.POLICY_VIOLATION):
            await ours.retains(TOPIC)


async def test_a_topic_of_ours_is_written_to_while_its_broker_cannot_tell() -> None:
    admin = FakeAdmin()
    admin.read_error = PulsarError("ServiceUnavailable", "the broker starts")
    await checks(admin, properties={CONFIGS_PROPERTY: "{}"}).retains(TOPIC)
    with refused(ErrorCode.KAFKA_STORAGE_ERROR):
        await checks(admin).retains(TOPIC)


async def test_internal_topics_are_not_asked_about() -> None:
    admin = FakeAdmin()
    await checks(admin, internal=True).retains(TOPIC)
    assert admin.reads == 0


async def test_a_question_that_fails_fails_all_who_wait_and_is_asked_again() -> None:
    asked: list[bool] = []

    async def ask(_: UUID, first: bool) -> None:
        asked.append(first)
        await asyncio.sleep(0)
        if len(asked) == 1:
            raise PulsarError("Timeout")

    once = OncePerTopic(asyncio.get_running_loop(), ask)
    answers = await asyncio.gather(*(once(TOPIC) for _ in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [PulsarError] * 3
    assert once.topics == []
    await asyncio.gather(once(TOPIC), once(TOPIC))
    assert asked == [True, True]


async def test_a_question_that_fails_late_leaves_the_answer_to_a_newer_one() -> None:
    loop, clock = asyncio.get_running_loop(), Clock()
    gives_up, asked = asyncio.Event(), 0

    async def ask(_: UUID, first: bool) -> None:
        nonlocal asked
        asked += 1
        if asked == 1:
            await gives_up.wait()
            raise PulsarError("Timeout")

    timed: Any = SimpleNamespace(time=lambda: clock.now, create_task=loop.create_task)
    once = OncePerTopic(timed, ask)
    old = asyncio.ensure_future(once(TOPIC))
    await asyncio.sleep(0)
    clock.now += FRESH_SECONDS + 1
    await once(TOPIC)
    gives_up.set()
    with pytest.raises(PulsarError):
        await old
    assert once.topics == [TOPIC]
    await once(TOPIC)
    assert asked == 2
