"""What group handlers do beyond the answers of a quiet server: lost connections, restarts, loading, failing storage."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from handlers.group_scenario import Talk
from support.faulty_engine import FaultyStore, FaultyTopics
from support.gateway import RawClient, gateway, run
from support.waiting import until

from kop.errors import ErrorCode
from kop.groups.runtime import GroupCoordinator
from kop.handlers import group_offsets, groups
from kop.wire.messages import REQUESTS

E = ErrorCode


async def talk(serving: Any) -> Talk:
    conversation = Talk(lambda: RawClient.connect(serving), 0)
    await conversation.open()
    return conversation


async def member(s: Talk, group: str, client: RawClient) -> str:
    """A member that joined and knows its id; the group is stable where it is alone."""
    member_id: str = (await client.call(11, 9, **s.join_fields(group))).member_id
    return member_id


async def stable(s: Talk, group: str) -> tuple[str, int]:
    member_id = await member(s, group, s.a)
    joined = await s.a.call(11, 9, **s.join_fields(group, member=member_id))
    await s.a.call(14, 5, **s.sync_fields(group, joined.generation_id, member_id, {member_id: b"all"}))
    return member_id, joined.generation_id


def test_versions_are_those_of_kafka_4_3() -> None:
    served = {api.key: (api.min_version, api.max_version) for api in (*groups.APIS, *group_offsets.APIS)}
    assert served == {
        8: (2, 10),
        9: (1, 10),
        10: (0, 6),
        11: (0, 9),
        12: (0, 4),
        13: (0, 5),
        14: (0, 5),
        15: (0, 6),
        16: (0, 5),
        42: (0, 2),
        47: (0, 0),
    }


def test_connection_that_goes_while_its_join_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            s = await talk(serving)
            g = s.name("g")
            first, n = await stable(s, g)
            second = await member(s, g, s.b)
            s.b.send(11, 9, **s.join_fields(g, member=second))

            async def rebalances() -> bool:
                return bool((await s.beat("", g, n, first)).error_code == E.REBALANCE_IN_PROGRESS)

            await until(rebalances)
            before = serving.server.connections
            await s.b.close()
            await until(lambda: serving.server.connections < before)
            described = (await s.describe("", g)).groups[0]
            assert {m.member_id for m in described.members} == {first, second}, (
                "the member lives until its session ends"
            )
            joined = await s.a.call(11, 9, **s.join_fields(g, member=first))
            assert joined.error_code == E.NONE
            assert {m.member_id for m in joined.members} == {first, second}
            # It comes back on another connection and goes on where it was.
            again = await s.c.call(11, 9, **s.join_fields(g, member=second))
            assert (again.error_code, again.generation_id) == (E.NONE, joined.generation_id)

    run(main())


def test_group_and_offsets_outlive_a_restart(tmp_path: Path) -> None:
    async def first() -> tuple[str, str, int]:
        async with gateway(tmp_path) as serving:
            s = await talk(serving)
            member_id, n = await stable(s, "g")
            await s.commit("", "g", {0: 7, 1: 8}, n, member_id)
            return s.t, member_id, n

    async def second(topic: str, member_id: str, n: int) -> None:
        async with gateway(tmp_path) as serving:
            s = await talk(serving)
            s.t = topic
            assert (await s.beat("", "g", n, member_id)).error_code == E.NONE
            assert (await s.sync("", "g", n, member_id)).assignment == b"all"
            [fetched] = (await s.fetch("", "g")).groups
            assert [p.committed_offset for p in fetched.topics[0].partitions] == [7, 8]

    run(second(*run(first())))


def test_the_offsets_topic_can_be_seen_as_kafkas(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            s = await talk(serving)
            await s.commit("", "g", {0: 7})
            asked = REQUESTS[3].MetadataRequestTopic(version=12, topic_id=None, name="__consumer_offsets")
            metadata = await s.c.call(
                3, 12, topics=[asked], allow_auto_topic_creation=False, include_topic_authorized_operations=False
            )
            [topic] = metadata.topics
            assert (topic.error_code, topic.is_internal, len(topic.partitions)) == (E.NONE, True, 4)

    run(main())


@pytest.mark.parametrize("refusal", [E.COORDINATOR_LOAD_IN_PROGRESS, E.COORDINATOR_NOT_AVAILABLE])
def test_every_api_says_that_groups_are_not_there_yet(tmp_path: Path, refusal: ErrorCode) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            s = await talk(serving)
            serving.gateway.groups = GroupCoordinator(serving.gateway.engine)
            if refusal == E.COORDINATOR_NOT_AVAILABLE:
                await serving.gateway.groups.stop()
            for version in (0, 5, 9):
                assert (await s.join("", "g", version)).error_code == refusal
            assert (await s.sync("", "g", 1, "m")).error_code == refusal
            assert (await s.sync("", "g", 1, "m", kind=None)).error_code == refusal
            beat = await s.beat("", "g", 1, "m")
            assert beat.error_code == (E.NONE if refusal == E.COORDINATOR_LOAD_IN_PROGRESS else refusal)
            for version in (0, 3, 5):
                assert (await s.leave("", "g", ("m", None), version=version)).error_code == refusal
            for version in (2, 10):
                [topic] = (await s.commit("", "g", {0: 1, 9: 1}, version=version)).topics
                codes = {p.partition_index: p.error_code for p in topic.partitions}
                assert codes == {0: refusal, 9: E.UNKNOWN_TOPIC_OR_PARTITION}
            [topic] = (await s.fetch("", "g", version=1)).topics
            assert {p.error_code for p in topic.partitions} == {refusal}
            for version in (2, 7):
                answer = await s.fetch("", "g", version=version)
                assert (answer.error_code, answer.topics) == (refusal, [])
            for version in (8, 10):
                [group] = (await s.fetch("", "g", version=version)).groups
                assert (group.error_code, group.topics) == (refusal, [])
            for version in (0, 6):
                [group] = (await s.describe("", "g", version=version)).groups
                assert group.error_code == refusal
            assert (await s.list(5)).error_code == refusal
            assert (await s.delete("", "g")).results[0].error_code == refusal
            assert (await s.forget("", "g", 0)).error_code == refusal
            assert (await s.ask("", 10, 0, key="g")).error_code == E.NONE

    run(main())


def test_commits_that_cannot_be_written_are_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FaultyStore()
    monkeypatch.setattr("kop.storage.memory.engine.open_engine", store.open)

    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            s = await talk(serving)
            await s.commit("", "g", {0: 1})
            topic = store.engine.topics.get("__offsets")
            assert topic is not None
            for index in range(topic.partitions):
                store.log("__offsets", index).append_error = E.KAFKA_STORAGE_ERROR
            [row] = (await s.commit("", "g", {0: 2, 9: 2})).topics
            codes = {p.partition_index: p.error_code for p in row.partitions}
            assert codes == {0: E.NOT_COORDINATOR, 9: E.UNKNOWN_TOPIC_OR_PARTITION}
            [group] = (await s.fetch("", "g", parts=(0,))).groups
            assert group.topics[0].partitions[0].committed_offset == 1

    run(main())


def test_many_commits_at_once_are_all_answered(tmp_path: Path) -> None:
    async def main() -> None:
        async with gateway(tmp_path) as serving:
            s = await talk(serving)
            clients = [await RawClient.connect(serving) for _ in range(20)]

            async def commit(index: int, client: RawClient) -> None:
                for offset in range(20):
                    fields = REQUESTS[8].OffsetCommitRequestTopic
                    part = fields.OffsetCommitRequestPartition(
                        version=8,
                        partition_index=index % 2,
                        committed_offset=offset,
                        committed_leader_epoch=0,
                        committed_metadata="",
                    )
                    answer = await client.call(
                        8,
                        8,
                        group_id=f"g{index}",
                        generation_id_or_member_epoch=-1,
                        member_id="",
                        group_instance_id=None,
                        topics=[fields(version=8, name=s.t, partitions=[part])],
                    )
                    assert answer.topics[0].partitions[0].error_code == E.NONE

            await asyncio.gather(*(commit(index, client) for index, client in enumerate(clients)))
            committed = {group: offset for group, _, _, offset in serving.gateway.groups.committed()}
            assert committed == {f"g{index}": 19 for index in range(20)}

    run(main())


def test_a_commit_whose_client_has_gone_is_stored_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FaultyStore()
    monkeypatch.setattr("kop.storage.memory.engine.open_engine", store.open)

    async def main() -> None:
        async with gateway(tmp_path, store="memory:", offsets_topic_num_partitions="1") as serving:
            s = await talk(serving)
            gone = await talk(serving)
            gone.t = s.t
            log = store.log("__offsets")
            log.hold()
            committing = asyncio.create_task(gone.commit("", "g", {0: 5}))
            await until(lambda: log.waiting == 1)
            committing.cancel()
            await gone.c.close()
            other = asyncio.create_task(s.commit("", "g", {1: 6}))
            await until(lambda: log.waiting == 2)
            log.release()
            [topic] = (await other).topics
            assert [p.error_code for p in topic.partitions] == [E.NONE]
            [group] = (await s.fetch("", "g", parts=(0, 1))).groups
            assert [p.committed_offset for p in group.topics[0].partitions] == [5, 6]

    run(main())


@pytest.mark.parametrize("version", [2, 8, 10])
def test_a_commit_of_a_thousand_partitions_is_answered_for_each(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            s = await talk(serving)
            s.t = "many"
            s.topic_id = (await serving.gateway.engine.topics.create("many", 1000, {})).topic_id
            [topic] = (await s.commit("", "g", {index: index + 7 for index in range(1001)}, version=version)).topics
            codes = {p.partition_index: p.error_code for p in topic.partitions}
            assert codes == dict.fromkeys(range(1000), E.NONE) | {1000: E.UNKNOWN_TOPIC_OR_PARTITION}
            committed = {index: offset for _, _, index, offset in serving.gateway.groups.committed()}
            assert committed == {index: index + 7 for index in range(1000)}

    run(main())


def test_a_group_id_that_no_record_can_hold_is_answered_and_leaves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    long = "g" * 40_000

    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            s = await talk(serving)
            for version in (6, 9):
                assert (await s.join("", long, version)).error_code == E.UNKNOWN_SERVER_ERROR
                joined = await s.join("", "g", version, kind=long)
                assert joined.error_code == E.UNKNOWN_SERVER_ERROR
            for version in (8, 10):
                [topic] = (await s.commit("", long, {0: 1, 1: 1, 9: 1}, version=version)).topics
                codes = [partition.error_code for partition in topic.partitions]
                assert codes == [E.UNKNOWN_SERVER_ERROR, E.UNKNOWN_SERVER_ERROR, E.UNKNOWN_TOPIC_OR_PARTITION]
            assert (await s.sync("", long, 1, "m")).error_code == E.UNKNOWN_MEMBER_ID
            assert (await s.beat("", long, 1, "m")).error_code == E.UNKNOWN_MEMBER_ID
            [left] = (await s.leave("", long, ("m", None))).members
            assert left.error_code == E.UNKNOWN_MEMBER_ID
            for version in (6, 7):
                [topic] = (await s.fetch("", long, version=version)).topics
                assert [partition.committed_offset for partition in topic.partitions] == [-1, -1]
            for version in (8, 10):
                [group] = (await s.fetch("", long, version=version)).groups
                assert group.error_code == E.NONE
                assert [partition.committed_offset for partition in group.topics[0].partitions] == [-1, -1]
            [described] = (await s.describe("", long)).groups
            assert described.error_code == E.GROUP_ID_NOT_FOUND
            assert (await s.describe("", long, version=5)).groups[0].group_state == "Dead"
            assert (await s.delete("", long)).results[0].error_code == E.GROUP_ID_NOT_FOUND
            for version in (0, 2, 5):
                listed = await s.list(version)
                assert (listed.error_code, listed.groups) == (E.NONE, [])

    run(main())
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("version", [2, 4])
def test_a_commit_that_is_to_be_kept_for_ever_is_answered(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            s = await talk(serving)
            [topic] = (await s.commit("", "g", {0: 5}, version=version, retention=2**63 - 1)).topics
            assert topic.partitions[0].error_code == E.NONE
            [topic] = (await s.fetch("", "g", version=7)).topics
            assert [partition.committed_offset for partition in topic.partitions] == [5, -1]

    run(main())


@pytest.mark.parametrize("lost", ["before", "between"])
def test_a_large_fetch_of_offsets_whose_group_is_lost_before_its_end_is_refused_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """It is answered in parts: what the later ones are refused for must not look like nothing committed."""

    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            client = await RawClient.connect(serving)
            coordinator = serving.gateway.groups
            real = coordinator.refusal_of
            asked = 0

            def refusal_of(key: str, *, surely: bool = False) -> ErrorCode:
                nonlocal asked
                asked += 1
                refused = asked > 1 if lost == "between" else asked == 1
                return E.NOT_COORDINATOR if refused else real(key, surely=surely)

            monkeypatch.setattr(coordinator, "refusal_of", refusal_of)
            row = REQUESTS[9].OffsetFetchRequestTopic
            topics = [row(version=7, name=f"{index:060}", partition_indexes=[*range(5)]) for index in range(300)]
            answer = await client.call(9, 7, group_id="g", topics=topics, require_stable=False)
            assert (answer.error_code, answer.topics) == (E.NOT_COORDINATOR, [])

    run(main())


def test_a_commit_waits_until_topics_of_other_namespaces_were_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FaultyStore()
    monkeypatch.setattr("kop.storage.memory.engine.open_engine", store.open)
    monkeypatch.setattr(FaultyTopics, "namespace", "public/default")

    async def main() -> None:
        async with gateway(tmp_path, store="memory:") as serving:
            s = await talk(serving)
            row = REQUESTS[8].OffsetCommitRequestTopic
            partition = row.OffsetCommitRequestPartition(version=9, partition_index=0, committed_offset=5)
            answer = await s.c.call(
                8,
                9,
                group_id="g",
                topics=[row(version=9, name=name, partitions=[partition]) for name in (s.t, "other/space/t")],
            )
            assert store.engine.topics.finds == 1
            codes = [topic.partitions[0].error_code for topic in answer.topics]
            assert codes == [E.NONE, E.UNKNOWN_TOPIC_OR_PARTITION]

    run(main())
