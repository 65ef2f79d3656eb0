"""A gateway with an authorizer, the world of the recorded requests in it, and what has changed there.

Owns: the rights of a test and what they imply, what a gateway has, and the right that each change and each word told
needs.
Must not know: which requests there are.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from support.gateway import batch, gateway
from support.waiting import until

from conformance.authorization.requests import CLUSTER, Right
from conformance.authorization.world import Connection, World, decoded, request_frame
from kop.app import Serving
from kop.compiled import compiled_only
from kop.handlers.access import ANONYMOUS
from kop.handlers.api import ConnectionInfo
from kop.security.acls import EVERYBODY, WILDCARD, Acl, Acls
from kop.security.authorizer import AclAuthorizer
from kop.security.quotas import QuotaMatch
from kop.security.rights import AclOperation, PatternType, Permission, ResourceType
from kop.security.settings import STANDARD_AUTHORIZER
from kop.security.tenants import Space
from kop.server.request import RequestPipeline

IMPLY_DESCRIBE = {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER}
NATIVE: Any = compiled_only()
Changes = Mapping[tuple[str, ...], Any]


class Rights:
    """An authorizer whose ACLs are exact rights, and what these imply."""

    def __init__(self, given: Collection[Right] = ()) -> None:
        self._acls = Acls()
        self._authorizer = AclAuthorizer(self._acls, (), False)
        self.others: dict[str, Rights] = {}
        """The rights of other principals and hosts."""
        self.give(given)

    def give(self, given: Collection[Right]) -> None:
        """Replace all rights."""
        self._acls.replace(map(_acl, given))
        self._given = set(given)
        for right in given:
            operation, rest = right.split(" ", 1)
            if AclOperation[operation] in IMPLY_DESCRIBE:
                self._given.add(f"DESCRIBE {rest}")
            elif operation == "ALTER_CONFIGS":
                self._given.add(f"DESCRIBE_CONFIGS {rest}")

    def has(self, right: Right) -> bool:
        """Return true if the right is given, or implied by one that is."""
        return right in self._given

    @property
    def decides(self) -> AclAuthorizer:
        """What decides by these rights alone."""
        return self._authorizer

    @property
    def version(self) -> int:
        """Grows with each change, of the rights of others too."""
        return self._acls.version + sum(other.version for other in self.others.values())

    def allows(self, principal: str, host: str, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        """Return true if the right is given, or implied by one that is."""
        return self._of(principal, host).decides.allows(principal, host, operation, resource, name)

    def allows_any(self, principal: str, host: str, operation: AclOperation, resource: ResourceType) -> bool:
        """Return true if such a right is given for any name."""
        return self._of(principal, host).decides.allows_any(principal, host, operation, resource)

    def rule(self, principal: str, host: str, operation: AclOperation, resource: ResourceType, name: str | None) -> str:
        """Return the rule by which it is allowed, or not."""
        return self._of(principal, host).decides.rule(principal, host, operation, resource, name)

    async def enter(self, principal: str, space: Space, *, proven: bool) -> str:
        """Return why the principal cannot be of the space."""
        return await self._of(principal, "").decides.enter(principal, space, proven=proven)

    def _of(self, principal: str, host: str) -> Rights:
        return self.others.get(principal) or self.others.get(host) or self


def _acl(right: Right) -> Acl:
    operation, resource, name = right.split(" ", 2)
    return Acl(
        ResourceType[resource],
        name,
        PatternType.LITERAL,
        EVERYBODY,
        WILDCARD,
        AclOperation[operation],
        Permission.ALLOW,
    )


class Client:
    """A client of some name: requests without a socket."""

    def __init__(self, pipeline: RequestPipeline, principal: str, host: str = "192.0.2.1") -> None:
        self._pipeline = pipeline
        self.conn = ConnectionInfo(host, "192.0.2.9", 9092, principal=principal)
        self.directly = 0
        """Requests that compiled code took."""

    async def call(self, key: int, version: int, /, **fields: Any) -> Any:
        """Send a request and return its answer."""
        frame = memoryview(bytearray(request_frame(key, version, fields)))[4:]
        self._pipeline.look_at_clocks()
        answer = self._pipeline.start(frame, self.conn, owned=True)
        self.directly += NATIVE is not None and isinstance(answer, NATIVE.DirectAnswer)
        await until(lambda: answer.ready)
        assert answer.error is None
        assert answer.frame is not None
        return decoded(key, version, b"".join(bytes(part) for part in answer.frame)[4:])

    async def produce(self, topic: str | UUID) -> int:
        """Send a record; return the code."""
        version = 9 if isinstance(topic, str) else 13
        records = batch([b"value"], timestamp=int(time.time() * 1000))
        data = {"name": topic, "topic_id": topic, "partition_data": [{"index": 0, "records": records}]}
        answer = await self.call(0, version, transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=[data])
        return int(answer.responses[0].partition_responses[0].error_code)


class Place:
    """A gateway, its world, and the rights of its clients."""

    def __init__(self, serving: Serving, world: World) -> None:
        self.serving = serving
        self.world = world
        self.rights = Rights()

    async def connect(self) -> Connection:
        """Return a new connection."""
        return await Connection.open(*self.serving.listeners[0])

    def internal_errors(self) -> float:
        """Return how many requests have failed in a way that nobody had thought of."""
        metric = self.serving.gateway.metrics.internal_errors
        return sum(
            sample.value for each in metric.collect() for sample in each.samples if sample.name.endswith("_total")
        )

    async def state(self) -> Changes:
        """Return what the gateway has once nothing is under way: plain values by their places."""
        gw = self.serving.gateway
        await until(lambda: not any(each.pending for _, each in gw.transactions.all()))
        state: dict[tuple[str, ...], Any] = {}
        for topic in gw.engine.topics.all():
            logs = [gw.engine.log(topic.topic_id, index) for index in range(topic.partitions)]
            state["topic", topic.name] = topic.topic_id
            state["partitions", topic.name] = topic.partitions
            state["configs", topic.name] = sorted(topic.configs.items())
            state["end", topic.name] = [log.high_watermark for log in logs if log is not None]
            state["start", topic.name] = [log.log_start_offset for log in logs if log is not None]
        for group in gw.groups.list():
            described = gw.groups.describe(group.group_id)
            state["group", group.group_id] = described
        for group_id, name, partition, offset in gw.groups.committed():
            state["offset", group_id, name, str(partition)] = offset
        for name, each in gw.transactions.all():
            state["transaction", name] = each.status, each.producer_id, each.producer_epoch
            state |= {("in", name, topic, str(partition)): True for topic, partition in each.partitions}
        state |= {("acl", acl.name): acl for acl in gw.security.acls}
        state |= {("quota", str(entity)): dict(values) for entity, values in gw.security.quotas.matching(EVERY_QUOTA)}
        state |= {("user", name): gw.security.users.of(name) for name in gw.security.users.names()}
        return state


@asynccontextmanager
async def place(path: Any, **settings: str) -> AsyncIterator[Place]:
    """Serve from memory, with everything in it that recorded requests are about. Nobody may do anything."""
    settings = {"authorizer_class_name": STANDARD_AUTHORIZER, "super_users": ANONYMOUS} | settings
    async with gateway(path, store="memory:", **settings) as serving:
        world = World()
        conn = await Connection.open(*serving.listeners[0])
        await world.make(conn)
        conn.close()
        made = Place(serving, world)
        serving.gateway.access.authorizer = made.rights
        yield made


def changed(before: Changes, after: Changes) -> list[tuple[str, ...]]:
    """Return the places of what is not as it was. Of a topic that is new or gone nothing else is named."""
    places = [place for place in sorted(before.keys() | after.keys()) if before.get(place) != after.get(place)]
    topics = {place[1] for place in places if place[0] == "topic"}
    return [place for place in places if place[0] == "topic" or place[0] not in _OF_TOPIC or place[1] not in topics]


EVERY_QUOTA = QuotaMatch({}, frozenset(), strict=False)
_OF_TOPIC = {"partitions", "configs", "end", "start"}
_EITHER_CLUSTER = (f"27: ALTER {CLUSTER}", f"27: CLUSTER_ACTION {CLUSTER}")
_TXN = "WRITE TRANSACTIONAL_ID txn-open"
_DELETED = ("20: DELETE TOPIC topic-seen", "20: DELETE TOPIC topic-hidden", f"20: DELETE {CLUSTER}")
_NEEDED: Mapping[str, Sequence[str]] = {
    "(topic|partitions|configs|end|start|in [^ ]+) __.*": ("",),  # written along with what the rights are about
    "topic (.+)": (
        "3,19: CREATE TOPIC {0}",
        f"3,19: CREATE {CLUSTER}",
        "20: DELETE TOPIC {0}",
        f"20: DELETE {CLUSTER}",
    ),
    "partitions (.+)": ("37: ALTER TOPIC {0}",),
    "configs (.+)": ("33,44: ALTER_CONFIGS TOPIC {0}",),
    "end (.+)": ("0: WRITE TOPIC {0}", "37: ALTER TOPIC {0}", f"26: {_TXN}", *_EITHER_CLUSTER),
    "start (.+)": ("21: DELETE TOPIC {0}", "37: ALTER TOPIC {0}"),
    "group (.+)": ("8,11,12,13,14,28: READ GROUP {0}", "42,47: DELETE GROUP {0}", f"26: {_TXN}", *_DELETED),
    "offset ([^ ]+) ([^ ]+) .*": (
        *("8: READ GROUP {0}&READ TOPIC {1}", "42: DELETE GROUP {0}", "47: DELETE GROUP {0}&READ TOPIC {1}"),
        *("20: DELETE TOPIC {1}", f"20: DELETE {CLUSTER}", f"26: {_TXN}"),
    ),
    "transaction (.+)": ("0,22,24,25,26,28: WRITE TRANSACTIONAL_ID {0}", f"24: CLUSTER_ACTION {CLUSTER}"),
    "in ([^ ]+) ([^ ]+) .*": (
        *("0,24: WRITE TRANSACTIONAL_ID {0}&WRITE TOPIC {1}", "26: WRITE TRANSACTIONAL_ID {0}"),
        f"24: CLUSTER_ACTION {CLUSTER}",
    ),
    "acl (.+)": (f"30,31: ALTER {CLUSTER}",),
    "user (.+)": (f"51: ALTER {CLUSTER}",),
    "quota (.+)": (f"49: ALTER_CONFIGS {CLUSTER}",),
    "told (topic-.+)": (
        *("DESCRIBE TOPIC {0}", f"20: DELETE {CLUSTER}", f"35: DESCRIBE {CLUSTER}", f"74: DESCRIBE_CONFIGS {CLUSTER}"),
    ),
    "told id of (.+)": ("DESCRIBE TOPIC {0}", f"20: DELETE {CLUSTER}"),
    "told config of (.+)": ("19,32: DESCRIBE_CONFIGS TOPIC {0}",),
    "told record of the (.+) topic": ("1: READ TOPIC topic-{0}",),
    "told offset of the (.+) group": ("9: DESCRIBE GROUP group-{0}",),
    "told (group-.+)": ("DESCRIBE GROUP {0}", f"16: DESCRIBE {CLUSTER}"),
    "told (txn-.+)": ("DESCRIBE TRANSACTIONAL_ID {0}",),
    "told member": ("15: DESCRIBE GROUP group-lively",),
}
"""What may have been done, or told, by which rights: any one of these, & being both; by some APIs, or by any."""


def is_allowed(rights: Rights, api_key: int, what: str) -> bool:
    """Return true if some right allows what a request of the API has changed, or was told."""
    for pattern, ways in _NEEDED.items():
        if match := re.fullmatch(pattern, what):
            for way in ways:
                apis, _, needed = way.rpartition(": ")
                by_this = not apis or str(api_key) in apis.split(",")
                if by_this and all(
                    not right or rights.has(right) for right in needed.format(*match.groups()).split("&")
                ):
                    return True
            return False
    raise LookupError(what)
