"""The requests that are recorded: each served API in its oldest and its newest version, and the rights it needs.

Owns: the fields of each request, and the rights that Kafka asks for each of its rows.
Must not know: how a server is asked, what it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.authorization.world import (
    ABSENT,
    CALM,
    GROUP,
    HIDDEN,
    HIDDEN_GROUP,
    HIDDEN_ID,
    LIVELY_GROUP,
    MEMBER,
    MISSING,
    MISSING_GROUP,
    MISSING_TXN,
    MISSING_USER,
    OPEN,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    SEEN,
    SEEN_ID,
    UNKNOWN_ID,
    USER,
    batch,
)

Right = str
"""An operation, a type of resource and a name, such as "READ TOPIC topic-seen"."""
Row = Sequence[Sequence[Right]]
"""What a request needs once: ways to have it, of which one is enough; each way is a right for each item."""
Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One request in some versions."""

    key: int
    name: str
    """What tells it from other requests of its API."""
    versions: Sequence[int]
    """Those beyond what both servers serve are moved to the nearest one that they do."""
    fields: Callable[[int], Fields]
    """The fields for a version; those that it has not are left out."""
    rows: Callable[[int], Sequence[Row]]
    answered: bool = True
    """False if the server answers with nothing, or by closing the connection."""


CLUSTER = "CLUSTER kafka-cluster"
_NEWEST = 99
_BOTH = (0, _NEWEST)
_TOPICS = (SEEN, HIDDEN, MISSING)
_IDS = {SEEN: SEEN_ID, HIDDEN: HIDDEN_ID, MISSING: UNKNOWN_ID}
_PRODUCER = {"producer_id": PRODUCER_ID, "producer_epoch": PRODUCER_EPOCH}


def topics(operation: str, names: Sequence[str] = _TOPICS) -> Sequence[Right]:
    """Return the rights to topics."""
    return [f"{operation} TOPIC {name}" for name in names]


def groups(operation: str, *names: str) -> Sequence[Right]:
    """Return the rights to groups."""
    return [f"{operation} GROUP {name}" for name in names]


def transactions(operation: str, *names: str) -> Sequence[Right]:
    """Return the rights to transactional ids."""
    return [f"{operation} TRANSACTIONAL_ID {name}" for name in names]


def cluster(operation: str) -> Sequence[Right]:
    """Return the right to the cluster."""
    return [f"{operation} {CLUSTER}"]


def _named(topic: str, version: int, by_id_from: int, name: str = "name") -> dict[str, Any]:
    return {"topic_id": _IDS[topic]} if version >= by_id_from else {name: topic}


def _by_name(version: int, **rest: Any) -> Sequence[Fields]:
    return [{"name": topic, "topic": topic, **rest} for topic in _TOPICS]


def _produce(version: int, *, transactional: bool = False, acks: int = -1) -> Fields:
    producer = (PRODUCER_ID, PRODUCER_EPOCH) if transactional else None
    partition = {"index": 0, "records": batch("a new record", producer)}
    names = (SEEN, HIDDEN) if transactional or not acks else _TOPICS
    return {
        "transactional_id": OPEN if transactional else None,
        "acks": acks,
        "timeout_ms": 10_000,
        "topic_data": [_named(topic, version, 13) | {"partition_data": [partition]} for topic in names],
    }


def _fetch(version: int, replica: int = -1) -> Fields:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 2**20, "high_watermark": 2**63 - 1}
    fields = {
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 2**20,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [_named(topic, version, 13, "topic") | {"partitions": [partition]} for topic in _TOPICS],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    if replica >= 0:
        fields |= {"replica_id": replica, "replica_state": {"replica_id": replica, "replica_epoch": -1}}
    return fields


def _metadata(version: int, asked: Sequence[Fields] | None, *, create: bool = False) -> Fields:
    return {
        "topics": asked if version or asked else [],
        "allow_auto_topic_creation": create,
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }


def _metadata_rows(version: int) -> Sequence[Row]:
    rows: list[Row] = [[topics("DESCRIBE")]]
    if 8 <= version <= 10:
        rows.append([cluster("DESCRIBE")])
    return rows


def _offset_commit(version: int) -> Fields:
    partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": "new"}
    return {
        "group_id": GROUP,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time_ms": -1,
        "topics": [_named(topic, version, 10) | {"partitions": [partition]} for topic in _TOPICS],
    }


def _offset_fetch(version: int, *, every: bool = False) -> Fields:
    if version < 8:
        asked = None if every else _by_name(version, partition_indexes=[0])
        return {"group_id": GROUP, "topics": asked, "require_stable": False}
    by_id = [_named(topic, version, 10) | {"partition_indexes": [0]} for topic in _TOPICS]
    return {
        "groups": [
            {"group_id": group, "member_id": None, "member_epoch": -1, "topics": None if every else by_id}
            for group in (GROUP, HIDDEN_GROUP)
        ],
        "require_stable": False,
    }


def _offset_fetch_rows(version: int) -> Sequence[Row]:
    names = (GROUP,) if version < 8 else (GROUP, HIDDEN_GROUP)
    return [[groups("DESCRIBE", *names)], [topics("DESCRIBE")]]


def _coordinators(version: int, kind: int, *keys: str) -> Fields:
    return {"key": keys[0], "key_type": kind, "coordinator_keys": list(keys)}


def _join(version: int) -> Fields:
    return {
        "group_id": GROUP,
        "session_timeout_ms": 60_000,
        "rebalance_timeout_ms": 60_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\0\xff\xff\xff\xff"}],
        "reason": None,
    }


def _member(version: int) -> Fields:
    return {"group_id": LIVELY_GROUP, "generation_id": 1, "member_id": MEMBER, "group_instance_id": None}


def _leave(version: int) -> Fields:
    members = [{"member_id": MEMBER, "group_instance_id": None, "reason": None}]
    return {"group_id": LIVELY_GROUP, "member_id": MEMBER, "members": members}


def _sync(version: int) -> Fields:
    return {**_member(version), "protocol_type": "consumer", "protocol_name": "range", "assignments": []}


def _create_topics(version: int) -> Fields:
    return {
        "topics": [
            {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
            for name in (MISSING, ABSENT, HIDDEN)
        ],
        "timeout_ms": 10_000,
        "validate_only": False,
    }


def _create_topics_rows(version: int) -> Sequence[Row]:
    names = (MISSING, ABSENT, HIDDEN)
    rows: list[Row] = [[topics("CREATE", names), cluster("CREATE")]]
    return [*rows, [topics("DESCRIBE_CONFIGS", names)]] if version >= 5 else rows


def _delete_topics(version: int, *, by_id: bool = False) -> Fields:
    named = [{"name": None, "topic_id": _IDS[topic]} if by_id else {"name": topic} for topic in _TOPICS]
    return {"topics": named, "topic_names": list(_TOPICS), "timeout_ms": 10_000}


def _transaction(version: int) -> Fields:
    """The transaction in all the shapes that its requests have."""
    if version >= 4:
        return {
            "transactions": [
                {
                    "transactional_id": OPEN,
                    **_PRODUCER,
                    "verify_only": False,
                    "topics": [{"name": topic, "partitions": [1]} for topic in (SEEN, HIDDEN)],
                }
            ]
        }
    fields = {"transactional_id": OPEN, **_PRODUCER}
    asked = [{"name": topic, "partitions": [1]} for topic in (SEEN, HIDDEN)]
    return {f"v3_and_below_{name}": value for name, value in fields.items()} | {"v3_and_below_topics": asked}


def _txn_offset_commit(version: int) -> Fields:
    partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": "new"}
    return {
        "transactional_id": OPEN,
        "group_id": GROUP,
        **_PRODUCER,
        "generation_id": -1,
        "member_id": "",
        "topics": _by_name(version, partitions=[partition]),
    }


def _markers(version: int) -> Fields:
    topic = {"name": SEEN, "partition_indexes": [0]}
    marker = {**_PRODUCER, "transaction_result": False, "topics": [topic], "coordinator_epoch": 0}
    return {"markers": [marker]}


_ACL = {
    "resource_type": 2,
    "resource_name": ABSENT,
    "resource_pattern_type": 3,
    "principal": "User:nobody",
    "host": "*",
}
_ACL_FILTER = {
    "resource_type_filter": 2,
    "resource_name_filter": ABSENT,
    "pattern_type_filter": 3,
    "principal_filter": "User:nobody",
    "host_filter": None,
    "operation": 3,
    "permission_type": 3,
}
_RESOURCES = ((2, SEEN), (2, HIDDEN), (2, MISSING), (4, ""), (32, GROUP))


def _configs(version: int, configs: Callable[[int], Any]) -> Fields:
    resources = [{"resource_type": kind, "resource_name": name, "configs": configs(kind)} for kind, name in _RESOURCES]
    return {"resources": resources, "validate_only": False}


def _alter(kind: int) -> Sequence[Fields]:
    return [{"name": "retention.ms", "config_operation": 0, "value": "999999999933"}] if kind == 2 else []


def _describe_configs(version: int) -> Fields:
    kinds = (*_RESOURCES, (4, "1"), (8, "1"), (16, "metrics"))
    resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": None} for kind, name in kinds]
    return {"resources": resources, "include_synonyms": True}


def _config_rows(operation: str) -> Sequence[Row]:
    return [[topics(operation)], [cluster(operation)], [groups(operation, GROUP)]]


def _list_configs(version: int) -> Fields:
    return {"resource_types": []}


def _always(*rows: Row) -> Callable[[int], Sequence[Row]]:
    return lambda version: rows


def _fields(**fields: Any) -> Callable[[int], Fields]:
    return lambda version: fields


REQUESTS: Sequence[Request] = (
    Request(0, "names or ids", _BOTH, _produce, _always([topics("WRITE")])),
    Request(
        0,
        "transactional",
        _BOTH,
        lambda version: _produce(version, transactional=True),
        _always([transactions("WRITE", OPEN)], [topics("WRITE", (SEEN, HIDDEN))]),
    ),
    Request(
        0,
        "acks 0",
        _BOTH,
        lambda version: _produce(version, acks=0),
        _always([topics("WRITE", (SEEN, HIDDEN))]),
        answered=False,
    ),
    Request(1, "names or ids", _BOTH, _fetch, _always([topics("READ")])),
    Request(1, "replica", _BOTH, lambda version: _fetch(version, 1), _always([cluster("CLUSTER_ACTION")])),
    Request(
        2,
        "latest",
        _BOTH,
        lambda version: {
            "replica_id": -1,
            "topics": _by_name(version, partitions=[{"partition_index": 0, "timestamp": -1}]),
            "timeout_ms": 10_000,
        },
        _always([topics("DESCRIBE")]),
    ),
    Request(3, "names", (4, 8, _NEWEST), lambda version: _metadata(version, _by_name(version)), _metadata_rows),
    Request(
        3,
        "ids",
        (12, _NEWEST),
        lambda version: _metadata(version, [{"name": None, "topic_id": topic} for topic in _IDS.values()]),
        _metadata_rows,
    ),
    Request(3, "all", (0, 8, _NEWEST), lambda version: _metadata(version, None), _metadata_rows),
    Request(
        3,
        "create",
        _BOTH,
        lambda version: _metadata(version, [{"name": MISSING}, {"name": ABSENT}, {"name": HIDDEN}], create=True),
        _always(
            [topics("DESCRIBE", (MISSING, ABSENT, HIDDEN))],
            [topics("CREATE", (MISSING, ABSENT)), cluster("CREATE")],
        ),
    ),
    Request(8, "names or ids", _BOTH, _offset_commit, _always([groups("READ", GROUP)], [topics("READ")])),
    Request(9, "names or ids", (0, 9, _NEWEST), _offset_fetch, _offset_fetch_rows),
    Request(9, "all", (2, _NEWEST), lambda version: _offset_fetch(version, every=True), _offset_fetch_rows),
    Request(
        10,
        "groups",
        _BOTH,
        lambda version: _coordinators(version, 0, HIDDEN_GROUP, GROUP, MISSING_GROUP),
        lambda version: [[groups("DESCRIBE", *(HIDDEN_GROUP, GROUP, MISSING_GROUP)[: 1 if version < 4 else 3])]],
    ),
    Request(
        10,
        "transactional ids",
        (1, _NEWEST),
        lambda version: _coordinators(version, 1, OPEN, CALM, MISSING_TXN),
        lambda version: [[transactions("DESCRIBE", *(OPEN, CALM, MISSING_TXN)[: 1 if version < 4 else 3])]],
    ),
    Request(
        10, "shares", (1, _NEWEST), lambda version: _coordinators(version, 2, "s"), _always([cluster("CLUSTER_ACTION")])
    ),
    Request(11, "join", _BOTH, _join, _always([groups("READ", GROUP)])),
    Request(12, "member", _BOTH, _member, _always([groups("READ", LIVELY_GROUP)])),
    Request(13, "member", _BOTH, _leave, _always([groups("READ", LIVELY_GROUP)])),
    Request(14, "member", _BOTH, _sync, _always([groups("READ", LIVELY_GROUP)])),
    Request(
        15,
        "groups",
        _BOTH,
        _fields(groups=[GROUP, LIVELY_GROUP, MISSING_GROUP], include_authorized_operations=True),
        _always([groups("DESCRIBE", GROUP, LIVELY_GROUP, MISSING_GROUP)]),
    ),
    Request(
        16,
        "groups",
        _BOTH,
        _fields(states_filter=[], types_filter=[]),
        _always([groups("DESCRIBE", GROUP, LIVELY_GROUP), cluster("DESCRIBE")]),
    ),
    Request(17, "plain", _BOTH, _fields(mechanism="PLAIN"), _always()),
    Request(
        18,
        "versions",
        _BOTH,
        _fields(client_software_name="somebody", client_software_version="1"),
        _always(),
    ),
    Request(19, "names", _BOTH, _create_topics, _create_topics_rows),
    Request(20, "names", _BOTH, _delete_topics, _always([topics("DELETE"), cluster("DELETE")])),
    Request(
        20,
        "ids",
        (6, _NEWEST),
        lambda version: _delete_topics(version, by_id=True),
        _always([topics("DELETE"), cluster("DELETE")], [topics("DESCRIBE")]),
    ),
    Request(
        21,
        "names",
        _BOTH,
        lambda version: {
            "topics": _by_name(version, partitions=[{"partition_index": 0, "offset": 1}]),
            "timeout_ms": 10_000,
        },
        _always([topics("DELETE")]),
    ),
    Request(
        22,
        "transactional id",
        _BOTH,
        _fields(transactional_id=CALM, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1),
        _always([transactions("WRITE", CALM)]),
    ),
    Request(
        22,
        "idempotent",
        _BOTH,
        _fields(transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1),
        _always([cluster("IDEMPOTENT_WRITE"), topics("WRITE", (ABSENT,))]),
    ),
    Request(
        23,
        "names",
        _BOTH,
        lambda version: {
            "replica_id": -1,
            "topics": _by_name(version, partitions=[{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]),
        },
        _always([topics("DESCRIBE")]),
    ),
    Request(
        24,
        "client",
        (0, 3),
        _transaction,
        _always([transactions("WRITE", OPEN)], [topics("WRITE", (SEEN, HIDDEN))]),
    ),
    Request(24, "broker", (4, _NEWEST), _transaction, _always([cluster("CLUSTER_ACTION")])),
    Request(
        25,
        "group",
        _BOTH,
        _fields(transactional_id=OPEN, **_PRODUCER, group_id=HIDDEN_GROUP),
        _always([transactions("WRITE", OPEN)], [groups("READ", HIDDEN_GROUP)]),
    ),
    Request(
        26,
        "commit",
        _BOTH,
        _fields(transactional_id=OPEN, **_PRODUCER, committed=True),
        _always([transactions("WRITE", OPEN)]),
    ),
    Request(27, "abort", _BOTH, _markers, _always([cluster("ALTER"), cluster("CLUSTER_ACTION")])),
    Request(
        28,
        "names",
        _BOTH,
        _txn_offset_commit,
        _always([transactions("WRITE", OPEN)], [groups("READ", GROUP)], [topics("READ")]),
    ),
    Request(29, "filter", _BOTH, _fields(**_ACL_FILTER), _always([cluster("DESCRIBE")])),
    Request(
        30,
        "one",
        _BOTH,
        _fields(creations=[{**_ACL, "operation": 3, "permission_type": 3}]),
        _always([cluster("ALTER")]),
    ),
    Request(31, "filter", _BOTH, _fields(filters=[_ACL_FILTER]), _always([cluster("ALTER")])),
    Request(32, "kinds", _BOTH, _describe_configs, _always(*_config_rows("DESCRIBE_CONFIGS"))),
    Request(33, "kinds", _BOTH, lambda version: _configs(version, _alter), _always(*_config_rows("ALTER_CONFIGS"))),
    Request(35, "all", _BOTH, _fields(topics=None), _always([cluster("DESCRIBE")])),
    Request(36, "plain", _BOTH, _fields(auth_bytes=b"\0somebody\0secret"), _always()),
    Request(
        37,
        "names",
        _BOTH,
        lambda version: {
            "topics": _by_name(version, count=3, assignments=None),
            "timeout_ms": 10_000,
            "validate_only": False,
        },
        _always([topics("ALTER")]),
    ),
    Request(
        42,
        "groups",
        _BOTH,
        _fields(groups_names=[GROUP, HIDDEN_GROUP, MISSING_GROUP]),
        _always([groups("DELETE", GROUP, HIDDEN_GROUP, MISSING_GROUP)]),
    ),
    Request(
        43,
        "partitions",
        _BOTH,
        lambda version: {
            "election_type": 0,
            "topic_partitions": _by_name(version, partitions=[0]),
            "timeout_ms": 10_000,
        },
        _always([cluster("ALTER")]),
    ),
    Request(44, "kinds", _BOTH, lambda version: _configs(version, _alter), _always(*_config_rows("ALTER_CONFIGS"))),
    Request(46, "all", _BOTH, _fields(timeout_ms=10_000, topics=None), _always([cluster("DESCRIBE")])),
    Request(
        47,
        "names",
        _BOTH,
        lambda version: {"group_id": GROUP, "topics": _by_name(version, partitions=[{"partition_index": 0}])},
        _always([groups("DELETE", GROUP)], [topics("READ")]),
    ),
    Request(
        48,
        "one",
        _BOTH,
        _fields(components=[{"entity_type": "user", "match_type": 0, "match": USER}], strict=False),
        _always([cluster("DESCRIBE_CONFIGS")]),
    ),
    Request(
        49,
        "one",
        _BOTH,
        _fields(
            entries=[
                {
                    "entity": [{"entity_type": "user", "entity_name": USER}],
                    "ops": [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}],
                },
            ],
            validate_only=False,
        ),
        _always([cluster("ALTER_CONFIGS")]),
    ),
    Request(50, "one", _BOTH, _fields(users=[{"name": USER}]), _always([cluster("DESCRIBE")])),
    Request(
        51,
        "both",
        _BOTH,
        _fields(
            deletions=[{"name": MISSING_USER, "mechanism": 1}],
            upsertions=[
                {"name": USER, "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"salted" * 6}
            ],
        ),
        _always([cluster("ALTER")]),
    ),
    Request(
        55,
        "metadata",
        _BOTH,
        _fields(topics=[{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]),
        _always([cluster("DESCRIBE")]),
    ),
    Request(
        57,
        "one",
        _BOTH,
        _fields(
            timeout_ms=10_000,
            feature_updates=[
                {"feature": "transaction.version", "max_version_level": 2, "allow_downgrade": False, "upgrade_type": 1}
            ],
            validate_only=False,
        ),
        _always([cluster("ALTER")]),
    ),
    Request(
        60,
        "brokers",
        _BOTH,
        _fields(include_cluster_authorized_operations=True, endpoint_type=1, include_fenced_brokers=False),
        _always([cluster("DESCRIBE")]),
    ),
    Request(
        61,
        "names",
        _BOTH,
        lambda version: {"topics": _by_name(version, partition_indexes=[0])},
        _always([topics("READ")]),
    ),
    Request(
        65,
        "ids",
        _BOTH,
        _fields(transactional_ids=[OPEN, CALM, MISSING_TXN]),
        _always([transactions("DESCRIBE", OPEN, CALM, MISSING_TXN)], [topics("DESCRIBE", (SEEN, HIDDEN))]),
    ),
    Request(
        66,
        "all",
        _BOTH,
        _fields(state_filters=[], producer_id_filters=[], duration_filter=-1, transactional_id_pattern=None),
        _always([transactions("DESCRIBE", OPEN, CALM)]),
    ),
    Request(74, "all", _BOTH, _list_configs, _always([cluster("DESCRIBE_CONFIGS")])),
    Request(
        75,
        "names",
        _BOTH,
        lambda version: {"topics": [{"name": name} for name in _TOPICS], "response_partition_limit": 100},
        _always([topics("DESCRIBE")]),
    ),
    Request(
        75,
        "all",
        _BOTH,
        _fields(topics=[], response_partition_limit=100),
        _always([topics("DESCRIBE")]),
    ),
)


def rights(rows: Sequence[Row]) -> frozenset[Right]:
    """Return all rights that rows name."""
    return frozenset(right for row in rows for way in row for right in way)


def cases(rows: Sequence[Row]) -> Iterator[tuple[str, frozenset[Right]]]:
    """Return the cases of a request: their names, and which of its rights are not given; none of these twice."""
    everything = rights(rows)
    made: dict[frozenset[Right], str] = (
        {frozenset(): "all", everything: "nothing"} if everything else {frozenset(): "all"}
    )
    for row in rows:
        kind = " or ".join(" ".join(way[0].split()[:2]) for way in row)
        own = frozenset(right for way in row for right in way)
        made.setdefault(own, f"without {kind}")
        first = {way[0] for way in row if len(way) > 1}
        if first:
            made.setdefault(own - first, f"{kind} for the first alone")
        made.setdefault(everything - own, f"{kind} alone")
        if len(row) > 1:
            for way in row:
                made.setdefault(own - set(way), " ".join(way[0].split()[:2]) + " of the ways")
                made.setdefault(everything - set(way), " ".join(way[0].split()[:2]) + " of all rights")
    for refused, name in made.items():
        yield name, refused
