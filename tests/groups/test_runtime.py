"""The coordinator over storage that does what the test says, in simulated time."""

from __future__ import annotations

import asyncio
import logging

import pytest
from groups.group_world import MINUTE, Joining, World, at_once, settle, under_way
from support.commits import commit
from support.faulty_engine import FaultyStore
from support.waiting import until

from kop.coordination.state_log import java_hash
from kop.errors import ErrorCode, StateRecordError
from kop.groups import runtime
from kop.groups.classic.group import ClassicGroup
from kop.groups.classic.messages import Description, JoinRequest, LeavingMember, SyncRequest
from kop.groups.offsets import Commit
from kop.groups.runtime import GroupCoordinator
from kop.groups.settings import GroupSettings
from kop.wire.state import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_offset_value,
    encode_key,
)

E = ErrorCode


# -- the topic


async def test_topic_is_made_once() -> None:
    world = await World(offsets_topic_num_partitions=7, offsets_topic_segment_bytes=12345).start()
    topic = world.topic("__offsets")
    assert (topic.partitions, topic.internal) == (7, True)
    assert topic.configs == {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "12345"}
    world.settings = GroupSettings(offsets_topic_num_partitions=50)
    await world.restart()
    assert world.engine.topics.get("__offsets") is topic
    await world.commit(1)
    assert [log.appends for log in world.logs].count(1) == 1
    await world.groups.stop()


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", -(2**31)), ("grüppe-€", None), ("😀", 1772899)],
)
def test_java_hash(text: str, value: int | None) -> None:
    units = text.encode("utf-16-be")
    expected = 0
    for pos in range(0, len(units), 2):
        expected = expected * 31 + int.from_bytes(units[pos : pos + 2], "big")
    expected = (expected + 2**31) % 2**32 - 2**31
    assert java_hash(text) == (expected if value is None else value) == expected


async def test_groups_are_spread_as_in_kafka() -> None:
    async with World(offsets_topic_num_partitions=50) as world:
        for group, partition in [("polygenelubricants", 0), ("hello", 99162322 % 50), ("console-consumer-1", None)]:
            await world.commit(1, group=group)
            expected = abs(java_hash(group)) % 50 if partition is None else partition
            assert world.logs[expected].appends == 1


async def test_while_loading_nothing_is_served_but_heartbeats() -> None:
    world = await World().open()
    await world.engine.topics.create("t", 1, {})
    world.coordinate()
    loading = E.COORDINATOR_LOAD_IN_PROGRESS
    assert world.groups.refusal == loading
    assert world.join_error() == loading
    assert at_once(world.groups.sync("g", SyncRequest("m", None, 1, None, None, ()))).error == loading
    assert world.groups.heartbeat("g", "m", None, 1) == E.NONE
    assert world.groups.leave("g", [LeavingMember("m")]) == (loading, ())
    assert world.groups.check_commit("g", "", None, -1, says_not_found=True) == loading
    assert world.groups.describe("g") == loading
    assert world.groups.delete("g") == loading
    assert world.groups.delete_offsets("g", []) == (loading, {})


async def test_after_stop_nothing_is_served_and_what_waits_is_answered() -> None:
    world = await World().start()
    waiting = world.join()
    await world.groups.stop()
    assert (await waiting).error == E.NOT_COORDINATOR
    assert world.join_error() == E.COORDINATOR_NOT_AVAILABLE
    assert world.groups.heartbeat("g", "m", None, 1) == E.COORDINATOR_NOT_AVAILABLE


# -- members


async def test_requests_are_checked() -> None:
    async with World() as world:
        assert world.join_error(group="") == E.INVALID_GROUP_ID
        assert world.join_error(session=5999) == E.INVALID_SESSION_TIMEOUT
        assert world.join_error(session=1_800_001) == E.INVALID_SESSION_TIMEOUT
        assert world.join_error("somebody") == E.UNKNOWN_MEMBER_ID
        assert world.join_error(protocol_type="") == E.INCONSISTENT_GROUP_PROTOCOL
        assert world.groups.list() == [], "what failed leaves no group"
        for group, error in [("", E.INVALID_GROUP_ID), ("g", E.UNKNOWN_MEMBER_ID)]:
            assert world.groups.heartbeat(group, "m", None, 1) == error
            assert at_once(world.groups.sync(group, SyncRequest("m", None, 1, None, None, ()))).error == error
        assert world.groups.leave("", [LeavingMember("m")]) == (E.INVALID_GROUP_ID, ())
        error, [left] = at_once(world.groups.leave("g", [LeavingMember("m", "i")]))
        assert (error, left.error, left.member_id, left.instance_id) == (E.NONE, E.UNKNOWN_MEMBER_ID, "m", "i")


async def test_assignment_is_answered_when_it_is_durable() -> None:
    async with World() as world:
        answer = world.join()
        world.groups.deadlines.tick()
        joined = await answer
        world.log.hold()
        sync = SyncRequest(joined.member_id, None, 1, None, None, ((joined.member_id, b"A"),))
        token = under_way(world.groups.sync("g", sync))
        await settle()
        assert not token.done()
        assert world.described().state == "CompletingRebalance"
        world.log.release()
        assert (await token).assignment == b"A"
        assert world.described().state == "Stable"


async def test_failed_write_of_the_assignment() -> None:
    async with World() as world:
        answer = world.join()
        world.groups.deadlines.tick()
        joined = await answer
        world.log.append_error = E.KAFKA_STORAGE_ERROR
        sync = SyncRequest(joined.member_id, None, 1, None, None, ())
        assert (await under_way(world.groups.sync("g", sync))).error == E.NOT_COORDINATOR
        assert world.described().state == "PreparingRebalance"


async def test_cancelled_join_leaves_the_member_to_its_timeout() -> None:
    async with World(new_member_join_timeout_ms=20_000) as world:
        member_id = await world.stable()
        waiting = world.join()
        waiting.cancel()
        assert len(world.described().members) == 2
        for _ in range(3):
            world.now += 7000
            world.groups.deadlines.tick()
            world.groups.heartbeat("g", member_id, None, 1)
        assert [m.member_id for m in world.described().members] == [member_id]


async def test_cancelled_join_may_complete() -> None:
    async with World() as world:
        waiting = world.join()
        waiting.cancel()
        world.groups.deadlines.tick()
        assert world.described().state == "CompletingRebalance"


async def test_leave_waits_for_the_record_of_the_emptied_group() -> None:
    async with World() as world:
        member_id = await world.stable()
        world.log.hold()
        left = under_way(world.groups.leave("g", [LeavingMember(member_id)]))
        await settle()
        assert not left.done()
        world.log.release()
        error, [member] = await left
        assert (error, member.error) == (E.NONE, E.NONE)


async def test_failed_leave_is_told() -> None:
    async with World() as world:
        member_id = await world.stable()
        world.log.append_error = E.NOT_ENOUGH_REPLICAS
        assert await under_way(world.groups.leave("g", [LeavingMember(member_id)])) == (E.COORDINATOR_NOT_AVAILABLE, ())


async def test_heartbeats_make_no_timers() -> None:
    async with World() as world:
        members = [await world.stable(f"g{n}") for n in range(50)]
        deadlines = len(world.groups.deadlines)
        for _ in range(20):
            world.now += 10
            for n, member_id in enumerate(members):
                assert world.groups.heartbeat(f"g{n}", member_id, None, 1) == E.NONE
        assert len(world.groups.deadlines) == deadlines


async def test_sessions_end_in_many_groups() -> None:
    async with World() as world:
        members = [await world.stable(f"g{n}") for n in range(20)]
        world.now += 9000
        for n in range(0, 20, 2):
            world.groups.heartbeat(f"g{n}", members[n], None, 1)
        world.now += 1000
        world.groups.deadlines.tick()
        assert world.groups.snapshot().by_state == {
            "Empty": 10, "PreparingRebalance": 0, "CompletingRebalance": 0, "Stable": 10, "Dead": 0
        }  # fmt: skip
        world.now += 9000
        world.groups.deadlines.tick()
        assert world.groups.snapshot().by_state["Empty"] == 20


async def test_the_timer_works_in_real_time() -> None:
    engine = await FaultyStore().open()
    settings = GroupSettings(
        offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=30, group_min_session_timeout_ms=1
    )
    groups = GroupCoordinator(engine, settings)
    await groups.start()
    request = JoinRequest("", None, "c", "/", "x", (("p", b""),), 60, 5000, False)
    answer = await under_way(groups.join("g", request))
    assert answer.generation == 1
    await until(lambda: groups.describe("g") == Description("g", "Empty", "x", "", ()))
    await groups.stop()


async def test_group_that_cannot_be_stored_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World() as world:
        answer = world.join()
        world.groups.deadlines.tick()
        joined = await answer

        def fails(_: GroupMetadataValue) -> bytes:
            raise StateRecordError("as the test wants")

        monkeypatch.setattr(runtime, "encode_group_value", fails)
        sync = SyncRequest(joined.member_id, None, 1, None, None, ())
        assert (await under_way(world.groups.sync("g", sync))).error == E.UNKNOWN_SERVER_ERROR
        assert "cannot be stored" in caplog.text
        assert await world.commit(1, group="h") == E.NONE


async def test_commit_that_cannot_be_stored_leaves_nothing_behind() -> None:
    async with World() as world:
        assert await world.commit(1, group="x" * 40_000) == E.UNKNOWN_SERVER_ERROR
        assert world.groups.list() == []
        await world.commit(1)
        commits = [Commit("t", None, 0, 1), Commit("t" * 40_000, None, 0, 1)]
        assert await commit(world.groups, "g", commits) == E.UNKNOWN_SERVER_ERROR
        assert not world.offsets().writing


LONG = "é" * 16_384
"""A byte more than a record holds."""


@pytest.mark.parametrize(
    "how",
    [
        {"protocol_type": LONG},
        {"protocol": LONG},
        {"instance": LONG},
        {"client": "c" * 32_731},  # the id that the member would be given has 37 characters more
    ],
)
async def test_a_member_whose_names_cannot_be_stored_joins_nothing(how: Joining) -> None:
    async with World() as world:
        assert world.join_error(**how) == E.UNKNOWN_SERVER_ERROR
        assert world.names() == []


async def test_a_group_whose_id_cannot_be_stored_is_not_made() -> None:
    async with World() as world:
        assert world.join_error(group=LONG) == E.UNKNOWN_SERVER_ERROR
        assert world.names() == []


async def test_the_longest_names_come_and_go() -> None:
    async with World() as world:
        longest = LONG[1:] + "e"
        await world.emptied(longest, protocol_type=longest, protocol=longest, client="c" * 32_730)
        await world.restart()
        assert world.names() == [longest]
        await world.groups.expire()
        await settle()
        assert world.names() == []


async def test_a_fault_in_one_group_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World() as world:
        for name in ("bad", "good"):
            await world.stable(name)
        tick = ClassicGroup.tick
        monkeypatch.setattr(ClassicGroup, "tick", lambda group, now: tick(group, now // (group.group_id != "bad")))
        world.now += 10_000
        world.groups.deadlines.tick()
        assert world.described("good").state == "Empty"
        assert world.described("bad").state == "Stable"
        assert "what was due for group 'bad' failed" in caplog.text
        monkeypatch.setattr(ClassicGroup, "tick", tick)
        world.now += 1000
        world.groups.deadlines.tick()
        assert world.described("bad").state == "Empty", "it was tried again"


async def test_a_fault_after_a_write_does_not_keep_the_others_waiting(caplog: pytest.LogCaptureFixture) -> None:
    async with World() as world:

        def fails(_: E) -> None:
            raise ZeroDivisionError

        world.groups.state_log.write(0, [(encode_key(GroupMetadataKey("x")), None)], fails)
        assert await world.commit(1) == E.NONE
        assert "what followed failed" in caplog.text


# -- committed offsets


async def test_commit_is_answered_and_seen_when_it_is_durable() -> None:
    async with World() as world:
        world.log.hold()
        answer = world.commit(5)
        await settle()
        assert not answer.done()
        assert world.offset() is None
        world.log.release()
        assert await answer == E.NONE
        assert world.offset() == 5


async def test_failed_commit_changes_nothing() -> None:
    async with World() as world:
        await world.commit(5)
        world.log.append_error = E.KAFKA_STORAGE_ERROR
        assert await world.commit(6) == E.NOT_COORDINATOR
        assert await world.commit(7, group="other") == E.NOT_COORDINATOR
        assert world.offset() == 5
        assert [group.group_id for group in world.groups.list()] == ["g"]


async def test_commits_of_one_turn_share_a_batch() -> None:
    async with World() as world:
        answers = [world.commit(n, partition=n % 4) for n in range(100)]
        assert set(await asyncio.gather(*answers)) == {E.NONE}
        assert world.log.appends == 1
        assert [world.offset(p) for p in range(4)] == [96, 97, 98, 99]


async def test_large_turns_are_split() -> None:
    async with World() as world:
        topic = world.topic("t")
        commits = [Commit("t", topic.topic_id, p, 1, 0, "x" * 4000) for p in range(100)]
        answers = [commit(world.groups, f"g{n}", commits) for n in range(10)]
        assert set(await asyncio.gather(*answers)) == {E.NONE}
        assert 3 <= world.log.appends <= 5


async def test_what_a_commit_holds() -> None:
    async with World() as world:
        await world.commit(5)
        await world.commit(6, partition=1, retention=1000)
        topic_id = world.topic("t").topic_id
        [(_, first), (_, second)] = world.log.records()
        assert first is not None
        assert second is not None
        assert decode_offset_value(first) == OffsetCommitValue(5, 3, "m5", world.now, -1, topic_id)
        assert decode_offset_value(second) == OffsetCommitValue(6, -1, "m6", world.now, world.now + 1000)


async def test_commit_checks() -> None:
    async with World() as world:
        check = world.groups.check_commit
        assert check("g", "", None, -1, says_not_found=True) == E.NONE
        assert check("g", "m", None, 3, says_not_found=True) == E.GROUP_ID_NOT_FOUND
        assert check("g", "m", None, 3, says_not_found=False) == E.ILLEGAL_GENERATION
        member_id = await world.stable()
        assert check("g", member_id, None, 1, says_not_found=True) == E.NONE
        assert check("g", "", None, -1, says_not_found=True) == E.UNKNOWN_MEMBER_ID


async def test_delete_offsets() -> None:
    async with World() as world:
        assert world.groups.delete_offsets("g", [("t", 0)]) == (E.GROUP_ID_NOT_FOUND, {})
        await world.engine.topics.create("u", 1, {})
        await world.commit(1)
        await world.commit(2, topic="u")
        world.log.hold()
        answer = under_way(world.groups.delete_offsets("g", [("t", 0), ("t", 3)]))
        await settle()
        assert world.offset() == 1
        world.log.release()
        assert await answer == (E.NONE, {("t", 0): E.NONE, ("t", 3): E.NONE})
        assert world.offset() is None
        await world.stable()
        assert world.groups.delete_offsets("g", [("t", 0)]) == (E.NONE, {("t", 0): E.GROUP_SUBSCRIBED_TO_TOPIC})
        assert await under_way(world.groups.delete_offsets("g", [("u", 0)])) == (E.NONE, {("u", 0): E.NONE})
        await world.stable("connect", protocol_type="connect")
        assert world.groups.delete_offsets("connect", [("u", 0)]) == (E.NON_EMPTY_GROUP, {})


async def test_failed_delete_of_offsets() -> None:
    async with World() as world:
        await world.commit(1)
        world.log.append_error = E.KAFKA_STORAGE_ERROR
        assert await under_way(world.groups.delete_offsets("g", [("t", 0)])) == (E.NOT_COORDINATOR, {})
        assert world.offset() == 1


# -- deleting groups and topics


async def test_delete_group() -> None:
    async with World() as world:
        assert world.groups.delete("g") == E.GROUP_ID_NOT_FOUND
        await world.stable()
        assert world.groups.delete("g") == E.NON_EMPTY_GROUP
        await world.emptied("h")
        await world.commit(1, group="h")
        assert await under_way(world.groups.delete("h")) == E.NONE
        assert world.groups.describe("h") == E.GROUP_ID_NOT_FOUND
        keys = world.keys()
        assert keys[GroupMetadataKey("h")] is None
        assert keys[OffsetCommitKey("h", "t", 0)] is None
        await world.restart()
        assert [group.group_id for group in world.groups.list()] == ["g"]


async def test_delete_group_takes_commits_along_that_are_being_written() -> None:
    async with World() as world:
        world.log.hold()
        written = world.commit(1)
        deleted = under_way(world.groups.delete("g"))
        await settle()
        world.log.release()
        assert (await written, await deleted) == (E.NONE, E.NONE)
        assert world.groups.list() == []
        assert world.keys()[OffsetCommitKey("g", "t", 0)] is None
        await world.restart()
        assert world.groups.list() == []


async def test_failed_delete_brings_the_group_back() -> None:
    async with World() as world:
        await world.emptied()
        await world.commit(1)
        world.log.append_error = E.KAFKA_STORAGE_ERROR
        assert await under_way(world.groups.delete("g")) == E.NOT_COORDINATOR
        assert world.offset() == 1
        world.log.append_error = None
        await world.stable()
        assert world.described().state == "Stable"


@pytest.mark.parametrize("error", [None, E.KAFKA_STORAGE_ERROR])
async def test_until_a_deletion_is_durable_the_offsets_are_told_and_nobody_enters_the_group(error: E | None) -> None:
    async with World() as world:
        await world.emptied()
        await world.commit(1)
        world.log.hold()
        deleted = under_way(world.groups.delete("g"))
        await settle()
        again = E.COORDINATOR_NOT_AVAILABLE
        assert world.offset() == 1
        assert world.described().state == "Dead"
        assert world.join_error() == again
        assert world.groups.check_commit("g", "", None, -1, says_not_found=True) == again
        assert world.groups.check_commit_in_transaction("g", "", None, -1) == again
        assert world.groups.delete("g") == again
        assert world.groups.delete_offsets("g", [("t", 0)]) == (again, {})
        await world.groups.expire()
        world.log.release(error)
        assert await deleted == (E.NOT_COORDINATOR if error else E.NONE)
        assert world.offset() == (1 if error else None)
        assert world.names() == (["g"] if error else [])
        assert await world.commit(2) == E.NONE
        await world.stable()
        await world.restart()
        assert (world.offset(), world.described().state) == (2, "Stable")


async def test_a_deletion_and_a_commit_that_both_fail_leave_no_group() -> None:
    async with World() as world:
        world.log.hold()
        written = world.commit(1)
        deleted = under_way(world.groups.delete("g"))
        await settle()
        world.log.release(E.KAFKA_STORAGE_ERROR)
        assert (await written, await deleted) == (E.NOT_COORDINATOR, E.NOT_COORDINATOR)
        assert world.names() == []


async def test_deleting_a_topic_deletes_its_offsets_in_all_groups() -> None:
    async with World() as world:
        await world.engine.topics.create("u", 2, {})
        for group in "gh":
            await world.commit(1, group=group, topic="u")
            await world.commit(2, group=group)
        world.log.hold()
        late = world.commit(9, group="g", topic="u", partition=1)
        await world.engine.topics.delete(world.topic("u").topic_id)
        await settle()
        world.log.release()
        assert await late == E.NONE
        for group in "gh":
            assert world.offsets(group).by_topic.keys() == {"t"}
        keys = world.keys()
        assert keys[OffsetCommitKey("g", "u", 0)] is keys[OffsetCommitKey("g", "u", 1)] is None
        await world.restart()
        assert world.offsets().by_topic.keys() == {"t"}


async def test_topics_that_went_while_nobody_watched() -> None:
    world = await World().start()
    for name in ("u", "v"):
        await world.engine.topics.create(name, 1, {})
        await world.commit(1, topic=name)
    await world.commit(2)
    await world.stop()
    for name in ("u", "v"):
        await world.engine.topics.delete(world.topic(name).topic_id)
    await world.engine.topics.create("v", 1, {})
    await world.start()
    await settle()
    assert world.offsets().by_topic.keys() == {"t"}, "another `v` is another topic"
    assert world.keys()[OffsetCommitKey("g", "u", 0)] is None
    await world.groups.stop()


# -- restarts


async def test_restart_rebuilds_groups_and_offsets() -> None:
    async with World(offsets_topic_num_partitions=3) as world:
        members = {name: await world.stable(name) for name in ("a", "b", "c")}
        for n in range(10):
            await world.commit(n, group="b", partition=n % 3)
        await world.commit(77, group="simple")
        await world.emptied("empty")
        described = {name: world.groups.describe(name) for name in ("a", "b", "c", "empty", "simple")}
        committed = sorted(world.groups.committed())
        world.now += 9000
        await world.restart()
        assert {name: world.groups.describe(name) for name in described} == described
        assert sorted(world.groups.committed()) == committed
        assert committed == [("b", "t", 0, 9), ("b", "t", 1, 7), ("b", "t", 2, 8), ("simple", "t", 0, 77)]
        world.now += 9000
        world.groups.deadlines.tick()
        for name, member_id in members.items():
            assert world.groups.heartbeat(name, member_id, None, 1) == E.NONE, "sessions started again"
        world.now += 10_000
        world.groups.deadlines.tick()
        assert world.described("a").state == "Empty"


async def test_a_deleted_prefix_of_the_log_is_not_read() -> None:
    world = await World().start()
    await world.commit(1)
    await world.commit(2, partition=1)
    await world.log.delete_records(1)
    await world.restart()
    assert (world.offset(0), world.offset(1)) == (None, 2)
    await world.groups.stop()


async def test_records_of_unknown_kind_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    world = await World().start()
    world.groups.state_log.write(
        0, [(b"\0\x09later", b"x"), (encode_key(GroupMetadataKey("g")), None)], lambda code: None
    )
    await settle()
    with caplog.at_level(logging.WARNING):
        await world.restart()
    assert "kind 9" in caplog.text
    assert world.groups.list() == []
    await world.groups.stop()


async def test_damaged_records_keep_their_partition_from_being_served() -> None:
    """Kafka's own coordinator does not serve it either: a group that is there must not look like one that is not."""
    world = await World().start()
    world.groups.state_log.write(0, [(encode_key(GroupMetadataKey("g")), b"\0\x03rubbish")], lambda code: None)
    await settle()
    await world.restart()
    assert world.groups.refusal_of("g") == E.NOT_COORDINATOR
    assert world.groups.refusal == E.COORDINATOR_LOAD_IN_PROGRESS
    assert "a record of 9 bytes" in (world.groups.waiting_for or "")
    await world.groups.stop()


# -- expiry


async def expire(world: World, minutes: float) -> None:
    world.now += int(minutes * MINUTE)
    await world.groups.expire()
    await settle()


@pytest.fixture
def week() -> int:
    return GroupSettings().offsets_retention_minutes


async def test_simple_groups_expire_by_their_last_commit(week: int) -> None:
    async with World() as world:
        await world.commit(1)
        await expire(world, week - 1)
        await world.commit(2, partition=1)
        assert world.offset() == 1
        await expire(world, 1)
        assert (world.offset(), world.offset(1)) == (None, 2)
        await expire(world, week)
        assert world.groups.list() == []
        assert world.keys()[GroupMetadataKey("g")] is None


async def test_empty_groups_expire_since_they_are_empty(week: int) -> None:
    async with World() as world:
        member_id = await world.stable()
        await world.commit(1)
        world.now += week * MINUTE * 3
        world.groups.heartbeat("g", member_id, None, 1)
        await under_way(world.groups.leave("g", [LeavingMember(member_id)]))
        await expire(world, week - 1)
        assert world.offset() == 1
        await world.restart()
        await expire(world, 0.5)
        assert world.offset() == 1
        await expire(world, 0.5)
        assert world.groups.list() == []


@pytest.mark.parametrize("days", [8, -8])
@pytest.mark.parametrize("restarts", [False, True])
async def test_offsets_of_an_empty_group_age_by_the_wall_clock(week: int, days: int, restarts: bool) -> None:
    """The other clock stands still while a machine sleeps: it may be behind by more than the retention."""
    async with World() as world:
        world.wall_ahead = days * 24 * 60 * MINUTE
        member_id = await world.stable()
        await world.commit(1)
        assert await world.left(member_id) == E.NONE
        if restarts:
            await world.restart()
        await expire(world, week - 1)
        assert world.offset() == 1
        await expire(world, 1)
        assert world.names() == []


async def test_subscribed_topics_of_a_live_group_never_expire(week: int) -> None:
    async with World() as world:
        await world.engine.topics.create("old", 1, {})
        await world.stable(session=1_800_000)
        await world.commit(1)
        await world.commit(1, topic="old")
        await expire(world, week)
        assert world.offset() == 1
        assert world.offset(topic="old") is None, "no longer subscribed to"


@pytest.mark.parametrize("how", [{"metadata": b"?"}, {"protocol_type": "connect"}])
async def test_live_groups_whose_subscription_is_unknown_keep_all(week: int, how: Joining) -> None:
    async with World() as world:
        await world.stable(**how)
        await world.commit(1)
        await expire(world, week * 2)
        assert world.offset() == 1


async def test_rebalancing_groups_keep_all(week: int) -> None:
    async with World() as world:
        await world.engine.topics.create("old", 1, {})
        await world.stable()
        await world.commit(1, topic="old")
        world.join()
        await expire(world, week * 2)
        assert world.offset(topic="old") == 1


async def test_groups_that_hold_markers_keep_all(week: int) -> None:
    """An exactly-once sink that is down for longer than that must still know what it wrote."""
    async with World() as world:
        await world.commit(1, group="__kop.spark.orders")
        await world.commit(1, group="__kop.spark.bills", retention=5 * MINUTE)
        await expire(world, week * 2)
        await world.restart()
        await expire(world, week * 2)
        assert world.offset(group="__kop.spark.orders") == 1
        assert world.offset(group="__kop.spark.bills") == 1


async def test_retention_of_the_commit_itself() -> None:
    async with World() as world:
        await world.commit(1, retention=5 * MINUTE)
        await expire(world, 4)
        assert world.offset() == 1
        await expire(world, 1)
        assert world.offset() is None


async def test_the_longest_retention_of_a_commit_never_ends(week: int) -> None:
    async with World() as world:
        assert await world.commit(1, retention=2**63 - 1) == E.NONE
        await world.restart()
        await expire(world, week * 1000)
        assert world.offset() == 1


async def test_retention_of_the_commit_itself_does_not_end_live_subscriptions(week: int) -> None:
    async with World() as world:
        await world.stable()
        await world.commit(1, retention=5 * MINUTE)
        await expire(world, week)
        assert world.offset() == 1


async def test_group_that_never_had_anything_goes() -> None:
    async with World() as world:
        await world.emptied()
        await expire(world, 0)
        assert world.groups.list() == []


async def test_group_that_expects_a_member_stays() -> None:
    async with World() as world:
        request = JoinRequest("", None, "c", "/", "x", (("p", b""),), 10_000, 5000)
        assert at_once(world.groups.join("g", request)).error == E.MEMBER_ID_REQUIRED
        await expire(world, 0)
        assert [group.state for group in world.groups.list()] == ["Empty"]
        world.now += 10_000
        world.groups.deadlines.tick()
        assert world.groups.list() == [], "nobody came"


async def test_what_is_being_committed_does_not_expire(week: int) -> None:
    async with World() as world:
        await world.commit(1)
        world.now += week * MINUTE
        world.log.hold()
        answer = world.commit(2)
        await world.groups.expire()
        await settle()
        world.log.release()
        await answer
        assert world.offset() == 2


async def test_expiry_runs_by_itself(week: int) -> None:
    async with World(offsets_retention_check_interval_ms=20) as world:
        await world.commit(1)
        world.now += week * MINUTE
        await until(lambda: world.groups.list() == [])


async def test_failed_expiry_is_tried_again(week: int) -> None:
    async with World() as world:
        await world.commit(1)
        world.log.append_error = E.KAFKA_STORAGE_ERROR
        await expire(world, week)
        assert world.offset() == 1
        world.log.append_error = None
        await expire(world, 0)
        assert world.groups.list() == []


# -- listing


async def test_list_filters() -> None:
    async with World() as world:
        await world.stable("s")
        await world.emptied("e")
        await world.commit(1, group="o")
        names = world.names
        assert names() == ["e", "o", "s"]
        assert names(["stable"]) == ["s"]
        assert names(["EMPTY", "Stable"]) == ["e", "o", "s"]
        assert names(["nonsense"]) == []
        assert names([], ["Classic"]) == ["e", "o", "s"]
        assert names([], ["consumer"]) == []
        assert {group.group_id: group.protocol_type for group in world.groups.list()} == {
            "e": "consumer", "o": "", "s": "consumer"
        }  # fmt: skip
