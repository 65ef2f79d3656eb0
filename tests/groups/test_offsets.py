"""Offsets of a group, by tables: what plain commits, commits in transactions and deletions make of each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kop.coordination.state_log import KeyValue, Written
from kop.errors import ErrorCode
from kop.groups.offsets import Commit, GroupOffsets, OffsetStore
from kop.wire.state import (
    OffsetCommitKey,
    PendingOffsetKey,
    decode_key,
    decode_offset_value,
    decode_pending_value,
)

A, B, C = 1, 2, 3


class Log:
    """A partition of `__offsets` that is compacted after each write."""

    def __init__(self) -> None:
        self.newest: dict[bytes, bytes | None] = {}
        self.batches: list[Sequence[KeyValue]] = []
        self.error = ErrorCode.NONE

    def write(self, partition: int, records: Sequence[KeyValue], written: Written) -> None:
        self.batches.append(records)
        if not self.error:
            for key, value in records:
                self.newest.pop(key, None)
                self.newest[key] = value
        written(self.error)

    def replay(self) -> GroupOffsets:
        offsets = GroupOffsets()
        for raw_key, raw_value in self.newest.items():
            key = decode_key(raw_key)
            if raw_value is None:
                continue
            if isinstance(key, OffsetCommitKey):
                offsets.put(key.topic, key.partition, decode_offset_value(raw_value))
            else:
                assert isinstance(key, PendingOffsetKey)
                offsets.put_pending(key.topic, key.partition, key.producer_id, decode_pending_value(raw_value))
        return offsets


class Offsets:
    """One group's offsets over such a log; each step is written, and the offsets may be replayed at any time."""

    def __init__(self) -> None:
        self.log = Log()
        unused: Any = None
        log: Any = self.log
        self.store = OffsetStore(log, unused, lambda: 1_000)
        self.group = GroupOffsets()

    def plain(self, offset: int, partition: int = 0) -> None:
        self.store.commit(0, "g", self.group, [Commit("t", None, partition, offset)], -1, lambda code: None)

    def pend(self, producer: int, offset: int, partition: int = 0, epoch: int = 0) -> None:
        commits = [Commit("t", None, partition, offset)]
        self.store.commit_pending(0, "g", self.group, producer, epoch, b"", commits, lambda code: None)

    def end(self, producer: int, commit: bool = True, epoch: int = 0) -> None:
        ended = self.group.ended(producer, epoch if commit else None)
        if ended:
            self.store.end(0, producer, [("g", self.group, ended)], lambda code: None)

    def delete(self, partition: int = 0) -> None:
        self.store.delete(0, "g", self.group, [("t", partition)], lambda code: None)

    def replay(self) -> None:
        self.group = self.log.replay()

    def seen(self, partition: int = 0) -> int | None:
        value = self.group.get("t", partition)
        return None if value is None else value.offset

    def pending(self, partition: int = 0) -> dict[int, tuple[int, bool]]:
        of_key = self.group.pending.get(("t", partition), {})
        return {producer: (offset.value.offset.offset, offset.superseded) for producer, offset in of_key.items()}


STORIES: list[tuple[str, list[tuple[Any, ...]], int | None, dict[int, int]]] = [
    ("a pending offset is not seen", [("plain", 1), ("pend", A, 2)], 1, {A: 2}),
    ("a commit shows it", [("plain", 1), ("pend", A, 2), ("end", A)], 2, {}),
    ("an abort drops it", [("plain", 1), ("pend", A, 2), ("end", A, False)], 1, {}),
    ("an abort where nothing was committed", [("pend", A, 2), ("end", A, False)], None, {}),
    ("the last one of a transaction counts", [("pend", A, 2), ("pend", A, 3), ("end", A)], 3, {}),
    ("a later plain commit wins", [("pend", A, 2), ("plain", 1), ("end", A)], 1, {}),
    ("an earlier plain commit does not", [("plain", 9), ("pend", A, 2), ("end", A)], 2, {}),
    (
        "a pending one after the plain one makes up for the one before",
        [("pend", A, 2), ("plain", 1), ("pend", A, 3), ("end", A)],
        3,
        {},
    ),
    ("the later of two wins, which ends last", [("pend", A, 2), ("pend", B, 3), ("end", A), ("end", B)], 3, {}),
    ("the later of two wins, which ends first", [("pend", A, 2), ("pend", B, 3), ("end", B), ("end", A)], 3, {}),
    ("the earlier one shows meanwhile", [("pend", A, 2), ("pend", B, 3), ("end", A)], 2, {B: 3}),
    (
        "an abort of the later one leaves the earlier one",
        [("pend", A, 2), ("pend", B, 3), ("end", A), ("end", B, False)],
        2,
        {},
    ),
    (
        "a plain commit between the ends",
        [("pend", A, 2), ("pend", B, 3), ("end", A), ("plain", 7), ("end", B)],
        7,
        {},
    ),
    (
        "three, of which the middle one ends first",
        [("pend", A, 2), ("pend", B, 3), ("pend", C, 4), ("end", B), ("end", A), ("end", C)],
        4,
        {},
    ),
    ("a deletion takes all", [("plain", 1), ("pend", A, 2), ("delete",), ("end", A)], None, {}),
    ("a commit after a deletion", [("plain", 1), ("delete",), ("pend", A, 2), ("end", A)], 2, {}),
    ("an older epoch is dropped at the commit", [("pend", A, 2, 0, 4), ("end", A, True, 5)], None, {}),
    ("a newer epoch takes its place", [("pend", A, 2, 0, 4), ("pend", A, 3, 0, 5), ("end", A, True, 5)], 3, {}),
    ("an end is repeated", [("pend", A, 2), ("end", A), ("end", A), ("end", A, False)], 2, {}),
]


@pytest.mark.parametrize("replays", [False, True])
@pytest.mark.parametrize(("steps", "seen", "pending"), [pytest.param(*s[1:], id=s[0]) for s in STORIES])
def test_stories(steps: list[tuple[Any, ...]], seen: int | None, pending: dict[int, int], replays: bool) -> None:
    """As told, also where all is forgotten after each step and read from the compacted log."""
    offsets = Offsets()
    for name, *arguments in steps:
        getattr(offsets, name)(*arguments)
        if replays:
            offsets.replay()
    assert offsets.seen() == seen
    assert {producer: offset for producer, (offset, _) in offsets.pending().items()} == pending
    offsets.replay()
    assert offsets.seen() == seen


class Kafka:
    """What Kafka makes of it: every record keeps its place in the log, and the latest place wins."""

    def __init__(self) -> None:
        self.place = 0
        self.durable: dict[int, tuple[int, int]] = {}
        self.open: dict[tuple[int, int], tuple[int, int]] = {}

    def plain(self, offset: int, partition: int) -> None:
        self.place += 1
        self.durable[partition] = self.place, offset

    def pend(self, producer: int, offset: int, partition: int) -> None:
        self.place += 1
        self.open[producer, partition] = self.place, offset

    def end(self, producer: int, commit: bool) -> None:
        for of, partition in list(self.open):
            if of == producer:
                held = self.open.pop((of, partition))
                if commit and held[0] > self.durable.get(partition, (0, 0))[0]:
                    self.durable[partition] = held

    def delete(self, partition: int) -> None:
        self.durable.pop(partition, None)
        self.open = {key: held for key, held in self.open.items() if key[1] != partition}


PRODUCERS, PARTITIONS, NUMBERS = st.integers(1, 3), st.integers(0, 1), st.integers(0, 99)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), NUMBERS, PARTITIONS),
        st.tuples(st.just("pend"), PRODUCERS, NUMBERS, PARTITIONS),
        st.tuples(st.just("pend"), PRODUCERS, NUMBERS, PARTITIONS),
        st.tuples(st.just("end"), PRODUCERS, st.booleans()),
        st.tuples(st.just("delete"), PARTITIONS),
        st.tuples(st.just("replay")),
    ),
    min_size=10,  # hypothesis makes short lists else
    max_size=40,
)


@given(STEPS)
def test_any_steps_end_as_in_kafka(steps: list[tuple[Any, ...]]) -> None:
    offsets, kafka = Offsets(), Kafka()
    for name, *arguments in steps:
        getattr(offsets, name)(*arguments)
        if name != "replay":
            getattr(kafka, name)(*arguments)
        for group in (offsets.group, offsets.log.replay()):
            seen = {partition: value.offset for _, partition, value in group}
            assert seen == {partition: offset for partition, (_, offset) in kafka.durable.items()}
            held = {
                (producer, key[1]): (offset.value.offset.offset, offset.superseded)
                for key, of_key in group.pending.items()
                for producer, offset in of_key.items()
            }
            assert held == {
                key: (offset, place < kafka.durable.get(key[1], (0, 0))[0])
                for key, (place, offset) in kafka.open.items()
            }


def test_a_failed_write_changes_nothing_that_is_seen() -> None:
    offsets = Offsets()
    offsets.plain(1)
    offsets.pend(A, 2)
    offsets.log.error = ErrorCode.KAFKA_STORAGE_ERROR
    for step in (("end", A), ("delete",), ("plain", 5), ("pend", B, 6)):
        getattr(offsets, step[0])(*step[1:])
        assert (offsets.seen(), offsets.pending()) == (1, {A: (2, False)})
        assert not offsets.group.writing
        assert not offsets.group.writing_pending


def test_a_pending_offset_whose_write_failed_gets_a_tombstone_at_the_end() -> None:
    """Storage may have kept it all the same: it would come back with the next replay, and stay."""
    offsets = Offsets()
    offsets.log.error = ErrorCode.REQUEST_TIMED_OUT
    offsets.pend(A, 2)
    offsets.log.error = ErrorCode.NONE
    assert not offsets.group
    offsets.end(A)
    assert [(decode_key(key), value) for key, value in offsets.log.batches[-1]] == [
        (PendingOffsetKey("g", "t", 0, A), None)
    ]
    assert not offsets.group.ended(A, 0)
