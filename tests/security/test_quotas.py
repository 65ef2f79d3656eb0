"""Which quotas Kafka takes, which one holds for a client, and which of them a filter finds."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kop.errors import ErrorCode, PeerError
from kop.security import records
from kop.security.quotas import DEFAULT, Entity, QuotaKind, Quotas, check, entity_of, match_of

PRODUCED, CONSUMED = QuotaKind.PRODUCED, QuotaKind.CONSUMED
REQUESTS, MUTATIONS, CONNECTIONS = QuotaKind.REQUESTS, QuotaKind.MUTATIONS, QuotaKind.CONNECTIONS
USER, CLIENT, ADDRESS = Entity(user="u"), Entity(client_id="c"), Entity(ip="10.0.0.1")


@pytest.mark.parametrize(
    ("parts", "entity"),
    [
        ([("user", "u")], USER),
        ([("client-id", None), ("user", "u")], Entity("u", DEFAULT)),
        ([("user", None), ("client-id", None)], Entity(DEFAULT, DEFAULT)),
        ([("ip", None)], Entity(ip=DEFAULT)),
        ([("ip", "::0001")], Entity(ip="::1")),
        ([("ip", "::ffff:10.0.0.1")], ADDRESS),
    ],
)
def test_entities(parts: list[tuple[str, str | None]], entity: Entity) -> None:
    assert entity_of(parts) == entity


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([], "Invalid empty client quota entity"),
        ([("user", "")], "Empty user not supported"),
        ([("client-id", "")], "Empty client-id not supported"),
        ([("ip", "")], "Empty ip not supported"),
        ([("user", "a"), ("user", "b")], "Invalid client quota entity, duplicate entity entry"),
        ([("group", "a")], "Unhandled client quota entity type: group"),
        ([("", "a")], "Unhandled client quota entity type: "),
        ([("ip", "10.0.0.1"), ("user", "u")], "Invalid quota entity combination, IP entity should not be combined with "
         "User or ClientId"),
        ([("ip", None), ("client-id", None)], "Invalid quota entity combination, IP entity should not be combined with "
         "User or ClientId"),
        ([("ip", "10.0.0.0/8")], "10.0.0.0/8 is not a valid IP"),
        ([("ip", "localhost")], "localhost is not a valid IP"),
        ([("user", "ä" * 20_000)], "The user is longer than 32767 bytes"),
    ],
)  # fmt: skip
def test_entities_that_are_refused(parts: list[tuple[str, str | None]], text: str) -> None:
    with pytest.raises(PeerError) as refused:
        entity_of(parts)
    assert (refused.value.code, refused.value.message) == (ErrorCode.INVALID_REQUEST, text)


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        (USER, "producer_byte_rate", 1.0),
        (CLIENT, "consumer_byte_rate", float(2**62)),
        (USER, "producer_byte_rate", 1.0000001),
        (Entity("u", "c"), "request_percentage", 0.5),
        (Entity(DEFAULT), "controller_mutation_rate", 0.01),
        (ADDRESS, "connection_creation_rate", 2.0),
    ],
)
def test_values(entity: Entity, key: str, value: float) -> None:
    assert check(entity, key, value).value == key


@pytest.mark.parametrize(
    ("entity", "key", "value", "text"),
    [
        (USER, "producer_byte_rate", 0.0, "Quota producer_byte_rate must be greater than 0"),
        (USER, "producer_byte_rate", -1.0, "Quota producer_byte_rate must be greater than 0"),
        (USER, "request_percentage", -math.inf, "Quota request_percentage must be greater than 0"),
        (USER, "producer_byte_rate", 1.5, "producer_byte_rate cannot be a fractional value."),
        (CLIENT, "consumer_byte_rate", 0.5, "consumer_byte_rate cannot be a fractional value."),
        (CLIENT, "consumer_byte_rate", 2.0**63, "Proposed value for consumer_byte_rate is too large for a LONG."),
        (ADDRESS, "connection_creation_rate", 2.0**31,
         "Proposed value for connection_creation_rate is too large for an INT."),
        (USER, "request_percentage", math.nan, "Quota request_percentage must be a number"),
        (USER, "producer_byte_rate", math.nan, "Quota producer_byte_rate must be a number"),
        (USER, "request_percentage", math.inf, "Quota request_percentage must be finite"),
        (USER, "connection_creation_rate", 2.0, "Invalid configuration key connection_creation_rate"),
        (ADDRESS, "producer_byte_rate", 2.0, "Invalid configuration key producer_byte_rate"),
        (USER, "bytes", 2.0, "Invalid configuration key bytes"),
        (USER, "", 2.0, "Invalid configuration key "),
    ],
)  # fmt: skip
def test_values_that_are_refused(entity: Entity, key: str, value: float, text: str) -> None:
    with pytest.raises(PeerError) as refused:
        check(entity, key, value)
    assert (refused.value.code, refused.value.message) == (ErrorCode.INVALID_REQUEST, text)


BY_PRECEDENCE = [
    (Entity("u", "c"), ("u", "c")),
    (Entity("u", DEFAULT), ("u", "c")),
    (Entity("u"), ("u", None)),
    (Entity(DEFAULT, "c"), ("u", "c")),
    (Entity(DEFAULT, DEFAULT), ("u", "c")),
    (Entity(DEFAULT), ("u", None)),
    (Entity(None, "c"), (None, "c")),
    (Entity(None, DEFAULT), (None, "c")),
]


def test_the_quota_that_holds_is_the_first_by_kafkas_precedence() -> None:
    quotas = Quotas()
    for rate, (entity, _) in enumerate(BY_PRECEDENCE, 1):
        quotas.put(entity, PRODUCED, rate)
    quotas.put(Entity("u", "c"), CONSUMED, 77.0)
    for rate, (entity, share) in enumerate(BY_PRECEDENCE, 1):
        assert quotas.limit(PRODUCED, "u", "c") == (rate, share)
        quotas.put(entity, PRODUCED, None)
    assert quotas.limit(PRODUCED, "u", "c") is None
    assert quotas.limit(CONSUMED, "u", "c") == (77.0, ("u", "c"))
    assert quotas.limit(CONSUMED, "u", "other") is None
    quotas.put(Entity("u"), PRODUCED, 1.0)
    assert quotas.limit(PRODUCED, "", "") is None


def test_addresses_have_a_quota_of_their_own_or_the_default() -> None:
    quotas = Quotas()
    assert quotas.connections("10.0.0.1") is None
    quotas.put(Entity(ip=DEFAULT), CONNECTIONS, 5.0)
    quotas.put(ADDRESS, CONNECTIONS, 2.0)
    assert [quotas.connections(host) for host in ("10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2")] == [2.0, 2.0, 5.0]
    assert not quotas.of_clients


def test_changes_raise_the_version_and_the_last_one_leaves_nothing() -> None:
    quotas = Quotas()
    quotas.put(USER, PRODUCED, 5.0)
    quotas.put(USER, REQUESTS, 5.0)
    assert (len(quotas), quotas.version, quotas.of_clients) == (2, 2, True)
    quotas.put(USER, PRODUCED, 5.0)
    assert quotas.version == 2
    quotas.replace({(CLIENT, MUTATIONS): 1.0})
    assert (len(quotas), dict(quotas.of(CLIENT)), dict(quotas.of(USER))) == (1, {MUTATIONS: 1.0}, {})
    quotas.replace({})
    assert (len(quotas), quotas.of_clients) == (0, False)


ALL = [Entity("u", "c"), Entity("u", DEFAULT), USER, Entity(DEFAULT), CLIENT, Entity(None, DEFAULT), ADDRESS]


@pytest.mark.parametrize(
    ("components", "strict", "finds"),
    [
        ([], False, ALL),
        ([], True, []),
        ([("user", 0, "u")], False, [Entity("u", "c"), Entity("u", DEFAULT), USER]),
        ([("user", 0, "u")], True, [USER]),
        ([("user", 1, None)], False, [Entity(DEFAULT)]),
        ([("user", 2, None)], False, [Entity("u", "c"), Entity("u", DEFAULT), USER, Entity(DEFAULT)]),
        ([("user", 2, None), ("client-id", 1, None)], True, [Entity("u", DEFAULT)]),
        ([("client-id", 2, None)], True, [CLIENT, Entity(None, DEFAULT)]),
        ([("ip", 0, "10.0.0.1")], True, [ADDRESS]),
        ([("ip", 0, "10.0.0.2")], False, []),
        ([("user", 0, "")], False, []),
    ],
)
def test_filters(components: list[tuple[str, int, str | None]], strict: bool, finds: list[Entity]) -> None:
    quotas = Quotas()
    for entity in ALL:
        quotas.put(entity, CONNECTIONS if entity.ip else PRODUCED, 1.0)
    assert {entity for entity, _ in quotas.matching(match_of(components, strict))} == set(finds)


@pytest.mark.parametrize(
    ("components", "code", "text"),
    [
        ([("", 0, "u")], 42, "Invalid empty entity type."),
        ([("user", 0, "u"), ("user", 2, None)], 42, "Entity type user cannot appear more than once in the filter."),
        ([("group", 0, "g")], 35, "Unsupported entity type group"),
        ([("user", 0, None)], 42, "Request specified MATCH_TYPE_EXACT, but set match string to null."),
        ([("user", 1, "u")], 42, "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."),
        ([("user", 2, "u")], 42, "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."),
        ([("user", 3, None)], 42, "Unknown match type 3"),
        ([("ip", 1, None), ("user", 1, None)], 42, "Invalid entity filter component combination: IP filter component "
         "should not be combined with user or clientId filter component."),
    ],
)  # fmt: skip
def test_filters_that_are_refused(components: list[Any], code: int, text: str) -> None:
    with pytest.raises(PeerError) as refused:
        match_of(components, strict=False)
    assert (refused.value.code, refused.value.message) == (code, text)


@pytest.mark.parametrize("entity", [*ALL, Entity("ä\0", "")])
def test_records_say_what_was_written(entity: Entity) -> None:
    for value in (1.5, 1e300, None):
        written = records.of_quota(entity, REQUESTS, value)
        assert records.parsed(*written) == records.SecurityEntry("quota", (entity, REQUESTS), value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b'["quota","producer_byte_rate","u",null]', b'{"value":1}'),
        (b'["quota","producer_byte_rate",1,null,null]', b'{"value":1}'),
        (b'["quota","other","u",null,null]', b'{"value":1}'),
        (b'["quota","producer_byte_rate","u",null,null]', b'{"value":0}'),
        (b'["quota","producer_byte_rate","u",null,null]', b'{"value":NaN}'),
        (b'["quota","producer_byte_rate","u",null,null]', b'{"value":"1"}'),
        (b'["quota","producer_byte_rate","u",null,null]', b"{}"),
        (b'["quota"]', b"{}"),
    ],
)
def test_records_that_say_nothing(key: bytes, value: bytes) -> None:
    assert records.parsed(key, value) is None
