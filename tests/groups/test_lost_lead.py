"""A coordinator that loses the lead of a partition of `__offsets` keeps nothing of it, whatever is under way then."""

from __future__ import annotations

import asyncio

import pytest
from groups.group_world import MINUTE, World, settle, under_way
from support.faulty_engine import FaultyLog, FaultyTopics
from support.waiting import SECONDS, until

from kop.coordination import ownership
from kop.errors import ErrorCode as E
from kop.groups.classic.messages import LeavingMember
from kop.records.batch import build, read_header
from kop.records.record import Record
from kop.wire.state import GroupMetadataKey, OffsetCommitKey, encode_key


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "FIRST_PAUSE_SECONDS", 0.001)


async def another_deletes(world: World, *keys: GroupMetadataKey | OffsetCommitKey) -> None:
    """The broker that leads meanwhile writes tombstones, and leads no more."""
    batch = build(Record(index, 0, encode_key(key), None) for index, key in enumerate(keys))
    await world.log.append(batch, read_header(batch), now_ms=0)
    world.log.free_lead()


ALL = (
    GroupMetadataKey("g"),
    OffsetCommitKey("g", "t", 0),
    OffsetCommitKey("g", "t", 1),
)


async def stored(another_topic: str | None = None) -> World:
    """A world in which a group has committed offsets, stopped."""
    world = await World("public/default").start()
    if another_topic:
        assert await world.commit(1, group="other", topic=another_topic) == E.NONE
    await world.emptied()
    assert await world.commit(10) == E.NONE
    assert await world.commit(11, partition=1) == E.NONE
    await world.stop()
    return world


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("where", ["records", "topics"])
async def test_a_lead_that_is_lost_during_the_replay_leaves_no_group_and_no_offset(where: str, goes_on: bool) -> None:
    """It waits for the log's records, or for the topics that they name, and does so still when the lead is back."""
    world = await stored("other/namespace/topic" if where == "topics" else None)
    first, second = asyncio.Event(), asyncio.Event()
    second.set()
    gated: FaultyLog | FaultyTopics = world.log if where == "records" else world.engine.topics
    gated.gate = first
    starting = asyncio.create_task(world.start())
    await until(lambda: (world.log.reads if where == "records" else world.engine.topics.finds) > 0)
    before, gated.gate = world.log.reads, second
    world.log.lose_lead(keep=True)
    await another_deletes(world, *ALL)
    if goes_on:
        first.set()
    await until(lambda: world.log.reads > before)
    async with asyncio.timeout(SECONDS):
        await starting
    await until(lambda: not world.groups.refusal_of("g"))
    first.set()
    await settle()
    assert world.offset() is None
    assert world.offset(1) is None
    assert world.groups.describe("g") == E.GROUP_ID_NOT_FOUND
    await world.groups.stop()


async def test_offsets_that_another_broker_deleted_while_it_led_are_not_there_when_the_lead_comes_back() -> None:
    world = await stored()
    await world.start()
    assert world.offset() == 10
    world.log.lose_lead(keep=True)
    assert world.groups.refusal_of("g") == E.NOT_COORDINATOR
    assert world.offset() is None
    await another_deletes(world, OffsetCommitKey("g", "t", 0))
    await until(lambda: not world.groups.refusal_of("g"))
    assert world.offset() is None
    assert world.offset(1) == 11
    await world.groups.stop()


async def test_a_deletion_that_fails_because_the_lead_was_lost_does_not_bring_the_group_back() -> None:
    world = await stored()
    await world.start()
    world.log.hold()
    deletion = under_way(world.groups.delete("g"))
    await settle()
    world.log.lose_lead(keep=True)
    world.log.release(E.NOT_LEADER_OR_FOLLOWER)
    assert await deletion == E.NOT_COORDINATOR
    await another_deletes(world, *ALL)
    await until(lambda: not world.groups.refusal_of("g"))
    assert world.groups.offsets("g") is None
    assert world.groups.list() == []
    await world.groups.stop()


@pytest.mark.parametrize("error", [None, E.NOT_LEADER_OR_FOLLOWER])
async def test_a_deletion_under_way_when_the_lead_is_lost_deletes_no_later_group(error: E | None) -> None:
    world = await stored()
    await world.start()
    world.log.hold()
    deletion = under_way(world.groups.delete("g"))
    await settle()
    world.log.lose_lead()
    await settle()
    world.log.pass_by()
    await until(lambda: not world.groups.refusal_of("g"))
    world.log.release(error)
    assert bool(await deletion) == bool(error)
    assert world.offset() == 10, "what was read back is what is served"
    assert world.described().state == "Empty"
    await world.groups.stop()


@pytest.mark.parametrize("error", [None, E.NOT_LEADER_OR_FOLLOWER])
async def test_a_commit_under_way_when_the_lead_is_lost_enters_no_later_group(error: E | None) -> None:
    world = await stored()
    await world.start()
    world.log.hold()
    commit = world.commit(99)
    await settle()
    world.log.lose_lead()
    await settle()
    world.log.pass_by()
    await until(lambda: not world.groups.refusal_of("g"))
    world.log.release(error)
    assert bool(await commit) == bool(error)
    assert world.offset() == 10, "what was read back is what is served"
    await world.groups.stop()


async def test_a_group_that_was_taken_away_writes_nothing_when_its_timers_run_out() -> None:
    world = await World().start()
    member_id = await world.stable()
    joining = world.send_join(member_id)  # the group rebalances, which it would write
    world.log.hold()
    leaving = world.groups.leave("g", [LeavingMember(member_id)])
    await settle()
    world.log.lose_lead(keep=True)
    for waiting in (joining, leaving):
        if isinstance(waiting, asyncio.Future):
            world.log.release(E.NOT_LEADER_OR_FOLLOWER)
            async with asyncio.timeout(SECONDS):
                await waiting
    world.log.release(E.NOT_LEADER_OR_FOLLOWER)
    await another_deletes(world, *ALL)
    await until(lambda: not world.groups.refusal_of("g"))
    appends = world.log.appends
    for _ in range(100):
        world.now += MINUTE
        world.groups.deadlines.tick()
        await settle()
    assert world.log.appends == appends
    assert world.groups.list() == []
    await world.groups.stop()


@pytest.mark.parametrize("answers", [True, False])
async def test_while_the_other_brokers_cannot_be_seen_a_lead_that_storage_confirms_is_served(
    answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody but the broker of the partition has to answer; where that is silent, too, nothing is told from memory."""
    monkeypatch.setattr(ownership, "CONFIRM_SECONDS", 0.001)
    world = await World().start()
    member_id = await world.stable()
    world.engine.brokers_fresh = False
    world.log.no_answer = not answers
    for _ in range(5):
        world.log.doubtful = True  # it was confirmed too long ago
        if answers:
            await until(lambda: not world.groups.refusal_of("g"))
            assert world.groups.heartbeat("g", member_id, None, 1) == E.NONE
            assert world.groups.check_commit("g", member_id, None, 1, says_not_found=True) == E.NONE
            assert await world.commit(1) == E.NONE
        else:
            await asyncio.sleep(0.01)  # rounds in which it is asked in vain
            assert world.groups.refusal_of("g") == E.COORDINATOR_LOAD_IN_PROGRESS
            assert world.groups.heartbeat("g", member_id, None, 1) == E.NONE, "the member shall stay"
            assert world.groups.check_commit("g", member_id, None, 1, says_not_found=True)
    await world.groups.stop()


async def test_heartbeats_keep_a_member_while_the_lead_is_in_doubt() -> None:
    async with World() as world:
        member_id = await world.stable(session=10_000)
        world.engine.brokers_fresh = False
        world.log.doubtful = world.log.no_answer = True
        for _ in range(8):
            world.now += 3000
            assert world.groups.heartbeat("g", member_id, None, 1) == E.NONE
            assert world.groups.heartbeat("g", "another", None, 1) == E.NONE, "whether it is a member is in doubt, too"
            world.groups.deadlines.tick()
        world.log.doubtful = False
        assert world.groups.heartbeat("g", member_id, None, 1) == E.NONE
        assert world.groups.heartbeat("g", "another", None, 1) == E.UNKNOWN_MEMBER_ID
        world.now += 10_000
        world.groups.deadlines.tick()
        assert world.groups.heartbeat("g", member_id, None, 1) == E.UNKNOWN_MEMBER_ID


async def test_one_partition_whose_broker_hangs_leaves_the_others_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "CONFIRM_SECONDS", 0.001)
    world = await World(offsets_topic_num_partitions=3).start()
    asked = 0

    async def hangs() -> None:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()

    monkeypatch.setattr(world.logs[1], "verify_lead", hangs)
    world.engine.brokers_fresh = False
    groups = {world.groups.state_log.partition_of(name): name for name in map(str, range(100))}
    for _ in range(5):
        for log in world.logs:
            log.doubtful = True
        await until(lambda: not any(world.groups.refusal_of(groups[index]) for index in (0, 2)))
        assert world.groups.refusal_of(groups[1]) == E.COORDINATOR_LOAD_IN_PROGRESS
    assert asked == 1, "one question at a time"
    await world.groups.stop()
