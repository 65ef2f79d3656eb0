"""confluent-kafka: librdkafka, the client under most languages (Produce 10, Fetch 16, Metadata 13).

The admin client's cases are in confluent_admin.py, those of transactions in confluent_transactions.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

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
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kit import Member, Sender, admin, consumer, fill, make_topic, refused, suite, take
from suite import Run, eventually, same

from conformance.security import MECHANISMS


@suite.case(secure=True, mechanism=MECHANISMS)
def logs_in_by(run: Run, mechanism: str) -> None:
    topic, inside = make_topic(run), run.by(mechanism)
    fill(inside, topic, 3)
    with consumer(inside, topic) as c:
        same([r.value() for r in take(c, 3)], [b"v0", b"v1", b"v2"])


@suite.case(codec=CODECS, acks=(0, 1, "all"), fast=lambda codec, acks: acks == "all" or codec == "gzip")
def produce_consume_and_stored_codec(run: Run, codec: str, acks: object) -> None:
    topic = make_topic(run)
    wanted = values(50)
    sender = Sender(run, compression_type=codec, acks=acks, linger_ms=20)
    for value in wanted:
        sender.send(topic, value)
    sender.flush()
    wait_stored(run, topic, 50)
    with consumer(run, topic) as c:
        records = take(c, 50)
    same([r.value() for r in records], wanted)
    same([r.offset() for r in records], list(range(50)))
    check_codec(run, topic, codec)


@suite.case()
def records_keep_null_and_empty_and_binary_keys_values_headers(run: Run) -> None:
    topic = make_topic(run)
    sender = Sender(run)
    for key, value, headers in ODD_RECORDS:
        sender.send(topic, value, key, headers=headers)
    sender.flush()
    with consumer(run, topic) as c:
        got = [(r.key(), r.value(), list(r.headers() or [])) for r in take(c, len(ODD_RECORDS))]
    same(got, ODD_RECORDS)


@suite.case()
def timestamps_of_the_producer_are_kept(run: Run) -> None:
    topic = make_topic(run, retention_ms="-1")
    now = int(time.time() * 1000)
    stamps = [now - 60_000, now, now - 3_600_000, 1_500_000_000_000]
    sender = Sender(run, linger_ms=50)
    for stamp in stamps:
        sender.send(topic, b"x", timestamp=stamp)
    sender.flush()
    with consumer(run, topic) as c:
        same([r.timestamp() for r in take(c, 4)], [(TIMESTAMP_CREATE_TIME, t) for t in stamps])


@suite.case()
def log_append_time_replaces_the_producers_time(run: Run) -> None:
    topic = make_topic(run, message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000) - 1000
    sender = Sender(run)
    sender.send(topic, b"x", timestamp=1000)
    answered = sender.flush()[0].timestamp()
    with consumer(run, topic) as c:
        kind, stamp = take(c, 1)[0].timestamp()
    same(kind, TIMESTAMP_LOG_APPEND_TIME, "timestamp type")
    assert before < stamp < before + 20_000, f"timestamp {stamp} is not now"
    same(answered[1], stamp, "timestamp in the Produce answer")
    check_log_append_time(run, topic)


@suite.case()
def message_of_900_kb_round_trips(run: Run) -> None:
    topic = make_topic(run)
    value = bytes(i % 251 for i in range(900_000))
    sender = Sender(run)
    sender.send(topic, value)
    sender.flush()
    with consumer(run, topic) as c:
        assert take(c, 1)[0].value() == value, "the value changed"


@suite.case()
def too_large_a_message_is_message_too_large(run: Run) -> None:
    topic = make_topic(run)
    sender = Sender(run, message_max_bytes=8 << 20)
    sender.send(topic, b"x" * (3 << 20))
    sender.client.flush(15)
    same([e.name() for e in sender.errors], ["MSG_SIZE_TOO_LARGE"])
    sender.errors.clear()
    sender.send(topic, b"small")
    same(sender.flush()[0].offset(), 0)


@suite.case()
def idempotent_producer_is_ordered_without_holes(run: Run) -> None:
    topic = make_topic(run)
    sender = Sender(run, enable_idempotence=True, batch_num_messages=10)
    for value in values(1000):
        sender.send(topic, value)
    same([m.offset() for m in sender.flush()], list(range(1000)))
    check_idempotent(run, topic, 1000)


@suite.case()
def transaction_commits_and_aborts(run: Run) -> None:
    topic = make_topic(run)
    sender = Sender(run, transactional_id=run.group("tx"))
    sender.client.init_transactions(8)
    for word, end in ((b"kept", sender.client.commit_transaction), (b"dropped", sender.client.abort_transaction)):
        sender.client.begin_transaction()
        sender.send(topic, word)
        sender.client.flush(5)
        end(8)
    with consumer(run, topic, isolation_level="read_committed") as c:
        same([r.value() for r in take(c, 1)], [b"kept"])


@suite.case()
def read_committed_reads_records_without_transactions(run: Run) -> None:
    topic = make_topic(run)
    fill(run, topic, 10, enable_idempotence=True)
    with consumer(run, topic, isolation_level="read_committed") as c:
        same([r.offset() for r in take(c, 10)], list(range(10)))


@suite.case()
def consume_from_beginning_end_and_offset(run: Run) -> None:
    topic = make_topic(run)
    fill(run, topic, 10)
    with consumer(run) as c:
        c.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        same([r.offset() for r in take(c, 10)], list(range(10)))
        c.seek(TopicPartition(topic, 0, 7))
        same([r.offset() for r in take(c, 3)], [7, 8, 9])
        c.assign([TopicPartition(topic, 0, OFFSET_END)])
        same(c.consume(1, 2.0), [])
        fill(run, topic, 1, start=10)
        same([r.value() for r in take(c, 1)], [b"v10"])
        same(c.get_watermark_offsets(TopicPartition(topic, 0), timeout=20), (0, 11))


@suite.case()
def end_of_partition_is_reported(run: Run) -> None:
    topic = make_topic(run)
    fill(run, topic, 3)
    with consumer(run, topic, enable_partition_eof=True) as c:
        take(c, 3)
        message = eventually(lambda: c.poll(0.5))
        same((message.error().name(), message.offset()), ("_PARTITION_EOF", 3))


@suite.case()
def offsets_for_times_finds_the_first_record_at_or_after(run: Run) -> None:
    topic = make_topic(run)
    base = int(time.time() * 1000) - 60_000
    sender = Sender(run)
    for i in range(5):
        sender.send(topic, b"x", timestamp=base + i * 1000)
    sender.flush()
    with consumer(run) as c:

        def at(time_ms: int) -> int:
            return int(c.offsets_for_times([TopicPartition(topic, 0, time_ms)], timeout=20)[0].offset)

        same([at(1), at(base + 1000), at(base + 1001)], [0, 1, 2])
        same(at(base + 4001), OFFSET_END, "a time beyond the end")


@suite.case(policy=("earliest", "latest"))
def offset_out_of_range_is_reset(run: Run, policy: str) -> None:
    topic = make_topic(run)
    fill(run, topic, 5)
    with consumer(run, auto_offset_reset=policy, enable_partition_eof=True) as c:
        c.assign([TopicPartition(topic, 0, 1000)])
        if policy == "earliest":
            same([r.offset() for r in take(c, 5)], list(range(5)))
        else:
            message = eventually(lambda: c.poll(0.5))
            same((message.error() and message.error().name(), message.offset()), ("_PARTITION_EOF", 5))
            fill(run, topic, 1, start=5)
            same([r.offset() for r in take(c, 1)], [5])


@suite.case()
def offset_out_of_range_without_reset_is_an_error(run: Run) -> None:
    topic = make_topic(run)
    fill(run, topic, 5)
    with consumer(run, auto_offset_reset="error") as c:
        c.assign([TopicPartition(topic, 0, 1000)])
        message = eventually(lambda: c.poll(0.5))
        same(message.error() and message.error().name(), "_AUTO_OFFSET_RESET")


@suite.case(alone=True)
def a_waiting_consumer_is_woken_at_once(run: Run) -> None:
    topic = make_topic(run)
    sender = Sender(run, linger_ms=0)
    with consumer(run, fetch_wait_max_ms=5000) as c:
        sender.send(topic, b"first")
        sender.flush()
        c.assign([TopicPartition(topic, 0, 0)])
        take(c, 1)
        took = []
        for _ in range(3):
            seen: list[float] = []

            def wait(seen: list[float] = seen) -> None:
                take(c, 1)
                seen.append(time.monotonic())

            thread = threading.Thread(target=wait)
            thread.start()
            time.sleep(0.5)
            sender.send(topic, b"next")
            sender.flush()
            acknowledged = time.monotonic()
            thread.join()
            assert seen, "not seen"
            took.append(seen[0] - acknowledged)
        assert min(took) < 0.5, f"seen {took} s after the acknowledgements; a busy machine may delay one of them"


@suite.case()
def backlog_of_5_mb_through_small_fetches(run: Run) -> None:
    topic = make_topic(run, partitions=2)
    sender = Sender(run, linger_ms=5, batch_size=64 << 10)
    for i in range(5000):
        sender.send(topic, b"%06d" % i + b"x" * 1018, partition=i % 2)
    sender.flush()
    with consumer(run, topic, max_partition_fetch_bytes=100_000, fetch_max_bytes=1_000_000) as c:
        records = take(c, 5000, 25)
    for partition in (0, 1):
        mine = [int(r.value()[:6]) for r in records if r.partition() == partition]
        same(mine, list(range(partition, 5000, 2)))


@suite.case()
def produce_creates_a_missing_topic(run: Run) -> None:
    topic = run.name("auto")
    sender = Sender(run)
    sender.send(topic, b"x")
    same(sender.flush()[0].offset(), 0)
    with consumer(run, topic) as c:
        same([r.value() for r in take(c, 1)], [b"x"])


@suite.case()
def asking_for_a_missing_topic_need_not_create_it(run: Run) -> None:
    topic = run.name("absent")
    with consumer(run, topic, allow_auto_create_topics=False) as c:
        message = eventually(lambda: c.poll(0.5))
        same(message.error() and message.error().name(), "UNKNOWN_TOPIC_OR_PART")
    assert topic not in admin(run).list_topics(timeout=20).topics, "the topic was created"


@suite.case(limit=40)
def deleted_and_recreated_topic_is_a_new_log(run: Run) -> None:
    from confluent_kafka import TopicCollection
    from confluent_kafka.admin import NewTopic

    topic = make_topic(run)
    fill(run, topic, 10)
    a = admin(run)

    def topic_id() -> str:
        return str(a.describe_topics(TopicCollection([topic]))[topic].result(10).topic_id)

    with consumer(run, topic, topic_metadata_refresh_interval_ms=500, allow_auto_create_topics=False) as old:
        take(old, 10)
        first = topic_id()
        a.delete_topics([topic])[topic].result(10)
        eventually(lambda: a.create_topics([NewTopic(topic, 1, 1)])[topic].result(10) is None)
        assert eventually(topic_id) != first, "the topic id stayed"
        fill(run, topic, 3, start=100)
        with consumer(run, topic) as new:
            same([(r.offset(), r.value()) for r in take(new, 3)], [(i, b"v%d" % (100 + i)) for i in range(3)])
        # Whether the old one truncates to the new end or resets: it goes on with the new log, in its offsets.
        seen: list[tuple[int, bytes]] = []
        for i in range(3, 40):
            fill(run, topic, 1, start=100 + i)
            seen += [(m.offset(), m.value()) for m in old.consume(10, 0.3) if not m.error()]
            if seen:
                break
        assert seen, "the old consumer sees nothing of the new log"
        same(seen, [(offset, b"v%d" % (100 + offset)) for offset, _ in seen])


# Groups


@suite.case()
def group_resumes_from_its_commit(run: Run) -> None:
    topic, group = make_topic(run), run.group()
    fill(run, topic, 10)
    tp = TopicPartition(topic, 0)
    with consumer(run, topic, group_id=group) as c:
        c.commit(take(c, 4)[-1], asynchronous=False)
    with consumer(run, topic, group_id=group) as c:
        same([r.offset() for r in take(c, 6)], list(range(4, 10)))
        c.commit(offsets=[TopicPartition(topic, 0, 2, metadata="why")], asynchronous=False)
        committed = c.committed([tp], timeout=20)[0]
        same((committed.offset, committed.metadata), (2, "why"))


@suite.case()
def commits_are_checked(run: Run) -> None:
    topic = make_topic(run)
    with consumer(run) as c:

        def commit(where: str, partition: int, metadata: str = "") -> str | None:
            wanted = [TopicPartition(where, partition, 1, metadata=metadata)]
            try:
                error = c.commit(offsets=wanted, asynchronous=False)[0].error
            except KafkaException as failure:
                error = failure.args[0]
            return error and str(error.name())

        same(commit(topic, 0, "x" * 4000), None, "metadata of 4000 bytes")
        same(commit(topic, 0, "x" * 5000), "OFFSET_METADATA_TOO_LARGE")
        same(commit(topic, 1), "UNKNOWN_TOPIC_OR_PART", "a partition that is not there")
        same(commit(run.name("absent"), 0), "UNKNOWN_TOPIC_OR_PART", "a topic that is not there")


@suite.case()
def session_timeout_out_of_bounds_is_refused(run: Run) -> None:
    topic = make_topic(run)
    with consumer(run, topic, session_timeout_ms=1000, heartbeat_interval_ms=200) as c:
        message = eventually(lambda: c.poll(0.5))
        same(message.error() and message.error().name(), "INVALID_SESSION_TIMEOUT")


@suite.case()
def group_auto_commit_on_close(run: Run) -> None:
    topic, group = make_topic(run), run.group()
    fill(run, topic, 5)
    with consumer(run, topic, group_id=group, enable_auto_commit=True) as c:
        take(c, 5)
    with consumer(run, group_id=group) as c:
        same(c.committed([TopicPartition(topic, 0)], timeout=20)[0].offset, 5)


@suite.case()
def seek_pause_and_resume(run: Run) -> None:
    topic = make_topic(run, partitions=2)
    fill(run, topic, 5, partition=0)
    fill(run, topic, 5, partition=1)
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with consumer(run, topic) as c:
        take(c, 10)
        c.pause([first])
        c.seek(TopicPartition(topic, 0, 0))
        c.seek(TopicPartition(topic, 1, 2))
        same({(r.partition(), r.offset()) for r in take(c, 3)}, {(1, 2), (1, 3), (1, 4)})
        c.resume([first, second])
        same([(r.partition(), r.offset()) for r in take(c, 5)], [(0, i) for i in range(5)])


@suite.case()
def pattern_subscription_finds_topics_made_later(run: Run) -> None:
    topic = make_topic(run, "pattern")
    fill(run, topic, 2)
    with consumer(run, topic_metadata_refresh_interval_ms=500, heartbeat_interval_ms=200) as c:
        c.subscribe([f"^{topic}.*"])
        take(c, 2)
        c.commit(asynchronous=False)
        run.topics.append(later := topic + "-later")
        from confluent_kafka.admin import NewTopic

        admin(run).create_topics([NewTopic(later, 1, 1)])[later].result(10)
        fill(run, later, 2)
        same({r.topic() for r in take(c, 2)}, {later})


@suite.case(
    limit=60, assignor=("range", "roundrobin", "cooperative-sticky"), fast=lambda assignor: assignor != "roundrobin"
)
def group_rebalances_one_two_three_and_back(run: Run, assignor: str) -> None:
    topic, group = make_topic(run, partitions=6), run.group()
    members: list[Member] = []
    sent = 0

    def settled() -> bool:
        for member in members:
            member.check()
        return check_split([m.partitions for m in members], 6)

    def more() -> None:
        nonlocal sent
        sender = Sender(run)
        for i in range(sent, sent + 12):
            sender.send(topic, b"%d" % i, partition=i % 6)
        sender.flush()
        sent += 12

    for _ in range(3):
        members.append(Member(run, group, topic, partition_assignment_strategy=assignor))
        eventually(settled, 20)
        more()
    if assignor == "cooperative-sticky":
        lost = members[0].revoked
        assert len(lost) <= 4, f"the first member lost {lost}: more than it had to give"
    gone = [members.pop(), members.pop()]
    for member in gone:
        member.leave()
        more()
    eventually(settled, 20)
    eventually(lambda: len({v for m in [*members, *gone] for v in m.values}) == sent, 15)
    members[0].leave()


@suite.case(limit=40)
def static_member_restarts_without_a_rebalance(run: Run) -> None:
    topic, group = make_topic(run, partitions=4), run.group()
    first = Member(run, group, topic, group_instance_id="one")
    second = Member(run, group, topic, group_instance_id="two")
    eventually(lambda: check_split([first.partitions, second.partitions], 4), 20)
    time.sleep(2.0)  # a rebalance that is still to come is not the restart's
    had, kept, rounds = first.partitions, second.partitions, second.rounds
    first.leave()
    again = Member(run, group, topic, group_instance_id="one")
    eventually(lambda: again.partitions == had, 15)
    time.sleep(0.5)
    same((second.partitions, second.rounds), (kept, rounds), "the other member's (partitions, rebalances)")
    again.leave()
    second.leave()


@suite.case()
def second_member_of_one_instance_id_fences_the_first(run: Run) -> None:
    topic, group = make_topic(run), run.group()
    first = Member(run, group, topic, group_instance_id="same")
    eventually(lambda: first.partitions == {0}, 15)
    second = Member(run, group, topic, group_instance_id="same")
    eventually(lambda: first.error is not None, 15)
    assert isinstance(first.error, KafkaException), first.error
    same(first.error.args[0].code(), KafkaError._FATAL)
    eventually(lambda: second.partitions == {0}, 15)
    second.leave()


KILLED = """
import json, sys
from confluent_kafka import Consumer
c = Consumer({**json.loads(sys.argv[1]), "group.id": sys.argv[2], "session.timeout.ms": 6000,
              "heartbeat.interval.ms": 500, "auto.offset.reset": "earliest"})
c.subscribe([sys.argv[3]])
while True:
    c.poll(0.1)
    if c.assignment():
        print("assigned", flush=True)
"""


@suite.case(slow=True, limit=45)
def partitions_of_a_killed_member_move_after_its_session(run: Run) -> None:
    topic, group = make_topic(run, partitions=2), run.group()
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, json.dumps(run.librdkafka), group, topic],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        same(process.stdout.readline(), b"assigned\n")
        member = Member(run, group, topic)
        eventually(lambda: member.partitions, 15)
        same(len(member.partitions), 1)
        os.kill(process.pid, signal.SIGKILL)
        killed = time.monotonic()
    eventually(lambda: member.partitions == {0, 1}, 20)
    assert time.monotonic() - killed > 3, "moved long before the session could have timed out"
    member.leave()


@suite.case(limit=45)
def many_producers_and_a_group_of_consumers_lose_nothing(run: Run) -> None:
    topic, group = make_topic(run, partitions=4), run.group()
    members = [Member(run, group, topic) for _ in range(3)]

    def send(number: int) -> None:
        sender = Sender(run)
        for i in range(1000):
            sender.send(topic, b"%d-%d" % (number, i), b"%d" % number)
        sender.flush()

    threads = [threading.Thread(target=send, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = {b"%d-%d" % (n, i) for n in range(4) for i in range(1000)}
    eventually(lambda: {v for m in members for v in m.values} == wanted, 20)
    for member in members:
        member.leave()
    for number in range(4):
        for member in members:
            mine = [int(v.split(b"-")[1]) for v in member.values if v.startswith(b"%d-" % number)]
            firsts = list(dict.fromkeys(mine))
            same(firsts, sorted(firsts), f"order of producer {number}")


@suite.case()
def group_protocol_consumer_of_kip_848(run: Run) -> None:
    topic, group = make_topic(run, partitions=2), run.group()
    fill(run, topic, 5)
    with consumer(run, topic, group_id=group, group_protocol="consumer") as c:
        take(c, 5)
        c.commit(asynchronous=False)
        same(c.committed([TopicPartition(topic, 0)], timeout=20)[0].offset, 5)


@suite.case()
def offset_beyond_the_partitions_of_a_topic_is_an_error(run: Run) -> None:
    topic = make_topic(run)
    sender = Sender(run)

    def send() -> None:
        sender.send(topic, b"x", partition=5)
        sender.client.flush(10)
        if sender.errors:
            raise KafkaException(sender.errors[0])

    refused(KafkaError._UNKNOWN_PARTITION, send)


if __name__ == "__main__":
    import confluent_admin  # noqa: F401 - declares its cases
    import confluent_transactions  # noqa: F401 - declares its cases

    suite.main()
