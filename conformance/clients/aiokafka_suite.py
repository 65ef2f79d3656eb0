"""aiokafka: asyncio, and request versions of around Kafka 2.1 (Produce 7, Fetch 11, Metadata 5, JoinGroup 5).

The admin client's cases are in aiokafka_admin.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka import errors as E
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.structs import OffsetAndMetadata
from aiokafka_kit import (
    QUICK,
    admin,
    consumer,
    create,
    eventually,
    fill,
    make_topic,
    owns,
    producer,
    refused,
    suite,
    take,
    visible,
)
from checks import (
    CODECS,
    ODD_RECORDS,
    check_codec,
    check_idempotent,
    check_log_append_time,
    check_split,
    stored,
    values,
    wait_stored,
)
from suite import Run, same

from conformance.security import MECHANISMS


@suite.case(secure=True, mechanism=MECHANISMS)
async def logs_in_by(run: Run, mechanism: str) -> None:
    topic, inside = await make_topic(run), run.by(mechanism)
    await fill(inside, topic, 3)
    async with consumer(inside, topic) as c:
        same([r.value for r in await take(c, 3)], [b"v0", b"v1", b"v2"])


@suite.case(codec=CODECS, acks=(0, 1, "all"), fast=lambda codec, acks: acks == "all" or codec == "gzip")
async def produce_consume_and_stored_codec(run: Run, codec: str, acks: Any) -> None:
    topic = await make_topic(run)
    wanted = values(50)
    async with producer(run, compression_type=None if codec == "none" else codec, acks=acks, linger_ms=20) as p:
        await asyncio.gather(*[await p.send(topic, v) for v in wanted])
    await asyncio.to_thread(wait_stored, run, topic, 50)
    async with consumer(run, topic) as c:
        records = await take(c, 50)
    same([r.value for r in records], wanted)
    same([r.offset for r in records], list(range(50)))
    check_codec(run, topic, codec)


@suite.case()
async def records_keep_null_and_empty_and_binary_keys_values_headers(run: Run) -> None:
    topic = await make_topic(run)
    # aiokafka itself refuses a record with neither key nor value.
    wanted = [r for r in ODD_RECORDS if r[:2] != (None, None)]
    async with producer(run) as p:
        for key, value, headers in wanted:
            await p.send_and_wait(topic, value, key, headers=headers)
    async with consumer(run, topic) as c:
        same([(r.key, r.value, list(r.headers)) for r in await take(c, len(wanted))], wanted)


@suite.case()
async def timestamps_of_the_producer_are_kept(run: Run) -> None:
    topic = await make_topic(run, retention_ms="-1")
    now = int(time.time() * 1000)
    stamps = [now - 60_000, now, now - 3_600_000, 1_500_000_000_000]
    async with producer(run, linger_ms=50) as p:
        await asyncio.gather(*[await p.send(topic, b"x", timestamp_ms=t) for t in stamps])
    async with consumer(run, topic) as c:
        same([(r.timestamp, r.timestamp_type) for r in await take(c, 4)], [(t, 0) for t in stamps])


@suite.case()
async def log_append_time_replaces_the_producers_time(run: Run) -> None:
    topic = await make_topic(run, message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000) - 1000
    async with producer(run) as p:
        sent = await p.send_and_wait(topic, b"x", timestamp_ms=1000)
    async with consumer(run, topic) as c:
        record = (await take(c, 1))[0]
    same((record.timestamp_type, sent.timestamp_type), (1, 1), "timestamp types")
    assert before < record.timestamp < before + 20_000, f"timestamp {record.timestamp} is not now"
    same(sent.timestamp, record.timestamp, "timestamp in the Produce answer")
    check_log_append_time(run, topic)


@suite.case()
async def message_of_900_kb_round_trips(run: Run) -> None:
    topic = await make_topic(run)
    value = bytes(i % 251 for i in range(900_000))
    async with producer(run) as p:
        await p.send_and_wait(topic, value)
    async with consumer(run, topic) as c:
        assert (await take(c, 1))[0].value == value, "the value changed"


@suite.case()
async def too_large_a_message_is_message_too_large(run: Run) -> None:
    topic = await make_topic(run)
    async with producer(run, max_request_size=8 << 20) as p:
        await refused(E.MessageSizeTooLargeError, p.send_and_wait(topic, b"x" * (3 << 20)))
        same((await p.send_and_wait(topic, b"small")).offset, 0)


@suite.case()
async def fetch_returns_a_batch_larger_than_its_limits(run: Run) -> None:
    topic = await make_topic(run)
    async with producer(run) as p:
        for _ in range(3):
            await p.send_and_wait(topic, b"x" * 100_000)
    async with consumer(run, topic, max_partition_fetch_bytes=1000, fetch_max_bytes=1000) as c:
        same([r.offset for r in await take(c, 3)], [0, 1, 2])


@suite.case()
async def idempotent_producer_is_ordered_without_holes(run: Run) -> None:
    topic = await make_topic(run)
    async with producer(run, enable_idempotence=True, max_batch_size=1000) as p:
        sent = await asyncio.gather(*[await p.send(topic, v) for v in values(1000)])
    same([m.offset for m in sent], list(range(1000)))
    check_idempotent(run, topic, 1000)


@suite.case()
async def transaction_commits_and_aborts(run: Run) -> None:
    topic = await make_topic(run)
    async with producer(run, transactional_id=run.group("tx"), request_timeout_ms=5000) as p:
        async with p.transaction():
            await p.send_and_wait(topic, b"kept")
        await p.begin_transaction()
        await p.send_and_wait(topic, b"dropped")
        await p.abort_transaction()
    async with consumer(run, topic, isolation_level="read_committed") as c:
        same([r.value for r in await take(c, 1)], [b"kept"])


@suite.case()
async def transaction_carries_the_offsets_of_a_group(run: Run) -> None:
    source, target, group = await make_topic(run), await make_topic(run), run.group()
    await fill(run, source, 10)
    tp = TopicPartition(source, 0)
    async with (
        producer(run, transactional_id=run.group("tx")) as p,
        consumer(run, source, group_id=group, isolation_level="read_committed") as c,
    ):
        await take(c, 10)
        await p.begin_transaction()
        await p.send(target, b"dropped")
        await p.send_offsets_to_transaction({tp: 4}, group)
        await p.abort_transaction()
        same(await c.committed(tp), None, "after the abort")
        async with p.transaction():
            await p.send(target, b"kept")
            await p.send_offsets_to_transaction({tp: 7}, group)

        async def is_committed() -> bool:
            return bool(await c.committed(tp) == 7)

        await eventually(is_committed)  # markers follow the answer to a commit, and aiokafka does not ask to wait
    async with consumer(run, target, isolation_level="read_committed") as c:
        same([r.value for r in await take(c, 1)], [b"kept"])


@suite.case()
async def transactional_producer_is_fenced_by_the_next_instance(run: Run) -> None:
    topic, transactional_id = await make_topic(run), run.group("tx")
    async with producer(run, transactional_id=transactional_id) as old:
        await old.begin_transaction()
        await old.send_and_wait(topic, b"lost")
        async with producer(run, transactional_id=transactional_id) as young:
            try:
                await old.commit_transaction()
                raise AssertionError("the old instance commits")
            except E.ProducerFenced:
                pass
            async with young.transaction():
                await young.send(topic, b"kept")
    async with consumer(run, topic, isolation_level="read_committed") as c:
        same([r.value for r in await take(c, 1)], [b"kept"])


@suite.case()
async def consume_from_beginning_end_and_offset(run: Run) -> None:
    topic = await make_topic(run)
    await fill(run, topic, 10)
    tp = TopicPartition(topic, 0)
    async with consumer(run) as c:
        c.assign([tp])
        await c.seek_to_beginning(tp)
        same([r.offset for r in await take(c, 10)], list(range(10)))
        c.seek(tp, 7)
        same([r.offset for r in await take(c, 3)], [7, 8, 9])
        await c.seek_to_end(tp)
        same(await c.position(tp), 10)
        await fill(run, topic, 1, start=10)
        same([r.value for r in await take(c, 1)], [b"v10"])
        same(((await c.beginning_offsets([tp]))[tp], (await c.end_offsets([tp]))[tp]), (0, 11))


@suite.case()
async def consume_from_the_middle_of_a_compressed_batch(run: Run) -> None:
    topic = await make_topic(run)
    await fill(run, topic, 20, linger_ms=100, compression_type="gzip")
    same(len(stored(run, topic)), 1, "batches")
    tp = TopicPartition(topic, 0)
    async with consumer(run) as c:
        c.assign([tp])
        c.seek(tp, 13)
        same([r.offset for r in await take(c, 7)], list(range(13, 20)))


@suite.case()
async def offsets_for_times_finds_the_first_record_at_or_after(run: Run) -> None:
    topic = await make_topic(run)
    base = int(time.time() * 1000) - 60_000
    async with producer(run, linger_ms=50) as p:
        await asyncio.gather(*[await p.send(topic, b"x", timestamp_ms=base + i * 1000) for i in range(5)])
    tp = TopicPartition(topic, 0)
    async with consumer(run) as c:

        async def at(time_ms: int) -> tuple[int, int] | None:
            position = (await c.offsets_for_times({tp: time_ms}))[tp]
            return position and (position.offset, position.timestamp)

        same(await at(0), (0, base))
        same(await at(base + 1000), (1, base + 1000))
        same(await at(base + 1001), (2, base + 2000))
        same(await at(base + 4001), None, "a time beyond the end")


@suite.case(policy=("earliest", "latest"))
async def offset_out_of_range_is_reset(run: Run, policy: str) -> None:
    topic = await make_topic(run)
    await fill(run, topic, 5)
    tp = TopicPartition(topic, 0)
    async with consumer(run, auto_offset_reset=policy) as c:
        c.assign([tp])
        c.seek(tp, 1000)
        if policy == "earliest":
            same([r.offset for r in await take(c, 5)], list(range(5)))
            return
        await c.getmany(timeout_ms=500)

        async def at_the_end() -> bool:
            await c.getmany(timeout_ms=100)
            return bool(await c.position(tp) == 5)

        await eventually(at_the_end)
        await fill(run, topic, 1, start=5)
        same([r.offset for r in await take(c, 1)], [5])


@suite.case()
async def offset_out_of_range_without_reset_is_an_error(run: Run) -> None:
    topic = await make_topic(run)
    await fill(run, topic, 5)
    tp = TopicPartition(topic, 0)
    async with consumer(run, auto_offset_reset="none") as c:
        c.assign([tp])
        c.seek(tp, 1000)
        await refused(E.OffsetOutOfRangeError, asyncio.wait_for(c.getone(), 10))


@suite.case(alone=True)
async def a_waiting_consumer_is_woken_at_once(run: Run) -> None:
    topic = await make_topic(run)
    async with consumer(run, fetch_max_wait_ms=5000) as c, producer(run) as p:
        await p.send_and_wait(topic, b"first")
        c.assign([TopicPartition(topic, 0)])
        await c.getone()
        took = []
        for _ in range(3):
            waiting = asyncio.create_task(c.getone())
            await asyncio.sleep(0.5)
            await p.send_and_wait(topic, b"next")
            acknowledged = time.monotonic()
            await waiting
            took.append(time.monotonic() - acknowledged)
        assert min(took) < 0.5, f"seen {took} s after the acknowledgements; a busy machine may delay one of them"


@suite.case()
async def backlog_of_5_mb_through_small_fetches(run: Run) -> None:
    topic = await make_topic(run, partitions=2)
    async with producer(run, linger_ms=5, max_batch_size=64 << 10) as p:
        await asyncio.gather(*[await p.send(topic, b"%06d" % i + b"x" * 1018, partition=i % 2) for i in range(5000)])
    async with consumer(run, topic, max_partition_fetch_bytes=100_000, fetch_max_bytes=150_000) as c:
        records = await take(c, 5000, 25)
    for partition in (0, 1):
        same([int(r.value[:6]) for r in records if r.partition == partition], list(range(partition, 5000, 2)))


@suite.case()
async def produce_creates_a_missing_topic(run: Run) -> None:
    topic = run.name("auto")
    async with producer(run) as p:
        same((await p.send_and_wait(topic, b"x")).offset, 0)
    async with consumer(run, topic) as c:
        same([r.value for r in await take(c, 1)], [b"x"])


@suite.case(limit=40)
async def deleted_and_recreated_topic_is_a_new_log(run: Run) -> None:
    topic = await make_topic(run)
    await fill(run, topic, 10)
    async with consumer(run, topic, metadata_max_age_ms=500) as old, admin(run) as a:
        await take(old, 10)
        await a.delete_topics([topic])
        # The old consumer's own metadata requests may make it first.
        await create(a, topic)
        await visible(a, topic)
        await fill(run, topic, 3, start=100)
        async with consumer(run, topic) as new:
            same([(r.offset, r.value) for r in await take(new, 3)], [(i, b"v%d" % (100 + i)) for i in range(3)])
        # Whether the old one truncates to the new end or resets: it goes on with the new log, in its offsets.
        seen: list[tuple[int, bytes]] = []
        for i in range(3, 40):
            await fill(run, topic, 1, start=100 + i)
            for batch in (await old.getmany(timeout_ms=300)).values():
                seen += [(r.offset, r.value) for r in batch if r.partition == 0]
            if seen:
                break
        assert seen, "the old consumer sees nothing of the new log"
        same(seen, [(offset, b"v%d" % (100 + offset)) for offset, _ in seen])


# Groups


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self) -> None:
        self.assigned = 0

    async def on_partitions_revoked(self, revoked: Any) -> None:
        pass

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self.assigned += 1


@suite.case()
async def group_resumes_from_its_commit(run: Run) -> None:
    topic, group = await make_topic(run), run.group()
    await fill(run, topic, 10)
    tp = TopicPartition(topic, 0)
    async with consumer(run, topic, group_id=group) as c:
        records = await take(c, 10)
        await c.commit({tp: records[3].offset + 1})
    async with consumer(run, topic, group_id=group) as c:
        same([r.offset for r in await take(c, 6)], list(range(4, 10)))
        await c.commit({tp: OffsetAndMetadata(2, "why")})
        same(await c.committed(tp), 2)
    async with admin(run) as a:
        same(await a.list_consumer_group_offsets(group), {tp: OffsetAndMetadata(2, "why")})


@suite.case()
async def group_auto_commit_on_close(run: Run) -> None:
    topic, group = await make_topic(run), run.group()
    await fill(run, topic, 5)
    async with consumer(run, topic, group_id=group, enable_auto_commit=True) as c:
        await take(c, 5)
    async with consumer(run, group_id=group) as c:
        same(await c.committed(TopicPartition(topic, 0)), 5)


@suite.case()
async def seek_pause_and_resume(run: Run) -> None:
    topic = await make_topic(run, partitions=2)
    await fill(run, topic, 5, partition=0)
    await fill(run, topic, 5, partition=1)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with consumer(run, topic, group_id=run.group()) as c:
        await take(c, 10)
        c.pause(first)
        c.seek(first, 0)
        c.seek(second, 2)
        same({(r.partition, r.offset) for r in await take(c, 3)}, {(1, 2), (1, 3), (1, 4)})
        c.resume(first)
        same([(r.partition, r.offset) for r in await take(c, 5)], [(0, i) for i in range(5)])


@suite.case()
async def pattern_subscription_finds_topics_made_later(run: Run) -> None:
    topic = await make_topic(run, "pattern")
    later = topic + "-later"
    run.topics.append(later)
    await fill(run, topic, 2)
    async with consumer(run, group_id=run.group(), metadata_max_age_ms=500, **QUICK) as c, admin(run) as a:
        c.subscribe(pattern=f"^{topic}.*")
        await take(c, 2)
        await c.commit()
        await create(a, later)
        await visible(a, later)
        await fill(run, later, 2)
        same({r.topic for r in await take(c, 2)}, {later})


@suite.case(limit=60, assignor=("range", "roundrobin", "sticky"), fast=lambda assignor: assignor != "roundrobin")
async def group_rebalances_one_two_three_and_back(run: Run, assignor: str) -> None:
    topic, group = await make_topic(run, partitions=6), run.group()
    kinds = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "sticky": StickyPartitionAssignor,
    }
    config = QUICK | {"partition_assignment_strategy": [kinds[assignor]], "group_id": group}
    sent = 0
    seen: set[bytes] = set()
    members: list[tuple[AIOKafkaConsumer, asyncio.Task[None]]] = []

    async def read(client: AIOKafkaConsumer) -> None:
        async for record in client:
            seen.add(record.value)

    async def more() -> None:
        nonlocal sent
        async with producer(run) as p:
            await asyncio.gather(*[await p.send(topic, b"%d" % i, partition=i % 6) for i in range(sent, sent + 12)])
        sent += 12

    async def settled() -> bool:
        return check_split([owns(client) for client, _ in members], 6)

    async with contextlib.AsyncExitStack() as stack:
        for _ in range(3):
            client = await stack.enter_async_context(consumer(run, topic, **config))
            members.append((client, asyncio.create_task(read(client))))
            await eventually(settled, 20)
            await more()
        for _ in range(2):
            client, task = members.pop()
            task.cancel()
            await client.stop()
            await more()
            await eventually(settled, 20)

        async def all_seen() -> bool:
            return len(seen) == sent

        await eventually(all_seen, 15)
        for _, task in members:
            task.cancel()


@suite.case(limit=40)
async def static_member_restarts_without_a_rebalance(run: Run) -> None:
    topic, group = await make_topic(run, partitions=4), run.group()
    config = QUICK | {"group_id": group, "session_timeout_ms": 20_000}
    listener = Listener()
    async with consumer(run, group_instance_id="two", **config) as second:
        second.subscribe([topic], listener=listener)
        first = AIOKafkaConsumer(topic, group_instance_id="one", **run.aiokafka, **config)
        await first.start()

        async def settled() -> bool:
            return check_split([owns(first), owns(second)], 4)

        await eventually(settled, 20)
        await asyncio.sleep(2.0)  # a rebalance that is still to come is not the restart's
        had, kept, rounds = owns(first), owns(second), listener.assigned
        # aiokafka leaves the group on close even as a static member: end it as a crash would.
        first._coordinator._maybe_leave_group = _nothing
        await first.stop()
        async with consumer(run, topic, group_instance_id="one", **config) as again:

            async def back() -> bool:
                return owns(again) == had

            await eventually(back, 15)
            await asyncio.sleep(0.5)
            same((owns(second), listener.assigned), (kept, rounds), "the other member's (partitions, rebalances)")


async def _nothing(*_: Any) -> None:
    pass


@suite.case(limit=45)
async def many_producers_and_a_group_of_consumers_lose_nothing(run: Run) -> None:
    topic, group = await make_topic(run, partitions=4), run.group()
    got: list[list[bytes]] = [[], [], []]

    async def read(number: int) -> None:
        async with consumer(run, topic, group_id=group, **QUICK) as c:
            async for record in c:
                got[number].append(record.value)

    async def send(number: int) -> None:
        async with producer(run, linger_ms=2) as p:
            sent = [await p.send(topic, b"%d-%d" % (number, i), b"%d" % number) for i in range(500)]
            await asyncio.gather(*sent)

    readers = [asyncio.create_task(read(n)) for n in range(3)]
    await asyncio.gather(*[send(n) for n in range(4)])
    wanted = {b"%d-%d" % (n, i) for n in range(4) for i in range(500)}

    async def complete() -> bool:
        return {v for part in got for v in part} == wanted

    await eventually(complete, 25)
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    for number in range(4):
        for part in got:
            mine = [int(v.split(b"-")[1]) for v in part if v.startswith(b"%d-" % number)]
            firsts = list(dict.fromkeys(mine))
            same(firsts, sorted(firsts), f"order of producer {number}")


if __name__ == "__main__":
    import aiokafka_admin  # noqa: F401 - declares its cases

    suite.main()
