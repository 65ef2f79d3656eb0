"""Broker settings altered at run time: which may be, at which level, and where they are kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from support.waiting import until

from kop.cluster.broker_configs import DYNAMIC, BrokerConfigs
from kop.cluster.topic_configs import Source
from kop.config import Config
from kop.errors import ErrorCode, KopError


class Values:
    """The `SmallValues` of storage, which other brokers change, too."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        self.callbacks: list[Callable[[], None]] = []
        self.writes_lost = 0

    async def get_state(self, key: str) -> str | None:
        text = self.kept.get(key)
        await asyncio.sleep(0)  # what was read may be old when it arrives
        return text

    def on_state(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    async def put_state(self, key: str, value: str | None) -> None:
        await asyncio.sleep(0)  # another broker may write first
        if self.writes_lost:
            self.writes_lost -= 1
        elif value is None:
            del self.kept[key]
        else:
            self.kept[key] = value


async def opened(values: Values, **settings: Any) -> BrokerConfigs:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    brokers = BrokerConfigs(Config.load(None, names, {}).table())
    await brokers.load(values)
    return brokers


def setting(**values: str) -> Any:
    def change(own: Mapping[str, str]) -> dict[str, str]:
        return dict(own) | {name.replace("_", "."): value for name, value in values.items()}

    return change


def test_what_may_be_altered_is_what_kafka_takes_at_run_time() -> None:
    assert {name for name, spec in DYNAMIC.items() if spec.acts} == {
        "compression.type", "kop.entry.format", "log.cleaner.backoff.ms", "log.cleaner.delete.retention.ms",
        "log.cleaner.max.compaction.lag.ms",
        "log.cleaner.min.cleanable.ratio", "log.cleaner.min.compaction.lag.ms", "log.cleanup.policy",
        "log.message.timestamp.after.max.ms", "log.message.timestamp.before.max.ms", "log.message.timestamp.type",
        "log.retention.bytes", "log.retention.ms", "max.connections",
        "max.connections.per.ip", "message.max.bytes",
    }  # fmt: skip
    kept = {name for name, spec in DYNAMIC.items() if not spec.acts}
    assert {"log.cleaner.threads", "log.segment.bytes", "num.io.threads"} <= kept
    defaults_of_topics = {
        "compression.gzip.level", "compression.lz4.level", "compression.zstd.level", "log.flush.interval.messages",
        "log.flush.interval.ms", "log.index.interval.bytes", "log.index.size.max.bytes", "log.local.retention.bytes",
        "log.local.retention.ms", "log.preallocate", "log.roll.jitter.ms", "log.roll.ms", "log.segment.bytes",
        "log.segment.delete.delay.ms", "unclean.leader.election.enable",
    }  # fmt: skip
    assert defaults_of_topics <= kept
    assert "min.insync.replicas" not in DYNAMIC


def test_what_changes_nothing_here_is_kept_and_read_back() -> None:
    async def run() -> None:
        values = Values()
        brokers = await opened(values)
        listed = {row.name for row in brokers.rows()}
        assert "log.cleaner.threads" not in listed
        await brokers.alter("", setting(log_cleaner_threads="2", log_segment_bytes="1048576"))
        await brokers.alter("1", setting(log_cleaner_threads="3"))
        rows = {row.name: row for row in (await opened(values)).rows()}
        threads = rows["log.cleaner.threads"]
        assert (threads.value, threads.source, threads.read_only) == ("3", Source.DYNAMIC_BROKER, False)
        assert [origin.value for origin in threads.synonyms] == ["3", "2", "1"]
        assert rows["log.segment.bytes"].source is Source.DYNAMIC_DEFAULT_BROKER
        assert [row.name for row in brokers.cluster_rows()] == ["log.cleaner.threads", "log.segment.bytes"]
        with pytest.raises(KopError) as refused:
            await brokers.alter("", setting(log_cleaner_threads="many"))
        assert refused.value.code == ErrorCode.INVALID_REQUEST

    asyncio.run(run())


def test_brokers_of_one_cluster_share_what_was_altered() -> None:
    async def run() -> None:
        values = Values()
        first, other = await opened(values, node_id=1), await opened(values, node_id=2)
        heard: list[str] = []
        other.on_change(lambda: heard.append(other.text("message.max.bytes")))
        await first.alter("", setting(message_max_bytes="2"))
        for callback in values.callbacks:
            callback()
        await until(lambda: heard == ["2"])
        # One that has not heard yet writes over nothing.
        await first.alter("1", setting(message_max_bytes="1"))
        await other.alter("2", setting(message_max_bytes="3"))
        for node_id, own in ((1, "1"), (2, "3")):
            again = await opened(values, node_id=node_id)
            assert again.altered("") == {"message.max.bytes": "2"}
            assert again.altered(str(node_id)) == {"message.max.bytes": own}

    asyncio.run(run())


def test_brokers_that_are_altered_at_the_same_moment_lose_nothing() -> None:
    async def run() -> None:
        values = Values()
        first, other = await opened(values, node_id=1), await opened(values, node_id=2)
        await asyncio.gather(
            first.alter("1", setting(message_max_bytes="1")), other.alter("2", setting(message_max_bytes="2"))
        )
        await asyncio.gather(
            first.alter("", setting(log_retention_ms="1")), other.alter("", setting(log_retention_bytes="2"))
        )
        for node_id in (1, 2):
            again = await opened(values, node_id=node_id)
            assert again.altered(str(node_id)) == {"message.max.bytes": str(node_id)}
            assert again.altered("") == {"log.retention.ms": "1", "log.retention.bytes": "2"}

    asyncio.run(run())


def test_a_change_that_the_storage_loses_is_written_again() -> None:
    async def run() -> None:
        values = Values()
        brokers = await opened(values)
        values.writes_lost = 2
        await brokers.alter("1", setting(message_max_bytes="1"))
        assert (await opened(values)).altered("1") == {"message.max.bytes": "1"}
        values.writes_lost = 1_000
        with pytest.raises(KopError) as lost:
            await brokers.alter("1", setting(message_max_bytes="2"))
        assert lost.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert brokers.altered("1") == {"message.max.bytes": "1"}

    asyncio.run(run())


def test_what_an_unreleased_version_kept_in_one_value_does_not_apply(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        values = Values()
        values.kept["broker.configs"] = '{"": {"log.retention.ms": "5"}}'
        assert (await opened(values)).altered("") == {}
        assert values.kept == {}
        assert "alter them again" in caplog.text
        assert '{"": {"log.retention.ms": "5"}}' in caplog.text
        caplog.clear()
        await opened(values)
        assert not caplog.text

    asyncio.run(run())


def test_this_broker_beats_the_cluster_beats_the_file_beats_the_default() -> None:
    async def run() -> None:
        brokers = await opened(Values(), message_max_bytes=3)
        await brokers.alter("", setting(message_max_bytes="2"))
        await brokers.alter("1", setting(message_max_bytes="1"))
        assert [(origin.value, origin.source) for origin in brokers.origins("message.max.bytes")] == [
            ("1", Source.DYNAMIC_BROKER),
            ("2", Source.DYNAMIC_DEFAULT_BROKER),
            ("3", Source.STATIC_BROKER),
            ("1048588", Source.DEFAULT),
        ]
        assert brokers.text("message.max.bytes") == "1"
        assert brokers.origins("no.such") == ()

    asyncio.run(run())


def test_listeners_hear_of_changes_after_they_are_kept() -> None:
    async def run() -> None:
        values = Values()
        brokers = await opened(values)
        heard: list[tuple[int, str]] = []
        brokers.on_change(lambda: heard.append((brokers.version, values.kept.get("broker.configs.default", ""))))
        await brokers.alter("", setting(log_retention_ms="5"))
        await brokers.alter("", setting(log_retention_ms="5"))
        await brokers.alter("", setting(log_retention_ms="6"), validate_only=True)
        assert heard == [(2, '{"log.retention.ms": "5"}')], "only what changes something is a change"
        await brokers.alter("", lambda _: {})
        assert (heard[-1], values.kept) == ((3, ""), {})

    asyncio.run(run())


def test_altered_settings_come_back() -> None:
    async def run() -> None:
        values = Values()
        await (await opened(values)).alter("1", setting(log_retention_ms="5"))
        heard = []
        brokers = BrokerConfigs(Config.load(None, {}, {}).table())
        brokers.on_change(lambda: heard.append(brokers.text("log.retention.ms")))
        assert not brokers.loaded
        await brokers.load(values)
        assert brokers.loaded
        assert heard == ["5"]

    asyncio.run(run())


def test_kept_settings_that_are_not_understood_are_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> BrokerConfigs:
        values = Values()
        values.kept["broker.configs.default"] = '{"gone": "1", "log.retention.ms": "x", "message.max.bytes": "9"}'
        return await opened(values)

    with caplog.at_level(logging.WARNING):
        brokers = asyncio.run(run())
    assert dict(brokers.altered("")) == {"message.max.bytes": "9"}
    assert [record.message.split(": ", 1)[1] for record in caplog.records] == [
        "Cannot update these configs dynamically: [gone]",
        "Invalid value x for configuration log.retention.ms: Not a number of type LONG",
    ]


@pytest.mark.parametrize(
    ("resource", "name", "value", "message"),
    [
        ("1", "num.partitions", "3", "Cannot update these configs dynamically: [num.partitions]"),
        ("", "my.own", "3", "Cannot update these configs dynamically: [my.own]"),
        ("", "retention.ms", "3", "[retention.ms]; did you mean log.retention.ms?"),
        (
            "1",
            "log.retention.ms",
            "-2",
            "Invalid value -2 for configuration log.retention.ms: Value must be at least -1",
        ),
        ("9", "log.retention.ms", "3", "Unexpected broker id, expected 1, but received 9"),
        ("x", "log.retention.ms", "3", "Node id must be an integer, but it is: x"),
    ],
)
def test_refusals(resource: str, name: str, value: str, message: str) -> None:
    async def run() -> Values:
        values = Values()
        brokers = await opened(values)
        with pytest.raises(KopError) as caught:
            await brokers.alter(resource, lambda own: {**own, name: value})
        assert caught.value.code == ErrorCode.INVALID_REQUEST
        assert caught.value.message.endswith(message)
        return values

    assert asyncio.run(run()).kept == {}


def test_changes_at_the_same_time_do_not_lose_one_another() -> None:
    async def run() -> BrokerConfigs:
        brokers = await opened(Values())
        await asyncio.gather(
            brokers.alter("", setting(log_retention_ms="5")), brokers.alter("", setting(message_max_bytes="6"))
        )
        return brokers

    assert dict(asyncio.run(run()).altered("")) == {"log.retention.ms": "5", "message.max.bytes": "6"}


@pytest.mark.parametrize("text", ["{oops", "[]", '{"log.retention.ms": 5}', '"x"', "null"])
def test_kept_settings_that_do_not_parse_change_nothing(text: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        values = Values()
        values.kept["broker.configs.default"] = '{"log.retention.ms": "5"}'
        brokers = await opened(values)
        values.kept["broker.configs.default"] = text
        for callback in values.callbacks:
            callback()
        await until(lambda: "do not parse" in caplog.text)
        assert brokers.altered("") == {"log.retention.ms": "5"}
        assert (await opened(values)).altered("") == {}  # a broker that starts goes on without them
        await brokers.alter("", setting(log_retention_bytes="7"))  # which writes them again
        assert (await opened(values)).altered("") == {"log.retention.ms": "5", "log.retention.bytes": "7"}

    asyncio.run(main())
