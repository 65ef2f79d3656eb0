"""How topics of a Pulsar become known: bad properties, copied ids, topics that cannot be read, how much is asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from storage.fake_pulsar_admin import HOME, FakePulsar, full
from support.waiting import until

from kop.cluster.client_topics import ClientTopics
from kop.errors import ErrorCode, KopError
from kop.pulsar_client import PulsarError
from kop.pulsar_client.admin import PartitionedMetadata
from kop.storage.base import LogPolicy, TopicInfo
from kop.storage.pulsar.engine import PulsarEngine
from kop.storage.pulsar.layout import (
    CONFIGS_PROPERTY,
    ID_PROPERTY,
    NAME_PROPERTY,
    UNFINISHED_PROPERTY,
    configs_of,
    number,
    repaired,
)
from kop.storage.pulsar.partition.log_table import LogTable
from kop.storage.pulsar.topics import ids as topic_ids
from kop.storage.pulsar.topics import table as topics
from kop.storage.pulsar.topics.policies import retention_of
from kop.storage.topic_table import new_uuid

GOOD = {"flush.ms": "60000"}
BROKEN = {
    "cut": "{oops",
    "empty": "",
    "a list": "[]",
    "a number": "1",
    "a text": '"x"',
    "null": "null",
    "a number in it": '{"retention.ms": 1000}',
    "null in it": '{"retention.ms": null}',
    "deep": "[" * 100_000,
}
UNPARSED = "topic_settings/property_not_parsed"
COPIED = "topic_settings/id_copied"
NOT_READ = "topics_not_read/own"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No gateway waits for another one that could name a topic, and retries come soon."""
    monkeypatch.setattr(topic_ids, "SPREAD_SECONDS", 0)
    monkeypatch.setattr(topic_ids, "WAIT_FOR_OTHERS", (0.0, 0.01))
    monkeypatch.setattr(topics, "RETRY_FIRST", 0.01)
    monkeypatch.setattr(topics, "RETRY_MOST", 0.02)


@asynccontextmanager
async def loaded(pulsar: FakePulsar) -> AsyncIterator[PulsarEngine]:
    """An engine that has read the topics once and follows them."""
    engine = pulsar.engine()
    await engine.topics.load()
    follow = asyncio.get_running_loop().create_task(engine.topics.follow())
    try:
        yield engine
    finally:
        follow.cancel()
        await asyncio.gather(follow, return_exceptions=True)
        await engine.topics.close()


async def seen(engine: PulsarEngine, *names: str) -> None:
    """The watcher names topics, and they are looked at."""
    pulsar: Any = engine.admin
    others, before = asyncio.all_tasks(), pulsar.requests
    engine.topics.watched(None, [full(name) for name in names], ())
    await until(lambda: pulsar.requests > before and asyncio.all_tasks() <= others)


def topic(engine: PulsarEngine, name: str) -> TopicInfo:
    info = engine.topics.get(name)
    assert info is not None
    return info


def heard(engine: PulsarEngine) -> list[tuple[TopicInfo | None, TopicInfo | None]]:
    """Changes from now on, as group coordinators hear of them."""
    changes: list[tuple[TopicInfo | None, TopicInfo | None]] = []
    engine.topics.on_change(lambda old, new: changes.append((old, new)))
    return changes


# --- properties that do not parse


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
async def test_configs_that_stop_parsing_stay_as_they_were(text: str, caplog: pytest.LogCaptureFixture) -> None:
    pulsar = FakePulsar()
    made = pulsar.add("t", kop_topic_id=str(new_uuid()), kop_configs=json.dumps(GOOD))
    async with loaded(pulsar) as engine:
        before, changes = topic(engine, "t"), heard(engine)
        made.properties[CONFIGS_PROPERTY] = text
        for _ in range(3):
            await seen(engine, "t")
        await engine.topics.load()
        assert topic(engine, "t") == before
        assert changes == []  # nobody forgets the commits of a topic that is there
        assert engine.counts[UNPARSED] >= 3
        assert caplog.text.count(CONFIGS_PROPERTY) == 1
        assert "altering the topic's configs" in caplog.text
        await engine.topics.set_configs(before.topic_id, GOOD | {"segment.ms": "1"})  # a client mends it
        await seen(engine, "t")
        assert json.loads(made.properties[CONFIGS_PROPERTY]) == GOOD | {"segment.ms": "1"}
        assert topic(engine, "t").configs == GOOD | {"segment.ms": "1"}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
async def test_a_gateway_that_begins_uses_a_topic_whose_configs_do_not_parse(text: str) -> None:
    pulsar = FakePulsar()
    topic_id = new_uuid()
    pulsar.add("t", kop_topic_id=str(topic_id), kop_configs=text)
    pulsar.add("u")
    async with loaded(pulsar) as engine:
        assert topic(engine, "t") == TopicInfo("t", topic_id, 1, {})
        assert engine.topics.get("u") is not None
        assert engine.counts[UNPARSED] == 1


async def test_discovery_goes_on_behind_properties_that_do_not_parse() -> None:
    pulsar = FakePulsar()
    made = pulsar.add("t", kop_topic_id=str(new_uuid()))
    async with loaded(pulsar) as engine:
        made.properties[CONFIGS_PROPERTY] = "[]"
        await seen(engine, "t")
        pulsar.add("later")
        await seen(engine, "later")
        assert engine.topics.get("later") is not None


@pytest.mark.parametrize("text", ["x", "", "1234", str(UUID(int=0)), "{}"])
async def test_an_id_that_stops_parsing_is_written_again(text: str) -> None:
    pulsar = FakePulsar()
    made = pulsar.add("t", kop_topic_id=str(new_uuid()))
    async with loaded(pulsar) as engine:
        before, changes = topic(engine, "t"), heard(engine)
        made.properties[ID_PROPERTY] = text
        await seen(engine, "t")
        assert topic(engine, "t") == before
        assert made.properties[ID_PROPERTY] == str(before.topic_id)
        assert changes == []


async def test_a_topic_that_is_met_with_an_id_that_does_not_parse_gets_one() -> None:
    pulsar = FakePulsar()
    made = pulsar.add("t", kop_topic_id="x")
    async with loaded(pulsar) as engine, loaded(pulsar) as other:
        assert topic(engine, "t") == topic(other, "t")
        assert made.properties[ID_PROPERTY] == str(topic(engine, "t").topic_id)
        assert made.properties[NAME_PROPERTY] == full("t")


@pytest.mark.parametrize("text", ["x", "-1", "1.5", "", "9" * 30, "٣", str(2**63)])
async def test_numbers_that_do_not_parse_are_the_last_good_ones(text: str) -> None:
    pulsar = FakePulsar()
    made = pulsar.add("t", kop_topic_id=str(new_uuid()))
    made.properties["kop.log_start.0.7"] = "7"
    async with loaded(pulsar) as engine:
        log = engine.log(topic(engine, "t").topic_id, 0)
        assert log is not None
        assert engine.services.kept_number(log.topic.topic_id, 0, "log_start") == 7
        made.properties |= dict.fromkeys(("kop.log_start.0.7", "kop.created", "kop.deleting"), text)
        await seen(engine, "t")
        assert engine.services.kept_number(log.topic.topic_id, 0, "log_start") == 7
        assert not engine.services.knows_all_producers(log.topic.topic_id)
        assert await engine.deletion_guard.still_there(log)  # it is not being deleted
    async with loaded(pulsar) as engine:
        log = engine.log(topic(engine, "t").topic_id, 0)
        assert log is not None
        assert engine.services.kept_number(log.topic.topic_id, 0, "log_start") == 0


async def test_a_number_whose_name_does_not_hold_it_does_not_count(caplog: pytest.LogCaptureFixture) -> None:
    pulsar = FakePulsar()
    pulsar.add("t", kop_topic_id=str(new_uuid())).properties["kop.log_start.0"] = "7"
    async with loaded(pulsar) as engine:
        assert engine.services.kept_number(topic(engine, "t").topic_id, 0, "log_start") == 0
        assert engine.counts[UNPARSED] == 1
        assert f"kop.log_start.0 of topic {full('t')} does not parse" in caplog.text
        assert "remove it (pulsar-admin topics remove-properties)" in caplog.text


def test_what_parses_is_taken_as_it_is() -> None:
    properties = {ID_PROPERTY: str(new_uuid()), CONFIGS_PROPERTY: "{}", "kop.log_start.3.5": "5", "theirs": "{oops"}
    assert repaired(properties, {}) == (properties, [])
    assert configs_of({}) == {}
    assert number({"a": "0012"}, "a") == 12
    assert number({}, "a", -1) == -1


# --- copied ids


async def test_a_topic_that_was_cloned_with_its_properties_gets_an_id_of_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pulsar = FakePulsar()
    original = pulsar.add("original", kop_topic_id=str(new_uuid()), kop_configs=json.dumps(GOOD))
    original.properties |= {
        NAME_PROPERTY: full("original"),
        "kop.log_start.0.40": "40",
        "kop.created": "5",
        "theirs": "x",
    }
    async with loaded(pulsar) as first_engine, loaded(pulsar) as second_engine:
        kept, changes = topic(first_engine, "original"), heard(first_engine)
        pulsar.add("clone").properties |= original.properties
        await asyncio.gather(seen(first_engine, "clone"), seen(second_engine, "clone"))
        clone = topic(first_engine, "clone")
        assert clone == topic(second_engine, "clone")
        assert clone.topic_id != kept.topic_id
        assert clone.configs == GOOD
        assert topic(first_engine, "original") == topic(second_engine, "original") == kept
        assert changes == [(None, clone)]
        assert pulsar.topics[full("clone")].properties == {
            ID_PROPERTY: str(clone.topic_id),
            NAME_PROPERTY: full("clone"),
            CONFIGS_PROPERTY: json.dumps(GOOD),
            "theirs": "x",
        }
        assert first_engine.counts[COPIED] == 1
        assert f"{full('clone')} carries the kop.topic_id of {full('original')}" in caplog.text
        logs = first_engine.log(kept.topic_id, 0), first_engine.log(clone.topic_id, 0)
        assert [log.partition_name for log in logs if log] == [
            full("original") + "-partition-0",
            full("clone") + "-partition-0",
        ]
    async with loaded(pulsar) as engine:
        assert (topic(engine, "original"), topic(engine, "clone")) == (kept, clone)


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
@pytest.mark.parametrize("partitions", [0, 1])
@pytest.mark.parametrize("known", [False, True])
async def test_of_two_topics_that_carry_one_id_as_their_own_the_first_keeps_it(
    names: tuple[str, str], partitions: int, known: bool
) -> None:
    pulsar = FakePulsar()
    topic_id = new_uuid()
    for name in names[:1] if known else names:
        pulsar.add(name, partitions, kop_topic_id=str(topic_id))
    async with loaded(pulsar) as first_engine, loaded(pulsar) as second_engine:
        engines = first_engine, second_engine
        if known:
            pulsar.add(names[1], partitions, kop_topic_id=str(topic_id))
            await asyncio.gather(*(seen(engine, names[1]) for engine in engines))

        def parted(engine: PulsarEngine) -> bool:
            first, second = engine.topics.get("a"), engine.topics.get("b")
            return first is not None and engine.topics.by_id(topic_id) == first and second is not None

        for engine in engines:
            await until(partial(parted, engine))
        assert topic(first_engine, "b") == topic(second_engine, "b")
        assert topic(first_engine, "b").topic_id != topic_id
        for name in names:
            assert pulsar.topics[full(name)].properties[NAME_PROPERTY] == full(name)


async def test_an_id_without_a_name_is_refused_until_somebody_writes_one(caplog: pytest.LogCaptureFixture) -> None:
    pulsar = FakePulsar()
    named, removed = (pulsar.add(name, kop_topic_id=str(new_uuid())) for name in ("named", "removed"))
    ids = named.properties[ID_PROPERTY], removed.properties[ID_PROPERTY]
    for made in (named, removed):
        del made.properties[NAME_PROPERTY]
    async with loaded(pulsar) as engine:
        assert engine.topics.all() == []
        assert engine.topics.missing("named") is ErrorCode.LEADER_NOT_AVAILABLE
        assert f"Set kop.topic_name={full('named')} (pulsar-admin topics update-properties)" in caplog.text
        named.properties[NAME_PROPERTY] = full("named")
        del removed.properties[ID_PROPERTY]
        await asyncio.gather(seen(engine, "named"), seen(engine, "removed"))
        assert str(topic(engine, "named").topic_id) == ids[0]
        assert str(topic(engine, "removed").topic_id) != ids[1]


async def test_a_known_topic_gets_a_lost_name_again() -> None:
    pulsar = FakePulsar()
    made = pulsar.add("t", kop_topic_id=str(new_uuid()))
    async with loaded(pulsar) as engine:
        before, changes = topic(engine, "t"), heard(engine)
        del made.properties[NAME_PROPERTY]
        await seen(engine, "t")
        assert made.properties[NAME_PROPERTY] == full("t")
        assert (topic(engine, "t"), changes) == (before, [])


async def test_a_known_topic_keeps_its_id_when_anothers_properties_are_copied_over_its_own() -> None:
    pulsar = FakePulsar()
    original, copy = (pulsar.add(name, kop_topic_id=str(new_uuid())) for name in ("a", "b"))
    async with loaded(pulsar) as engine:
        before = topic(engine, "a"), topic(engine, "b")
        original.properties |= copy.properties
        await seen(engine, "a")
        assert (topic(engine, "a"), topic(engine, "b")) == before
        assert original.properties[ID_PROPERTY] == str(before[0].topic_id)
        assert original.properties[NAME_PROPERTY] == full("a")


# --- topics that cannot be read


@pytest.mark.parametrize("plain", [True, False])
async def test_a_topic_that_cannot_be_read_keeps_no_gateway_from_starting(
    plain: bool, caplog: pytest.LogCaptureFixture
) -> None:
    pulsar = FakePulsar()
    pulsar.add("bad", 0 if plain else 1)
    pulsar.add("good")
    pulsar.failures[full("bad")] = PulsarError("ServerFailure", "ledger 7 is gone")
    async with loaded(pulsar) as engine:
        client_topics = ClientTopics(engine)
        assert engine.topics.get("good") is not None
        assert engine.topics.get("bad") is None
        assert client_topics.missing("bad") is ErrorCode.LEADER_NOT_AVAILABLE  # clients ask again
        assert client_topics.may_exist("bad")  # commits on it are kept
        assert client_topics.missing("none") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not client_topics.may_exist("none")
        with pytest.raises(Exception, match="could not be read") as caught:
            await engine.topics.create("bad", 1, {})
        assert getattr(caught.value, "code", None) is ErrorCode.LEADER_NOT_AVAILABLE
        await until(lambda: engine.counts[NOT_READ] >= 3)  # it is tried again
        assert caplog.text.count("ledger 7 is gone") == 1
        version = engine.topics.version
        del pulsar.failures[full("bad")]
        await until(lambda: engine.topics.get("bad") is not None)
        assert engine.topics.version > version
        assert client_topics.missing("bad") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_fault_of_our_own_with_one_topic_keeps_no_other_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pulsar = FakePulsar()
    pulsar.add("good")
    async with loaded(pulsar) as engine:
        update, spoiled = LogTable.update, {"bad"}

        def spoil(table: Any, topic: TopicInfo, *more: Any) -> None:
            if topic.name in spoiled:
                raise RuntimeError("as the test wants it")
            update(table, topic, *more)

        monkeypatch.setattr(LogTable, "update", spoil)
        pulsar.add("bad")
        pulsar.add("later")
        engine.topics.watched(None, [full("bad"), full("later")], ())
        await until(lambda: engine.topics.get("later") is not None)
        await until(lambda: engine.counts.get(NOT_READ, 0) >= 2)
        assert "as the test wants it" in caplog.text
        spoiled.clear()
        await until(lambda: engine.log(topic(engine, "bad").topic_id, 0) is not None)


async def test_a_topic_without_an_answer_holds_up_neither_the_start_nor_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topics, "FIRST_SECONDS", 1.0)
    pulsar = FakePulsar()
    for number_ in range(10):
        pulsar.add(f"silent-{number_}", 0)
    pulsar.add("good")
    pulsar.silent.update(full(f"silent-{number_}") for number_ in range(10))
    async with loaded(pulsar) as engine:
        client_topics = ClientTopics(engine)
        assert engine.topics.get("good") is not None
        assert client_topics.missing("silent-3") is ErrorCode.LEADER_NOT_AVAILABLE
        assert client_topics.may_exist("silent-3")
        assert "10 of 11 topics have not been read" in caplog.text
        pulsar.add("later")
        engine.topics.watched(None, [full("later")], ())
        await until(lambda: engine.topics.get("later") is not None)


# --- how many requests


async def test_a_listing_asks_for_a_few_topics_whatever_there_are() -> None:
    pulsar = FakePulsar()
    for index in range(3000):
        pulsar.add(f"p{index}", 2, kop_topic_id=str(new_uuid()))
        pulsar.add(f"q{index}", 0, kop_topic_id=str(new_uuid()))
    async with loaded(pulsar) as engine:
        assert len(engine.topics.all()) == 6000
        for _ in range(3):
            before = pulsar.requests
            await engine.topics.load()
            assert pulsar.requests - before <= 5 + 2 * topics.SCANNED_A_LISTING


async def test_a_listing_finds_what_the_watcher_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    pulsar = FakePulsar()
    for name in ("stays", "grows", "goes", "turns"):
        pulsar.add(name, 0 if name == "turns" else 1)
    async with loaded(pulsar) as engine:
        monkeypatch.setattr(topics, "SCANNED_A_LISTING", 0)  # what is found is not found by the turn of these four
        pulsar.add("new")
        pulsar.topics[full("grows")].partitions = 3
        del pulsar.topics[full("goes")]
        pulsar.topics[full("turns")].partitions = 1
        before = pulsar.asked["metadata"]
        await engine.topics.load()
        assert {info.name: info.partitions for info in engine.topics.all()} == {
            "stays": 1,
            "grows": 3,
            "turns": 1,
            "new": 1,
        }
        assert engine.topics.pulsar(topic(engine, "turns").topic_id).partition(0) == full("turns") + "-partition-0"
        assert pulsar.asked["metadata"] - before <= 8  # not for the topic that stays


async def test_a_topic_of_two_underscores_is_seen_where_a_gateway_has_made_it() -> None:
    """Pulsar's own topics begin so, too; they have no id."""
    pulsar = FakePulsar()
    topic_id = str(new_uuid())
    pulsar.add("__ours", 1, **{ID_PROPERTY: topic_id, NAME_PROPERTY: full("__ours")})
    pulsar.add("__change_events")
    async with loaded(pulsar) as engine:
        assert [info.name for info in engine.topics.all()] == ["__ours"]
        assert not topic(engine, "__ours").internal
        assert pulsar.topics[full("__change_events")].properties == {}
        before = pulsar.asked["metadata"]
        await engine.topics.load()
        assert {info.name for info in engine.topics.all()} == {"__ours"}
        assert pulsar.asked["metadata"] - before <= 2  # Pulsar's own is passed over


async def test_a_look_finds_what_nobody_told_of_yet() -> None:
    pulsar = FakePulsar()
    for name in ("goes", "made again"):
        pulsar.add(name)
    async with loaded(pulsar) as engine:
        before = topic(engine, "made again").topic_id
        del pulsar.topics[full("goes")], pulsar.topics[full("made again")]
        pulsar.add("made again")
        pulsar.add("new")
        pulsar.add("bad")
        pulsar.failures[full("bad")] = PulsarError("ServerFailure", "ledger 7 is gone")
        await engine.topics.find({"goes", "made again", "new", "bad", "none"})
        assert {info.name for info in engine.topics.all()} == {"made again", "new"}
        assert topic(engine, "made again").topic_id != before
        client_topics = ClientTopics(engine)
        assert [client_topics.may_exist(name) for name in ("goes", "bad", "none")] == [False, True, False]


async def test_a_topic_that_another_broker_makes_at_the_same_moment_is_known_when_its_name_is_refused() -> None:
    """Pulsar refuses the name before it shows the topic."""
    pulsar = FakePulsar()
    metadata, unseen = pulsar.partitioned_metadata, [3]

    async def created(full_name: str, partitions: int, properties: dict[str, str]) -> None:
        pulsar.add("t", partitions)
        raise PulsarError("Conflict", "Partitioned topic already exists")

    async def shown_late(full_name: str) -> PartitionedMetadata:
        if full_name == full("t") and unseen[0]:
            unseen[0] -= 1
            raise PulsarError("NotFound", "there is no such topic")
        return await metadata(full_name)

    async def no_topics(namespace: str) -> list[str]:
        return []

    vars(pulsar).update(create_partitioned=created, partitioned_metadata=shown_late, list_topics=no_topics)
    async with loaded(pulsar) as engine:
        with pytest.raises(KopError) as refused:
            await engine.topics.create("t", 2, {})
        assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
        assert topic(engine, "t").partitions == 2


async def test_changes_that_nobody_told_of_are_found_in_turn() -> None:
    pulsar = FakePulsar()
    count = 2 * topics.SCANNED_A_LISTING + 5
    for index in range(count):
        pulsar.add(f"t{index}", kop_topic_id=str(new_uuid()))
    async with loaded(pulsar) as engine:
        for made in pulsar.topics.values():
            made.properties[CONFIGS_PROPERTY] = json.dumps(GOOD)
        for _ in range(3):
            await engine.topics.load()
        assert [info.configs for info in engine.topics.all()] == [GOOD] * count


async def test_a_snapshot_just_behind_a_listing_asks_for_what_is_new_or_gone_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pulsar = FakePulsar()
    for index in range(50):
        pulsar.add(f"t{index}")
    async with loaded(pulsar) as engine:
        before = pulsar.asked["metadata"]
        engine.topics.watched(await pulsar.list_all("public/kafka"), (), (), namespace="public/kafka")
        pulsar.add("new")
        del pulsar.topics[full("t7")]
        engine.topics.watched(await pulsar.list_all(HOME), (), (), namespace=HOME)
        await until(lambda: engine.topics.get("new") is not None and engine.topics.get("t7") is None)
        assert pulsar.asked["metadata"] - before <= 5
        monkeypatch.setattr(topics, "FRESH_SECONDS", -1.0)  # that was a while ago: the watch was lost since then
        pulsar.topics[full("t8")].properties[ID_PROPERTY] = str(new_uuid())
        remade = pulsar.topics[full("t8")].properties[ID_PROPERTY]
        engine.topics.watched(await pulsar.list_all(HOME), (), (), namespace=HOME)
        await until(lambda: str(topic(engine, "t8").topic_id) == remade)


# --- policies that somebody changed

HOUR = {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}
WEEK = {"retentionTimeInMinutes": 7 * 24 * 60, "retentionSizeInMB": -1}
WEEK_MS = {"retention.ms": "604800000"}


@pytest.mark.parametrize("configs", [WEEK_MS, {}], ids=["with its own", "without its own"])
@pytest.mark.parametrize("of_topic", [True, False], ids=["of the topic", "of the namespace"])
async def test_a_config_that_is_named_is_set_where_pulsar_has_another_value(
    configs: dict[str, str], of_topic: bool
) -> None:
    pulsar = FakePulsar()
    made = pulsar.add("t", kop_topic_id=str(new_uuid()), kop_configs=json.dumps(configs))
    (made.policies if of_topic else pulsar.namespace_policies)["retention"] = HOUR
    async with loaded(pulsar) as engine:
        topic_id = topic(engine, "t").topic_id
        kept = await engine.topics.set_configs(topic_id, configs, {"segment.ms"})
        assert kept.configs == configs
        assert made.policies.get("retention") == (HOUR if of_topic else None)  # nobody asked for another one
        changed = await engine.topics.set_configs(topic_id, WEEK_MS, {"retention.ms"})
        assert made.policies == {"retention": WEEK}
        assert changed.configs == topic(engine, "t").configs == WEEK_MS
        before, asked = engine.topics.version, pulsar.asked.copy()
        await engine.topics.set_configs(topic_id, WEEK_MS, {"retention.ms"})
        assert engine.topics.version == before
        assert pulsar.asked - asked == {"policy": 1}  # all is as it should be: it is read, and nothing is set
        pulsar.namespace_policies["retention"] = HOUR
        made.policies.clear()  # by pulsar-admin topics remove-retention
        await engine.topics.set_configs(topic_id, WEEK_MS, {"retention.bytes"})
        assert made.policies == {"retention": WEEK}


# --- changes that take a while


class Policies:
    """The setting of a topic's policies, which the test refuses, or holds up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused = True
        self.applied: list[LogPolicy] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        monkeypatch.setattr("kop.storage.pulsar.topics.policies.apply", self.apply)

    async def apply(self, admin: Any, full_name: str, policy: LogPolicy, *_: Any, **__: Any) -> None:
        if self.refused:
            raise PulsarError("Timeout", "so says the test", retriable=True)
        self.applied.append(policy)
        await self.goes_on.wait()


def lets_make(pulsar: FakePulsar) -> None:
    """Topics can be made, and grow."""

    async def create(full_name: str, partitions: int, properties: dict[str, str]) -> None:
        pulsar.add(full_name.removeprefix(f"persistent://{HOME}/"), partitions).properties.update(properties)

    async def grow(full_name: str, partitions: int) -> None:
        pulsar.topics[full_name].partitions = partitions
        await asyncio.sleep(0)

    vars(pulsar).update(create_partitioned=create, grow=grow)


@pytest.mark.parametrize("how", ["by its maker", "by another gateway"])
async def test_a_property_that_is_set_while_a_new_topic_gets_its_policies_stays_in_memory(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a log that attaches then shows deleted records again."""
    pulsar, policies = FakePulsar(), Policies(monkeypatch)
    lets_make(pulsar)
    if how == "by another gateway":
        pulsar.add("t", kop_topic_id=str(new_uuid()), kop_created="1", kop_unfinished="true")
    async with loaded(pulsar) as engine:
        if how == "by its maker":
            with pytest.raises(KopError):
                await engine.topics.create("t", 1, {})
        topic_id = topic(engine, "t").topic_id
        policies.refused = False
        policies.goes_on.clear()
        load = asyncio.ensure_future(engine.topics.load())
        await until(lambda: bool(policies.applied))
        await engine.topics.set_property(topic_id, "kop.x", "5")
        policies.goes_on.set()
        await load
        await until(lambda: UNFINISHED_PROPERTY not in engine.topics.pulsar(topic_id).properties)
        assert engine.topics.pulsar(topic_id).properties == pulsar.topics[full("t")].properties
        assert "kop.x" in engine.topics.pulsar(topic_id).properties


async def test_a_topic_whose_configs_change_before_it_has_its_policies_gets_those_of_its_configs_of_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pulsar, policies = FakePulsar(), Policies(monkeypatch)
    lets_make(pulsar)
    async with loaded(pulsar) as engine:
        with pytest.raises(KopError):
            await engine.topics.create("t", 1, {})
        topic_id = topic(engine, "t").topic_id
        policies.refused = False
        await engine.topics.set_configs(topic_id, WEEK_MS)
        await until(lambda: UNFINISHED_PROPERTY not in engine.topics.pulsar(topic_id).properties)
        assert [policy.retention_ms for policy in policies.applied] == [int(WEEK_MS["retention.ms"])] * 2


async def test_a_property_that_is_set_while_a_topic_grows_stays_in_memory() -> None:
    pulsar = FakePulsar()
    lets_make(pulsar)
    pulsar.add("t")
    async with loaded(pulsar) as engine:
        topic_id = topic(engine, "t").topic_id
        await asyncio.gather(engine.topics.grow(topic_id, 3), engine.topics.set_property(topic_id, "kop.x", "5"))
        assert topic(engine, "t").partitions == 3
        assert engine.topics.pulsar(topic_id).properties["kop.x"] == "5"


async def test_a_property_that_is_set_while_a_topic_is_read_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    pulsar = FakePulsar()
    made, metadata = pulsar.add("t"), pulsar.partitioned_metadata
    async with loaded(pulsar) as engine:
        topic_id = topic(engine, "t").topic_id
        made.properties["kop.y"] = "6"

        async def slow(full_name: str) -> PartitionedMetadata:
            answer = await metadata(full_name)
            monkeypatch.undo()
            await engine.topics.set_property(topic_id, "kop.x", "5")
            return answer

        monkeypatch.setattr(pulsar, "partitioned_metadata", slow)
        await engine.topics.refresh(topic_id)
        assert engine.topics.pulsar(topic_id).properties == made.properties
        assert made.properties["kop.x"] == "5"


LONG_MAX = 2**63 - 1


@pytest.mark.parametrize(
    ("ms", "size", "wanted"),
    [
        (-1, -1, (-1, -1)),
        (0, 0, (1, 1)),
        (1, 1, (1, 1)),
        (60_001, (1 << 20) + 1, (2, 2)),
        (35_791_394 * 60_000, 2**51 - (1 << 20), (35_791_394, 2**31 - 1)),
        (35_791_394 * 60_000 + 1, 2**51, (-1, -1)),
        (31_536_000_000_000, 2**62, (-1, -1)),
        (LONG_MAX, LONG_MAX, (-1, -1)),
    ],
)
async def test_pulsar_is_never_told_less_than_a_topic_is_to_keep(ms: int, size: int, wanted: tuple[int, int]) -> None:
    assert retention_of(LogPolicy(retention_ms=ms, retention_bytes=size)) == wanted
    pulsar, configs = FakePulsar(), {"retention.ms": str(ms), "retention.bytes": str(size)}
    made = pulsar.add("t", kop_topic_id=str(new_uuid()))
    async with loaded(pulsar) as engine:
        changed = await engine.topics.set_configs(topic(engine, "t").topic_id, configs, set(configs))
        assert changed.configs == configs
        assert made.policies["retention"] == {"retentionTimeInMinutes": wanted[0], "retentionSizeInMB": wanted[1]}
    async with loaded(pulsar) as engine:
        assert await engine.topics.differing_configs(topic(engine, "t").topic_id) == {}


async def test_a_retention_that_pulsar_has_and_kafka_cannot_name_is_the_largest() -> None:
    pulsar = FakePulsar()
    pulsar.add("t", kop_topic_id=str(new_uuid()), kop_configs=json.dumps(WEEK_MS))
    pulsar.namespace_policies["retention"] = {"retentionTimeInMinutes": 2**31 - 1, "retentionSizeInMB": LONG_MAX}
    async with loaded(pulsar) as engine:
        told = await engine.topics.differing_configs(topic(engine, "t").topic_id)
        assert told == {"retention.ms": str((2**31 - 1) * 60_000), "retention.bytes": str(LONG_MAX)}


async def test_each_policy_stands_behind_its_configs_alone() -> None:
    pulsar = FakePulsar()
    made = pulsar.add("t", kop_topic_id=str(new_uuid()), kop_configs=json.dumps(WEEK_MS))
    async with loaded(pulsar) as engine:
        topic_id = topic(engine, "t").topic_id
        made.policies |= {"retention": HOUR, "compactionThreshold": 1000, "maxMessageSize": 1000}
        await engine.topics.set_configs(topic_id, WEEK_MS, {"max.message.bytes"})
        assert made.policies == {"retention": HOUR, "compactionThreshold": 1000, "maxMessageSize": 0}
        await engine.topics.set_configs(topic_id, WEEK_MS, {"cleanup.policy"})
        assert made.policies == {"retention": HOUR, "compactionThreshold": 0, "maxMessageSize": 0}
        compact = WEEK_MS | {"cleanup.policy": "compact"}
        await engine.topics.set_configs(topic_id, compact, {"cleanup.policy"})
        made.policies |= {"retention": HOUR, "compactionThreshold": 1000}
        await engine.topics.set_configs(topic_id, compact, {"cleanup.policy"})
        # Records that compaction keeps would go. How often Pulsar compacts is for pulsar-admin to say.
        assert made.policies["retention"] == {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        assert made.policies["compactionThreshold"] == 1000
