"""confluent-kafka's transactions (librdkafka: version 0 of the transactions' requests), beside confluent_suite.py."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kit import Sender, consumer, fill, make_topic, refused, suite, take
from suite import Run, eventually, same


def _sender(run: Run, transactional_id: str = "", **config: object) -> Sender:
    sender = Sender(run, transactional_id=transactional_id or run.group("tx"), **config)
    sender.client.init_transactions(15)
    return sender


def _commit(sender: Sender, topic: str, *values: bytes) -> None:
    sender.client.begin_transaction()
    for value in values:
        sender.send(topic, value)
    sender.client.commit_transaction(15)


def _holds(run: Run, topic: str, *values: bytes) -> None:
    """Up to its end the log holds these, for who reads what is committed. Markers follow the answer to a commit."""

    def read() -> list[bytes]:
        with consumer(run, isolation_level="read_committed", enable_partition_eof=True) as c:
            c.assign([TopicPartition(topic, 0, 0)])
            got: list[bytes] = []
            while message := c.poll(10):
                if (error := message.error()) is not None:
                    same(error.name(), "_PARTITION_EOF", "error")
                    return got
                got.append(message.value())
        raise AssertionError(f"no end of the partition after {got!r}")

    wanted = list(values)
    got = eventually(lambda: (now := read()) == wanted and (now,))
    same(list(got[0]), wanted, "committed records")


@suite.case()
def transaction_flushed_then_aborted_leaves_nothing(run: Run) -> None:
    topic = make_topic(run)
    sender = _sender(run)
    for _ in range(3):
        sender.client.begin_transaction()
        sender.send(topic, b"dropped")
        sender.flush()
        sender.client.abort_transaction(15)
    _commit(sender, topic, b"kept")
    _holds(run, topic, b"kept")
    # Behind each record is a marker with an offset of its own; over Pulsar a transaction has one in front of it, too.
    offsets = [m.offset() for m in sender.delivered]
    steps = {later - earlier for earlier, later in pairwise(offsets)}
    same(steps in ({2}, {3}), True, f"offsets with a marker behind each: {offsets}")


@suite.case()
def transaction_aborted_before_it_is_sent_purges_its_messages(run: Run) -> None:
    topic = make_topic(run)
    sender = _sender(run, linger_ms=20_000)
    sender.client.begin_transaction()
    sender.send(topic, b"never")
    sender.client.abort_transaction(15)
    same([e.name() for e in sender.errors], ["_PURGE_QUEUE"])
    _commit(sender, topic, b"kept")
    _holds(run, topic, b"kept")


@suite.case()
def transactions_without_messages_commit_and_abort(run: Run) -> None:
    topic = make_topic(run)
    sender = _sender(run)
    sender.client.begin_transaction()
    sender.client.commit_transaction(15)
    sender.client.begin_transaction()
    sender.client.abort_transaction(15)
    _commit(sender, topic, b"kept")
    _holds(run, topic, b"kept")


@suite.case()
def transactional_producer_is_fenced_by_the_next_instance(run: Run) -> None:
    topic, transactional_id = make_topic(run), run.group("tx")
    old = _sender(run, transactional_id)
    old.client.begin_transaction()
    old.send(topic, b"lost")
    old.flush()
    young = _sender(run, transactional_id)
    _commit(young, topic, b"kept")
    try:
        old.client.commit_transaction(15)
        raise AssertionError("the old instance commits")
    except KafkaException as error:
        same(error.args[0].fatal(), True, "fatal")
        same(error.args[0].name(), "_FENCED", "error")
    _commit(young, topic, b"kept, too")
    _holds(run, topic, b"kept", b"kept, too")


@suite.case()
def transactional_producer_that_was_fenced_while_idle_cannot_begin(run: Run) -> None:
    topic, transactional_id = make_topic(run), run.group("tx")
    old = _sender(run, transactional_id)
    young = _sender(run, transactional_id)
    old.client.begin_transaction()
    old.send(topic, b"zombie")
    try:
        old.client.commit_transaction(15)
        raise AssertionError("the old instance commits")
    except KafkaException as error:
        same((error.args[0].name(), error.args[0].fatal()), ("_FENCED", True), "error")
    _commit(young, topic, b"kept")
    _holds(run, topic, b"kept")


@suite.case()
def transaction_carries_the_offsets_of_a_group(run: Run) -> None:
    source, target = make_topic(run), make_topic(run)
    group = run.group()
    fill(run, source, 10)
    sender = _sender(run)
    with consumer(run, source, group_id=group) as c:
        take(c, 10)
        place = TopicPartition(source, 0, 4)
        sender.client.begin_transaction()
        sender.send(target, b"dropped")
        sender.client.send_offsets_to_transaction([place], c.consumer_group_metadata(), 15)
        sender.client.abort_transaction(15)
        same([p.offset for p in c.committed([place], timeout=10)], [-1001], "after the abort")
        sender.client.begin_transaction()
        sender.send(target, b"kept")
        sender.client.send_offsets_to_transaction([TopicPartition(source, 0, 7)], c.consumer_group_metadata(), 15)
        sender.client.commit_transaction(15)
        same([p.offset for p in c.committed([place], timeout=10)], [7], "after the commit")
    _holds(run, target, b"kept")


@suite.case()
def transaction_with_offsets_of_a_member_that_left_is_to_be_aborted(run: Run) -> None:
    source = make_topic(run)
    fill(run, source, 1)
    sender = _sender(run)
    with consumer(run, source) as c:
        take(c, 1)
        gone = c.consumer_group_metadata()
    sender.client.begin_transaction()
    try:
        sender.client.send_offsets_to_transaction([TopicPartition(source, 0, 1)], gone, 15)
        raise AssertionError("the offsets are taken")
    except KafkaException as error:
        same(error.args[0].txn_requires_abort(), True, f"{error.args[0]} requires an abort")
    sender.client.abort_transaction(15)
    _commit(sender, source, b"kept")


@suite.case()
def transactional_producer_goes_on_after_a_refused_message(run: Run) -> None:
    """librdkafka 2.12 numbers the next message as if the refused one were there: OUT_OF_ORDER_SEQUENCE_NUMBER.

    After that it asks for the next epoch (InitProducerId with the present one) and goes on.
    """
    topic = make_topic(run, max_message_bytes="2000")
    sender = _sender(run)
    ends: list[str] = []
    for value in (b"x" * 5000, b"first", b"second", b"third"):
        try:
            _commit(sender, topic, value)
            ends.append(value.decode())
        except KafkaException as error:
            same(error.args[0].txn_requires_abort(), True, f"{error.args[0]} requires an abort")
            sender.client.abort_transaction(15)
            ends.append(error.args[0].name())
    same(ends, ["MSG_SIZE_TOO_LARGE", "OUT_OF_ORDER_SEQUENCE_NUMBER", "second", "third"])
    _holds(run, topic, b"second", b"third")


@suite.case()
def transaction_timeout_above_the_brokers_is_refused(run: Run) -> None:
    sender = Sender(run, transactional_id=run.group("tx"), transaction_timeout_ms=900_001)
    refused(KafkaError.INVALID_TRANSACTION_TIMEOUT, lambda: sender.client.init_transactions(15))


@suite.case(slow=True, limit=60)
def transaction_that_times_out_is_aborted_and_its_producer_fenced(run: Run) -> None:
    """Kafka looks for such transactions every 10 s."""
    topic, transactional_id = make_topic(run), run.group("tx")
    sender = _sender(run, transactional_id, transaction_timeout_ms=1500)
    sender.client.begin_transaction()
    sender.send(topic, b"late")
    sender.flush()
    fill(run, topic, 1)
    with consumer(run, topic, isolation_level="read_committed") as c:
        same([m.value() for m in take(c, 1, seconds=30)], [b"v0"])
    try:
        sender.client.commit_transaction(15)
        raise AssertionError("a transaction that timed out is committed")
    except KafkaException as error:
        same(error.args[0].name(), "_FENCED", "error")
    _commit(_sender(run, transactional_id), topic, b"again")
    _holds(run, topic, b"v0", b"again")


@suite.case()
def transactions_of_ten_producers_at_once_over_two_topics(run: Run) -> None:
    topics = make_topic(run), make_topic(run)
    wrong: list[BaseException] = []

    def work(number: int) -> None:
        try:
            sender = _sender(run)
            for turn in range(6):
                sender.client.begin_transaction()
                for topic in topics:
                    sender.send(topic, b"%d %d" % (number, turn))
                if turn % 3:
                    sender.client.commit_transaction(20)
                else:
                    sender.flush()
                    sender.client.abort_transaction(20)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 28
    for thread in threads:
        thread.join(max(0, end - time.monotonic()))
    same(wrong, [], "errors")
    wanted = sorted(b"%d %d" % (number, turn) for number in range(10) for turn in range(6) if turn % 3)
    for topic in topics:
        with consumer(run, topic, isolation_level="read_committed") as c:
            same(sorted(m.value() for m in take(c, len(wanted))), wanted, topic)
