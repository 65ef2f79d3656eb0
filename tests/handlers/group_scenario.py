"""One long talk about groups and offsets, and what Apache Kafka 4.3.1 answers to it (group_answers.json).

To record Kafka's answers again, with its group.initial.rebalance.delay.ms at 0:
    cd tests && python -m handlers.group_scenario HOST:PORT > handlers/group_answers.json
"""

from __future__ import annotations

import asyncio
import json
import re
import struct
import sys
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from support.gateway import RawClient
from support.waiting import until

from kop.wire.messages import REQUESTS

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
Connect = Callable[[], Awaitable[RawClient]]


class Talk:
    """Sends requests and keeps the answers, without what differs from run to run."""

    def __init__(self, connect: Connect, pause: float) -> None:
        self.connect, self.pause = connect, pause
        self.run = uuid.uuid4().hex[:6]
        self.answers: list[list[Any]] = []
        self.topic_id = uuid.UUID(int=0)

    async def open(self) -> None:
        self.c, self.a, self.b = [await self.connect() for _ in range(3)]
        self.t, self.u = self.name("topic"), self.name("other")
        new = REQUESTS[19].CreatableTopic
        topics = [new(version=5, name=name, num_partitions=2, replication_factor=1) for name in (self.t, self.u)]
        await self.c.call(19, 5, topics=topics, timeout_ms=60_000, validate_only=False)
        await self.c.call(10, 0, key=self.name("warm"))
        await asyncio.sleep(self.pause * 4)  # the coordinator is ready a bit later, which no request tells
        asked = REQUESTS[3].MetadataRequestTopic(version=12, topic_id=None, name=self.t)
        metadata = await self.c.call(
            3, 12, topics=[asked], allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        self.topic_id = metadata.topics[0].topic_id

    def name(self, name: str) -> str:
        return f"{name}-{self.run}"

    def plain(self, value: Any) -> Any:
        if isinstance(value, str):
            return _UUID.sub("UUID", value).replace(self.run, "RUN")
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value).hex().replace(self.run.encode().hex(), "RUN")
        if isinstance(value, uuid.UUID):
            return "UUID"
        if isinstance(value, dict):
            return {name: self.plain(item) for name, item in value.items() if name not in ("throttle_time_ms", "tags")}
        if isinstance(value, list | tuple | set):
            return sorted((self.plain(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
        return value

    def keep(self, label: str, answer: Any) -> Any:
        fields = self.plain(answer.to_dict())
        for row in [fields, *fields.get("coordinators", [])]:
            for name in ("host", "port", "node_id"):
                row.pop(name, None)
        if "groups" in fields:  # other tests may run beside this one
            fields["groups"] = [
                group for group in fields["groups"] if group["group_id"] == "" or "RUN" in group["group_id"]
            ]
        self.answers.append([label, fields])
        return answer

    async def ask(self, label: str, key: int, version: int, _by: RawClient | None = None, /, **fields: Any) -> Any:
        return self.keep(f"{label} v{version}", await (_by or self.c).call(key, version, **fields))

    # -- requests

    async def join(self, label: str, group: str, version: int = 9, by: RawClient | None = None, **how: Any) -> Any:
        return await self.ask(label, 11, version, by or self.a, **self.join_fields(group, version, **how))

    def join_fields(
        self,
        group: str,
        version: int = 9,
        member: str = "",
        instance: str | None = None,
        session: int = 10_000,
        kind: str = "consumer",
        protocols: tuple[tuple[str, bytes], ...] | None = None,
    ) -> dict[str, Any]:
        protocol_class = REQUESTS[11].JoinGroupRequestProtocol
        if protocols is None:
            protocols = (("range", self.subscription(self.t)),)
        fields = {
            "group_id": group,
            "session_timeout_ms": session,
            "member_id": member,
            "protocol_type": kind,
            "protocols": [
                protocol_class(version=version, name=name, metadata=metadata) for name, metadata in protocols
            ],
        }
        if version >= 1:
            fields["rebalance_timeout_ms"] = 8000
        if version >= 5:
            fields["group_instance_id"] = instance
        return fields

    @staticmethod
    def subscription(topic: str) -> bytes:
        return struct.pack(">hih", 0, 1, len(topic)) + topic.encode() + b"\xff\xff\xff\xff"

    def sync_fields(
        self,
        group: str,
        generation: int,
        member: str,
        assign: dict[str, bytes] | None = None,
        version: int = 5,
        instance: str | None = None,
        kind: str | None = "consumer",
        protocol: str | None = "range",
    ) -> dict[str, Any]:
        assignment_class = REQUESTS[14].SyncGroupRequestAssignment
        fields: dict[str, Any] = {
            "group_id": group,
            "generation_id": generation,
            "member_id": member,
            "assignments": [
                assignment_class(version=version, member_id=m, assignment=a) for m, a in (assign or {}).items()
            ],
        }
        if version >= 3:
            fields["group_instance_id"] = instance
        if version >= 5:
            fields |= {"protocol_type": kind, "protocol_name": protocol}
        return fields

    async def sync(self, label: str, group: str, generation: int, member: str, *more: Any, **how: Any) -> Any:
        by = how.pop("by", None)
        fields = self.sync_fields(group, generation, member, *more, **how)
        return await self.ask(label, 14, how.get("version", 5), by or self.c, **fields)

    async def beat(self, label: str, group: str, generation: int, member: str, instance: str | None = None) -> Any:
        return await self.ask(
            label, 12, 4, group_id=group, generation_id=generation, member_id=member, group_instance_id=instance
        )

    async def leave(self, label: str, group: str, *members: tuple[str, str | None], version: int = 5) -> Any:
        if version < 3:
            return await self.ask(label, 13, version, group_id=group, member_id=members[0][0])
        identity_class = REQUESTS[13].MemberIdentity
        named = [identity_class(version=version, member_id=m, group_instance_id=i) for m, i in members]
        return await self.ask(label, 13, version, group_id=group, members=named)

    async def commit(
        self,
        label: str,
        group: str,
        offsets: dict[int, int],
        generation: int = -1,
        member: str = "",
        version: int = 9,
        instance: str | None = None,
        topic: str | None = None,
        topic_id: uuid.UUID | None = None,
        metadata: str | None = "m",
        epoch: int = 3,
        retention: int = -1,
    ) -> Any:
        row = REQUESTS[8].OffsetCommitRequestTopic
        part = row.OffsetCommitRequestPartition
        parts = [
            part(
                version=version,
                partition_index=index,
                committed_offset=offset,
                committed_leader_epoch=epoch,
                committed_metadata=metadata,
            )
            for index, offset in offsets.items()
        ]
        if version >= 10:
            topics = [row(version=version, topic_id=topic_id or self.topic_id, partitions=parts)]
        else:
            topics = [row(version=version, name=topic or self.t, partitions=parts)]
        fields: dict[str, Any] = {
            "group_id": group,
            "generation_id_or_member_epoch": generation,
            "member_id": member,
            "topics": topics,
        }
        if version >= 7:
            fields["group_instance_id"] = instance
        if version <= 4:
            fields["retention_time_ms"] = retention
        return await self.ask(label, 8, version, **fields)

    async def forgotten(self, group: str) -> None:
        """Wait until a group has no offset any more: those of a deleted topic go a bit after it."""

        async def gone() -> bool:
            asked = REQUESTS[9].OffsetFetchRequestGroup(version=9, group_id=group, topics=None)
            return not (await self.c.call(9, 9, groups=[asked], require_stable=False)).groups[0].topics

        await until(gone)

    async def reaches(self, group: str, state: str) -> None:
        """Wait until a group is in a state."""

        async def is_there() -> bool:
            answer = await self.c.call(15, 5, groups=[group], include_authorized_operations=False)
            return bool(answer.groups[0].group_state == state)

        await until(is_there)

    async def fetch(
        self,
        label: str,
        *groups: str,
        parts: tuple[int, ...] | None = (0, 1),
        version: int = 9,
        topic: str | None = None,
        topic_id: uuid.UUID | None = None,
        stable: bool = False,
    ) -> Any:
        request = REQUESTS[9]
        indexes = list(parts or ())
        if version < 8:
            row = request.OffsetFetchRequestTopic
            topics = [row(version=version, name=topic or self.t, partition_indexes=indexes)]
            fields: dict[str, Any] = {"group_id": groups[0], "topics": None if parts is None else topics}
            if version >= 7:
                fields["require_stable"] = stable
            return await self.ask(label, 9, version, **fields)
        group_class = request.OffsetFetchRequestGroup
        row = group_class.OffsetFetchRequestTopics
        if version >= 10:
            topics = [row(version=version, topic_id=topic_id or self.topic_id, partition_indexes=indexes)]
        else:
            topics = [row(version=version, name=topic or self.t, partition_indexes=indexes)]
        asked = [
            group_class(version=version, group_id=group, topics=None if parts is None else topics) for group in groups
        ]
        return await self.ask(label, 9, version, groups=asked, require_stable=stable)

    async def describe(self, label: str, *groups: str, version: int = 6, operations: bool = False) -> Any:
        fields: dict[str, Any] = {"groups": list(groups)}
        if version >= 3:
            fields["include_authorized_operations"] = operations
        return await self.ask(label, 15, version, **fields)

    async def forget(self, label: str, group: str, *parts: int, topic: str | None = None) -> Any:
        row = REQUESTS[47].OffsetDeleteRequestTopic
        part = row.OffsetDeleteRequestPartition
        topics = [row(version=0, name=topic or self.t, partitions=[part(version=0, partition_index=p) for p in parts])]
        return await self.ask(label, 47, 0, group_id=group, topics=topics)

    async def delete(self, label: str, *groups: str, version: int = 2) -> Any:
        return await self.ask(label, 42, version, groups_names=list(groups))

    async def list(self, version: int, states: list[str] | None = None, types: list[str] | None = None) -> Any:
        fields: dict[str, Any] = {}
        if version >= 4:
            fields["states_filter"] = states or []
        if version >= 5:
            fields["types_filter"] = types or []
        return await self.ask(f"list {states} {types}", 16, version, **fields)


async def find(s: Talk) -> None:
    key = s.name("a")
    for version in range(4):
        await s.ask("find", 10, version, key=key, **({"key_type": 0} if version else {}))
    for kind in (2, 5):
        await s.ask(f"find type {kind}", 10, 3, key=key, key_type=kind)
    await s.ask("find empty", 10, 3, key="", key_type=0)
    for version in (4, 5, 6):
        await s.ask("find", 10, version, key_type=0, coordinator_keys=[key, s.name("b"), ""])
    for version, kind in [(5, 2), (6, 2), (6, 7)]:
        await s.ask(f"find type {kind}", 10, version, key_type=kind, coordinator_keys=[key])
    await s.ask("find none", 10, 4, key_type=0, coordinator_keys=[])


async def strangers(s: Talk) -> None:
    x = s.name("x")
    for version in (0, 1, 3, 4, 5, 7, 9):
        await s.join("join empty group", "", version)
        await s.join("join short session", x, version, session=10)
        await s.join("join long session", x, version, session=1_800_001)
        await s.join("join unknown member", x, version, member="zz")
    await s.join("join short session with a member", x, member="zz", session=10)
    await s.join("join empty group with a member", "", member="zz")
    await s.join("join without protocols", s.name("np"), protocols=())
    await s.join("join without type", s.name("np"), kind="")
    await s.join("join without protocols", s.name("np"), 4, protocols=())
    await s.sync("sync empty group", "", 1, "m")
    await s.sync("sync unknown", x, 1, "m")
    await s.sync("sync unknown", x, 1, "m", version=0)
    await s.sync("sync without names", x, 1, "m", kind=None, protocol=None)
    await s.beat("beat empty group", "", 1, "m")
    await s.beat("beat unknown", x, 1, "m")
    await s.beat("beat unknown instance", x, 1, "m", "i")
    for version in (0, 2, 3, 5):
        await s.leave("leave empty group", "", ("m", None), version=version)
        await s.leave("leave unknown", x, ("m", None), version=version)
    await s.leave("leave several", x, ("m", None), ("", "i"), ("", None))
    await s.leave("leave nobody", x)


async def offsets(s: Talk) -> None:
    g, x, nope = s.name("s"), s.name("x"), s.name("nope")
    await s.commit("commit", g, {0: 5}, version=2)
    await s.commit("commit", g, {1: 6}, version=5)
    for version in (2, 6, 8, 9):
        await s.commit("commit unknown topic", g, {0: 5}, version=version, topic=nope)
    await s.commit("commit unknown partition", g, {0: 5, 9: 1})
    await s.commit("commit negative partition", g, {-1: 5})
    await s.commit("commit bad name", g, {0: 5}, topic="a b")
    await s.commit("commit by id", g, {0: 50}, version=10)
    await s.commit("commit unknown id", g, {0: 50}, version=10, topic_id=uuid.UUID(int=77))
    await s.commit("commit no group", x, {0: 5}, 3, "m", version=8)
    await s.commit("commit no group", x, {0: 5}, 3, "m", version=9)
    await s.commit("commit generation of an empty group", g, {0: 5}, 3, "m")
    await s.commit("commit member of an empty group", g, {1: 5}, -1, "m")
    for name, metadata in [
        ("4097", "x" * 4097),
        ("4096", "x" * 4096),
        ("euros", "€" * 4096),
        ("emojis", "😀" * 2049),
        ("null", None),
    ]:
        await s.commit(f"commit metadata {name}", g, {0: 51}, metadata=metadata)
    await s.commit("commit without epoch", g, {0: 51}, metadata=None, epoch=-1)
    await s.commit("commit negative offset", g, {1: -5})
    await s.commit("commit empty group id", "", {0: 5})
    await s.fetch("fetch empty group id", "")
    await s.describe("describe empty group id", "")
    await s.delete("delete empty group id", "")
    await s.describe("describe empty group id", "")
    for version in range(1, 11):
        await s.fetch("fetch", g, parts=(0, 1, 7), version=version)
        if version >= 2:
            await s.fetch("fetch all", g, parts=None, version=version)
    for version in (1, 2, 7, 8, 9):
        await s.fetch("fetch no group", x, version=version)
        await s.fetch("fetch no topic", g, topic=nope, version=version)
    await s.fetch("fetch all no group", x, parts=None)
    await s.fetch("fetch unknown id", g, version=10, topic_id=uuid.UUID(int=77))
    await s.fetch("fetch several", g, x, g)
    await s.fetch("fetch stable", g, stable=True)
    await s.fetch("fetch stable", g, version=7, stable=True)
    await s.fetch("fetch nothing", version=9)
    for version in (0, 2, 3, 4, 5, 6):
        await s.describe("describe simple", g, version=version)
        await s.describe("describe nobody", x, version=version)
        if version >= 3:
            await s.describe("describe operations", g, x, version=version, operations=True)
    await s.describe("describe twice", g, g, version=5)


async def members(s: Talk) -> None:
    g, a, b = s.name("grp"), s.a, s.b
    pending = (await s.join("join", g, 4)).member_id
    await s.describe("describe pending", g)
    await s.beat("beat pending", g, 0, pending)
    await s.commit("commit pending", g, {0: 1}, 0, pending)
    await s.join("join pending with an instance", g, member=pending, instance="i")
    await s.leave("leave pending", g, (pending, "inst"))
    leader = (await s.join("join", g)).member_id
    n = (await s.join("join known", g, member=leader)).generation_id
    await s.describe("describe completing", g)
    await s.beat("beat completing", g, n, leader)
    await s.commit("commit completing", g, {0: 1}, n, leader)
    await s.commit("commit completing simple", g, {0: 1})
    await s.commit("commit completing large", g, {0: 1}, n, leader, metadata="x" * 5000)
    for version in (6, 9):
        await s.join("rejoin completing", g, version, member=leader)
    await s.sync("sync other type", g, n, leader, kind="connect")
    await s.sync("sync other protocol", g, n, leader, protocol="rr")
    await s.sync("sync other generation", g, n + 1, leader)
    await s.sync("sync other member", g, n, "zz")
    await s.sync("sync other instance", g, n, leader, instance="i")
    await s.sync("sync leader", g, n, leader, {leader: b"assigned", "ghost": b"x"})
    await s.sync("sync again", g, n, leader, version=0)
    await s.sync("sync again without names", g, n, leader, kind=None, protocol=None)
    await s.describe("describe stable", g, operations=True)
    await s.describe("describe stable", g, version=0)
    for label, generation, member, instance in [
        ("", n, leader, None),
        ("earlier", n - 1, leader, None),
        ("later", n + 1, leader, None),
        ("member", n, "zz", None),
        ("instance", n, leader, "q"),
    ]:
        await s.beat(f"beat {label}", g, generation, member, instance)
        await s.commit(f"commit {label}", g, {0: 11, 1: 12}, generation, member, instance=instance)
        await s.commit(f"commit {label}", g, {0: 11, 1: 12}, generation, member, instance=instance, version=10)
    await s.commit("commit stable simple", g, {0: 1})
    await s.commit("commit stable without generation", g, {0: 1}, -1, leader)
    await s.commit("commit stable without member", g, {0: 1}, n, "")
    await forget(s, g)
    await s.join("join other protocol", g, by=b, protocols=(("xyz", b""),))
    await s.join("join other type", g, by=b, kind="connect")
    follower = (await s.join("join second", g, by=b)).member_id
    await s.beat("beat with a pending one", g, n, leader)
    b.send(11, 9, **s.join_fields(g, member=follower))
    await s.reaches(g, "PreparingRebalance")
    await s.beat("beat preparing", g, n, leader)
    await s.commit("commit preparing", g, {0: 21}, n, leader)
    await s.sync("sync preparing", g, n, leader)
    await s.sync("sync preparing new", g, n, follower)
    await s.sync("sync preparing new without generation", g, -1, follower)
    await s.describe("describe preparing", g)
    await s.delete("delete preparing", g)
    await s.forget("forget preparing", g, 0)
    n = (await s.join("rejoin leader", g, member=leader)).generation_id
    s.keep("join second", (await b.receive(11, 9))[1])
    b.send(14, 5, **s.sync_fields(g, n, follower))
    await asyncio.sleep(s.pause)  # nothing shows that it waits
    await s.sync("sync leader", g, n, leader, {leader: b"1", follower: b"2"})
    s.keep("sync follower", (await b.receive(14, 5))[1])
    for version in (0, 9):
        await s.join("rejoin follower", g, version, by=b, member=follower)
    await lists(s)
    await s.leave("leave", g, ("zz", None), ("", "i"), ("", None), (follower, "wrong"), (follower, None))
    await s.beat("beat after leave", g, n, leader)
    await s.beat("beat after leaving", g, n, follower)
    await s.leave("leave last", g, (leader, None), version=1)
    await s.describe("describe empty", g)
    await s.fetch("fetch all empty", g, parts=None)
    for version in (1, 3):
        await s.leave("leave again", g, (leader, None), version=version)
    await s.beat("beat empty", g, n + 1, leader)
    await s.sync("sync empty", g, n + 1, leader)
    await s.commit("commit empty", g, {0: 99})
    await s.commit("commit empty with generation", g, {0: 99}, n + 1, leader)
    await s.join("join empty with old id", g, by=a, member=leader)
    await s.forget("forget empty", g, 0, 1)
    await s.fetch("fetch all after forgetting", g, parts=None)
    await s.join("join empty with another type", g, by=b, kind="connect")
    await s.delete("delete with a pending member", g)
    await s.describe("describe deleted", g)


async def forget(s: Talk, g: str) -> None:
    simple, x, nope = s.name("s"), s.name("x"), s.name("nope")
    await s.forget("forget subscribed", g, 0, 1)
    await s.forget("forget other", g, 0, topic=s.u)
    await s.forget("forget unknown topic", g, 0, topic=nope)
    await s.forget("forget unknown partition", simple, 0, 9)
    await s.forget("forget no group", x, 0)
    await s.forget("forget empty group", "", 0)
    await s.forget("forget no group and topic", x, 0, topic=nope)
    await s.fetch("fetch all", simple, parts=None)
    await s.delete("delete", g, x, simple, simple)
    await s.fetch("fetch deleted", simple, parts=None)
    await s.delete("delete", x, version=0)
    await s.describe("describe deleted", simple)


async def lists(s: Talk) -> None:
    await s.delete("delete the one that only Kafka keeps", s.name("np"))
    s.answers.pop()
    for version in (0, 2, 3, 4, 5):
        await s.list(version)
    for states in (["Stable"], ["stable"], ["EMPTY"], ["nonsense"]):
        await s.list(4, states)
    for types in (["classic"], ["CLASSIC"], ["consumer"], ["nonsense"], ["Classic", "share"]):
        await s.list(5, None, types)
    await s.list(5, ["stable", "Empty"], ["classic"])
    await s.list(5, ["preparingrebalance", "Assigning"])


async def static(s: Talk) -> None:
    g, a, b = s.name("static"), s.a, s.b
    joined = await s.join("static join", g, instance="i1")
    first_id, n = joined.member_id, joined.generation_id
    await s.sync("static sync", g, n, first_id, {first_id: b"mine"}, instance="i1")
    second_id = (await s.join("static return", g, by=b, instance="i1")).member_id
    await s.beat("static beat old", g, n, first_id, "i1")
    await s.beat("static beat old without instance", g, n, first_id)
    await s.beat("static beat new", g, n, second_id, "i1")
    await s.sync("static sync new", g, n, second_id, instance="i1", by=b)
    await s.commit("static commit old", g, {0: 1}, n, first_id, instance="i1")
    await s.commit("static commit new", g, {0: 1}, n, second_id, instance="i1")
    await s.join("static join old", g, by=a, member=first_id, instance="i1")
    third_id = (await s.join("static return", g, 8, instance="i1")).member_id
    await s.describe("static describe", g)
    await s.join("static other protocol", g, instance="i1", protocols=(("rr", b""),))
    await s.describe("static describe", g)
    await s.leave("static leave", g, (first_id, "i1"), ("", "i9"))
    await s.leave("static leave", g, (third_id, "i1"))
    await s.leave("static leave by administrator", g, ("", "i1"))
    await s.describe("static describe", g)


async def others(s: Talk) -> None:
    g = s.name("old")
    joined = await s.join("old join", g, 0)
    await s.sync("old sync", g, joined.generation_id, joined.member_id, {joined.member_id: b"z"}, version=0)
    await s.leave("old leave", g, (joined.member_id, None), version=0)
    await s.describe("old describe", g, version=0)
    g = s.name("connect")
    joined = await s.join("connect join", g, 3, kind="connect", protocols=(("one", b"\1\2"), ("two", b"\3")))
    n, member = joined.generation_id, joined.member_id
    await s.forget("connect forget completing", g, 0)
    await s.sync("connect sync", g, n, member, version=3)
    await s.describe("connect describe", g)
    await s.forget("connect forget", g, 0)
    await s.commit("connect commit", g, {0: 1}, n, member, version=6)
    await s.leave("connect leave", g, (member, None), version=2)
    await s.describe("connect describe", g)
    g = s.name("expiring")
    await s.commit("retention commit", g, {0: 1}, version=4, retention=100_000)
    await s.fetch("retention fetch", g)
    g = s.name("unreadable")
    await s.join("unreadable join", g, 3, protocols=(("range", b"\1"),))
    await s.forget("unreadable forget", g, 0, topic=s.u)
    g = s.name("doomed")
    await s.commit("doomed commit", g, {0: 5}, topic=s.u)
    await s.c.call(20, 3, topic_names=[s.u], timeout_ms=60_000)
    await s.forgotten(g)
    await s.fetch("doomed fetch all", g, parts=None)
    await s.fetch("doomed fetch", g, topic=s.u)
    await s.describe("doomed describe", g)


async def play(connect: Connect, pause: float) -> list[list[Any]]:
    """The whole talk; returns labels and answers. `pause`: seconds after which a request has taken effect."""
    talk = Talk(connect, pause)
    await talk.open()
    for part in (find, strangers, offsets, members, static, others):
        await part(talk)
    return talk.answers


async def _record(host: str, port: int) -> None:
    clients: list[RawClient] = []

    async def connect() -> RawClient:
        clients.append(RawClient(*await asyncio.open_connection(host, port)))
        return clients[-1]

    answers = await play(connect, 0.4)
    rows = ",\n".join(json.dumps(row, sort_keys=True) for row in answers)
    sys.stdout.write(f"[\n{rows}\n]\n")
    for client in clients:
        await client.close()


if __name__ == "__main__":
    _host, _port = sys.argv[1].rsplit(":", 1)
    asyncio.run(_record(_host, int(_port)))
