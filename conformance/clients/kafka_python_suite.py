"""kafka-python: producer, consumer and groups. The admin client's cases are in kafka_python_admin.py."""

from __future__ import annotations

import threading
import time
from typing import Any

from checks import (
    CODECS,
    ODD_RECORDS,
    check_codec,
    check_idempotent,
    check_log_append_time,
    check_split,
    values,
    wait_stored,
)
from kafka import TopicPartition
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import MessageSizeTooLargeError, OffsetOutOfRangeError, ProducerFencedError
from kafka.structs import OffsetAndMetadata
from kafka_python_kit import RACE, Member, admin, consumer, fill, make_topic, producer, suite, take
from suite import Run, eventually, same

from conformance.security import MECHANISMS


@suite.case(secure=True, mechanism=MECHANISMS)
def logs_in_by(run: Run, mechanism: str) -> None:
    topic, inside = make_topic(run), run.by(mechanism)
    fill(inside, topic, 3)
    with consumer(inside, topic) as c:
        same([r.value for r in take(c, 3)], [b"v0", b"v1", b"v2"])


@suite.case(codec=CODECS, acks=(0, 1, "all"), fast=lambda codec, acks: acks == "all" or codec == "gzip")
def produce_consume_and_stored_codec(run: Run, codec: str, acks: Any) -> None:
    topic = make_topic(run)
    wanted = values(50)
    config = {"compression_type": None if codec == "none" else codec, "acks": acks, "linger_ms": 20}
    with producer(run, enable_idempotence=False, **config) as p:
        futures = [p.send(topic, v) for v in wanted]
        p.flush(timeout=10)
        for future in futures:
            future.get(timeout=10)
    wait_stored(run, topic, 50)
    with consumer(run, topic) as c:
        records = take(c, 50)
    same([r.value for r in records], wanted)
    same([r.offset for r in records], list(range(50)))
    check_codec(run, topic, codec)


@suite.case()
def records_keep_null_and_empty_and_binary_keys_values_headers(run: Run) -> None:
    topic = make_topic(run)
    # kafka-python itself refuses a record with neither key nor value, and a null as header value.
    wanted = [
        (key, value, [(k, v) for k, v in headers if v is not None])
        for key, value, headers in ODD_RECORDS
        if (key, value) != (None, None)
    ]
    with producer(run) as p:
        for key, value, headers in wanted:
            p.send(topic, value, key, headers=headers).get(timeout=10)
    with consumer(run, topic) as c:
        got = [(r.key, r.value, list(r.headers)) for r in take(c, len(wanted))]
    same(got, wanted)


@suite.case()
def timestamps_of_the_producer_are_kept(run: Run) -> None:
    topic = make_topic(run, retention_ms="-1")
    now = int(time.time() * 1000)
    stamps = [now - 60_000, now, now - 3_600_000, 1_500_000_000_000]
    with producer(run, linger_ms=50) as p:
        metadata = [f.get(timeout=10) for f in [p.send(topic, b"x", timestamp_ms=t) for t in stamps]]
    same([m.timestamp for m in metadata], stamps)
    with consumer(run, topic) as c:
        same([(r.timestamp, r.timestamp_type) for r in take(c, 4)], [(t, 0) for t in stamps])


@suite.case()
def log_append_time_replaces_the_producers_time(run: Run) -> None:
    topic = make_topic(run, message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000) - 1000
    with producer(run) as p:
        answered = p.send(topic, b"x", timestamp_ms=1000).get(timeout=10).timestamp
    with consumer(run, topic) as c:
        record = take(c, 1)[0]
    same(record.timestamp_type, 1, "timestamp type")
    assert before < record.timestamp < before + 20_000, f"timestamp {record.timestamp} is not now ({before})"
    same(answered, record.timestamp, "timestamp in the Produce answer")
    check_log_append_time(run, topic)


@suite.case()
def message_of_900_kb_round_trips(run: Run) -> None:
    topic = make_topic(run)
    value = bytes(i % 251 for i in range(900_000))
    with producer(run) as p:
        p.send(topic, value).get(timeout=10)
    with consumer(run, topic) as c:
        assert take(c, 1)[0].value == value, "the value changed"


@suite.case()
def too_large_a_message_is_message_too_large(run: Run) -> None:
    topic = make_topic(run)
    with producer(run, max_request_size=8 << 20, enable_idempotence=False) as p:
        try:
            p.send(topic, b"x" * (3 << 20)).get(timeout=10)
            raise AssertionError("3 MiB were accepted")
        except MessageSizeTooLargeError:
            pass
        same(p.send(topic, b"small").get(timeout=10).offset, 0, "offset of the next record")


@suite.case()
def idempotent_producer_is_ordered_without_holes(run: Run) -> None:
    topic = make_topic(run)
    with producer(run, enable_idempotence=True, batch_size=1000, linger_ms=1) as p:
        futures = [p.send(topic, v) for v in values(1000)]
        offsets = [f.get(timeout=20).offset for f in futures]
    same(offsets, list(range(1000)))
    check_idempotent(run, topic, 1000)


@suite.case()
def transaction_commits_and_aborts(run: Run) -> None:
    topic = make_topic(run)
    with producer(run, transactional_id=run.group("tx"), max_block_ms=5000) as p:
        p.init_transactions()
        for word, end in ((b"kept", p.commit_transaction), (b"dropped", p.abort_transaction)):
            p.begin_transaction()
            p.send(topic, word)
            end()
    with consumer(run, topic, isolation_level="read_committed") as c:
        same([r.value for r in take(c, 1)], [b"kept"])


@suite.case()
def transaction_carries_the_offsets_of_a_group(run: Run) -> None:
    source, target, group = make_topic(run), make_topic(run), run.group()
    fill(run, source, 10)
    tp = TopicPartition(source, 0)
    with producer(run, transactional_id=run.group("tx")) as p, consumer(run, group_id=group) as c:
        p.init_transactions()
        c.assign([tp])
        p.begin_transaction()
        p.send(target, b"dropped")
        p.send_offsets_to_transaction({tp: OffsetAndMetadata(4, "", -1)}, group)
        p.abort_transaction()
        same(c.committed(tp), None, "after the abort")
        p.begin_transaction()
        p.send(target, b"kept")
        p.send_offsets_to_transaction({tp: OffsetAndMetadata(7, "", -1)}, group)
        p.commit_transaction()
        eventually(lambda: c.committed(tp) == 7)  # markers follow the answer to a commit
    with consumer(run, target, isolation_level="read_committed") as c:
        same([r.value for r in take(c, 1)], [b"kept"])


@suite.case()
def transactional_producer_is_fenced_by_the_next_instance(run: Run) -> None:
    topic, transactional_id = make_topic(run), run.group("tx")
    with producer(run, transactional_id=transactional_id) as old, producer(run, transactional_id=transactional_id) as p:
        old.init_transactions()
        old.begin_transaction()
        old.send(topic, b"lost").get(10)
        p.init_transactions()
        try:
            old.commit_transaction()
            raise AssertionError("the old instance commits")
        except ProducerFencedError:
            pass
        p.begin_transaction()
        p.send(topic, b"kept")
        p.commit_transaction()
    with consumer(run, topic, isolation_level="read_committed") as c:
        same([r.value for r in take(c, 1)], [b"kept"])


@suite.case()
def consume_from_beginning_end_and_offset(run: Run) -> None:
    topic = make_topic(run)
    fill(run, topic, 10)
    tp = TopicPartition(topic, 0)
    with consumer(run) as c:
        c.assign([tp])
        c.seek_to_beginning(tp)
        same([r.offset for r in take(c, 10)], list(range(10)))
        c.seek(tp, 7)
        same([r.offset for r in take(c, 3)], [7, 8, 9])
        c.seek_to_end(tp)
        same(c.position(tp), 10)
        fill(run, topic, 1, start=10)
        same([r.value for r in take(c, 1)], [b"v10"])
        same((c.beginning_offsets([tp])[tp], c.end_offsets([tp])[tp]), (0, 11))


@suite.case()
def offsets_for_times_finds_the_first_record_at_or_after(run: Run) -> None:
    topic = make_topic(run)
    base = int(time.time() * 1000) - 60_000
    with producer(run) as p:
        for i in range(5):
            p.send(topic, b"x", timestamp_ms=base + i * 1000).get(timeout=10)
    tp = TopicPartition(topic, 0)
    with consumer(run) as c:

        def at(time_ms: int) -> tuple[int, int] | None:
            position = c.offsets_for_times({tp: time_ms})[tp]
            return position and (position.offset, position.timestamp)

        same(at(0), (0, base))
        same(at(base + 1000), (1, base + 1000))
        same(at(base + 1001), (2, base + 2000))
        same(at(base + 4001), None, "a time beyond the end")
        c.assign([tp])
        c.seek(tp, c.offsets_for_times({tp: base + 2500})[tp].offset)
        same([r.offset for r in take(c, 2)], [3, 4])


@suite.case(policy=("earliest", "latest"))
def offset_out_of_range_is_reset(run: Run, policy: str) -> None:
    topic = make_topic(run)
    fill(run, topic, 5)
    tp = TopicPartition(topic, 0)
    with consumer(run, auto_offset_reset=policy) as c:
        c.assign([tp])
        c.seek(tp, 1000)
        if policy == "earliest":
            same([r.offset for r in take(c, 5)], list(range(5)))
        else:
            end = time.monotonic() + 10
            while c.position(tp) != 5 and time.monotonic() < end:
                c.poll(timeout_ms=100)
            fill(run, topic, 1, start=5)
            same([r.offset for r in take(c, 1)], [5])


@suite.case()
def offset_out_of_range_without_reset_is_an_error(run: Run) -> None:
    topic = make_topic(run)
    fill(run, topic, 5)
    tp = TopicPartition(topic, 0)
    with consumer(run, auto_offset_reset="none") as c:
        c.assign([tp])
        c.seek(tp, 1000)
        end = time.monotonic() + 10
        try:
            while time.monotonic() < end:
                c.poll(timeout_ms=200)
        except OffsetOutOfRangeError:
            return
    raise AssertionError("no error in 10 s")


@suite.case(alone=True)
def a_waiting_consumer_is_woken_at_once(run: Run) -> None:
    topic = make_topic(run)
    tp = TopicPartition(topic, 0)
    with consumer(run, fetch_max_wait_ms=5000) as c, producer(run) as p:
        p.send(topic, b"first").get(timeout=10)
        c.assign([tp])
        take(c, 1)
        took = []
        for _ in range(2):
            seen: list[float] = []

            def wait(seen: list[float] = seen) -> None:
                take(c, 1)
                seen.append(time.monotonic())

            thread = threading.Thread(target=wait)
            thread.start()
            time.sleep(0.6)
            p.send(topic, b"next").get(timeout=10)
            acknowledged = time.monotonic()
            thread.join()
            assert seen, "not seen"
            took.append(seen[0] - acknowledged)
        assert min(took) < 0.5, f"seen {took} s after the acknowledgements; a busy machine may delay one of them"


@suite.case()
def backlog_of_5_mb_through_small_fetches(run: Run) -> None:
    topic = make_topic(run, partitions=2)
    with producer(run, linger_ms=5, batch_size=64 << 10) as p:
        futures = [p.send(topic, b"%06d" % i + b"x" * 1018, partition=i % 2) for i in range(5000)]
        for future in futures:
            future.get(timeout=20)
    with consumer(run, topic, max_partition_fetch_bytes=100_000, fetch_max_bytes=150_000) as c:
        records = take(c, 5000, 25)
    for partition in (0, 1):
        same([int(r.value[:6]) for r in records if r.partition == partition], list(range(partition, 5000, 2)))


@suite.case()
def produce_creates_a_missing_topic(run: Run) -> None:
    topic = run.name("auto")
    with producer(run) as p:
        same(p.send(topic, b"x").get(timeout=15).offset, 0)
    with consumer(run, topic) as c:
        same([r.value for r in take(c, 1)], [b"x"])


@suite.case()
def asking_for_a_missing_topic_need_not_create_it(run: Run) -> None:
    topic = run.name("absent")
    with consumer(run, allow_auto_create_topics=False) as c:
        c.subscribe([topic])
        c.poll(timeout_ms=500)
        same(c.partitions_for_topic(topic) or None, None)
    with admin(run) as a:
        assert topic not in a.list_topics(), "the topic was created"


@suite.case(limit=40)
def deleted_and_recreated_topic_is_a_new_log(run: Run) -> None:
    topic = make_topic(run)
    fill(run, topic, 10)
    with consumer(run, topic, metadata_max_age_ms=500) as old, admin(run) as a:
        take(old, 10)
        first_id = a.describe_topics([topic])[0]["topic_id"]
        a.delete_topics([topic])
        # The old consumer's own metadata requests may make it first.
        a.create_topics({topic: {"num_partitions": 1, "replication_factor": 1}}, raise_errors=False)
        eventually(lambda: a.describe_topics([topic])[0]["error_code"] == 0)
        assert a.describe_topics([topic])[0]["topic_id"] != first_id, "the topic id stayed"
        fill(run, topic, 3, start=100)
        with consumer(run, topic) as new:
            same([(r.offset, r.value) for r in take(new, 3)], [(i, f"v{100 + i}".encode()) for i in range(3)])
        # Whether the old one truncates to the new end or resets: it goes on with the new log, in its offsets.
        seen: list[tuple[int, bytes]] = []
        for i in range(3, 40):
            fill(run, topic, 1, start=100 + i)
            for batch in old.poll(timeout_ms=300).values():
                seen += [(r.offset, r.value) for r in batch if r.partition == 0]
            if seen:
                break
        assert seen, "the old consumer sees nothing of the new log"
        same(seen, [(offset, f"v{100 + offset}".encode()) for offset, _ in seen])


# Groups


@suite.case(attempts=RACE)
def group_resumes_from_its_commit(run: Run) -> None:
    topic, group = make_topic(run), run.group()
    fill(run, topic, 10)
    tp = TopicPartition(topic, 0)
    with consumer(run, topic, group_id=group, max_poll_records=4) as c:
        take(c, 4)
        c.commit()
    with consumer(run, topic, group_id=group) as c:
        same([r.offset for r in take(c, 6)], list(range(4, 10)))
        same(c.committed(tp), 4)
        c.commit({tp: OffsetAndMetadata(2, "why", -1)})
        same(c.committed(tp, metadata=True)[:2], (2, "why"))
        same(c.committed(TopicPartition(topic, 7)), None, "commit of a partition that is not there")


@suite.case(attempts=RACE)
def group_auto_commit_on_close(run: Run) -> None:
    topic, group = make_topic(run), run.group()
    fill(run, topic, 5)
    with consumer(run, topic, group_id=group, enable_auto_commit=True) as c:
        take(c, 5)
    with consumer(run, group_id=group) as c:
        same(c.committed(TopicPartition(topic, 0)), 5)


@suite.case(attempts=RACE)
def seek_pause_and_resume(run: Run) -> None:
    topic = make_topic(run, partitions=2)
    fill(run, topic, 5, partition=0)
    fill(run, topic, 5, partition=1)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with consumer(run, topic, group_id=run.group()) as c:
        take(c, 10)
        c.pause(first)
        c.seek(first, 0)
        c.seek(second, 2)
        same({(r.partition, r.offset) for r in take(c, 3)}, {(1, 2), (1, 3), (1, 4)})
        c.resume(first)
        same([(r.partition, r.offset) for r in take(c, 5)], [(0, i) for i in range(5)])


@suite.case(attempts=RACE)
def pattern_subscription_finds_topics_made_later(run: Run) -> None:
    topic = make_topic(run, "pattern")
    later = topic + "-later"
    run.topics.append(later)
    fill(run, topic, 2)
    with consumer(run, group_id=run.group(), metadata_max_age_ms=500, heartbeat_interval_ms=200) as c, admin(run) as a:
        c.subscribe(pattern=f"^{topic}.*")
        take(c, 2)
        a.create_topics({later: {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
        fill(run, later, 2)
        same({r.topic for r in take(c, 2)}, {later})


@suite.case(limit=60, assignor=("range", "cooperative_sticky"), attempts=RACE)
def group_rebalances_one_two_three_and_back(run: Run, assignor: str) -> None:
    topic, group = make_topic(run, partitions=6), run.group()
    strategy = [CooperativeStickyAssignor if assignor == "cooperative_sticky" else RangePartitionAssignor]
    members: list[Member] = []

    def settled() -> bool:
        return check_split([m.partitions for m in members], 6)

    sent = 0

    def more() -> None:
        nonlocal sent
        with producer(run) as p:
            for f in [p.send(topic, b"%d" % i, partition=i % 6) for i in range(sent, sent + 12)]:
                f.get(timeout=10)
        sent += 12

    for _ in range(3):
        members.append(Member(run, group, topic, partition_assignment_strategy=strategy))
        eventually(settled, 20)
        more()
    first = members[0]
    if assignor == "cooperative_sticky":
        assert len(first.revoked) <= 4, f"the first member lost {first.revoked}: more than it had to give"
    gone = [members.pop(), members.pop()]
    for member in gone:
        member.leave()
        more()
    eventually(settled, 20)
    more()
    eventually(lambda: len({v for m in [*members, *gone] for v in m.values}) == sent, 15)
    members[0].leave()
    for member in [*members, *gone]:
        if member.error:
            raise member.error


@suite.case(limit=40, attempts=RACE)
def static_member_restarts_without_a_rebalance(run: Run) -> None:
    topic, group = make_topic(run, partitions=4), run.group()
    first = Member(run, group, topic, group_instance_id="one", session_timeout_ms=20_000)
    second = Member(run, group, topic, group_instance_id="two", session_timeout_ms=20_000)
    eventually(lambda: check_split([first.partitions, second.partitions], 4), 20)
    time.sleep(0.5)  # a rebalance that is still to come is not the restart's
    had, kept, rounds = first.partitions, second.partitions, second.assigned
    first.leave()
    again = Member(run, group, topic, group_instance_id="one", session_timeout_ms=20_000)
    eventually(lambda: again.partitions == had, 15)
    time.sleep(0.5)
    same((second.partitions, second.assigned), (kept, rounds), "the other member's (partitions, rebalances)")
    again.leave()
    second.leave()


@suite.case(limit=45, attempts=RACE)
def many_producers_and_a_group_of_consumers_lose_nothing(run: Run) -> None:
    topic, group = make_topic(run, partitions=4), run.group()
    members = [Member(run, group, topic) for _ in range(2)]

    def send(number: int) -> None:
        with producer(run, linger_ms=2) as p:
            futures = [p.send(topic, b"%d-%d" % (number, i), b"%d" % number) for i in range(300)]
            for future in futures:
                future.get(timeout=20)

    threads = [threading.Thread(target=send, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = {b"%d-%d" % (n, i) for n in range(4) for i in range(300)}
    eventually(lambda: {v for m in members for v in m.values} == wanted, 20)
    for member in members:
        member.leave()
    for number in range(4):
        prefix = b"%d-" % number
        for member in members:
            mine = [int(v.split(b"-")[1]) for v in member.values if v.startswith(prefix)]
            firsts = list(dict.fromkeys(mine))
            same(firsts, sorted(firsts), f"order of producer {number}")


if __name__ == "__main__":
    import kafka_python_admin  # noqa: F401 - declares its cases

    suite.main()
