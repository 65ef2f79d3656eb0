"""Messages of an instance and their fate: done, or tried again and when; and what of it may be committed.

Owns: the offset behind which nothing is open, for each partition; how long a failed message waits.
Must not know: clocks, threads, what a message holds. The time is given, in seconds of any clock.

A committed offset says that all before it is done. So a message that fails, that nobody has acknowledged yet or whose
call is under way keeps the offset of its partition, however many behind it are done.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Final

from kop.client.offsets import TopicPartition

FIRST_SECONDS: Final = 0.2
"""The seconds that a message waits which has failed once; twice as long after each further time."""
LONGEST_SECONDS: Final = 60.0


def wait_seconds(failures: int) -> float:
    """Return the seconds that a message waits for its next attempt after so many failures: 0.2 after the first one,
    twice as many after each further one, 60 at most.
    """
    # The exponent is bounded: a message may fail for ever, and 2.0 ** 1024 is no number.
    return min(FIRST_SECONDS * 2.0 ** min(failures - 1, 20), LONGEST_SECONDS)


@dataclass(slots=True)
class _Partition:
    next: int = -1
    """The offset behind all that was taken."""
    count: int = 0
    """The number of messages that were taken."""
    open: dict[int, int] = field(default_factory=dict)
    """The offsets that are not done, in their order, and how many were taken before each."""
    told: int = -1
    """The offset that `committable` has told last."""


class Acks:
    """The messages of an instance. Those of a partition are taken in the order of their offsets."""

    def __init__(self, max_retries: int | None) -> None:
        """`max_retries`: how often a failed message is tried again; None is without limit."""
        self._max_retries = max_retries
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._failures: dict[tuple[TopicPartition, int], int] = {}
        """The number of failures of each open message, by partition and offset."""
        self._due: dict[tuple[TopicPartition, int], float] = {}
        """The time of the next try of each message that waits for one, in seconds, by partition and offset."""
        self._queue: list[tuple[float, TopicPartition, int]] = []
        """The same by time, with times that do not hold any more."""
        self._waiting: set[tuple[TopicPartition, int]] = set()
        """The messages that wait for a call: those that have failed, also while they are called again, and those that
        wait for one of these."""

    def taken(self, partition: TopicPartition, offset: int) -> None:
        """Note that the message at this offset was taken, which is not done yet."""
        state = self._partitions.get(partition)
        if state is None:
            state = self._partitions[partition] = _Partition(told=offset)
        state.open[offset] = state.count
        state.count += 1
        state.next = offset + 1

    def all_done(self, partition: TopicPartition, offset: int, count: int, next_offset: int) -> None:
        """Note that `count` messages, from `offset` on to before `next_offset`, were taken and are done already."""
        state = self._partitions.get(partition)
        if state is None:
            state = self._partitions[partition] = _Partition(told=offset)
        state.count += count
        state.next = next_offset

    def passed(self, partition: TopicPartition, next_offset: int) -> None:
        """Note that there is no further message from the last one that was taken up to `next_offset`."""
        state = self._partitions.get(partition)
        if state is None:
            state = self._partitions[partition] = _Partition()
        state.next = max(state.next, next_offset)

    def done(self, partition: TopicPartition, offset: int) -> None:
        """Note that a message is done, or given up, and forget its failures and its next attempt; one that is done
        already stays so.
        """
        self._partitions[partition].open.pop(offset, None)
        if self._failures:
            self._failures.pop((partition, offset), None)
            self._due.pop((partition, offset), None)
        if self._waiting:
            self._waiting.discard((partition, offset))

    def waits(self, partition: TopicPartition, offset: int) -> None:
        """Note that a message waits for a call, until it is `called` or `done`. One that waits from its beginning is
        noted before it is `taken`, so that no other thread believes it to be reached.
        """
        self._waiting.add((partition, offset))

    def is_waiting(self, partition: TopicPartition, offset: int) -> bool:
        """Return True if a message waits for a call."""
        return (partition, offset) in self._waiting

    def called(self, partition: TopicPartition, offset: int) -> None:
        """Note that the function was called with a message, and has not failed."""
        if self._waiting:
            self._waiting.discard((partition, offset))

    def failed(self, partition: TopicPartition, offset: int, now: float) -> float | None:
        """Note that a call has failed at the time `now`, and return the time at which the message is due again; None if
        it was tried as often as it may be. The message stays open until `done` in both cases.
        """
        failures = self._failures.get((partition, offset), 0) + 1
        self._failures[partition, offset] = failures
        if self._max_retries is not None and failures > self._max_retries:
            self._due.pop((partition, offset), None)
            return None
        due = now + wait_seconds(failures)
        self.waits(partition, offset)
        self._due[partition, offset] = due
        heapq.heappush(self._queue, (due, partition, offset))
        return due

    def due(self, now: float) -> list[tuple[TopicPartition, int]]:
        """Return the messages that are to be tried again at the time `now`, the longest due first. They are due no
        more, but wait until they are `called`, and stay open until `done`.
        """
        places: list[tuple[TopicPartition, int]] = []
        while (first := self.next_due()) is not None and first <= now:
            _, partition, offset = heapq.heappop(self._queue)
            del self._due[partition, offset]
            places.append((partition, offset))
        return places

    def put_off(self, partition: TopicPartition, offset: int, now: float) -> None:
        """Note that a message which `due` has returned is not tried at the time `now`: it is due again 0.2 s later."""
        due = self._due[partition, offset] = now + FIRST_SECONDS
        heapq.heappush(self._queue, (due, partition, offset))

    def next_due(self) -> float | None:
        """Return the time at which the next message is due, on the clock of the times that `failed` was given; None if
        none waits.
        """
        while self._queue and self._due.get(self._queue[0][1:]) != self._queue[0][0]:
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def ahead(self, partition: TopicPartition) -> int:
        """Return how many messages were taken behind the first one that is not done; 0 if all are."""
        state = self._partitions.get(partition)
        if state is None or not state.open:
            return 0
        return state.count - 1 - state.open[next(iter(state.open))]

    def positions(self) -> dict[TopicPartition, int]:
        """Return, by partition, the offset before which all is done, of partitions of which something was taken. For
        any thread.
        """
        return {partition: self._position(state) for partition, state in list(self._partitions.items())}

    @staticmethod
    def _position(state: _Partition) -> int:
        return next(iter(list(state.open)), state.next)

    def reached(self) -> dict[TopicPartition, int]:
        """Return, by partition, the offset before which all was taken, done or not, and no message waits for a call.
        For any thread.
        """
        offsets = {partition: state.next for partition, state in list(self._partitions.items())}
        for partition, offset in list(self._waiting):
            offsets[partition] = min(offset, offsets.get(partition, offset))
        return offsets

    def committable(self) -> dict[TopicPartition, int]:
        """Return, by partition, the offset before which all is done, of partitions for which it has moved since the
        last call.
        """
        moved: dict[TopicPartition, int] = {}
        for partition, state in self._partitions.items():
            offset = self._position(state)
            if offset > state.told:
                state.told = moved[partition] = offset
        return moved
