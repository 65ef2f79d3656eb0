"""What requests leave in the audit: each denial once, each change, what was allowed where that is set; no secret."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from handlers.authorized_gateway import Client, Place, place
from support.gateway import batch, run

from conformance.authorization.requests import CLUSTER
from conformance.authorization.world import HIDDEN, OPEN, SEEN, Connection
from kop.errors import ErrorCode
from kop.server.request import RequestPipeline

REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class Lines:
    """The lines of a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new(self, principal: str = "User:ANONYMOUS") -> list[dict[str, Any]]:
        """Return the lines since the last call, without what is the same in all."""
        lines = [json.loads(line) for line in self._path.read_text().splitlines()]
        new, self._read = lines[self._read :], len(lines)
        for line in new:
            assert line.pop("time")[:2] == "20"
            assert (line.pop("broker"), line.pop("host")) == (1, "127.0.0.1")
            assert line.pop("principal") == principal
        return new

    def short(self, principal: str = "User:ANONYMOUS") -> list[str]:
        """Return the new lines as text."""
        lines = self.new(principal)
        return [f"{line['event']} {line['operation']} {line['resource']} {line['name']}" for line in lines]


async def metadata(conn: Connection, *names: str) -> list[int]:
    topics = [{"name": name, "topic_id": None} for name in names] if names else None
    answer = await conn.call(3, 12, topics=topics, allow_auto_topic_creation=True)
    return [topic.error_code for topic in answer.topics]


async def produce(conn: Connection, name: str) -> int:
    data = [
        {"name": name, "partition_data": [{"index": 0, "records": batch([b"v"], timestamp=int(time.time() * 1000))}]}
    ]
    answer = await conn.call(0, 9, transactional_id=None, acks=-1, timeout_ms=1000, topic_data=data)
    return int(answer.responses[0].partition_responses[0].error_code)


async def fetch(conn: Connection, name: str) -> int:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 2**20}
    topics = [{"topic": name, "partitions": [partition]}]
    answer = await conn.call(
        1, 12, max_wait_ms=0, min_bytes=0, max_bytes=2**20, session_epoch=-1, topics=topics, forgotten_topics_data=[]
    )
    return int(answer.responses[0].partitions[0].error_code)


async def _denials(at: Place, conn: Connection, lines: Lines) -> None:
    for _ in range(3):  # what was decided once, and is known, is told each time
        assert await produce(conn, HIDDEN) == REFUSED
        assert await metadata(conn, HIDDEN, "topic-missing") == [REFUSED, REFUSED]
        assert await fetch(conn, HIDDEN) == REFUSED
        assert lines.short() == [
            f"denied WRITE TOPIC {HIDDEN}",
            f"denied DESCRIBE TOPIC {HIDDEN}",
            "denied DESCRIBE TOPIC topic-missing",
            f"denied READ TOPIC {HIDDEN}",
        ]
    # What is left out of an answer was not refused.
    assert await metadata(conn) == []
    assert not (await conn.call(16, 4, states_filter=[])).groups
    answer = await conn.call(66, 0, state_filters=[], producer_id_filters=[])
    assert not answer.transaction_states
    assert lines.short() == []
    # One of several ways to have a right is no denial by itself.
    at.rights.give([f"DELETE {CLUSTER}"])
    gone = await conn.call(20, 6, topics=[{"name": HIDDEN, "topic_id": None}], timeout_ms=1000)
    assert gone.responses[0].error_code == 0
    assert lines.short() == []
    at.rights.give([])
    assert (await conn.call(22, 4, transactional_id=None, transaction_timeout_ms=1)).error_code
    await conn.call(22, 4, transactional_id=OPEN, transaction_timeout_ms=1)
    assert lines.new() == [
        dict(event="denied", operation="IDEMPOTENT_WRITE", resource="CLUSTER", name="kafka-cluster", rule="no ACL"),
        dict(event="denied", operation="WRITE", resource="TRANSACTIONAL_ID", name=OPEN, rule="no ACL"),
    ]


async def _changes(at: Place, conn: Connection, lines: Lines) -> None:
    at.rights.give([f"ALTER {CLUSTER}", f"ALTER_CONFIGS TOPIC {SEEN}", f"ALTER_CONFIGS {CLUSTER}"])
    acl = dict(resource_type=2, resource_name="a\nb", resource_pattern_type=4, principal="User:x", host="*")
    rest = dict(operation=3, permission_type=2)
    for _ in range(2):  # the second time nothing changes
        made = await conn.call(30, 3, creations=[acl | rest, acl | rest | dict(resource_name="")])
        assert [each.error_code for each in made.results] == [0, ErrorCode.INVALID_REQUEST]
    of_acl = dict(event="changed", resource="ACL", name="a\nb", resource_type="TOPIC", pattern_type="PREFIXED")
    of_acl |= dict(acl_principal="User:x", acl_host="*", acl_operation="READ", permission="DENY")
    assert lines.new() == [of_acl | dict(operation="CREATE")]
    every: dict[str, Any] = {f"{name}_filter": None for name in ("resource_name", "principal", "host")}
    every |= dict(resource_type_filter=1, pattern_type_filter=1)
    await conn.call(31, 3, filters=[every | dict(operation=1, permission_type=1)] * 2)
    assert lines.new() == [of_acl | dict(operation="DELETE")]
    user = dict(name="bob", mechanism=2, iterations=4096, salt=b"salt", salted_password=b"secret" * 6)
    await conn.call(51, 0, deletions=[], upsertions=[user])
    await conn.call(51, 0, deletions=[dict(name="bob", mechanism=2)], upsertions=[])
    await conn.call(51, 0, deletions=[dict(name="bob", mechanism=2)], upsertions=[])
    of_user = dict(event="changed", resource="USER", name="bob", mechanism="SCRAM-SHA-512")
    assert lines.new() == [of_user | dict(operation="SET"), of_user | dict(operation="DELETE")]
    ops = [dict(key="producer_byte_rate", value=1000.0, remove=False)]
    entry = dict(entity=[dict(entity_type="user", entity_name="bob")], ops=ops)
    for validate_only in (True, False, False):  # the third time nothing changes
        answer = await conn.call(49, 1, entries=[entry], validate_only=validate_only)
        assert answer.entries[0].error_code == 0
    (line,) = lines.new()
    assert (line["event"], line["resource"], line["name"]) == ("changed", "QUOTA", "user=bob")
    assert (line["operation"], line["quota"], line["value"]) == ("SET", "producer_byte_rate", 1000.0)
    config = dict(name="retention.ms", value="1000", config_operation=0)
    resources = [
        dict(resource_type=2, resource_name=SEEN, configs=[config]),
        dict(resource_type=2, resource_name=SEEN + "x", configs=[config]),
    ]
    await conn.call(44, 1, resources=resources, validate_only=True)
    refused = dict(event="denied", operation="ALTER_CONFIGS", resource="TOPIC", name=SEEN + "x", rule="no ACL")
    assert lines.new() == [refused]
    await conn.call(44, 1, resources=resources, validate_only=False)
    of_topic = dict(event="changed", resource="TOPIC", name=SEEN)
    changes = [dict(operation="SET", name="retention.ms", value="1000")]
    told = sorted(lines.new(), key=lambda line: str(line["event"]))
    assert told == [of_topic | dict(operation="ALTER CONFIGS", configs=changes), refused]
    broker = dict(resource_type=4, resource_name="", configs=[dict(name="max.connections", value="77")])
    await conn.call(33, 2, resources=[broker], validate_only=False)
    (line,) = lines.new()
    assert (line["operation"], line["resource"], line["name"]) == ("REPLACE CONFIGS", "BROKER", "")
    assert line["configs"] == [dict(name="max.connections", value="77")]
    at.rights.give([])


def _with_audit(tmp_path: Path, work: Callable[[Place, Connection, Lines], Any], **settings: str) -> None:
    async def main() -> None:
        path = tmp_path / "audit.log"
        async with place(tmp_path, kop_audit_file=str(path), **settings) as at:
            conn, lines = await at.connect(), Lines(path)
            lines.new()
            await work(at, conn, lines)
            conn.close()

    run(main())


def test_denials_and_changes_are_audited(tmp_path: Path) -> None:
    async def work(at: Place, conn: Connection, lines: Lines) -> None:
        await _changes(at, conn, lines)
        await _denials(at, conn, lines)

    _with_audit(tmp_path, work)


def test_what_is_allowed_is_audited_each_time_where_that_is_set(tmp_path: Path) -> None:
    async def work(at: Place, conn: Connection, lines: Lines) -> None:
        at.rights.give([f"{each} TOPIC {SEEN}" for each in ("READ", "WRITE")])
        allowed = f"ACL ALLOW {{}} TOPIC {SEEN} to User:* from *"
        for _ in range(3):
            assert await produce(conn, SEEN) == 0
            assert await metadata(conn, SEEN) == [0]
            assert await fetch(conn, SEEN) == 0
            told = lines.new()
            assert [line["event"] for line in told] == ["allowed"] * len(told)
            ways = [(line["operation"], line["name"]) for line in told]
            assert list(dict.fromkeys(ways)) == [("WRITE", SEEN), ("DESCRIBE", SEEN), ("READ", SEEN)]
            assert told[0]["rule"] == allowed.format("WRITE")
            assert told[-1]["rule"] == allowed.format("READ")

    _with_audit(tmp_path, work, kop_audit_allowed="true")


def test_a_change_of_a_super_user_by_another_is_a_denial(tmp_path: Path) -> None:
    async def work(at: Place, conn: Connection, lines: Lines) -> None:
        at.rights.give([f"ALTER {CLUSTER}"])
        gone = dict(mechanism=1)
        answer = await conn.call(51, 0, deletions=[gone | dict(name="ANONYMOUS")], upsertions=[])
        assert answer.results[0].error_code == ErrorCode.RESOURCE_NOT_FOUND  # a super user changes himself
        assert lines.new() == []
        bob = Client(RequestPipeline(at.serving.gateway), "User:bob", "127.0.0.1")
        answer = await bob.call(51, 0, deletions=[gone | dict(name="ANONYMOUS")], upsertions=[])
        assert answer.results[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert lines.short("User:bob") == ["denied ALTER USER ANONYMOUS"]

    _with_audit(tmp_path, work)
