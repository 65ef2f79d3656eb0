"""What every partition log does the same: bounds, deletion, observers."""

from __future__ import annotations

from uuid import uuid4

import pytest
from storage.batches import refused

from kop.errors import ErrorCode
from kop.records.batch import BatchHeader, Buffer
from kop.storage.base import AppendWaiter, LogPolicy, TopicInfo
from kop.storage.partition import Partition


class Unwritten(Partition):
    """A log that nobody appends to."""

    def submit(
        self,
        batch: Buffer,
        header: BatchHeader,
        *,
        now_ms: int,
        waiter: AppendWaiter,
        place: int,
        from_zero: bool = False,
    ) -> None:
        raise AssertionError("nobody appends to it")


@pytest.fixture
def log() -> Partition:
    log = Unwritten(TopicInfo("t", uuid4(), 1), 0, LogPolicy())
    log.log_start_offset, log.high_watermark = 5, 9
    return log


@pytest.mark.parametrize(("offset", "readable"), [(4, False), (5, True), (9, True), (10, False), (-1, False)])
def test_offsets_from_the_log_start_to_the_high_watermark_can_be_read(
    log: Partition, offset: int, readable: bool
) -> None:
    if readable:
        log.check_offset(offset)
    else:
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            log.check_offset(offset)


@pytest.mark.parametrize(
    ("before", "start"), [(-1, 9), (0, 0), (5, 5), (9, 9), (10, None), (-2, None)]
)  # fmt: skip
def test_records_can_be_deleted_up_to_the_high_watermark(log: Partition, before: int, start: int | None) -> None:
    if start is None:
        with refused(ErrorCode.OFFSET_OUT_OF_RANGE):
            log.deletable(before)
    else:
        assert log.deletable(before) == start


def test_nothing_can_be_asked_of_a_log_whose_topic_was_deleted(log: Partition) -> None:
    log.remove()
    for call in (log.check_there, lambda: log.check_offset(7), lambda: log.deletable(7)):
        with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            call()


def test_observers_are_told_until_they_go_and_for_the_last_time_when_the_topic_goes(log: Partition) -> None:
    told: list[str] = []

    def fails() -> None:
        told.append("fails")
        raise RuntimeError("the observer's own failure")

    undo = log.on_advance(fails)
    log.on_advance(lambda: told.append("stays"))
    assert log.observed
    log.tell()
    undo()
    undo()
    log.tell()
    log.remove()
    assert told == ["fails", "stays", "stays", "stays"]
    assert not log.observed
    log.tell()
    assert len(told) == 4


def test_an_observer_may_go_while_it_is_told(log: Partition) -> None:
    told: list[int] = []

    def once() -> None:
        told.append(1)
        undo()

    undo = log.on_advance(once)
    log.tell()
    log.tell()
    assert told == [1]
