"""Offsets that transactions commit, in the coordinator: storage that waits or fails, restarts, a lead that is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest
from groups.group_world import MINUTE, World, at_once, settle, under_way
from support.faulty_engine import FaultyLog
from support.waiting import SECONDS, until

from kop.coordination import ownership
from kop.errors import ErrorCode as E
from kop.errors import KopError
from kop.groups import offsets as offsets_module
from kop.groups.classic.messages import JoinRequest
from kop.groups.offsets import Commit
from kop.groups.runtime import TransactionGuard
from kop.groups.settings import GroupSettings
from kop.pulsar_client.packed import MOST_MESSAGES
from kop.records.batch import BatchHeader, iter_batches
from kop.wire.state import OffsetCommitKey, PendingOffsetKey

A, B = 4001, 4002
WEEK = GroupSettings().offsets_retention_minutes * MINUTE


def pend(
    world: World,
    offset: int,
    *,
    producer: int = A,
    epoch: int = 0,
    group: str = "g",
    topic: str = "t",
    partition: int = 0,
    guard: TransactionGuard | None = None,
    name: bytes = b"",
) -> asyncio.Future[E]:
    """Commit an offset in a producer's transaction. `name`: what storage calls the transaction."""
    info = world.engine.topics.get(topic)
    commits = [Commit(topic, info.topic_id if info else None, partition, offset)]
    return world.groups.commit_in_transaction(group, producer, epoch, commits, guard, storage_transaction=name)


async def end(
    world: World,
    *,
    producer: int = A,
    epoch: int = 0,
    commit: bool = True,
    partitions: Sequence[int] = (0,),
    name: bytes = b"",
) -> E:
    """End a producer's transaction."""
    return await world.groups.end_transaction(partitions, producer, epoch, commit=commit, storage_transaction=name)


async def soon(awaitable: Awaitable[E]) -> E:
    async with asyncio.timeout(SECONDS):
        return await awaitable


def pending(world: World, group: str = "g", partition: int = 0) -> bool:
    offsets = world.groups.offsets(group)
    return offsets is not None and offsets.is_pending("t", partition)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(("commit", "seen"), [(True, 7), (False, 5)])
async def test_offsets_wait_for_the_end(commit: bool, seen: int, restarts: bool) -> None:
    async with World() as world:
        await world.commit(5)
        assert await pend(world, 7) == E.NONE
        if restarts:
            await world.restart()
        assert (world.offset(), pending(world), world.groups.pending_offsets) == (5, True, 1)
        assert await end(world, commit=commit) == E.NONE
        assert (world.offset(), pending(world), world.groups.pending_offsets) == (seen, False, 0)
        await world.restart()
        assert (world.offset(), pending(world)) == (seen, False)


async def test_a_pending_offset_is_there_when_it_is_durable() -> None:
    async with World() as world:
        world.log.hold()
        answer = pend(world, 7)
        await settle()
        assert not answer.done()
        assert not pending(world)
        world.log.release()
        assert await answer == E.NONE
        assert pending(world)


async def test_a_group_is_known_by_a_pending_offset_alone() -> None:
    async with World() as world:
        await pend(world, 7)
        assert [group.group_id for group in world.groups.list()] == ["g"]
        await world.restart()
        assert [group.group_id for group in world.groups.list()] == ["g"]


async def test_failed_pending_offset_leaves_no_group() -> None:
    async with World() as world:
        world.log.append_error = E.NOT_ENOUGH_REPLICAS
        assert await pend(world, 7) == E.COORDINATOR_NOT_AVAILABLE
        assert world.groups.list() == []


@pytest.mark.parametrize(("group", "topic"), [("x" * 32_768, "t"), ("g", "x" * 32_768)])
async def test_a_pending_offset_that_no_record_can_hold_leaves_no_group(group: str, topic: str) -> None:
    async with World() as world:
        assert await pend(world, 7, group=group, topic=topic) == E.UNKNOWN_SERVER_ERROR
        assert world.groups.list() == []
        assert await end(world) == E.NONE


async def test_one_batch_ends_all_groups_of_a_partition() -> None:
    async with World() as world:
        for group in ("a", "b"):
            for partition in range(3):
                await pend(world, 7 + partition, group=group, partition=partition)
        await pend(world, 1, group="c", producer=B)
        before = world.log.high_watermark
        assert await end(world) == E.NONE
        result = world.log.read_cached(before, 1 << 20, min_one=True)
        assert result is not None
        assert sum(1 for buffer in result.buffers for _ in iter_batches(memoryview(buffer))) == 1
        keys = world.keys()
        for group in ("a", "b"):
            assert [world.offset(partition, group) for partition in range(3)] == [7, 8, 9]
            assert [keys[PendingOffsetKey(group, "t", index, A)] for index in range(3)] == [None] * 3
        assert pending(world, "c")


@pytest.fixture
def limited_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage refuses batches of more records than packed offsets can number."""
    submit = FaultyLog.submit

    def limited(log: FaultyLog, batch: Any, header: BatchHeader, *, waiter: Any, place: int, **more: Any) -> None:
        if header.record_count > MOST_MESSAGES:
            waiter.append_failed(place, KopError("as with packed offsets", E.MESSAGE_TOO_LARGE))
        else:
            submit(log, batch, header, waiter=waiter, place=place, **more)

    monkeypatch.setattr(FaultyLog, "submit", limited)


@pytest.mark.usefixtures("limited_batches")
@pytest.mark.parametrize("commit", [True, False])
async def test_an_end_of_more_offsets_than_storage_takes_at_once_comes_in_several_batches(commit: bool) -> None:
    count = MOST_MESSAGES // 2 + 1
    async with World() as world:
        for _ in range(2):
            for group in ("a", "b"):
                commits = [Commit("t", None, partition, 7) for partition in range(count)]
                assert await world.groups.commit_in_transaction(group, A, 0, commits) == E.NONE
            await pend(world, 9, group="a", producer=B)
            appends = world.log.appends
            assert await end(world, commit=commit) == E.NONE
            assert world.log.appends > appends + 2
            assert world.groups.pending_offsets == 1
            for group in ("a", "b"):
                seen = {world.offset(partition, group) for partition in range(count)}
                assert seen == ({7} if commit else {None})
            await world.restart()
            assert world.groups.pending_offsets == 1


@pytest.mark.usefixtures("limited_batches")
async def test_a_group_of_more_offsets_than_storage_takes_at_once_is_deleted() -> None:
    async with World() as world:
        half = MOST_MESSAGES // 2 + 1
        for start in (0, half):
            commits = [Commit("t", None, partition, 7) for partition in range(start, start + half)]
            assert await world.groups.commit_in_transaction("g", A, 0, commits) == E.NONE
        assert await end(world) == E.NONE
        for partition in (0, half):
            await pend(world, 8, partition=partition)
        assert world.offset(2 * half - 1) == 7
        deleted = world.groups.delete("g")
        assert await under_way(deleted) == E.NONE
        assert world.names() == []
        await world.restart()
        assert world.names() == []
        assert world.groups.pending_offsets == 0


async def test_a_group_of_which_a_part_cannot_be_deleted_is_there_until_all_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_module, "WRITE_RECORDS", 2)
    async with World() as world:
        for partition in range(5):
            await pend(world, 7, partition=partition)
        assert await end(world) == E.NONE
        failures = iter([E.NONE, E.NOT_ENOUGH_REPLICAS, E.NONE])
        submit = FaultyLog.submit

        def fail_second(
            log: FaultyLog, batch: Any, header: BatchHeader, *, waiter: Any, place: int, **more: Any
        ) -> None:
            if code := next(failures):
                waiter.append_failed(place, KopError("for a test", code))
            else:
                submit(log, batch, header, waiter=waiter, place=place, **more)

        monkeypatch.setattr("kop.coordination.state_log.BATCH_RECORDS", 2)
        with monkeypatch.context() as patch:
            patch.setattr(FaultyLog, "submit", fail_second)
            assert await under_way(world.groups.delete("g")) == E.COORDINATOR_NOT_AVAILABLE
        assert world.names() == ["g"]
        assert [world.offset(partition) for partition in range(5)] == [None, None, 7, 7, None]
        assert await under_way(world.groups.delete("g")) == E.NONE
        await world.restart()
        assert world.names() == []


async def test_an_end_that_fails_between_two_batches_is_carried_out_when_it_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offsets_module, "WRITE_RECORDS", 2)
    async with World() as world:
        await pend(world, 4, epoch=2, partition=7)  # of a transaction before: it is not committed
        for partition in range(3):
            await pend(world, 7, epoch=3, partition=partition)
        world.log.hold()
        first = asyncio.ensure_future(end(world, epoch=3))
        await until(lambda: world.log.waiting == 1)
        world.log.release()
        world.log.hold()
        await until(lambda: world.log.waiting == 1)
        world.log.release(E.NOT_ENOUGH_REPLICAS)
        assert await soon(first) == E.COORDINATOR_NOT_AVAILABLE
        await world.restart()
        assert await end(world, epoch=3) == E.NONE
        assert [world.offset(partition) for partition in (0, 1, 2, 7)] == [7, 7, 7, None]
        assert world.groups.pending_offsets == 0


async def test_an_offset_is_committed_where_the_log_ends_within_the_end_of_its_transaction() -> None:
    """Storage that cuts a batch into pieces may have kept the first alone."""
    async with World() as world:
        await pend(world, 7)
        pending_record = world.log.records()[-1]
        assert await end(world) == E.NONE
        committed, tombstone = world.log.records()[-2:]
        assert tombstone == (pending_record[0], None)
        assert committed[1] is not None
        world.groups.state_log.write(0, [(pending_record[0], pending_record[1]), committed], lambda _: None)  # type: ignore[list-item]
        await world.restart()
        assert (world.offset(), pending(world)) == (7, True)
        assert await end(world) == E.NONE
        await world.restart()
        assert (world.offset(), pending(world)) == (7, False)


async def test_each_partition_is_ended_by_itself() -> None:
    async with World(offsets_topic_num_partitions=7) as world:
        groups = {world.groups.state_log.partition_of(name): name for name in map(str, range(100))}
        for group in groups.values():
            await pend(world, 7, group=group)
        assert await end(world, partitions=[1, 2]) == E.NONE
        assert {index for index, group in groups.items() if not pending(world, group)} == {1, 2}
        world.logs[4].append_error = E.KAFKA_STORAGE_ERROR
        assert await end(world, partitions=range(7)) == E.NOT_COORDINATOR
        assert {index for index, group in groups.items() if pending(world, group)} == {4}
        world.logs[4].append_error = None
        assert await end(world, partitions=range(7)) == E.NONE
        assert world.groups.pending_offsets == 0


@pytest.mark.parametrize("partition", [-1, 1, 99])
async def test_a_partition_that_is_not_there_is_not_coordinated(partition: int) -> None:
    async with World() as world:
        assert await end(world, partitions=[partition]) == E.NOT_COORDINATOR


async def test_the_end_is_repeated_without_harm() -> None:
    async with World() as world:
        await pend(world, 7)
        assert await end(world) == E.NONE
        await world.commit(9)
        appends = world.log.appends
        assert await end(world) == E.NONE
        assert await end(world, commit=False) == E.NONE
        assert (world.offset(), world.log.appends) == (9, appends)


async def test_a_failed_end_changes_nothing_and_is_tried_again() -> None:
    async with World() as world:
        await world.commit(5)
        await pend(world, 7)
        world.log.append_error = E.NOT_ENOUGH_REPLICAS
        assert await end(world) == E.COORDINATOR_NOT_AVAILABLE
        assert (world.offset(), pending(world)) == (5, True)
        world.log.append_error = None
        assert await end(world) == E.NONE
        assert (world.offset(), pending(world)) == (7, False)


async def test_an_end_is_answered_when_it_is_durable() -> None:
    async with World() as world:
        await pend(world, 7)
        world.log.hold()
        ending = asyncio.create_task(end(world))
        await until(lambda: world.log.waiting == 1)
        assert pending(world)
        assert world.offset() is None
        again = asyncio.create_task(end(world))
        await settle()
        assert not ending.done()
        assert not again.done()
        world.log.release()
        assert [await soon(ending), await soon(again)] == [E.NONE, E.NONE]
        assert world.offset() == 7
        assert world.log.appends == 2


# -- epochs


async def test_an_older_epoch_is_refused() -> None:
    async with World() as world:
        await pend(world, 7, epoch=5)
        assert await pend(world, 8, epoch=4) == E.INVALID_PRODUCER_EPOCH
        assert await pend(world, 8, epoch=4, group="another") == E.INVALID_PRODUCER_EPOCH
        assert await end(world, epoch=4) == E.INVALID_PRODUCER_EPOCH
        assert pending(world)
        assert [group.group_id for group in world.groups.list()] == ["g"]


@pytest.mark.parametrize("epoch", [5, 6])
async def test_the_end_bears_the_epoch_of_the_offsets_or_the_next_one(epoch: int) -> None:
    async with World() as world:
        await pend(world, 7, epoch=5)
        assert await end(world, epoch=epoch) == E.NONE
        assert world.offset() == 7


async def test_offsets_of_a_transaction_before_are_not_committed(caplog: pytest.LogCaptureFixture) -> None:
    async with World() as world:
        await pend(world, 7, epoch=5)
        assert await end(world, epoch=7) == E.NONE
        assert (world.offset(), pending(world)) == (None, False)
        assert "belong to no transaction" in caplog.text
        await pend(world, 1, epoch=8)
        await pend(world, 2, epoch=9, partition=1)
        assert await end(world, epoch=10) == E.NONE
        assert (world.offset(0), world.offset(1)) == (None, 2)
        assert world.groups.pending_offsets == 0


# -- what is under way


async def test_the_end_takes_along_what_is_being_written() -> None:
    async with World() as world:
        world.log.hold()
        answer = pend(world, 7)
        ending = asyncio.create_task(end(world, commit=False))
        await settle()
        assert not ending.done()
        world.log.release()
        assert (await answer, await soon(ending)) == (E.NONE, E.NONE)
        assert not pending(world)
        assert world.keys()[PendingOffsetKey("g", "t", 0, A)] is None


@pytest.mark.parametrize(("error", "seen"), [(None, 9), (E.KAFKA_STORAGE_ERROR, 7)])
async def test_a_plain_commit_that_is_being_written_wins_if_it_succeeds(error: E | None, seen: int) -> None:
    async with World() as world:
        await pend(world, 7)
        world.log.hold()
        plain = world.commit(9)
        ending = asyncio.create_task(end(world))
        await settle()
        assert not ending.done()
        refused = world.commit(11)
        assert await refused == E.COORDINATOR_LOAD_IN_PROGRESS, "the end has to come first"
        assert await pend(world, 12, producer=B) == E.COORDINATOR_LOAD_IN_PROGRESS
        other = world.commit(1, partition=1)
        await settle()
        world.log.release(error)
        await plain
        await other
        assert await soon(ending) == E.NONE
        assert (world.offset(), pending(world)) == (seen, False)
        assert await world.commit(13) == E.NONE
        await world.restart()
        assert world.offset() == 13


async def test_the_later_of_two_transactions_wins_after_a_restart_too() -> None:
    async with World() as world:
        await pend(world, 7, producer=A)
        await pend(world, 8, producer=B)
        assert await end(world, producer=A) == E.NONE
        await world.restart()
        assert (world.offset(), pending(world)) == (7, True)
        assert await end(world, producer=B) == E.NONE
        assert world.offset() == 8


async def test_a_later_plain_commit_wins_after_a_restart_too() -> None:
    async with World() as world:
        await world.commit(1)
        await pend(world, 7)
        await world.commit(2)
        await world.restart()
        assert await end(world) == E.NONE
        assert (world.offset(), pending(world)) == (2, False)


async def test_the_transaction_may_end_while_it_is_asked_for() -> None:
    async with World() as world:
        with world.groups.guard_transaction("g", A) as guard, world.groups.guard_transaction("g", B) as other:
            assert await end(world, commit=False) == E.NONE
            assert await pend(world, 7, guard=guard) == E.INVALID_TXN_STATE
            assert await pend(world, 7, producer=B, guard=other) == E.NONE
        with world.groups.guard_transaction("g", A) as guard:
            assert await pend(world, 7, guard=guard) == E.NONE


async def test_ends_while_many_commit_are_all_done() -> None:
    """Every producer of a group ends often; what it committed last shows, and the ends share batches."""
    async with World() as world:

        async def work(producer: int) -> None:
            for offset in range(20):
                assert await pend(world, offset, producer=producer, group=f"g{producer}") == E.NONE
                assert await end(world, producer=producer, commit=offset % 3 != 1) == E.NONE

        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*(work(producer) for producer in range(50)))
        assert {world.offset(group=f"g{producer}") for producer in range(50)} == {18}
        assert world.log.appends <= 2 * 20 * 10
        assert world.groups.pending_offsets == 0


# -- members


async def test_who_may_commit_in_a_transaction() -> None:
    async with World() as world:
        check = world.groups.check_commit_in_transaction
        assert check("", "", None, -1) == E.INVALID_GROUP_ID
        assert check("g", "", None, -1) == E.NONE
        assert check("g", "m", None, 3) == E.ILLEGAL_GENERATION
        member_id = await world.stable(instance="i")
        for member, instance, generation, code in [
            ("", None, -1, E.NONE),
            (member_id, "i", 1, E.NONE),
            (member_id, None, 1, E.NONE),
            (member_id, "i", 2, E.ILLEGAL_GENERATION),
            (member_id, "i", -1, E.ILLEGAL_GENERATION),
            ("another", "i", 1, E.FENCED_INSTANCE_ID),
            (member_id, "j", 1, E.UNKNOWN_MEMBER_ID),
            ("another", None, 1, E.UNKNOWN_MEMBER_ID),
            ("", None, 1, E.UNKNOWN_MEMBER_ID),
            ("", "i", -1, E.FENCED_INSTANCE_ID),
        ]:
            assert check("g", member, instance, generation) == code, (member, instance, generation)


async def test_a_rebalance_does_not_keep_a_transaction_from_committing() -> None:
    async with World() as world:
        answer = world.join()
        world.groups.deadlines.tick()
        joined = await answer
        assert world.described().state == "CompletingRebalance"
        check = world.groups.check_commit
        assert check("g", joined.member_id, None, 1, says_not_found=True) == E.REBALANCE_IN_PROGRESS
        assert world.groups.check_commit_in_transaction("g", joined.member_id, None, 1) == E.NONE


async def test_pending_offsets_stay_when_the_member_leaves() -> None:
    async with World() as world:
        member_id = await world.stable()
        await pend(world, 7)
        assert await world.left(member_id) == E.NONE
        assert pending(world)
        assert await end(world) == E.NONE
        assert world.offset() == 7


# -- deletion and expiry


async def test_what_a_transaction_holds_does_not_expire() -> None:
    async with World() as world:
        await world.commit(1)
        await world.commit(2, partition=1)
        await pend(world, 7)
        world.now += WEEK
        await world.groups.expire()
        await settle()
        assert (world.offset(), world.offset(1), pending(world)) == (1, None, True)
        assert await end(world, commit=False) == E.NONE
        await world.groups.expire()
        await settle()
        assert world.groups.list() == []


async def test_a_group_with_nothing_but_a_pending_offset_does_not_expire() -> None:
    async with World() as world:
        await world.emptied()
        await pend(world, 7)
        world.now += WEEK
        await world.groups.expire()
        await settle()
        assert [group.group_id for group in world.groups.list()] == ["g"]


@pytest.mark.parametrize("being_written", [False, True])
@pytest.mark.parametrize("what", ["group", "offsets", "topic"])
async def test_a_deletion_takes_pending_offsets_along(what: str, being_written: bool) -> None:
    """As in Kafka: an administrator's deletion is stronger than a transaction that is open."""
    async with World() as world:
        await world.commit(1)
        if being_written:
            world.log.hold()
        answer = pend(world, 7)
        if not being_written:
            await answer
        if what == "group":
            deleted: asyncio.Future[Any] = under_way(world.groups.delete("g"))
        elif what == "offsets":
            deleted = under_way(world.groups.delete_offsets("g", [("t", 0)]))
        else:
            deleted = asyncio.create_task(world.engine.topics.delete(world.topic("t").topic_id))
        await settle()
        world.log.release()
        await deleted
        assert await answer == E.NONE
        await settle()
        assert (world.offset(), pending(world)) == (None, False)
        assert world.keys()[PendingOffsetKey("g", "t", 0, A)] is None
        assert await end(world) == E.NONE
        assert world.offset() is None
        await world.restart()
        assert (world.offset(), pending(world)) == (None, False)


@pytest.mark.parametrize(("error", "seen"), [(None, None), (E.KAFKA_STORAGE_ERROR, 7)])
async def test_an_end_waits_for_a_deletion(error: E | None, seen: int | None) -> None:
    async with World() as world:
        await world.commit(1)
        await pend(world, 7)
        world.log.hold()
        deleted = under_way(world.groups.delete("g"))
        ending = asyncio.create_task(end(world))
        await settle()
        assert not ending.done()
        world.log.release(error)
        await deleted
        assert await soon(ending) == E.NONE
        assert (world.offset(), pending(world)) == (seen, False)


async def test_a_failed_deletion_keeps_pending_offsets() -> None:
    async with World() as world:
        await pend(world, 7)
        world.log.hold()
        deleted = under_way(world.groups.delete("g"))
        await settle()
        assert pending(world)
        world.log.release(E.KAFKA_STORAGE_ERROR)
        assert await deleted == E.NOT_COORDINATOR
        assert pending(world)
        assert await end(world) == E.NONE
        assert world.offset() == 7


async def test_topics_that_went_while_nobody_watched_take_pending_offsets_along() -> None:
    world = await World().start()
    await pend(world, 7)
    await world.stop()
    await world.engine.topics.delete(world.topic("t").topic_id)
    await world.start()
    await settle()
    assert world.groups.pending_offsets == 0
    assert world.keys()[PendingOffsetKey("g", "t", 0, A)] is None
    await world.groups.stop()


async def test_a_topic_that_another_broker_has_just_made_keeps_its_offsets() -> None:
    """The broker that takes the group over looks for it, before it takes its offsets for those of a deleted topic."""
    async with World() as world:
        await world.commit(5)
        await pend(world, 7, partition=1)
        await world.stop()
        world.engine.topics.unseen = {"t"}
        world.coordinate()
        await world.groups.start()
        await settle()
        assert (world.offset(), pending(world, partition=1)) == (5, True)
        assert await end(world) == E.NONE
        assert world.offset(1) == 7


# -- changes of the coordinator


@pytest.fixture
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "FIRST_PAUSE_SECONDS", 0.001)


async def test_while_loading_and_after_stop_no_transaction_ends() -> None:
    world = await World().start()
    await pend(world, 7)
    world.log.hold()
    answer = pend(world, 8)
    ending = asyncio.create_task(end(world))
    await settle()
    stopping = asyncio.create_task(world.groups.stop())
    assert await soon(ending) == E.COORDINATOR_NOT_AVAILABLE
    world.log.release()
    await stopping
    await answer
    assert await end(world) == E.COORDINATOR_NOT_AVAILABLE
    assert world.groups.check_commit_in_transaction("g", "", None, -1) == E.COORDINATOR_NOT_AVAILABLE


@pytest.mark.usefixtures("_no_pause")
async def test_a_lead_that_is_lost_ends_nothing_and_the_next_one_does() -> None:
    async with World() as world:
        await pend(world, 7)
        world.log.hold()
        answer = pend(world, 8, partition=1)
        ending = asyncio.create_task(end(world))
        with world.groups.guard_transaction("g", A) as guard:
            await settle()
            world.log.lose_lead(keep=True)
            elsewhere = (E.NOT_COORDINATOR, E.COORDINATOR_LOAD_IN_PROGRESS)  # the latter while it is asked for again
            assert await soon(ending) in elsewhere
            assert await end(world) in elsewhere
            world.log.release(E.NOT_LEADER_OR_FOLLOWER)
            assert await answer == E.NOT_COORDINATOR
            world.log.free_lead()
            await until(lambda: not world.groups.refusal_of("g"))
            assert await pend(world, 9, guard=guard) == E.NOT_COORDINATOR
        assert world.groups.pending_offsets == 1
        assert await end(world) == E.NONE
        assert (world.offset(), world.offset(1)) == (7, None)


@pytest.mark.parametrize(("no_answer", "code"), [(False, E.NONE), (True, E.COORDINATOR_LOAD_IN_PROGRESS)])
async def test_that_nothing_is_pending_is_told_only_where_the_lead_is_sure(no_answer: bool, code: E) -> None:
    async with World() as world:
        world.log.doubtful, world.log.no_answer = True, no_answer
        assert await end(world) == code


async def test_keys_of_kafka_are_as_they_were() -> None:
    """What a transaction committed is an OffsetCommit like any other."""
    async with World() as world:
        await pend(world, 7)
        await end(world)
        assert set(world.keys()) == {PendingOffsetKey("g", "t", 0, A), OffsetCommitKey("g", "t", 0)}


async def test_a_join_that_was_never_finished_keeps_what_is_pending() -> None:
    async with World() as world:
        await pend(world, 7)
        request = JoinRequest("", None, "c", "/", "x", (("p", b""),), 10_000, 5000)
        assert at_once(world.groups.join("g", request)).error == E.MEMBER_ID_REQUIRED
        world.now += 10_000
        world.groups.deadlines.tick()
        assert pending(world)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("late_commit", [True, False])
@pytest.mark.parametrize("end_epoch", [0, 1])
async def test_a_late_end_of_one_transaction_does_not_end_the_next(
    end_epoch: int, late_commit: bool, restarts: bool
) -> None:
    """A coordinator that was replaced, or did not wait for the answer, may have sent it long ago.

    The epoch of the first end is that of the second transaction's offsets, whether ends bump it or not.
    """
    async with World() as world:
        await pend(world, 7, name=b"first")
        assert await end(world, epoch=end_epoch, name=b"first") == E.NONE
        await pend(world, 9, epoch=end_epoch, name=b"second")
        if restarts:
            await world.restart()
        assert await end(world, epoch=end_epoch, commit=late_commit, name=b"first") == E.NONE
        assert (world.offset(), pending(world)) == (7, True)
        assert await end(world, epoch=2 * end_epoch, name=b"second") == E.NONE
        assert (world.offset(), pending(world), world.groups.pending_offsets) == (9, False, 0)


@pytest.mark.parametrize(("name", "ended_by"), [(b"", b"first"), (b"first", b"")])
async def test_what_is_not_named_is_of_the_transaction_that_ends(name: bytes, ended_by: bytes) -> None:
    """Earlier versions of the gateway name nothing."""
    async with World() as world:
        await pend(world, 7, name=name)
        assert await end(world, name=ended_by) == E.NONE
        assert (world.offset(), pending(world)) == (7, False)
