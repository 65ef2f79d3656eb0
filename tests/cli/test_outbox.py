"""The batches that wait for `kop produce`: their order and their sequences, whatever becomes of them."""

from __future__ import annotations

import uuid

import pytest
from cli.cli_support import Kop
from hypothesis import given, settings
from hypothesis import strategies as st

from kop.cli.lines import LineRecord
from kop.cli.sender import (
    REQUEST_BYTES,
    RETRY_SECONDS,
    Outbox,
    Sender,
    SendSettings,
    SentBatch,
    encoded,
    placed,
    rows_of,
    rows_of_values,
)
from kop.records.batch import iter_records


def box(*sizes: int) -> Outbox:
    """An outbox with a batch of each of these numbers of records, in partition 0."""
    outbox = Outbox()
    for size in sizes:
        for data, records in encoded(rows_of_values([b"v"] * size), 0, 1):
            outbox.add(0, data, records, now=0.0)
    return outbox


def take(outbox: Outbox, now: float = 0.0) -> SentBatch:
    return outbox.due([0], now, REQUEST_BYTES)[0]


def test_sequences_follow_one_another_and_answers_empty_it() -> None:
    outbox = box(3, 2)
    first, second = take(outbox), take(outbox)
    assert (first.sequence, second.sequence) == (0, 3)
    assert outbox.due([0], 0.0, REQUEST_BYTES) == {}
    outbox.done(0, first)
    outbox.done(0, second)
    assert (outbox.sent, outbox.waiting, outbox.waiting_bytes, outbox.oldest) == (5, 0, 0, None)


def test_after_a_failure_the_first_goes_again_alone_once_all_are_answered() -> None:
    outbox = box(1, 1, 1)
    first, second = take(outbox), take(outbox)
    outbox.failed(0, now=0.0)
    assert outbox.due([0], 9.0, REQUEST_BYTES) == {}, "another one is under way"
    outbox.failed(0, now=0.0)
    assert outbox.due([0], RETRY_SECONDS / 2, REQUEST_BYTES) == {}
    assert take(outbox, RETRY_SECONDS) is first
    assert outbox.due([0], 9.0, REQUEST_BYTES) == {}, "it goes alone"
    outbox.done(0, first)
    assert take(outbox, 9.0) is second
    assert (first.sequence, second.sequence, take(outbox, 9.0).sequence) == (0, 1, 2)


def test_an_answer_to_a_later_batch_does_not_end_the_wait_for_those_under_way() -> None:
    """Without sequences the server writes batches behind one that failed."""
    outbox = box(1, 1, 1, 1)
    first, second, third = take(outbox), take(outbox), take(outbox)
    outbox.failed(0, now=0.0)
    outbox.done(0, second)
    assert outbox.due([0], 9.0, REQUEST_BYTES) == {}, "the third one is under way, the first one waits for its answer"
    outbox.done(0, third)
    assert take(outbox, 9.0) is first
    assert outbox.due([0], 9.0, REQUEST_BYTES) == {}, "it goes alone"
    outbox.done(0, first)
    take(outbox, 9.0)
    assert outbox.sent == 3


def test_an_answer_to_the_first_batch_does_not_end_it_either_while_another_is_under_way() -> None:
    """A server that leads the partition no more may answer after the one that leads it now."""
    outbox = box(1, 1, 1)
    first, second, third = take(outbox), take(outbox), take(outbox)
    outbox.failed(0, now=0.0)
    outbox.done(0, first)
    assert outbox.due([0], 9.0, REQUEST_BYTES) == {}
    outbox.failed(0, now=0.0)
    assert [take(outbox, 9.0), outbox.due([0], 9.0, REQUEST_BYTES)] == [second, {}]
    outbox.done(0, second)
    assert take(outbox, 9.0) is third


def test_the_halves_of_a_batch_wait_for_those_under_way_whatever_their_answers() -> None:
    outbox = box(2, 1, 1)
    large, second, third = take(outbox), take(outbox), take(outbox)
    outbox.split(0, large, now=0.0)
    outbox.done(0, second)
    assert outbox.due([0], 9.0, REQUEST_BYTES) == {}
    outbox.done(0, third)
    for left in (2, 1):
        assert outbox.waiting == left
        outbox.done(0, take(outbox, 9.0))
    assert (outbox.sent, outbox.waiting) == (4, 0)


def test_behind_a_refused_batch_the_sequences_have_no_gap() -> None:
    outbox = box(4, 1, 1)
    first, second = take(outbox), take(outbox)
    outbox.refused(0, first, now=0.0)
    outbox.failed(0, now=0.0)
    assert take(outbox, 1.0) is second
    assert second.sequence == 0


def test_a_batch_that_is_too_large_becomes_two_with_its_sequences() -> None:
    outbox = Outbox()
    values: list[bytes | None] = [b"%d" % number for number in range(5)]
    for data, records in encoded(rows_of_values(values), 0, 7):
        outbox.add(0, data, records, now=0.0)
    outbox.split(0, take(outbox), now=0.0)
    halves = []
    for sequence in (0, 2):
        half = take(outbox, 1.0)
        assert half.sequence == sequence
        halves += [record.value for record in iter_records(half.data, max_bytes=1 << 20)]
        outbox.done(0, half)
    assert halves == values


def test_a_request_has_a_batch_of_each_partition_up_to_its_size() -> None:
    outbox = Outbox()
    for partition in range(3):
        for data, records in encoded(rows_of_values([b"x" * 400]), 0, 1):
            outbox.add(partition, data, records, now=0.0)
    assert list(outbox.due([0, 1, 2], 0.0, 1000)) == [0, 1]
    assert list(outbox.due([0, 1, 2], 0.0, 10)) == [2], "one goes however large it is"


def test_records_behind_a_refused_one_are_written_at_a_terminal(kop: Kop) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    kop.ok("topics", "create", topic, "-p", "1", "-c", "max.message.bytes=1000")
    said: list[str] = []
    sender = Sender(topic, [kop.bootstrap], "c", SendSettings(), said.append, tolerant=True)
    try:
        assert sender.open(lambda: False)
        sender.add_values([b"first"], 0)
        sender.finish(lambda: False)
        for value in (b"x" * 2000, b"second", b"third"):
            sender.add_values([value], 0)
        sender.finish(lambda: False)
    finally:
        sender.close()
    assert [line.partition(":")[0] for line in said] == ["MESSAGE_TOO_LARGE"]
    assert sender.outbox.sent == 3
    assert kop.ok("consume", topic, "-B", "--until-end").split() == ["first", "second", "third"]


texts = st.one_of(st.none(), st.binary(max_size=20))
record = st.builds(
    LineRecord,
    key=texts,
    value=texts,
    headers=st.lists(st.tuples(st.text(max_size=5).map(str.encode), texts), max_size=3),
    timestamp=st.one_of(st.none(), st.integers(-1, 2**50)),
    partition=st.one_of(st.none(), st.integers(0, 3)),
)


@given(st.lists(record, min_size=1, max_size=8))
@settings(max_examples=40)
def test_records_come_out_of_their_batches_as_they_went_in(records: list[LineRecord]) -> None:
    by_partition = placed(records, 4, turn=1)
    assert sum(map(len, by_partition.values())) == len(records)
    for partition, some in by_partition.items():
        assert all(item.partition in {None, partition} for item in some)
        read = [item for data, _ in encoded(rows_of(some), 0, 99) for item in iter_records(data, max_bytes=1 << 20)]
        assert [(item.key, item.value, list(item.headers)) for item in read] == [
            (item.key, item.value, list(item.headers)) for item in some
        ]
        assert [item.timestamp for item in read] == [99 if i.timestamp is None else i.timestamp for i in some]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_record_that_is_larger_than_a_batch_goes_alone(place: int) -> None:
    values: list[bytes | None] = [b"a", b"b", b"c"]
    values[place] = b"x" * 1_000_000
    batches = list(encoded(rows_of_values(values), 0, 1))
    assert [r.value for data, _ in batches for r in iter_records(data, max_bytes=1 << 21)] == values
    assert [records for data, records in batches if len(data) > 900_000] == [1]
