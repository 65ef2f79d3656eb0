"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: compared with a real Kafka 4.3.1's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from uuid import UUID

import pytest
from handlers.admin_gateway import Admin
from support.waiting import until

from kop.cluster.topic_configs import TOPIC_CONFIGS
from kop.errors import ErrorCode
from kop.handlers.configs import Operation, Resource
from kop.storage.base import TopicInfo
from kop.wire.messages import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)

E = ErrorCode
TOPIC, BROKER, LOGGER = Resource.TOPIC, Resource.BROKER, Resource.BROKER_LOGGER
SET, DELETE, APPEND, SUBTRACT = Operation


@pytest.fixture
def admin() -> Iterator[Admin]:
    admin = Admin()
    admin.create("t")
    yield admin
    admin.close()


def describe(
    admin: Admin, kind: int, name: str, keys: list[str] | None = None, version: int = 4, **options: bool
) -> Any:
    row = DescribeConfigsRequest.DescribeConfigsResource
    options = {"include_synonyms": True, "include_documentation": False} | options
    resources = [row(resource_type=kind, resource_name=name, configuration_keys=keys)]
    [result] = admin.call(DescribeConfigsRequest(version=version, resources=resources, **options)).results
    assert (result.resource_type, result.resource_name) == (kind, name)
    return result


def read(admin: Admin, kind: int, name: str, key: str) -> tuple[str | None, int, list[tuple[str, str, int]]]:
    """Value, source and synonyms of one config."""
    [config] = describe(admin, kind, name, [key]).configs
    assert config.name == key
    return config.value, config.config_source, [(s.name, s.value, s.source) for s in config.synonyms]


def value(admin: Admin, key: str) -> str | None:
    return read(admin, TOPIC, "t", key)[0]


def alter_request(*resources: tuple[int, str, list[tuple[str, str | None]]], version: int = 2, **options: Any) -> Any:
    row = AlterConfigsRequest.AlterConfigsResource
    return AlterConfigsRequest(
        version=version,
        resources=[
            row(
                resource_type=kind,
                resource_name=name,
                configs=[row.AlterableConfig(name=key, value=text) for key, text in configs],
            )
            for kind, name, configs in resources
        ],
        **({"validate_only": False} | options),
    )


def alter(admin: Admin, *resources: Any, **options: Any) -> list[tuple[int, str | None]]:
    rows = admin.call(alter_request(*resources, **options)).responses
    return [(row.error_code, row.error_message) for row in rows]


Change = tuple[str, int, str | None]


def change_request(*resources: tuple[int, str, list[Change]], version: int = 1, **options: Any) -> Any:
    row = IncrementalAlterConfigsRequest.AlterConfigsResource
    return IncrementalAlterConfigsRequest(
        version=version,
        resources=[
            row(
                resource_type=kind,
                resource_name=name,
                configs=[row.AlterableConfig(name=key, config_operation=op, value=text) for key, op, text in changes],
            )
            for kind, name, changes in resources
        ],
        **({"validate_only": False} | options),
    )


def change(admin: Admin, *resources: Any, **options: Any) -> list[tuple[int, str | None]]:
    rows = admin.call(change_request(*resources, **options)).responses
    return [(row.error_code, row.error_message) for row in rows]


def topic(admin: Admin, name: str = "t") -> TopicInfo:
    info = admin.gw.engine.topics.get(name)
    assert info is not None
    return info


OK = [(0, None)]


# --- DescribeConfigs


@pytest.mark.parametrize("version", range(1, 5))
def test_describe_a_topic_in_every_version(admin: Admin, version: int) -> None:
    result = describe(admin, TOPIC, "t", version=version)
    assert result.error_code == 0
    names = [config.name for config in result.configs]
    assert len(names) == 34
    assert names == sorted(names)
    assert not any(config.read_only or config.is_sensitive for config in result.configs)
    [retention] = [config for config in result.configs if config.name == "retention.ms"]
    assert (retention.value, retention.config_source) == ("604800000", 5)
    assert [(s.name, s.value, s.source) for s in retention.synonyms] == [("log.retention.hours", "604800000", 5)]
    if version >= 3:
        assert (retention.config_type, retention.documentation) == (5, None)


def test_describe_types_are_kafkas(admin: Admin) -> None:
    types = {config.name: config.config_type for config in describe(admin, TOPIC, "t").configs}
    expected = {
        "preallocate": 1, "message.timestamp.type": 2, "max.message.bytes": 3, "retention.ms": 5,
        "min.cleanable.dirty.ratio": 6, "cleanup.policy": 7, "segment.bytes": 3, "segment.ms": 5,
    }  # fmt: skip
    assert {name: types[name] for name in expected} == expected


def test_describe_with_documentation_and_without_synonyms(admin: Admin) -> None:
    result = describe(admin, TOPIC, "t", include_synonyms=False, include_documentation=True)
    assert all(config.synonyms == [] and config.documentation for config in result.configs)


PRINTED = [
    ("retention.ms", " +5000 ", "5000"),
    ("cleanup.policy", " compact , delete,compact", "compact,delete"),
    ("leader.replication.throttled.replicas", "0:1, 0:1", "0:1,0:1"),
    ("preallocate", "TRUE", "true"),
    ("min.cleanable.dirty.ratio", "5e-1", "0.5"),
    ("min.cleanable.dirty.ratio", "1", "1.0"),
    ("compression.type", " lz4 ", "lz4"),
]


@pytest.mark.parametrize(("name", "text", "printed"), PRINTED)
def test_describe_prints_values_as_kafka_does(admin: Admin, name: str, text: str, printed: str) -> None:
    assert alter(admin, (TOPIC, "t", [(name, text)])) == OK
    shown, source, synonyms = read(admin, TOPIC, "t", name)
    assert (shown, source, synonyms[0]) == (printed, 1, (name, printed, 1))
    assert topic(admin).configs[name] == text, "kept as it was written"


def test_describe_only_what_is_asked_for(admin: Admin) -> None:
    names = [config.name for config in describe(admin, TOPIC, "t", ["retention.ms", "nope"]).configs]
    assert names == ["retention.ms"]
    assert len(describe(admin, TOPIC, "t", []).configs) == 34
    assert describe(admin, TOPIC, "t", ["nope"]).configs == []


NOT_DESCRIBED: dict[str, tuple[int, str, ErrorCode, str]] = {
    "unknown topic": (TOPIC, "nope", E.UNKNOWN_TOPIC_OR_PARTITION, ""),
    "bad topic": (TOPIC, "bad name", E.INVALID_TOPIC_EXCEPTION, ""),
    "empty topic": (TOPIC, "", E.INVALID_TOPIC_EXCEPTION, ""),
    "other broker": (
        BROKER,
        "9",
        E.INVALID_REQUEST,
        "Unexpected broker id, expected 1 or empty string, but received 9",
    ),
    "no broker": (BROKER, "x", E.INVALID_REQUEST, "Broker id must be an integer, but it is: x"),
    "logger of another": (LOGGER, "9", E.INVALID_REQUEST, "Unexpected broker id, expected 1 but received 9"),
    "logger of nobody": (LOGGER, "", E.INVALID_REQUEST, "Broker id must not be empty"),
    "empty group": (Resource.GROUP, "", E.INVALID_REQUEST, "Group name must not be empty"),
    "empty subscription": (Resource.CLIENT_METRICS, "", E.INVALID_REQUEST, "must not be empty"),
    "type 0": (0, "x", E.INVALID_REQUEST, ""),
    "type 99": (99, "x", E.INVALID_REQUEST, ""),
}


@pytest.mark.parametrize("case", NOT_DESCRIBED)
def test_describe_refuses(admin: Admin, case: str) -> None:
    kind, name, code, message = NOT_DESCRIBED[case]
    result = describe(admin, kind, name)
    assert (result.error_code, result.configs) == (code, [])
    assert message in result.error_message


def test_groups_and_client_metrics_have_no_configs(admin: Admin) -> None:
    for kind in (Resource.GROUP, Resource.CLIENT_METRICS):
        result = describe(admin, kind, "some")
        assert (result.error_code, result.configs) == (0, [])


def test_describe_this_broker() -> None:
    admin = Admin(num_partitions=3, node_id=7)
    configs = {config.name: config for config in describe(admin, BROKER, "7").configs}
    addresses = {"listeners", "advertised.listeners"}
    assert set(configs) == {row.name for row in admin.config.table()} | addresses
    for name in addresses:  # under Kafka's names
        assert configs[name].value == "PLAINTEXT://127.0.0.1:9092,PLAINTEXT://[::1]:9092"
        assert configs[name].read_only
        assert configs[name].config_source == 4
    partitions = configs["num.partitions"]
    assert (partitions.value, partitions.config_source, partitions.config_type) == ("3", 4, 3)
    assert partitions.read_only
    assert [(s.value, s.source) for s in partitions.synonyms] == [("3", 4), ("1", 5)]
    assert configs["log.retention.ms"].value is None
    assert not configs["log.retention.ms"].read_only
    admin.close()


SECRETS = {
    *("delegation.token.secret.key", "kop.pulsar.auth", "kop.pulsar.token.secret.key", "sasl.jaas.config"),
    *("ssl.key.password", "ssl.keystore.key", "ssl.keystore.password", "ssl.truststore.password"),
}


@pytest.mark.parametrize("version", range(1, 5))
def test_a_secret_is_sensitive_and_null(version: int) -> None:
    admin = Admin(kop_pulsar_auth="token:very-secret", node_id=7)
    result = describe(admin, BROKER, "7", version=version)
    assert "very-secret" not in repr(result)
    (auth,) = [config for config in result.configs if config.name == "kop.pulsar.auth"]
    assert (auth.value, auth.is_sensitive, auth.config_source) == (None, True, 4)
    assert {(synonym.value, synonym.source) for synonym in auth.synonyms} == {(None, 4), (None, 5)}
    assert {config.name for config in result.configs if config.is_sensitive} == SECRETS
    admin.close()


def test_a_configured_default_of_topics_is_a_static_broker_config() -> None:
    admin = Admin(log_retention_minutes=5)
    admin.create("t")
    assert read(admin, TOPIC, "t", "retention.ms") == (
        "300000",
        4,
        [("log.retention.minutes", "300000", 4), ("log.retention.hours", "604800000", 5)],
    )
    admin.close()


# --- AlterConfigs


@pytest.mark.parametrize("version", range(3))
def test_alter_replaces_in_every_version(admin: Admin, version: int) -> None:
    assert alter(admin, (TOPIC, "t", [("retention.ms", "100")]), version=version) == OK
    assert read(admin, TOPIC, "t", "retention.ms")[:2] == ("100", 1)
    assert alter(admin, (TOPIC, "t", [("max.message.bytes", "2000")]), version=version) == OK
    assert dict(topic(admin).configs) == {"max.message.bytes": "2000"}
    assert read(admin, TOPIC, "t", "max.message.bytes") == (
        "2000",
        1,
        [("max.message.bytes", "2000", 1), ("message.max.bytes", "1048588", 5)],
    )
    assert alter(admin, (TOPIC, "t", []), version=version) == OK
    assert dict(topic(admin).configs) == {}


def test_alter_takes_effect_and_outlives_a_restart(admin: Admin) -> None:
    assert alter(admin, (TOPIC, "t", [("cleanup.policy", "compact"), ("max.message.bytes", "2000")])) == OK
    log = admin.engine.log(topic(admin).topic_id, 0)
    assert log is not None
    assert (log.policy.compact, log.policy.delete) == (True, False)
    admin.restart()
    log = admin.engine.log(topic(admin).topic_id, 0)
    assert log is not None
    assert (log.policy.compact, log.policy.delete) == (True, False)
    rules = admin.gw.topic_configs.produce_rules(topic(admin))
    assert (rules.compact, rules.max_message_bytes) == (True, 2000)


REFUSED: dict[str, tuple[Any, int, str]] = {
    "unknown topic": ((TOPIC, "nope", [("retention.ms", "1")]), 3, "The topic 'nope' does not exist."),
    "unknown config": ((TOPIC, "t", [("zzz", "1")]), 40, "Unknown topic config name: zzz"),
    "bad value": (
        (TOPIC, "t", [("max.message.bytes", "x")]),
        40,
        "Invalid value x for configuration max.message.bytes",
    ),
    "null": ((TOPIC, "t", [("max.message.bytes", None)]), 42, "Null value not supported for : max.message.bytes"),
    "config twice": ((TOPIC, "t", [("retention.ms", "1"), ("retention.ms", "2")]), 42, "duplicate config keys"),
    "static": (
        (BROKER, "1", [("num.partitions", "3")]),
        42,
        "Cannot update these configs dynamically: [num.partitions]",
    ),
    "other broker": (
        (BROKER, "9", [("log.retention.ms", "1")]),
        42,
        "Unexpected broker id, expected 1, but received 9",
    ),
    "no broker": ((BROKER, "x", [("log.retention.ms", "1")]), 42, "Node id must be an integer, but it is: x"),
    "logger": ((LOGGER, "1", [("kop", "INFO")]), 42, "Unknown resource type 8"),
    "type 99": ((99, "1", [("a", "b")]), 42, "Unknown resource type 99"),
    "metrics": ((Resource.CLIENT_METRICS, "m", [("x", "1")]), 42, "Unknown client metrics configuration: x"),
    "group": ((Resource.GROUP, "g", [("x", "1")]), 40, "Unknown group config name: x"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_alter_refuses(admin: Admin, case: str) -> None:
    resource, code, message = REFUSED[case]
    [(answered, text)] = alter(admin, resource)
    assert answered == code
    assert message in (text or "")
    assert dict(topic(admin).configs) == {}


@pytest.mark.parametrize("case", sorted(REFUSED.keys() - {"logger"}))
def test_incremental_set_refuses_alike(admin: Admin, case: str) -> None:
    (kind, name, configs), code, message = REFUSED[case]
    [(answered, text)] = change(admin, (kind, name, [(key, SET, text) for key, text in configs]))
    assert answered == code
    assert message in (text or "")
    assert dict(topic(admin).configs) == {}


def test_a_resource_named_twice_is_refused_both_times(admin: Admin) -> None:
    refusal = (42, "Each resource must appear at most once.")
    twice = [(TOPIC, "t", [("retention.ms", "1")])] * 2
    assert alter(admin, *twice) == [refusal] * 2
    assert change(admin, *[(TOPIC, "t", [("retention.ms", SET, "1")])] * 2) == [refusal] * 2
    assert dict(topic(admin).configs) == {}


def test_validate_only_changes_nothing(admin: Admin) -> None:
    assert alter(admin, (TOPIC, "t", [("retention.ms", "1")]), validate_only=True) == OK
    assert change(admin, (TOPIC, "t", [("retention.ms", SET, "1")]), validate_only=True) == OK
    assert change(admin, (BROKER, "", [("log.retention.ms", SET, "1")]), validate_only=True) == OK
    assert alter(admin, (TOPIC, "t", [("retention.ms", "x")]), validate_only=True)[0][0] == E.INVALID_CONFIG
    assert dict(topic(admin).configs) == {}
    assert read(admin, BROKER, "1", "log.retention.ms")[0] is None


# --- IncrementalAlterConfigs


@pytest.mark.parametrize("version", range(2))
def test_set_and_delete_leave_the_others(admin: Admin, version: int) -> None:
    first = (TOPIC, "t", [("retention.ms", SET, "500"), ("max.message.bytes", SET, "600")])
    assert change(admin, first, version=version) == OK
    assert change(admin, (TOPIC, "t", [("retention.ms", DELETE, None)]), version=version) == OK
    assert dict(topic(admin).configs) == {"max.message.bytes": "600"}
    assert change(admin, (TOPIC, "t", [("retention.ms", DELETE, "x"), ("zzz", DELETE, None)]), version=version) == OK


def test_lists_grow_and_shrink_as_kafkas(admin: Admin) -> None:
    steps: list[tuple[int, str, str]] = [
        (APPEND, "compact", "delete,compact"),  # from the default
        (APPEND, "compact", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "delete", "compact"),
        (SUBTRACT, "compact", ""),
        (APPEND, "compact,delete", "compact,delete"),
    ]
    for operation, text, expected in steps:
        assert change(admin, (TOPIC, "t", [("cleanup.policy", operation, text)])) == OK
        assert value(admin, "cleanup.policy") == expected
    assert change(admin, (BROKER, "", [("log.cleanup.policy", APPEND, "compact")])) == OK
    assert read(admin, BROKER, "", "log.cleanup.policy")[:2] == ("delete,compact", 3)


def test_only_lists_are_appended_to(admin: Admin) -> None:
    [(code, message)] = change(admin, (TOPIC, "t", [("retention.ms", APPEND, "1")]))
    assert (code, message) == (40, "Can't APPEND to key retention.ms because its type is not LIST.")
    assert change(admin, (TOPIC, "t", [("zzz", APPEND, "1")]))[0][0] == E.INVALID_CONFIG
    assert change(admin, (TOPIC, "t", [("cleanup.policy", APPEND, None)]))[0][0] == E.INVALID_REQUEST
    assert change(admin, (TOPIC, "t", [("cleanup.policy", 9, "x")]))[0][0] == E.INVALID_REQUEST


def test_a_resource_changes_wholly_or_not_at_all(admin: Admin) -> None:
    admin.create("u")
    answers = change(
        admin,
        (TOPIC, "t", [("retention.ms", SET, "1"), ("max.message.bytes", SET, "x")]),
        (TOPIC, "u", [("retention.ms", SET, "77")]),
    )
    assert [code for code, _ in answers] == [E.INVALID_CONFIG, 0]
    assert (dict(topic(admin).configs), dict(topic(admin, "u").configs)) == ({}, {"retention.ms": "77"})


def test_changes_at_the_same_time_do_not_lose_one_another(admin: Admin) -> None:
    names = ["retention.ms", "retention.bytes", "max.message.bytes", "delete.retention.ms"]

    async def all_at_once() -> None:
        await asyncio.gather(*(admin.answer(change_request((TOPIC, "t", [(name, SET, "5")]))) for name in names))

    admin.run(all_at_once())
    assert dict(topic(admin).configs) == dict.fromkeys(names, "5")


@pytest.mark.parametrize("together", [True, False], ids=["in one request", "in two"])
def test_a_topic_that_storage_does_not_answer_for_holds_up_no_other(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    admin.create("u")
    topics, silent, answered = admin.gw.engine.topics, topic(admin).topic_id, asyncio.Event()
    set_configs = topics.set_configs

    async def wait(topic_id: UUID, configs: Mapping[str, str], named: Collection[str] = ()) -> TopicInfo:
        if topic_id == silent:
            await answered.wait()
        return await set_configs(topic_id, configs, named)

    monkeypatch.setattr(topics, "set_configs", wait)
    changes: list[Change] = [("retention.ms", SET, "77")]
    resources = [(int(TOPIC), name, changes) for name in ("t", "u")]

    async def both() -> list[Any]:
        requests = [change_request(*resources)] if together else [change_request(resource) for resource in resources]
        answers = asyncio.gather(*map(admin.answer, requests))
        await until(lambda: topic(admin, "u").configs)
        assert not answers.done()
        answered.set()
        return [(row.resource_name, row.error_code) for answer in await answers for row in answer.responses]

    assert admin.run(both()) == [("t", 0), ("u", 0)]
    assert topic(admin).configs == topic(admin, "u").configs == {"retention.ms": "77"}


def test_what_a_topic_has_already_is_asked_of_storage_again(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage may obey other values than the topic says."""
    assert change(admin, (TOPIC, "t", [("retention.ms", SET, "77")])) == OK
    version, topics = admin.gw.topics.version, admin.gw.engine.topics
    set_configs, asked = topics.set_configs, []

    async def note(topic_id: UUID, configs: Mapping[str, str], named: Collection[str] = ()) -> TopicInfo:
        asked.append((dict(configs), set(named)))
        return await set_configs(topic_id, configs, named)

    monkeypatch.setattr(topics, "set_configs", note)
    assert change(admin, (TOPIC, "t", [("retention.ms", SET, "77"), ("flush.ms", DELETE, None)])) == OK
    assert alter(admin, (TOPIC, "t", [("retention.ms", "77")])) == OK
    assert asked == [
        ({"retention.ms": "77"}, {"retention.ms", "flush.ms"}),
        ({"retention.ms": "77"}, set(TOPIC_CONFIGS)),
    ]
    assert admin.gw.topics.version == version
    asked.clear()
    assert change(admin, (TOPIC, "t", [("retention.ms", SET, "77")]), validate_only=True) == OK
    assert asked == []


def test_the_offsets_topic_stays_compacted(admin: Admin) -> None:
    admin.create("__offsets", internal=True, cleanup_policy="compact")
    name = "__consumer_offsets"
    for attempt in (
        change(admin, (TOPIC, name, [("cleanup.policy", SET, "delete")])),
        change(admin, (TOPIC, name, [("cleanup.policy", APPEND, "delete")])),
        change(admin, (TOPIC, name, [("cleanup.policy", DELETE, None)])),
        alter(admin, (TOPIC, name, [("retention.ms", "1")])),
    ):
        assert attempt[0][0] == E.INVALID_CONFIG
    assert change(admin, (TOPIC, name, [("min.cleanable.dirty.ratio", SET, "0.1")])) == OK
    assert read(admin, TOPIC, name, "cleanup.policy")[0] == "compact"


# --- broker settings


def test_broker_settings_act_on_topics_at_once_and_outlive_a_restart(admin: Admin) -> None:
    log = admin.engine.log(topic(admin).topic_id, 0)
    assert log is not None
    everyone: list[Change] = [("log.retention.ms", SET, "2000000"), ("message.max.bytes", SET, "900000")]
    assert change(admin, (BROKER, "", everyone)) == OK
    assert change(admin, (BROKER, "1", [("log.retention.ms", SET, "1000000")])) == OK
    assert log.policy.retention_ms == 1_000_000
    assert admin.gw.topic_configs.produce_rules(topic(admin)).max_message_bytes == 900_000
    for _ in range(2):
        assert read(admin, TOPIC, "t", "retention.ms") == (
            "1000000",
            2,
            [("log.retention.ms", "1000000", 2), ("log.retention.ms", "2000000", 3),
             ("log.retention.hours", "604800000", 5)],
        )  # fmt: skip
        assert read(admin, TOPIC, "t", "max.message.bytes")[:2] == ("900000", 3)
        assert {config.name for config in describe(admin, BROKER, "").configs} == {
            "log.retention.ms",
            "message.max.bytes",
        }
        assert read(admin, BROKER, "1", "log.retention.ms")[:2] == ("1000000", 2)
        admin.restart()
    assert change(admin, (BROKER, "1", [("log.retention.ms", DELETE, None)])) == OK
    assert alter(admin, (BROKER, "", [])) == OK
    assert read(admin, TOPIC, "t", "retention.ms")[:2] == ("604800000", 5)
    assert describe(admin, BROKER, "").configs == []


def test_a_broker_default_that_changes_nothing_is_shown_on_topics(admin: Admin) -> None:
    assert read(admin, TOPIC, "t", "segment.ms") == ("604800000", 5, [("log.roll.ms", "604800000", 5)])
    assert change(admin, (BROKER, "", [("log.roll.ms", SET, "5000")])) == OK
    assert read(admin, TOPIC, "t", "segment.ms") == (
        "5000",
        3,
        [("log.roll.ms", "5000", 3), ("log.roll.ms", "604800000", 5)],
    )
    [(code, message)] = change(admin, (BROKER, "", [("log.roll.ms", SET, "0")]))
    assert (code, message) == (
        E.INVALID_REQUEST,
        "Invalid value 0 for configuration log.roll.ms: Value must be at least 1",
    )


def test_bad_broker_values_are_invalid_requests(admin: Admin) -> None:
    [(code, message)] = change(admin, (BROKER, "1", [("log.retention.ms", SET, "x")]))
    assert (code, message) == (42, "Invalid value x for configuration log.retention.ms: Not a number of type LONG")
    [(code, message)] = change(admin, (BROKER, "1", [("retention.ms", SET, "1")]))
    assert code == E.INVALID_REQUEST
    assert "did you mean log.retention.ms?" in (message or "")


# --- loggers


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("kop.test.configs")
    yield logger
    logger.setLevel(logging.NOTSET)


def test_loggers_are_set_and_unset(admin: Admin, logger: logging.Logger) -> None:
    for name, level in {"TRACE": 5, "WARN": 30, "FATAL": 50, "OFF": 60}.items():
        assert change(admin, (LOGGER, "1", [(logger.name, SET, name)])) == OK
        assert logger.level == level
        assert read(admin, LOGGER, "1", logger.name) == (name, 6, [])
    assert change(admin, (LOGGER, "1", [(logger.name, DELETE, None)])) == OK
    assert logger.level == logging.NOTSET


def test_loggers_refuse_as_kafkas(admin: Admin, logger: logging.Logger) -> None:
    cases: dict[str, tuple[str, Change, int, str]] = {
        "unknown": ("1", ("kop.no.such", SET, "INFO"), 40, "Logger kop.no.such does not exist!"),
        "level": ("1", (logger.name, SET, "LOUD"), 40, "not a supported log level"),
        "append": ("1", (logger.name, APPEND, "INFO"), 42, "APPEND operation is not allowed"),
        "root": ("1", ("root", DELETE, None), 42, "Removing the log level of the root logger is not allowed"),
        "other broker": ("9", (logger.name, SET, "INFO"), 42, "Unexpected node id. Expected 1, but received 9"),
    }
    for case, (broker, alteration, code, text) in cases.items():
        [(answered, message)] = change(admin, (LOGGER, broker, [alteration]))
        assert answered == code, case
        assert text in (message or ""), case
    assert logger.level == logging.NOTSET


# --- ListConfigResources


def test_list_config_resources(admin: Admin) -> None:
    def ask(kinds: list[int]) -> tuple[int, list[tuple[str, int]]]:
        answer = admin.call(ListConfigResourcesRequest(version=1, resource_types=kinds))
        return answer.error_code, [(row.resource_name, row.resource_type) for row in answer.config_resources]

    assert ask([]) == (0, [("t", 2), ("1", 4), ("1", 8)])
    assert ask([2]) == (0, [("t", 2)])
    assert ask([16, 32]) == (0, [])
    assert ask([2, 99]) == (E.UNSUPPORTED_VERSION, [])
    assert admin.call(ListConfigResourcesRequest(version=0)).config_resources == []
